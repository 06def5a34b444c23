"""The build contexts of the shipped rows, byte for byte. ``UPDATE_GOLDEN=1`` rewrites what is expected.

The locks are the committed ones; a100-cu118 has none yet, so its lock here is made up, and says so.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild import facts, lock, plan
from envbuild.matrix import load
from envbuild.render import Rendering, render

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
BIN = Path(sys.executable).parent
LOCKS = {
    "cpu": REPOSITORY / "images/cpu/lock.json",
    "h200-cu130": REPOSITORY / "images/h200-cu130/lock.json",
    "a100-cu118": HERE / "locks/a100-cu118.synthetic.json",
}
GOLDEN = ("Dockerfile", "constraints.txt", "requirements/ops.txt")
every_row = pytest.mark.parametrize("row", LOCKS)


@pytest.fixture(scope="module")
def renderings() -> dict[str, Rendering]:
    matrix, known = load(REPOSITORY / "matrix.yaml"), facts.load()
    assert set(matrix.environments) == set(LOCKS), "every shipped row has golden files"
    made = {}
    for row, path in LOCKS.items():
        env, locked = matrix.get(row), lock.read(path)
        assert lock.stale(locked, env, locked.platform) is None
        made[row] = render(plan.make(env, locked, known), REPOSITORY / "templates")
    return made


def dockerfile(renderings: dict[str, Rendering], row: str) -> str:
    return renderings[row].files["Dockerfile"].decode()


@every_row
@pytest.mark.parametrize("name", GOLDEN)
def test_golden(row: str, name: str, renderings: dict[str, Rendering]) -> None:
    path = HERE / "expected" / row / name
    content = renderings[row].files[name]
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert path.read_bytes() == content, f"{path} differs; if that is meant: UPDATE_GOLDEN=1 make golden"


def test_no_golden_file_is_left_over() -> None:
    expected = HERE / "expected"
    found = {path.relative_to(expected).as_posix() for path in expected.rglob("*") if path.is_file()}
    assert found == {f"{row}/{name}" for row in LOCKS for name in GOLDEN}


def test_the_committed_images_are_what_their_rows_render_now(renderings: dict[str, Rendering]) -> None:
    """A record that is reviewed in a pull request must not fall behind the row, the lock or the templates."""
    for record in (REPOSITORY / "images").glob("*/record.json"):
        row = record.parent.name
        assert (record.parent / "Dockerfile").read_bytes() == renderings[row].files["Dockerfile"], row
        assert json.loads(record.read_text())["target_id"] == renderings[row].target_id, row


@every_row
def test_bytes_depend_on_no_hash_seed_and_no_folder(row: str, renderings: dict[str, Rendering], tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(REPOSITORY / "templates", project / "templates")
    (project / "images" / row).mkdir(parents=True)
    shutil.copy(REPOSITORY / "matrix.yaml", project)
    shutil.copy(LOCKS[row], project / "images" / row / "lock.json")
    seen = set()
    for seed, folder in (("0", project), ("4711", Path("/"))):
        argv = [str(BIN / "envbuild"), "render", row, "--json", "--project", str(project)]
        env = {**os.environ, "PYTHONHASHSEED": seed, "ENVBUILD_HOME": str(tmp_path / "home")}
        done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, check=True, timeout=60)
        seen.add(done.stdout)
    assert len(seen) == 1
    said = json.loads(seen.pop())["plan"]
    assert said["target_id"] == renderings[row].target_id
    assert {name: text.encode() for name, text in said["files"].items()} == dict(renderings[row].files)


def test_hadolint_has_nothing_to_say(renderings: dict[str, Rendering], tmp_path: Path) -> None:
    paths = []
    for row in LOCKS:
        paths.append(tmp_path / f"{row}.Dockerfile")
        paths[-1].write_text(dockerfile(renderings, row))
    argv = [str(BIN / "hadolint"), "--config", str(REPOSITORY / ".hadolint.yaml"), *map(str, paths)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@every_row
def test_only_what_docker_20_10_and_buildah_1_28_understand(row: str, renderings: dict[str, Rendering]) -> None:
    text = dockerfile(renderings, row)
    assert not re.search(r"^#\s*(syntax|escape)\s*=", text, re.MULTILINE | re.IGNORECASE)
    assert "<<" not in text, "heredocs need a newer frontend"
    assert not re.search(r"^(COPY|ADD)\b.*--(link|parents|exclude|checksum)", text, re.MULTILINE)
    assert not re.search(r"^RUN\b.*--(network|security)=", text, re.MULTILINE)
    assert "{{" not in text and "{%" not in text
    assert all(line == line.rstrip() for line in text.splitlines()), "a space behind a backslash ends the command"


@every_row
def test_compilers_are_named_by_path_and_never_by_an_alternative(row: str, renderings: dict[str, Rendering]) -> None:
    text = dockerfile(renderings, row)
    assert "update-alternatives" not in text
    runtime = text[text.index("\nENV ") :]
    assert re.search(r'^ +CC="/usr/bin/gcc-\d+" \\$', runtime, re.MULTILINE)
    assert re.search(r'^ +CXX="/usr/bin/g\+\+-\d+" \\$', runtime, re.MULTILINE)
    cuda = row != "cpu"
    assert bool(re.search(r'^ +CUDAHOSTCXX="/usr/bin/g\+\+-\d+" \\$', runtime, re.MULTILINE)) is cuda
    assert ('NVIDIA_DRIVER_CAPABILITIES="compute,utility"' in runtime) is cuda
    assert ("librdmacm1" in text) is cuda


@every_row
def test_nothing_of_a_site_or_a_secret_can_be_in_the_files(row: str, renderings: dict[str, Rendering]) -> None:
    """Mirrors, tokens and certificates come as secrets: no ARG takes one, and no address is written down."""
    files = renderings[row].files
    assert re.findall(r"^ARG (\w+)", files["Dockerfile"].decode(), re.MULTILINE) in (["BASE"], ["BASE", "TOOLKIT"])
    for name, content in files.items():
        assert b"://" not in content, name


def test_rows_never_share_a_target_id(renderings: dict[str, Rendering]) -> None:
    assert len({each.target_id for each in renderings.values()}) == len(LOCKS)
    assert len({each.id8 for each in renderings.values()}) == len(LOCKS)
