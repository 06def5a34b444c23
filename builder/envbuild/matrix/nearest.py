"""From what is asked for to what would do: the valid combinations that change the fewest fields. Pure.

The search widens a set of fields that may change, one at a time. Where a set does not suffice, the search knows a group
of fields one of which has to change as well, whatever else does: only those are added. So every smallest set is found,
and no set that contains a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from envbuild.facts import Facts
from envbuild.facts.versions import cuda_of_build
from envbuild.matrix.answer import Alternative, Answer, Change, Want, shown
from envbuild.matrix.rules import RULES, check
from envbuild.matrix.space import FIELDS, Space, Value, accelerated
from envbuild.matrix.verdicts import Judge, Verdicts
from envbuild.model import Environment, Severity

# Beyond that many changes it is another combination, not a near one.
MOST_CHANGES = 4
# In this order the fields that nobody asked for are filled in.
_FILLED = ("torch", "cuda", "gpu", "deepspeed", "base", "gcc", "python", "nccl", "driver")
# What rows say of these follows from the rest; a combination takes over what was asked for.
_FOLLOW = ("nccl", "driver")
# Steps to look for the filling with the fewest errors; the first one is good already.
_STEPS = 20_000


def nearest(space: Space, wants: Mapping[str, Want], *, keep: Collection[str] = (), most: int = MOST_CHANGES) -> Answer:
    """Judge a combination and look for the nearest valid ones.

    Args:
        space: What the facts know.
        wants: What was asked for, by field; all other fields are free, and never count as changed.
        keep: Fields that must stay as they are.
        most: How many fields may change.
    """
    search = _Search(space, wants)
    asked = search.asked()
    row = space.row(asked)
    unknown = tuple(field for field in FIELDS if field in wants and not wants[field].values)
    answer = Answer(
        row=row, values=asked, findings=tuple(check(row, space.facts)), unknown=unknown, alternatives=()
    )  # fmt: skip
    if answer.valid:
        return answer
    found = tuple(sorted(search.alternatives(frozenset(keep), most), key=search.key))
    return Answer(row=row, values=asked, findings=answer.findings, unknown=unknown, alternatives=found)


def filled(space: Space, wants: Mapping[str, Want]) -> Environment:
    """The row that is asked for: what nobody asked for is filled in so that the fewest rules are broken."""
    return space.row(_Search(space, wants).asked())


def judges(facts: Facts) -> list[Judge]:
    """The rules, as what they come to: a number of errors."""

    def judge(rule: Any) -> Callable[[Environment], int]:
        return lambda env: sum(problem.severity is Severity.ERROR for problem in rule.judge(env, facts))

    return [judge(rule) for rule in RULES]


class _Search:
    def __init__(self, space: Space, wants: Mapping[str, Want]) -> None:
        self.space = space
        self.wants = wants
        self.rules = Verdicts(space, judges(space.facts))
        self.values: dict[str, Value] = {}
        self.fields = tuple(field for field in FIELDS if accelerated(space.accelerator, field))
        self.rows = [space.of(row) for row in space.rows]
        self.ranks: dict[str, dict[Any, int]] = {
            field: {rank: n for n, rank in enumerate(sorted({space.rank(field, value) for value in self._all(field)}))}
            for field in wants
        }

    def _all(self, field: str) -> list[Value]:
        want = self.wants.get(field)
        return [*self.space.domain[field], *(want.candidates if want else ())]

    # The asked combination itself.

    def asked(self) -> dict[str, Value]:
        """What was asked for, with the filling that breaks the fewest rules."""
        fixed = [field for field in self.fields if field in self.wants and len(self.wants[field].candidates) == 1]
        self.values = {field: self.wants[field].candidates[0] for field in fixed}
        self.values.update({field: None for field in FIELDS if field not in self.fields})
        if self.space.accelerator == "cpu":
            self.values.update(gpu=())
        free = [field for field in _FILLED if field in self.fields and field not in self.values]
        best: list[Any] = [None, {}, _STEPS]
        cost, left = self._errors(self.rules.every)
        self._least(free, 0, left, cost, best, cost)
        return {field: best[1][field] for field in FIELDS}

    def _least(
        self, free: Sequence[str], depth: int, pending: tuple[int, ...], cost: int, best: list[Any], floor: int
    ) -> None:
        best[2] -= 1
        if best[0] is not None and (cost >= best[0] or best[0] == floor or best[2] < 0):
            return
        if depth == len(free):
            best[:2] = cost, dict(self.values)
            return
        want = self.wants.get(free[depth])
        for value in self._preferred(free[depth], want.candidates if want else self.space.domain[free[depth]][::-1]):
            self.values[free[depth]] = value
            more, left = self._errors(pending)
            self._least(free, depth + 1, left, cost + more, best, floor)
        self.values.pop(free[depth], None)

    def _errors(self, pending: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        said = [(rule, self.rules.ask(rule, self.values)[0]) for rule in pending]
        return sum(errors for _, errors in said if errors), tuple(rule for rule, errors in said if errors is None)

    # The sets of fields that may change.

    def alternatives(self, keep: frozenset[str], most: int) -> Iterator[Alternative]:
        """The best combination of every smallest set of changes, and the matrix's own rows among its members."""
        level, found = {frozenset[str]()}, list[frozenset[str]]()
        for size in range(most + 1):
            wider: set[frozenset[str]] = set()
            for changed in sorted(level, key=sorted):
                if any(smaller <= changed for smaller in found):
                    continue
                best, conflict = self._best(changed)
                if best is None:
                    wider |= {changed | {field} for field in conflict - keep}
                else:
                    found.append(changed)
                    yield from self._with_rows(best, changed)
            level = wider if size < most else set()

    def _with_rows(self, best: dict[str, Value], changed: frozenset[str]) -> Iterator[Alternative]:
        told = [best]
        for own in self.rows:
            follows = {
                field: self.wants[field].values[0] if field in self.wants.keys() - changed else None
                for field in _FOLLOW
            }
            row = {**own, **follows}
            differs = {field for field in self.wants if row[field] not in self.wants[field].values}
            new = not any(all(row[field] == each[field] for field in changed) for each in told)
            if differs == changed and new and not self._broken(row):
                told.append(row)
        yield from (self._alternative(values, changed) for values in told)

    def _alternative(self, values: Mapping[str, Value], changed: frozenset[str]) -> Alternative:
        row = self.space.row(values)
        own = {"nccl": row.nccl, "driver": row.driver}
        changes = tuple(
            Change(field=field, old=self.wants[field].text, new=shown(field, own.get(field) or values[field]))
            for field in FIELDS
            if field in changed
        )
        distance = sum(self._distance(field, values[field]) for field in changed)
        return Alternative(row=row, changes=changes, distance=distance, values=dict(values))

    def key(self, found: Alternative) -> tuple[Any, ...]:
        """The order of the answer: fewest changes, then the smallest distance, then the newest."""
        changed = [change.field for change in found.changes]
        return (len(changed), found.distance, *self._newest(found.values, changed))

    def _newest(self, values: Mapping[str, Value], changed: Collection[str]) -> tuple[Any, ...]:
        places = [self.space.domain[field].index(values[field]) for field in FIELDS if field in changed]
        return (*(-place for place in places), *sorted(changed))

    def _distance(self, field: str, value: Value) -> int:
        want, ranks = self.wants[field], self.ranks[field]
        here: int = ranks[self.space.rank(field, value)]
        asked: list[int] = [ranks[self.space.rank(field, each)] for each in want.candidates]
        return min(abs(here - each) for each in asked)

    # The best combination that changes just these fields.

    def _best(self, changed: frozenset[str]) -> tuple[dict[str, Value] | None, frozenset[str]]:
        self.values = {field: None for field in FIELDS if field not in self.fields}
        if self.space.accelerator == "cpu":
            self.values.update(gpu=())
        self._changed = changed
        self._found: tuple[tuple[Any, ...], dict[str, Value]] | None = None
        said = [field for field in self.fields if field in self.wants and field not in changed]
        # What is certain comes first: most combinations fall there.
        single = [field for field in said if len(self.wants[field].values) == 1]
        free = [field for field in _FILLED if field in self.fields and field not in {*changed, *single}]
        spread = [field for field in FIELDS if field in changed]
        conflict = self._try((*single, *spread, *free), 0, self.rules.every, 0)
        return (self._found[1], frozenset()) if self._found else (None, conflict)

    def _try(self, order: Sequence[str], depth: int, pending: tuple[int, ...], spent: int) -> frozenset[str]:
        """Fill in the fields from ``depth`` on; returns the fields that stand in the way.

        The fields that change are gone through for the best combination, all others up to the first that will do.
        """
        if depth == len(order):
            return self._arrived(spent)
        field, met = order[depth], set[str]()
        spreads = field in self._changed
        for value in self._by_distance(field) if spreads else self._preferred(field, self._admitted(field)):
            distance = spent + (self._distance(field, value) if spreads else 0)
            if self._found and distance > self._found[0][0]:
                met |= self._changed
                break
            self.values[field] = value
            against, left = self._judged(pending)
            had = self._found
            if against is None:
                against = self._try(order, depth + 1, left, distance)
                if self._found is not had and not spreads:
                    del self.values[field]
                    return self._changed
            if field not in against:
                self.values.pop(field, None)
                return against
            met |= against
        self.values.pop(field, None)
        # A field that could take any value is no reason; one that has to stay as it was asked for is.
        return frozenset(met | {field} if field in self.wants and not spreads else met - {field})

    def _arrived(self, distance: int) -> frozenset[str]:
        # What is judged of the whole, such as a waiver that has run out.
        if self._broken(self.values):
            return frozenset(self.fields)
        key = (distance, *self._newest(self.values, self._changed))
        if self._found is None or key < self._found[0]:
            self._found = key, dict(self.values)
        return self._changed

    def _broken(self, values: Mapping[str, Value]) -> bool:
        found = check(self.space.row(values), self.space.facts)
        return any(each.severity is Severity.ERROR for each in found)

    def _judged(self, pending: tuple[int, ...]) -> tuple[frozenset[str] | None, tuple[int, ...]]:
        left = []
        for rule in pending:
            errors, fields = self.rules.ask(rule, self.values)
            if errors is None:
                left.append(rule)
            elif errors:
                return frozenset(fields), ()
        return None, tuple(left)

    def _by_distance(self, field: str) -> list[Value]:
        others = [value for value in self.space.domain[field] if value not in self.wants[field].values]
        return sorted(others, key=lambda value: (self._distance(field, value), -others.index(value)))

    def _admitted(self, field: str) -> Sequence[Value]:
        return self.wants[field].values if field in self.wants else self.space.domain[field][::-1]

    def _preferred(self, field: str, values: Sequence[Value]) -> list[Value]:
        """The values to try, the best first: those of rows that have all else in common, then what suits."""
        beside = {field, *_FOLLOW}
        given = [(name, value) for name, value in self.values.items() if name in self.fields and name not in beside]
        of_rows = [row[field] for row in self.rows if all(row[name] == value for name, value in given)]
        return sorted(values, key=lambda value: (_place(value, of_rows), self._suits(field, value)))

    def _suits(self, field: str, value: Value) -> int:
        if field == "cuda" and "torch" in self.values:
            return int(value != cuda_of_build(self.values["torch"][1]))
        if field == "torch" and self.values.get("cuda"):
            return int(self.values["cuda"] != cuda_of_build(value[1]))
        if field in ("gcc", "python"):
            return _place(value, [row[field] for row in self.rows if row["base"] == self.values.get("base")])
        if field == "base":
            return -[row["base"] for row in self.rows].count(value)
        return 0


def _place(value: Value, among: Sequence[Value]) -> int:
    return among.index(value) if value in among else len(among)
