"""DeepSpeed's compiled ops: with what they were compiled, and what they ask of the machine."""

from __future__ import annotations

import re
from collections import Counter

from envbuild.elf.isa import Isa
from envbuild.judge.archive import ImageArchive
from envbuild.judge.files import facts_of
from envbuild.sbom.part import Part

_OP = re.compile(r"(?P<site>(?:.+/)?(?:site|dist)-packages)/deepspeed/ops/(?:.+/)?(?P<name>[a-z0-9_]+?)_op(?:\.[^/]*)?\.so")


def wanted(path: str) -> bool:
    """Whether a file is to be looked at as it goes by."""
    return _OP.fullmatch(path) is not None


def parts(image: ImageArchive, versions: dict[str, str], problems: list[str]) -> dict[str, list[Part]]:
    """The ops by their folder of packages.

    Args:
        image: Read with a visitor that looks at what is ``wanted``.
        versions: DeepSpeed's, by that folder.
        problems: Takes what could not be read.
    """
    found: dict[str, list[Part]] = {}
    for path in sorted(image.entries):
        match, entry = _OP.fullmatch(path), image.entries[path]
        if match is None or entry.kind != "file":
            continue
        facts = facts_of(entry)
        if facts is None or facts.fault is not None:
            problems.append(f"/{path}: {facts.fault.message if facts and facts.fault else 'it was not looked at'}")
        properties: list[tuple[str, str]] = []
        if facts is not None and facts.elf is not None:
            properties += (("native:compiler", each) for each in facts.elf.comment)
            properties += (("native:needs", each) for each in facts.elf.needed)
        if facts is not None and isinstance(facts.isa, Isa):
            properties += _instructions(facts.isa)
        if facts is not None and facts.gpu is not None:
            properties += (("native:gpu:cubin", each) for each in facts.gpu.cubins)
            properties += (("native:gpu:ptx", each) for each in facts.gpu.ptx)
        site = match["site"]
        found.setdefault(site, []).append(
            Part(
                ref=f"op:/{path}",
                group="deepspeed.ops",
                name=match["name"],
                version=versions.get(site, ""),
                description="A native op of DeepSpeed, compiled ahead of time",
                sha256=facts.sha256.hex() if facts is not None and facts.sha256 else "",
                places=(f"/{path}",),
                properties=tuple(properties),
            )
        )
    return found


def _instructions(isa: Isa) -> list[tuple[str, str]]:
    sums: Counter[str] = Counter()
    for use in isa.uses:
        sums[use.extension] += use.count
    return [("native:isa", isa.level), *(("native:isa:extension", name) for name in sorted(sums))]
