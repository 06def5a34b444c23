"""A prefix on this host, looked at from outside as an image is: packages against their RECORD, native code against
this host's own libraries.

The judges know the paths of an image, so the prefix's files go by those names, and come back under their own.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path
from typing import Any

from envbuild import elf
from envbuild.errors import EngineError
from envbuild.judge import content, inspection, intact, native
from envbuild.judge.archive import Entry, ImageArchive
from envbuild.judge.compare import error
from envbuild.judge.config import ConfigReport
from envbuild.judge.files import Examiner
from envbuild.judge.installed import Installed
from envbuild.judge.standards import Standards
from envbuild.judge.system import SystemReport
from envbuild.model import Environment, Finding, ImageIdentity, Severity
from envbuild.plan import PREFIX

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
# What the judges ask of an image and a folder has not: layers, labels, a package database of its own.
_NO_IMAGE = ImageIdentity(config_digest="", diff_ids=())
_NO_SYSTEM = SystemReport(known=False, files=0)
_FIX = "Make it anew: --force."
_FIXES = {
    "content.library": "Install what brings the library on this host, or load its module: LD_LIBRARY_PATH counts.",
    "content.symbols": "Compile by the system's own GCC, or load the module of the compiler that was used.",
    "content.shadow": "Unload the module that puts it there, if it is not meant.",
}
_NO_CONFIG = ConfigReport(labels={}, leaks=(), user_site="1", user_packages=(), sizes={})


def inspect(
    prefix: Path, env: Environment, standards: Standards, scratch: Path
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Look at a prefix; returns the reports by name, and where it is not what the row says.

    Args:
        prefix: The folder that ``provision.sh`` made.
        env: The row that it is held to.
        standards: What the facts say of the row.
        scratch: A folder with room for its largest library.

    Raises:
        EngineError: Its files cannot be read.
    """
    venv = Path(os.path.realpath(prefix / "venv"))
    image = _archive(venv, scratch)
    site = f"{PREFIX.strip('/')}/lib/python{env.python}/site-packages"
    # Whose versions and whole files they are is the host's business.
    outside = content.outside(image, env, Installed())
    looked = inspection.Looked(
        identity=_NO_IMAGE,
        outside=outside,
        intact=intact.intact(image, env, site, ()),
        system=_NO_SYSTEM,
        native=_own(native.native(image, env, site, outside.op_files, _Moved(venv))),
        config=_NO_CONFIG,
    )
    missing = [op for op in env.deepspeed.ops if op not in outside.op_files]
    findings = [*inspection.judge(env, looked, None, standards), *(_missing(env, op) for op in missing)]
    reports = {name: report for name, report in looked.as_dict().items() if name in ("outside", "intact", "native")}
    return reports, tuple(_told(finding, prefix) for finding in findings)


def _own(report: native.NativeReport) -> native.NativeReport:
    """Without the instructions of what ops bring in from outside the prefix: that is the host's, and runs there."""
    isa = {name: isa for name, isa in report.isa.items() if not name.startswith("/") or name.startswith(f"{PREFIX}/")}
    return dataclasses.replace(report, isa=isa)


def _missing(env: Environment, op: str) -> Finding:
    return error("content.op.missing", env.name, f"{op}: no file under deepspeed/ops",
                 "The op was not compiled: see the log of the compile step.")  # fmt: skip


def _told(finding: Finding, prefix: Path) -> Finding:
    """A judge's finding in a prefix's own words: its paths, what to do about it, and how bad it is on a host."""
    own = f"{prefix}/venv/"
    message = finding.message.replace(f"{PREFIX}/", own).replace(f"{PREFIX.strip('/')}/", own)
    # Modules of a cluster work by LD_LIBRARY_PATH: there it is how things are, not a mistake.
    severity = Severity.WARNING if finding.rule == "content.shadow" else finding.severity
    return dataclasses.replace(
        finding, message=message.replace("the image's environment", "LD_LIBRARY_PATH or LD_PRELOAD"),
        severity=severity, fix=_FIXES.get(finding.rule, _FIX), source="the prefix",
    )  # fmt: skip


def _archive(venv: Path, scratch: Path) -> ImageArchive:
    """The environment's files under the names that they have in an image."""
    examiner = Examiner(scratch)
    # A path leads through its folders: those above the environment have to be there too.
    above = PREFIX.strip("/").split("/")
    entries = {"/".join(above[:depth]): Entry("folder", mode=0o755) for depth in range(1, len(above) + 1)}

    def fail(reason: OSError) -> None:
        raise EngineError(f"{reason.filename} cannot be read: {reason.strerror}") from reason

    for folder, folders, files in os.walk(venv, onerror=fail):
        for name in (*folders, *files):
            path = Path(folder, name)
            known = f"{PREFIX.strip('/')}/{path.relative_to(venv)}"
            try:
                entries[known] = _entry(path, known, examiner)
            except OSError as reason:
                fail(reason)
    # What the loader heeds of the caller's environment, as training will have it.
    variables = [f"{name}={os.environ[name]}" for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if os.environ.get(name)]
    config = {"architecture": _MACHINES.get(os.uname().machine, ""), "config": {"Env": variables}}
    return ImageArchive(identity=_NO_IMAGE, config=config, entries=entries)


def _entry(path: Path, known: str, examiner: Examiner) -> Entry:
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return Entry("symlink", target=str(path.readlink()))
    if stat.S_ISDIR(status.st_mode):
        return Entry("folder", mode=mode)
    if not stat.S_ISREG(status.st_mode):
        return Entry("special", mode=mode)
    with path.open("rb") as stream:
        seen = examiner(known, status.st_size, stream)
    data = path.read_bytes() if content.WANTED(known) else None
    return Entry("file", status.st_size, mode, data=data, seen=seen)


class _Moved:
    """This host's file system, where the environment also goes by the path that it has in an image."""

    def __init__(self, venv: Path) -> None:
        self._host = elf.FolderRoot(Path("/"))
        self._venv = str(venv)

    def resolve(self, path: str) -> str | None:
        """The file behind all links, under the image's name where it lies in the environment."""
        real = self._host.resolve(self._own(path))
        inside = real is not None and real.startswith(f"{self._venv}/")
        return f"{PREFIX}{real.removeprefix(self._venv)}" if real is not None and inside else real

    def read(self, path: str) -> elf.ElfFile:
        """The ELF file at a resolved path."""
        return self._host.read(self._own(path))

    def data(self, path: str, limit: int) -> bytes:
        """The first bytes of the file at a resolved path."""
        return self._host.data(self._own(path), limit)

    def _own(self, path: str) -> str:
        return f"{self._venv}{path.removeprefix(PREFIX)}" if path.startswith(f"{PREFIX}/") else path
