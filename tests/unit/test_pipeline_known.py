"""What a row came to is remembered by content: the same files, the same answer; anything else, no answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import envbuild
from envbuild.pipeline.known import Known, place, recall, remember
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.workbench import Workbench

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "images" / "cpu").mkdir(parents=True)
    shutil.copy(REPOSITORY / "images" / "cpu" / "lock.json", root / "images" / "cpu")
    shutil.copy(REPOSITORY / "matrix.yaml", root)
    shutil.copytree(REPOSITORY / "templates", root / "templates")
    return root


def bench(root: Path) -> Workbench:
    """A workbench that has read nothing yet."""
    return Workbench(project_folder=root, environ={"HOME": str(root)})


def prepared(root: Path) -> Known:
    """The row `cpu`, prepared and remembered."""
    first = bench(root)
    asked = place(first, "cpu")
    target = prepare(first, "cpu")
    remember(first, target, asked)
    return Known.of(target)


def test_the_same_files_give_the_same_answer(root: Path) -> None:
    assert recall(bench(root), "cpu") is None, "nothing is known before it was prepared"
    kept = prepared(root)
    assert recall(bench(root), "cpu") == kept
    assert kept.names("registry.example/team").proven == f"registry.example/team/envbuild/cpu:{kept.id_tag}"
    assert recall(bench(root), "h200-cu130") is None, "another row"


def test_an_answer_needs_no_matrix_to_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = prepared(root)
    monkeypatch.delattr(Workbench, "matrix")
    monkeypatch.delattr(Workbench, "facts")
    assert recall(bench(root), "cpu") == kept


def _append(name: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        with (root / name).open("a") as file:
            file.write("\n")

    return change


@pytest.mark.parametrize(
    "change",
    [
        _append("matrix.yaml"),
        lambda root: shutil.copytree(REPOSITORY / "facts", root / "facts"),
        _append("images/cpu/lock.json"),
        _append("templates/_steps.j2"),
        _append("templates/files/compiler"),
        lambda root: (root / "templates" / "new.j2").touch(),
        lambda root: (root / "images" / "cpu" / "lock.json").unlink(),
        lambda root: (root / "matrix.yaml").unlink(),
    ],
    ids=["matrix", "facts", "lock", "template", "file", "new template", "no lock", "no matrix"],
)
def test_any_change_of_an_input_forgets(root: Path, change: Callable[[Path], None]) -> None:
    prepared(root)
    change(root)
    assert recall(bench(root), "cpu") is None


def test_another_envbuild_forgets(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(root)
    package = Path(envbuild.__file__ or "").parent
    copy = tmp_path / "envbuild"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "matrix" / "rules" / "ops.py").open("a") as file:
        file.write("# another rule\n")
    monkeypatch.setattr(envbuild, "__file__", str(copy / "__init__.py"))
    assert recall(bench(root), "cpu") is None


def test_a_file_that_changes_while_the_row_is_prepared_is_not_remembered(root: Path) -> None:
    first = bench(root)
    asked = place(first, "cpu")
    target = prepare(first, "cpu")
    _append("matrix.yaml")(root)
    remember(first, target, asked)
    assert recall(bench(root), "cpu") is None
    assert asked is not None and not asked.exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"row": "cpu"}', '{"row": 1, "target_id": 2}'])
def test_a_damaged_memory_is_none(root: Path, content: str) -> None:
    prepared(root)
    path = place(bench(root), "cpu")
    assert path is not None
    path.write_text(content)
    assert recall(bench(root), "cpu") is None


def test_a_memory_of_an_unknown_level_is_none(root: Path) -> None:
    prepared(root)
    path = place(bench(root), "cpu")
    assert path is not None
    path.write_text(json.dumps({**json.loads(path.read_text()), "requires": "none at all"}))
    assert recall(bench(root), "cpu") is None


def test_a_cache_that_cannot_be_written_stops_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = root / "file"
    blocked.touch()
    monkeypatch.setenv("ENVBUILD_HOME", str(blocked))
    prepared(root)
    assert recall(bench(root), "cpu") is None


def test_templates_behind_a_link_to_their_folder_count(root: Path, tmp_path: Path) -> None:
    (root / "templates" / "files").rename(tmp_path / "elsewhere")
    (root / "templates" / "files").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "round").symlink_to(root / "templates")
    kept = prepared(root)
    assert recall(bench(root), "cpu") == kept
    with (tmp_path / "elsewhere" / "compiler").open("a") as file:
        file.write("\n")
    assert recall(bench(root), "cpu") is None
