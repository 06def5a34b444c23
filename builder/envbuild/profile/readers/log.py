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
from pathlib import Path

from envbuild.errors import InputError
from envbuild.model.words import Line
from envbuild.profile.document import Key, Launch, Measurement, Origins
from envbuild.profile.readers.opened import lines
from envbuild.profile.readers.run import Run

_FLOAT = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
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
_WORLD = re.compile(r"\bworld[ _]size[ .:=]+(\d{1,6})\b", re.IGNORECASE)
_NCCL = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_VIA = re.compile(r"NCCL INFO .*\bvia (P2P(?:/\w+)?|SHM(?:/\w+)?|NET/\w+)")
PIPE = re.compile(rf"steps: (\d{{1,12}}) loss: ({_FLOAT}) .*iter time \(s\): ({_PLAIN})")
MEGATRON = re.compile(r"\biteration\s+(\d{1,12})/\s*\d+ \|")
_MEGATRON_TIME = re.compile(rf"elapsed time per iteration \(ms\): ({_PLAIN})")
LOSS = re.compile(
    rf"(?<![\w-])['\"]?(?:lm |train_|training )?loss['\"]?\s*[:=]\s*['\"]?({_FLOAT})(?![\w.])", re.IGNORECASE
)
NORM = re.compile(rf"['\"]?grad(?:ient)?[_ ]norm['\"]?\s*[:=]\s*['\"]?({_FLOAT})(?![\w.])", re.IGNORECASE)
NUMBER = re.compile(r"(?<![\w-])(?:global_?)?(?:step|iteration|iter)['\"]?\s*[:=\[ ]\s*(\d{1,12})", re.IGNORECASE)
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


class Log:
    """Reads lines; a new start of DeepSpeed behind steps is a new run."""

    def __init__(self, deepspeed: str | None = None) -> None:
        self.runs = [Run()]
        self.version = parsed(deepspeed)
        self.world: int | None = None
        self.nccl: str | None = None
        self.accelerator: str | None = None
        self.config: dict[str, object] | None = None
        self._text: list[str] | None = None
        self._first: datetime.datetime | None = None
        self._before: dict[int, datetime.datetime] = {}

    def take(self, line: str) -> None:
        """Read one line."""
        if self._text is not None:
            self._configuration(line)
            return
        run = self.runs[-1]
        if not (run.tabled or any(word in line for word in _WORDS)):
            return
        rank = rank_of(line)
        if run.comm(rank).take(line):
            return
        if "time (ms)" in line and (found := _TIMERS.search(line)):
            self._timers(run, rank, line, found[1])
        elif found := MEGATRON.search(line):
            self._megatron(run, rank, line, int(found[1]))
        elif found := PIPE.search(line):
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
                    process.pending[name] = process.pending.get(name, 0.0) + found[name]
            return
        run.timed = True
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
        self._first = self._first or now
        before = self._before.get(rank)
        if before is not None and now >= before:
            found["seconds"] = (now - before).total_seconds()
            found["at"] = (before - self._first).total_seconds()
            self.runs[-1].stamped = True
        self._before[rank] = now

    def _megatron(self, run: Run, rank: int, line: str, number: int) -> None:
        row = run.process(rank).named(number)
        if row is None:
            return
        for name, pattern in (("loss", LOSS), ("gradient_norm", NORM)):
            if found := pattern.search(line):
                row.figures[name] = float(found[1])
        if found := _MEGATRON_TIME.search(line):
            row.figures["seconds"] = float(found[1]) / 1e3

    def _loss(self, run: Run, rank: int, line: str) -> None:
        found = LOSS.search(line)
        if found is None:
            return
        process = run.process(rank)
        figures = {"loss": float(found[1])}
        if norm := NORM.search(line):
            figures["gradient_norm"] = float(norm[1])
        if run.timed or process.pending:
            # Programs print the loss of a step behind its timers.
            if process.rows:
                process.rows[-1].figures.update(figures)
        elif number := NUMBER.search(line):
            row = process.named(int(number[1]))
            if row is not None:
                row.figures.update(figures)
        else:
            process.end_step(figures)

    def _surroundings(self, run: Run, rank: int, line: str) -> bool:
        """What a line tells of the run; whether it told something."""
        if found := _VERSION.search(line):
            self.version = (int(found[1]), int(found[2]), int(found[3]))
            if not run.empty and any(process.rows for process in run.processes.values()):
                self.runs.append(Run())
                self._before = {}
        elif found := _SPEED.search(line) or _MEMORY.search(line):
            process = run.process(rank)
            process.peak = max(process.peak or 0, round(float(found[1]) * 2**30))
        elif found := _ACCELERATOR.search(line):
            self.accelerator = found[1]
        elif found := _BACKEND.search(line):
            run.backend = found[1]
        elif "NCCL" in line and (found := _VIA.search(line)):
            run.transports.add(found[1])
        elif "NCCL" in line and (found := _NCCL.search(line)):
            self.nccl = found[1]
        elif found := _WORLD.search(line):
            self.world = int(found[1]) or None
        elif self.config is None and line.rstrip().endswith(_JSON):
            self._text = ["{"]
        else:
            return False
        return True

    def _configuration(self, line: str) -> None:
        """The ds_config, as DeepSpeed prints it at the start: the lines to the brace in the first column."""
        text = self._text or []
        text.append(line)
        if line.rstrip() == "}":
            try:
                value = json.loads("\n".join(text))
            except (ValueError, RecursionError):
                value = None
            self.config = value if isinstance(value, dict) and _finite(value) else None
            self._text = None
        elif len(text) > _LONGEST_CONFIG:
            self._text = None

    def launches(self) -> list[Launch]:
        """The runs that told something."""
        ranks = self.world
        on_cpu = self.accelerator == "cpu"
        return [run.launch(self.version, ranks, on_cpu=on_cpu) for run in self.runs if not run.empty]


