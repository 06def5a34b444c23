"""Rows without an engine: what check says of them, what a container of theirs looks like, what --record writes."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from envbuild.engines import ContainerResult, Run
from envbuild.errors import InputError
from envbuild.judge.suite import probes_folder
from envbuild.model import Severity
from envbuild.pipeline import recording
from envbuild.pipeline.check import check_rows
from envbuild.pipeline.prepare import FindingsError, prepare
from envbuild.pipeline.running import run_spec
from envbuild.pipeline.sizes import format_size, parse_size
from envbuild.pipeline.smoking import CPU, smoke_image, smoke_spec
from envbuild.pipeline.summary import summary
from envbuild.pipeline.workbench import Workbench

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "images" / "cpu").mkdir(parents=True)
    shutil.copy(REPOSITORY / "matrix.yaml", root)
    shutil.copy(REPOSITORY / "images" / "cpu" / "lock.json", root / "images" / "cpu")
    return root


def workbench(root: Path | None, home: Path) -> Workbench:
    return Workbench(project_folder=root, host="unix:///nowhere", environ={"HOME": str(home)})


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# --- check ------------------------------------------------------------------------------------------------------------


def lock_findings(bench: Workbench, row: str) -> list[tuple[Severity, str, str]]:
    return [(f.severity, f.message, f.fix) for f in check_rows(bench, [row]) if f.rule == "lock"]


def test_a_good_lock_is_not_mentioned_and_a_missing_one_is_no_error(project: Path, tmp_path: Path) -> None:
    bench = workbench(project, tmp_path)
    assert lock_findings(bench, "cpu") == []
    [(severity, _, fix)] = lock_findings(bench, "a100-cu118")
    assert (severity, fix) == (Severity.INFO, "envbuild lock a100-cu118")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('version: "2.13.0"\n      build: cpu', 'version: "2.12.1"\n      build: cpu', "torch 2.13.0+cpu"),
        ("      ops: [cpu_adam, deepspeed_shm_comm, async_io]", "      ops: [cpu_adam]\n    pins: [numpy<2]", "pins"),
        ("cpu_baseline: x86-64-v3", "cpu_baseline: x86-64-v2", None),
    ],
    ids=["torch", "pins", "what the lock does not depend on"],
)
def test_a_stale_lock_is_an_error(project: Path, tmp_path: Path, old: str, new: str, said: str | None) -> None:
    replace(project / "matrix.yaml", old, new)
    bench = workbench(project, tmp_path)
    found = lock_findings(bench, "cpu")
    if said is None:
        assert found == []
        return
    [(severity, message, fix)] = found
    assert severity is Severity.ERROR and said in message and fix == "envbuild lock cpu"
    with pytest.raises(FindingsError) as caught:
        prepare(bench, "cpu")
    assert caught.value.exit_code == 1


def test_a_corrupt_lock_is_a_finding_with_its_place(project: Path, tmp_path: Path) -> None:
    path = project / "images" / "cpu" / "lock.json"
    path.write_text('{"schema": 1,\n}')
    [(severity, message, fix)] = lock_findings(workbench(project, tmp_path), "cpu")
    assert severity is Severity.ERROR
    assert message.startswith(f"{path}:2:1: ") and "envbuild lock" in fix


def test_rows_are_checked_one_by_one_in_the_order_asked(project: Path, tmp_path: Path) -> None:
    bench = workbench(project, tmp_path)
    both = check_rows(bench, ["h200-cu130", "a100-cu118"])
    assert both == check_rows(bench, ["h200-cu130"]) + check_rows(bench, ["a100-cu118"])
    with pytest.raises(InputError, match="no environment 'cup'"):
        check_rows(bench, ["cpu", "cup"])


def test_every_finding_of_a_broken_row_is_told_at_once(project: Path, tmp_path: Path) -> None:
    path = project / "matrix.yaml"
    start, row = path.read_text().split("  h200-cu130:")
    row = row.replace('python: "3.11"', 'python: "3.8"').replace('version: "12.2"', 'version: "99.0"')
    path.write_text(f"{start}  h200-cu130:{row}")
    found = check_rows(workbench(project, tmp_path), ["h200-cu130"])
    errors = {finding.rule for finding in found if finding.severity is Severity.ERROR}
    assert {"R01", "R20"} <= errors
    assert all(finding.line and finding.fix for finding in found if finding.rule != "lock")


# --- locks ------------------------------------------------------------------------------------------------------------


def test_without_a_lock_nothing_is_prepared_unless_locking_is_allowed(project: Path, tmp_path: Path) -> None:
    with pytest.raises(FindingsError) as caught:
        prepare(workbench(project, tmp_path), "a100-cu118")
    assert caught.value.hint == "Make one: envbuild lock a100-cu118"
    assert [finding.rule for finding in caught.value.findings] == ["lock"]


# --- record -----------------------------------------------------------------------------------------------------------


def test_record_refuses_the_packaged_matrix_before_it_reads_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bench = workbench(None, tmp_path)
    assert bench.project.packaged
    before = {path: path.stat().st_mtime_ns for path in bench.project.images.rglob("*")}
    with pytest.raises(InputError, match="read-only") as caught:
        recording.record(bench, prepare(bench, "cpu"), tmp_path / "no-such-record.json")
    assert "envbuild init" in caught.value.hint
    with pytest.raises(InputError, match="read-only"):
        recording.require_writable(bench)
    assert {path: path.stat().st_mtime_ns for path in bench.project.images.rglob("*")} == before


def test_record_writes_what_is_reviewed(project: Path, tmp_path: Path) -> None:
    bench = workbench(project, tmp_path)
    target = prepare(bench, "cpu")
    evidence = tmp_path / "evidence.json"
    seen = {
        "schema": "envbuild.evidence/1", "environment": "cpu", "target_id": target.rendering.target_id, "level": "cpu",
        "suite": "5" * 64, "envbuild": "0.1.0", "image": {"config_digest": f"sha256:{'a' * 64}", "diff_ids": []},
        "platform": "linux/amd64", "size_bytes": 1, "base": {}, "claims": {}, "content": {}, "portability": {},
        "smoke": {}, "findings": [], "seconds": {},
        "started": "2026-11-01T12:00:00Z", "finished": "2026-11-01T12:01:00Z",
        "host": {"system": "s", "machine": "m", "cpu": "c", "cpus": 1, "memory_bytes": 1, "engine": "e"},
    }  # fmt: skip
    evidence.write_text(json.dumps(seen))
    lock_before = (project / "images" / "cpu" / "lock.json").read_bytes()
    paths = recording.record(bench, target, evidence)
    folder = project / "images" / "cpu"
    assert paths == (folder / "Dockerfile", folder / "lock.json", folder / "record.json")
    assert (folder / "Dockerfile").read_bytes() == target.rendering.files["Dockerfile"]
    assert (folder / "lock.json").read_bytes() == lock_before, "the committed lock is already in its final form"
    said = json.loads((folder / "record.json").read_text())
    assert said["target_id"] == target.rendering.target_id and said["level"] == "cpu"
    assert recording.record(bench, target, folder / "record.json") == paths, "a record is evidence itself"


# --- containers -------------------------------------------------------------------------------------------------------


def test_smoke_runs_as_a_strict_cluster_would(project: Path, tmp_path: Path) -> None:
    env = workbench(project, tmp_path).matrix.get("cpu")
    with Run.begin() as run:
        spec = smoke_spec(env, "image", ("true",), run)
    assert (spec.network, spec.read_only, spec.cap_drop_all, spec.no_new_privileges) == ("none", True, True, True)
    assert spec.user is not None and not spec.user.startswith("0")
    assert [(mount.source, mount.read_only) for mount in spec.mounts] == [(probes_folder(), True)]
    assert spec.shm_bytes == 1 << 30 and spec.memlock == -1
    assert spec.gpus == () and not spec.interactive
    assert dict(spec.labels) == dict(run.labels), "a later run finds what this one leaves"


def test_a_disk_folder_is_mounted_for_writing_where_a_row_can_swap(project: Path, tmp_path: Path) -> None:
    env = workbench(project, tmp_path).matrix.get("cpu")

    class Engine:
        def run(self, spec: Any, timeout: float) -> ContainerResult:
            self.disk = next((mount for mount in spec.mounts if not mount.read_only), None)
            self.argv = spec.argv
            if self.disk is not None:
                mode = stat.S_IMODE(self.disk.source.stat().st_mode)
                assert mode == 0o777, "the container's user is none of this host's"
                (self.disk.source / "zero_stage_3").mkdir()
            return ContainerResult(exit_code=1, stdout="", stderr="", oom_killed=False, timed_out=False, seconds=1.0)

    engine: Any = Engine()
    seeds = set()
    with Run.begin() as run:
        for _ in range(2):
            smoked = smoke_image(engine, run, env, "i", device=CPU, timeout=600.0, long_seconds=60.0)
            argv = list(engine.argv)
            assert argv[argv.index("--nvme") + 1] == engine.disk.target and "--jit" not in argv
            assert float(argv[argv.index("--seconds") + 1]) == 60 and int(argv[argv.index("--timeout") + 1]) == 640
            seeds.add(argv[argv.index("--seed") + 1])
            assert run.folder in engine.disk.source.parents and not engine.disk.source.exists()
        assert len(seeds) == 2, "chosen anew for every run"
        assert [finding.rule for finding in smoked.findings] == ["smoke.crash"]
        a100 = workbench(project, tmp_path).matrix.get("a100-cu118").model_copy(update={"accelerator": "cuda"})
        smoke_image(engine, run, a100, "i", device=CPU, timeout=600.0)
    assert "--jit" in engine.argv, "on another accelerator than its own it has to compile"
    assert "async_io" in a100.deepspeed.ops and "--nvme" not in engine.argv and engine.disk is None, (
        "which takes headers that a runtime image has none of"
    )


def test_run_gives_people_what_smoke_gave_and_their_folder(project: Path, tmp_path: Path) -> None:
    matrix = workbench(project, tmp_path).matrix
    spec = run_spec(matrix.get("cpu"), "image", ("python", "x.py"), folder=tmp_path, interactive=False)
    assert (spec.shm_bytes, spec.memlock, spec.gpus) == (1 << 30, -1, ())
    assert [(mount.source, mount.target, mount.read_only) for mount in spec.mounts] == [
        (tmp_path, str(tmp_path), False)
    ]
    assert (spec.workdir, spec.user, spec.argv) == (str(tmp_path), f"{os.getuid()}:{os.getgid()}", ("python", "x.py"))
    assert spec.env == (), "HOME is the image's: the host's may hold another torch"
    on_gpu = run_spec(matrix.get("h200-cu130"), "image", (), folder=tmp_path, interactive=True)
    assert on_gpu.gpus == ("all",) and on_gpu.interactive


def test_limits_come_from_the_row(project: Path, tmp_path: Path) -> None:
    replace(project / "matrix.yaml", "    accelerator: cpu\n",
            "    accelerator: cpu\n    shm_size: 512MiB\n    memlock: 64KiB\n")  # fmt: skip
    env = workbench(project, tmp_path).matrix.get("cpu")
    with Run.begin() as run:
        specs = (smoke_spec(env, "i", (), run), run_spec(env, "i", (), folder=tmp_path, interactive=False))
    assert {(spec.shm_bytes, spec.memlock) for spec in specs} == {(512 << 20, 64 << 10)}


# --- words and numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "count"), [("1KiB", 1 << 10), ("512MiB", 512 << 20), ("16GiB", 16 << 30)])
def test_sizes_as_rows_write_them(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"), (1_460_000_000, "1.36 GiB")],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert format_size(count) == text


def test_a_summary_never_fails_on_what_is_not_there() -> None:
    good = json.loads((Path(__file__).parent / "data" / "judge" / "zero3.json").read_text())
    lines = summary(good)
    assert len(lines) == 4 and "DeepSpeedCPUAdam over gloo" in lines[0] and "in 10 steps" in lines[0]
    assert all(text in lines[1] for text in ("checkpoint 11.4 MB", "bf16 loss", "on disk loss", "4.2 MB locked"))
    assert not any("?" in line for line in lines)
    for report in ({}, {"ranks": None}, {"ranks": [None, 3]}):
        assert summary(report) == []
    assert summary({"ranks": [{}]}) == [
        "rank ?, ? over ?, no losses, gradient error ?, ratio ?, parameter error ?, first step ? s",
        "rank ?, import ? s, peak memory ?, checkpoint ? saved in ? s, loaded in ? s",
    ]
