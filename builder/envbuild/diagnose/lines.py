"""One physical line of a log as its program wrote it: without colours, rank prefixes, time stamps and packaging.

Only lines around a hit come here, never the whole log.
"""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

# Of a line of ten megabytes, what lies around the hit is enough.
LONGEST = 8192

_ESCAPES = re.compile(
    r"(?:\x1b|\\x1b|\\u001b|\\033|\\e|#033|\^\[|\x9b)\[[0-?]*[ -/]*[@-~]"  # CSI, also spelled out by JSON, repr, syslog
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2028\u2029\ufeff]")
_SPELLED = re.compile(r"\\+(n|r|t|\"|'|u00(?:27|60|22|3c|3e|3C|3E)|/)")
_SPELLED_AS = {"n": "\n", "r": "\n", "t": "\t", "u0027": "'", "u0060": "`", "u0022": '"', "u003c": "<", "u003e": ">"}

# Programs whose own messages begin like the name of a host with a number.
_PROGRAMS = (
    r"(?!cc1|collect2|lto1|f951|python|pip|g\+\+|gcc|clang|ld\d|x86_64|aarch64|nvcc|sm_|libc|lib\S*\.so|"
    r"\S*\.(?:py|c|cc|cpp|cu|h|hpp|sh|so)\b)"
)
_RANK = [
    re.compile(
        r"\[(?:rank|default|local_rank|worker|gpu|proc|node)?[ :_-]?(?P<rank>\d{1,5})\][:>]?(?: |(?=\S)|$)", re.I
    ),
    re.compile(r"\[\d+,(?P<rank>\d+)\](?:<(?:stdout|stderr|stddiag)>)?:? ?"),
    re.compile(r" {0,4}(?P<rank>\d{1,5}): "),
    re.compile(r"(?:rank|worker|gpu|proc)[ :_-]?(?P<rank>\d{1,5}) ?[:|>] ?", re.I),
    re.compile(r"\([\w.:-]* ?(?:pid|rank)=(?P<pid>\d+)(?:, (?:ip|rank|node)=[\w.:-]+)*\) ?"),
    re.compile(_PROGRAMS + r"(?P<host>[a-z][a-z0-9-]*\d[a-z0-9-]*(?:\.[a-z][a-z0-9-]*)*): "),
    re.compile(r"\[(?P<pod>(?:pod/)?[a-z][\w.-]*/[\w./-]+)\] ?"),
    re.compile(r"(?P<service>[a-z][\w.-]*-\d+) +\| ?"),
    re.compile(r"#(?P<step>\d+) (?:\[[^\]]*\] )?(?:\d+\.\d+ )?(?=\S|$)"),
]
_DATE = r"(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?(?P<zone>Z| ?[+-]\d\d:?\d\d)?"
_STAMPS = [
    re.compile(rf"\[?{_DATE}\]?(?: (?:stdout|stderr) [FP])?(?: ?[-|:]? ?|$)"),
    re.compile(
        r"(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<time>\d\d:\d\d:\d\d)(?:\.\d+)? (?P<host>[\w.-]+) "
        r"[\w@./()-]+(?:\[\d+\])?: ?"
    ),
    re.compile(
        r"\[?(?P<glog>[IWEF])(?P<md>\d{4}) (?P<time>\d\d:\d\d:\d\d)(?P<part>\.\d+)? +(?:\d+ )?(?:[\w./<>-]+:\d+\]) ?"
    ),
    re.compile(r"\[?\d\d/\d\d/\d{2,4},? \d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?: ?[-|:]? ?)"),
    re.compile(r"\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?: ?[-|:]? ?)(?=\D)"),
    re.compile(r"\[ *\d{1,7}\.\d{3,6}\] "),
]
_LEVEL = re.compile(
    r"(?:\[(?P<a>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|NOTICE)(?:\|[^\]]*)?\]|"
    r"(?P<b>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|NOTICE)(?= *[-|]|  ))[ :|-]*"
)
# A library that warns goes on; but so does torch tell that it does without the GPU.
_SAID_LEVEL = re.compile(
    r"(?:[\w.]+[ :-]+)?(?P<level>DEBUG|INFO|WARNING|WARN)\b *(?::|\||-|\[)|"
    r"(?:\S+\.py:\d+: )?(?:User|Runtime|Future|Deprecation|Import|Resource)(?P<python>W)arning: (?!CUDA init)"
)
_NCCL = re.compile(r"\S+:\d+:\d+ \[(?P<rank>\d+)\] (?:\S+ )?NCCL (?P<level>INFO|TRACE|VERSION)?")
_PLACE = re.compile(r"\[[\w./<>-]+\.(?:py|cc|cpp|cu|h|go|rs):\d+(?::[\w.<>-]+)?\] ?|\[(?:pid|PID|tid)?[ :=]?\d{2,8}\] ")
_QUIET = {"DEBUG", "INFO", "WARNING", "WARN", "NOTICE", "TRACE", "VERSION", "I", "W"}
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_KEYS = ("log", "message", "msg", "MESSAGE", "text", "line", "textPayload")


