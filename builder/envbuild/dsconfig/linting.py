"""Every objection to a configuration, as findings with their places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from envbuild import dsschema
from envbuild.dsconfig.context import Context
from envbuild.dsconfig.document import Document, Flaw, Place
from envbuild.dsconfig.problem import Edit, Problem
from envbuild.dsconfig.rules import RULES, Rule
from envbuild.dsconfig.view import View
from envbuild.model.finding import Finding, Severity

# Of one rule: nobody reads more, and a file that has more is of another kind.
MOST = 100

_HJSON = "deepspeed/runtime/config.py: DeepSpeedConfig reads a file with hjson.load; Hugging Face with json.load"


class Judged(NamedTuple):
    """A finding, what would mend it, and the piece of text that it is about."""

    finding: Finding
    edits: tuple[Edit, ...] = ()
    place: Place | None = None


def lint(document: Document, context: Context) -> tuple[Finding, ...]:
    """Every finding, in the order of the file; what has no place stands first."""
    return tuple(each.finding for each in judge(document, context))


def judge(document: Document, context: Context, rules: Iterable[Rule] = RULES) -> tuple[Judged, ...]:
    """Every finding with what would mend it."""
    found = list(_flaws(document, context))
    if document.root is not None:
        view = View(document, dsschema.for_version(context.deepspeed))
        for rule in rules:
            if _holds(rule, context.deepspeed):
                found += _judged(rule, view, context)
    return tuple(sorted(found, key=lambda each: (each.finding.line or 0, each.finding.column or 0, each.finding.rule)))


def _holds(rule: Rule, version: str) -> bool:
    release = dsschema.release
    if rule.since is not None and release(version) < release(rule.since):
        return False
    return rule.before is None or release(version) < release(rule.before)


def _judged(rule: Rule, view: View, context: Context) -> Iterator[Judged]:
    try:
        for number, problem in enumerate(rule.judge(view, context)):
            if number == MOST:
                yield Judged(_more(view.document, rule.id, problem.place))
                return
            yield Judged(_finding(view.document, rule, problem), problem.edits, problem.place)
    except Exception as error:
        # One rule that fails says so; the others still count.
        line, column = _at(view.document, None)
        said = f"the rule {rule.id} failed: {type(error).__name__}: {error}"
        yield Judged(
            Finding(
                rule="lint.crashed", severity=Severity.WARNING, subject=rule.id, message=said,
                fix="This is a mistake of envbuild: report it with the file.", source="envbuild",
                file=view.document.name, line=line, column=column,
            )
        )  # fmt: skip


def _more(document: Document, rule: str, place: Place | None) -> Finding:
    line, column = _at(document, place)
    return Finding(
        rule="lint.more", severity=Severity.ERROR, subject=rule,
        message=f"{rule} has more than {MOST} findings: those from here on are not shown",
        fix="Mend the first ones, and lint again.", source="envbuild", file=document.name, line=line, column=column,
    )  # fmt: skip


# Hjson, which DeepSpeed reads files as, has these; JSON has not.
_HJSON_HAS = ("comment", "comma", "bom")
FLAWS = {
    "syntax": "the file is JSON",
    "empty": "there is something in the file",
    "object": "the whole is an object",
    "depth": "nothing is nested absurdly deep",
    "number": "every number is one that JSON has",
    "duplicate": "no key stands twice in one object",
    "comment": "there are no comments, which Hugging Face does not read",
    "comma": "no comma stands before a closing bracket",
    "bom": "the file begins with JSON, not with a byte order mark",
}


def _flaws(document: Document, context: Context) -> Iterator[Judged]:
    counts = Counter(flaw.kind for flaw in document.flaws)
    seen: Counter[str] = Counter()
    for flaw in document.flaws:
        number = seen[flaw.kind]
        seen[flaw.kind] += 1
        if flaw.kind == "comment":
            # Who annotates a file knows of it after the first.
            if not number:
                others = counts[flaw.kind] - 1
                said = f"{flaw.message}{f'; {others} more follow' if others else ''}"
                yield _flawed(document, flaw._replace(message=said), context)
        elif number < MOST:
            yield _flawed(document, flaw, context)
        elif number == MOST:
            yield Judged(_more(document, f"json.{flaw.kind}", flaw.place))


def _flawed(document: Document, flaw: Flaw, context: Context) -> Judged:
    severity, why = Severity.ERROR, ""
    if flaw.kind in _HJSON_HAS:
        why = "DeepSpeed reads its file as Hjson, which allows it; Hugging Face Trainer and Accelerate read JSON."
        severity = Severity.ERROR if context.fills_auto else Severity.WARNING
    elif flaw.kind == "syntax":
        why = "DeepSpeed reads its file as Hjson, which takes some of what is no JSON, and not as people expect it."
    elif flaw.kind == "duplicate":
        why = "DeepSpeed refuses such a file; Hugging Face Trainer and Accelerate take the last of the two."
    found = Finding(
        rule=f"json.{flaw.kind}", severity=severity, subject=document.name, message=flaw.message, fix=flaw.fix,
        source=_HJSON, why=why, file=document.name, line=flaw.place.line, column=flaw.place.column,
    )  # fmt: skip
    return Judged(found, (flaw.edit,) if flaw.edit else (), flaw.place)


def _finding(document: Document, rule: Rule, problem: Problem) -> Finding:
    line, column = _at(document, problem.place)
    return Finding(
        rule=rule.id, severity=problem.severity, subject=problem.path or '""', message=problem.message, fix=problem.fix,
        source=problem.source or rule.source, why=problem.why, file=document.name,
        line=line, column=column,
    )  # fmt: skip


def _at(document: Document, place: Place | None) -> tuple[int, int]:
    # What is about the whole stands where that begins.
    place = place or (document.root.place if document.root else None)
    return (place.line, place.column) if place else (1, 1)
