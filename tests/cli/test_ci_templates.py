"""The templates in docs/ci: valid for their systems, for the shell, and for the command line as it is."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from envbuild.cli import app

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
        plain = re.sub(r'"?\$\{?\w+[^}" ]*\}?"?', "cpu", line)
        for found in re.finditer(r"(?:^|[;&|] |do |xargs )\s*envbuild ([^;&|>]*)", plain):
            yield [*shlex.split(found[1]), *(["cpu"] if "xargs envbuild" in plain else [])]


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
    group: Any = typer.main.get_command(app)
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


@pytest.mark.skipif(shutil.which("jq") is None, reason="the templates need jq")
@pytest.mark.parametrize("name", SCHEMAS)
def test_the_log_says_why_nothing_could_begin(name: str, cli: Any, project: Path, tmp_path: Path) -> None:
    (script,) = [script for script in scripts(name) if "envbuild build" in script]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/envbuild").symlink_to(cli.argv()[0])
    surroundings = {
        **cli.env, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "DOCKER_HOST": "unix:///not/there.sock",
        # What both systems say of the first push of a branch.
        "BEFORE": "0" * 40, "CI_COMMIT_BEFORE_SHA": "0" * 40, "GITHUB_OUTPUT": str(tmp_path / "output"),
    }  # fmt: skip
    # Without what comes before the script: setting up and logging in.
    script = script[script.index("code=0") :]
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=project, env=surroundings, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 3 and "there is no such socket" in done.stdout, done.stdout + done.stderr
