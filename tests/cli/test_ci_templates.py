"""The templates in docs/ci: valid for their systems, for the shell, and for the command line as it is."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from envbuild.cli import application

FOLDER = Path(__file__).parents[2] / "docs/ci"
SCHEMAS = {"github.yml": "vendor.github-workflows", "gitlab.yml": "vendor.gitlab-ci"}
BIN = Path(sys.executable).parent


def scripts(name: str) -> Iterator[str]:
    """Every shell script of a template."""
    document: Any = yaml.safe_load((FOLDER / name).read_text())
    if name == "github.yml":
        for job in document["jobs"].values():
            yield from (step["run"] for step in job["steps"] if "run" in step)
        return
    for job in document.values():
        if isinstance(job, dict):
            lines = [*job.get("before_script", ()), *job.get("script", ())]
            if lines:
                yield "\n".join(lines)


def commands(script: str) -> Iterator[list[str]]:
    """The words behind each ``envbuild`` of a script, with something in place of its variables."""
    for line in re.sub(r"\\\n", " ", script).splitlines():
        if line.lstrip().startswith("#"):
            continue
        plain = re.sub(r'"\$@"', "--changed-since HEAD", line)
        plain = re.sub(r'"?\$\{?\w+[^}" ]*\}?"?', "cpu", plain)
        for found in re.finditer(r"(?:^|[;&|] |do )\s*envbuild ([^;&|>]*)", plain):
            yield shlex.split(found[1])


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_system_takes_it(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[name], "-o", "json", str(FOLDER / name)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert json.loads(done.stdout)["status"] == "ok", done.stdout


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_shell_takes_it(name: str, tmp_path: Path) -> None:
    for number, script in enumerate(scripts(name)):
        path = tmp_path / f"{number}.sh"
        path.write_text("#!/bin/bash\n" + re.sub(r"\$\{\{.*?\}\}", "x", script))
        done = subprocess.run([BIN / "shellcheck", "-e", "SC1091", path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_command_is_one_that_there_is(name: str) -> None:
    group: Any = typer.main.get_command(application())
    found = [words for script in scripts(name) for words in commands(script)]
    assert {words[0] for words in found} == {"check", "lock", "render", "build", "push", "pull", "smoke", "promote"}
    for words in found:
        # Parsed to the end, as a shell would hand it over; nothing is run.
        group.commands[words[0]].make_context(words[0], words[1:])


def test_what_both_check_holds_for_the_shipped_rows(cli: Any) -> None:
    for words in commands("envbuild check\nenvbuild lock --all --check\nenvbuild render --all --check"):
        done = cli(*words, cwd=FOLDER.parents[1])
        assert done.code == 0, done.err + done.out


@pytest.mark.parametrize("name", SCHEMAS)
def test_whoever_sets_it_up_is_told_whose_evidence_counts(name: str) -> None:
    # envbuild.toml is not committed (init's .gitignore), and nothing else says whom pull and promote --remote trust.
    text = (FOLDER / name).read_text()
    header = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    document: Any = yaml.safe_load(text)
    # GitLab hands its variables to every job; GitHub those that are asked for.
    given = document["env"].get("ENVBUILD_TRUST_KEYS", "") if name == "github.yml" else "vars.ENVBUILD_TRUST_KEYS"
    variable = re.search(r"vars\.(\w+)", given)
    assert variable is not None and variable[1] in header


BUILT = {
    "proven": {"exit_code": 0, "error": None},
    "waiting": {"exit_code": 5, "error": {"findings": [{"severity": "warning"}]}},
    "rejected": {"exit_code": 5, "error": {"findings": [{"severity": "error"}]}},
    "failed": {"exit_code": 4, "error": {"code": "build"}},
}


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize(
    ("rows", "code", "pushed", "ends"),
    [
        (("proven", "waiting"), 5, ["push proven", "push waiting --candidate"], 0),
        (("proven", "rejected"), 5, ["push proven"], 5),
        (("waiting", "failed"), 5, ["push waiting --candidate"], 5),
        ((), 0, [], 0),
        (None, 2, [], 2),
    ],
)
@pytest.mark.parametrize("since", ["HEAD", "0" * 40, ""])
def test_the_build_publishes_what_it_may_with_a_fake_envbuild_and_a_fake_gh(
    name: str, rows: tuple[str, ...] | None, code: int, pushed: list[str], ends: int, since: str, tmp_path: Path
) -> None:
    script = next(each for each in scripts(name) if "envbuild build" in each).partition("set -- ")
    repository = FOLDER.parents[1]
    images = [{"environment": row, **BUILT[row]} for row in rows or ()]
    told = {"message": "no such revision"} if rows is None else {"images": images}
    (tmp_path / "told.json").write_text(json.dumps(told))
    (tmp_path / "envbuild").write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n[ "$1" != build ] || {{ cat {tmp_path}/told.json; exit {code}; }}\n'
    )
    (tmp_path / "envbuild").chmod(0o755)
    before = f"""
since={since}
CI_COMMIT_BEFORE_SHA={since}
export GITHUB_OUTPUT={tmp_path}/output
git() {{ command git -C {repository} "$@"; }}
"""
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", before + "".join(script[1:])], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == [f"build {'--changed-since HEAD' if since == 'HEAD' else '--all'} --json", *pushed], done.stderr
    assert done.returncode == ends
    if rows is None:
        assert "no such revision" in done.stdout, "the error is in the log"
