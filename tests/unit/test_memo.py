"""Evidence is reused for the same image, claims, suite, level, GPU and driver; the reason is told either way."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from envbuild import evidence
from envbuild.engines import ImageInfo
from envbuild.evidence import keys
from envbuild.matrix import load
from envbuild.model import Level
from envbuild.pipeline.gates import Decision
from envbuild.pipeline.memo import Memo, remembered
from envbuild.pipeline.proof import claims
from envbuild.pipeline.smoking import CPU, Device

ROW = load(Path(__file__).parents[2] / "matrix.yaml").get("h200-cu130")
CONFIG, LAYER = (f"sha256:{letter * 64}" for letter in "ab")
SUITE = "5" * 64
INFO = ImageInfo(id="sha256:x", diff_ids=(LAYER,), labels=(), env=(), architecture="amd64", os="linux", size=1,
                 created="", repo_tags=(), repo_digests=())  # fmt: skip
H200, DRIVER = "NVIDIA H200", "580.95.05"


def save(level: Level = Level.GPU, *, gpu: str | None = H200, driver: str | None = DRIVER, **changes: Any) -> Path:
    when = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.timezone.utc)
    record = {
        "environment": ROW.name, "target_id": None, "level": level, "suite": SUITE, "envbuild": "0",
        "image": {"config_digest": CONFIG, "diff_ids": [LAYER]}, "platform": "linux/amd64", "size_bytes": 1, "base": {},
        "claims": claims(ROW), "content": {}, "portability": {}, "smoke": {}, "findings": [], "started": when,
        "finished": when,
        "seconds": {},
        "host": {"system": "s", "machine": "m", "cpu": "c", "cpus": 1, "memory_bytes": 1, "engine": "e",
                 "gpus": [{"name": gpu}] if gpu else [], "driver": driver},
    }  # fmt: skip
    return evidence.save(evidence.Evidence.model_validate({**record, **changes}), INFO.id)


def on(gpu: str = H200, driver: str = DRIVER, level: Level = Level.GPU, ranks: int = 1) -> Decision:
    device = Device(accelerator="cuda", ranks=ranks, gpus=("GPU-1",) * ranks)
    return Decision(level=level, device=device, gpus=({"name": gpu},) * ranks, driver=driver, cuda="13.0")


def asked(decision: Decision, **rest: Any) -> Memo:
    return remembered(INFO, ROW, decision, **{"claims": claims(ROW), "suite": SUITE, **rest})


def test_the_same_again_is_reused_and_says_of_when_it_is() -> None:
    path = save()
    found = asked(on())
    assert found.path == path and found.record is not None
    assert found.reason.startswith(
        "evidence of 2026-11-01 12:00 UTC for this image, suite, level gpu, GPU (NVIDIA H200)"
    )
    assert "driver (580.95.05)" in found.reason and "--force runs it" in found.reason
    assert asked(on(ranks=2)).path == path, "how many there were is not asked"


@pytest.mark.parametrize(
    ("decision", "rest", "said"),
    [
        (on(driver="580.105.08"), {}, "the driver changed from 580.95.05 to 580.105.08"),
        (on("NVIDIA H200 NVL"), {}, "the GPU changed from NVIDIA H200 to NVIDIA H200 NVL"),
        (on(level=Level.GPU_MIG), {}, "so far level gpu was seen, this run shows gpu-mig"),
        (Decision(level=Level.CPU, device=CPU), {}, "so far level gpu was seen, this run shows cpu"),
        (on(), {"suite": "6" * 64}, "the suite changed from 555555555555 to 666666666666"),
        (on(), {"claims": {**claims(ROW), "torch": "2.12.1+cu130"}}, "torch 2.11.0+cu130 -> 2.12.1+cu130"),
        (on(), {"long_seconds": 60.0}, "the evidence is of a short run"),
        (on(), {"force": True}, "--force"),
        (Decision(level=Level.GPU, device=None, unseen=True), {}, "seen in the container only"),
    ],
)
def test_anything_else_runs_and_says_why(decision: Decision, rest: dict[str, Any], said: str) -> None:
    save()
    found = asked(decision, **rest)
    assert found.record is None and found.reason.startswith("runs") and said in found.reason


def test_without_evidence_of_this_row_it_runs() -> None:
    assert asked(on()).reason == "runs: there is no evidence of this image yet"
    save(environment="other")
    assert asked(on()).reason == "runs: there is no evidence of this image yet"


def test_each_gpu_and_driver_keeps_its_own() -> None:
    paths = {save(), save(driver="590.1"), save(gpu="NVIDIA H200 NVL")}
    assert len(paths) == 3
    assert asked(on(driver="590.1")).record is not None and asked(on()).record is not None


def test_a_long_run_counts_as_a_short_one_and_as_a_shorter_long_one() -> None:
    save(long_seconds=600.0)
    assert asked(on()).record is not None and asked(on(), long_seconds=300.0).record is not None
    assert "a run of 600 s" in asked(on(), long_seconds=900.0).reason


def test_with_a_signing_key_only_what_it_signed_is_reused(tmp_path: Path) -> None:
    made = [keys.load_signing(path) for path in (tmp_path / "a.pem", tmp_path / "b.pem") if keys.make(path)]
    save()
    assert "not signed by the key" in asked(on(), key=made[0].public).reason
    record = asked(on()).record
    assert record is not None
    evidence.save(record, INFO.id, key=made[0])
    assert asked(on(), key=made[0].public).record == record
    assert asked(on(), key=made[1].public).record is None


def test_evidence_that_was_moved_or_is_of_other_layers_is_none() -> None:
    path = save(driver="590.1")
    path.rename(path.with_name(path.name.replace("590.1", DRIVER)))
    assert asked(on()).record is None and asked(on(driver="590.1")).record is None
    save(image={"config_digest": CONFIG, "diff_ids": [LAYER, LAYER]})
    assert asked(on()).record is None
