"""Evidence is found by what an image is, and counts only for the suite and the level that it names."""

from __future__ import annotations

import datetime
import json
import platform
import shutil
from pathlib import Path
from typing import Any

import pytest

from envbuild import evidence
from envbuild.engines import EngineInfo
from envbuild.errors import EngineError
from envbuild.model import Level
from envbuild.pipeline.host import describe

CONFIG, OTHER, LAYER = (f"sha256:{letter * 64}" for letter in "abc")
SUITE = "5" * 64
CLAIMS = {"torch": "2.13.0+cpu"}


def record(level: Level = Level.CPU, **changes: Any) -> evidence.Evidence:
    now = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.timezone.utc)
    fields = {
        "environment": "cpu",
        "target_id": "1" * 64,
        "level": level,
        "suite": SUITE,
        "envbuild": "0.1.0",
        "image": {"config_digest": CONFIG, "diff_ids": [LAYER]},
        "platform": "linux/amd64",
        "size_bytes": 1,
        "base": {"how": "pulled"},
        "claims": CLAIMS,
        "portability": {},
        "content": {},
        "smoke": {},
        "findings": [],
        "host": {"system": "Linux", "machine": "x86_64", "cpu": "c", "cpus": 2, "memory_bytes": 1, "engine": "docker"},
        "started": now,
        "finished": now,
        "seconds": {"smoke": 1.0},
    }
    return evidence.Evidence.model_validate({**fields, **changes})


def best(engine_id: str, **changes: Any) -> tuple[Level, evidence.Evidence, Path] | None:
    """What counts for an image of the record's layers, held to the record's claims."""
    asked = {"diff_ids": (LAYER,), "environment": "cpu", "claims": CLAIMS, "suite": SUITE}
    return evidence.best(engine_id, **{**asked, **changes})


def test_written_by_identity_and_read_back(own_store: Path) -> None:
    path = evidence.save(record(), "sha256:engines-own-id")
    assert path == own_store / "evidence" / ("a" * 64) / "cpu-555555555555-cpu.json"
    assert evidence.read(path) == record()
    assert json.loads(path.read_text())["schema"] == "envbuild.evidence/1"
    assert evidence.digest_of("sha256:engines-own-id") == CONFIG


def test_two_engines_names_for_one_image_find_the_same_evidence() -> None:
    for name in ("sha256:classic", "sha256:containerd"):
        evidence.save(record(), name)
    first, second = (best(name) for name in ("sha256:classic", "sha256:containerd"))
    assert first == second and first is not None


def test_the_strongest_level_counts_and_the_weaker_stays() -> None:
    paths = [evidence.save(record(level), "sha256:x") for level in (Level.CPU, Level.GPU, Level.BUILT)]
    assert best("sha256:x") == (Level.GPU, record(Level.GPU), paths[1])
    assert set(evidence.records("sha256:x")) == set(paths)


@pytest.mark.parametrize("suite", ["6" * 64, SUITE[:12] + "6" * 52])
def test_another_suites_evidence_does_not_count(suite: str) -> None:
    evidence.save(record(suite=suite), "sha256:x")
    assert best("sha256:x") is None
    assert len(evidence.records("sha256:x")) == 1, "it is kept all the same"


def test_an_unknown_image_has_none(own_store: Path) -> None:
    assert best("sha256:x") is None
    assert evidence.digest_of("sha256:x") is None
    assert evidence.records("sha256:x") == []
    (own_store / "evidence" / "index").mkdir(parents=True)
    for content in (b"", b"\xff\xfe"):
        (own_store / "evidence" / "index" / "x").write_bytes(content)
        assert evidence.digest_of("sha256:x") is None


def test_a_removed_record_is_no_evidence_although_the_index_names_it() -> None:
    evidence.save(record(), "sha256:x").unlink()
    assert best("sha256:x") is None


def test_evidence_copied_to_another_image_is_none() -> None:
    good = evidence.save(record(), "sha256:x")
    # The same layers, so that only the record itself says which image it was.
    weak = evidence.save(record(Level.BUILT, image={"config_digest": OTHER, "diff_ids": [LAYER]}), "sha256:y")
    shutil.copy(good, weak.parent)
    assert (found := best("sha256:y")) is not None and found[0] is Level.BUILT
    weak.unlink()
    assert best("sha256:y") is None


