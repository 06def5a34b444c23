"""What DeepSpeed's comms_logger prints: every operation (``verbose``), tables, and the document of ``log_summary``.

Its latencies are trusted below 0.18.3 only. From 0.18.3 on the timer is not cleared between operations
(deepspeed/utils/timer.py and comm/comm.py: ``elapsed(reset=False)``), so each latency is the sum of all before it.
Single operations give the true ones back, by differences; a table does not. Sizes and counts are right, but a table
rounds sizes to four digits. The bus bandwidth of a reduce-scatter is multiplied by the number of ranks too many
(comms_logging.py: the size is the whole input already): it is computed anew.

The size is that of the argument that is called ``tensor``, or of a list's all together (deepspeed/comm/utils.py:
get_msg_size_from_args): of an all-gather a rank's own share, which the number of ranks makes a message of. Operations
without such an argument, such as all_gather_coalesced, are logged with a size of 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envbuild.profile.bandwidth import bus_bandwidth, gathers, message_size
from envbuild.profile.document import Unavailable
from envbuild.profile.figures import Collective

CUMULATIVE_FROM = (0, 18, 3)
_UNITS = {"B": 0, "KB": 1, "MB": 2, "GB": 3, "TB": 4, "PB": 5, "EB": 6}
_SIZE = r"(\d+(?:\.\d+)?) ?([KMGTPE]?B)"
_FIGURE = r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|-?inf)"
_ROW = re.compile(rf"(?:^|\s){_SIZE}\s+(\d{{1,15}})" + rf"\s+{_FIGURE}" * 4 + r"\s*$")
_VERBOSE = re.compile(
    rf"comm op: (?P<op>[\w.-]+)[^|]*(?P<caller>\|[^|]*)?\| time \(ms\): {_FIGURE} \| msg size: {_SIZE} \|"
)
_NAME = re.compile(r"^(?:[\w.-]+: )?([A-Za-z_]\w{2,60})(?: \| \[Caller Func: [^\]]*\])?\s*$")
_HEAD, _STRAGGLERS = "Comm. Op", "Breakdown with straggler effect"
# What releases before torch's new names called the same operation.
_NEWER = {"all_gather_base": "all_gather_into_tensor", "reduce_scatter_base": "reduce_scatter_tensor"}
_EMPTY = ("barrier", "monitored_barrier")
# Of so many growing times in a row, chance is no explanation.
_ENOUGH = 8


@dataclass(slots=True)
class _Row:
    count: int = 0
    milliseconds: float = 0.0
    reported: float | None = None

    def add(self, count: int, milliseconds: float | None, reported: float | None) -> None:
        """A row of the same operation and size, such as another caller's."""
        self.reported = reported if not self.count else None
        self.count += count
        self.milliseconds = math.nan if milliseconds is None else self.milliseconds + milliseconds


@dataclass(slots=True)
class _Single:
    """Operations of one name, as they were printed one by one: each of them has one timer.

    With ``debug`` a name has its caller (comm.py: ``log_name``), and so has the timer.
    """

    rows: dict[int, _Row] = field(default_factory=dict)
    differences: dict[int, float] = field(default_factory=dict)
    last: float = 0.0
    growing: bool = True


