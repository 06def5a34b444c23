"""The report's page in a real Chromium: nothing is fetched or complained about, it fits a narrow window, it prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Page, browser
from envbuild.profile.document import Measurement
from envbuild.report import model, page
from envbuild.report.build import Subject, build
from envbuild.report.history import Given, Matrix, Row
from envbuild.report.judged import Base
from measured import measurement, rank
from pages import cell, expected

TABLES = """
JSON.stringify(Object.fromEntries([...document.querySelectorAll("table")].map(table => [table.id,
  [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => [
    cell.textContent, cell.querySelector("data") ? cell.querySelector("data").value : null]))])))
"""
# A hostile name that would be a script, and one word that no window is wide enough for.
NAME = "<img src=x onerror=console.error(1)>" + "w" * 300


def measured(side: str, slower: float = 1.0) -> Measurement:
    seconds = [0.2 * slower, 0.21 * slower, 0.19 * slower]
    ranks = [
        rank(
            number, seconds,
            steps={"parts": {"forward": [0.1] * 3, "data_wait": [0.05] * 3}, "loss": [6.0, 5.0, 4.0]},
            memory={"host_peak_bytes": 1 << 30},
            collectives=[{"op": "all_reduce", "count": 4, "bytes": 4096, "seconds": 0.1, "time": "measured"}],
        )
        for number in range(12)
    ]  # fmt: skip
    series = [
        {"kind": "cpu_percent", "values": [1.0, 2.0, 3.0]},
        {"kind": "disk_read", "device": NAME, "values": [1, 2, 3]},
    ]
    samples = {"at": [1.0, 2.0, 3.0], "series": series}
    return measurement(
        {"ranks": ranks, "samples": samples, "seed": 1}, side=side, config={"w" * 200: "v" * 400, NAME: {"a": 1}},
        notes=[NAME],
    )  # fmt: skip


@pytest.fixture(scope="module")
def report() -> model.Report:
    row = Row(
        name="cpu", accelerator="cpu", gpus="", cuda=None, torch="2.13.0+cpu", deepspeed="0.19.8", requires="cpu",
        level="cpu", standing="cpu", recorded="cpu, 2026-11-30", image="envbuild/cpu:2.13.0-cpu-0a1b2c3d",
    )  # fmt: skip
    base = Base(name="before.json", measurement=measured("base"))
    given = [
        Given(name=NAME, measurement=measured("candidate", 1.3)),
        Given(name="b.json", measurement=measured("base")),
    ]
    return build([Subject(given=each, base=base) for each in given], matrix=Matrix(rows=(row,)))


@pytest.fixture(scope="module")
def opened(report: model.Report, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, Path]]:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page.html(report), encoding="utf-8")
    with browser() as found:
        found.size(1000)
        found.open(path)
        yield found, path


def test_the_browser_complains_about_nothing_and_fetches_nothing(opened: tuple[Page, Path]) -> None:
    found, path = opened
    assert found.ask("document.querySelectorAll('svg[role=img]').length") >= 12
    assert found.complaints == [] and found.requests == [path.as_uri()]


def test_what_stands_in_the_dom_is_the_json(opened: tuple[Page, Path], report: model.Report) -> None:
    seen = json.loads(opened[0].ask(TABLES))
    told = json.loads(json.dumps(model.as_dict(report), allow_nan=False))
    tables = [table for part in told["parts"] for section in part["sections"] for table in section["tables"]]
    assert list(seen) == [each["id"] for each in tables]
    for table in tables:
        rows = [[cell(*each) for each in row] for row in seen[table["id"]]]
        assert rows == [[expected(value) for value in row] for row in table["rows"]]


@pytest.mark.parametrize("width", [320, 600, 1400])
def test_no_window_is_too_narrow(opened: tuple[Page, Path], width: int) -> None:
    found, _ = opened
    found.size(width)
    found.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert found.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_light_and_dark_are_both_readable(opened: tuple[Page, Path]) -> None:
    found, _ = opened
    contrast: dict[bool, list[float]] = {}
    for dark in (False, True):
        found.dark(dark)
        colours: dict[str, Any] = json.loads(
            found.ask(
                "JSON.stringify({back: getComputedStyle(document.body).backgroundColor, text: "
                "getComputedStyle(document.body).color, drawn: [...document.querySelectorAll('svg text')].map("
                "each => getComputedStyle(each).fill)})"
            )
        )
        back = luminance(colours["back"])
        assert (back < 0.1) is dark
        contrast[dark] = [ratio(back, luminance(each)) for each in {colours["text"], *colours["drawn"]}]
    found.dark(False)
    # WCAG 2.2, 1.4.3: 4.5 to 1.
    assert min(contrast[False]) >= 4.5 and min(contrast[True]) >= 4.5


def test_it_prints_in_black_on_white(opened: tuple[Page, Path]) -> None:
    found, _ = opened
    found.dark(True)
    made = found.pdf()
    found.dark(False)
    assert made.startswith(b"%PDF-") and len(re.findall(rb"/Type\s*/Page\b", made)) >= 4
    printing = [{"name": "prefers-color-scheme", "value": "dark"}]
    found.call("Emulation.setEmulatedMedia", media="print", features=printing)
    assert found.ask("getComputedStyle(document.querySelector('svg text')).fill") in ("rgb(28, 30, 33)", "rgb(0, 0, 0)")
    assert found.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    found.call("Emulation.setEmulatedMedia", media="", features=[])


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG defines it."""
    parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ratio(one: float, other: float) -> float:
    """Contrast of two luminances."""
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)
