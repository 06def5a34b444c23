"""The Dockerfile and the lock of every row, as they are committed in ``images/``, byte for byte.

``images/`` is what people review, so it is also what is expected here: ``envbuild render --all --write`` rewrites the
Dockerfiles, ``envbuild lock ENV`` a lock. Of the other files of a build context, which follow from the lock, hashes are
kept (``UPDATE_GOLDEN=1`` rewrites them).
"""

from __future__ import annotations

import hashlib
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
from envbuild.model import Environment, Lock, Severity
from envbuild.pipeline.committed import check_images
from envbuild.pipeline.workbench import Workbench
from envbuild.render import Rendering, dockerfile, render

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
IMAGES = REPOSITORY / "images"
BIN = Path(sys.executable).parent
ROWS = {env.name: env for env in load(REPOSITORY / "matrix.yaml").environments.values()}
# Their torch is on PyTorch's own index only, which did not answer where these locks were made.
UNRESOLVED = {"v100-cu113", "a100-cu118", "rhel8-cu118"}
every_row = pytest.mark.parametrize("row", ROWS)


def committed_lock(row: str) -> Lock:
    return lock.read(IMAGES / row / "lock.json")


RESOLVED = [row for row in ROWS if committed_lock(row).resolved]


def text_of(row: str) -> str:
    return (IMAGES / row / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def renderings() -> dict[str, Rendering]:
    known = facts.load()
    return {row: render(plan.make(ROWS[row], committed_lock(row), known), REPOSITORY / "templates") for row in RESOLVED}


# --- what is committed ------------------------------------------------------------------------------------------------


@every_row
def test_the_committed_dockerfile_is_what_the_row_renders_now(row: str) -> None:
    made = dockerfile(plan.make(ROWS[row], committed_lock(row), facts.load()), REPOSITORY / "templates")
    assert (IMAGES / row / "Dockerfile").read_bytes() == made, "if that is meant: envbuild render --all --write"


@every_row
def test_the_committed_lock_is_one_of_the_row_now_and_in_its_final_form(row: str) -> None:
    found = committed_lock(row)
    assert lock.stale(found, ROWS[row], found.platform) is None, f"envbuild lock {row}"
    assert (IMAGES / row / "lock.json").read_text() == lock.text(found)
    assert found.resolved or row in UNRESOLVED, "what could be locked stays locked"


def test_images_has_every_row_and_nothing_else() -> None:
    assert {path.name for path in IMAGES.iterdir()} == set(ROWS)
    found = {path.name for path in IMAGES.rglob("*") if path.is_file()}
    assert found <= {"Dockerfile", "lock.json", "record.json", "record.dsse.json"}


def test_render_check_is_content() -> None:
    """The same question as CI asks with the command."""
    found = check_images(Workbench(project_folder=REPOSITORY), ROWS, everything=True)
    assert [finding for finding in found if finding.severity is Severity.ERROR] == []


def test_a_committed_record_is_of_what_its_row_is_now(renderings: dict[str, Rendering]) -> None:
    """A proof that is reviewed in a pull request must not fall behind the row, the lock or the templates."""
    for record in IMAGES.glob("*/record.json"):
        row = record.parent.name
        assert json.loads(record.read_text())["target_id"] == renderings[row].target_id, row


def test_the_rest_of_a_build_context_follows_from_the_lock(renderings: dict[str, Rendering]) -> None:
    path = HERE / "contexts.json"
    made = {
        row: {
            name: hashlib.sha256(content).hexdigest()
            for name, content in rendering.files.items()
            if name == "constraints.txt" or name.startswith("requirements/")
        }
        for row, rendering in renderings.items()
    }
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json.dumps(made, indent=2, sort_keys=True) + "\n")
    assert json.loads(path.read_text()) == made, f"{path} differs; if that is meant: UPDATE_GOLDEN=1 make golden"


@every_row
def test_an_unresolved_lock_gives_the_same_dockerfile(row: str) -> None:
    env, known = ROWS[row], facts.load()
    found = committed_lock(row)
    without = lock.unresolved(env, platform=found.platform, missing=("torch: gone",), base=found.base)
    for other in (None, without):
        made = dockerfile(plan.make(env, other, known), REPOSITORY / "templates")
        assert made == dockerfile(plan.make(env, found, known), REPOSITORY / "templates")


