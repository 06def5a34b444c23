"""`envbuild lint` as a user types it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

WRONG = """{
    "train_batch_size": 8,
    "zero_optimization": {
        "stage": 3,
\t"aio": {"block_size": 1048576}
    },
    "zero_optimisation": {}
}
"""
OWN = ("--rule", "json", "--rule", "schema")


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "ds config.json"
    path.write_text(WRONG, encoding="utf-8")
    return path


def test_findings_are_shown_like_a_compilers(cli: Any, wrong: Path) -> None:
    done = cli("lint", str(wrong), *OWN)
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[0].startswith(
        f"{wrong}:5:2: error [schema.place] zero_optimization.aio: 'aio' belongs to the top level"
    )
    assert lines[1] == '  5 | \t"aio": {"block_size": 1048576}'
    assert lines[2] == "    | \t^~~~~"
    assert any(line.startswith("    fix: Did you mean zero_optimization?") for line in lines)
    assert any(line.startswith("    source: DeepSpeed 0.19.8") for line in lines)
    assert "assumed: DeepSpeed 0.19.8, the newest" in done.err
    assert "1 file(s), 2 error(s)" in done.err


def test_json_says_what_text_says(cli: Any, wrong: Path) -> None:
    done = cli("lint", str(wrong), "--deepspeed", "0.14.2", "--json", *OWN)
    assert done.code == 1
    said = done.json
    assert said["schema"] == "envbuild.lint/1"
    assert {finding["rule"] for finding in said["findings"]} == {"schema.place", "schema.unknown"}
    for finding in said["findings"]:
        assert {"rule", "severity", "subject", "message", "fix", "source", "file", "line", "column"} <= finding.keys()
    (file,) = said["files"]
    assert (file["deepspeed"], file["schema_of"], file["with"]) == ("0.14.2", "0.14.0", "deepspeed")
    assert any("0.14.0" in assumption for assumption in file["assumed"])


def test_the_row_says_which_deepspeed_counts(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 8, "zero_optimization": {"offload_optimizer": {"ratio": 1.0}}}')
    assert cli("lint", str(path), "--row", "a100-cu117", *OWN).code == 0
    done = cli("lint", str(path), "--row", "v100-cu113", "--json", *OWN)
    assert done.code == 1
    assert done.json["files"][0]["deepspeed"] == "0.8.3"
    assert cli("lint", str(path), "--row", "v100-cu113", "--deepspeed", "0.12.3", *OWN).code == 0


def test_files_that_cannot_be_read_do_not_hide_the_others(cli: Any, wrong: Path, tmp_path: Path) -> None:
    done = cli("lint", str(tmp_path / "missing"), str(tmp_path), str(wrong), str(wrong), "--json", *OWN)
    assert done.code == 2
    assert len(done.json["unread"]) == 2
    assert len(done.json["files"]) == 1
    assert len(done.json["findings"]) == 2


def test_auto_is_hugging_faces_unless_one_says_otherwise(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{\n  "train_batch_size": "auto",\n}')
    done = cli("lint", str(path), "--json", *OWN)
    assert done.json["files"][0]["with"] == "hf-trainer"
    assert done.code == 1, "a comma too many is an error where JSON is read"
    assert "line 2" in done.err or any("line 2" in each for each in done.json["files"][0]["assumed"])
    assert cli("lint", str(path), "--with", "deepspeed", *OWN).code == 0
    # Of a pipeline it is DeepSpeed's own word.
    path.write_text('{"train_batch_size": 8, "pipeline": {"stages": "auto"}}')
    assert cli("lint", str(path), "--json", *OWN).json["files"][0]["with"] == "deepspeed"


def test_fix_writes_the_file_in_place_and_dry_run_does_not(cli: Any, wrong: Path, tmp_path: Path) -> None:
    wrong.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(wrong)
    dry = cli("lint", "--fix", "--dry-run", str(link), *OWN)
    assert dry.code == 1
    assert '-\t"aio": {"block_size": 1048576}' in dry.out
    assert '+    "aio": {"block_size": 1048576}' in dry.out
    assert wrong.read_text(encoding="utf-8") == WRONG
    done = cli("lint", "--fix", str(link), *OWN)
    assert done.code == 1, "what nobody can mend is left"
    assert "mended:" in done.err
    assert "schema.place" not in done.out
    assert link.is_symlink()
    assert stat.S_IMODE(wrong.stat().st_mode) == 0o640
    value = json.loads(wrong.read_text(encoding="utf-8"))
    assert value["aio"] == {"block_size": 1048576}
    assert "aio" not in value["zero_optimization"]
    before = wrong.stat().st_mtime_ns
    assert "mended" not in cli("lint", "--fix", str(wrong), *OWN).err
    assert wrong.stat().st_mtime_ns == before


def test_standard_input_is_linted_and_mended(cli: Any, wrong: Path) -> None:
    with wrong.open("rb") as file:
        done = cli("lint", "-", *OWN, stdin=file)
    assert done.code == 1
    assert done.out.startswith("<stdin>:5:2: error")
    with wrong.open("rb") as file:
        done = cli("lint", "--fix", "-", *OWN, stdin=file)
    assert json.loads(done.out)["aio"]
    assert "schema.unknown" in done.err


def test_rules_are_chosen_by_id_or_family(cli: Any, wrong: Path) -> None:
    assert cli("lint", str(wrong), "--rule", "schema.unknown").out.count("error [") == 1
    assert cli("lint", str(wrong), *OWN, "--ignore", "schema").code == 0
    bad = cli("lint", str(wrong), "--rule", "schema.unknwn")
    assert (bad.code, "Did you mean schema.unknown?" in bad.err) == (2, True)
    listed = cli("lint", "--rules", "--json").json["rules"]
    names = [each["id"] for each in listed]
    assert {"json.syntax", "json.duplicate", "schema.unknown", "schema.type", "lint.crashed"} <= set(names)
    assert len(names) == len(set(names))
    assert all(each["title"] for each in listed)


@pytest.mark.parametrize(
    "arguments",
    [
        ("lint",),
        ("lint", "--dry-run", "x.json"),
        ("lint", "x.json", "--deepspeed", "abc"),
        ("lint", "x.json", "--deepspeed", "0.1.0"),
        ("lint", "x.json", "--with", "horovod"),
        ("lint", "x.json", "--row", "nosuch"),
        ("lint", "x.json", "--ram", "much"),
        ("lint", "x.json", "--gpu", "abacus"),
        ("lint", "x.json", "--gpus", "0"),
        ("lint", "x.json", "--params", "7b", "--model-config", "c.json"),
        ("lint", "x.json", "--params", "many"),
        ("lint", "x.json", "--model-config", "missing.json"),
    ],
)
def test_what_makes_no_sense_is_said(cli: Any, arguments: tuple[str, ...]) -> None:
    (cli.cwd / "x.json").write_text("{}")
    assert cli(*arguments).code == 2
    said = cli(*arguments, "--json")
    assert said.code == 2
    assert said.json["schema"] == "envbuild.error/1"


@pytest.mark.parametrize(
    "data", [b"", b"\x00\xff", b"[" * 9999, b'{"a": 1e400}', b'{"a": "\xf0\x9f"}', b'{"\\ud800": "\\udfff"}']
)
def test_no_bytes_end_in_a_traceback(cli: Any, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(data)
    # The fixture itself refuses a traceback; every spelling of the result is tried.
    for more in ((), ("--json",), ("--fix",), ("--sarif", "-")):
        assert cli("lint", str(path), *more, LC_ALL="C", PYTHONUTF8="0").code in (1, 2)


def test_sarif_goes_where_it_is_wanted(cli: Any, wrong: Path, tmp_path: Path) -> None:
    done = cli("lint", str(wrong), *OWN, "--sarif", str(tmp_path / "out.sarif"))
    assert done.code == 1
    written = json.loads((tmp_path / "out.sarif").read_text())
    assert len(written["runs"][0]["results"]) == 2
    printed = cli("lint", str(wrong), *OWN, "--sarif", "-")
    assert json.loads(printed.out) == written
    assert cli("lint", str(wrong), *OWN, "--sarif", os.devnull).code == 1


def test_a_command_alone_has_the_same_help_as_among_all(cli: Any) -> None:
    """Where a line begins with a command only that one's module is imported; the table has to name them all."""
    from envbuild.cli import COMMANDS, application

    def names(arguments: tuple[str, ...]) -> list[str]:
        app = application(arguments)
        return [
            *(each.name or "" for each in app.registered_commands), *(each.name or "" for each in app.registered_groups)
        ]  # fmt: skip

    for some in COMMANDS.values():
        assert sorted(names((some[0],))) == sorted(some)
    assert sorted(names(())) == sorted(name for some in COMMANDS.values() for name in some)
    assert names(("nosuch",)) == names(())
    assert "envbuild lint" in cli("lint", "--help").out