def read(paths: list[Path], *, deepspeed: str | None = None) -> Measurement:
    """One measurement of the logs of one training, such as one for each rank.

    Raises:
        InputError: One cannot be read, or none holds a step or a collective.
    """
    log = Log(deepspeed)
    for path in paths:
        for line in lines(path):
            log.take(line)
    launches = log.launches()
    if not launches:
        raise InputError(
            f"{', '.join(map(str, paths))}: no timers, losses or collectives of DeepSpeed",
            hint='Set "wall_clock_breakdown": true in the ds_config, or enable its comms_logger, and train again.',
        )
    timed = any(rank.steps.number for launch in launches for rank in launch.ranks)
    key = Key(
        deepspeed=".".join(map(str, log.version)) if log.version else None, nccl=log.nccl, world_size=log.world,
        accelerator=log.accelerator if log.accelerator in ("cpu", "cuda") else None,  # type: ignore[arg-type]
    )  # fmt: skip
    return Measurement(
        key=key,
        origin=Origins(kind="log" if timed else "comms-log", files=tuple(printable(path.name) for path in paths)),
        config=log.config, launches=tuple(launches), notes=tuple(_notes(log)),
    )  # fmt: skip


def _notes(log: Log) -> list[Line]:
    found = []
    if any(run.stamped for run in log.runs):
        found.append("a step's seconds are the distance of two lines' times of day: right to a millisecond or two")
    if any(run.timed for run in log.runs):
        found.append("reduction is what backward waits for it, not the time of communication, where the two overlap")
    if any(process.cut for run in log.runs for process in run.processes.values()):
        found.append("the log has more steps than are read")
    if any(each for run in log.runs for each in run.comms.values()):
        found.append("the bus bandwidth of reduce-scatter is not DeepSpeed's, which is too high by the number of ranks")
    if any(each and not each.exact for run in log.runs for each in run.comms.values()):
        found.append("DeepSpeed prints sizes of messages with four digits, so bytes are right to half a percent")
    return found


def printable(text: str) -> str:
    """A text from outside as one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:200]


def rank_of(line: str) -> int:
    found = _RANK.search(line[:400])
    return max(0, int(found[1] or found[2])) if found else 0


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
