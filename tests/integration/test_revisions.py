"""Projects as git has them: links, a folder of a bigger repository, clones that have not everything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from envbuild.errors import InputError
from envbuild.pipeline import diffing
from envbuild.pipeline.many import changed_since
from envbuild.pipeline.sides import revision, side
from envbuild.pipeline.workbench import Workbench
from proving import REPOSITORY


def git(folder: Path, *words: str) -> str:
    argv = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t.invalid", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A project in a folder of a repository; its matrix and its templates lie elsewhere in it, its facts outside."""
    top, project = tmp_path / "repository", tmp_path / "repository" / "team a"
    (project / "images" / "cpu").mkdir(parents=True)
    shutil.copy(REPOSITORY / "images/cpu/lock.json", project / "images/cpu")
    (top / "shared").mkdir()
    shutil.copy(REPOSITORY / "matrix.yaml", top / "shared")
    shutil.copytree(REPOSITORY / "templates", top / "shared/templates")
    shutil.copytree(REPOSITORY / "facts", tmp_path / "facts")
    (project / "matrix.yaml").symlink_to("../shared/matrix.yaml")
    (project / "templates").symlink_to("../shared/templates")
    (project / "facts").symlink_to("../../facts")
    # A name and bytes that are no text.
    (top / "shared/templates/latin.txt").write_bytes(b"\xe9\r\n")
    git(top, "init", "-q", "-b", "main")
    git(top, "add", "-A")
    git(top, "commit", "-qm", "one")
    return project


def test_links_lead_to_what_the_revision_had(linked: Path) -> None:
    bench = Workbench(project_folder=linked)
    with revision(bench, "HEAD") as before, side(bench, None, strict=True) as after:
        assert before.files == after.files and "templates/latin.txt" in before.files and before.notes == ()
        assert all(row.effect == diffing.NOTHING for row in diffing.compare(before, after))
    template = linked / "templates" / "Dockerfile.j2"
    template.write_text(template.read_text() + "\n# changed\n")
    with revision(bench, "HEAD") as before, side(bench, None, strict=True) as after:
        assert diffing.changed_files(before, after) == (("templates/Dockerfile.j2", "changed"),)
    assert changed_since(bench, "HEAD", ["cpu"]) == ["cpu"]


def test_a_revision_that_is_not_there_says_why(linked: Path, tmp_path: Path) -> None:
    git(linked, "commit", "-qm", "two", "--allow-empty")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{linked.parent}", "shallow")
    shallow = Workbench(project_folder=tmp_path / "shallow" / "team a")
    for wanted, hint in (("HEAD~1", "--unshallow"), ("0" * 40, "build --all")):
        with pytest.raises(InputError, match="nor a git revision") as caught:
            changed_since(shallow, wanted, ["cpu"])
        assert hint in caught.value.hint
    git(tmp_path / "shallow", "checkout", "-q", "--detach")
    assert changed_since(shallow, "main", ["cpu"]) == []


def test_a_submodule_is_told(linked: Path) -> None:
    commit = git(linked, "rev-parse", "HEAD")
    git(linked, "update-index", "--add", "--cacheinfo", f"160000,{commit},team a/images/sub")
    git(linked, "commit", "-qm", "a submodule")
    with pytest.raises(InputError, match="is a git submodule"):
        changed_since(Workbench(project_folder=linked), "HEAD", ["cpu"])