def test_nothing_of_a_file_reaches_the_terminal_as_it_is(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31mb.json"
    words = "/n\x1b[2J; rm -rf ~\x9b"
    config = {
        "train_batch_size": 8, "k\x1b]0;x\x07": 1, "k\u202e": 1, "optimizer": {"type": "\x1b[31mA"},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": words}},
    }  # fmt: skip
    path.write_text(json.dumps(config))
    for arguments in ((str(path),), ("--fix", str(path)), (str(path / "x"),)):
        done = cli("lint", *arguments)
        assert all(letter.isprintable() or letter == "\n" for letter in done.out + done.err), arguments
    assert "findmnt -T '/n?[2J; rm -rf ~?'" in cli("lint", str(path)).out
    path.write_text(json.dumps({"x" * 500_000: 1}))
    assert len(cli("lint", str(path)).out) < 10_000


def test_one_thing_is_printed_and_nothing_linted_written_over(cli: Any, wrong: Path) -> None:
    before = wrong.read_bytes()
    for arguments in (
        ("--json", "--sarif", "-"), ("--fix", "--dry-run", "--json"), ("--fix", "--dry-run", "--sarif", "-"),
        ("--fix", "-", "--json"), ("--sarif", str(wrong)), ("--sarif", ""),
    ):  # fmt: skip
        done = cli("lint", str(wrong), *arguments)
        assert done.code == 2, arguments
        assert "findings" not in done.out, arguments
        assert wrong.read_bytes() == before


def test_an_empty_option_is_none_that_was_left_out(cli: Any, wrong: Path) -> None:
    for option in ("--row", "--deepspeed", "--with", "--gpu", "--ram", "--params"):
        done = cli("lint", str(wrong), option, "")
        assert (done.code, done.out) == (2, ""), option
        assert "Traceback" not in done.err
    done = cli("lint", "")
    assert done.code == 2
    assert "'': no name of a file" in done.err


def test_a_model_that_is_a_pipe_nobody_writes_to_is_refused(cli: Any, wrong: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    for name in (tmp_path, tmp_path / "config.json"):
        assert cli("lint", str(wrong), "--model-config", str(name)).code == 2


def test_a_secret_in_a_file_is_not_repeated(cli: Any, project: Path) -> None:
    given = {"comet": {"api_key": ["hunter2"], "samples_log_interval": "x"}, "hf_token": "hunter2"}
    (project / "ds.json").write_text(json.dumps(given))
    for options in ((), ("--json",), ("--sarif", "-")):
        done = cli("lint", "ds.json", *options)
        assert done.code == 1 and "*** is a list" in done.out
        assert "hunter2" not in done.out + done.err, options