def test_bytes_depend_on_no_hash_seed_and_no_folder(renderings: dict[str, Rendering], tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(REPOSITORY / "templates", project / "templates")
    shutil.copytree(REPOSITORY / "facts", project / "facts")
    shutil.copy(REPOSITORY / "matrix.yaml", project)
    for seed, folder in (("0", project), ("4711", Path("/"))):
        shutil.rmtree(project / "images", ignore_errors=True)
        shutil.copytree(IMAGES, project / "images", ignore=shutil.ignore_patterns("Dockerfile", "record.*"))
        env = {**os.environ, "PYTHONHASHSEED": seed, "ENVBUILD_HOME": str(tmp_path / "home")}

        def envbuild(*words: str, env: dict[str, str] = env, folder: Path = folder) -> str:
            argv = [str(BIN / "envbuild"), "render", *words, "--project", str(project)]
            return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=True,
                                  timeout=60).stdout  # fmt: skip

        envbuild("--all", "--write")
        assert {row: (project / "images" / row / "Dockerfile").read_text() for row in ROWS} == {
            row: text_of(row) for row in ROWS
        }
        said = json.loads(envbuild("h200-cu130", "--json"))["plan"]
        assert said["target_id"] == renderings["h200-cu130"].target_id
        assert {name: text.encode() for name, text in said["files"].items()} == dict(renderings["h200-cu130"].files)


def test_rows_never_share_a_target_id(renderings: dict[str, Rendering]) -> None:
    assert len({each.target_id for each in renderings.values()}) == len(RESOLVED)
    assert len({each.id8 for each in renderings.values()}) == len(RESOLVED)


# --- what is in it ----------------------------------------------------------------------------------------------------


def test_hadolint_has_nothing_to_say() -> None:
    paths = [str(IMAGES / row / "Dockerfile") for row in ROWS]
    argv = [str(BIN / "hadolint"), "--config", str(REPOSITORY / ".hadolint.yaml"), *paths]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@every_row
def test_only_what_docker_20_10_and_buildah_1_28_understand(row: str) -> None:
    text = text_of(row)
    assert not re.search(r"^#\s*(syntax|escape)\s*=", text, re.MULTILINE | re.IGNORECASE)
    assert "<<" not in text, "heredocs need a newer frontend"
    assert not re.search(r"^(COPY|ADD)\b.*--(link|parents|exclude|checksum)", text, re.MULTILINE)
    assert not re.search(r"^RUN\b.*--(network|security)=", text, re.MULTILINE)
    assert "{{" not in text and "{%" not in text
    assert all(line == line.rstrip() for line in text.splitlines()), "a space behind a backslash ends the command"


def compiler(env: Environment, language: str) -> str:
    """Where the package of the row's compiler puts it: by version in /usr/bin, or in a collection of its own."""
    collection = re.fullmatch(r"((?:gcc-toolset|devtoolset)-\d+)-gcc", env.gcc.package)
    if collection:
        return f"/opt/rh/{collection[1]}/root/usr/bin/{language}"
    return f"/usr/bin/{env.gcc.package.replace('gcc', language)}"


@every_row
def test_compilers_are_named_by_path_and_never_by_an_alternative(row: str) -> None:
    env, text = ROWS[row], text_of(row)
    assert "alternatives --" not in text and "update-alternatives" not in text
    # A collection is used by its paths: enabled, it would change what every other command finds.
    assert not re.search(r"\bscl\b +(enable|run)|scl_source|/opt/rh/\S+/enable", text)
    runtime = text[text.index("\nENV ") :]
    assert re.search(rf'^ +CC="{re.escape(compiler(env, "gcc"))}" \\$', runtime, re.MULTILINE)
    assert re.search(rf'^ +CXX="{re.escape(compiler(env, "g++"))}" \\$', runtime, re.MULTILINE)
    cuda = env.accelerator == "cuda"
    host = re.search(rf'^ +CUDAHOSTCXX="{re.escape(compiler(env, "g++"))}" \\$', runtime, re.MULTILINE)
    assert bool(host) is cuda
    assert ('NVIDIA_DRIVER_CAPABILITIES="compute,utility"' in runtime) is cuda
    assert bool(re.search(r"^ +librdmacm1?\b", text, re.MULTILINE)) is (env.fabric == "verbs")


@every_row
def test_nothing_of_a_site_or_a_secret_can_be_in_the_files(row: str, renderings: dict[str, Rendering]) -> None:
    """Mirrors, tokens and certificates come as secrets: no ARG takes one, and no address is written down."""
    assert re.findall(r"^ARG (\w+)", text_of(row), re.MULTILINE) in (["BASE"], ["BASE", "TOOLKIT"])
    files = {name: path.read_bytes() for name in ("Dockerfile", "lock.json") if (path := IMAGES / row / name)}
    files.update(renderings[row].files if row in renderings else {})
    for name, content in files.items():
        allowed = {b"download.pytorch.org"} if name == "lock.json" and row in UNRESOLVED else set()
        # Packages of a release that has ended are in its public archive only.
        allowed |= {b"vault.centos.org"} if ROWS[row].family == "centos7" else set()
        assert set(re.findall(rb"://([^/\s'\"]+)", content)) <= allowed, name
