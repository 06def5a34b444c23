"""From matches to causes: what was handled, what follows from what, and which comes first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from envbuild.diagnose import derive
from envbuild.diagnose.matching import Match
from envbuild.diagnose.signature import Answer, Signature
from envbuild.diagnose.stream import Read
from envbuild.diagnose.text import evidence, fill
from envbuild.diagnose.types import Cause, Echo, Evidence
from envbuild.facts import Facts

_CERTAINTIES = ("sure", "likely", "weak")
# Lines of evidence that one cause shows.
_SHOWN = 4


@dataclass
class _Group:
    """All matches of one kind, the best one first."""

    signature: Signature
    matches: list[Match]
    count: int
    explained: list[_Group] = field(default_factory=list)

    @property
    def best(self) -> Match:
        return self.matches[0]

    @property
    def certainty(self) -> str:
        """That of its surest match."""
        return min((_certainty(match) for match in self.matches), key=_CERTAINTIES.index)


def rank(reads: Sequence[Read], facts: Facts) -> tuple[Cause, ...]:
    """The causes, best first."""
    by_kind: dict[str, list[Match]] = defaultdict(list)
    context: list[Match] = []
    for number, read in enumerate(reads):
        for match in read.matches:
            if match.signature.role == "context":
                context.append(match)
            elif _counts(match, reads[number]):
                by_kind[match.signature.kind].append(match)
    groups = [_group(matches, reads) for matches in by_kind.values()]
    causes = [group for group in groups if group.signature.role == "cause"]
    echoes = [group for group in groups if group.signature.role == "echo"]
    causes = _without_lasts(causes)
    dated = _dated(causes)
    causes.sort(key=lambda group: _order(group, dated))
    causes = _explain(causes, dated)
    for echo in echoes:
        _give(echo, causes)
    return tuple(_cause(group, context, reads, facts) for group in causes)


def _counts(match: Match, read: Read) -> bool:
    """Whether a match speaks of a failure, and not of something that went well in the end."""
    signature = match.signature
    if signature.role == "echo":
        return True
    if match.quiet and signature.level == "error":
        return False
    if match.handled and signature.level == "error":
        return False
    if signature.trains_on:
        return True
    if read.course.ended_well(match.offset) or read.course.went_on(match.offset):
        return False
    if any(read.lasts.get(literal.encode(), -1) > match.offset for literal in match.pattern.until):
        return False
    if match.pattern.last:
        # Progress on both sides is no answer: other jobs, other ranks. A weak sign does not stand against any of it.
        weak = _certainty(match) == "weak"
        return not (read.course.points if weak else read.course.began_after(match.offset))
    return True


def _group(matches: list[Match], reads: Sequence[Read]) -> _Group:
    signature = matches[0].signature
    dated = all(match.stamp is not None for match in matches)
    # The surest, then the one that says most; of equal ones the first.
    ordered = sorted(
        matches, key=lambda match: (_CERTAINTIES.index(_certainty(match)), -_says(match), _when(match, dated))
    )
    count = sum(reads[number].counts[signature.kind] for number in {match.log for match in matches})
    return _Group(signature, ordered, max(count, len({(match.log, match.first) for match in matches})))


def _certainty(match: Match) -> str:
    if match.pattern.last and match.quiet:
        # It is logged on every healthy start; that nothing follows says little.
        return "weak"
    return match.pattern.certainty or match.signature.certainty


def _says(match: Match) -> int:
    return sum(bool(value) for value in match.captures.values())


def _when(match: Match, dated: bool) -> tuple[float, int, int]:
    return (match.stamp if dated and match.stamp is not None else 0.0, match.log, match.offset)


def _first(group: _Group, dated: bool) -> tuple[float, int, int]:
    return min(_when(match, dated) for match in group.matches)


def _dated(groups: Iterable[_Group]) -> bool:
    """Whether time stamps can order them: all have one, or else position does."""
    return all(any(match.stamp is not None for match in group.matches) for group in groups)


def _order(group: _Group, dated: bool) -> tuple[int, tuple[float, int, int], int]:
    return (_CERTAINTIES.index(group.certainty), _first(group, dated), -_says(group.best))


def _without_lasts(causes: list[_Group]) -> list[_Group]:
    """Silences count only where nothing speaks."""
    loud = [group for group in causes if not all(match.pattern.last for match in group.matches)]
    return loud or causes


def _explain(causes: list[_Group], dated: bool) -> list[_Group]:
    """Roots only, each with the causes that follow from it."""
    gone: set[int] = set()
    for group in causes:
        for other in causes:
            if other is group or id(other) in gone or id(group) in gone:
                continue
            if other.signature.kind in group.signature.explains:
                # Two that name one another: the one that is ranked first is the root.
                mutual = group.signature.kind in other.signature.explains
                if not mutual or causes.index(group) < causes.index(other):
                    gone.add(id(other))
                    group.explained += [other, *other.explained]
    roots = [group for group in causes if id(group) not in gone]
    strong = [group for group in roots if group.certainty != "weak"]
    if strong:
        for weak in (group for group in roots if group.certainty == "weak"):
            strong[0].explained += [weak, *weak.explained]
        return strong
    return roots


def _give(echo: _Group, causes: list[_Group]) -> None:
    """An echo belongs to the cause that names it, else to one before it in the same log, else to the first."""
    if not causes:
        return
    for cause in causes:
        kinds = {*cause.signature.explains, *(kind for each in cause.explained for kind in each.signature.explains)}
        if echo.signature.kind in kinds:
            cause.explained.append(echo)
            return
    before = [
        cause
        for cause in causes
        if any(match.log == echo.best.log and match.offset <= echo.best.offset for match in cause.matches)
    ]
    (before[0] if before else causes[0]).explained.append(echo)


def _cause(group: _Group, context: list[Match], reads: Sequence[Read], facts: Facts) -> Cause:
    match, answer, captures = _answer(group, context, facts)
    signature = group.signature
    return Cause(
        kind=signature.kind,
        title=signature.title,
        cause=fill(answer.cause, captures) or signature.title,
        certainty=group.certainty,
        evidence=_evidence(match, group),
        count=group.count,
        explains=tuple(_echo(each) for each in _unique(group.explained)),
        fix=tuple(step for step in (fill(each, captures) for each in answer.fix) if step),
        command=fill(answer.command, captures, shell=True) or "",
        doctor=signature.doctor,
        rules=signature.rules,
        source=signature.source,
        captures=captures,
    )


def _answer(group: _Group, context: list[Match], facts: Facts) -> tuple[Match, Answer, dict[str, str]]:
    """The most specific answer of the match that says most."""
    signature = group.signature
    best: tuple[int, Match, Answer, dict[str, str]] | None = None
    for match in group.matches[:6]:
        captures = {**_surroundings(match, context), **match.captures}
        captures |= derive.derived(signature.derive, captures, facts)
        for number, answer in enumerate(signature.answers):
            if answer.holds(captures) and fill(answer.cause, captures) is not None:
                if best is None or number < best[0]:
                    best = number, match, answer, captures
                break
    if best is not None:
        return best[1:]
    match = group.best
    answer = signature.answers[-1]
    captures = {**_surroundings(match, context), **match.captures}
    return match, answer, captures | derive.derived(signature.derive, captures, facts)


def _surroundings(match: Match, context: list[Match]) -> Mapping[str, str]:
    """What the log says of the environment: nearest before the match in the same log counts most."""
    made: dict[str, str] = {}
    near = [each for each in context if each.log == match.log and each.offset <= match.offset]
    for each in (*(each for each in context if each not in near), *sorted(near, key=lambda each: each.offset)):
        made |= {name: value for name, value in each.captures.items() if value}
    return made


def _evidence(match: Match, group: _Group) -> tuple[Evidence, ...]:
    made: dict[str, Evidence] = {}
    for each in (match, *sorted(group.matches, key=lambda other: (other.log, other.offset))):
        for line, text in each.lines:
            shown = evidence(each.name, line, text)
            if shown.text.strip():
                made.setdefault(shown.text, shown)
        if len(made) >= _SHOWN:
            break
    return tuple(made.values())[: max(_SHOWN, len(match.lines))]


def _unique(groups: list[_Group]) -> list[_Group]:
    return list({id(group): group for group in groups}.values())


def _echo(group: _Group) -> Echo:
    first = min(group.matches, key=lambda match: (match.log, match.offset))
    line, text = first.lines[-1]
    return Echo(
        kind=group.signature.kind,
        title=group.signature.title,
        first=evidence(first.name, line, text),
        count=group.count,
    )
