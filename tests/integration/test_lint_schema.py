"""The stored schema and its resolver, held against the DeepSpeed of the `cpu` image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import envbuild
from envbuild import dsschema
from envbuild.dsschema import pack
from envbuild.dsschema.releases import FILE
from envbuild.engines import ContainerSpec, DockerEngine, Mount

EXTRACT = Path(envbuild.__file__).parent / "dsschema" / "extract"

# What a configuration comes to, by DeepSpeed's own models.
RESOLVE = """
import json, sys, logging
logging.disable(logging.CRITICAL)
from deepspeed.runtime.config import DeepSpeedConfig
out = []
for config in json.load(open("/job/configs.json")):
    built = DeepSpeedConfig(config)
    own = {"zero_optimization": built.zero_config, "fp16": built.float16_config, "bf16": built.bfloat16_config}
    said = {name: json.loads(model.model_dump_json(by_alias=True)) for name, model in own.items()}
    for name in ("gradient_clipping", "zero_force_ds_cpu_optimizer", "wall_clock_breakdown", "steps_per_print"):
        said[name] = getattr(built, name)
    said["aio"] = built.aio_config
    out.append(said)
print("RESULT " + json.dumps(out))
"""
CONFIGS: list[dict[str, Any]] = [
    {},
    {"zero_optimization": {"stage": 1}},
    {"zero_optimization": {"stage": 3, "cpu_offload": True, "max_live_parameters": 5e8, "reduce_bucket_size": "auto"}},
    {"zero_optimization": {"stage": 3, "overlap_comm": False, "offload_param": {"device": "cpu", "pin_memory": False}}},
    {"zero_optimization": {"stage": 2, "stage3_gather_fp16_weights_on_model_save": True, "cpu_offload_param": False}},
    {"fp16": {"enabled": True, "loss_scale_window": 5}, "gradient_clipping": 0.5, "aio": {"queue_depth": 16}},
    {"bf16": {"enabled": "auto"}, "zero_force_ds_cpu_optimizer": False, "wall_clock_breakdown": True},
]


def run(engine: DockerEngine, image: str, argv: tuple[str, ...], folder: Path, at: str) -> str:
    spec = ContainerSpec(image=image, argv=argv, mounts=(Mount(source=folder, target=at),), network="none")
    result = engine.run(spec, timeout=300)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_the_stored_schema_is_what_this_deepspeed_says(engine: DockerEngine, proven: dict[str, object]) -> None:
    said = json.loads(run(engine, str(proven["id"]), ("python", "-I", "/extract"), EXTRACT, "/extract"))
    assert said["stub"] is False, "read with the real torch"
    version = said["deepspeed"]
    assert version == dsschema.NEWEST, "the row moved: read the new release, too (envbuild/dsschema/pack.py)"
    stored = json.loads(FILE.read_bytes())
    alone = pack.pack([said], stored["date"])
    assert _opened(alone, alone["releases"][version]) == _opened(stored, stored["releases"][version])


def _opened(stored: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """A release without numbers of entries, which depend on the other releases."""

    def section(number: int) -> dict[str, Any]:
        found = stored["sections"][number]
        keys = {name: dict(stored["keys"][place]) for name, place in found["keys"].items()}
        for key in keys.values():
            if "section" in key:
                key["section"] = section(key["section"])
        return {**found, "keys": keys}

    return {**said, "root": section(said["root"])}


def test_configurations_come_to_what_deepspeed_makes_of_them(
    engine: DockerEngine, proven: dict[str, object], tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "configs.json").write_text(json.dumps([{"train_batch_size": 1, **config} for config in CONFIGS]))
    (tmp_path / "resolve.py").write_text(RESOLVE)
    out = run(engine, str(proven["id"]), ("python", "/job/resolve.py"), tmp_path, "/job")
    line = next(line for line in out.splitlines() if line.startswith("RESULT "))
    for config, theirs in zip(CONFIGS, json.loads(line.removeprefix("RESULT ")), strict=True):
        ours = dsschema.resolve(config, dsschema.NEWEST)
        for name, value in theirs.items():
            differing = _differing(ours[name], value)
            assert not differing, (config, name, differing)


def _differing(ours: Any, theirs: Any) -> Any:
    """Where two values differ; a deprecated key that was not given is not ours to name."""
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return None if ours == theirs else (ours, theirs)
    gone = {
        "cpu_offload",
        "cpu_offload_param",
        "cpu_offload_use_pin_memory",
        "stage3_gather_fp16_weights_on_model_save",
    }
    return {
        name: differs
        for name, value in theirs.items()
        if name not in gone and (differs := _differing(ours.get(name), value)) is not None and differs != {}
    }


@pytest.mark.parametrize("odd", ["stage", "device"])
def test_the_comparison_can_fail(odd: str) -> None:
    assert _differing({"a": {odd: 1}}, {"a": {odd: 2}})
