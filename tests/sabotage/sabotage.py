"""One sabotage: a small overlay on a proven image, or limits of its containers, and the finding that must name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SITE = "/opt/venv/lib/python3.11/site-packages"
# RUN lines see the files of the sabotage below /mnt, which is there in the base and stays empty.
TAMPER = "/opt/venv/bin/python -I /mnt/tamper.py"


@dataclass(frozen=True)
class Patch:
    """Text of an installed file replaced, its compiled form with it.

    Attributes:
        file: Path below site-packages, or one that begins with /.
        old: Text that the file has exactly once.
        bytecode_only: Only the compiled form changes; source and RECORD say that nothing happened.
        hidden: What the change could be told by is made to agree, as a thorough saboteur would: the package's RECORD,
            or for bytecode the source, which is written again as it is.
    """

    file: str
    old: str
    new: str
    bytecode_only: bool = False
    hidden: bool = True


def insert(
    file: str, place: str, *lines: str, after: bool = False, bytecode_only: bool = False, hidden: bool = True
) -> Patch:
    """Lines before (or after) others that the file has exactly once, indented as those are."""
    indent = place[: len(place) - len(place.lstrip(" "))]
    text = "".join(f"{indent}{line}\n" for line in lines)
    return Patch(file, place, place + text if after else text + place, bytecode_only, hidden)


@dataclass(frozen=True, kw_only=True)
class Sabotage:
    """One fault and the finding that must name it.

    Attributes:
        fault: What was done, in a line for people.
        finding: Id of the finding that must be there; None: the image has to pass.
        names: Word that the finding's message must have, so that it names the thing and not just its kind.
        way: Empty for the fault that a finding belongs to; a short word for another way to set it off.
        dockerfile: Lines below ``FROM the good image``; RUN lines see ``files`` below /mnt.
        files: Small extra files of the build, by name.
        patches: Applied after ``dockerfile``.
        together: It is seen in files and config alone and hides nothing that another one is seen by, so it may share
            an image with others like it, because an image takes long to read. ``SABOTAGE_ALONE=1`` gives each its own.
        row: Changes of the row that the image is held to, as in the matrix.
        memory_mib: Limit of memory that the smoke's container gets.
        replay: ``replay.json`` is among the files: the documents that the probes printed in the good image.
        timeout: Limit of the smoke in seconds, for what never ends.
    """

    fault: str
    finding: str | None
    names: str
    way: str = ""
    dockerfile: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()
    together: bool = False
    row: Mapping[str, Any] = field(default_factory=dict)
    memory_mib: int | None = None
    replay: bool = False
    timeout: int | None = None

    @property
    def id(self) -> str:
        """A name for the test and the image, such as ``smoke.grad.ratio``."""
        return (self.finding or "passes") + (f"-{self.way}" if self.way else "")

    @property
    def kind(self) -> str:
        """``content`` or ``smoke``."""
        return (self.finding or "").partition(".")[0]
