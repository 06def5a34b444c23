"""What tune writes really trains: DeepSpeed of the `cpu` image reads the files as they are, on two ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.engines import ContainerSpec, DockerEngine, Mount
from envbuild.pipeline.tuning import Wish, tune, write
from envbuild.pipeline.workbench import Workbench

HERE = Path(__file__).parent
RANKS = 2
SHAPE = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 128,
}  # fmt: skip
RUNGS: dict[str, dict[str, Any]] = {
    "zero0": {"stage": 0},
    "zero1": {"stage": 1},
    "zero3": {"stage": 3},
    "zero2-offload": {"stage": 2, "offload": "optimizer"},
    "offload-optimizer": {"offload": "optimizer"},
    "offload-parameters": {"offload": "parameters"},
    "offload-parameters-fp32": {"offload": "parameters", "dtype": "fp32"},
}


@pytest.fixture(scope="module")
def trained(
    engine: DockerEngine, proven: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Every rung, trained for six steps."""
    folder = tmp_path_factory.mktemp("tuned")
    folder.chmod(0o755)
    (folder / "config.json").write_text(json.dumps(SHAPE))
    for name, forced in RUNGS.items():
        wish = Wish(
            model_config=folder / "config.json", gpu="a100-40gb", gpus=RANKS, ram="64GiB", sequence=128,
            global_batch=16, micro_batch=4, deepspeed="0.19.8", **forced,
        )  # fmt: skip
        write(folder / f"{name}.ds.json", tune(Workbench(), wish), force=False)
    spec = ContainerSpec(
        image=str(proven["id"]), argv=("python", "/tuning/train.py", str(RANKS), "/job"), network="none",
        mounts=(Mount(source=HERE / "tuning", target="/tuning"), Mount(source=folder, target="/job")),
        shm_bytes=1 << 30,
    )  # fmt: skip
    done = engine.run(spec, timeout=600)
    assert done.exit_code == 0, f"after {done.seconds:.0f} s:\n{done.stderr[-4000:]}"
    return {name.removesuffix(".ds.json"): seen for name, seen in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("name", RUNGS)
def test_the_file_trains(name: str, trained: dict[str, dict[str, Any]]) -> None:
    seen = trained[name]
    assert seen["losses"][-1] < seen["losses"][0], seen["losses"]
    assert seen["stage"] == RUNGS[name].get("stage", 3)
    assert (seen["world"], seen["micro_batch"], seen["train_batch_size"]) == (RANKS, 4, 16)
    assert seen["bf16"] is (RUNGS[name].get("dtype") is None)
    # The file itself chooses the optimizer that runs on the CPU.
    assert seen["optimizer"] == ("DeepSpeedCPUAdam" if "offload" in RUNGS[name] else "AdamW")
