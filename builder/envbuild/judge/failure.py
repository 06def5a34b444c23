"""Why a smoke container did not end well: each cause its own clear message, with the container's last words."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from envbuild.judge.number import count, number, plain, show
from envbuild.judge.outcome import Outcome, dig, document
from envbuild.judge.placement import compiling
from envbuild.judge.run import SCHEMA
from envbuild.model import Finding, Severity

# DeepSpeed's shared-memory op (0.12 to 0.19): struct allreduce_workspace is two buffers of 1 MiB, two of 32 MiB and
# the states, per rank. It is written without a look at the answer, so a full /dev/shm shows as a bus error.
SHM_PER_RANK = 66 * 1024 * 1024 + 4096
_MEMORY_ACCESS = (signal.SIGBUS, signal.SIGSEGV)
_FULL = "No space left on device"
_NOT_STARTED = {126: "the image's python cannot be executed", 127: "there is no python on the image's PATH"}
_MIB = 1024 * 1024
# The parts of a run whose faults have a name of their own, by the first word of the phase.
_PARTS = {"checkpoint": "smoke.checkpoint", "nvme": "smoke.nvme", "collective": "smoke.collective"}
_LONG = {"checkpoint": "smoke.long.checkpoint"}
# DeepSpeed's allocator of locked memory (csrc/pin_memory/page_alloc.cpp) says this and returns no memory, and the
# next touch is a segmentation fault.
_MLOCK = re.compile(r"mlock failed to allocate (\d+) bytes")
_WORDS = 12
# A rank's stack begins with one of these; the main thread is the last one that faulthandler writes.
_THREAD = re.compile(r"^(Current thread|Thread) 0x")


def explain_failure(outcome: Outcome, *, probe: Literal["smoke", "content"] = "smoke") -> list[Finding]:
    """Findings for a probe's container that did not do its work; for smoke none when every rank reported.

    The first cause that fits is told: time-out, memory, shared memory, crash, no report. Which phase each rank was
    in is part of the message wherever it is known. For the content probe call it when there is no document.
    """
    report = document(outcome, SCHEMA) if probe == "smoke" else None
    ranks = _ranks(report)
    if report is not None and not outcome.timed_out and _all_reported(report, ranks):
        return []
    for cause in (
        _collective,
        _timed_out,
        _out_of_memory,
        _memlock,
        _shared_memory,
        _probe_failed,
        _rank_failed,
        _not_started,
        _no_report,
    ):
        finding = cause(outcome, report or {}, ranks)
        if finding is not None:
            rule = f"{probe}.{finding.rule.partition('.')[2]}"
            return [dataclasses.replace(finding, rule=rule, subject=probe)]
    return []  # not reached: the last cause fits whenever there is no report


def _collective(outcome: Outcome, report: Mapping[str, Any], ranks: list[Mapping[str, Any]]) -> Finding | None:
    seconds = number(dig(report, "stuck", "seconds"))
    if seconds is None:
        return None
    inside = dig(report, "stuck", "inside")
    arrived = {item for item in inside if count(item) is not None} if isinstance(inside, list) else set()
    missing = [rank for place, rank in enumerate(ranks) if place not in arrived]
    names = ", ".join(show(rank.get("rank")) for rank in missing)
    who = f"rank {names} did not arrive" if missing else "every rank arrived, and none came back"
    return _finding(
        "smoke.collective",
        f"an all-reduce was not done after {seconds:.0f} s: {who}{_phases(ranks)}",
        "The collective library hangs, or one rank never calls it: see where each stands.",
        _words(outcome, missing or ranks),
    )


def _timed_out(outcome: Outcome, report: Mapping[str, Any], ranks: list[Mapping[str, Any]]) -> Finding | None:
    if not outcome.timed_out and report.get("timed_out") is not True:
        return None
    seconds = number(report.get("seconds")) or outcome.seconds
    # The rank that has come least far keeps the others waiting.
    stuck = [rank for rank in ranks if rank.get("exit_code") != 0]
    least = min((count(rank.get("phases_entered")) or 0 for rank in stuck), default=0)
    behind = [rank for rank in stuck if (count(rank.get("phases_entered")) or 0) == least]
    return _finding(
        "smoke.timeout",
        f"not done after {seconds:.0f} s{_phases(ranks)}",
        "A rank that stands still in a collective waits for another one: see where each stands. "
        "On a slow machine allow more time with --timeout.",
        _words(outcome, behind),
    )


def _out_of_memory(outcome: Outcome, report: Mapping[str, Any], ranks: list[Mapping[str, Any]]) -> Finding | None:
    before = count(dig(report, "surroundings", "memory", "oom_kills"))
    after = count(dig(report, "memory_after", "oom_kills"))
    killed = [rank for rank in ranks if rank.get("signal") == signal.SIGKILL and not rank.get("ended_by_launcher")]
    counted = before is not None and after is not None and after > before
    if not (outcome.oom_killed or counted or killed or outcome.exit_code == 128 + signal.SIGKILL):
        return None
    limit = count(dig(report, "surroundings", "memory", "limit_bytes"))
    # Without a limit cgroup v1 states 2**63, rounded down to pages.
    limited = f"; the container's limit is {limit // _MIB} MiB" if limit and limit < 2**60 else ""
    sure = (
        "the kernel killed a process for memory" if outcome.oom_killed or counted else "a process was killed (SIGKILL)"
    )
    return _finding(
        "smoke.memory",
        f"{sure}{limited}{_phases(ranks)}",
        "Give the container or the machine more memory: the probe needs about 0.6 GiB per rank on the CPU.",
        _words(outcome, killed or ranks),
    )


def _memlock(outcome: Outcome, report: Mapping[str, Any], ranks: list[Mapping[str, Any]]) -> Finding | None:
    refused = [rank for rank in ranks if _failed(rank) and any(_MLOCK.search(line) for line in _lines(rank))]
    if not refused:
        return None
    limits = dig(report, "surroundings", "memlock_bytes")
    soft = count(limits[0]) if isinstance(limits, list) and limits else None
    allowed = "an unknown amount" if soft is None else f"{soft // 1024} KiB"
    wanted = next(found[1] for line in _lines(refused[0]) if (found := _MLOCK.search(line)))
    return _finding(
        "smoke.memlock",
        f"a process may lock {allowed} of memory, and locking another {wanted} bytes was refused{_phases(ranks)}",
        "async_io locks its buffers, 4.2 MB a rank in this test. Raise RLIMIT_MEMLOCK of the engine or the login "
        "(ulimit -l); in the matrix it is memlock of the row.",
        _words(outcome, refused[:1]),
        "DeepSpeed csrc/pin_memory/page_alloc.cpp",
    )


def _shared_memory(outcome: Outcome, report: Mapping[str, Any], ranks: list[Mapping[str, Any]]) -> Finding | None:
    size = count(dig(report, "surroundings", "shm", "total_bytes"))
    size = outcome.shm_bytes if size is None else size
    needed = SHM_PER_RANK * max(1, len(ranks))
    failed = [rank for rank in ranks if _failed(rank)]
    codes = [rank.get("signal") for rank in failed] + [outcome.exit_code - 128]
    full = any(_FULL in line for rank in failed for line in _lines(rank)) or _FULL in outcome.stderr
    bus = signal.SIGBUS in codes
    too_small = size is not None and size < needed
    if not (bus or (too_small and (full or any(code in _MEMORY_ACCESS for code in codes)))):
        return None
    told = "of unknown size" if size is None else f"of {size / _MIB:.0f} MiB"
    how = "a bus error" if bus else "no space left" if full else "a segmentation fault"
    return _finding(
        "smoke.shm",
        f"/dev/shm {told} is too small ({how}); DeepSpeed's shared-memory op alone takes up to "
        f"{needed // _MIB} MiB for {max(1, len(ranks))} ranks{_phases(ranks)}",
        "Start the container with a larger --shm-size; in the matrix it is shm_size of the row.",
        _words(outcome, [rank for rank in failed if not rank.get("ended_by_launcher")]),
        "DeepSpeed csrc/cpu/comm/shm.cpp, struct allreduce_workspace",
    )


def _probe_failed(outcome: Outcome, report: Mapping[str, Any], ranks: list[Mapping[str, Any]]) -> Finding | None:
    if report.get("error") is None:
        return None
    return _finding(
        "smoke.probe",
        f"the probe could not run: {show(report['error'])}",
        "It needs a writable /tmp and, for a cuda row, a GPU that torch sees.",
        _words(outcome, ranks),
    )


def _rank_failed(outcome: Outcome, report: Mapping[str, Any], ranks: list[Mapping[str, Any]]) -> Finding | None:
    failed = [rank for rank in ranks if _failed(rank)]
    if not failed:
        return None
    # The first one to end is the cause; the others lost their peer.
    first = min(failed, key=lambda rank: number(rank.get("seconds")) or 0.0)
    name = f"rank {show(first.get('rank'))}"
    end = first.get("signal_name") or f"exit code {show(first.get('exit_code'))}"
    error = dig(first, "report", "error")
    said = f": {show(error)}" if error else ""
    return _finding(
        _rule(report, first, str(error)),
        f"{name} ended with {end} in phase '{show(first.get('phase'))}'{said}{_phases(ranks)}",
        "Its last lines follow. A signal points to a native library: compare `envbuild show` with the row.",
        _words(outcome, [first]),
    )


def _rule(report: Mapping[str, Any], rank: Mapping[str, Any], error: str) -> str:
    """The name of a rank's failure: what it was doing, if that has a name."""
    if dig(report, "arguments", "jit") is not True:
        closed = "/extensions" in error and "Permission denied" in error
        if closed or compiling(dig(rank, "report", "programs", "started")):
            return "smoke.jit" if closed else "smoke.compiler"
    words = str(rank.get("phase")).split()
    if words[:1] == ["long"]:
        return _LONG.get(" ".join(words[1:2]), "smoke.crash")
    return _PARTS.get(" ".join(words[:1]), "smoke.crash")


