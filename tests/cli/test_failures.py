"""What goes wrong is told once, with its place and a way out; never by a traceback, and never on stdout as text."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def refused(done: Any, code: int, *said: str) -> None:
    """An error for people: nothing on stdout, the words on stderr."""
    assert done.code == code, done.err
    assert done.out == ""
    for text in said:
        assert re.search(text, done.err), done.err


def document(done: Any, code: int, kind: str) -> dict[str, str]:
    """An error for programs: one document on stdout, nothing on stderr."""
    assert (done.code, done.err) == (code, "")
    error: dict[str, str] = done.json
    assert error["schema"] == "envbuild.error/1"
    assert (error["code"], set(error) - {"findings"}) == (kind, {"schema", "code", "message", "hint"})
    assert error["message"]
    return error


# --- mistyped ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["deepspeed", "--zero-offload", "train.py"], ["sh", "-c", "deepspeed train.py --zero-offload"]]
)
def test_run_refuses_an_option_that_deepspeed_has_not(command: list[str], cli: Any) -> None:
    refused(cli("run", "cpu", "--", *command), 2, r"no option --zero-offload \(R24\)", "ds_config")


@pytest.mark.parametrize("command", ["show", "check", "build"])
def test_a_mistyped_row_gets_a_suggestion(command: str, cli: Any, project: Path) -> None:
    refused(
        cli(command, "h200-cu13"), 2, r"no environment 'h200-cu13' in .*matrix\.yaml", r"Did you mean 'h200-cu130'\?"
    )
    assert "Environments: cpu, v100-cu113, " in document(cli(command, "zzz", "--json"), 2, "input")["hint"]


def test_a_mistyped_command_gets_a_suggestion(cli: Any) -> None:
    refused(cli("lits"), 2, "Usage: envbuild", "No such command 'lits'", "list")
    error = document(cli("lits", "--json"), 2, "usage")
    assert "lits" in error["message"] and "list" in error["message"] and error["hint"] == "See: envbuild --help"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show"], "Missing argument"),
        (["show", "cpu", "too-much"], "too-much"),
        (["list", "--nope"], "No such option"),
        (["build", "cpu", "--timeout", "nan"], "from 1 to"),
        (["build", "cpu", "--smoke-timeout", "-1"], "from 1 to"),
        (["smoke", "cpu", "--timeout", "0"], "from 1 to"),
    ],
)
def test_usage(arguments: list[str], said: str, cli: Any) -> None:
    error = document(cli(*arguments, "--json"), 2, "usage")
    assert said in error["message"] and error["hint"] == f"See: envbuild {arguments[0]} --help"


def test_levels_that_can_be_allowed(cli: Any) -> None:
    for command in ("build", "promote"):
        refused(cli(command, "cpu", "--allow-level", "gpu"), 2, "'gpu' is not a level", "built, cpu or gpu-mig")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--require", "declared", "built, cpu"), ("--sm", "H100", "as 90"), ("--max-age", "1y", "12h")],
)
def test_what_verify_cannot_be_asked(option: str, value: str, said: str, cli: Any) -> None:
    refused(cli("verify", "cpu", option, value), 2, f"{option}: '{value}' is not", said)


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("build", "cpu"), ("smoke", "some/image:1"), ("build", "cpu", "--dry-run")])
def test_a_signing_key_that_cannot_be_used_stops_before_the_engine_is_asked(
    command: tuple[str, ...], cli: Any, project: Path
) -> None:
    refused(
        cli(*command, "--key", "nowhere.pem"), 2, f"{project}/nowhere.pem: there is no such key", "envbuild key new"
    )
    assert "nowhere.pem" in document(cli(*command, "--json", ENVBUILD_SIGNING_KEY="nowhere.pem"), 2, "input")["message"]
    (project / "open.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    (project / "open.pem").chmod(0o644)
    (project / "envbuild.toml").write_text('[signing]\nkey = "open.pem"\n')
    refused(cli(*command), 2, "can be read or changed by others", "chmod 600")


def test_trusted_keys_that_cannot_be_used(cli: Any, project: Path) -> None:
    refused(cli("verify", "cpu", "--key", "a.pub", "--key", "b.pub"), 2, "a.pub: there is no", "b.pub: there is no")
    (project / "matrix.pub").write_text("-----BEGIN PRIVATE KEY-----\nsecret\n")
    done = cli("verify", "cpu", "--key", "matrix.pub")
    refused(done, 2, "this is a private key")
    assert "secret" not in done.err


def test_a_folder_is_a_bundle_unless_it_has_a_rows_name(cli: Any, project: Path) -> None:
    (project / "cpu").mkdir()
    for folder in ("images", "./cpu", "cpu/"):
        refused(cli("verify", folder), 6, "SHA256SUMS: .*missing|Name the folder of a bundle")
    assert document(cli("verify", "images", "--json"), 6, "bundle")["hint"] == "Name the folder of a bundle."
    refused(cli("verify", "cpu"), 3, "no Docker Engine answers")
    refused(cli("verify", "images", "--sm", "90"), 2, "--sm is for images")
    refused(cli("verify", "cpu", "--fingerprint", "0" * 40), 2, "are for bundles")
    refused(cli("verify", "images", "--fingerprint", "0" * 39), 2, "is no fingerprint")
    refused(cli("bundle", "inspect", "images"), 6, "is no bundle")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["cpu", "--what", "rpms"], 2, "family debian, which has no RPM packages"),
        (["cpu", "--what", "wheels,toys"], 2, "'toys' is no part of a bundle"),
        (["cpu", "--what", ","], 2, "--what names nothing"),
        (["cpu", "--root", "gcc"], 2, "go with RPM packages, and this bundle has none"),
        (["cpu", "--volume-size", "large"], 2, "'large' is no size"),
        (["cpu", "--base", "images"], 6, "images is no bundle: manifest.json: it is missing"),
        (["cpu", "--gpg-key", "nobody@nowhere.invalid"], 2, "neither a file nor a secret key of your keyring"),
        (["cpu", "-o", "./new", "--base", "other/../new"], 2, "-o is the folder of --base"),
        (["cpu", "--what", "doctor", "-o", "images"], 6, "holds something else than a bundle"),
        (["rhel8-cu118", "--what", "rpms", "--repo", "baseos"], 2, "is not of the form --repo NAME=URL"),
        (["rhel8-cu118", "--what", "rpms"], 2, "there is no repository to take packages from"),
        (["rhel8-cu118", "--what", "rpms", "--releasever", "9.2"], 2, "is for release 8"),
        (["rhel8-cu118", "--arch", "sparc"], 2, "'sparc' is no machine"),
        (["rhel8-cu118", "--arch", "aarch64", "--what", "wheels"], 2, "its wheels cannot be had for aarch64"),
        (["rhel8-cu118", "--what", "rpms", "--target-manifest", "matrix.yaml"], 2, "no description of a host"),
        (["rhel8-cu118", "--what", "rpms", "--repo", "a=file:///nowhere/", "--repo-key", "nokey"], 2, "nokey"),
        (["nosuchrow"], 2, "nosuchrow"),
    ],
)
def test_exports_that_cannot_be(cli: Any, project: Path, options: list[str], code: int, said: str) -> None:
    (project / "images" / "kept").mkdir(parents=True, exist_ok=True)
    argv = options if "-o" in options else [*options, "-o", "new"]
    refused(cli("export", *argv), code, said)
    assert not (project / "new").exists()


# --- the matrix -------------------------------------------------------------------------------------------------------

TYPO = "schema: envbuild.matrix/1\nenvironments:\n  cpu:\n    acelerator: cpu\n    pythn: '3.11'\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"matrix\.yaml:1:1: .*the file is empty"),
        (b"\x00\x01\xff\xfe", r"matrix\.yaml:1:3: .*byte 0xff is not UTF-8"),
        (b"a\n: [\x07", r"matrix\.yaml:2:4: .*control character U\+0007"),
        (b"a" * ((16 << 20) + 1), r"larger than 16 MiB"),
        (b"schema: envbuild.matrix/1\nenvironments: {a: [}\n", r"matrix\.yaml:2:\d+: .*not valid YAML"),
        (b"schema: envbuild.matrix/2\nenvironments: {cpu: {}}\n", r"matrix\.yaml:1:9: .*must be envbuild\.matrix/1"),
        (TYPO.encode(), r"matrix\.yaml:4:5: .*acelerator.*did you mean 'accelerator'"),
    ],
    ids=["empty", "binary", "control", "huge", "yaml", "schema", "typo"],
)
def test_a_bad_matrix(content: bytes, said: str, cli: Any, project: Path) -> None:
    (project / "matrix.yaml").write_bytes(content)
    done = cli("check")
    refused(done, 2, said, r"error: \d+ problem\(s\) in .*matrix\.yaml")
    lines = done.err.splitlines()
    assert len(lines) == len(set(lines)), "nothing is told twice"


def test_every_problem_of_a_matrix_is_told_at_once(cli: Any, project: Path) -> None:
    (project / "matrix.yaml").write_text(TYPO)
    error = document(cli("list", "--json"), 2, "matrix")
    findings: Any = error["findings"]
    assert len(findings) > 8
    assert error["message"].count("\n") + 1 == len(findings)
    places = [(each["file"], each["line"], each["column"]) for each in findings]
    assert (str(project / "matrix.yaml"), 5, 5) in places


@pytest.mark.parametrize("kind", ["folder", "unreadable", "fifo"])
def test_a_matrix_that_is_no_file(kind: str, cli: Any, project: Path) -> None:
    path = project / "matrix.yaml"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "unreadable":
        # A regular file that nobody can read at its start, not even root.
        path.symlink_to("/proc/self/mem")
    elif kind == "fifo":
        os.mkfifo(path)
    done = cli("check", "--project", str(project))
    refused(done, 2, r"cannot read .*matrix\.yaml" if kind == "unreadable" else r"has no matrix\.yaml")


def test_a_project_that_is_not_there(cli: Any) -> None:
    refused(cli("list", "--project", "nowhere"), 2, "nowhere is not a folder", "envbuild init nowhere")
    assert "envbuild init" in document(cli("list", "--project", "nowhere", "--json"), 2, "input")["hint"]


# --- site, templates, locks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = [\n", r"envbuild\.toml:\d+"),
        ("[pip]\nindx = 'https://a.example'\n", r"envbuild\.toml.*indx.*index"),
        ("[pipp]\nindex = 'https://a.example'\n", r"envbuild\.toml.*pipp.*pip"),
        ("[network]\nca = 'no-such.pem'\n", r"no-such\.pem is not a file"),
        ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), r"envbuild\.toml"),
    ],
    ids=["syntax", "key", "section", "file", "characters"],
)
def test_a_broken_site_file(text: str, said: str, cli: Any, project: Path) -> None:
    (project / "envbuild.toml").write_text(text, encoding="latin-1")
    refused(cli("build", "cpu"), 2, said)


def test_a_broken_site_file_is_told_by_every_command(cli: Any, project: Path) -> None:
    (project / "envbuild.toml").write_text("[")
    for command in (("list",), ("check",), ("show", "cpu")):
        document(cli(*command, "--json"), 2, "input")


def test_a_broken_site_variable(cli: Any) -> None:
    refused(cli("build", "cpu", ENVBUILD_PIP_INDX="https://a.example"), 2, "ENVBUILD_PIP_INDX", "ENVBUILD_PIP_INDEX")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"Dockerfile\.j2: this template is missing"),
        ("{% if %}", r"Dockerfile\.j2:1: "),
        ("{{ plan.bse }}", r"'envbuild.plan.Plan object' has no attribute 'bse'"),
    ],
    ids=["missing", "syntax", "name"],
)
def test_broken_templates(content: str | None, said: str, cli: Any, project: Path) -> None:
    (project / "templates").mkdir()
    if content is not None:
        (project / "templates" / "Dockerfile.j2").write_text(content)
    if content is None:
        note = cli("list", "--json").json["environments"][0]["note"]
        assert re.search(said, note), "one broken row does not hide the others"
    refused(cli("render", "cpu"), 2, said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"lock\.json:1:1: not valid JSON"),
        (b"\xff\xfe\x00", r"lock\.json: not valid JSON"),
        (b'{"schema": "envbuild.lock/1", "packages": [{"name": "a\\nb"}]}', r"packages\.0\.name"),
    ],
    ids=["empty", "binary", "wrong"],
)
def test_a_corrupt_lock(content: bytes, said: str, cli: Any, project: Path) -> None:
    (project / "images/cpu/lock.json").write_bytes(content)
    refused(cli("render", "cpu"), 1, said, "hint: .*envbuild lock")
    if not content:
        document(cli("build", "cpu", "--json"), 1, "findings")
        checked = cli("check", "cpu", "--json")
        assert checked.code == 1
        assert [each["rule"] for each in checked.json["findings"]] == ["lock"]


def test_a_stale_lock(cli: Any, project: Path) -> None:
    path = project / "matrix.yaml"
    path.write_text(path.read_text().replace('version: "2.13.0"', 'version: "2.12.1"'))
    said = r"error \[lock\] cpu: .*stale.*torch 2\.13\.0\+cpu.*2\.12\.1"
    refused(cli("render", "cpu"), 1, said, "envbuild lock cpu")
    error = document(cli("build", "cpu", "--json"), 1, "findings")
    assert error["findings"][0]["fix"] == "envbuild lock cpu"  # type: ignore[index]
    checked = cli("check", "cpu")
    assert checked.code == 1 and "[lock]" in checked.out


# --- no engine, no network, no disk -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["build", "cpu"], ["build", "cpu", "--dry-run"], ["smoke", "some/image:1"], ["promote", "cpu"], ["verify", "cpu"]],
    ids=" ".join,
)
def test_without_an_engine(arguments: list[str], cli: Any) -> None:
    error = document(cli(*arguments, "--json"), 3, "engine")
    assert "no Docker Engine answers" in error["message"] and "no-engine.sock (DOCKER_HOST)" in error["message"]
    assert "make engine-start" in error["hint"]


def test_run_without_an_engine_and_with_options_of_the_users_program(cli: Any) -> None:
    refused(cli("run", "cpu", "--", "prog", "--json"), 3, "no Docker Engine answers")
    refused(cli("run", "cpu", "prog", "--host", "0.0.0.0"), 2, "without --", "envbuild run cpu -- prog")


def test_an_engine_that_was_named_is_not_replaced_by_another(cli: Any) -> None:
    done = cli("build", "cpu", "--host", "unix:///nowhere.sock")
    refused(done, 3, r"unix:///nowhere\.sock \(--host\)")
    assert "no-engine.sock" not in done.err


def test_the_current_folder_is_gone(cli: Any, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    argv = ["sh", "-c", f'rmdir "{gone}"; exec "$0" "$@"', *cli.argv("list")]
    done = subprocess.run(argv, cwd=gone, env=cli.env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "")
    assert "the current folder does not exist any more" in done.stderr and "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_written(cli: Any, tmp_path: Path) -> None:
    refused(cli("render", "cpu", "-o", "/dev/null/out"), 3, "/dev/null/out")
    refused(cli("init", "/dev/null/mine"), 3, "/dev/null/mine", "choose a folder")
    (tmp_path / "file").touch()
    refused(cli("init", str(tmp_path / "file")), 2, "is not a folder")


# --- interruption -----------------------------------------------------------------------------------------------------


@pytest.fixture
def silent_index() -> Iterator[str]:
    """An index that takes connections and never says a word."""
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/simple"


def child_of(pid: int, argument: bytes) -> Path:
    """The /proc folder of a process's child that runs with an argument, once there is one."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            folder = Path("/proc", child)
            with contextlib.suppress(OSError):
                if argument in (folder / "cmdline").read_bytes().split(b"\0"):
                    time.sleep(0.2)
                    return folder
        time.sleep(0.05)
    raise AssertionError("no such child")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number: signal.Signals, cli: Any, project: Path, silent_index: str) -> None:
    before = (project / "images/h200-cu130/lock.json").read_bytes()
    child = subprocess.Popen(
        cli.argv("lock", "h200-cu130"), cwd=project, env={**cli.env, "ENVBUILD_PIP_INDEX": silent_index}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with child:
        resolver = child_of(child.pid, b"compile")
        child.send_signal(number)
        out, err = child.communicate(timeout=30)
    assert (child.returncode, out) == (130, ""), err
    assert "interrupted" in err and "Traceback" not in err
    assert not resolver.exists(), "the resolver was ended with it"
    assert (project / "images/h200-cu130/lock.json").read_bytes() == before


def test_a_time_limit_names_who_was_asked(cli: Any, silent_index: str) -> None:
    done = cli("lock", "h200-cu130", "--timeout", "1", ENVBUILD_PIP_INDEX=silent_index)
    refused(done, 3, "did not end within 1 s", re.escape(silent_index), "--timeout")


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_is_no_failure(unbuffered: str, cli: Any) -> None:
    for arguments in (["render", "cpu"], ["check"], ["--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            cli.argv(*arguments), cwd=cli.cwd, env={**cli.env, "PYTHONUNBUFFERED": unbuffered}, stdout=writer,
            stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
        os.close(writer)
        narration = r"[0-9]+ row\(s\), 0 error\(s\), [0-9]+ other finding\(s\)\n" if arguments == ["check"] else ""
        assert done.returncode == 0 and re.fullmatch(narration, done.stderr), arguments


def test_a_reader_that_leaves_does_not_hide_what_was_found(cli: Any, project: Path) -> None:
    (project / "images/cpu/lock.json").write_text("{}")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(cli.argv("check", "--json"), cwd=project, env=cli.env, stdout=writer, timeout=60)
    os.close(writer)
    assert done.returncode == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_result_that_cannot_be_written_is_a_failure(unbuffered: str, cli: Any) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            cli.argv("list"), cwd=cli.cwd, env={**cli.env, "PYTHONUNBUFFERED": unbuffered}, stdout=full,
            stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.endswith("error: cannot write the result: No space left on device\n")


def test_closed_streams(cli: Any) -> None:
    for line, code in (('exec "$0" list >&-', 0), ('exec "$0" show cup >&- 2>&-', 2)):
        argv = ["sh", "-c", line, cli.argv()[0]]
        assert subprocess.run(argv, cwd=cli.cwd, env=cli.env, timeout=60).returncode == code


def on_a_terminal(cli: Any, *arguments: str, **env: str) -> str:
    """Run with stdout and stderr on a terminal of its own."""
    master, slave = os.openpty()
    child = subprocess.Popen(
        cli.argv(*arguments), cwd=cli.cwd, env={**cli.env, "TERM": "xterm", **env}, stdin=slave, stdout=slave,
        stderr=slave,
    )  # fmt: skip
    os.close(slave)
    seen = b""
    with contextlib.suppress(OSError):  # the terminal ends with its last process
        while block := os.read(master, 1 << 16):
            seen += block
    os.close(master)
    child.wait(timeout=60)
    return seen.decode()


def test_colour_only_on_a_terminal_that_wants_it(cli: Any) -> None:
    assert "\x1b[1mROW" in on_a_terminal(cli, "list")
    assert "\x1b[31merror" in on_a_terminal(cli, "show", "cup")
    assert "\x1b" not in on_a_terminal(cli, "list", NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(cli, "show", "cup", CI="1")


def test_names_that_are_not_text(cli: Any, tmp_path: Path) -> None:
    refused(cli("show", "\udcff\x1b[31m\n"), 2, r"no environment '\\udcff\\x1b\[31m\\n'")
    refused(cli("list", "--project", "\udcff"), 2, "is not a folder")


@pytest.mark.parametrize("command", ["doctor --from", "diagnose"])
def test_standard_input_that_is_closed(command: str) -> None:
    envbuild = Path(sys.executable).with_name("envbuild")
    done = subprocess.run(["sh", "-c", f'"$0" {command} - <&-', envbuild], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "is closed" in done.stderr


# --- registries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["pull", "cpu"], ["images", "--remote"]])
def test_without_a_registry_it_is_said_how_to_name_one(command: list[str], cli: Any) -> None:
    refused(cli(*command), 2, "no registry is configured", r"\[registry\] name")
    document(cli(*command, "--json"), 2, "input")


def test_a_registry_that_does_not_answer_is_exit_code_3(cli: Any) -> None:
    # It never answered: whether it is the right one comes first.
    said = (r"does not answer \(connection refused\)", "Is 127.0.0.1:1 its address", "--registry NAME")
    refused(cli("pull", "cpu", "--registry", "127.0.0.1:1/team"), 3, *said)
    # That nobody answers is not that there is nothing.
    refused(cli("images", "--remote", "--registry", "127.0.0.1:1/team"), 3, "127.0.0.1:1", "connection refused")
    refused(cli("pull", "team.example/envbuild/cpu:1", "--registry", "a.example"), 2, "is an image", "--image-only")
    for command in ("pull", "push", "images", "promote"):
        refused(cli(command, "cpu", "--registry", "http://x y"), 2, "--registry: registry.name: has to be a registry")
    document(cli("pull", "cpu", "--registry", "127.0.0.1:1/team", "--json", "-q"), 3, "registry")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pull", "cpuu"], "cpuu"),
        (["pull", "cpu", "--require", "best"], "--require"),
        (["pull", "cpu", "--max-age", "soon"], "--max-age"),
        (["promote", "cpu", "h200-cu130"], "--set"),
        (["promote", "cpu", "--set", "validated"], "cannot be the name of a release"),
    ],
)
def test_bad_words_for_a_registry(arguments: list[str], said: str, cli: Any) -> None:
    refused(cli(*arguments), 2, said)
