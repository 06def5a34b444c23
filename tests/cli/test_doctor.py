"""doctor as a user types it, from facts that were saved: its answers, its files, its exit codes, and bad input."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.doctor.checks import CHECKS
from envbuild.pipeline.examine import collection_text
from machines import CPU_ADAM, gpu_machine, machine, op_file

SAYS = "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.33' not found"
BROKEN = {"files": {CPU_ADAM: op_file(glibcxx="GLIBCXX_3.4.33")}, "deepspeed": {"ok": False, "error": SAYS}}
LATER = "2026-12-01T10:00:00Z"


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, str]:
    """Facts in files: a healthy machine, and the same one a day later with an op of a newer compiler."""
    paths = {}
    for name, collection in (("good", gpu_machine()), ("bad", gpu_machine(taken=LATER, **BROKEN)), ("cpu", machine())):
        path = tmp_path / f"{name}.json"
        path.write_text(collection_text(collection))
        paths[name] = str(path)
    return paths


def test_a_healthy_machine_ends_with_no_error(cli: Any, saved: dict[str, str]) -> None:
    for name in ("good", "cpu"):
        done = cli("doctor", "--from", saved[name], "--json")
        assert done.code == 0, done.out
        assert done.json["schema"] == "envbuild.doctor/1"
        assert [each for each in done.json["findings"] if each["severity"] != "info"] == []
    text = cli("doctor", "--from", saved["good"])
    assert text.code == 0 and f"{len(CHECKS)} checks: no error" in text.out and "[look] done" in text.err


def test_an_error_is_exit_code_1_and_the_root_comes_first_with_its_echo_behind_it(
    cli: Any, saved: dict[str, str]
) -> None:
    done = cli("doctor", "--from", saved["bad"], "--json")
    assert done.code == 1
    first, echo, *_ = done.json["findings"]
    assert first["rule"].startswith("libstdcxx") and first["severity"] == "error" and "explained_by" not in first
    assert echo["rule"].startswith("imports") and echo["explained_by"] == first["rule"]
    assert "GLIBCXX_3.4.33" in json.dumps(first) and first["fix"] and first["source"] and first["evidence"]
    text = cli("doctor", "--from", saved["bad"], "-q")
    assert text.code == 1 and text.out.startswith("1. error") and "Begin with number 1" in text.out
    assert text.err == ""


def test_files_are_written_and_say_the_same(cli: Any, saved: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    page, ticket, again = (tmp_path / "out" / name for name in ("page.html", "ticket.md", "facts.json"))
    done = cli(
        "doctor", "--from", saved["bad"], "--html", str(page), "--report", str(ticket), "--save", str(again), "--json"
    )  # fmt: skip
    assert done.code == 1
    root = done.json["findings"][0]
    for path in (page, ticket):
        text = path.read_text()
        assert root["rule"] in text and "GLIBCXX_3.4.33" in text and f"wrote {path}" in done.err
    assert cli("doctor", "--from", str(again), "--json").json == done.json
    assert {each.name for each in page.parent.iterdir()} == {"page.html", "ticket.md", "facts.json"}, "nothing beside"


def test_since_says_what_changed_and_which_findings_are_new(cli: Any, saved: dict[str, str]) -> None:
    done = cli("doctor", "--from", saved["bad"], "--since", saved["good"], "--json")
    assert done.code == 1
    assert [each["kind"] for each in done.json["changes"]][-1] == "import"
    assert all(each["new"] for each in done.json["findings"] if each["severity"] == "error")
    text = cli("doctor", "--from", saved["bad"], "--since", saved["good"])
    assert text.out.index("Since the snapshot of") < text.out.index("1. new error")
    other = cli("doctor", "--from", saved["bad"], "--since", saved["cpu"])
    assert "take care: another CPU" in other.out or "take care: another" in other.out
    fine = cli("doctor", "--from", saved["good"], "--since", saved["bad"])
    assert fine.code == 0 and "no longer: " in fine.out and "the snapshot is the newer one" in fine.out


def test_a_machine_can_be_held_to_a_row_or_to_versions(cli: Any, saved: dict[str, str]) -> None:
    row = cli("doctor", "--from", saved["good"], "--row", "a100-cu118", "--json")
    assert row.json["held"] == "the row a100-cu118" and any(
        each["rule"] == "row.torch" for each in row.json["findings"]
    )
    said = cli("doctor", "--from", saved["good"], "--torch", "2.11.0", "--gpu", "h200", "--json")
    assert said.code == 0 and said.json["held"] == "torch 2.11.0, gpu h200"
    much = cli("doctor", "--from", saved["good"], "--params", "700b", "--only", "memory")
    assert much.code == 1 and "1 check: 1 error" in much.out


def test_facts_come_from_a_pipe_and_compressed(cli: Any, saved: dict[str, str], tmp_path: Path) -> None:
    packed = tmp_path / "facts.json.gz"
    packed.write_bytes(gzip.compress(Path(saved["bad"]).read_bytes()))
    with Path(saved["bad"]).open("rb") as stream:
        piped = cli("doctor", "--from", "-", "--json", stdin=stream)
    assert piped.json == cli("doctor", "--from", str(packed), "--json").json


def test_checks_can_be_listed_and_chosen(cli: Any, saved: dict[str, str]) -> None:
    listed = cli("doctor", "--list")
    assert listed.code == 0 and all(check.name in listed.out for check in CHECKS)
    assert [each["name"] for each in cli("doctor", "--list", "--json").json["checks"]] == [each.name for each in CHECKS]
    some = cli("doctor", "--from", saved["bad"], "--only", "shm", "--only", "numa")
    assert some.code == 0 and "2 checks: " in some.out


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_nothing_is_wider_than_the_terminal(columns: int, cli: Any, saved: dict[str, str]) -> None:
    done = cli("doctor", "--from", saved["bad"], "-v", "--since", saved["good"], COLUMNS=str(columns))
    assert [each for each in done.out.splitlines() if len(each) > columns and "$ " not in each] == []


def test_an_ascii_terminal_gets_ascii(cli: Any, saved: dict[str, str]) -> None:
    done = cli("doctor", "--from", saved["bad"], "-v", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert done.code == 1 and done.out.isascii()


WRONG = (
    (("--from", "nowhere.json"), "nowhere.json"),
    (("--from", "{facts}", "--image", "x"), "--image collects"),
    (("--from", "{facts}", "--python", "x"), "--python collects"),
    (("--from", "{facts}", "--nvme", "/tmp"), "--from does not"),
    (("--from", "{facts}", "--only", "shn"), "Did you mean 'shm'"),
    (("--from", "{facts}", "--params", "many"), "no number of parameters"),
    (("--from", "{facts}", "--params", "0"), "no number of parameters"),
    (("--from", "{facts}", "--row", "a100"), "a100"),
    (("--from", "{facts}", "--torch", "99"), "99"),
    (("--from", "{facts}", "--since", "nowhere.json"), "nowhere.json"),
    (("--from", "-", "--since", "-"), "standard input"),
    (("--host", "unix:///x"), "--image"),
    (("--python", "/nowhere/python"), "/nowhere/python"),
)


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_what_cannot_be_used_is_exit_code_2_with_the_place(
    arguments: tuple[str, ...], words: str, cli: Any, saved: dict[str, str]
) -> None:
    done = cli("doctor", *(each.format(facts=saved["good"]) for each in arguments))
    assert done.code == 2 and words in done.err and done.out == "", done.err


def test_an_error_is_a_document_too(cli: Any) -> None:
    told = cli("doctor", "--only", "shn", "--json")
    assert told.code == 2 and told.json["schema"] == "envbuild.error/1" and "shm" in told.json["hint"]


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff\xfe", b'{"schema": "envbuild.collection/1"', b'{"schema": "envbuild.collection/99"}']
)
def test_any_bytes_are_input(content: bytes, cli: Any, saved: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(content)
    arguments = ("--from", str(path)) if content else ("--from", saved["good"], "--since", str(path))
    done = cli("doctor", *arguments)
    assert done.code == 2 and "error: " in done.err and str(path) in done.err and done.out == ""


def test_facts_with_nothing_in_them_are_facts(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text(json.dumps({"schema": "envbuild.collection/1", "taken": ""}))
    done = cli("doctor", "--from", str(path), "--html", str(tmp_path / "a.html"))
    assert done.code in (0, 1) and "machine    unknown" in done.out


def test_no_engine_and_no_room_are_exit_code_3(cli: Any, saved: dict[str, str], tmp_path: Path) -> None:
    done = cli("doctor", "--image", "team/train:1")
    assert done.code == 3 and "hint: " in done.err
    (tmp_path / "file").write_text("")
    nowhere = cli("doctor", "--from", saved["good"], "--html", str(tmp_path / "file" / "x"))
    assert nowhere.code == 2 and "there is no folder" in nowhere.err
    full = cli("doctor", "--from", saved["good"], "--html", "/proc/x")
    assert full.code == 3 and "/proc/x" in full.err


def test_the_collector_is_written_for_another_machine(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "doctor.pyz"
    done = cli("doctor", "--collector", str(path))
    assert done.code == 0 and path.read_bytes()[:2] == b"#!" and path.stat().st_mode & 0o111
    assert "python3 doctor.pyz > facts.json" in done.err


def test_stdout_is_one_document_and_nothing_else(cli: Any, saved: dict[str, str]) -> None:
    done = cli("doctor", "--from", saved["bad"], "--json", "-v")
    assert json.load(io.StringIO(done.out))["findings"]
