"""Leftovers of dead runs go; everything else stays."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from envbuild.engines.cleanup import HOST_LABEL, RUN_LABEL, Run, host_id, sweep
from envbuild.engines.types import ContainerInfo
from envbuild.errors import EngineError


class FakeEngine:
    endpoint = "unix:///fake.sock"

    def __init__(self, *labels: dict[str, str]) -> None:
        self.all = [
            ContainerInfo(id=f"{number:064d}", image="i", state="running", labels=tuple(each.items()))
            for number, each in enumerate(labels)
        ]
        self.asked = 0

    def containers(self, label: str) -> tuple[ContainerInfo, ...]:
        self.asked += 1
        key, _, value = label.partition("=")
        return tuple(each for each in self.all if dict(each.labels).get(key) == value)

    def remove_container(self, container: str) -> None:
        self.all = [each for each in self.all if each.id != container]

    def runs(self) -> list[str]:
        return [dict(each.labels).get(RUN_LABEL, "") for each in self.all]


def test_only_dead_runs_of_this_store_and_host_are_swept(tmp_path: Path) -> None:
    runs, contexts = tmp_path / "runs", tmp_path / "contexts"
    dead = Run(runs, contexts)
    with dead:
        pass
    here = {HOST_LABEL: host_id()}
    with Run(runs, contexts) as live:
        for run in (dead, live):
            (contexts / run.id).mkdir(parents=True)
        engine = FakeEngine(
            {**here, RUN_LABEL: dead.id},
            {**here, RUN_LABEL: live.id},
            {**here, RUN_LABEL: "of-another-users-store"},
            {HOST_LABEL: "another-host", RUN_LABEL: dead.id},
            {"unrelated": "1"},
        )
        removed = sweep(engine, runs, contexts)
        assert engine.runs() == [live.id, "of-another-users-store", dead.id, ""]
        assert len(removed) == 2
        assert all(dead.id in line for line in removed)
        assert (contexts / live.id).is_dir()
        assert not (contexts / dead.id).exists()
        assert [path.stem for path in runs.glob("*.lock")] == [live.id]
        assert sweep(engine, runs, contexts) == []


def test_a_run_that_ended_well_leaves_no_folder_but_its_mark(tmp_path: Path) -> None:
    with Run(tmp_path / "runs", tmp_path / "contexts") as run:
        run.folder.mkdir(parents=True)
        (run.folder / "secret").touch()
    assert not run.folder.exists()
    # A container whose removal failed is found by this file.
    assert (tmp_path / "runs" / f"{run.id}.lock").exists()


def test_nothing_to_sweep_asks_the_engine_nothing(tmp_path: Path) -> None:
    engine = FakeEngine()
    assert sweep(engine, tmp_path / "runs", tmp_path / "contexts") == []
    assert engine.asked == 0


def test_a_sweep_that_fails_keeps_the_mark_for_the_next(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with Run(runs, tmp_path) as dead:
        pass

    class Stuck(FakeEngine):
        def remove_container(self, container: str) -> None:
            raise EngineError("gone")

    labels = {HOST_LABEL: host_id(), RUN_LABEL: dead.id}
    with pytest.raises(EngineError, match="gone"):
        sweep(Stuck(labels), runs, tmp_path)
    assert (runs / f"{dead.id}.lock").exists()
    assert len(sweep(FakeEngine(labels), runs, tmp_path)) == 1


def test_a_sweep_with_one_engine_leaves_the_marks_of_another(tmp_path: Path) -> None:
    runs, contexts = tmp_path / "runs", tmp_path / "contexts"
    with Run(runs, contexts, "/usr/bin/podman") as dead:
        (contexts / dead.id).mkdir(parents=True)
        (contexts / dead.id).rename(contexts / "kept")
    (contexts / "kept").rename(contexts / dead.id)
    labels = {HOST_LABEL: host_id(), RUN_LABEL: dead.id}
    assert sweep(FakeEngine(), runs, contexts) == [f"build context of run {dead.id}"]
    podman = FakeEngine(labels)
    podman.endpoint = "/usr/bin/podman"
    assert sweep(podman, runs, contexts) == [f"container {0:012d} of run {dead.id}"]
    assert not list(runs.iterdir()) and podman.runs() == []


def test_run_labels_do_not_name_the_host() -> None:
    labels = dict(Run.begin().labels)
    assert len(labels[HOST_LABEL]) == 12
    assert socket.gethostname() not in labels.values()
    assert Run.begin().id != Run.begin().id
