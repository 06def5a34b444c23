"""The report: every figure is the measurement's, on the page and in the JSON alike; nothing of a stranger's runs."""

from __future__ import annotations

import builtins
import datetime
import json
import math
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from envbuild.errors import InputError
from envbuild.profile import baselines, summary
from envbuild.profile.document import Measurement
from envbuild.report import absent, axis, charts, model, page, series, svg, words
from envbuild.report.build import Subject, build
from envbuild.report.history import Given, Matrix, Row
from envbuild.report.judged import Base
from envbuild.report.model import Report
from measured import launch, measurement, rank
from pages import Document, expected

HOSTILE = """</title><script>alert(1)</script>"'&<img src=x onerror=alert(1)> {{ 7*7 }} $\\alpha$ %s"""


def full(ranks: int = 2, side: str = "candidate", **more: Any) -> Measurement:
    """A measurement with something of everything that a CPU gives."""
    seconds = [0.5, 0.2, 0.21, 0.19, 0.2]
    parts = {"forward": [0.1] * 5, "backward": [0.05] * 5, "data_wait": [0.01] * 5}
    rows = [
        rank(
            number,
            [each + number / 100 for each in seconds],
            steps={"parts": parts, "loss": [6.0, 5.5, "nan", 5.0, 4.9], "gradient_norm": [1.0, 0.9, 0.8, 0.7, 0.6]},
            memory={"host_peak_bytes": 1 << 30},
            collectives=[
                {"op": "all_reduce", "count": 4, "bytes": 4096, "message_bytes": 1024, "group_size": 2,
                 "seconds": 0.25, "time": "corrected", "bus_bandwidth": 1e6, "bandwidth": "computed"},
                {"op": "barrier", "count": 2},
            ],
        )
        for number in range(ranks)
    ]  # fmt: skip
    samples = {
        "at": [0.5, 1.0, 1.5],
        "series": [
            {"kind": "cpu_percent", "values": [50.0, 60.5, None]},
            {"kind": "host_memory_bytes", "values": [1e9, 2e9, 3e9]},
            {"kind": "disk_read", "values": [None, None, None], "device": "vda"},
        ],
    }
    unavailable = [
        {"figure": "gpu_percent", "reason": "there is no GPU"},
        {"figure": "pcie_receive", "reason": "there is no GPU"},
        {"figure": "collectives.seconds", "reason": "timing them takes the overlap away"},
    ]
    one = {"ranks": rows, "warmup": 1, "seed": 7, "samples": samples, "unavailable": unavailable}
    return measurement(one, side=side, **{"config": {"zero_optimization": {"stage": 3}}, **more})


def reported(measured: Measurement, base: Measurement | None = None, name: str = "m.json", **more: Any) -> Report:
    against = Base(name="base", measurement=base) if base is not None else None
    return build([Subject(given=Given(name=name, measurement=measured), base=against)], **more)


def tables(report: Report) -> dict[str, model.Table]:
    return {table.id: table for part in report.parts for section in part.sections for table in section.tables}


def missing(report: Report) -> dict[str, str]:
    return {
        name: each.reason
        for part in report.parts
        for section in part.sections
        for each in section.missing
        for name in each.figure.split(", ")
    }


