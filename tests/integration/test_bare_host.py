"""A bare host's proof, with a fake interpreter, so named, that prints recorded documents: nothing trains here."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild import evidence
from envbuild.model import Level
from envbuild.pipeline import bare
from envbuild.pipeline.bare import HostProof, prove_host
from envbuild.pipeline.gpus import Gpu, HostGpus, fault_of
from envbuild.pipeline.prepare import FindingsError
from envbuild.pipeline.proof import Wish
from envbuild.pipeline.workbench import Workbench

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY / "tests/unit/data/judge"
CONTENT, ZERO3 = (json.loads((DATA / name).read_text()) for name in ("content.json", "zero3.json"))
FAKE = """#!{python} -I
import json, pathlib, sys, os
folder = pathlib.Path({folder!r})
option = lambda name: sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""
if sys.argv[1:3] == ["-I", "-c"] or "-c" in sys.argv:
    print(json.dumps(["envbuild", [3, 11, 2]]))
elif sys.argv[2].endswith("content.py") or "content.py" in sys.argv[1]:
    print((folder / "content").read_text())
else:
    (folder / "asked").write_text(json.dumps([sys.argv, os.environ.get("CUDA_VISIBLE_DEVICES")]))
    print((folder / "zero3").read_text().replace('"@SEED@"', option("--seed")))
"""
Prove = Callable[..., HostProof]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def prove(tmp_path: Path, home: Path) -> Prove:
    def call(row: str | None = None, accelerator: Any = None, *, content: Any = CONTENT, zero3: Any = ZERO3,
             **wish: Any) -> HostProof:  # fmt: skip
        fake = tmp_path / "python"
        fake.write_text(FAKE.format(python=sys.executable, folder=str(tmp_path)))
        fake.chmod(0o755)
        (tmp_path / "content").write_text(json.dumps(content))
        said = json.dumps(zero3).replace(f": {zero3['arguments']['seed']}", ': "@SEED@"')
        (tmp_path / "zero3").write_text(said)
        bench = Workbench(project_folder=REPOSITORY)
        env = bench.matrix.get(row) if row else None
        return prove_host(bench, str(fake), env, accelerator, Wish(**wish))

    return call


def test_a_host_is_proven_apart_from_every_image(prove: Prove, home: Path) -> None:
    proof = prove()
    assert proof.level is Level.CPU and proof.record.kind == "host" and proof.record.environment is None
    assert proof.path.parent == home / "evidence" / "host" / proof.record.fingerprint
    assert proof.path.name.startswith("any-") and proof.path.name.endswith("-cpu.json")
    for engine_id in ("sha256:host", f"sha256:{proof.record.fingerprint}"):
        assert evidence.records(engine_id) == [] and evidence.digest_of(engine_id) is None
    with pytest.raises(Exception, match="not a record of evidence"):
        evidence.read(proof.path)
    assert str(Path.home()) not in proof.path.read_text()


def test_without_a_row_no_version_is_compared_and_with_one_each_is(prove: Prove) -> None:
    other = copy.deepcopy(ZERO3)
    for rank in other["ranks"]:
        rank["report"]["versions"] |= {"torch": "2.14.0", "deepspeed": "1.0"}
    assert prove(zero3=other).level is Level.CPU
    with pytest.raises(FindingsError) as caught:
        prove("cpu", zero3=other)
    assert [finding.rule for finding in caught.value.findings if finding.severity.value == "error"] == [
        "smoke.versions"
    ]


def test_an_op_that_is_compiled_on_first_use_is_a_warning_here(prove: Prove) -> None:
    compiled = copy.deepcopy(ZERO3)
    compiled |= {"extension_files": 12, "arguments": {**compiled["arguments"], "jit": True}}
    for rank in compiled["ranks"]:
        rank["report"]["jit"] |= {"extension_files": 12}
    content = copy.deepcopy(CONTENT)
    content["modules"]["report"]["ops"]["cpu_adam"] |= {"loaded": False, "error": "no compiler"}
    found = {
        finding["rule"]: finding["severity"]
        for finding in prove("cpu", zero3=compiled, content=content).record.findings
    }
    assert found["host.jit"] == found["host.op"] == "warning" and "error" not in found.values()


def test_wrong_training_fails_here_too_and_nothing_is_kept_as_evidence(prove: Prove, home: Path) -> None:
    wrong = copy.deepcopy(ZERO3)
    wrong["ranks"][1]["report"]["passes"]["fp32"]["gradients"]["ratio"] = 2.0
    with pytest.raises(FindingsError) as caught:
        prove(zero3=wrong)
    assert caught.value.exit_code == 5 and caught.value.findings[0].rule.startswith("smoke.grad")
    assert not (home / "evidence").exists() and list((home / "reports").glob("host-*.json"))


def test_a_row_that_requires_a_gpu_is_not_met_by_the_cpu(prove: Prove, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare, "read_gpus", lambda: fault_of(12, "", hardware=False))
    with pytest.raises(FindingsError) as caught:
        prove(None, "cuda")
    assert [(each.rule, each.severity.value) for each in caught.value.findings] == [("gate.gpu", "error")]


def test_the_gpus_of_the_host_are_given_by_uuid(prove: Prove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(Gpu(index=n, uuid=f"GPU-{n}", name="Tesla T4", sm="7.5", memory_bytes=1) for n in range(2))
    monkeypatch.setattr(bare, "read_gpus", lambda: HostGpus(driver="580.1", cuda="13.0", gpus=gpus))
    with pytest.raises(FindingsError):
        prove(None, "cuda")  # the recorded document is of a CPU
    argv, visible = json.loads((tmp_path / "asked").read_text())
    assert visible == "GPU-0,GPU-1" and argv[argv.index("--ranks") + 1] == "2"
    assert argv[argv.index("--accelerator") + 1] == "cuda"
