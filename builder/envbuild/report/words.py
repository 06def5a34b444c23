"""Figures as people read them, and strangers' text as a page and a terminal can show it."""

from __future__ import annotations

import math

from envbuild.profile import view
from envbuild.report.model import Unit, Value

# Stands for what was not measured.
NONE = "–"
_RATES = (("GHz", 1e9), ("MHz", 1e6), ("kHz", 1e3))


def figure(value: Value, unit: Unit) -> str:
    """A cell's text: three digits and a unit; a dash where there is nothing, never 0."""
    if value is None:
        return NONE
    if isinstance(value, str):
        return line(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+infinity" if value > 0 else "-infinity"
    return _number(value, unit)


def _number(value: int | float, unit: Unit) -> str:
    if unit in ("", "count"):
        return f"{value:,}"
    if unit == "number":
        return f"{value:.5g}"
    if unit == "percent":
        return f"{value:.1f} %"
    if unit == "share":
        return f"{value * 100:.1f} %"
    if value == 0:
        return {"seconds": "0 s", "bytes": "0 B", "rate": "0 B/s", "hertz": "0 Hz", "watts": "0 W"}.get(unit, "0 °C")
    return _measure(value, unit)


def _measure(value: float, unit: Unit) -> str:
    if unit == "hertz":
        name, factor = next((each for each in _RATES if abs(value) >= each[1]), ("Hz", 1))
        return f"{value / factor:.3g} {name}"
    if unit in ("watts", "celsius"):
        return f"{value:.0f} {'W' if unit == 'watts' else '°C'}"
    sign = "-" if value < 0 else ""
    spell = {"seconds": view.seconds, "bytes": view.size, "rate": view.rate}[unit]
    return sign + spell(abs(value))


def line(text: object, most: int = 500) -> str:
    """One line without anything that moves a cursor, turns the reading direction or cannot be encoded."""
    said = str(text)
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in said[:most])
    return shown if len(said) <= most else f"{shown} ..."


def digest(value: str) -> str:
    """The start of a long digest."""
    head = value.removeprefix("sha256:")
    whole = len(head) == 64 and not set(head) - set("0123456789abcdef")
    return f"{value[: len(value) - 64 + 12]}" if whole else value
