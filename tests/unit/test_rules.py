"""Every rule has rows that break it and rows that keep it, made from the shipped ones by changing some values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuild import facts
from envbuild.matrix import RULES, Matrix, check, load
from envbuild.model import Environment, Finding, Severity

FACTS = facts.load()
MATRIX: Matrix = load(Path(__file__).parents[2] / "matrix.yaml")
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

A100, H200, CPU = "a100-cu118", "h200-cu130", "cpu"
CENTOS7 = {"family": "centos7", "base": {"image": "docker.io/library/centos:7"}}
# A row of CUDA 12 with a toolkit that is not torch's.
MIXED = {"cuda.version": "12.4", "torch.version": "2.2.0", "torch.build": "cu121", "nccl": "2.19.3"}


def vary(row: str, changes: dict[str, Any]) -> Environment:
    data = MATRIX.get(row).model_dump()
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = data
        for parent in parents:
            node = node[parent]
        node[last] = value
    return Environment.model_validate(data)


def of_rule(rule: str, row: str, changes: dict[str, Any]) -> list[Finding]:
    return [finding for finding in check(vary(row, changes), FACTS) if finding.rule == rule]


BROKEN: list[tuple[str, Severity, str, dict[str, Any], str]] = [
    # rule, severity, row, changes, what the fix names
    ("R01", ERROR, A100, {"gcc.version": "12.3"}, "use GCC 11 (package gcc-11), or CUDA 12.1"),
    ("R01", ERROR, H200, {"gcc.version": "16.1"}, "CUDA 13.4 or newer"),
    ("R01", WARNING, H200, {"cuda.version": "12.2"}, "12.1 and 12.4"),
    ("R05", ERROR, H200, {"deepspeed.version": "0.19.6"}, "DeepSpeed 0.19.7 or newer, or CUDA 12.9"),
    ("R06", ERROR, H200, {**MIXED, "deepspeed.version": "0.14.0"}, "DeepSpeed 0.14.3"),
    ("R06", ERROR, H200, {**MIXED, "deepspeed.version": "0.14.0"}, "use the toolkit 12.1, or torch's build cu124"),
    ("R06", ERROR, H200, {**MIXED, "deepspeed.version": "0.9.2", "env": {"DS_SKIP_CUDA_CHECK": "1"}}, "12.1"),
    ("R06", WARNING, H200, {**MIXED, "deepspeed.version": "0.14.0", "env": {"DS_SKIP_CUDA_CHECK": "1"}}, "12.1"),
    ("R06", ERROR, H200, {**MIXED, "deepspeed.version": "0.14.0", "env": {"DS_SKIP_CUDA_CHECK": "0"}}, "12.1"),
    ("R06", ERROR, H200, {"cuda.version": "13.2"}, "use the toolkit 13.0, or torch's build cu132"),
    ("R06", ERROR, A100, {"cuda.version": "12.1"}, "use the toolkit 11.8"),
    ("R06", ERROR, A100, {"torch.build": "cpu"}, "cu118"),
    ("R08", ERROR, H200, {"gpus": []}, "gpus: [h200]"),
    ("R08", ERROR, H200, {"env": {"TORCH_CUDA_ARCH_LIST": "7.0;9.0+PTX"}}, "set it to 9.0"),
    ("R08", ERROR, H200, {"env": {"TORCH_CUDA_ARCH_LIST": ""}}, "remove the variable"),
    ("R08", WARNING, H200, {"env": {"TORCH_CUDA_ARCH_LIST": "Hopper"}}, "check it by hand"),
    ("R09", ERROR, H200, {"gpus": ["h200", "v100"]}, "use CUDA 11.3 to 12.9"),
    ("R09", ERROR, A100, {"gpus": ["b200"]}, "use CUDA 12.8"),
    ("R09", WARNING, H200, {"gpus": ["h20"]}, "h200"),
    ("R09", WARNING, H200, {"gpus": ["rtx4090"]}, "check it by hand"),
    ("R11", ERROR, H200, {"nccl": "2.27.5"}, "nccl: 2.28.9"),
    ("R11", ERROR, H200, {"nccl": "2.28.90"}, "nccl: 2.28.9"),
    ("R11", ERROR, H200, {"nccl": None}, "nccl: 2.28.9"),
    ("R11", WARNING, H200, {"nccl": "2.28"}, "nccl: 2.28.9"),
    ("R11", ERROR, A100, {"nccl": "2.14.3"}, "nccl: 2.18"),
    ("R11", INFO, A100, {"nccl": "2.18.3"}, "measured"),
    ("R11", WARNING, H200, {"torch.version": "2.99.0"}, "2.15.0"),
    ("R11", WARNING, H200, {"torch.build": "cu126"}, "cu130"),
    ("R13", ERROR, H200, CENTOS7, "torch 2.6.0 or older"),
    ("R13", ERROR, H200, CENTOS7, "el8"),
    ("R13", ERROR, H200, {**CENTOS7, "torch.version": "2.6.0", "torch.build": "cu126"}, "torch 2.6.0 or older"),
    ("R13", ERROR, H200, {**CENTOS7, "torch.version": "2.6.0", "platforms": ["linux/arm64"]}, "el8"),
    ("R13", ERROR, A100, {"family": "centos7", "base.image": "centos:7", "base.toolkit_image": None,
                          "torch.version": "2.7.1"}, "el8"),
    ("R13", WARNING, CPU, {"base.image": "registry.example/own:1"}, "bookworm"),
    ("R13", WARNING, CPU, {"torch.version": "2.16.0"}, "2.15.0"),
    ("R17", ERROR, A100, {"deepspeed.version": "0.11.1"}, "pins: [pydantic<2]"),
    ("R17", ERROR, A100, {"deepspeed.version": "0.8.3", "pins": ["pydantic>=1.10,<3"]}, "pins: [pydantic<2]"),
    ("R17", ERROR, A100, {"deepspeed.version": "0.8.3", "pins": ["Pydantic!=2.0"]}, "pins: [pydantic<2]"),
    ("R17", ERROR, CPU, {"pins": ["numpy<2", "pydantic<2"]}, "drop the pin pydantic<2"),
    ("R17", ERROR, CPU, {"extras": [{"requirement": "pydantic[email]~=1.10"}]}, "pins: [pydantic>=2]"),
    ("R17", WARNING, CPU, {"deepspeed.version": "0.20.0"}, "0.19.8"),
    ("R20", ERROR, CPU, {"python": "3.9"}, "use Python 3.10 to 3.14, or torch 2.8.0"),
    ("R20", ERROR, A100, {"python": "3.12"}, "use Python 3.8 to 3.11, or torch 2.2.0"),
    ("R20", ERROR, H200, {"torch.version": "2.15.0", "python": "3.10"}, "use Python 3.11 to 3.15"),
    ("R20", WARNING, CPU, {"torch.version": "2.99.0"}, "2.15.0"),
    ("R20", WARNING, CPU, {"python": "3.13"}, "use Python 3.12"),
    ("R23", ERROR, CPU, {"deepspeed.version": "0.14.0"}, "DeepSpeed 0.14.1"),
    ("R23", ERROR, CPU, {"deepspeed.version": "0.14.4"}, "packages: [numactl], or set LOCAL_SIZE"),
    ("R23", ERROR, CPU, {"deepspeed.version": "0.15.4"}, "DeepSpeed 0.16.0"),
    ("OPS", ERROR, CPU, {"deepspeed.ops": ["shm_comm"]}, "deepspeed_shm_comm"),
    ("OPS", ERROR, H200, {"deepspeed.ops": ["deepspeed_shm_comm"]}, "fused_adam"),
    ("OPS", ERROR, H200, {"cuda.toolkit": "none", "deepspeed.ops": ["fused_adam"]}, "set cuda.toolkit"),
    ("OPS", WARNING, A100, {"deepspeed.version": "0.12.3"}, "0.14.4 to 0.19.8"),
    ("PKG", ERROR, CPU, {"python": "3.12"}, "use Python 3.11"),
    ("PKG", ERROR, A100, {"python": "3.11"}, "use Python 3.10"),
    ("PKG", WARNING, CPU, {"base.image": "debian:sid", "base.bootstrap": None}, "bookworm"),
]  # fmt: skip

KEPT: list[tuple[str, str, dict[str, Any]]] = [
    ("R01", H200, {"gcc.version": "15.2"}),
    ("R01", A100, {"gcc.version": "13.1", "cuda.toolkit": "none"}),
    ("R05", H200, {"deepspeed.version": "0.19.7"}),
    ("R05", H200, {"deepspeed.version": "0.19.6", "deepspeed.ops": ["cpu_adam"]}),
    ("R05", A100, {}),
    ("R06", H200, {**MIXED, "deepspeed.version": "0.14.3"}),
    ("R06", A100, {"cuda.version": "11.7", "deepspeed.version": "0.8.3"}),
    ("R06", H200, {"cuda.version": "12.4", "cuda.toolkit": "none"}),
    ("R08", H200, {"env": {"TORCH_CUDA_ARCH_LIST": "8.0 9.0+PTX"}}),
    ("R08", H200, {"gpus": [], "deepspeed.ops": ["cpu_adam"]}),
    ("R08", A100, {"gpus": []}),
    ("R09", H200, {"gpus": ["a100", "b200"]}),
    ("R09", A100, {"gpus": ["v100", "h100"]}),
    ("R11", H200, {}),
    ("R11", H200, {"torch.version": "2.13.0", "nccl": "2.29.7"}),
    ("R13", A100, {**CENTOS7, "cuda.toolkit": "none"}),
    ("R13", CPU, {}),
    ("R13", A100, {"base.image": "ubuntu:20.04", "torch.version": "2.11.0"}),
    ("R17", A100, {"deepspeed.version": "0.11.1", "pins": ["pydantic<2"]}),
    ("R17", A100, {"deepspeed.version": "0.11.1", "pins": ["pydantic~=1.10"]}),
    ("R17", A100, {"deepspeed.version": "0.12.3"}),
    ("R17", CPU, {"pins": ["pydantic>=1.10"]}),
    ("R20", CPU, {"python": "3.12"}),
    ("R20", H200, {"torch.version": "2.15.0", "python": "3.11"}),
    ("R23", CPU, {"deepspeed.version": "0.14.1"}),
    ("R23", CPU, {"deepspeed.version": "0.14.4", "packages": ["numactl"]}),
    ("R23", CPU, {"deepspeed.version": "0.15.4", "env": {"LOCAL_SIZE": "2"}}),
    ("R23", CPU, {"deepspeed.version": "0.16.0"}),
    ("R23", H200, {"deepspeed.version": "0.14.0"}),
    ("OPS", CPU, {"deepspeed.ops": ["cpu_adam", "fused_adam", "async_io"]}),
    ("OPS", H200, {"cuda.toolkit": "none", "deepspeed.ops": ["cpu_adam"]}),
    ("OPS", A100, {}),
    ("PKG", A100, {"base.image": "ubuntu:20.04", "python": "3.9"}),
]


@pytest.mark.parametrize(("rule", "severity", "row", "changes", "fix"), BROKEN)
def test_broken(rule: str, severity: Severity, row: str, changes: dict[str, Any], fix: str) -> None:
    found = of_rule(rule, row, changes)
    assert [finding.severity for finding in found] == [severity]
    assert fix in found[0].fix + found[0].message
    assert found[0].subject.startswith(f"{row}: ")
    if severity is ERROR:
        assert fix in found[0].fix, "an error names values that pass"
        assert found[0].source or "is empty" in found[0].message or "without CUDA" in found[0].message


@pytest.mark.parametrize(("rule", "row", "changes"), KEPT)
def test_kept(rule: str, row: str, changes: dict[str, Any]) -> None:
    assert of_rule(rule, row, changes) == []


def test_every_rule_is_tested_both_ways() -> None:
    rules = [rule.id for rule in RULES]
    assert rules == [*dict.fromkeys(case[0] for case in BROKEN)] == [*dict.fromkeys(case[0] for case in KEPT)]


@pytest.mark.parametrize("row", [CPU, A100, H200])
def test_shipped_rows_have_no_errors_or_warnings(row: str) -> None:
    assert [finding for finding in check(MATRIX.get(row), FACTS) if finding.severity is not INFO] == []


def test_a_finding_says_how_well_its_fact_stands() -> None:
    [unverified] = of_rule("R11", A100, {"nccl": "2.14.3"})
    assert "unverified fact" in unverified.message and "pytorch/builder" in unverified.source
    [partial] = of_rule("R13", H200, CENTOS7)
    assert "partial fact" in partial.message
    [verified] = of_rule("R11", H200, {"nccl": "2.14.3"})
    assert "fact" not in verified.message and verified.source.startswith("wheel METADATA")


def test_all_objections_to_a_row_come_at_once() -> None:
    row = vary(H200, {"gcc.version": "16.1", "nccl": "2.14.3", "gpus": ["v100", "h200"], "python": "3.9"})
    assert [f.rule for f in check(row, FACTS) if f.severity is ERROR] == ["R01", "R09", "R11", "R20", "PKG"]


def test_findings_know_their_place() -> None:
    row = vary(A100, {"gcc.version": "12.3", "deepspeed.version": "0.11.1"})
    found = {f.rule: f for f in check(row, FACTS, MATRIX)}
    lines = Path(found["R01"].file or "").read_text(encoding="utf-8").splitlines()
    start = lines.index("  a100-cu118:")
    assert found["R01"].line == lines.index('      version: "11.4"', start) + 1
    assert found["R01"].column == 16
    # Nothing pins pydantic, so the place is the list that would.
    assert found["R17"].line == lines.index("    pins: [numpy<2]", start) + 1
