"""doctor: collect, hold against what is meant, run the checks, bring the findings into order, compare with before."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envbuild.doctor.collection import Collection, Failure
from envbuild.engines import GpuStartError
from envbuild.errors import GateError, InputError
from envbuild.events import Note, PhaseDone, PhaseStarted
from envbuild.matrix.merge import near
from envbuild.model import Finding, Severity
from envbuild.pipeline.examine import Extent, examine_host, examine_image, read_collection
from envbuild.pipeline.gates import ALL
from envbuild.pipeline.gpus import HostGpus
from envbuild.pipeline.gpus import read as read_gpus
from envbuild.pipeline.proof import as_dict
from envbuild.pipeline.workbench import Workbench

__all__ = ["Examined", "Extent", "Question", "chosen", "doctor", "document", "params_of"]

if TYPE_CHECKING:
    from envbuild.doctor.intended import Intended
    from envbuild.doctor.order import Group
    from envbuild.doctor.report import Report, Since
    from envbuild.doctor.view import Check, View

_PARAMS = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmbt]?)", re.IGNORECASE | re.ASCII)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_MOST_PARAMS = 10**15


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be examined, and what it is to be held to.

    Attributes:
        image: A row (its image) or an image; None is this machine.
        python: The interpreter; None is the one that the shell would start.
        extent: What is collected.
        saved: A file of facts in place of collecting; ``-`` is standard input.
        row: A row of the matrix.
        said: Versions in place of a row, or changes of it, by the names of ``doctor.intended.SAID``.
        params: Parameters of the model; ``ranks`` the processes that train on this machine.
        since: A file of facts of an earlier day.
        only: Names of checks; all without.
    """

    image: str | None = None
    python: str | None = None
    extent: Extent = field(default_factory=Extent)
    saved: str | None = None
    row: str | None = None
    said: Mapping[str, str] = field(default_factory=dict)
    params: int | None = None
    ranks: int | None = None
    since: str | None = None
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What was collected, and what it came to."""

    collection: Collection
    report: Report


def doctor(bench: Workbench, question: Question) -> Examined:
    """Answer the question; everything that can be known to be wrong with it is said before anything is collected.

    Raises:
        InputError: A check, a row, a version or a file cannot be used.
        EngineError: The engine, or the collection, failed.
    """
    from envbuild.doctor.answers import answers, trouble
    from envbuild.doctor.layers import layers
    from envbuild.doctor.report import report

    checks = chosen(question.only)
    meant = _meant(bench, question)
    before = read_collection(question.since) if question.since is not None else None
    collection, refused = _collect(bench, question)
    began = time.monotonic()
    bench.sink(PhaseStarted(phase="look", detail=f"{len(checks)} check{'' if len(checks) == 1 else 's'}"))
    view = _view(bench, question, collection, meant)
    grouped = _found(view, checks, refused)
    since = _since(before, dataclasses.replace(view, collection=before), view, checks, grouped) if before else None
    told = report(
        collection, grouped, layers=layers(view), answers=answers(collection), looked=len(checks),
        held=_held(question, meant), since=since, unanswered=trouble(collection),
    )  # fmt: skip
    bench.sink(PhaseDone(phase="look", seconds=time.monotonic() - began, detail=told.sums))
    return Examined(collection=collection, report=told)


def chosen(names: Sequence[str]) -> tuple[Check, ...]:
    """The checks of these names, in the order of the list; all when none is named.

    Raises:
        InputError: There is no such check.
    """
    from envbuild.doctor.checks import CHECKS

    known = [check.name for check in CHECKS]
    for name in names:
        if name not in known:
            guess = near(name, known).removeprefix("; ").capitalize()
            raise InputError(f"--only: there is no check '{name}'", hint=f"{guess} Checks: {', '.join(known)}".strip())
    return tuple(check for check in CHECKS if not names or check.name in names)


def params_of(text: str) -> int:
    """``7b``, ``1.3B``, ``350m`` or a plain number: parameters of a model.

    Raises:
        InputError: It is none of them.
    """
    found = _PARAMS.fullmatch(text.strip())
    count = round(float(found[1]) * _FACTORS[found[2].lower()]) if found else 0
    if not 0 < count <= _MOST_PARAMS:
        raise InputError(f"--params: '{text[:40]}' is no number of parameters", hint="Such as 7b, 1.3b, 350m.")
    return count


def document(examined: Examined) -> dict[str, Any]:
    """The payload of ``--json``; the raw facts are not in it (``--save`` has them)."""
    told = examined.report
    findings = [
        {**as_dict(finding), **({"new": told.fresh(finding)} if told.since is not None else {})}
        for group in told.groups
        for finding in (group.root, *group.echoes)
    ]
    machine = {"subject": told.subject, "taken": examined.collection.taken, **dict(told.head)}
    payload: dict[str, Any] = {
        "findings": findings,
        "layers": [dataclasses.asdict(each) for each in told.layers],
        "libraries": [dataclasses.asdict(each) for each in told.answers],
        "machine": machine,
        "problems": list(told.problems),
    }
    if told.held:
        payload["held"] = told.held
    if told.since is not None:
        payload["changes"] = [dataclasses.asdict(each) for each in told.since.changes]
        payload["since"] = {
            "taken": told.since.taken,
            "strangers": list(told.since.strangers),
            "gone": [as_dict(each) for each in told.since.gone],
        }
    return payload


def _collect(bench: Workbench, question: Question) -> tuple[Collection, list[Finding]]:
    """The facts, and what stood in the way of collecting them in the way that was meant."""
    if question.saved is not None:
        return read_collection(question.saved), []
    image = question.image
    began = time.monotonic()
    what = image or question.python or "this machine"
    bench.sink(PhaseStarted(phase="collect", detail=f"{what}; torch and DeepSpeed are imported"))
    try:
        if image is None:
            found = examine_host(bench, python=question.python, extent=question.extent), list[Finding]()
        else:
            found = _inside(bench, question, _image(bench, image))
    except GateError as error:
        # No image, or none that can be looked into: what was asked for cannot be used. No gate has judged it.
        raise InputError(error.message, hint=error.hint) from error
    bench.sink(PhaseDone(phase="collect", seconds=time.monotonic() - began))
    return found


def _inside(bench: Workbench, question: Question, image: str) -> tuple[Collection, list[Finding]]:
    """An image, with the GPUs of this host where it has some; without them where the engine cannot hand them on."""
    host = read_gpus()
    extent, python = question.extent, question.python
    if not isinstance(host, HostGpus) or not host.gpus:
        return examine_image(bench, image, python=python, extent=extent), []
    try:
        return examine_image(bench, image, python=python, extent=extent, gpus=ALL), []
    except GpuStartError as error:
        bench.sink(Note(message=f"{error.message}; it is looked at without GPUs", level="warning"))
        seen = examine_image(bench, image, python=python, extent=extent)
        # For who reads the facts later: the finding itself is not in them.
        failure = Failure(part="GPUs of the container", error=error.message)
        refused = Finding(
            rule="container.refused", severity=Severity.ERROR, subject=image,
            message=f"the engine cannot give {image} the GPUs of this host: {error.fault.meaning}",
            why="Training in it would not start. It was looked at without GPUs.",
            evidence=(error.said,), fix=error.fault.fix, source=error.fault.source,
        )  # fmt: skip
        return seen.model_copy(update={"errors": (*seen.errors, failure)}), [refused]


def _image(bench: Workbench, named: str) -> str:
    """The image that a row has now, proven or not; any other name as it is."""
    if named not in bench.matrix.environments:
        return named
    from envbuild.pipeline.locate import locate

    return locate(bench, named, None)[0]


def _meant(bench: Workbench, question: Question) -> Intended | None:
    from envbuild.doctor.intended import intended

    named = question.image
    row = question.row or (named if named is not None and named in bench.matrix.environments else None)
    if row is None and not question.said:
        return None
    start = bench.matrix.get(row) if row is not None else None
    return intended(bench.facts, bench.matrix.environments.values(), question.said, start=start)


def _held(question: Question, meant: Intended | None) -> str:
    if meant is None:
        return ""
    said = ", ".join(f"{name} {value}" for name, value in question.said.items())
    name = "" if meant.said is not None else f"the row {meant.row.name}"
    return " with ".join(part for part in (name, said) if part)


def _view(bench: Workbench, question: Question, collection: Collection, meant: Intended | None) -> View:
    from envbuild.doctor.view import View

    return View(
        collection=collection, facts=bench.facts, row=meant.row if meant else None,
        said=meant.said if meant else None, gpus=question.ranks, params=question.params,
    )  # fmt: skip


def _found(view: View, checks: Iterable[Check], more: Iterable[Finding] = ()) -> tuple[Group, ...]:
    from envbuild.doctor.checks import CHECKS
    from envbuild.doctor.order import groups
    from envbuild.doctor.run import run

    return groups([*run(view, checks), *more], CHECKS)


def _since(before: Collection, old: View, new: View, checks: Sequence[Check], grouped: tuple[Group, ...]) -> Since:
    """The changes, and which findings are new with them: the same checks look at both."""
    from envbuild.doctor.order import flat
    from envbuild.doctor.report import Since
    from envbuild.doctor.since import since, strangers

    now, then = flat(grouped), flat(_found(old, checks))
    had, has = ({(each.rule, each.subject) for each in side} for side in (then, now))
    return Since(
        taken=before.taken,
        changes=since(before, new.collection),
        strangers=strangers(before, new.collection),
        fresh=frozenset(has - had),
        gone=tuple(each for each in then if (each.rule, each.subject) not in has and each.severity.value != "info"),
    )
