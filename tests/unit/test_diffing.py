"""diff: what a change of the matrix, the locks, the templates or the facts asks for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from envbuild import evidence, store
from envbuild.errors import InputError
from envbuild.judge.suite import suite_hash
from envbuild.lock import read, write
from envbuild.matrix import MatrixError
from envbuild.pipeline import diffing
from envbuild.pipeline.diffing import RowChange, changed_rows, compare
from envbuild.pipeline.proof import claims
from envbuild.pipeline.sides import side
from envbuild.pipeline.workbench import Workbench

REPOSITORY = Path(__file__).parents[2]
# Two rows with locks, and one without.
ROWS = ("cpu", "h200-cu130", "h100-cu124")


def make(root: Path) -> Path:
    for folder in ("facts", "templates"):
        shutil.copytree(REPOSITORY / folder, root / folder)
    for row in ROWS[:2]:
        (root / "images" / row).mkdir(parents=True)
        shutil.copy(REPOSITORY / "images" / row / "lock.json", root / "images" / row)
    head, rows = (REPOSITORY / "matrix.yaml").read_text().split("environments:\n")
    parts = rows.split("\n\n")
    kept = [part for part in parts if any(f"\n  {row}:\n" in f"\n{part}" for row in ROWS)]
    (root / "matrix.yaml").write_text(f"{head}environments:\n" + "\n\n".join(kept) + "\n")
    return root


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return make(tmp_path / "old")


@pytest.fixture
def new(old: Path, tmp_path: Path) -> Path:
    return shutil.copytree(old, tmp_path / "new")


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def rows_of(old: Path, new: Path, **given: Any) -> dict[str, RowChange]:
    bench = Workbench(project_folder=new)
    with side(bench, str(old)) as one, side(bench, given.get("asked"), strict=True) as two:
        return {row.name: row for row in compare(one, two)}


def test_two_copies_are_the_same(old: Path, new: Path) -> None:
    rows = rows_of(old, new)
    assert set(rows) == set(ROWS)
    assert {(row.status, row.effect, row.fields) for row in rows.values()} == {("same", "nothing", ())}
    assert rows["cpu"].old_id == rows["cpu"].new_id and rows["h100-cu124"].new_id is None


# file, before, after; row; effect, causes, changed paths
CHANGES: list[tuple[str, str, str, str, str, tuple[str, ...], list[str]]] = [
    ("matrix.yaml", "summary: H200 with", "summary: Fast with", "h200-cu130", "nothing", (), ["summary"]),
    ("matrix.yaml", "note: compiled without a GPU;", "note: only", "h200-cu130", "nothing", (), ["sources.deepspeed"]),
    ("matrix.yaml", 'driver: "580"', 'driver: "590"', "h200-cu130", "nothing", (), ["driver"]),
    ("matrix.yaml", "    gpus: [h200]", "    gpus: [h200]\n    shm_size: 2GiB", "h200-cu130", "prove", ("shm_size",),
     ["shm_size"]),
    ("matrix.yaml", "    gpus: [h200]", "    gpus: [h200]\n    packages: [git]", "h200-cu130", "rebuild", ("packages",),
     ["packages"]),
    ("matrix.yaml", "gpus: [h200]", "gpus: [h100]", "h200-cu130", "rebuild", ("gpus",), ["gpus"]),
    ("matrix.yaml", "gpus: [h100]", "gpus: [h100, a100]", "h100-cu124", "rebuild", ("gpus",), ["gpus"]),
    ("matrix.yaml", "cpu_baseline: x86-64-v3", "cpu_baseline: x86-64-v2", "cpu", "rebuild", ("cpu_baseline",),
     ["cpu_baseline"]),
    ("facts/gpus.yaml", 'h200: {name: H200, sm: "9.0"', 'h200: {name: H200, sm: "10.0"', "h200-cu130", "rebuild",
     ("facts",), []),
    ("facts/gpus.yaml", "v100: {name: V100", "v100: {name: V 100", "h200-cu130", "nothing", (), []),
    ("templates/Dockerfile.j2", "\n", "\n# changed\n", "cpu", "rebuild", ("templates",), []),
]  # fmt: skip


@pytest.mark.parametrize(("file", "before", "after", "row", "effect", "causes", "paths"), CHANGES)
def test_what_a_change_asks_for(
    file: str, before: str, after: str, row: str, effect: str, causes: tuple[str, ...], paths: list[str],
    old: Path, new: Path,
) -> None:  # fmt: skip
    change(new / file, before, after)
    rows = rows_of(old, new)
    found = rows[row]
    assert (found.effect, found.causes, [each.path for each in found.fields]) == (effect, causes, paths)
    assert (found.old_id == found.new_id) == (effect != "rebuild" or row == "h100-cu124")
    if "gpus.yaml" in file or row == "h200-cu130":
        assert rows["cpu"].effect == "nothing"
    bench = Workbench(project_folder=new)
    with side(bench, str(old)) as one, side(bench, None) as two:
        told = {each.name for each in changed_rows(one, two)}
        assert (row in told) == bool(paths or causes)
        assert bool(diffing.changed_files(one, two)) == (file != "matrix.yaml")
        assert bool(diffing.changed_facts(one, two)) == file.startswith("facts")
        assert json.dumps([diffing.as_dict(each) for each in compare(one, two)])


def test_a_new_version_says_who_says_so_and_that_the_lock_is_stale(old: Path, new: Path) -> None:
    change(new / "matrix.yaml", 'version: "0.19.8"\n      # Compiled', 'version: "0.19.7"\n      # Compiled')
    row = rows_of(old, new)["cpu"]
    (field,) = row.fields
    assert (field.path, field.old, field.new) == ("deepspeed.version", "0.19.8", "0.19.7")
    assert field.source.startswith("verified: measured by running DeepSpeed 0.19.8")
    assert row.effect == "rebuild" and "deepspeed" in row.causes
    assert any("stale" in note and "envbuild lock cpu" in note for note in row.notes)


def test_a_lock_alone_is_a_reason(old: Path, new: Path) -> None:
    path = new / "images" / "cpu" / "lock.json"
    lock = read(path)
    packages = (
        each.model_copy(update={"version": "0.0.1"}) if each.name == "einops" else each for each in lock.packages
    )
    write(path, lock.model_copy(update={"packages": tuple(packages)}))
    row = rows_of(old, new)["cpu"]
    assert (row.status, row.effect, row.causes) == ("changed", "rebuild", ("lock",))
    ((name, before, after),) = [(each.name, each.old, each.new) for each in row.lock]
    assert (name, after) == ("einops", "0.0.1") and before
    path.write_text("{")
    broken = rows_of(old, new)["cpu"]
    assert broken.new_id is None and any("lock.json" in note for note in broken.notes)
    assert broken.lock == () and broken.causes == ("lock",), "what cannot be read is not gone"
    shutil.copy(path, old / "images" / "cpu" / "lock.json")
    shutil.copy(REPOSITORY / "images" / "cpu" / "lock.json", path)
    back = rows_of(old, new)["cpu"]
    assert back.new_id and back.lock == () and back.causes == ("lock",)
    assert any(str(old) in note and "lock.json" in note for note in back.notes)


def test_rows_come_and_go(old: Path, new: Path) -> None:
    text = (new / "matrix.yaml").read_text()
    (new / "matrix.yaml").write_text(text.replace("  h200-cu130:", "  h300-cu130:"))
    rows = rows_of(old, new)
    assert rows["h200-cu130"].status == "removed" and rows["h200-cu130"].old_id
    assert (rows["h300-cu130"].status, rows["h300-cu130"].effect) == ("added", "rebuild")


def test_a_rule_that_is_broken_now_is_told(old: Path, new: Path) -> None:
    text = (new / "matrix.yaml").read_text()
    (new / "matrix.yaml").write_text(text.replace("gpus: [h200]", "gpus: [v100]"))
    told = {(word, finding.rule) for word, finding in rows_of(old, new)["h200-cu130"].rules}
    assert ("new", "R09") in told


def test_an_old_matrix_that_this_schema_refuses_is_compared_as_far_as_it_goes(old: Path, new: Path) -> None:
    change(old / "matrix.yaml", "    summary: H200 with", "    flavour: sweet\n    summary: H200 with")
    bench = Workbench(project_folder=new)
    with side(bench, str(old)) as one, side(bench, None) as two:
        (note,) = one.notes
        rows = {row.name: row for row in compare(one, two)}
    assert "line " in note and "flavour" in note and "matrix.yaml" in note
    assert rows["cpu"].status == "same"
    row = rows["h200-cu130"]
    assert (row.status, row.effect) == ("changed", "rebuild")
    assert ("flavour", "sweet", None) in [(each.path, each.old, each.new) for each in row.fields]
    with pytest.raises(MatrixError), side(bench, str(old), strict=True):
        pass
    (old / "matrix.yaml").write_text("[" * 100)
    with pytest.raises(MatrixError), side(bench, str(old)):
        pass


def test_a_bare_matrix_is_compared_with_all_else_as_it_is_here(new: Path, tmp_path: Path) -> None:
    shutil.copy(new / "matrix.yaml", tmp_path / "before.yaml")
    change(tmp_path / "before.yaml", "gpus: [h200]", "gpus: [h100]")
    rows = rows_of(tmp_path / "before.yaml", new)
    assert rows["h200-cu130"].causes == ("gpus",) and rows["cpu"].effect == "nothing"
    with pytest.raises(InputError, match="does not exist"), side(Workbench(project_folder=new), "./gone.yaml"):
        pass


def record(new: Path, **given: Any) -> evidence.Evidence:
    row = Workbench(project_folder=new).matrix.get("cpu")
    said = {
        "schema": "envbuild.evidence/1", "environment": "cpu", "target_id": None, "level": "cpu",
        "suite": suite_hash(), "envbuild": "0.1.0", "image": {"config_digest": f"sha256:{'a' * 64}", "diff_ids": []},
        "platform": "linux/amd64", "size_bytes": 1, "base": {}, "claims": claims(row), "content": {}, "portability": {},
        "smoke": {}, "findings": [], "seconds": {},
        "started": "2026-11-01T12:00:00Z", "finished": "2026-11-01T12:01:00Z",
        "host": {"system": "s", "machine": "m", "cpu": "c", "cpus": 1, "memory_bytes": 1, "engine": "e"},
    } | given  # fmt: skip
    return evidence.Evidence.model_validate(said)


@pytest.mark.parametrize(
    ("given", "against"),
    [
        ({}, ""),
        ({"suite": "5" * 64}, "another suite"),
        ({"level": "built"}, "requires cpu"),
        ({"target_id": "5" * 64}, "other inputs"),
        ({"claims": {}}, "claims something else"),
    ],
)
def test_evidence_counts_as_long_as_all_of_it_fits(given: dict[str, Any], against: str, old: Path, new: Path) -> None:
    change(new / "matrix.yaml", "summary: H200 with", "summary: Fast with")
    target_id = rows_of(old, new)["cpu"].new_id
    assert target_id
    seen = record(new, **{"target_id": target_id, **given})
    store.write_json(new / "images" / "cpu" / "record.json", seen.model_dump(mode="json", by_alias=True))
    evidence.save(seen, "sha256:engine")
    evidence.remember_built(target_id, "sha256:engine")
    found = rows_of(old, new)["cpu"].evidence
    assert len(found) == 2 and {each.valid for each in found} == {not against}
    assert all(against in "; ".join(each.against) for each in found)
