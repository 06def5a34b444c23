from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from envbuild import project, store
from envbuild.errors import EngineError, InputError
from envbuild.matrix.load import load as load_matrix
from envbuild.site import config


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    root = tmp_path / "mine"
    (root / "a" / "b").mkdir(parents=True)
    (root / "matrix.yaml").write_text("schema: envbuild.matrix/1\n")
    return root


def test_explicit_wins_over_the_parents(mine: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "matrix.yaml").touch()
    assert project.find(Path("../../../other"), mine / "a" / "b").root == other
    assert project.find(other / "matrix.yaml", mine).root == other


def test_nearest_parent_with_a_matrix(mine: Path) -> None:
    found = project.find(None, mine / "a" / "b")
    assert (found.root, found.matrix, found.images) == (mine, mine / "matrix.yaml", mine / "images")
    assert found.writable
    assert not found.packaged
    (mine / "a" / "matrix.yaml").touch()
    assert project.find(None, mine / "a" / "b").root == mine / "a"


def test_templates_are_the_projects_own_only_where_it_has_some(mine: Path) -> None:
    borrowed = project.find(None, mine).templates
    assert borrowed.is_dir()
    assert mine not in borrowed.parents
    (mine / "templates").mkdir()
    assert project.find(None, mine).templates == mine / "templates"


def test_without_any_matrix_the_packaged_one_is_used_and_not_written(tmp_path: Path) -> None:
    found = project.find(None, tmp_path)
    assert found.packaged
    assert not found.writable
    assert found.matrix.is_file()
    assert found.templates.is_dir()


@pytest.mark.parametrize(("name", "said"), [("empty", "has no matrix.yaml"), ("nowhere", "is not a folder")])
def test_explicit_without_matrix(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=said) as caught:
        project.find(Path(name), tmp_path)
    assert "envbuild init" in caught.value.hint


def test_locks_go_into_the_project_or_into_the_store(mine: Path, tmp_path: Path) -> None:
    own, packaged = project.find(None, mine), project.find(None, tmp_path)
    in_store = store.home() / "locks" / "cpu" / "lock.json"
    assert project.lock_path(own, "cpu") == mine / "images" / "cpu" / "lock.json"
    assert project.lock_path(packaged, "cpu") == in_store
    assert project.existing_lock(own, "cpu") is None
    store.write_atomic(in_store, "{}")
    assert project.existing_lock(own, "cpu") == in_store
    store.write_atomic(mine / "images" / "cpu" / "lock.json", "{}")
    assert project.existing_lock(own, "cpu") == mine / "images" / "cpu" / "lock.json"


def test_starter_project_is_valid_as_it_is(tmp_path: Path) -> None:
    made = project.init(tmp_path / "new")
    assert [path.name for path in made] == ["matrix.yaml", "envbuild.toml", ".gitignore"]
    found = project.find(None, tmp_path / "new")
    rows = load_matrix(found.matrix).environments
    assert list(rows) == ["cpu"]
    assert "extends" not in found.matrix.read_text()
    site = config.load(found.root, {"HOME": str(tmp_path)})
    assert site.in_file == frozenset(), "a fresh envbuild.toml sets nothing"


def test_every_commented_key_of_the_starter_works_when_it_is_uncommented(tmp_path: Path) -> None:
    project.init(tmp_path)
    path = tmp_path / "envbuild.toml"
    path.write_text(re.sub(r"(?m)^# (?=[a-z_\"\[][^ ]* ?(=|$))", "", path.read_text()))
    (tmp_path / "wheels").mkdir()
    for name in ("ca.pem", "signing-key.pem", "site.repo", "entitlement.pem", "entitlement-key.pem"):
        (tmp_path / name).touch()
    site = config.load(tmp_path, {"HOME": str(tmp_path)})
    assert site.in_file == set(config.SECTIONS)
    assert site.base.mirrors == {"docker.io": "registry.example.com/dockerhub"}
    every = {(section, key) for section, kind in config.SECTIONS.items() for key in kind.model_fields}
    said = {(section, key) for section in config.SECTIONS for key in getattr(site, section).model_fields_set}
    assert said == every, "the starter shows every key there is"


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text("mine")
    (tmp_path / ".gitignore").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"matrix\.yaml and \.gitignore"):
        project.init(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".gitignore", "matrix.yaml"]
    assert (tmp_path / "matrix.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("failure", "kind"), [(FileExistsError, InputError), (PermissionError, EngineError), (OSError, EngineError)]
)
def test_init_writes_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[OSError], kind: type[Exception]
) -> None:
    real = Path.open

    def second_fails(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == "envbuild.toml":
            raise failure(1, "no", str(self))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", second_fails)
    with pytest.raises(kind):
        project.init(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_init_into_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not a folder"):
        project.init(tmp_path / "file")
