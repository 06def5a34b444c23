"""Looking at the files of an image as they go by: digests, secrets, native code.

An image is read once, as a stream, and no copy of it is made: native code is put into one scratch file at a time,
read there, and forgotten.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from envbuild import elf, rpmdb
from envbuild.elf.gpucode import GpuCode, read_gpu_code
from envbuild.elf.isa import Isa, NotLookedAt, read_isa
from envbuild.errors import EngineError, EnvbuildError
from envbuild.judge import secrets
from envbuild.judge.archive import ImageArchive
from envbuild.judge.layers import Entry, Readable
from envbuild.plan import PREFIX

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

_VENV = f"{PREFIX.strip('/')}/"
_CHUNK = 1 << 20
# Up to here native code is read in memory; of 1,100 shared objects of the cpu image 12 are larger.
_IN_MEMORY = 16 << 20
_NATIVE = re.compile(r"(?:^|/)(?:[^/]+\.so(?:\.[^/]+)?|python[\d.]*)$")
# The ops, and what may lie beside them.
_OP = re.compile(r"/site-packages/deepspeed/.+\.so(?:\.[^/]+)?$")
_SYSTEM = re.compile(r"(?:usr/|lib|bin/|sbin/|etc/|opt/rh/)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What was seen of one file.

    Attributes:
        sha256: Digest of its content, for files of the Python environment and of the system: what RPM states.
        md5: The same for the system's files: what dpkg states.
        elf: What it says to the loader, for native code.
        gpu: Its GPU code.
        isa: What its code asks of the CPU, for DeepSpeed's ops.
        fault: Why it could not be read, as an error.
        kept: The whole of it, for a database of packages; open until its examiner is closed.
    """

    sha256: bytes | None = None
    md5: bytes | None = None
    elf: elf.ElfFile | None = None
    gpu: GpuCode | None = None
    isa: Isa | NotLookedAt | None = None
    fault: EnvbuildError | None = None
    kept: BinaryIO | None = None


def is_system(path: str) -> bool:
    """Whether a file (no leading slash) is where the operating system's packages put theirs."""
    return _SYSTEM.match(path) is not None


def facts_of(entry: Entry | None) -> FileFacts | None:
    """What was seen of a file, or None when nobody looked."""
    seen = entry.seen if entry is not None else None
    return seen if isinstance(seen, FileFacts) else None


class Examiner:
    """The visitor of an archive. It sees every file of every layer, also those that a later one hides.

    Args:
        scratch: A folder for what is too large for memory; needs room for the largest library, and for the databases of
            packages, which are kept until it is closed.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._kept: list[BinaryIO] = []
        self.leaks: list[secrets.Leak] = []

    def close(self) -> None:
        """Give back what was kept."""
        while self._kept:
            self._kept.pop().close()

    def __call__(self, path: str, size: int, content: Readable) -> FileFacts | None:
        """Look at one file.

        Raises:
            EngineError: There is no room in the scratch folder.
        """
        if rpmdb.wanted(path):
            return self._keep(path, size, content)
        inside, system = path.startswith(_VENV), is_system(path)
        sha256 = hashlib.sha256() if inside or system else None
        md5 = hashlib.md5(usedforsecurity=False) if system else None
        digests = [digest for digest in (sha256, md5) if digest is not None]
        if secrets.looks_secret(path, size):
            data = b"".join(_chunks(content))
            self.leaks += secrets.in_file(path, data)
            content = io.BytesIO(data)
        if _NATIVE.search(path):
            with self._copy(path, size, content, digests) as file:
                found = _native(path, file)
        elif digests:
            for chunk in _chunks(content):
                for digest in digests:
                    digest.update(chunk)
            found = FileFacts()
        else:
            return None
        return dataclasses.replace(found, sha256=sha256.digest() if sha256 else None, md5=md5.digest() if md5 else None)

    def _keep(self, path: str, size: int, content: Readable) -> FileFacts:
        if size > rpmdb.LARGEST:
            return FileFacts(fault=rpmdb.RpmdbError(f"it has {size} bytes, more than is read of a database"))
        file = self._copy(path, size, content, ())
        self._kept.append(file)
        return FileFacts(kept=file)

    def _copy(self, path: str, size: int, content: Readable, digests: Sequence[Hash]) -> BinaryIO:
        """The content as a file that can be sought in; the caller closes it."""
        if size <= _IN_MEMORY:
            data = b"".join(_chunks(content))
            for digest in digests:
                digest.update(data)
            return io.BytesIO(data)
        try:
            file = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115 (the caller's; the error is told apart)
        except OSError as error:
            raise EngineError(f"no scratch file can be made in {self._scratch}: {error.strerror}") from error
        for chunk in _chunks(content):
            for digest in digests:
                digest.update(chunk)
            try:
                file.write(chunk)
            except OSError as error:
                with contextlib.suppress(OSError):
                    file.close()
                raise EngineError(
                    f"{path} ({size / 2**20:.0f} MiB) cannot be looked at: {self._scratch}: {error.strerror}",
                    hint="Free some room there, or name another folder: paths.cache in envbuild.toml.",
                ) from error
        return cast(BinaryIO, file)


def _chunks(content: Readable) -> Iterator[bytes]:
    return iter(lambda: content.read(_CHUNK), b"")


def _native(path: str, file: BinaryIO) -> FileFacts:
    found: elf.ElfFile | None = None
    gpu: GpuCode | None = None
    isa: Isa | NotLookedAt | None = None
    try:
        found = elf.read(file, f"/{path}")
        gpu = read_gpu_code(file)
        isa = read_isa(file) if _OP.search(path) else None
    except EnvbuildError as error:  # a linker script, an empty file: only what loads it minds
        return FileFacts(elf=found, gpu=gpu, isa=isa, fault=error)
    return FileFacts(elf=found, gpu=gpu, isa=isa)


class ImageRoot:
    """An image as the loader's root filesystem; what it reads was seen as the image went by."""

    def __init__(self, image: ImageArchive) -> None:
        self._image = image
        self._resolved: dict[str, str | None] = {}

    def resolve(self, path: str) -> str | None:
        """The path of the file behind all symbolic links; None when no regular file is there."""
        if path not in self._resolved:
            real = self._image.resolve(path)
            entry = self._image.entries.get(real) if real else None
            self._resolved[path] = f"/{real}" if entry is not None and entry.kind == "file" else None
        return self._resolved[path]

    def read(self, path: str) -> elf.ElfFile:
        """The ELF file at a resolved path.

        Raises:
            ElfError: It is not one (NotElf), or cannot be understood.
        """
        facts = facts_of(self._image.entries.get(path.lstrip("/")))
        if facts is not None and facts.elf is not None:
            return facts.elf
        if facts is not None and isinstance(facts.fault, elf.ElfError):
            raise facts.fault
        raise elf.NotElf(f"{path} is not an ELF file")

    def data(self, path: str, limit: int) -> bytes:
        """At most the first ``limit`` bytes of the file at a resolved path.

        Raises:
            ElfError: Its bytes are not at hand.
        """
        try:
            return (self._image.data(path) or b"")[:limit]
        except EngineError as error:
            raise elf.ElfError(error.message) from error