@dataclass(slots=True)
class Comms:
    """What one rank's log tells of its collectives."""

    singles: dict[tuple[str, str], _Single] = field(default_factory=dict)
    table: dict[tuple[str, int], _Row] = field(default_factory=dict)
    exact: bool = False
    in_table: bool = False
    _name: str | None = None

    def __bool__(self) -> bool:
        return bool(self.singles or self.table)

    @property
    def count(self) -> int:
        """How many operations were told one by one."""
        return sum(row.count for single in self.singles.values() for row in single.rows.values())

    def take(self, line: str) -> bool:
        """Read a line; whether it was one of the logger's."""
        if "comm op: " in line and (found := _VERBOSE.search(line)):
            self._single(found)
            return True
        if _HEAD in line and "Message Size" in line:
            # Every table holds everything from the start on; that of the stragglers, other figures.
            self.in_table, self._name = "Total Latency" in line, None
            if self.in_table:
                self.table.clear()
            return True
        if not self.in_table:
            return False
        if _STRAGGLERS in line or line.startswith("____"):
            self.in_table = False
        elif found := _ROW.search(line):
            self._row(found)
        elif found := _NAME.match(line):
            self._name = _op(found[1])
        elif line.strip():
            self.in_table = False
        return self.in_table

    def _single(self, found: re.Match[str]) -> None:
        name, time, size = (_op(found["op"]), found["caller"] or ""), _number(found[3]), _bytes(found[4], found[5])
        if time is None or size is None:
            return
        single = self.singles.setdefault(name, _Single())
        row = single.rows.setdefault(size, _Row())
        row.count += 1
        row.milliseconds += time
        step = time - single.last
        # Two digits are printed, so that equal ones may go back by one.
        single.growing = single.growing and step >= -0.011
        single.differences[size] = single.differences.get(size, 0.0) + max(0.0, step)
        single.last = time

    def _row(self, found: re.Match[str]) -> None:
        size, total, reported = _bytes(found[1], found[2]), _number(found[4]), _number(found[7])
        if self._name is None or size is None:
            return
        self.table.setdefault((self._name, size), _Row()).add(int(found[3]), total, reported)

    def document(self, value: Mapping[str, Any]) -> int | None:
        """Take what ``log_summary(return_dict=True)`` returned; gives the number of ranks that it tells."""
        for op, sizes in value["summary"].items():
            for size, row in sizes.items():
                total, speed = _number(row.get("total_latency_ms")), _number(row.get("busbw_avg_gbps"))
                name = _op(str(op).split(" ")[0])
                self.table.setdefault((name, int(float(size))), _Row()).add(int(row["count"]), total, speed)
        self.exact = True
        ranks = (value.get("metadata") or {}).get("world_size")
        return ranks if isinstance(ranks, int) and ranks > 0 else None

    def collectives(
        self, version: tuple[int, ...] | None, ranks: int | None
    ) -> tuple[list[Collective], list[Unavailable]]:
        """The rows, with times where they can be trusted, and why where not."""
        missing: list[Unavailable] = []
        found = []
        ops = sorted({op for op, _ in self.singles})
        for op in ops:
            singles = [single for (name, _), single in self.singles.items() if name == op]
            cumulative = _cumulative(version, singles)
            for size in sorted({size for single in singles for size in single.rows}):
                own = [single for single in singles if size in single.rows]
                spent = sum(each.differences[size] if cumulative else each.rows[size].milliseconds for each in own)
                time = None if cumulative is None else "corrected" if cumulative else "measured"
                count = sum(each.rows[size].count for each in own)
                found.append(_collective(op, size, count, spent if time else None, time, ranks))
            if cumulative is None:
                missing.append(_unknown(op, "too few operations to tell whether DeepSpeed's times are cumulative"))
        for (op, size), row in sorted(self.table.items()):
            if op in ops:
                continue
            trusted = version is not None and version < CUMULATIVE_FROM and math.isfinite(row.milliseconds)
            found.append(
                _collective(op, size, row.count, row.milliseconds if trusted else None, "measured" if trusted else None,
                            ranks, row.reported if trusted else None)
            )  # fmt: skip
            if not trusted:
                missing.append(_unknown(op, _why(version)))
        missing += [_unsized(each.op, ranks) for each in found if each.bytes is None]
        return found, list({each.figure: each for each in missing}.values())


def _cumulative(version: tuple[int, ...] | None, singles: Sequence[_Single]) -> bool | None:
    if version is not None:
        return version >= CUMULATIVE_FROM
    if not all(single.growing for single in singles):
        return False
    return True if any(sum(row.count for row in each.rows.values()) >= _ENOUGH for each in singles) else None


def _collective(
    op: str, size: int, count: int, milliseconds: float | None, time: Any, ranks: int | None,
    reported: float | None = None,
) -> Collective:  # fmt: skip
    seconds = milliseconds / 1e3 if milliseconds is not None else None
    message = message_size(op, size, ranks) if size or op in _EMPTY else None
    speed, kind = None, None
    if seconds is not None and ranks:
        speed, kind = bus_bandwidth(op, (message or 0) * count, seconds, ranks), "computed"
    elif reported is not None and "reduce_scatter" not in op:
        # Its "Gbps" are 10^9 bits.
        speed, kind = reported * 1e9 / 8, "reported"
    return Collective(
        op=op, count=count, bytes=None if message is None else message * count, message_bytes=message, group_size=ranks,
        seconds=seconds, time=time, bus_bandwidth=speed, bandwidth=kind if speed is not None else None,  # type: ignore[arg-type]
    )  # fmt: skip


def _unknown(op: str, reason: str) -> Unavailable:
    return Unavailable(figure=f"collectives.{op}.seconds", reason=reason)


def _unsized(op: str, ranks: int | None) -> Unavailable:
    why = "DeepSpeed logs no size of this operation"
    if gathers(op) and not ranks:
        why = "DeepSpeed logs one rank's share of it, and the log does not tell the number of ranks"
    return Unavailable(figure=f"collectives.{op}.bytes", reason=why)


def _op(name: str) -> str:
    plain = name.lstrip("_")
    return _NEWER.get(plain, plain)


def _why(version: tuple[int, ...] | None) -> str:
    if version is None:
        return "the log does not tell DeepSpeed's version, and from 0.18.3 on its latencies are cumulative: --deepspeed"
    return "DeepSpeed's latencies are cumulative from 0.18.3 on; a table cannot be taken apart: use verbose, or a trace"


def _bytes(number: str, unit: str) -> int | None:
    value = float(number) * 1024 ** _UNITS[unit]
    return round(value) if value < 2**62 else None


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number >= 0 else None
