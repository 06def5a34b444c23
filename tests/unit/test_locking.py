"""Rows' locks made, kept and judged, and images/ held against the rows; uv and the registry are played."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from envbuild import lock as locks
from envbuild import store
from envbuild.base import registry
from envbuild.base.registry import Told
from envbuild.errors import InputError
from envbuild.events import Event, Note
from envbuild.lock import Missing
from envbuild.model import Environment, Finding, Lock, LockedBase, Severity
from envbuild.pipeline import locks as module
from envbuild.pipeline.check import check_rows
from envbuild.pipeline.committed import check_images, draft, write_images
from envbuild.pipeline.findings import FindingsError
from envbuild.pipeline.locks import find_lock, make_lock, would_resolve
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.workbench import Workbench
from envbuild.site.pip import PipSettings

REPOSITORY = Path(__file__).parents[2]
D1, D2 = (f"sha256:{digit * 64}" for digit in "12")
MISSING = Missing(InputError("cannot resolve it", hint="a mirror"), ("torch==2.1.2+cu118: not found in the indexes",))


class Bench(Workbench):
    """A workbench whose uv and registry are played: ``made`` is what uv gives, ``told`` what the registry says."""

    made: Lock | Exception
    told: dict[str, Told]
    asked: list[dict[str, Any]]
    events: list[Event]

    def lock(self, name: str, **options: Any) -> tuple[Path, Lock]:
        return make_lock(self, self.matrix.get(name), **options)

    def notes(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Note)]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    root = tmp_path / "project"
    root.mkdir()
    for name in ("images", "facts", "templates"):
        shutil.copytree(REPOSITORY / name, root / name)
    shutil.copy(REPOSITORY / "matrix.yaml", root)
    made = Bench(project_folder=root, host="unix:///nowhere", environ={"HOME": str(tmp_path)})
    made.asked, made.events, made.told = [], [], {}
    made.sink = made.events.append
    made.made = MISSING

    def resolve(env: Environment, *, base: LockedBase | None = None, **given: Any) -> Lock:
        made.asked.append({"env": env, "base": base, **given})
        if isinstance(made.made, Exception):
            raise made.made
        return made.made.model_copy(update={"base": base})

    monkeypatch.setattr(module, "resolve", resolve)
    monkeypatch.setattr(Workbench, "pip_for", lambda self, env: PipSettings())
    monkeypatch.setattr(
        registry,
        "manifest_digest",
        lambda image, site: made.told.get(image, Told(digest=None, reason="connection refused", silent=True)),
    )
    return made


def lock_path(bench: Bench, row: str) -> Path:
    return bench.project.images / row / "lock.json"


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def about(found: list[Finding], row: str) -> list[tuple[str, Severity]]:
    return [(finding.rule, finding.severity) for finding in found if finding.subject == row]


# --- making -----------------------------------------------------------------------------------------------------------


def test_a_new_lock_goes_into_the_project(bench: Bench) -> None:
    bench.made = locks.read(lock_path(bench, "cpu"))
    lock_path(bench, "cpu").unlink()
    path, made = bench.lock("cpu")
    assert path == lock_path(bench, "cpu") and locks.read(path) == made
    assert bench.asked[0]["platform"] == "linux/amd64"
    assert bench.asked[0]["glibc"] == (2, 36), "bookworm's, so that no wheel for a newer one is locked"


def test_what_is_missing_is_written_down_only_where_that_is_wanted(bench: Bench) -> None:
    lock_path(bench, "a100-cu118").unlink()
    with pytest.raises(Missing):
        bench.lock("a100-cu118")
    assert not lock_path(bench, "a100-cu118").exists()
    path, made = bench.lock("a100-cu118", allow_unresolved=True)
    assert (made.status, made.packages, made.missing) == ("unresolved", (), MISSING.missing)
    assert locks.read(path) == made


def test_a_good_lock_is_never_overwritten_by_an_unresolved_one(bench: Bench) -> None:
    before = lock_path(bench, "cpu").read_bytes()
    with pytest.raises(Missing, match="still fits the row, and was kept"):
        bench.lock("cpu", allow_unresolved=True)
    assert lock_path(bench, "cpu").read_bytes() == before


@pytest.mark.parametrize("how", ["stale", "broken"])
def test_a_lock_that_is_no_good_is_replaced(how: str, bench: Bench) -> None:
    if how == "stale":
        replace(bench.project.matrix, '      version: "2.13.0"', '      version: "2.12.1"')
    else:
        lock_path(bench, "cpu").write_text("<<<<<<< HEAD\n")
    assert bench.lock("cpu", allow_unresolved=True)[1].status == "unresolved"


def test_other_failures_are_no_missing_wheels(bench: Bench) -> None:
    bench.made = InputError("pydantic==7 and pydantic>=2")
    before = lock_path(bench, "a100-cu118").read_bytes()
    with pytest.raises(InputError):
        bench.lock("a100-cu118", allow_unresolved=True)
    assert lock_path(bench, "a100-cu118").read_bytes() == before


# --- images by digest -------------------------------------------------------------------------------------------------

UBUNTU, TOOLKIT = "docker.io/library/ubuntu:22.04", "docker.io/nvidia/cuda:12.1.1-devel-ubuntu22.04"


def test_images_are_locked_by_the_digest_that_the_registry_says(bench: Bench) -> None:
    bench.made = locks.read(lock_path(bench, "h100-cu121"))
    bench.told = {UBUNTU: Told(digest=D1), TOOLKIT: Told(digest=D2)}
    _, made = bench.lock("h100-cu121")
    assert made.base == LockedBase(image=UBUNTU, digest=D1, toolkit_image=TOOLKIT, toolkit_digest=D2)
    target = prepare(bench, "h100-cu121")
    assert (target.plan.base_digest, target.env.base.toolkit_digest) == (D1, D2), "and built from"
    text = target.rendering.files["Dockerfile"].decode()
    assert f"ARG BASE={UBUNTU}@{D1}" in text and f"ARG TOOLKIT={TOOLKIT}@{D2}" in text
    # Where nobody answers a known digest stays, and the reason is told, once, and not written.
    bench.told = {}
    bench._told.clear()
    before = lock_path(bench, "h100-cu121").read_bytes()
    bench.lock("h100-cu121")
    assert lock_path(bench, "h100-cu121").read_bytes() == before
    assert [note for note in bench.notes() if "connection refused" in note] == [
        "docker.io: connection refused; its images are locked by tag, or by the digest that their lock had"
    ]


def test_a_registry_that_does_not_answer_is_not_asked_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def digest(image: str, site: object) -> Told:
        asked.append(image)
        return Told(digest=None, reason="no", silent="nvidia" not in image)

    monkeypatch.setattr(registry, "manifest_digest", digest)
    for image in (TOOLKIT, TOOLKIT, UBUNTU, TOOLKIT, "docker.io/library/debian:12", "quay.io/a/b:1"):
        bench.manifest_of(image)
    assert asked == [TOOLKIT, UBUNTU, "quay.io/a/b:1"]


# --- unresolved, judged and built -------------------------------------------------------------------------------------


def test_an_unresolved_lock_is_an_info_until_the_row_changes(bench: Bench) -> None:
    found = [finding for finding in check_rows(bench, ["a100-cu118"]) if finding.rule == "lock"]
    assert about(found, "a100-cu118") == [("lock", Severity.INFO)]
    assert "torch==2.1.2+cu118, torchvision==0.16.2+cu118" in found[0].message
    replace(bench.project.matrix, "numpy<2, setuptools<82]\n    waivers", "numpy<2]\n    waivers")
    changed = Workbench(project_folder=bench.project.root, environ=bench.environ)
    rows = [env.name for env in changed.matrix.environments.values() if env.pins == ("numpy<2",)]
    assert "a100-cu117" in rows
    found = [finding for finding in check_rows(changed, ["a100-cu117"]) if finding.rule == "lock"]
    assert about(found, "a100-cu117") == [("lock", Severity.ERROR)]


def test_a_row_with_an_unresolved_lock_is_locked_first_or_not_built(bench: Bench) -> None:
    with pytest.raises(FindingsError) as caught:
        prepare(bench, "a100-cu118")
    assert caught.value.exit_code == 1 and "torch==2.1.2+cu118" in caught.value.findings[0].message
    assert bench.asked == [], "to render is not to lock"
    with pytest.raises(Missing) as failed:
        prepare(bench, "a100-cu118", lock_missing=True)
    assert failed.value.missing == MISSING.missing and failed.value.hint == "a mirror"
    whole = json.loads(lock_path(bench, "cpu").read_text())["packages"]
    env = bench.matrix.get("a100-cu118")
    versions = {"torch": "2.1.2+cu118", "torchvision": "0.16.2+cu118", "deepspeed": "0.14.4"}
    packages = [{**each, "version": versions.get(each["name"], each["version"])} for each in whole]
    for name, group in (("torchvision", "torch"), ("torchaudio", "torch")):
        version = {"torchvision": "0.16.2+cu118", "torchaudio": "2.1.2+cu118"}[name]
        packages.append({"name": name, "version": version, "group": group, "hashes": [D1]})
    bench.made = Lock.model_validate(
        {
            "environment": env.name, "platform": "linux/amd64", "python": env.python, "resolver": "uv 1",
            "inputs": locks.inputs_digest(env, "linux/amd64"), "packages": packages,
        }
    )  # fmt: skip
    target = prepare(bench, "a100-cu118", lock_missing=True)
    assert target.lock.resolved and locks.read(lock_path(bench, "a100-cu118")).resolved
    assert any("could not be locked elsewhere" in note for note in bench.notes())


def test_a_broken_lock_is_a_finding_wherever_it_is_met(bench: Bench) -> None:
    path = lock_path(bench, "cpu")
    replace(path, '"version": "0.19.8"', '"version": "0.19.9"')
    for call in (lambda: find_lock(bench, bench.matrix.get("cpu")), lambda: prepare(bench, "cpu", lock_missing=True)):
        with pytest.raises(FindingsError, match="has changed since envbuild wrote it") as caught:
            call()
        assert (caught.value.exit_code, caught.value.findings[0].fix) == (1, "envbuild lock cpu")
    assert ("lock", Severity.ERROR) in about(check_rows(bench, ["cpu"]), "cpu")


def test_whether_a_row_could_be_locked_here_writes_nothing(bench: Bench) -> None:
    env, before = bench.matrix.get("a100-cu118"), lock_path(bench, "a100-cu118").read_bytes()
    assert not would_resolve(bench, env)
    bench.made = locks.read(lock_path(bench, "cpu"))
    assert would_resolve(bench, env)
    assert lock_path(bench, "a100-cu118").read_bytes() == before


# --- images/ ----------------------------------------------------------------------------------------------------------


def errors(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.severity is Severity.ERROR]


def test_what_is_committed_is_held_against_the_row(bench: Bench) -> None:
    rows = ["cpu", "h100-cu121", "a100-cu118"]
    assert errors(check_images(bench, rows, everything=False)) == []
    path = bench.project.images / "cpu" / "Dockerfile"
    good = path.read_bytes()
    number = good.decode().splitlines().index("FROM ${BASE} AS toolchain") + 1
    path.write_bytes(good.replace(b"FROM ${BASE} AS toolchain", b"FROM debian AS toolchain"))
    (found,) = errors(check_images(bench, rows, everything=False))
    assert (found.rule, found.subject, found.line, found.file) == ("render", "cpu", number, str(path))
    assert "'FROM ${BASE} AS toolchain'" in found.message and found.fix == "envbuild render cpu --write"
    path.write_bytes(good + b"USER root\n")
    (found,) = errors(check_images(bench, rows, everything=False))
    assert "there is more than there should be" in found.message
    path.unlink()
    (bench.project.images / "old-row").mkdir()
    found_all = errors(check_images(bench, rows, everything=True))
    assert [finding.subject for finding in found_all] == ["cpu", "old-row"]


def test_what_is_no_file_is_no_dockerfile(bench: Bench) -> None:
    path = bench.project.images / "cpu" / "Dockerfile"
    path.unlink()
    path.symlink_to("/dev/zero")
    (found,) = errors(check_images(bench, ["cpu"], everything=False))
    assert found.message == f"{path} is not there"
    assert write_images(bench, ["cpu"]) == ([path], []) and not path.is_symlink()


def test_write_changes_what_differs_and_nothing_else(bench: Bench) -> None:
    rows = ["cpu", "h100-cu121", "a100-cu118"]
    path = bench.project.images / "a100-cu118" / "Dockerfile"
    good = path.read_bytes()
    path.unlink()
    assert write_images(bench, rows) == ([path], [])
    assert path.read_bytes() == good
    assert write_images(bench, rows) == ([], [])


def test_a_row_that_cannot_be_rendered_hides_no_other(bench: Bench) -> None:
    replace(bench.project.matrix, "    family: debian", "    family: gentoo")
    for name in ("cpu", "h100-cu121"):
        (bench.project.images / name / "Dockerfile").unlink()
    changed, failed = write_images(bench, ["cpu", "h100-cu121"])
    assert changed == [bench.project.images / "h100-cu121" / "Dockerfile"]
    assert [(finding.rule, finding.subject) for finding in failed] == [("render", "cpu")]
    assert about(check_images(bench, ["cpu"], everything=False), "cpu") == [("render", Severity.ERROR)]


def test_a_lock_that_is_missing_or_stale_is_named_and_hides_no_dockerfile(bench: Bench) -> None:
    lock_path(bench, "h100-cu121").unlink()
    found = check_images(bench, ["h100-cu121"], everything=False)
    assert about(found, "h100-cu121") == [("lock", Severity.ERROR)]
    assert found[0].fix == "envbuild lock h100-cu121 (where its wheels cannot be had: --allow-unresolved)"
    replace(bench.project.matrix, '      version: "2.13.0"', '      version: "2.12.1"')
    changed = Workbench(project_folder=bench.project.root, environ=bench.environ)
    assert about(check_images(changed, ["cpu"], everything=False), "cpu") == [("lock", Severity.ERROR)]


def test_a_record_of_other_inputs_is_a_warning(bench: Bench) -> None:
    record = bench.project.images / "cpu" / "record.json"
    target = draft(bench, bench.matrix.get("cpu")).rendering
    assert target is not None
    record.write_text(json.dumps({"target_id": target.target_id}))
    assert check_images(bench, ["cpu"], everything=False) == []
    for content in ('{"target_id": "f00"}', "[]", "{"):
        record.write_text(content)
        (found,) = check_images(bench, ["cpu"], everything=False)
        assert found.fix == "envbuild build cpu --record"


def test_the_packaged_images_are_read_and_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Workbench(environ={"HOME": str(tmp_path)})
    assert bench.project.packaged
    assert errors(check_images(bench, ["cpu", "b200-cu132"], everything=False)) == []
    with pytest.raises(InputError, match="read-only"):
        write_images(bench, ["cpu"])


def test_a_users_own_lock_is_not_what_is_committed(bench: Bench) -> None:
    own = locks.read(lock_path(bench, "cpu"))
    lock_path(bench, "cpu").unlink()
    locks.write(store.home() / "locks" / "cpu" / "lock.json", own)
    assert find_lock(bench, bench.matrix.get("cpu")) is not None
    assert about(check_images(bench, ["cpu"], everything=False), "cpu") == [("lock", Severity.ERROR)]


def test_a_lock_for_another_platform_than_the_rows_is_stale(bench: Bench) -> None:
    replace(bench.project.matrix, "  cpu_baseline: x86-64-v3\n", "  cpu_baseline: armv8-a\n")
    replace(bench.project.matrix, "platforms: [linux/amd64]", "platforms: [linux/arm64]")
    assert about(check_rows(bench, ["cpu"]), "cpu")[-1] == ("lock", Severity.ERROR)
