"""CUDA rows whose toolkit comes from wheels, built for real; on demand (``make integration-cuda``), without a GPU.

They reach level ``cpu``: the CUDA build of torch trains on the CPU accelerator. That leaves the GPU itself open.
Each downloads some 3 GB and compiles for minutes, which is too much for every run of CI.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild import facts
from envbuild.engines import DockerEngine
from envbuild.matrix import load
from envbuild.plan import capabilities
from proving import REGISTRY, REPOSITORY, Cli, tags_of

MATRIX = load(REPOSITORY / "matrix.yaml")
ROWS = [name for name, row in MATRIX.environments.items() if row.cuda and row.cuda.toolkit == "wheels"]


@pytest.fixture(scope="module", params=ROWS)
def row(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def said(row: str, cli: Cli) -> dict[str, Any]:
    """What the build printed."""
    done = cli("build", row, "--gpus", "none", "--allow-level", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    (image,) = json.loads(done.stdout)["images"]
    return dict(image)


@pytest.fixture(scope="module")
def record(said: dict[str, Any]) -> dict[str, Any]:
    """The evidence of the image."""
    return dict(json.loads(Path(said["evidence"]).read_text()))


def test_it_trains_on_the_cpu_and_its_tag_says_no_more_than_that(
    row: str, said: dict[str, Any], engine: DockerEngine
) -> None:
    assert said["level"] == "cpu"
    tags = tags_of(engine, f"{REGISTRY}/envbuild/{row}")
    assert any(tag.endswith("-cpu") for tag in tags)
    assert not any(tag.endswith(":validated") for tag in tags)


def test_every_op_is_compiled_for_the_rows_gpus_with_ptx_and_loads_without_a_compiler(
    row: str, record: dict[str, Any]
) -> None:
    env = MATRIX.get(row)
    wanted = set(capabilities(env, facts.load()))
    ops = record["content"]["inside"]["modules"]["report"]["ops"]
    assert {name for name, op in ops.items() if op["loaded"] and not op["jit"]} == set(env.deepspeed.ops)
    (fused,) = (code for path, code in record["content"]["native"]["gpu"].items() if "/fused_adam_op" in path)
    assert set(fused["cubins"]) == wanted
    assert fused["ptx"] == [max(wanted)]


def test_the_content_is_what_the_row_claims(row: str, record: dict[str, Any]) -> None:
    env = MATRIX.get(row)
    assert [finding for finding in record["findings"] if finding["severity"] == "error"] == []
    report = record["content"]["inside"]["modules"]["report"]
    assert report["imported"]["torch"]["version"].partition("+")[0] == env.torch.version
    assert report["torch"]["cuda"] == (env.cuda and env.cuda.version)
    assert report["torch"]["nccl"] == env.nccl
