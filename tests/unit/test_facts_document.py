"""Facts files are changed in places: every other byte stays, and a layout that cannot be changed is an error."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuild.errors import InputError
from envbuild.facts.refresh.document import Document

SHIPPED = sorted((Path(__file__).parents[2] / "facts").glob("*.yaml"))


def facts_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict):
        if "mark" in value:
            yield path
        for key, each in value.items():
            yield from facts_in(each, (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from facts_in(each, (*path, number))


def changed(old: str, new: str) -> list[str]:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_fact_can_be_changed_in_its_own_line(file: Path) -> None:
    text = file.read_text()
    paths = list(facts_in(yaml.safe_load(text)))
    assert paths
    # Aliases are written out when one of their places changes; here only the others are looked at.
    shared = {path[: n + 1] for path in paths for n in range(len(path)) if "cu118" in map(str, path[: n + 1])}
    for path in [path for path in paths if path not in shared][::3]:
        document = Document(text, file.name)
        document.set(path, "date", "2031-01-02")
        lines = changed(text, document.text)
        assert len(lines) == 2 and "2031-01-02" in lines[1], (path, lines)
        assert lines[1].replace("2031-01-02", "") == "+" + lines[0][1:].replace(
            lines[0].partition("date: ")[2][:10], ""
        )


BLOCK = """\
# A comment that stays.
versions:
  2.9.1:    # why
    build: {nccl: "2.18", mark: partial, source: 'a, b', date: 2026-01-02, note: old}

  2.11.0: &shared
    nccl: 2.28.9
    mark: unverified
    source: >-
      over
      lines
    note: |
      one
      two
    date: 2026-01-02   # trailing
    more: {sm: ["9.0"], mark: verified, source: x, date: 2026-01-02}
  2.12.1: *shared
entries:
  - {since: 0.9.3, cuda: ["12.0"], mark: verified, source: x, date: 2026-01-02}
# The end, without a newline."""


def test_values_are_replaced_added_and_dropped() -> None:
    document = Document(BLOCK, "x.yaml")
    document.set(("versions", "2.9.1", "build"), "nccl", "2.20")
    document.set(("versions", "2.9.1", "build"), "triton", "3.1", after="nccl")
    document.drop(("versions", "2.9.1", "build"), "note")
    document.set(("entries", 0), "cuda", ("12.0", "12.1"))
    document.set(("versions", "2.9.1", "build"), "py", "3.10")
    assert changed(BLOCK, document.text) == [
        """-    build: {nccl: "2.18", mark: partial, source: 'a, b', date: 2026-01-02, note: old}""",
        """+    build: {nccl: "2.20", triton: "3.1", py: "3.10", mark: partial, source: 'a, b', date: 2026-01-02}""",
        '-  - {since: 0.9.3, cuda: ["12.0"], mark: verified, source: x, date: 2026-01-02}',
        '+  - {since: 0.9.3, cuda: ["12.0", "12.1"], mark: verified, source: x, date: 2026-01-02}',
    ]


def test_what_an_alias_shares_is_written_out_before_one_place_changes() -> None:
    document = Document(BLOCK, "x.yaml")
    document.set(("versions", "2.12.1"), "mark", "verified")
    document.drop(("versions", "2.12.1"), "note")
    document.set(("versions", "2.12.1"), "triton", "3.6.0")
    found = yaml.safe_load(document.text)["versions"]
    before = yaml.safe_load(BLOCK)["versions"]["2.11.0"]
    assert found["2.11.0"] == before
    assert list(found["2.12.1"]) == ["nccl", "triton", "mark", "source", "date", "more"]
    assert found["2.12.1"]["mark"] == "verified" and found["2.12.1"]["more"] == before["more"]
    assert "&shared" not in document.text and "# trailing" in document.text

    first = Document(BLOCK, "x.yaml")
    first.set(("versions", "2.11.0", "more"), "source", "y")
    found = yaml.safe_load(first.text)["versions"]
    assert (found["2.11.0"]["more"]["source"], found["2.12.1"]["more"]["source"]) == ("y", "x")

    other = Document(BLOCK, "x.yaml")
    other.set(("entries", 0), "date", "2026-11-30")
    assert "&shared" in other.text, "a change elsewhere leaves it alone"


def test_new_facts_stand_where_people_look_for_them() -> None:
    document = Document(BLOCK, "x.yaml")
    fact = {"nccl": "2.30", "mark": "verified", "source": "wheel METADATA of torch 2.10.0", "date": "2026-11-30"}
    document.add(("versions", "2.10.0", "builds", "cu128"), fact)
    document.add(
        ("entries", 1), {"since": "0.20.0", "cuda": ("13.0",), "mark": "verified", "source": "a: b #c", "date": "x"}
    )
    found = yaml.safe_load(document.text)
    assert list(found["versions"]) == ["2.9.1", "2.10.0", "2.11.0", "2.12.1"]
    assert found["versions"]["2.10.0"]["builds"]["cu128"]["nccl"] == "2.30"
    assert found["entries"][1]["source"] == "a: b #c"
    assert document.text.endswith("# The end, without a newline.")
    assert not [line for line in changed(BLOCK, document.text) if line.startswith("-")]


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (("nowhere",), "mark"),
        (("versions",), "2.9.1"),
        (("entries", 5), "mark"),
        (("versions", "2.9.1", "build", "nccl"), "x"),
    ],
)
def test_a_place_that_is_no_fact_is_an_error(path: tuple[str | int, ...], key: str) -> None:
    document = Document(BLOCK, "x.yaml")
    with pytest.raises(InputError, match=r"x\.yaml: .*cannot be changed in this layout"):
        document.set(path, key, "1")
    assert document.text == BLOCK


def test_no_yaml_is_an_error() -> None:
    with pytest.raises(InputError, match=r"x\.yaml"):
        Document("a: [", "x.yaml")