CASES: dict[str, Callable[[], Report]] = {
    "everything": lambda: reported(full(), full(side="base")),
    "one rank": lambda: reported(full(ranks=1)),
    "many ranks": lambda: reported(full(ranks=60)),
    "no steps": lambda: reported(measurement({"ranks": []})),
    "no parts": lambda: reported(measurement(launch([1.0, 1.1]))),
    "a step of no time": lambda: reported(measurement(launch([0.0]))),
    "nothing but a log's losses": lambda: reported(
        measurement({"ranks": [{"rank": 0, "steps": {"number": [10, 20], "loss": [2.5, 2.25]}}]})
    ),
    "the largest there is": lambda: reported(
        measurement(
            {
                "ranks": [
                    {
                        "rank": 2**63 - 1,
                        "steps": {"number": [2**63 - 1], "seconds": [1e12], "loss": [1e300]},
                        "memory": {"host_peak_bytes": 2**63 - 1, "gpu_peak_bytes": 0},
                        "collectives": [{"op": "all_reduce", "count": 2**63 - 1, "bytes": 2**63 - 1}] * 3,
                    },
                ],
                "samples": {"at": [-1e30, 1e30], "series": [{"kind": "disk_read", "values": [1e30, -1e30]}]},
            }
        )
    ),
    "samples out of order": lambda: reported(
        measurement({"samples": {"at": [3.0, -1.0], "series": [{"kind": "cpu_percent", "values": [1.0, 2.0]}]}})
    ),
    "two": lambda: build(
        [Subject(given=Given(name=name, measurement=full(side=name))) for name in ("base", "candidate")],
        matrix=Matrix(problem="the matrix is broken"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_page_holds_exactly_what_the_json_holds(case: str) -> None:
    report = CASES[case]()
    document = Document(page.html(report))
    told = json.loads(json.dumps(model.as_dict(report), allow_nan=False))
    found = [table for part in told["parts"] for section in part["sections"] for table in section["tables"]]
    assert [each["id"] for each in found] == list(document.tables)
    for table in found:
        assert document.rows(table["id"]) == [[expected(value) for value in row] for row in table["rows"]]
    assert len(document.ids) == len(set(document.ids)), "an id is there twice"
    said = "".join(document.text)
    for part in told["parts"]:
        for section in part["sections"]:
            for each in section["unavailable"]:
                assert each["figure"] in said and each["reason"] in said
            for each in section["findings"]:
                assert each["title"] in said and all(command in said for command in each["commands"])
            assert (section["verdict"] or "") in said


def test_the_figures_are_those_of_the_measurement() -> None:
    measured = full()
    found = tables(reported(measured))
    assert found["m1-figures"].rows[0][0] == summary.step_median(measured) == pytest.approx(0.21)
    assert [row[:3] for row in found["m1-parts"].rows] == [
        (each.name.replace("_", " "), each.seconds, each.share) for each in summary.shares(measured)
    ]
    by_rank = {
        row[0]: dict(zip(("step", *found["m1-ranks"].columns), row, strict=False)) for row in found["m1-ranks"].rows
    }
    assert set(by_rank) == {0, 1}
    names = [each.name for each in found["m1-ranks"].columns]
    for row in found["m1-ranks"].rows:
        figures = dict(zip(names, row, strict=True))
        # Without the warm-up's first step, which took 0.5 s.
        assert figures["step"] == pytest.approx(0.2 + figures["rank"] / 100)
        parts = [figures[each] for each in ("data wait", "forward", "backward", "other")]
        assert math.fsum(parts) == pytest.approx(figures["step"])
    sums = {row[1]: row for row in found["m1-collectives"].rows}
    assert sums["all_reduce"][2:6] == (8, 8192, 0.5, "corrected") and sums["all_reduce"][7] == "computed"
    assert sums["barrier"][2:5] == (4, None, None)
    assert found["m1-axis-cpu"].rows == ((0.5, 50.0), (1.0, 60.5), (1.5, None))
    assert [row[2] for row in found["m1-loss"].rows[:2]] == [6.0, 5.5] and math.isnan(found["m1-loss"].rows[2][1])  # type: ignore[arg-type]


def test_the_disk_of_an_offload_has_a_table_of_what_was_asked_for_and_what_passed() -> None:
    swapped = {"inside": {"swap": [9.0, 0.5]}, "disk": {"swap_read": [1, 4096], "swap_write": [1, 2048]}}
    shown = reported(measurement({"ranks": [rank(0, [9.0, 1.0], steps=swapped)], "warmup": 1}))
    # The warm-up does not count, and what the kernel saw was not measured.
    assert tables(shown)["m1-swapped"].rows == ((0, 4096.0, 2048.0, None, None),)
    assert ("swap", 0.5, 0.5) in tables(shown)["m1-inside"].rows
    assert "m1-swapped" not in tables(reported(full()))


def test_what_was_not_measured_is_said_with_its_reason_and_never_drawn() -> None:
    report = reported(full())
    said = missing(report)
    assert said["GPU use"] == said["PCIe receive"] == "there is no GPU"
    assert (
        said["disk read"]
        == said["disk write"]
        == said["checkpoint"]
        == "not in the measurement, which does not say why"
    )
    found = tables(report)
    assert "m1-axis-gpu" not in found and "m1-axis-disk" not in found, "a series without a value is no series"
    assert not [
        row
        for table in found.values()
        for row in table.rows
        for value in row
        if isinstance(value, float) and value == 0
    ]
    gap = found["m1-axis-cpu"]
    drawn = charts.draw(gap, gap.charts[0], "x")
    path = re.findall(r'<path d="(M[^"]*)" clip-path', drawn)[-1]
    assert path.count("M") + path.count("L") == 2, "two values, and no third one on the ground"
    bars = found["m1-collectives"]
    assert len(bars.rows) == 2 and len(bars.drawn(bars.charts[0])) == 1, "what has no time has no bar"


def test_equal_inputs_are_equal_bytes() -> None:
    first, second = (page.html(CASES["everything"]()) for _ in range(2))
    assert first == second


def test_a_users_own_style_changes_nothing() -> None:
    import matplotlib

    table = tables(reported(full()))["m1-ranks"]
    before = charts.draw(table, table.charts[0], "x")
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.linewidth": 9.0}):
        assert charts.draw(table, table.charts[0], "x") == before
        assert matplotlib.rcParams["font.size"] == 30, "and theirs is what it was"


def test_no_word_of_a_measurement_becomes_markup() -> None:
    evil = measurement(
        {
            "ranks": [rank(0, [1.0], collectives=[{"op": "all_reduce", "count": 1}], operators=[
                {"name": HOSTILE, "count": 1, "seconds": 1.0}], device=HOSTILE)],
            "samples": {"at": [1.0], "series": [{"kind": "disk_read", "values": [1.0], "device": HOSTILE}]},
            "unavailable": [{"figure": "gpu_percent", "reason": HOSTILE}],
            "structure": {"devices": {"optimizer": HOSTILE}},
        },
        config={HOSTILE: {HOSTILE: f"{HOSTILE}\x1b[31m\u202e"}}, notes=[HOSTILE],
    )  # fmt: skip
    base = baselines.promoted(
        None, evil, reason=HOSTILE, now=datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    )
    made = page.html(reported(evil, full(side="base"), name=HOSTILE, known=[base], matrix=Matrix(problem=HOSTILE)))
    document = Document(made)
    assert not {"script", "img", "iframe", "object", "link", "form"} & {tag for tag, _ in document.tags}
    handlers = [name for _, about in document.tags for name in about if name.startswith("on")]
    assert not handlers and "49" not in re.findall(r"\{\{ 7\*7 \}\} (\d+)", made)
    assert made.count("&lt;script&gt;") > 8 and "\x1b" not in made and "\u202e" not in made


def test_nothing_is_fetched_and_every_colour_is_the_pages() -> None:
    made = page.html(CASES["everything"]())
    document = Document(made)
    addresses = [about.get(name) or "" for _, about in document.tags for name in ("href", "src", "xlink:href")]
    assert all(each == "" or each.startswith("#") for each in addresses)
    assert not re.search(r"https?://|@import|url\((?!#)", made), "not even a namespace"
    drawings = "".join(re.findall(r'<svg role="img".*?</svg>', made) or re.findall(r"<svg .*?</svg>", made, re.S))
    assert drawings and not re.search(r"#[0-9a-f]{6}\b", drawings)
    used = set(re.findall(r"var\((--[a-z0-9_-]+)\)", made))
    light, dark = re.findall(r":root \{(.*?)\}", made, re.S)[:2]
    assert used <= set(re.findall(r"(--[a-z0-9_-]+):", light)) and used <= set(re.findall(r"(--[a-z0-9_-]+):", dark))
    references = set(re.findall(r"url\(#([^)]+)\)", made)) | {each[1:] for each in addresses if each}
    assert references <= set(document.ids), "what is referred to is there"


def test_every_drawing_has_a_title_a_description_and_a_table() -> None:
    document = Document(page.html(CASES["everything"]()))
    assert len(document.drawings) >= 6
    for each in document.drawings:
        title, description = str(each["aria-labelledby"]).split()
        assert {title, description} <= set(document.ids)
        assert title.rpartition("-chart-")[0] in document.tables


def test_many_ranks_are_a_few_lines_and_the_slowest_bars() -> None:
    found = tables(reported(full(ranks=60)))
    steps = found["m1-over-time"]
    assert [each.name for each in steps.columns[1:]] == [
        f"{name} of 60 ranks" for name in ("lowest", "median", "highest")
    ]
    assert steps.rows[1][1:] == pytest.approx((0.2, 0.495, 0.79))
    bars = found["m1-ranks"]
    assert len(bars.rows) == 60 and len(bars.drawn(bars.charts[0])) == 48
    assert [row[0] for row in bars.rows[:2]] == [59, 58] and "48 slowest" in bars.notes[0]
    many = full(ranks=60).model_dump(by_alias=True)
    many["launches"][0]["ranks"][57]["memory"] = {"host_peak_bytes": 1 << 31}
    peaks = tables(reported(Measurement.model_validate(many)))["m1-peaks"]
    assert peaks.rows[0] == (57, 1 << 31) and "48 with the highest peaks" in peaks.notes[0]


def test_a_long_series_is_thinned_by_means_and_says_so() -> None:
    values = [float(each) for each in range(1000)]
    at, columns = series.thinned(values, {"a": [*values[:998], None, None], "b": [None] * 1000})
    assert len(at) <= series.MOST and at[1] == 5 and columns["a"][0] == 2.0 and columns["a"][-1] == 996.0
    assert set(columns["b"]) == {None}
    samples = {"at": values, "series": [{"kind": "cpu_percent", "values": values}]}
    again = measurement(launch([1.0]) | {"samples": samples})
    found = tables(reported(again))
    assert "1,000 values were put together to 200" in found["m1-axis-cpu"].notes[0]
    assert found["m1-sampled"].rows[0][1:5] == (0.0, pytest.approx(499.5), 999.0, 1000), (
        "the extremes are of all samples"
    )


def test_every_panel_is_on_the_same_seconds() -> None:
    made = full().model_dump(by_alias=True)
    for each in made["launches"][0]["ranks"]:
        each["steps"]["at"] = [0.1, 0.6, 0.8, None, 1.2]
    found = tables(reported(Measurement.model_validate(made)))
    panels = [table for name, table in found.items() if "-axis-" in name]
    assert [each.id for each in panels] == ["m1-axis-steps", "m1-axis-cpu", "m1-axis-memory"]
    assert {chart.bounds for table in panels for chart in table.charts} == {(0.0, 1.5)}
    # Step 3 has no place on the axis; the others have theirs, each beside the time that it took.
    assert [row[:2] for row in panels[0].rows] == [(0.1, 0.5), (0.6, 0.2), (0.8, 0.21), (1.2, 0.2)]
    frames = {re.search(r'd="(M [^"]*)"', charts.draw(each, each.charts[0], "x"))[1] for each in panels}  # type: ignore[index]
    assert len(frames) == 1, "and the same place on the page"


def test_every_kind_of_sample_has_its_place() -> None:
    placed = [kind for panel in axis.PANELS for kind in panel.kinds]
    assert sorted(placed) == sorted(axis.KINDS)


def test_the_history_is_one_line_for_each_key() -> None:
    first, second = full(side="base"), full()
    other = full(side="base", key={**full().model_dump(by_alias=True)["key"], "model": "7b"})
    day = datetime.datetime(2026, 3, 1, tzinfo=datetime.timezone.utc)
    known = baselines.promoted(None, first, reason="first", now=day)
    known = baselines.promoted(known, second, reason="torch 2.13", now=day + datetime.timedelta(days=30))
    given = [Subject(given=Given(name=name, measurement=each)) for name, each in (("again", second), ("large", other))]
    found = tables(build(given, known=[known]))
    assert [row[1:4] for row in found["history-1"].rows] == [
        ("promoted", "2026-03-01", "sha256:aaaaaaaaaaaa"), ("promoted", "2026-03-31", "sha256:bbbbbbbbbbbb")
    ]  # fmt: skip
    assert found["history-1"].rows[1][5] == pytest.approx(0.0) and found["history-1"].charts
    assert [row[1] for row in found["history-2"].rows] == ["measured"] and not found["history-2"].charts


def test_the_matrix_tells_levels_and_the_comparison_its_verdict() -> None:
    row = Row(
        name="h200", accelerator="cuda", gpus="h200", cuda="13.0", torch="2.13.0+cu130", deepspeed="0.19.8",
        requires="gpu", level="derived", standing="never built", recorded=None, image=None,
    )  # fmt: skip
    slow = full(side="base")
    report = reported(full(), slow, matrix=Matrix(rows=(row,)))
    assert tables(report)["matrix-rows"].rows[0][6] == "derived"
    verdicts = [section.verdict for part in report.parts for section in part.sections if section.verdict]
    assert verdicts == ["inconclusive"]
    other = full(side="base", config={"zero_optimization": {"stage": 2}})
    assert tables(reported(full(), other))["m1-config-changes"].rows == (("zero_optimization.stage", "2", "3"),)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "seconds", "–"), (0.0, "seconds", "0 s"), (0.25, "seconds", "250 ms"), (float("nan"), "number", "NaN"),
        (0, "bytes", "0 B"), (1 << 31, "bytes", "2.0 GiB"), (-0.05, "share", "-5.0 %"), (1.5e9, "hertz", "1.5 GHz"),
        (1234567, "count", "1,234,567"), (float("-inf"), "number", "-infinity"),
        ("a\x07b", "", "a\N{REPLACEMENT CHARACTER}b"),
    ],
)  # fmt: skip
def test_figures_in_words(value: Any, unit: Any, text: str) -> None:
    assert words.figure(value, unit) == text


def test_a_drawing_with_a_colour_of_its_own_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="colour of its own"):
        svg.inline('<svg xmlns="http://www.w3.org/2000/svg" style="fill: #123456"/>', "x", title="", description="")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    report = reported(full())
    with pytest.raises(InputError) as caught:
        page.html(report)
    assert "pipx inject envbuild matplotlib" in str(caught.value.hint)
    assert model.as_dict(report)["parts"], "the JSON needs no charts"


def test_the_reason_of_a_missing_figure_is_the_first_launch_s_and_not_one_rank_s() -> None:
    told = [[("gpu_percent", "of rank 1", 1), ("gpu_percent", "the first", None)], [("gpu_percent", "the last", None)]]
    launches = [
        launch([0.1], unavailable=[{"figure": figure, "reason": why, "rank": of} for figure, why, of in each])
        for each in told
    ]
    found = measurement(*launches).launches
    assert absent.reason(found, "gpu_percent") == "the first" and absent.reason(found, "swap") == absent.UNSAID
    assert absent.reason(measurement(launches[1]).launches, "gpu_percent") == "the last"
