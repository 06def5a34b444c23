"""How a smoke container ends badly: each end has its own message, with the phase and the last output."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.judge.outcome import Outcome, document
from envbuild.judge.run import SCHEMA
from envbuild.judge.smoke import explain_failure

Report = dict[str, Any]
GOOD: Report = json.loads((Path(__file__).parent / "data" / "judge" / "zero3.json").read_text())
MIB = 1024 * 1024


def outcome(report: Report | None = None, **more: Any) -> Outcome:
    stdout = "" if report is None else json.dumps(report) + "\n"
    ended: dict[str, Any] = {"exit_code": 1, "stdout": stdout, "stderr": "", "oom_killed": False, "timed_out": False}
    return Outcome(**{**ended, "seconds": 12.0, "shm_bytes": None, **more})


def ended(rank: int, *, phase: str = "first step", lines: tuple[str, ...] = (), **how: Any) -> Report:
    """The good report, with one rank that ended early and the other ended because of it."""
    report = copy.deepcopy(GOOD)
    for number, item in enumerate(report["ranks"]):
        item.update(report=None, phase=phase, exit_code=1, log_tail=["RuntimeError: Connection closed by peer"])
        if number == rank:
            item.update(seconds=5.0, log_tail=list(lines), **how)
        else:
            item.update(seconds=5.5)
    return report


def killed(number: int, name: str) -> dict[str, Any]:
    return {"exit_code": None, "signal": number, "signal_name": name}


TIMED_OUT = copy.deepcopy(GOOD)
TIMED_OUT.update(timed_out=True, seconds=300.4)
for _rank, _phase in zip(TIMED_OUT["ranks"], ("steps 7", "collective"), strict=True):
    _rank.update(killed(9, "SIGKILL"), ended_by_launcher=True, phase=_phase, report=None, log_tail=["stack of it"])

OUT_OF_MEMORY = ended(1, phase="engine", lines=("loading",), **killed(9, "SIGKILL"))
COUNTED = ended(0, **killed(9, "SIGKILL"))
COUNTED["memory_after"]["oom_kills"] = 1
COUNTED["surroundings"]["memory"]["limit_bytes"] = 512 * MIB
BUS = ended(1, lines=("Fatal Python error: Bus error",), **killed(7, "SIGBUS"))
SEGMENT = ended(1, phase="rendezvous", **killed(11, "SIGSEGV"))
SMALL = copy.deepcopy(SEGMENT)
SMALL["surroundings"]["shm"]["total_bytes"] = MIB
FULL = ended(0, lines=("OSError: [Errno 28] No space left on device",))
FULL["surroundings"]["shm"]["total_bytes"] = 64 * MIB
STUCK = copy.deepcopy(TIMED_OUT)
STUCK.update(timed_out=False, stuck={"seconds": 60.2, "inside": [1]})
STUCK["ranks"][0].update(phase="rendezvous", log_tail=["where it stands"])
ALL_IN = copy.deepcopy(STUCK)
ALL_IN["stuck"]["inside"] = [0, 1]
BEHIND = copy.deepcopy(TIMED_OUT)
BEHIND["ranks"][0].update(phases_entered=9, log_tail=["waits"])
BEHIND["ranks"][1].update(
    phases_entered=8,
    log_tail=["Thread 0x01 (most recent call first):", *["other"] * 20, "Current thread 0x02 (most recent call first):",
              "innermost call", *["outer call"] * 40],
)  # fmt: skip
LOCKED = ended(
    0, phase="nvme engine", lines=("mlock failed to allocate 1049600 bytes with error no 12 msg x", "Fatal"),
    **killed(11, "SIGSEGV"),
)  # fmt: skip
LOCKED["surroundings"]["memlock_bytes"] = [65536, 65536]
UNREADABLE = ended(1, phase="checkpoint load", lines=("UnpicklingError: \x1b[1mWeights only load failed",), exit_code=1)
DISK = ended(1, phase="nvme steps 2", exit_code=1)
LATER = ended(1, phase="long checkpoint load", exit_code=1)
CLOSED = ended(1, phase="engine", exit_code=1)
CLOSED["ranks"][1]["report"] = {"error": "PermissionError: [Errno 13] Permission denied: '/tmp/x/extensions/cpu_adam'"}
BUILDING = ended(1, phase="engine", exit_code=1)
BUILDING["ranks"][1]["report"] = {"error": "x", "programs": {"started": [{"argv": ["ninja", "-v"]}], "count": 1}}
MAY_BUILD = copy.deepcopy(BUILDING)
MAY_BUILD["arguments"]["jit"] = True
RAISED = ended(0, lines=("Traceback (most recent call last):", "RuntimeError: op failed"), exit_code=1)
NO_GPU = {"schema": SCHEMA, "error": "RuntimeError: torch sees no GPU", "ranks": []}


@pytest.mark.parametrize(
    ("how", "rule", "told"),
    [
        (
            outcome(TIMED_OUT),
            "smoke.timeout",
            ["300 s", "rank 0 in 'steps 7'", "rank 1 in 'collective'", "stack of it"],
        ),
        (outcome(BEHIND), "smoke.timeout", ["last lines of rank 1", "innermost call"]),
        (outcome(STUCK), "smoke.collective", ["60 s", "rank 0 did not arrive", "'rendezvous'", "where it stands"]),
        (outcome(ALL_IN), "smoke.collective", ["every rank arrived"]),
        (outcome(LOCKED), "smoke.memlock", ["64 KiB", "1049600 bytes", "rank 0 in 'nvme engine'"]),
        (outcome(UNREADABLE), "smoke.checkpoint", ["'checkpoint load'", "Weights only load failed"]),
        (outcome(DISK), "smoke.nvme", ["'nvme steps 2'"]),
        (outcome(LATER), "smoke.long.checkpoint", ["'long checkpoint load'"]),
        (outcome(CLOSED), "smoke.jit", ["Permission denied"]),
        (outcome(BUILDING), "smoke.compiler", ["'engine'"]),
        (outcome(MAY_BUILD), "smoke.crash", ["'engine'"]),
        (outcome(timed_out=True, exit_code=137, stderr="importing"), "smoke.timeout", ["12 s", "importing"]),
        (outcome(OUT_OF_MEMORY), "smoke.memory", ["SIGKILL", "rank 1 in 'engine'", "loading"]),
        (outcome(COUNTED), "smoke.memory", ["the kernel killed", "512 MiB"]),
        (outcome(oom_killed=True, exit_code=137), "smoke.memory", ["the kernel killed"]),
        (outcome(exit_code=137), "smoke.memory", ["SIGKILL"]),
        (outcome(BUS), "smoke.shm", ["1024 MiB", "a bus error", "Fatal Python error"]),
        (outcome(SMALL), "smoke.shm", ["of 1 MiB", "132 MiB for 2 ranks", "rank 1 in 'rendezvous'"]),
        (outcome(FULL), "smoke.shm", ["of 64 MiB", "no space left"]),
        (outcome(exit_code=135, shm_bytes=MIB), "smoke.shm", ["of 1 MiB"]),
        (outcome(SEGMENT), "smoke.crash", ["rank 1 ended with SIGSEGV", "'rendezvous'"]),
        (outcome(RAISED), "smoke.crash", ["rank 0 ended with exit code 1", "RuntimeError: op failed"]),
        (outcome(NO_GPU), "smoke.probe", ["torch sees no GPU"]),
        (outcome(exit_code=127, stderr="no such file"), "smoke.crash", ["no python", "127", "no such file"]),
        (outcome(exit_code=139), "smoke.crash", ["signal 11"]),
        (outcome(exit_code=0, stdout="hello\n"), "smoke.output", ["no report", "hello"]),
        (
            outcome(exit_code=0, stdout='{"schema": "envbuild.probe.zero3/2", "ranks": [Na'),
            "smoke.output",
            ["no report"],
        ),
        (outcome({"schema": "something/else"}, exit_code=0), "smoke.output", ["no report"]),
    ],
)
def test_each_end_has_its_message(how: Outcome, rule: str, told: list[str]) -> None:
    (finding,) = explain_failure(how)
    assert finding.rule == rule
    assert finding.fix and "\x1b" not in finding.message
    assert all(text in finding.message for text in told), finding.message


def test_only_the_rank_that_failed_first_is_blamed() -> None:
    report = ended(1, lines=("the cause",), exit_code=3)
    report["ranks"][0].update(killed(9, "SIGKILL"), ended_by_launcher=True)  # no sign of a lack of memory
    (finding,) = explain_failure(outcome(report))
    assert finding.message.startswith("rank 1 ended with exit code 3")
    assert "the cause" in finding.message and "Connection closed" not in finding.message


def test_a_run_that_ended_well_needs_no_explanation() -> None:
    noisy = outcome(GOOD, exit_code=0)
    assert explain_failure(noisy) == []
    banner = "Welcome\n{not json}\n" + noisy.stdout + "bye\n"
    assert document(outcome(stdout=banner), SCHEMA) == GOOD


def test_the_content_probe_ends_badly_under_its_own_name() -> None:
    (finding,) = explain_failure(outcome(timed_out=True), probe="content")
    assert finding.rule == "content.timeout"


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [None], [{}], {"ranks": 1}])
def test_nothing_in_a_report_raises(value: Any) -> None:
    for key in ("ranks", "surroundings", "memory_after", "seconds", "error", "stuck", "arguments"):
        explain_failure(outcome({**GOOD, key: value}))
    explain_failure(outcome({**GOOD, "ranks": [value, {"log_tail": value, "seconds": value, "exit_code": value}]}))
