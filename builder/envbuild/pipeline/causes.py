"""The known cause of a failure inside envbuild itself, beside the log: builds, smokes, provisioning."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuild.errors import BuildError, EngineError, EnvbuildError

if TYPE_CHECKING:
    from envbuild.diagnose import Cause
    from envbuild.model import Finding
    from envbuild.pipeline.workbench import Workbench

# What a finding of the judge has already said in its own words, with the container's figures.
_TOLD = {
    "memory": {"host-ram-oom"},
    "shm": {"shm-too-small", "disk-full"},
    "memlock": {"memlock-ulimit", "nvme-swap-io"},
    "timeout": {"collective-timeout", "nccl-p2p-hang", "jit-cache-lock-hang"},
    "collective": {"collective-timeout", "nccl-p2p-hang", "nccl-network-interface"},
}


@contextlib.contextmanager
def explained(bench: Workbench, log: Path | None = None) -> Iterator[None]:
    """Look for the cause of what goes wrong inside, and let the error carry it.

    Args:
        bench: The surroundings.
        log: The whole output; without one, or where it is not there, the error's own words are read.
    """
    try:
        yield
    except (BuildError, EngineError) as error:
        error.causes = error.causes or _causes(bench, log, error.message)
        raise


def of_training(bench: Workbench, report: Any, findings: Iterable[Finding]) -> tuple[Cause, ...]:
    """Causes of a training that did not end well, from the last lines of its ranks; see ``judge.failure``.

    Args:
        bench: The surroundings.
        report: The probe's document; anything where there is none.
        findings: What the judge made of it; what they say already is not said again.
    """
    failed = [finding for finding in findings if finding.severity.value == "error"]
    causes = _causes(bench, None, "\n".join(_lines(report, failed)))
    told = {kind for finding in failed for kind in _TOLD.get(finding.rule.rpartition(".")[2], ())}
    if not told:
        return causes
    return tuple(cause for cause in causes if cause.certainty == "sure" and cause.kind not in told)


def _causes(bench: Workbench, log: Path | None, words: str) -> tuple[Cause, ...]:
    from envbuild.diagnose import diagnose, diagnose_text

    # Whatever is wrong with looking for the cause, the failure itself has to reach the user.
    with contextlib.suppress(EnvbuildError, OSError):
        if log is not None and log.is_file():
            return diagnose([str(log)], bench.project).causes
        return diagnose_text(words, bench.project, name="output").causes
    return ()


def _lines(report: Any, failed: Iterable[Finding]) -> Iterator[str]:
    ranks = report.get("ranks") if isinstance(report, Mapping) else None
    found = False
    for rank in ranks if isinstance(ranks, list) else ():
        lines = rank.get("log_tail") if isinstance(rank, Mapping) else None
        for line in lines if isinstance(lines, list) else ():
            found = True
            yield f"[rank{rank.get('rank')}]: {line}"
    if found:
        return
    # The container's last words stand, indented, in the message.
    for finding in failed:
        yield from (line.strip() for line in finding.message.splitlines()[1:])
