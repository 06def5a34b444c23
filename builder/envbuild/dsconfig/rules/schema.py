"""What DeepSpeed's own schema says of a file: keys that it does not know, values that it does not take.

A top-level key that nobody reads is an error as much as one that is refused: training starts without what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from envbuild import dsschema
from envbuild.dsconfig.context import Context
from envbuild.dsconfig.document import OBJECT, Member, Node
from envbuild.dsconfig.editing import move, removal, rename, replace
from envbuild.dsconfig.problem import Edit, Problem
from envbuild.dsconfig.rules.near import near
from envbuild.dsconfig.rules.rule import Rule
from envbuild.dsconfig.view import View
from envbuild.dsschema import Deprecation, Key, Schema, Section
from envbuild.dsschema.types import FORBID
from envbuild.model.finding import Severity

ERROR, WARNING = Severity.ERROR, Severity.WARNING
# People who write JSON have no comments: some put them into keys of their own.
_REMARKS = ("_", "$", "//", "#", "comment")
# Keys of so many sections that they say nothing of where one belongs.
_COMMON = 3
_PLAIN = ("type", "params")


def walk(view: View) -> Iterator[tuple[str, Section, Node]]:
    """Every object of the file that has a schema, with its path."""
    todo = [("", view.schema.root, view.root)]
    while todo:
        path, section, node = todo.pop(0)
        yield path, section, node
        for member in node.members:
            key = section.find(member.key)
            if key is not None and key.section is not None and member.node.kind == OBJECT:
                todo.append((_below(path, member.key), key.section, member.node))


def unknown(view: View, context: Context) -> Iterable[Problem]:
    """Keys that this release has no such of."""
    for path, section, node in walk(view):
        for member in node.members:
            if section.find(member.key) or member.key in section.removed or section.extra == "open":
                continue
            if section.extra == "ignore" and member.key.lower().startswith(_REMARKS):
                continue
            # What a later release says it removed was read before, though not by each and every configuration.
            if not path and member.key in dsschema.for_version(dsschema.NEWEST).root.removed:
                continue
            if _homes(view.schema, path, member):
                continue
            yield _unknown(view, path, section, member)


def _unknown(view: View, path: str, section: Section, member: Member) -> Problem:
    version = view.schema.measured
    where = f" in {path}" if path else ""
    guess = _current(section, near(member.key, section.spellings))
    harm = "refuses to start with it" if section.extra == "forbid" else "passes over it without a word"
    fix = f"Did you mean {guess}?" if guess else "Remove it."
    other = _elsewhere(view.schema, _below(path, member.key))
    if other:
        fix = f"Use such a release, or remove it.{f' Did you mean {guess}?' if guess else ''}"
    inner = [each.key for each in member.node.members if view.schema.root.find(each.key)]
    if inner and not path:
        fix = f"What is in it, such as {inner[0]}, belongs to the top level."
    return Problem(
        path=_below(path, member.key),
        severity=ERROR,
        message=f"DeepSpeed {version} knows no key '{member.key}'{where}, and {harm}{other}",
        place=member.place,
        fix=fix,
        why="" if section.extra == "forbid" else "Training starts as if the key were not there.",
        source=_source(view.schema, section),
    )


def _current(section: Section, name: str) -> str:
    """A name as documentation spells it today."""
    key = section.find(name)
    new = section.find(key.deprecated.new) if key and key.deprecated else key
    return new.name if new else name


def _elsewhere(schema: Schema, path: str) -> str:
    """Which other releases have the key, in words."""
    having = [version for version in dsschema.VERSIONS if dsschema.for_version(version).find(path)]
    if not having:
        return ""
    if dsschema.release(having[0]) > dsschema.release(schema.measured):
        return f"; DeepSpeed {having[0]} has it"
    last = [version for version in having if dsschema.release(version) < dsschema.release(schema.measured)]
    return f"; DeepSpeed {last[-1]} has it still" if last else ""


def misplaced(view: View, context: Context) -> Iterable[Problem]:
    """Known keys on a level where nobody looks for them."""
    for path, section, node in walk(view):
        for member in node.members:
            if section.find(member.key) or member.key in section.removed or section.extra == "open":
                continue
            homes = _homes(view.schema, path, member)
            if not homes:
                continue
            parents = [home.rpartition(".")[0] for home in homes]
            belongs = " or ".join(f"into {parent}" if parent else "to the top level" for parent in parents)
            harm = "refuses to start with it" if section.extra == "forbid" else "does not see it"
            yield Problem(
                path=_below(path, member.key), severity=ERROR, place=member.place,
                message=f"'{member.key}' belongs {belongs}: {_at(path)}, DeepSpeed {harm}",
                fix=f"Move it {belongs}, or remove it.", source=_source(view.schema, section),
                # From one section into another it may mean something else: bf16 has no loss scale, fp16 has.
                edits=_move(view, node, member, parents[0]) if len(homes) == 1 and "" in (path, parents[0]) else (),
            )  # fmt: skip


def _homes(schema: Schema, path: str, member: Member) -> tuple[str, ...]:
    """Where a key belongs that is in a wrong place; empty where too many places have one of its name."""
    homes = tuple(home for home in schema.homes(member.key) if home.rpartition(".")[0] != path)
    homes = tuple(home for home in homes if not home.startswith(("compression_training", "bfloat16")))
    if len(homes) >= _COMMON or member.key in _PLAIN:
        return ()
    # A section of that name in another section is another thing: "params", "enabled".
    top = tuple(home for home in homes if "." not in home)
    return top or homes


def _move(view: View, node: Node, member: Member, parent: str) -> tuple[Edit, ...]:
    target = view.section(parent) if parent else view.root
    key = view.schema.find(parent) if parent else None
    section = key.section if key else view.schema.root
    moved = section.find(member.key) if section else None
    if target is None or section is None or moved is None:
        return ()
    # Where it is there already, under whichever of its names, the two would be refused together.
    if any(
        _today(there) in (moved.name, _today(moved)) for each in target.members if (there := section.find(each.key))
    ):
        return ()
    return move(view.document, node, member, target)


def _today(key: Key) -> str:
    """What a key is called now."""
    return key.deprecated.new if key.deprecated and key.deprecated.new else key.name


def removed(view: View, context: Context) -> Iterable[Problem]:
    """Keys of features that this release has no more, and that it says so of."""
    for path, section, node in walk(view):
        for member in node.members:
            if member.key in section.removed:
                last = _elsewhere(view.schema, _below(path, member.key))
                yield Problem(
                    path=_below(path, member.key), severity=ERROR, place=member.place,
                    message=f"DeepSpeed {view.schema.measured} refuses to start with it{last}",
                    fix="Remove it, or use a release that has the feature.", why=section.removed[member.key],
                    source=_source(view.schema, section),
                )  # fmt: skip


def deprecated(view: View, context: Context) -> Iterable[Problem]:
    """Old names."""
    for path, section, node in walk(view):
        for member in node.members:
            key = section.find(member.key)
            old = key.deprecated if key else None
            if key is None or old is None:
                continue
            new = section.find(old.new)
            name = new.name if new else old.new
            taken = new is not None and old.becomes and any(node.member(each) for each in new.names)
            if taken:
                yield Problem(
                    path=_below(path, member.key), severity=ERROR, place=member.place,
                    message=f"'{member.key}' is the old name of '{name}', and both are given: DeepSpeed refuses that",
                    fix=f"Remove '{member.key}'.", source=_source(view.schema, section),
                )  # fmt: skip
                continue
            ignored = not old.becomes
            says = "is deprecated and has no effect" if ignored else "is deprecated"
            yield Problem(
                path=_below(path, member.key), severity=WARNING, place=member.place,
                message=f"'{member.key}' {says}{f'; {old.message}' if old.message else ''}",
                fix=_instead(old, name, member), source=_source(view.schema, section),
                edits=_modern(view, node, member, key, name),
            )  # fmt: skip


def _instead(old: Deprecation, name: str, member: Member) -> str:
    off = member.node.value is False and old.becomes and old.becomes.get("false") is None
    if not old.new or off:
        return "Remove it."
    if not old.becomes:
        return f"Say it in {old.new}, and remove this key."
    return f"Use '{name}' in its place."


def _modern(view: View, node: Node, member: Member, key: Key, name: str) -> tuple[Edit, ...]:
    """The old name written as the new one, where that means the same."""
    old = key.deprecated
    assert old is not None
    if not old.becomes:
        return ()
    # Of a value that is no boolean only a person knows what it should be: under either name it is refused.
    if old.becomes == {"true": True, "false": False} and isinstance(member.node.value, bool):
        return (rename(member, name),)
    if member.node.value is True and isinstance(old.becomes.get("true"), dict):
        said = ", ".join(f'"{each}": "{value}"' for each, value in old.becomes["true"].items())
        return (rename(member, name), replace(member.node, f"{{{said}}}"))
    if member.node.value is False and old.becomes.get("false") is None:
        return removal(view.document, node, member)
    return ()


def twice(view: View, context: Context) -> Iterable[Problem]:
    """A key under two of its spellings: a model takes one of them, and refuses the other."""
    for path, section, node in walk(view):
        seen: dict[str, Member] = {}
        for member in node.members if section.extra == FORBID else ():
            key = section.find(member.key)
            if key is None:
                continue
            first = seen.setdefault(key.name, member)
            if first.key != member.key:
                yield Problem(
                    path=_below(path, member.key), severity=ERROR, place=member.place,
                    message=f"'{first.key}' and '{member.key}' are one key, and both are given: DeepSpeed refuses that",
                    fix="Remove one of the two.", source=_source(view.schema, section),
                )  # fmt: skip


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _at(path: str) -> str:
    return f"in {path}" if path else "at the top level"


def _source(schema: Schema, section: Section) -> str:
    reader = section.model or "deepspeed/runtime/config.py"
    return f"DeepSpeed {schema.measured}, {reader}"


_SOURCE = "DeepSpeed's own schema, by release (envbuild/dsschema)"
RULES = (
    Rule(id="schema.unknown", title="every key is one that this release reads", judge=unknown, source=_SOURCE),
    Rule(id="schema.place", title="every key stands where it is looked for", judge=misplaced, source=_SOURCE),
    Rule(id="schema.removed", title="no key is of a feature that is gone", judge=removed, source=_SOURCE),
    Rule(id="schema.deprecated", title="no key has an old name", judge=deprecated, source=_SOURCE),
    Rule(id="schema.twice", title="no key stands there under two spellings", judge=twice, source=_SOURCE),
)
