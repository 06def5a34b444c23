"""What trained is held against what was decided; a report may hold anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuild import facts
from envbuild.engines import EngineInfo
from envbuild.judge.inspection import COMPAT
from envbuild.matrix import load
from envbuild.model import Finding, Level, Severity
from envbuild.pipeline.gates import Decision
from envbuild.pipeline.host import describe
from envbuild.pipeline.seen import driver_faults, really
from envbuild.pipeline.smoking import CPU, Device

FACTS, ROW = facts.load(), load(Path(__file__).parents[2] / "matrix.yaml").get("h200-cu130")
ELSEWHERE = Decision(level=Level.GPU, device=Device(accelerator="cuda", ranks=0, gpus=("all",)), unseen=True)
HERE = Decision(level=Level.GPU, device=Device(accelerator="cuda", ranks=1, gpus=("GPU-1",)),
                gpus=({"name": "NVIDIA H200"},), driver="580.95.05", cuda="13.0")  # fmt: skip


def reports(*names: Any, driver: Any = "580.95.05") -> dict[str, Any]:
    ranks = [
        {"report": {"device": {"name": name, "capability": [9, 0], "memory_bytes": 5, "driver_cuda": 13000}}}
        for name in names
    ]
    return {"zero3": {"ranks": ranks, "surroundings": {"nvidia_driver": driver}}}


def test_an_engine_elsewhere_tells_its_gpus_by_its_report() -> None:
    found, problems = really(ROW, FACTS, ELSEWHERE, reports("NVIDIA H200", "NVIDIA H200"))
    assert problems == [] and found.level is Level.GPU
    assert (found.driver, found.cuda, found.seen_on) == ("580.95.05", "13.0", "nvidia-h200-580.95.05")
    assert found.gpus == ({"name": "NVIDIA H200", "sm": "9.0", "memory_bytes": 5},) * 2


def test_a_slice_elsewhere_is_a_slice() -> None:
    found, problems = really(ROW, FACTS, ELSEWHERE, reports("NVIDIA H200 MIG 1g.18gb"))
    assert problems == [] and found.level is Level.GPU_MIG


def test_what_was_decided_stays_when_it_came_out_so() -> None:
    assert really(ROW, FACTS, HERE, reports("NVIDIA H200")) == (HERE, [])
    cpu = Decision(level=Level.CPU, device=CPU)
    assert really(ROW, FACTS, cpu, {}) == (cpu, [])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (reports("NVIDIA A100-SXM4-80GB"), "rank 0 trained on"),
        (reports("NVIDIA H200", "Tesla T4"), "rank 1 trained on"),
        (reports("NVIDIA H200 MIG 1g.18gb"), "a whole GPU was asked for"),
        (reports(None), "rank 0 trained on"),
        (reports({"name": 1}), "rank 0"),
        ({}, "does not say which GPUs"),
        ({"zero3": None}, "does not say which GPUs"),
        ({"zero3": {"ranks": [None, 3, {"report": []}]}}, "rank 2"),
    ],
)
def test_another_device_than_was_decided_is_a_finding(given: dict[str, Any], said: str) -> None:
    _, problems = really(ROW, FACTS, HERE, given)
    assert [(finding.rule, finding.severity) for finding in problems] == [("gate.gpu", Severity.ERROR)]
    assert said in problems[0].message


@pytest.mark.parametrize("driver", [None, 5, "\x1b[31m\n580", "x" * 9999])
def test_whatever_a_report_calls_its_driver_the_record_can_be_written(driver: Any) -> None:
    found, _ = really(ROW, FACTS, ELSEWHERE, reports("NVIDIA H200\x1b[2J", driver=driver))
    info = EngineInfo(kind="docker", version="1", endpoint="", storage_driver="", cgroup="", cpus=1, memory_bytes=1,
                      runtimes=())  # fmt: skip
    text = describe(info, gpus=found.gpus, driver=found.driver, cuda=found.cuda).model_dump_json()
    assert "u001b" not in text and "/" not in found.seen_on and len(found.seen_on) <= 120


def test_a_drivers_words_in_a_failed_smoke_come_first() -> None:
    said = "torch could not count the GPUs: RuntimeError: The NVIDIA driver on your system is too old (found 11040)"
    crash = Finding(rule="smoke.probe", severity=Severity.ERROR, subject="smoke", message=said)
    assert [finding.rule for finding in driver_faults(ROW, [crash])] == ["gate.driver"]
    assert driver_faults(ROW, [Finding(rule="smoke.grad", severity=Severity.ERROR, subject="s", message="off")]) == []


def test_where_nvidias_packages_put_cuda_compat() -> None:
    good = ("usr/local/cuda-12.4/compat/libcuda.so.1", "usr/local/cuda/compat/libcuda.so.1")
    bad = ("usr/local/cuda-12.4/lib64/stubs/libcuda.so", "home/usr/local/cuda/compat/libcuda.so.1")
    assert all(map(COMPAT.fullmatch, good)) and not any(map(COMPAT.fullmatch, bad))
