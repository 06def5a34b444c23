"""DeepSpeed's compiled ops: with what they were compiled, and what they ask of the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping

from envbuild.elf.isa import Isa
from envbuild.judge.files import facts_of
from envbuild.sbom.part import Part
from envbuild.sbom.texts import Texts

COMPILER = "native:compiler"

_OP = re.compile(
    # Any folder: one that is installed to be edited lies where its sources are.
    r"(?:(?P<site>.+)/)?deepspeed/ops/(?:.+/)?(?P<name>[a-z0-9_]+?)_op(?:\.[^/]*)?\.so"
)


def wanted(path: str) -> bool:
    """Whether a file is to be looked at as it goes by."""
    return _OP.fullmatch(path) is not None


def parts(texts: Texts, versions: Mapping[str, str]) -> dict[str, list[Part]]:
    """The ops by their folder of packages.

    Args:
        texts: Of an image that was read with a visitor which looks at what is ``wanted``.
        versions: DeepSpeed's, by that folder.
    """
    image = texts.image
    found: dict[str, list[Part]] = {}
    for path in sorted(image.entries):
        match, entry = _OP.fullmatch(path), image.entries[path]
        if match is None or entry.kind != "file":
            continue
        facts = facts_of(entry)
        if facts is None or facts.fault is not None:
            texts.problems.append(
                f"/{path}: {facts.fault.message if facts and facts.fault else 'it was not looked at'}"
            )
        properties: list[tuple[str, str]] = []
        if facts is not None and facts.elf is not None:
            properties += ((COMPILER, each) for each in facts.elf.comment)
            properties += (("native:needs", each) for each in facts.elf.needed)
        if facts is not None and isinstance(facts.isa, Isa):
            properties += _instructions(facts.isa)
        if facts is not None and facts.gpu is not None:
            properties += (("native:gpu:cubin", each) for each in facts.gpu.cubins)
            properties += (("native:gpu:ptx", each) for each in facts.gpu.ptx)
        site = match["site"] or ""
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
    """All that the code uses, also where it asks the CPU first."""
    extensions = sorted({use.extension for use in isa.uses})
    return [("native:isa", isa.level or "beyond x86-64-v4"), *(("native:isa:extension", name) for name in extensions)]
