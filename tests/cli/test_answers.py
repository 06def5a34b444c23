"""What each command answers when all is well: the result on stdout, narration on stderr, one document with --json."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from envbuild import __version__

COMMANDS = [
    "list", "show", "check", "lock", "render", "why-not", "diff", "build", "smoke", "promote", "run", "jobs", "attach",
    "cancel", "push", "pull", "images", "prune", "sbom", "provision", "engine", "export", "doctor", "diagnose",
    "lint", "tune", "profile", "watch", "compare", "bottleneck", "report", "verify", "init", "bundle", "baseline",
    "key", "facts",
]  # fmt: skip
ROWS = re.findall(r"(?m)^  ([a-z0-9-]+):$", (Path(__file__).parents[2] / "matrix.yaml").read_text())


# --- help and version -------------------------------------------------------------------------------------------------


def test_help_lists_every_command_and_where_to_start(cli: Any) -> None:
    done = cli("--help")
    assert (done.code, done.err) == (0, "")
    assert re.findall(r"(?m)^│ ([a-z][\w-]*)  ", done.out) == COMMANDS
    assert "envbuild init" in done.out
    bare = cli()
    assert bare.code == 2 and "Commands" in bare.out + bare.err, "nothing to do is not a success"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_an_example(command: str, cli: Any) -> None:
    done = cli(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"Example: envbuild {command}" in done.out


@pytest.mark.parametrize("command", ["new", "show"])
def test_help_of_a_key_command_has_an_example(command: str, cli: Any) -> None:
    done = cli("key", command, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"Example: envbuild key {command}" in done.out


def test_version(cli: Any) -> None:
    done = cli("--version")
    assert (done.code, done.out, done.err) == (0, f"envbuild {__version__}\n", "")


# --- list, show, check ------------------------------------------------------------------------------------------------


def test_list(cli: Any) -> None:
    done = cli("list")
    assert (done.code, done.err) == (0, "note: no engine answers, so it is not known which images there are\n")
    lines = done.out.splitlines()
    assert lines[0].split() == ["ROW", "GPU", "CUDA", "TORCH", "DEEPSPEED", "GCC", "LEVEL", "IMAGE"]
    assert [line.split()[0] for line in lines[1:]] == ROWS
    assert all(re.search(r"  never built  +-$", line) for line in lines[1:])
    said = cli("list", "--json").json
    assert said["schema"] == "envbuild.list/1"
    assert [env["name"] for env in said["environments"]] == ROWS
    assert {env["level"] for env in said["environments"]} == {"derived"}, "no engine says that anything was built"
    cpu, a100 = (next(env for env in said["environments"] if env["name"] == name) for name in ("cpu", "a100-cu118"))
    assert (cpu["torch"], cpu["cuda"], cpu["gpus"], cpu["requires"]) == ("2.13.0+cpu", None, [], "cpu")
    assert "no Docker Engine answers" in cpu["note"] and len(cpu["target_id"]) == 64
    assert (a100["note"], a100["target_id"]) == ("a100-cu118 has no lock", None)


def test_show(cli: Any, project: Path) -> None:
    done = cli("show", "cpu")
    assert (done.code, done.err) == (0, "")
    assert "docker.io/library/debian:bookworm-slim" in done.out and "verified" in done.out
    assert f"{project}/images/cpu/lock.json" in done.out
    assert "envbuild build cpu" in done.out, "it says how to get evidence"
    env = cli("show", "cpu", "--json").json["environment"]
    assert (env["name"], env["row"]["python"], env["evidence"], env["findings"]) == ("cpu", "3.11", None, [])
    assert set(env["state"]) == {
        "requires", "performance", "level", "standing", "image", "target_id", "lock", "recorded", "note",
    }  # fmt: skip
    assert all(set(fact) == {"name", "value", "mark", "source"} and fact["value"] for fact in env["facts"])


def test_check(cli: Any, project: Path) -> None:
    done = cli("check")
    assert done.code == 0
    assert re.fullmatch(rf"{len(ROWS)} row\(s\), 0 error\(s\), \d+ other finding\(s\)\n", done.err)
    assert re.search(rf"(?m)^{project}/matrix\.yaml:\d+:\d+: info \[R11\] a100-cu118: nccl: ", done.out)
    assert cli("check", "cpu", "cpu").err == "1 row(s), 0 error(s), 0 other finding(s)\n"
    said = cli("check", "a100-cu118", "--json")
    assert said.code == 0 and said.json["schema"] == "envbuild.check/1"
    placed, *_, lock = said.json["findings"]
    assert set(placed) == {"rule", "severity", "subject", "message", "fix", "source", "file", "line", "column"}
    assert set(lock) == {"rule", "severity", "subject", "message", "fix", "source"}


def test_a_broken_rule_is_exit_1_and_says_what_to_do(cli: Any, project: Path) -> None:
    start, row = (project / "matrix.yaml").read_text().split("  h200-cu130:")
    (project / "matrix.yaml").write_text(f"{start}  h200-cu130:{row}".replace('python: "3.11"', 'python: "3.8"'))
    done = cli("check", "h200-cu130")
    assert done.code == 1
    assert re.search(r"(?m)^/.+:\d+:\d+: error \[R20\] h200-cu130: python: .*3\.8", done.out)
    assert "    fix: use Python 3.10" in done.out
    said = cli("check", "h200-cu130", "--json")
    assert said.code == 1
    assert "R20" in {each["rule"] for each in said.json["findings"] if each["severity"] == "error"}
    # `build` stops at the same place, before it asks for an engine.
    built = cli("build", "h200-cu130", "--json")
    assert (built.code, built.json["code"]) == (1, "findings")
    assert "R20" in {each["rule"] for each in built.json["findings"]}


# --- lock, render, build ----------------------------------------------------------------------------------------------


def test_lock_dry_run_asks_nobody(cli: Any, project: Path) -> None:
    before = (project / "images/cpu/lock.json").read_bytes()
    done = cli("lock", "cpu", "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert {"torch==2.13.0+cpu", "deepspeed==0.19.8"} <= set(done.out.splitlines())
    said = cli("lock", "h200-cu130", "--dry-run", "--json").json
    assert said["schema"] == "envbuild.lock/1"
    (plan,) = said["plan"]
    assert plan["environment"] == "h200-cu130" and "torch===2.11.0" in plan["requirements"]
    every = cli("lock", "--all", "--dry-run").out.splitlines()
    assert [line for line in every if line.startswith("# ")][:2] == ["# cpu", "# v100-cu113"]
    assert (project / "images/cpu/lock.json").read_bytes() == before


def test_render(cli: Any, project: Path, tmp_path: Path) -> None:
    done = cli("render", "cpu")
    assert (done.code, done.err) == (0, "")
    written = cli("render", "cpu", "-o", str(tmp_path / "deep" / "out"))
    paths = [Path(line) for line in written.out.splitlines()]
    assert [path.relative_to(tmp_path / "deep/out").as_posix() for path in paths] == [
        "Dockerfile", "constraints.txt", "files/compiler", "requirements/deps.txt", "requirements/ops.txt",
        "requirements/toolkit.txt", "requirements/tools.txt", "requirements/torch.txt",
    ]  # fmt: skip
    assert paths[0].read_text() == done.out
    plan = cli("render", "cpu", "--json").json["plan"]
    assert plan["files"] == {str(path.relative_to(tmp_path / "deep/out")): path.read_text() for path in paths}
    assert plan["target_id"] == cli("list", "--json").json["environments"][0]["target_id"]
    assert sorted(path.name for path in project.iterdir()) == ["images", "matrix.yaml"], "nothing else is written"


def test_build_dry_run_of_a_row_without_a_lock(cli: Any, project: Path) -> None:
    plan = cli("build", "a100-cu118", "--dry-run", "--json").json["plan"]
    assert plan["target_id"] is None
    assert plan["steps"][0].startswith("lock: ")
    written = cli("build", "a100-cu118", "--dry-run", "--record", "--json").json["plan"]["steps"]
    assert written == [*plan["steps"], "write: images/a100-cu118/, for review"]
    assert not (project / "images" / "a100-cu118").exists()


# --- key --------------------------------------------------------------------------------------------------------------


def test_a_key_is_made_shown_and_never_overwritten(cli: Any, tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".config" / "envbuild" / "keys"
    assert cli("key", "new", "--dry-run").out.splitlines() == [f"{folder}/signing.pem", f"{folder}/signing.pub"]
    assert not folder.exists()
    made = cli("key", "new")
    assert made.code == 0 and f'key = "{folder}/signing.pem"' in made.err
    assert (folder / "signing.pem").stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
    public = (folder / "signing.pub").read_text()
    assert made.out.endswith(public) and "PRIVATE" not in made.out + made.err
    shown, private = cli("key", "show", str(folder / "signing.pub"), "--json").json, cli("key", "show", "--json").json
    assert shown["schema"] == "envbuild.key/1"
    ((key,), (same,)) = shown["keys"], private["keys"]
    assert key["type"] == "ed25519" and key["public"] == public
    assert (key["id"], key["public"]) == (same["id"], same["public"]) and key["id"] in made.out
    before = {path: path.read_bytes() for path in folder.iterdir()}
    again = cli("key", "new")
    assert again.code == 2 and "never overwritten" in again.err and again.out == ""
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "signing.pem").chmod(0o640)
    refused = cli("key", "show")
    assert refused.code == 2 and f"chmod 600 {folder}/signing.pem" in refused.err


def test_a_key_with_a_passphrase_needs_it(cli: Any, tmp_path: Path) -> None:
    made = cli("key", "new", "--out", "farm", "--json", cwd=tmp_path, ENVBUILD_KEY_PASSPHRASE="secret")
    assert made.code == 0 and made.json["keys"][0]["private_file"] == f"{tmp_path}/farm"
    assert "ENCRYPTED" in (tmp_path / "farm").read_text()
    bare = cli("key", "show", "farm", cwd=tmp_path)
    assert bare.code == 2 and "ENVBUILD_KEY_PASSPHRASE" in bare.err
    assert cli("key", "show", "farm", cwd=tmp_path, ENVBUILD_KEY_PASSPHRASE="secret").code == 0
    assert cli("key", "show", "farm.pub", cwd=tmp_path).code == 0


# --- init and where the project is ------------------------------------------------------------------------------------


def test_a_new_project_is_ready_to_be_checked(cli: Any, tmp_path: Path) -> None:
    done = cli("init", "mine", cwd=tmp_path)
    assert done.code == 0
    assert done.out.splitlines() == ["mine/matrix.yaml", "mine/envbuild.toml", "mine/.gitignore"]
    assert "envbuild check" in done.err
    checked = cli("check", cwd=tmp_path / "mine")
    assert (checked.code, checked.err) == (0, "1 row(s), 0 error(s), 1 other finding(s)\n")
    assert "fix: envbuild lock cpu" in checked.out
    files = {path: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    again = cli("init", cwd=tmp_path / "mine")
    assert (again.code, again.out) == (2, "")
    assert "already holds matrix.yaml" in again.err
    assert {path: path.read_bytes() for path in (tmp_path / "mine").iterdir()} == files


def test_the_project_is_found_upwards_or_named_or_the_packaged_one(cli: Any, project: Path, tmp_path: Path) -> None:
    def matrix(*arguments: str, cwd: Path) -> str:
        error = cli("show", "no-such-row", *arguments, cwd=cwd).err
        return re.search(r" in (\S+)\n", error).group(1)  # type: ignore[union-attr]

    own = str(project / "matrix.yaml")
    assert matrix(cwd=project / "images" / "cpu") == own
    assert matrix("--project", str(project), cwd=tmp_path) == own
    assert matrix("--project", "project/matrix.yaml", cwd=tmp_path) == own
    packaged = matrix(cwd=tmp_path)
    assert packaged != own and Path(packaged).is_file()


# --- completion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("envbuild show ", ROWS),
        ("envbuild build h2", ["h200-cu130"]),
        ("envbuild check cpu a", ["a100-cu117", "a100-cu118"]),
        ("envbuild smoke x --row c", ["cpu"]),
        ("envbuild pro", ["promote", "provision", "profile"]),
        ("envbuild verify c", ["cpu"]),
        ("envbuild export r", ["rhel8-cu118"]),
        ("envbuild export cpu --what wheels,", ["wheels,rpms", "wheels,image", "wheels,doctor"]),
        ("envbuild export cpu --arch a", ["aarch64"]),
        ("envbuild show z", []),
    ],
)
def test_completion(typed: str, offered: list[str], cli: Any) -> None:
    words = typed.split(" ")
    done = cli(_ENVBUILD_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(words) - 1))
    assert done.err == ""
    assert done.out.split() == offered


def test_completion_in_a_broken_project_is_silent(cli: Any, project: Path) -> None:
    (project / "matrix.yaml").write_text("[")
    done = cli(_ENVBUILD_COMPLETE="complete_bash", COMP_WORDS="envbuild show c", COMP_CWORD="2")
    assert (done.out.split(), done.err) == ([], "")


def test_the_completion_script_is_for_this_command(cli: Any) -> None:
    assert "complete -o default -F _envbuild_completion envbuild" in cli(_ENVBUILD_COMPLETE="source_bash").out


# --- a wheel without the repository -----------------------------------------------------------------------------------


def test_a_project_may_bring_templates_of_its_own(cli: Any, project: Path) -> None:
    packaged = cli("render", "cpu").out
    templates = Path(__file__).parents[2] / "templates"
    shutil.copytree(templates, project / "templates")
    assert cli("render", "cpu").out == packaged
    path = project / "templates" / "Dockerfile.j2"
    path.write_text(path.read_text() + "LABEL team=mine\n")
    assert cli("render", "cpu").out == packaged + "LABEL team=mine\n"


def test_every_encoding_will_do(cli: Any, project: Path) -> None:
    path = project / "matrix.yaml"
    path.write_text(path.read_text().replace("summary: ZeRO-3", "summary: Größe ✓ ZeRO-3"), encoding="utf-8")
    poor = cli("list", "--json", PYTHONIOENCODING="ascii")
    assert poor.out.isascii()
    assert poor.json["environments"][0]["summary"].startswith("Größe ✓")
    assert r"Gr\xf6\xdfe \u2713" in cli("show", "cpu", PYTHONIOENCODING="ascii").out
