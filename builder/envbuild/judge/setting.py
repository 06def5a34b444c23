"""Is this the run that was asked for? Its seed, its ranks, its versions, its device, and what joins the ranks."""

from __future__ import annotations

from envbuild.judge.number import count, number, show
from envbuild.judge.outcome import dig
from envbuild.judge.run import BACKENDS, SCHEMA, Check, Problems, Run, told
from envbuild.judge.versions import matches

LEAST_STEPS = 4
# One rank proves no communication; of GPUs a machine may have one only.
LEAST_RANKS = {"cpu": 2, "cuda": 1}


def _report(run: Run) -> Problems:
    if run.report.get("schema") != SCHEMA:
        yield f"schema {show(run.report.get('schema'))}, not {SCHEMA}"
    if run.report.get("error") is not None:
        yield f"the probe itself failed: {show(run.report['error'])}"
    if run.accelerator != run.expected.accelerator:
        ran = show(dig(run.report, "arguments", "accelerator"))
        yield f"accelerator {run.expected.accelerator} was asked for, the probe ran {ran}"
    if run.steps is None or run.steps < LEAST_STEPS:
        yield f"steps: {show(run.steps)}, at least {LEAST_STEPS} are needed"


def _ranks(run: Run) -> Problems:
    asked = count(dig(run.report, "arguments", "ranks"))
    started = count(run.report.get("ranks_started"))
    if asked is None or (asked and asked != started) or len(run.ranks) != started:
        yield f"asked for: {show(asked)}, started: {show(started)}, in the report: {len(run.ranks)}"
    if len(run.ranks) < LEAST_RANKS.get(run.accelerator, 1):
        yield f"{len(run.ranks)} ranks ran, {LEAST_RANKS.get(run.accelerator, 1)} are needed"
    for place, rank in enumerate(run.ranks):
        figures = rank.get("report")
        if rank.get("rank") != place:
            yield f"rank {place} calls itself {show(rank.get('rank'))}"
        if rank.get("exit_code") != 0 or rank.get("signal") is not None or rank.get("phase") != "done":
            end = rank.get("signal_name") or f"exit code {show(rank.get('exit_code'))}"
            yield f"rank {place} ended in phase '{show(rank.get('phase'))}' with {end}"
        if dig(figures, "error") is not None:
            yield f"rank {place} failed: {show(dig(figures, 'error'))}"


def _seed(run: Run) -> Problems:
    """A document of another run has another seed.

    This finds a mix-up and a canned answer, not a liar: the image runs the interpreter that runs the probe, so what
    is made to lie inside can echo a seed too. Against that stand inspection from outside and the pinned wheels. That
    the numbers really come from the seed shows once in every run: other weights give another first loss.
    """
    if count(dig(run.report, "arguments", "seed")) != run.expected.seed:
        yield f"the run was given {run.expected.seed}, the report is of {show(dig(run.report, 'arguments', 'seed'))}"
    for name, figures in run.figures:
        if count(dig(figures, "seed")) != run.expected.seed:
            yield f"{name}: {told(figures, 'seed')}"
        losses = dig(figures, "passes", "fp32", "losses")
        first = number(losses[0]) if isinstance(losses, list) and losses else None
        other = number(dig(figures, "checkpoint", "blank_loss"))
        if first is not None and first == other:
            yield f"{name}: weights of two seeds have the same first loss, {first:.7g}"


def _versions(run: Run) -> Problems:
    for name, figures in run.figures:
        versions = dig(figures, "versions")
        for key, right in run.expected.versions:
            value = dig(versions, key)
            known = isinstance(versions, dict) and key in versions
            good = matches(right or "", value) if key == "python" else value == right
            if not known or not good:
                yield f"{name}: {key} is {show(value) if known else 'missing'}, the row says {right or 'none'}"


def _device(run: Run) -> Problems:
    if run.accelerator != "cuda":
        return
    seen: dict[str, str] = {}
    gpus = run.expected.gpus
    for name, figures in run.figures:
        for key in ("name", "uuid", "nccl"):
            if not isinstance(dig(figures, "device", key), str):
                yield f"{name}: {key}: {told(figures, 'device', key)}"
        for key in ("memory_bytes", "driver_cuda"):
            if not count(dig(figures, "device", key)):
                yield f"{name}: {key}: {told(figures, 'device', key)}"
        uuid, called = str(dig(figures, "device", "uuid")), str(dig(figures, "device", "name"))
        # torch names a GPU without the prefix that the driver gives it. What it calls a slice of one is unverified.
        bare = uuid.removeprefix("GPU-")
        given = gpus.uuids if gpus is not None else ()
        sliced = any(each.startswith("MIG-") for each in given)
        if bare in seen and not sliced:
            yield f"{name} and {seen[bare]} ran on the same GPU {show(uuid)}"
        seen[bare] = name
        if gpus is None:
            continue
        if given and not sliced and bare not in [each.removeprefix("GPU-") for each in given]:
            yield f"{name}: {show(uuid)} is none of {', '.join(given)}"
        parts = dig(figures, "device", "capability")
        capability = ".".join(map(str, parts)) if isinstance(parts, list) else ""
        fits = any(
            capability == sm and wanted.lower() in called.lower()
            for wanted, sm in zip(gpus.names, gpus.capabilities, strict=False)
        )
        if gpus.names and not fits:
            had = f"{show(called)} (compute capability {capability or 'missing'})"
            yield f"{name}: {had}, the row names {', '.join(gpus.names)}"


def _backend(run: Run) -> Problems:
    for name, figures in run.figures:
        backend = dig(figures, "backend")
        if not run.accelerator or backend != BACKENDS[run.accelerator]:
            yield f"{name}: ran over {told(figures, 'backend')}, not {BACKENDS.get(run.accelerator, 'a known backend')}"


def _collective(run: Run) -> Problems:
    right = len(run.ranks) * (len(run.ranks) + 1) / 2
    for name, figures in run.figures:
        answers = [number(dig(figures, "collective", key)) for key in ("expected", "smallest", "largest")]
        if answers != [right] * 3:
            found = told(figures, "collective", "smallest") + " to " + told(figures, "collective", "largest")
            yield f"{name}: an all-reduce gave {found}, the answer is {right:g}"


CHECKS = (
    Check(
        rule="smoke.report",
        what="the probe's report cannot be judged",
        fix="Run smoke again with the probe of this envbuild.",
        problems=_report,
        source="",
    ),
    Check(
        rule="smoke.ranks",
        what="not every rank trained to the end",
        fix="See the rank's last lines in the report.",
        problems=_ranks,
        source="",
    ),
    Check(
        rule="smoke.seed",
        what="the figures are not those of this run",
        fix="Something answered in the probe's place, or mixed up two runs: run smoke again.",
        problems=_seed,
        source="",
    ),
    Check(
        rule="smoke.versions",
        what="what was imported is not what the row says",
        fix="The image does not hold what the row claims: build it again, or correct the row.",
        problems=_versions,
        source="the row",
    ),
    Check(
        rule="smoke.device",
        what="training did not run on the row's GPUs",
        fix="Run smoke on a GPU that the row names, or add this one to gpus of the row, and build it again.",
        problems=_device,
        source="the row",
    ),
    Check(
        rule="smoke.backend",
        what="the ranks did not talk over the right backend",
        fix="Look at the collective library of the image (`content.nccl`) and at the container's network.",
        problems=_backend,
    ),
    Check(
        rule="smoke.collective",
        what="an all-reduce does not add up",
        fix="The collective library computes something else: look at its version (`content.nccl`) and its patches.",
        problems=_collective,
    ),
)