def test_an_index_that_leads_to_another_image_is_none(own_store: Path) -> None:
    evidence.save(record(), "sha256:x")
    (own_store / "evidence" / "index" / "y").write_text(CONFIG)
    assert best("sha256:y", diff_ids=(LAYER, OTHER)) is None
    assert best("sha256:y", diff_ids=()) is None
    assert best("sha256:y") is not None, "one image may have two names"


def test_a_record_proves_the_level_that_it_says_and_no_other() -> None:
    path = evidence.save(record(), "sha256:x")
    shutil.copy(path, evidence.path_of(CONFIG, "cpu", SUITE, Level.GPU))
    assert best("sha256:x") == (Level.CPU, record(), path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\x00"])
def test_a_record_that_cannot_be_read_is_none_and_hides_no_other(content: bytes) -> None:
    weak, strong = (evidence.save(record(level), "sha256:x") for level in (Level.CPU, Level.GPU))
    strong.write_bytes(content)
    assert best("sha256:x") == (Level.CPU, record(), weak)
    weak.write_bytes(content)
    assert best("sha256:x") is None


@pytest.mark.parametrize("claims", [{}, {"torch": "2.12.0+cpu"}, {**CLAIMS, "cuda": "13.0"}])
def test_other_claims_than_those_that_were_proven_are_not(claims: dict[str, str]) -> None:
    evidence.save(record(), "sha256:x")
    assert best("sha256:x", claims=claims) is None


def test_each_row_has_evidence_of_its_own() -> None:
    own = evidence.save(record(), "sha256:x")
    other = evidence.save(record(environment="other", claims={"torch": "1"}), "sha256:x")
    assert best("sha256:x") == (Level.CPU, record(), own), "not overwritten"
    assert best("sha256:x", environment="other") is None
    assert set(evidence.records("sha256:x")) == {own, other}
    shutil.copy(own, other)
    assert best("sha256:x", environment="other") is None, "copied to the other row's name"


def test_what_a_build_gave_is_noted_and_the_last_build_counts(own_store: Path) -> None:
    assert not evidence.is_built("1" * 64, "sha256:x")
    evidence.remember_built("1" * 64, "sha256:x")
    assert evidence.is_built("1" * 64, "sha256:x")
    assert not evidence.is_built("2" * 64, "sha256:x") and not evidence.is_built("1" * 64, "sha256:y")
    evidence.remember_built("1" * 64, "sha256:y")
    assert evidence.is_built("1" * 64, "sha256:y") and not evidence.is_built("1" * 64, "sha256:x")
    (own_store / "built" / ("1" * 64)).write_bytes(b"\xff\x00")
    assert not evidence.is_built("1" * 64, "sha256:y")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a record of evidence"),
        (b"\xff\x00", "not a record of evidence"),
        (b'{"schema": "envbuild.evidence/2"}', "not a record of evidence"),
        (record().model_dump_json(by_alias=True).replace('"cpu"', '"tpu"', 2).encode(), "level"),
        (record().model_dump_json(by_alias=True).replace("2026-11-01", "2026-13-01", 1).encode(), "started"),
        (None, "No such file"),
    ],
)
def test_a_corrupt_record_says_which_and_what_to_do(own_store: Path, content: bytes | None, said: str) -> None:
    path = evidence.save(record(), "sha256:x")
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(EngineError, match=said) as caught:
        evidence.read(path)
    assert str(path) in caught.value.message
    assert content is None or "smoke again" in caught.value.hint


def test_a_record_holds_no_name_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "uname", lambda: platform.uname_result("Linux", "secret-host", "6.1", "#1", "x86_64"))
    info = EngineInfo(
        kind="docker", version="20.10", endpoint="unix:///home/somebody/docker.sock", storage_driver="overlay2",
        cgroup="v2", cpus=2, memory_bytes=1 << 34, runtimes=(),
    )  # fmt: skip
    text = describe(info).model_dump_json()
    assert "Linux 6.1" in text and "docker 20.10" in text
    assert "secret-host" not in text and "somebody" not in text
