"""Evidence is found by what an image is, and counts only for the suite and the level that it names."""

from __future__ import annotations

import datetime
import json
import platform
from pathlib import Path
from typing import Any

import pytest

from envbuild import evidence
from envbuild.engines import EngineInfo
from envbuild.errors import EngineError
from envbuild.model import Level
from envbuild.pipeline.host import describe

CONFIG, OTHER = (f"sha256:{letter * 64}" for letter in "ab")
SUITE = "5" * 64


def record(level: Level = Level.CPU, **changes: Any) -> evidence.Evidence:
    now = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.timezone.utc)
    fields = {
        "environment": "cpu",
        "target_id": "1" * 64,
        "level": level,
        "suite": SUITE,
        "envbuild": "0.1.0",
        "image": {"config_digest": CONFIG, "diff_ids": [OTHER]},
        "platform": "linux/amd64",
        "size_bytes": 1,
        "base": {"how": "pulled"},
        "claims": {"torch": "2.13.0+cpu"},
        "content": {},
        "smoke": {},
        "findings": [],
        "host": {"system": "Linux", "machine": "x86_64", "cpu": "c", "cpus": 2, "memory_bytes": 1, "engine": "docker"},
        "started": now,
        "finished": now,
        "seconds": {"smoke": 1.0},
    }
    return evidence.Evidence.model_validate({**fields, **changes})


def test_written_by_identity_and_read_back(own_store: Path) -> None:
    path = evidence.save(record(), "sha256:engines-own-id")
    assert path == own_store / "evidence" / ("a" * 64) / "555555555555-cpu.json"
    assert evidence.read(path) == record()
    assert json.loads(path.read_text())["schema"] == "envbuild.evidence/1"
    assert evidence.digest_of("sha256:engines-own-id") == CONFIG


def test_two_engines_names_for_one_image_find_the_same_evidence() -> None:
    for name in ("sha256:classic", "sha256:containerd"):
        evidence.save(record(), name)
    first, second = (evidence.best(name, SUITE) for name in ("sha256:classic", "sha256:containerd"))
    assert first == second and first is not None


def test_the_strongest_level_counts_and_the_weaker_stays() -> None:
    paths = [evidence.save(record(level), "sha256:x") for level in (Level.CPU, Level.GPU, Level.BUILT)]
    assert evidence.best("sha256:x", SUITE) == (Level.GPU, paths[1])
    assert set(evidence.records("sha256:x")) == set(paths)


def test_another_suites_evidence_does_not_count() -> None:
    evidence.save(record(suite="6" * 64), "sha256:x")
    assert evidence.best("sha256:x", SUITE) is None
    assert len(evidence.records("sha256:x")) == 1, "it is kept all the same"


def test_an_unknown_image_has_none(own_store: Path) -> None:
    assert evidence.best("sha256:x", SUITE) is None
    assert evidence.digest_of("sha256:x") is None
    assert evidence.records("sha256:x") == []
    (own_store / "evidence" / "index").mkdir(parents=True)
    for content in (b"", b"\xff\xfe"):
        (own_store / "evidence" / "index" / "x").write_bytes(content)
        assert evidence.digest_of("sha256:x") is None


def test_a_removed_record_is_no_evidence_although_the_index_names_it() -> None:
    evidence.save(record(), "sha256:x").unlink()
    assert evidence.best("sha256:x", SUITE) is None


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