def _not_started(outcome: Outcome, report: Mapping[str, Any], ranks: list[Mapping[str, Any]]) -> Finding | None:
    if report or outcome.exit_code not in _NOT_STARTED:
        return None
    return _finding(
        "smoke.crash",
        f"{_NOT_STARTED[outcome.exit_code]} (exit code {outcome.exit_code})",
        "Was the image built by envbuild, and for this machine's architecture?",
        _words(outcome, ranks),
    )


def _no_report(outcome: Outcome, report: Mapping[str, Any], ranks: list[Mapping[str, Any]]) -> Finding | None:
    code = outcome.exit_code
    end = f"signal {code - 128}" if 128 < code < 160 else f"exit code {code}"
    kind = "smoke.output" if code == 0 or report else "smoke.crash"
    return _finding(
        kind,
        f"the probe gave no report that can be read; the container ended with {end}",
        "Run it again with -v. Does something in the image print to the probe's stdout?",
        _words(outcome, ranks),
    )


def _ranks(report: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    ranks = dig(report, "ranks")
    return [rank for rank in ranks if isinstance(rank, Mapping)] if isinstance(ranks, list) else []


def _all_reported(report: Mapping[str, Any], ranks: list[Mapping[str, Any]]) -> bool:
    ended = report.get("error") is None and report.get("timed_out") is not True
    return ended and bool(ranks) and not any(_failed(rank) for rank in ranks)


def _failed(rank: Mapping[str, Any]) -> bool:
    return rank.get("exit_code") != 0 or not isinstance(rank.get("report"), Mapping)


def _phases(ranks: Iterable[Mapping[str, Any]]) -> str:
    places = [f"rank {show(rank.get('rank'))} in '{show(rank.get('phase'))}'" for rank in ranks]
    return f" ({', '.join(places)})" if places else ""


def _lines(rank: Mapping[str, Any]) -> list[str]:
    lines = rank.get("log_tail")
    return [plain(line) for line in lines if isinstance(line, str)] if isinstance(lines, list) else []


def _words(outcome: Outcome, ranks: Iterable[Mapping[str, Any]]) -> str:
    """The last lines of the ranks that matter, or of the container."""
    parts = []
    for rank in ranks:
        lines = _lines(rank)
        if lines:
            parts.append(f"last lines of rank {show(rank.get('rank'))}:")
            parts.extend(f"  {line}" for line in _last(lines))
    if not parts and outcome.last_lines:
        parts = ["last lines of the container:", *(f"  {line}" for line in outcome.last_lines.splitlines())]
    return "\n".join(parts)


def _last(lines: list[str]) -> list[str]:
    """The end of a log; of a stack the innermost calls, which come first."""
    heads = [place for place, line in enumerate(lines) if _THREAD.match(line)]
    stack = lines[heads[-1] :] if heads else []
    return stack[:_WORDS] if len(stack) > _WORDS else lines[-_WORDS:]


def _finding(rule: str, message: str, fix: str, words: str, source: str = "") -> Finding:
    return Finding(
        rule=rule,
        severity=Severity.ERROR,
        subject="smoke",
        message=message + (f"\n{words}" if words else ""),
        fix=fix,
        source=source,
    )
