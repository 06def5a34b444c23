"""The bundle's own repository: packages, their entries out of the metadata that they came with, streams and keys.

The metadata is gzip, since yum of Enterprise Linux 7 reads nothing newer; createrepo_c is not used: its output is not
the same twice. The same plan is written as the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from envbuild import store
from envbuild.bundle.rpms import cut
from envbuild.bundle.rpms.modules import Document
from envbuild.bundle.rpms.planning import Plan, with_epoch
from envbuild.bundle.rpms.results import Check, Checked, Written, WrittenFile
from envbuild.bundle.rpms.telling import step
from envbuild.bundle.rpms.transport import CHUNK, disk_error, opened
from envbuild.errors import BundleError, InputError
from envbuild.events import Sink, discard
from envbuild.model import Severity

REPOSITORY, PACKAGES, REPODATA, KEYS = "rpms", "rpms/Packages", "rpms/repodata", "keys"
KEY = "rpm-write"
_LINES = 2
_HEADS = {
    "primary": f'<metadata xmlns="{cut.COMMON}" xmlns:rpm="{cut.RPM}" packages="{{count}}">\n',
    "filelists": f'<filelists xmlns="{cut.FILELISTS}" packages="{{count}}">\n',
    "other": f'<otherdata xmlns="{cut.OTHER}" packages="{{count}}">\n',
}
_ENDS = {"primary": "</metadata>\n", "filelists": "</filelists>\n", "other": "</otherdata>\n"}
_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'


def write(plan: Plan, checked: Check, folder: Path, *, created: int, sink: Sink = discard) -> Written:
    """Write ``rpms/`` and ``keys/`` into a bundle's folder. What is there already and is right is left as it is.

    Args:
        created: What the metadata says of its own age, in seconds since the epoch.

    Raises:
        BundleError: Something stands against the packages, or a file changed since it was looked at.
        EngineError: The disk.
    """
    if any(finding.severity is Severity.ERROR for finding in (*plan.findings, *checked.findings)):
        raise BundleError("packages with findings of severity error are not written into a bundle")
    with step(sink, KEY, f"writing {len(checked.packages)} packages"):
        return _written(plan, checked, folder, created)


def _written(plan: Plan, checked: Check, folder: Path, created: int) -> Written:
    names = _names(checked.packages)
    _clean(folder, [f"{PACKAGES}/{name}" for name in names])
    with ThreadPoolExecutor(_LINES) as pool:
        jobs = [
            pool.submit(_place, each, folder / PACKAGES / name)
            for each, name in zip(checked.packages, names, strict=True)
        ]
        try:
            files = [
                WrittenFile(path=f"{PACKAGES}/{name}", bytes=job.result(), sha256=each.sha256)
                for job, name, each in zip(jobs, names, checked.packages, strict=True)
            ]
        except BaseException:
            for job in jobs:
                job.cancel()
            raise
    files += _repodata(folder, _metadata(plan, checked, names), created)
    keys = {}
    for key in checked.keys:
        # rpm's own folder of keys (/etc/pki/rpm-gpg) names them so.
        path = keys[key.fingerprint] = f"{KEYS}/RPM-GPG-KEY-{key.fingerprint[-16:]}.asc"
        files.append(_small(folder, path, key.armored))
    return Written(
        folder=folder,
        files=tuple(sorted(files, key=lambda file: file.path)),
        packages={
            str(each.package.nevra): f"{PACKAGES}/{name}" for each, name in zip(checked.packages, names, strict=True)
        },
        keys=keys,
        repomd=f"{REPODATA}/repomd.xml",
    )


def _names(packages: Sequence[Checked]) -> list[str]:
    """A file for each package, by its name as rpm says it. What a medium without upper and lower case takes for one, or
    what differs in its epoch alone, lies in a folder of its own."""
    plain = [f"{_nvra(each)}.rpm" for each in packages]
    count = Counter(name.lower() for name in plain)
    return [
        name if count[name.lower()] == 1 else f"{each.sha256[:12]}/{name}"
        for name, each in zip(plain, packages, strict=True)
    ]


def _nvra(each: Checked) -> str:
    nevra = each.package.nevra
    return f"{nevra.name}-{nevra.version}-{nevra.release}.{nevra.arch}"


def _clean(folder: Path, wanted: Iterable[str]) -> None:
    """Take away what an earlier run left and this one does not have: a repository has what its metadata says.

    Raises:
        InputError: A folder of it is a link: nobody knows whose what is behind it is.
    """
    if link := next((place for place in (REPOSITORY, PACKAGES, REPODATA, KEYS) if (folder / place).is_symlink()), None):
        raise InputError(f"{folder / link} is a link, and has to be a folder")
    kept = {folder / path for path in wanted}
    for place, pattern in ((PACKAGES, "*"), (REPODATA, "*"), (KEYS, "RPM-GPG-KEY-*")):
        # Folders after what is in them.
        for path in sorted((folder / place).rglob(pattern), reverse=True):
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path not in kept or path.is_symlink():
                store.remove(path)


def _place(each: Checked, target: Path) -> int:
    """Copy a package, and see that it is still the one that was looked at; its size in bytes."""
    if target.is_file() and not target.is_symlink() and _sha256(target) == each.sha256:
        return target.stat().st_size
    store.make_folder(target.parent)
    part = target.with_name(f".{target.name}.part")
    total, size = hashlib.sha256(), 0
    try:
        with opened(each.path) as file, part.open("wb") as out:
            while block := file.read(CHUNK):
                total.update(block)
                out.write(block)
                size += len(block)
            out.flush()
            os.fsync(out.fileno())
        if total.hexdigest() != each.sha256:
            raise BundleError(f"{each.package.nevra} changed while it was being written", hint="Run it again.")
        part.replace(target)
    except OSError as error:
        raise disk_error(target, error) from error
    finally:
        part.unlink(missing_ok=True)
    return size


def _sha256(path: Path) -> str:
    total = hashlib.sha256()
    with opened(path) as file:
        while block := file.read(CHUNK):
            total.update(block)
    return total.hexdigest()


def _metadata(plan: Plan, checked: Check, names: Sequence[str]) -> dict[str, bytes]:
    """The plain documents, by their type."""
    digests = {each.package.checksum[1]: f"Packages/{name}" for each, name in zip(checked.packages, names, strict=True)}
    by_repository: dict[str, set[str]] = {}
    for each in checked.packages:
        by_repository.setdefault(each.package.repository, set()).add(each.package.checksum[1])
    order = [each.package.checksum[1] for each in checked.packages]
    documents = {}
    for kind, head in _HEADS.items():
        entries: dict[str, bytes] = {}
        for found in plan.metadata:
            path = {"primary": found.primary, "filelists": found.filelists, "other": found.other}[kind]
            change = cut.located(digests) if kind == "primary" else cut.unchanged
            if path is not None and (wanted := by_repository.get(found.id)):
                entries.update(cut.cut(path, wanted, change))
        missing = [each for each in checked.packages if each.package.checksum[1] not in entries]
        # Changelogs are for people; without the others dnf cannot resolve.
        if missing and kind != "other":
            raise BundleError(
                f"repository {missing[0].package.repository}: its {kind} metadata has no {missing[0].package.nevra}",
                hint="Tell who keeps it: createrepo_c makes the metadata anew.",
            )
        kept = [entries[digest] for digest in order if digest in entries]
        documents[kind] = (_XML + head.format(count=len(kept))).encode() + b"".join(kept) + _ENDS[kind].encode()
    if text := b"".join(_modules(plan, checked)):
        documents["modules"] = text
    return documents


def _modules(plan: Plan, checked: Check) -> Iterator[bytes]:
    """The documents of the streams that the packages are of, of those that these need, and their modules' defaults.
    Without them a target refuses modular packages ("no available modular metadata")."""
    names = {with_epoch(each.package) for each in checked.packages}
    mine = [each for each in plan.modules.documents if names & each.artifacts]
    todo, chosen = list(mine), dict.fromkeys(map(_key, mine))
    while todo:
        document = todo.pop()
        for alternative in document.requires:
            for other in plan.modules.documents:
                if (
                    other.name in alternative
                    and _key(other) not in chosen
                    and _fits(plan, other, alternative[other.name])
                ):
                    chosen[_key(other)] = None
                    todo.append(other)
    kept = [document for document in plan.modules.documents if _key(document) in chosen]
    yield from (document.text for document in kept)
    for name in sorted({document.name for document in kept}):
        if name in plan.modules.default_texts:
            yield plan.modules.default_texts[name]


def _key(document: Document) -> tuple[str, str, int, str, str]:
    return document.name, document.stream, document.version, document.context, document.arch


def _fits(plan: Plan, document: Document, streams: tuple[str, ...]) -> bool:
    if document.arch not in ("", plan.request.system.arch):
        return False
    exactly = [stream for stream in streams if not stream.startswith("-")]
    return document.stream in exactly if exactly else f"-{document.stream}" not in streams


def _repodata(folder: Path, documents: dict[str, bytes], created: int) -> Iterator[WrittenFile]:
    lines = [_XML, '<repomd xmlns="http://linux.duke.edu/metadata/repo">\n', f"  <revision>{created}</revision>\n"]
    for kind, plain in documents.items():
        packed = _gzip(plain)
        digest = hashlib.sha256(packed).hexdigest()
        name = f"{digest}-{kind}.{'yaml' if kind == 'modules' else 'xml'}.gz"
        yield _small(folder, f"{REPODATA}/{name}", packed)
        lines.append(
            f'  <data type="{kind}">\n'
            f'    <checksum type="sha256">{digest}</checksum>\n'
            f'    <open-checksum type="sha256">{hashlib.sha256(plain).hexdigest()}</open-checksum>\n'
            f'    <location href="repodata/{name}"/>\n'
            f"    <timestamp>{created}</timestamp>\n"
            f"    <size>{len(packed)}</size>\n"
            f"    <open-size>{len(plain)}</open-size>\n"
            "  </data>\n"
        )
    # Last: whoever finds it finds what it names.
    yield _small(folder, f"{REPODATA}/repomd.xml", ("".join(lines) + "</repomd>\n").encode())


def _gzip(data: bytes) -> bytes:
    """Without a time and a name, so that equal documents are equal files (RFC 1952)."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = packer.compress(data) + packer.flush()
    tail = zlib.crc32(data).to_bytes(4, "little") + (len(data) & 0xFFFFFFFF).to_bytes(4, "little")
    return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff" + body + tail


def _small(folder: Path, path: str, data: bytes) -> WrittenFile:
    store.write_atomic(folder / path, data)
    return WrittenFile(path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