@dataclass(frozen=True, slots=True)
class Line:
    """A cleaned line.

    Attributes:
        number: In its file, from 1.
        text: What the program wrote. A line that spells out line ends (JSON, repr) has them here.
        whole: The same with the prefixes that ``text`` has lost.
        author: Who wrote it, where the prefix says so: rank, host, pod, process.
        rank: The rank, where the prefix says it.
        stamp: Seconds since the epoch; years and zones that are not said are guessed equally for all lines of a log.
        quiet: It is logged as a warning or less.
        wide: Columns it has on a terminal, with its prefix; ``raw`` bytes it has with its colours.
    """

    number: int
    text: str
    whole: str
    author: str = ""
    rank: int | None = None
    stamp: float | None = None
    quiet: bool = False
    wide: int = 0
    raw: int = 0


def plain(raw: bytes) -> str:
    """Text without colours and control characters."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text or "[" in text:
        text = _ESCAPES.sub("", text)
    return _CONTROL.sub("", text)


@lru_cache(maxsize=1024)
def clean(raw: bytes, number: int) -> Line:
    """A physical line (no line ends in it), cleaned."""
    text = plain(raw).rstrip("\r\n")
    wide = len(text)
    author, rank, stamp, level = "", None, None, ""
    packed = _unpacked(text)
    if packed is not None:
        text, stamp, level = packed
    whole = text
    for _ in range(8):
        found: re.Match[str] | None = None
        for each in _RANK:
            found = each.match(text)
            if found:
                groups = found.groupdict()
                said = groups.get("rank")
                if said is not None:
                    rank = int(said)
                author = author or found[0].strip()
                break
        if not found:
            for each in _STAMPS:
                found = each.match(text)
                if found:
                    stamp = stamp if stamp is not None else _seconds(found.groupdict())
                    level = level or found.groupdict().get("glog") or ""
                    break
        if not found:
            found = _PLACE.match(text)
        if not found:
            found = _LEVEL.match(text)
            if found:
                level = level or found["a"] or found["b"]
        if not found or not found[0]:
            break
        text = text[found.end() :]
    if not level:
        said_level = _SAID_LEVEL.match(text)
        level = (said_level["level"] or said_level["python"]) if said_level else ""
    nccl = _NCCL.match(text)
    if nccl:
        rank = rank if rank is not None else int(nccl["rank"])
        level = nccl["level"] or level
    return Line(
        number,
        spelled(text),
        spelled(whole),
        author,
        rank,
        stamp,
        level.upper() in _QUIET,
        wide,
        len(raw.rstrip(b"\r\n")),
    )


def spelled(text: str) -> str:
    """Line ends and quotes that a repr or a JSON text spells out, as they are meant."""
    if "\\" not in text:
        return text
    return _SPELLED.sub(lambda found: _SPELLED_AS.get(found[1].lower(), found[1]), text)


def _unpacked(text: str) -> tuple[str, float | None, str] | None:
    """The message inside of a line that is a JSON document, as Docker, Kubernetes and structured loggers write them."""
    if not (text.startswith("{") and text.rstrip().endswith("}")):
        return None
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    said = next((found[key] for key in _KEYS if isinstance(found.get(key), str)), None)
    if said is None:
        return None
    stamp = next((str(found[key]) for key in ("time", "timestamp", "ts", "asctime", "@timestamp") if key in found), "")
    at = _STAMPS[0].match(stamp)
    level = next((str(found[key]) for key in ("level", "levelname", "severity") if key in found), "")
    return _CONTROL.sub("", _ESCAPES.sub("", said)).rstrip("\r\n"), _seconds(at.groupdict()) if at else None, level


def _seconds(said: dict[str, Any]) -> float | None:
    try:
        hour, minute, second = (int(part) for part in said["time"].split(":"))
        if said.get("date"):
            year, month, day = (int(part) for part in re.split("[-/]", said["date"]))
        elif said.get("md"):
            year, month, day = 2000, int(said["md"][:2]), int(said["md"][2:])
        else:
            year, month, day = 2000, _MONTHS.index(said["month"]) + 1, int(said["day"])
        when = datetime.datetime(year, month, day, hour, minute, second, tzinfo=datetime.timezone.utc)
        part = float("0." + said["part"][1:]) if said.get("part") else 0.0
        return when.timestamp() + part - _offset(said.get("zone"))
    except (KeyError, ValueError, AttributeError, OverflowError):
        return None


def _offset(zone: str | None) -> int:
    if not zone or zone == "Z":
        return 0
    digits = zone.strip().replace(":", "")
    return (1 if digits[0] == "+" else -1) * (int(digits[1:3]) * 3600 + int(digits[3:5]) * 60)
