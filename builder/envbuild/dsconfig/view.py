"""A configuration as DeepSpeed sees it: what is asked for by its path is given, with its place, or is the default."""

from __future__ import annotations

from typing import Any, NamedTuple

from envbuild.dsconfig.conversion import read
from envbuild.dsconfig.document import OBJECT, Document, Member, Node, Place
from envbuild.dsconfig.problem import Edit, Problem
from envbuild.dsschema import Key, Schema, Section
from envbuild.dsschema.types import FORBID
from envbuild.model.finding import Severity

AUTO = "auto"


class Setting(NamedTuple):
    """What a configuration says of one key.

    Attributes:
        path: As it was asked for.
        value: What is written, as a model reads it ("3" is 3 to pydantic), or the default of that DeepSpeed release;
            None where it has none.
        member: Where it is written; None where it is not.
        key: What the schema knows of it; None where that release has no such key.
    """

    path: str
    value: Any
    member: Member | None
    key: Key | None

    @property
    def given(self) -> bool:
        """Whether the file says it; else the value is a default."""
        return self.member is not None

    @property
    def auto(self) -> bool:
        """Whether it is left to Hugging Face Trainer or Accelerate."""
        return self.given and self.value == AUTO

    @property
    def node(self) -> Node | None:
        """The value as it is written."""
        return self.member.node if self.member else None

    @property
    def place(self) -> Place | None:
        """Where the value is written."""
        return self.member.node.place if self.member else None

    @property
    def name(self) -> str:
        """The last part of the path, as it is written where it is."""
        return self.member.key if self.member else self.path.rpartition(".")[2]

    @property
    def number(self) -> float | None:
        """The value where it is a number: none of "auto" and true."""
        return self.value if isinstance(self.value, (int, float)) and not isinstance(self.value, bool) else None

    @property
    def on(self) -> bool:
        """Whether it is true."""
        return self.value is True

    def problem(
        self, severity: Severity, message: str, *, fix: str = "", why: str = "", edits: tuple[Edit, ...] = ()
    ) -> Problem:
        """An objection to it, at its place."""
        return Problem(
            path=self.path, severity=severity, message=message, place=self.place, fix=fix, why=why, edits=edits
        )


class View:
    """One document next to the schema of one DeepSpeed release.

    Attributes:
        document: What was read.
        schema: What that release knows.
    """

    def __init__(self, document: Document, schema: Schema) -> None:
        assert document.root is not None
        self.document = document
        self.schema = schema
        self.root: Node = document.root

    def get(self, path: str) -> Setting:
        """What is said of a key, such as ``zero_optimization.offload_optimizer.device``.

        Any of the spellings that DeepSpeed accepts may be asked for and is found as any other. A default counts inside
        a section that is not there, too: ``zero_optimization.stage`` of an empty configuration is 0.
        """
        node: Node | None = self.root
        section: Section | None = self.schema.root
        member: Member | None = None
        key: Key | None = None
        modelled = False
        for word in path.split("."):
            key = section.find(word) if section else None
            member = _member(node, key.names if key else (word,))
            node = member.node if member else None
            modelled = section is not None and section.extra == FORBID
            section = key.section if key else None
        if member is not None:
            value = read(member.node, key, self.schema.pydantic) if modelled and key else member.node.value
            return Setting(path=path, value=value, member=member, key=key)
        return Setting(path=path, value=key.default if key else None, member=None, key=key)

    def has(self, path: str) -> bool:
        """Whether the file says it."""
        return self.get(path).given

    def section(self, path: str) -> Node | None:
        """An object of the file, where it is one."""
        node = self.get(path).node
        return node if node is not None and node.kind == OBJECT else None

    @property
    def stage(self) -> int:
        """The ZeRO stage, 0 where none is said or it is no number."""
        return int(self.get("zero_optimization.stage").number or 0)

    def device(self, what: str) -> str | None:
        """Where ``optimizer`` or ``param`` is offloaded to: ``cpu``, ``nvme``, or None for nowhere."""
        if self.section(f"zero_optimization.offload_{what}") is None:
            old = self.get("zero_optimization.cpu_offload" + ("_param" if what == "param" else ""))
            return "cpu" if old.on else None
        said = self.get(f"zero_optimization.offload_{what}.device").value
        return said if said in ("cpu", "nvme") else None


def _member(node: Node | None, names: tuple[str, ...]) -> Member | None:
    if node is None:
        return None
    return next((each for name in names if (each := node.member(name)) is not None), None)
