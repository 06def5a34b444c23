"""report as a user types it: a whole file or none, a page in a pipe, JSON, a summary; and what is wrong is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild import store
from envbuild.profile import files
from measured import launch, measurement
from pages import Document, expected


@pytest.fixture
def place(project: Path) -> Path:
    for name, seconds, side in (("before.json", 1.0, "base"), ("after.json", 1.2, "candidate")):
        store.write_json(project / name, files.document(measurement(launch([seconds] * 5), side=side)))
    return project


def test_the_page_is_written_and_printed_the_same(cli: Any, place: Path) -> None:
    done = cli("report", "after.json", "--baseline", "before.json", "-o", "r.html", "--json", cwd=place)
    assert done.code == 0 and done.json["schema"] == "envbuild.report/1" and "wrote r.html" in done.err
    page = (place / "r.html").read_text(encoding="utf-8")
    document = Document(page)
    parts = done.json["report"]["parts"]
    found = {table["id"]: table for part in parts for section in part["sections"] for table in section["tables"]}
    assert {"m1-medians", "matrix-rows", "history-1"} <= set(found)
    for name, table in found.items():
        assert document.rows(name) == [[expected(value) for value in row] for row in table["rows"]]
    assert [row[0] for row in found["matrix-rows"]["rows"]].count("cpu") == 1
    again = cli("report", "after.json", "--baseline", "before.json", "-o", "-", cwd=place)
    assert again.code == 0 and again.out == page, "the same input is the same bytes, wherever they go"
    assert not list(place.glob(".r.html*")), "nothing is left beside it"


def test_without_a_file_there_is_a_summary(cli: Any, place: Path) -> None:
    done = cli("report", "after.json", "-b", "before.json", cwd=place)
    assert done.code == 0 and done.out.startswith("after.json (cpu, tiny, 2 ranks, cpu)\n")
    assert "median step" in done.out and "1.20 s" in done.out and "against the baseline: inconclusive" in done.out
    assert "not available: " in done.out and "-o report.html" in done.err
    assert cli("report", "after.json", "-b", "before.json", "--text", "-o", "r.html", cwd=place).out == done.out


def test_baselines_are_reported_where_no_measurement_is_named(cli: Any, place: Path) -> None:
    nothing = cli("report", "--json", cwd=place)
    assert nothing.code == 2 and "envbuild profile IMAGE -o M.json" in json.loads(nothing.out)["hint"]
    assert cli("baseline", "add", "before.json", "--reason", "the first", cwd=place).code == 0
    assert cli("baseline", "promote", "after.json", "--reason", "slower by choice", cwd=place).code == 0
    done = cli("report", "--row", "cpu", "--json", cwd=place)
    parts = done.json["report"]["parts"]
    history = parts[-1]["sections"][0]["tables"][0]
    assert [row[-1] for row in history["rows"]] == ["the first", "slower by choice"]
    assert [row[0] for row in parts[-1]["sections"][1]["tables"][0]["rows"]] == ["cpu"]
    # The baseline of its own key is what a measurement is compared with.
    own = cli("report", "before.json", cwd=place)
    assert "against the baseline: inconclusive" in own.out
    assert cli("report", "--row", "nowhere", cwd=place).code == 2


def test_what_is_wrong_is_said(cli: Any, place: Path) -> None:
    (place / "bad.json").write_text('{"schema": "envbuild.profile/1", "measurement": {}}')
    bad = cli("report", "bad.json", "-o", "r.html", cwd=place)
    assert bad.code == 2 and "bad.json: not a measurement of envbuild's" in bad.err and not (place / "r.html").exists()
    assert cli("report", "after.json", "-o", "-", "--json", cwd=place).code == 2
    assert cli("report", "after.json", "--delta", "much", cwd=place).code == 2
    nowhere = cli("report", "after.json", "-o", "after.json/r.html", cwd=place)
    assert nowhere.code == 2 and nowhere.err.startswith("error: -o after.json/r.html: there is no folder after.json")
    mistyped = cli("report", "after.json", "-o", "repots/r.html", cwd=place)
    assert mistyped.code == 2 and "hint: mkdir -p repots" in mistyped.err and not (place / "repots").exists()
    broken = place / "matrix.yaml"
    broken.write_text("environments: [")
    still = cli("report", "after.json", cwd=place)
    assert still.code == 0 and "1.20 s" in still.out, "a measurement can be read beside a broken matrix"


def test_files_of_one_name_are_told_apart_by_the_shortest_end_of_their_paths(cli: Any, place: Path) -> None:
    for folder, name in (("rep/a/x", "before.json"), ("rep/b/x", "after.json")):
        (place / folder).mkdir(parents=True)
        (place / name).rename(place / folder / "m.json")
    store.write_json(place / "other.json", files.document(measurement(launch([1.0] * 5))))
    done = cli("report", "rep/a/x/m.json", str(place / "rep/b/x/m.json"), "other.json", "--json", cwd=place)
    parts = done.json["report"]["parts"]
    assert [part["title"] for part in parts[:3]] == ["a/x/m.json", "b/x/m.json", "other.json"]
    (table,) = (each for each in parts[-1]["sections"][0]["tables"] if each["id"] == "history-1")
    assert {"a/x/m.json", "b/x/m.json"} <= {str(cell) for row in table["rows"] for cell in row}
    based = cli("report", "rep/b/x/m.json", "-b", "rep/a/x/m.json", "--json", cwd=place).json["report"]
    assert based["title"] == "b/x/m.json" and "a/x/m.json" in json.dumps(based)
