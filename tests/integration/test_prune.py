"""prune on a real engine and a real store: what has found a use between the plan and its execution stays."""

from __future__ import annotations

import contextlib
import os
import secrets
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.engines import DockerEngine
from envbuild.errors import EnvbuildError
from envbuild.events import Event, Note
from envbuild.pipeline import pruning
from envbuild.pipeline.pruning import Item
from envbuild.pipeline.workbench import Workbench
from envbuild.plan import LABEL_ENV
from proving import REPOSITORY


class Shelf:
    """Images of this test's own, on an engine that others use too."""

    def __init__(self, engine: DockerEngine, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.prefix = f"envbuild-test-{secrets.token_hex(3)}"
        self.said: list[Event] = []
        self.bench = Workbench(project_folder=REPOSITORY, sink=self.said.append)
        self._names: list[str] = []

    def image(self, row: str, *tags: str) -> str:
        tar = self.folder / "root.tar"
        with tarfile.open(tar, "w") as archive:
            archive.addfile(tarfile.TarInfo(secrets.token_hex(8)))
        made = self.name("making")
        image = self.engine.import_root(tar, made, (f"LABEL {LABEL_ENV}={row}",))
        for tag in tags:
            self.engine.tag(image, self.name(tag))
        return image

    def name(self, tag: str) -> str:
        self._names.append(f"{self.prefix}/x:{tag}")
        return self._names[-1]

    def planned(self, *, candidates: bool = False) -> list[Item]:
        return pruning.plan(self.bench, candidates=candidates)

    def clear(self) -> None:
        for name in self._names:
            with contextlib.suppress(EnvbuildError):
                self.engine.untag(name)


@pytest.fixture
def shelf(engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path / "home"))
    made = Shelf(engine, tmp_path)
    yield made
    made.clear()


def test_an_image_that_got_a_name_meanwhile_stays(shelf: Shelf) -> None:
    unnamed, other = shelf.image("cpu"), shelf.image("cpu")
    shelf.engine.tag(other, shelf.name("kept"))
    shelf.image("cpu")  # takes the name of the second
    mine = [each for each in shelf.planned() if each.what in (unnamed, other)]
    assert [each.what for each in mine] == [unnamed]
    shelf.engine.tag(unnamed, shelf.name("validated"))
    assert pruning.carry_out(shelf.bench, mine) == []
    info = shelf.engine.image(unnamed)
    assert info is not None and info.repo_tags == (f"{shelf.prefix}/x:validated",)
    assert any(isinstance(each, Note) and "in use, and stays" in each.message for each in shelf.said)


def test_candidates_of_another_projects_rows_stay(shelf: Shelf) -> None:
    ours = shelf.image("cpu", "candidate-00000001")
    theirs = shelf.image("of-another-project", "candidate-00000002")
    shelf.engine.untag(f"{shelf.prefix}/x:making")
    assert shelf.engine.image(ours) is not None and shelf.engine.image(theirs) is not None
    mine = [each.what for each in shelf.planned(candidates=True) if each.what.startswith(shelf.prefix)]
    assert mine == [f"{shelf.prefix}/x:candidate-00000001"]


def test_leftovers_are_told_once_and_one_that_is_used_again_stays(shelf: Shelf) -> None:
    blobs = shelf.bench.cache / "blobs" / "sha256"
    packing, blob = blobs / ".packing.x.tmp", blobs / ("a" * 64)
    scratch, young = shelf.bench.cache / "pull-dead", shelf.bench.cache / "pull-alive"
    for folder in (blobs, scratch, young):
        folder.mkdir(parents=True)
    for path in (packing, blob, scratch / "layer"):
        path.write_bytes(b"x")
    for path in (packing, blob, scratch):
        os.utime(path, (0, 0))
    files = [each for each in shelf.planned() if each.kind in ("file", "folder")]
    assert sorted(each.what for each in files) == sorted(map(str, (packing, blob, scratch)))
    blob.touch()
    gone = pruning.carry_out(shelf.bench, files)
    assert {each.what for each in gone} == {str(packing), str(scratch)}
    assert blob.exists() and young.is_dir() and not scratch.exists() and not packing.exists()
