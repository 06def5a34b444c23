"""Two matrices compared: what changed, which images have to be built again and why, and which evidence still counts.

What a change means is not looked up in a list of keys: the target is made again with one input put back, and decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

from envbuild import plan as plans
from envbuild import render
from envbuild.errors import EnvbuildError
from envbuild.facts import Facts
from envbuild.lock import stale
from envbuild.matrix import check
from envbuild.model import Environment, Finding, Lock, Performance, Severity
from envbuild.pipeline.differences import FieldChange, PackageChange, differences, packages, row_fields
from envbuild.pipeline.proof import as_dict as finding_as_dict
from envbuild.pipeline.proof import claims
from envbuild.pipeline.records import Record, records
from envbuild.pipeline.sides import Side

# What a change of a row asks for.
REBUILD, PROVE, NOTHING = "rebuild", "prove", "nothing"
_INPUTS = ("row", "lock", "templates", "facts")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """What became of one row.

    Attributes:
        status: ``added``, ``removed``, ``changed`` or ``same``; ``same`` may still have to be built again.
        fields: The values that differ.
        lock: The packages that differ.
        effect: ``rebuild``, ``prove`` (the image stays, its evidence does not count) or ``nothing``.
        causes: What makes it so: keys of the row, ``lock``, ``templates``, ``facts``.
        old_id: Target id as this envbuild makes it of the old inputs; None without a lock.
        rules: Findings of rules that are new, and those that are gone.
        evidence: What has been seen of the row, and whether that counts for its new state.
        notes: What stands in the way of knowing more.
    """

    name: str
    status: str
    fields: tuple[FieldChange, ...] = ()
    lock: tuple[PackageChange, ...] = ()
    effect: str = NOTHING
    causes: tuple[str, ...] = ()
    old_id: str | None = None
    new_id: str | None = None
    rules: tuple[tuple[str, Finding], ...] = ()
    evidence: tuple[Record, ...] = ()
    notes: tuple[str, ...] = ()


def changed_rows(old: Side, new: Side) -> tuple[RowChange, ...]:
    """The rows that are not what they were, or do not come to what they came to."""
    return tuple(row for row in compare(old, new) if row.status != "same" or row.effect != NOTHING)


def compare(old: Side, new: Side) -> tuple[RowChange, ...]:
    """Every row of both sides, in the order of the new matrix, then what is gone."""
    names = dict.fromkeys([*new.rows, *new.raw, *old.rows, *old.raw])
    return tuple(_row(name, old, new) for name in names)


def changed_files(old: Side, new: Side) -> tuple[tuple[str, str], ...]:
    """Templates and facts: path, and ``added``, ``removed`` or ``changed``."""
    return tuple(
        (path, "added" if path not in old.files else "removed" if path not in new.files else "changed")
        for path in sorted(old.files.keys() | new.files.keys())
        if old.files.get(path) != new.files.get(path)
    )


def changed_facts(old: Side, new: Side) -> tuple[FieldChange, ...]:
    """Every fact that differs."""
    if old.facts is new.facts:
        return ()
    return tuple(differences(_plain(old.facts), _plain(new.facts)))


def _plain(facts: Facts) -> dict[str, Any]:
    return facts.model_dump(mode="json", exclude_none=True)


def _row(name: str, old: Side, new: Side) -> RowChange:
    before, after = old.rows.get(name), new.rows.get(name)
    if after is None and name not in new.raw:
        return RowChange(name=name, status="removed", old_id=_id(before, name, old))
    if before is None and name not in old.raw:
        notes = _lock_notes(after, new)
        return RowChange(
            name=name, status="added", effect=REBUILD, causes=("row",), new_id=_id(after, name, new), notes=notes,
            evidence=_evidence(after, _id(after, name, new), new), rules=_rules(None, after, old, new),
        )  # fmt: skip
    fields = tuple(row_fields(before or old.raw[name], after or new.raw[name]))
    lock = tuple(packages(old.locks.get(name), new.locks.get(name)))
    status = "changed" if fields or lock else "same"
    if before is None or after is None:
        note = "the row was none that this envbuild can read, so what it came to is not known"
        return RowChange(
            name=name, status="changed", fields=fields, lock=lock, effect=REBUILD, causes=("row",), notes=(note,),
            new_id=_id(after, name, new) if after else None,
        )  # fmt: skip
    effect, causes, notes = _effect(before, after, old, new)
    new_id = _id(after, name, new)
    return RowChange(
        name=name, status=status, fields=fields, lock=lock, effect=effect, causes=causes,
        old_id=_id(before, name, old), new_id=new_id, rules=_rules(before, after, old, new),
        evidence=_evidence(after, new_id, new), notes=(*notes, *_unread(name, old), *_lock_notes(after, new)),
    )  # fmt: skip


# What a row comes to.


def _effect(
    before: Environment, after: Environment, old: Side, new: Side
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """What has to be done, why, and what could not be found out."""
    was, now = old.locks.get(after.name), new.locks.get(after.name)
    # Without two locks the rest is compared as if there were none; what the lock holds is compared by itself.
    locks = (_no_lock(before), _no_lock(after))
    if _usable(was) and _usable(now):
        locks = (was, now)
    inputs = {
        "row": (before, after), "lock": locks, "templates": (old, new), "facts": (old.facts, new.facts),
    }  # fmt: skip

    def target(**put_back: bool) -> str:
        row, lock, templates, facts = (inputs[name][0 if put_back.get(name) else 1] for name in _INPUTS)
        return _target(row, lock, facts, templates)  # type: ignore[arg-type]

    differ = _differ(before, after, old, new)
    if not differ:
        return NOTHING, (), ()
    try:
        here = target()
    except EnvbuildError as error:
        keys = [key for key in type(after).model_fields if getattr(before, key) != getattr(after, key)]
        return REBUILD, (*keys, *(each for each in differ if each != "row")), (f"{new.label}: {error.message}",)
    if not _same(lambda: target(**dict.fromkeys(_INPUTS, True)), here):
        causes = [name for name in _INPUTS if not _same(lambda name=name: target(**{name: True}), here)]  # type: ignore[misc]
        if "row" in causes:
            causes[:1] = _causes(before, after, lambda row: _target(row, locks[1], new.facts, new)) or ["row"]
        if _usable(was) != _usable(now):
            causes.append("lock")
        return REBUILD, tuple(causes or ("several together",)), ()
    if _usable(was) != _usable(now):
        return REBUILD, ("lock",), ()
    changed = [key for key, value in claims(after).items() if claims(before).get(key) != value]
    if before.requires != after.requires:
        changed.append("requires")
    if after.performance is not None and _stricter(before.performance, after.performance):
        changed.append("performance")
    return (PROVE, tuple(changed), ()) if changed else (NOTHING, (), ())


def _stricter(before: Performance | None, after: Performance) -> bool:
    """Whether a comparison that was enough is so no longer."""
    return before is None or after.share < before.share or after.rounds > before.rounds


def _differ(before: Environment, after: Environment, old: Side, new: Side) -> tuple[str, ...]:
    """The inputs that are not the same, whether or not the target feels it."""
    was, now = (
        {path: each for path, each in side.files.items() if path.startswith("templates/")} for side in (old, new)
    )
    locks = old.locks.get(after.name) == new.locks.get(after.name)
    same = (before == after, locks, was == now, old.facts is new.facts or old.facts == new.facts)
    return tuple(name for name, each in zip(_INPUTS, same, strict=True) if not each)


def _causes(before: Environment, after: Environment, target: Callable[[Environment], str]) -> list[str]:
    """The keys of a row without whose change its target would be another one."""
    here = target(after)
    keys = [key for key in type(after).model_fields if getattr(before, key) != getattr(after, key)]
    return [
        key
        for key in keys
        if not _same(lambda key=key: target(_put_back(before, after, key)), here)  # type: ignore[misc]
    ]


def _put_back(before: Environment, after: Environment, key: str) -> Environment:
    return after.model_copy(update={key: getattr(before, key)})


def _same(target: Callable[[], str], here: str) -> bool:
    try:
        return target() == here
    except EnvbuildError:
        # What cannot be rendered any more came to something else.
        return False


def _target(row: Environment, lock: Lock, facts: Facts, templates: Side) -> str:
    return render.render(plans.make(row, lock, facts), templates.templates).target_id


def _usable(lock: Lock | str | None) -> TypeGuard[Lock]:
    """Whether it is a lock that holds its wheels."""
    return isinstance(lock, Lock) and lock.resolved


def _no_lock(row: Environment) -> Lock:
    return Lock(
        environment=row.name, platform=row.platforms[0], python=row.python, inputs=f"sha256:{'0' * 64}",
        resolver="none", packages=(),
    )  # type: ignore[call-arg]  # fmt: skip


def _id(row: Environment | None, name: str, where: Side) -> str | None:
    lock = where.locks.get(name)
    if row is None or not _usable(lock):
        return None
    try:
        return _target(row, lock, where.facts, where)
    except EnvbuildError:
        return None


def _lock_notes(row: Environment | None, where: Side) -> tuple[str, ...]:
    lock = where.locks.get(row.name) if row else None
    if row is None or isinstance(lock, str):
        return (lock,) if isinstance(lock, str) else ()
    if lock is None:
        return (f"{row.name} has no lock, so its target has no id yet (envbuild lock {row.name})",)
    if not _usable(lock):
        return (f"the wheels of {row.name} could not all be had where it was locked, so its target has no id yet",)
    finding = stale(lock, row, lock.platform)
    return (f"{finding.message} ({finding.fix})",) if finding else ()


def _unread(name: str, where: Side) -> tuple[str, ...]:
    lock = where.locks.get(name)
    return (lock,) if isinstance(lock, str) else ()


def _evidence(row: Environment | None, target_id: str | None, where: Side) -> tuple[Record, ...]:
    return records(row, target_id, where.records.get(row.name)) if row else ()


def _rules(
    before: Environment | None, after: Environment | None, old: Side, new: Side
) -> tuple[tuple[str, Finding], ...]:
    was = _problems(before, old.facts)
    now = _problems(after, new.facts)
    return (
        *(("new", finding) for key, finding in now.items() if key not in was),
        *(("gone", finding) for key, finding in was.items() if key not in now and after is not None),
    )


def _problems(row: Environment | None, facts: Facts) -> dict[tuple[str, str, str], Finding]:
    found = check(row, facts) if row else []
    return {(each.rule, each.subject, each.message): each for each in found if each.severity is not Severity.INFO}


def as_dict(row: RowChange) -> dict[str, Any]:
    """For ``--json``."""
    return {
        "name": row.name,
        "status": row.status,
        "effect": row.effect,
        "causes": list(row.causes),
        "old_target_id": row.old_id,
        "new_target_id": row.new_id,
        "fields": [{"path": f.path, "old": f.old, "new": f.new, "source": f.source} for f in row.fields],
        "lock": [{"name": package.name, "old": package.old, "new": package.new} for package in row.lock],
        "findings": [{"status": word, **finding_as_dict(finding)} for word, finding in row.rules],
        "evidence": [
            {
                "path": str(record.path), "level": record.level.value, "finished": record.finished.isoformat(),
                "target_id": record.target_id, "counts": record.valid, "against": list(record.against),
            }
            for record in row.evidence
        ],
        "notes": list(row.notes),
    }  # fmt: skip
