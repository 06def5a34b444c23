"""Training logs of DeepSpeed 0.8 to 0.19, of Megatron-DeepSpeed, and of Hugging Face's Trainer on it.

Timer lines (``wall_clock_breakdown``): ``forward``, ``backward_inner``, ... until 0.9, then ``fwd``, ``bwd_inner``,
...; with ``rank=N`` before them until 0.9. Newer ones (0.18.2, not yet 0.16.9) are printed and not logged: they have
no time of day.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from typing import Any

from envbuild.errors import InputError
from envbuild.profile.readers.printed import FLOAT, NORM, NUMBER, loss_of
from envbuild.profile.readers.run import Run

# "1.2.3" is a version, and no number of anything.
_PLAIN = r"\d+(?:\.\d*)?(?!\.?\d)"
_TIMERS = re.compile(r"time \(ms\)((?: \| [\w. -]+: \d+(?:\.\d+)?)+)")
_RANK = re.compile(r"\[Rank (-?\d{1,9})\]|\brank=(\d{1,9})\b")
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})\]")
STEP = re.compile(r"\bstep=(\d{1,12}), skipped=\d+, lr=")
_VERSION = re.compile(r"DeepSpeed info: version=(\d{1,6})\.(\d{1,6})\.(\d{1,6})([^,\s]*)")
_SPEED = re.compile(rf"CurrSamplesPerSec=[^,]+, MemAllocated={_PLAIN}GB, MaxMemAllocated=({_PLAIN})GB")
_MEMORY = re.compile(rf"\bMA {_PLAIN} GB\s+Max_MA ({_PLAIN}) GB")
_ACCELERATOR = re.compile(r"ds_accelerator to (\w+)")
_BACKEND = re.compile(r"Initializing TorchBackend in DeepSpeed with backend (\w+)")
_WORLD = re.compile(r"(?<!parallel )\bworld[ _]size[ .:=]+(\d{1,6})\b", re.IGNORECASE)
_NCCL = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_VIA = re.compile(r"NCCL INFO .*\bvia (P2P(?:/\w+)?|SHM(?:/\w+)?|NET/\w+)")
PIPE = re.compile(rf"steps: (\d{{1,12}}) loss: ({FLOAT}) .*iter time \(s\): ({_PLAIN})")
MEGATRON = re.compile(r"\biteration\s{1,16}(\d{1,12})/\s{0,16}\d+ \|")
_MEGATRON_TIME = re.compile(rf"elapsed time per iteration \(ms\): ({_PLAIN})")
_JSON = "json = {"
# Without one of these a line tells nothing, and most lines of most logs have none.
_WORDS = (
    "time (ms)", "oss", "comm op: ", "Comm. Op", "iteration", "steps: ", "step=", "NCCL", "DeepSpeed info",
    "SamplesPerSec", "Max_MA", "ds_accelerator", "TorchBackend", "orld", "WORLD", _JSON,
)  # fmt: skip
_LONGEST_CONFIG = 2000
# Timer's name: the part of the step, or what is inside one.
_NAMES = {
    "fwd": "forward", "forward": "forward",
    "bwd_inner": "backward", "backward_inner": "backward",
    "bwd_allreduce": "reduction", "backward_allreduce": "reduction",
    "step": "optimizer",
    "optimizer_step": "optimizer_kernel", "optimizer_swap_in_state": "swap", "optimizer_swap_out_state": "swap",
}  # fmt: skip
_WHOLE_BACKWARD = ("bwd", "backward")
_EPOCH = datetime.datetime(1970, 1, 1)


class Log:
    """Reads the lines of one file; a new start of DeepSpeed behind steps is a new run.

    Args:
        deepspeed: Its version, where no line tells it.
        rank: That of lines that name none.
    """

    def __init__(self, deepspeed: str | None = None, rank: int = 0) -> None:
        self._rank = rank
        self.runs = [Run(version=parsed(deepspeed))]
        # What was told behind the last step: of this run, or of the next one, which begins before it tells its version.
        self._between: list[tuple[str, Any]] = []
        self._text: list[str] | None = None
        self._before: dict[int, datetime.datetime] = {}

    def take(self, line: str) -> None:
        """Read one line."""
        if self._text is not None:
            self._configuration(line)
            return
        run = self.runs[-1]
        if not (run.tabled or any(word in line for word in _WORDS)):
            return
        rank = rank_of(line, self._rank)
        if run.comm(rank).take(line):
            return
        if "time (ms)" in line and (found := _TIMERS.search(line)):
            self._timers(run, rank, line, found[1])
        elif found := MEGATRON.search(line):
            self._megatron(run, rank, line, int(found[1]))
        elif found := PIPE.search(line):
            self._settle()
            row = run.process(rank).named(int(found[1]))
            if row is not None:
                row.figures.update(loss=float(found[2]), seconds=float(found[3]))
        elif found := STEP.search(line):
            process = run.process(rank)
            if int(found[1]) - 1 > process.number:
                process.number = int(found[1]) - 1
        elif not self._surroundings(run, rank, line) and "oss" in line:
            self._loss(run, rank, line)

    def _timers(self, run: Run, rank: int, line: str, text: str) -> None:
        found: dict[str, float] = {}
        names = set()
        for piece in text.split(" | ")[1:]:
            name, _, value = piece.rpartition(": ")
            names.add(name)
            if name in _NAMES:
                found[_NAMES[name]] = round(found.get(_NAMES[name], 0.0) + float(value) / 1e3, 9)
        for name in _WHOLE_BACKWARD:
            if name in names and "backward" not in found:
                found["backward"] = float(text.split(f" | {name}: ")[1].split(" ")[0]) / 1e3
        process = run.process(rank)
        if not names & {"fwd", "forward"}:
            # Of the optimizer, logged within its step; micro-steps are in the step's own line again.
            for name in ("optimizer_kernel", "swap"):
                if name in found:
                    before = process.pending.figures.get(name, 0.0)
                    process.pending.figures[name] = before + found[name]
            return
        self._settle()
        run.timed = True
        if not process.timed:
            process.begin_timers()
        self._stamp(rank, line, found)
        process.end_step(found)

    def _stamp(self, rank: int, line: str, found: dict[str, float]) -> None:
        stamp = _STAMP.search(line)
        if stamp is None:
            return
        try:
            now = datetime.datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S")
        except ValueError:
            return
        now += datetime.timedelta(milliseconds=int(stamp[2]))
        before = self._before.get(rank)
        if before is not None and now >= before:
            found["seconds"] = (now - before).total_seconds()
            found["at"] = (before - _EPOCH).total_seconds()
            self.runs[-1].stamped = True
        self._before[rank] = now

    def _megatron(self, run: Run, rank: int, line: str, number: int) -> None:
        self._settle()
        row = run.process(rank).named(number)
        if row is None:
            return
        if (told := loss_of(line)) is not None:
            row.figures["loss"] = told[1]
        if found := NORM.search(line):
            row.figures["gradient_norm"] = float(found[1])
        if found := _MEGATRON_TIME.search(line):
            row.figures["seconds"] = float(found[1]) / 1e3

    def _loss(self, run: Run, rank: int, line: str) -> None:
        told = loss_of(line)
        if told is None:
            return
        self._settle()
        name, loss = told
        figures = {"loss": loss}
        if norm := NORM.search(line):
            figures["gradient_norm"] = float(norm[1])
        number = NUMBER.search(line)
        run.process(rank).lose(name, figures, int(number[1]) if number else None)

    def _surroundings(self, run: Run, rank: int, line: str) -> bool:
        """What a line tells of the run; whether it told something."""
        if found := _VERSION.search(line):
            version = (int(found[1]), int(found[2]), int(found[3]))
            if run.over(version):
                self.runs.append(Run())
                self._before = {}
            self.runs[-1].version = version
            self._settle()
        elif found := _SPEED.search(line) or _MEMORY.search(line):
            process = run.process(rank)
            process.peak = max(process.peak or 0, round(float(found[1]) * 2**30))
        elif found := _ACCELERATOR.search(line):
            self._tell("accelerator", found[1])
        elif found := _BACKEND.search(line):
            self._tell("backend", found[1])
        elif "NCCL" in line and (found := _VIA.search(line)):
            self._tell("transports", found[1])
        elif "NCCL" in line and (found := _NCCL.search(line)):
            self._tell("nccl", found[1])
        elif found := _WORLD.search(line):
            self._tell("world", int(found[1]))
        elif line.rstrip().endswith(_JSON):
            self._text = ["{"]
        else:
            return False
        return True

    def _tell(self, name: str, value: Any) -> None:
        run = self.runs[-1]
        if not run.begun:
            run.tell(name, value)
        elif (name, value) not in self._between:
            self._between.append((name, value))

    def _settle(self) -> None:
        for name, value in self._between:
            self.runs[-1].tell(name, value)
        self._between.clear()

    def _configuration(self, line: str) -> None:
        """The ds_config, as DeepSpeed prints it at the start: the lines to the brace in the first column."""
        text = self._text or []
        text.append(line)
        if line.rstrip() == "}":
            try:
                value = json.loads("\n".join(text))
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict) and _finite(value):
                self._tell("config", value)
            self._text = None
        elif len(text) > _LONGEST_CONFIG:
            self._text = None

    def told(self) -> list[Run]:
        """The runs that told something."""
        self._settle()
        return [run for run in self.runs if not run.empty]


def printable(text: str) -> str:
    """A text from outside as one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:200]


def rank_of(line: str, unsaid: int = 0) -> int:
    """The rank that a line names; DeepSpeed's -1 is that of a process that has not met the others yet."""
    found = _RANK.search(line[:400])
    number = int(found[1] or found[2]) if found else -1
    return number if number >= 0 else unsaid


def parsed(version: str | None) -> tuple[int, ...] | None:
    """``0.19.8`` as numbers; None of nothing.

    Raises:
        InputError: It is no version.
    """
    found = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", version or "")
    if version and found is None:
        raise InputError(f"--deepspeed: '{version}' is no version", hint="Such as 0.19.8.")
    return tuple(int(part or 0) for part in found.groups()) if found else None


def _finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_finite(each) for each in value.values())
    return all(_finite(each) for each in value) if isinstance(value, list) else True
