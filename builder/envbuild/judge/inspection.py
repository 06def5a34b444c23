"""Inspection as a whole: an exported image read once, looked at from every side, and held to its row."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from envbuild.judge import archive, config, content, intact, native, native_rules, python, system
from envbuild.judge.archive import ImageArchive
from envbuild.judge.compare import error
from envbuild.judge.files import Examiner
from envbuild.judge.standards import Standards
from envbuild.model import Environment, Finding, ImageIdentity
from envbuild.plan import PREFIX

COMPAT = re.compile(r"usr/local/cuda[^/]*/compat/libcuda\.so\.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was seen from outside.

    Attributes:
        identity: Who the image is.
        outside: What its files state.
        intact: What became of the packages' files since they were installed.
        system: What became of the operating system's files.
        native: What a training process would load.
        config: Labels, secrets, user sites, sizes.
        compat: NVIDIA's cuda-compat library is where NVIDIA's packages put it.
    """

    identity: ImageIdentity
    outside: content.OutsideReport
    intact: intact.IntactReport
    system: system.SystemReport
    native: native.NativeReport
    config: config.ConfigReport
    compat: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The reports by name, for the evidence."""
        return {
            "outside": dataclasses.asdict(self.outside),
            "intact": dataclasses.asdict(self.intact),
            "system": dataclasses.asdict(self.system),
            "native": self.native.as_dict(),
            "config": dataclasses.asdict(self.config),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Somebody else who wants to see the image while it is read, since reading it is what takes long.

    Attributes:
        wanted: Whether the bytes of a file are needed.
        visit: Gets the image, with every native file looked at and its databases of packages open.
    """

    wanted: Callable[[str], bool]
    visit: Callable[[ImageArchive], None]


def look(
    stream: BinaryIO,
    env: Environment,
    scratch: Path,
    progress: Callable[[int], None] | None = None,
    beside: Beside | None = None,
) -> Looked:
    """Read an exported image, once, and look at it from outside.

    Args:
        stream: What ``docker save`` gives.
        env: The row that it is held to.
        scratch: A folder with room for the image's largest library and its database of packages.
        progress: Called now and then with the number of bytes read so far.
        beside: Who else is to see it.

    Raises:
        EngineError: The export cannot be read.
    """
    with contextlib.closing(Examiner(scratch)) as examiner:
        image = archive.read(stream, _wanted(beside), progress, visit=examiner)
        said = system.installed(image, scratch)
        if beside is not None:
            beside.visit(image)
    site = f"{PREFIX.strip('/')}/lib/python{env.python}/site-packages"
    outside = content.outside(image, env, said)
    return Looked(
        identity=image.identity,
        outside=outside,
        system=system.system(image, env, said),
        native=native.native(image, env, site, outside.op_files),
        intact=intact.intact(image, env, site, python.library_folders(outside.interpreter, env.python)),
        config=config.config(image, env, examiner.leaks, site),
        compat=any(COMPAT.fullmatch(path) for path in image.entries),
    )


def _wanted(beside: Beside | None) -> Callable[[str], bool]:
    if beside is None:
        return content.WANTED
    also = beside.wanted
    return lambda path: content.WANTED(path) or also(path)


def judge(env: Environment, looked: Looked, inside: Mapping[str, Any] | None, standards: Standards) -> list[Finding]:
    """Everything in which an image is not what its row says.

    Args:
        env: The row.
        looked: From outside.
        inside: The content probe's document; None where there is none, and then only what lies outside is judged.
        standards: What the facts say of the row.
    """
    findings = content.inspect(env, looked.outside, inside, sms=standards.sms) if inside is not None else []
    findings += native_rules.findings(env, looked.native, standards)
    told = [
        *_intact(looked.intact, looked.outside.hooks),
        *_system(looked.system),
        *config.problems(env, looked.config, inside),
    ]
    return findings + [error(rule, env.name, message, fix) for rule, message, fix in told]


_KINDS = {
    "changed": ("content.record", "is not the file that its package installed"),
    "missing": ("content.record", "belongs to an installed package and is not there"),
    "unrecorded": ("content.record", "has no RECORD that can be read, so nobody knows what belongs to it"),
    "bytecode": ("content.bytecode", "was replaced by a later layer while its source stayed: Python would run it"),
    "stray": ("content.stray", "lies among the packages and belongs to none"),
    "closed": ("content.mode", "cannot be read by everybody: other users would run something else than root"),
    "broken": ("content.pip", ""),
    "problems": ("content.record", ""),
}
_FIXES = {
    "content.record": "Do not edit installed packages: change the lock or add an extra to the row, and build again.",
    "content.bytecode": "Remove what changed it, or compile it again together with its source.",
    "content.stray": "Install it as a package: what no package owns is seen by no lock and no later upgrade.",
    "content.mode": "Install packages with the usual rights (umask 022).",
    "content.system": "Do not edit the system's files: what Python runs before every program is part of the proof.",
    "content.hooks": "Remove the file: what runs at every start can change what was proven.",
    "content.pip": "Lock again with these packages together: envbuild lock.",
}


def _intact(report: intact.IntactReport, hooks: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    for kind, (rule, meaning) in _KINDS.items():
        # What runs at every start has a finding of its own.
        names = tuple(
            name for name in getattr(report, kind) if not (kind == "stray" and hooks and name.endswith(hooks))
        )
        for name in names[:5]:
            yield rule, f"{name} {meaning}".rstrip(), _FIXES[rule]
        rest = len(names) - 5 + report.more.get(kind, 0)
        if rest > 0:
            yield rule, f"and {rest} more: {meaning or 'see the report'}", _FIXES[rule]


def _system(report: system.SystemReport) -> Iterator[tuple[str, str, str]]:
    told = {
        "changed": [
            (each.path, f"is not {_brought(each)}" + (f": {each.how}" if each.how else "")) for each in report.changed
        ],
        "missing": [(each.path, f"is gone; its package {each.package} brought it") for each in report.missing],
        "stray": [(path, "belongs to no package") for path in report.stray],
    }
    for kind, files in told.items():
        for path, what in files[:5]:
            hook = kind != "missing" and re.search(r"(site|user)customize\.", path) is not None
            rule = "content.hooks" if hook else "content.system"
            yield rule, f"/{path} {what}" + (", and Python runs it at every start" if hook else ""), _FIXES[rule]
        rest = len(files) - 5 + report.more.get(kind, 0)
        if rest > 0:
            yield "content.system", f"and {rest} more", _FIXES["content.system"]
    for problem in report.problems:
        yield "content.files", problem, _FIXES["content.system"]


def _brought(each: system.Differs) -> str:
    return f"the file that its package {each.package} brought".replace("  ", " ")
