"""The stored schema: its releases, its answers between them, and what a configuration comes to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envbuild import dsschema
from envbuild.dsschema import pack
from envbuild.dsschema.releases import FILE
from envbuild.errors import InputError

NEW = "0.19.8"


def test_between_two_releases_the_lower_one_answers() -> None:
    assert tuple(sorted(dsschema.VERSIONS, key=dsschema.release)) == dsschema.VERSIONS
    between = dsschema.for_version("0.14.2")
    assert (between.measured, between.exact) == ("0.14.0", False)
    assert dsschema.for_version("0.14.0").exact
    assert dsschema.for_version("0.2.0").measured == dsschema.VERSIONS[0]
    assert dsschema.for_version("1.0").measured == dsschema.NEWEST
    assert dsschema.for_version("0.19.8+cu130").measured == NEW
    for word in ("", "x", "v0.1", "0." + "9" * 100):
        with pytest.raises(InputError):
            dsschema.for_version(word)


@pytest.mark.parametrize(
    ("path", "version", "default"),
    [
        # Held against facts that were found by running these releases, in other ways than this data was.
        ("zero_optimization.offload_optimizer.pin_memory", "0.19.0", False),
        ("zero_optimization.offload_optimizer.pin_memory", "0.19.5", True),
        ("zero_optimization.offload_optimizer.buffer_count", NEW, 4),
        ("zero_optimization.offload_param.buffer_count", NEW, 5),
        ("zero_optimization.offload_param.max_in_cpu", "0.8.3", 1_000_000_000),
        ("zero_optimization.stage3_max_live_parameters", NEW, 1_000_000_000),
        ("zero_optimization.max_live_parameters", NEW, 1_000_000_000),
        ("zero_optimization.stage3_prefetch_bucket_size", "0.12.3", 50_000_000),
        ("zero_optimization.sub_group_size", NEW, 1_000_000_000),
        ("zero_force_ds_cpu_optimizer", NEW, True),
        ("fp16.initial_scale_power", "0.8.3", 16),
    ],
)
def test_defaults_are_those_that_were_seen(path: str, version: str, default: Any) -> None:
    key = dsschema.for_version(version).find(path)
    assert key is not None
    assert key.default == default


def test_what_came_and_went() -> None:
    def has(path: str, version: str) -> bool:
        return dsschema.for_version(version).find(path) is not None

    assert not has("zero_optimization.offload_optimizer.ratio", "0.8.3")
    assert has("zero_optimization.offload_optimizer.ratio", "0.12.3")
    assert not any(has("zero_optimization.cpu_offload_params", version) for version in dsschema.VERSIONS)
    assert not any(has("zero_optimization.stage3_reduce_bucket_size", version) for version in dsschema.VERSIONS)
    assert all(dsschema.for_version(v).find("zero_optimization").section.extra == "forbid" for v in dsschema.VERSIONS)  # type: ignore[union-attr]


def test_a_configuration_is_resolved_as_deepspeed_does() -> None:
    zero = dsschema.resolve(
        {
            "zero_optimization": {
                "stage": 3,
                "cpu_offload": True,
                "max_live_parameters": 5,
                "reduce_bucket_size": "auto",
            }
        },
        NEW,
    )["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == "cpu"
    assert zero["offload_optimizer"]["pin_memory"] is True
    assert "cpu_offload" not in zero
    assert zero["stage3_max_live_parameters"] == 5
    assert zero["reduce_bucket_size"] == 500_000_000
    assert zero["overlap_comm"] is True, "on in stage 3"
    assert dsschema.resolve({"zero_optimization": {"stage": 2}}, NEW)["zero_optimization"]["overlap_comm"] is False
    plain = dsschema.resolve({}, NEW)
    assert plain["zero_optimization"]["stage"] == 0
    assert plain["zero_optimization"]["offload_param"] is None
    assert plain["gradient_clipping"] == 1.0
    assert dsschema.resolve({"mine": [1]}, NEW)["mine"] == [1]


def test_the_hash_is_of_what_a_file_means() -> None:
    digest = dsschema.digest({"zero_optimization": {"stage": 3}}, NEW)
    for same in (
        {"zero_optimization": {"stage": 3, "overlap_comm": True}},
        {"zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8}},
        {"zero_optimization": {"stage3_max_live_parameters": 1e9, "stage": 3}},
        {"gradient_clipping": 1, "zero_optimization": {"stage": 3, "sub_group_size": "auto"}},
    ):
        assert dsschema.digest(same, NEW) == digest
    for other in ({}, {"zero_optimization": {"stage": 3, "overlap_comm": False}}, {"zero_optimization": {"stage": 2}}):
        assert dsschema.digest(other, NEW) != digest
    assert dsschema.digest({"zero_optimization": {"stage": 3}}, "0.18.3") != digest, "defaults moved between them"


def test_resolving_takes_any_object() -> None:
    for odd in ({"zero_optimization": 3}, {"zero_optimization": {"stage": [1]}}, {"fp16": None}, {"optimizer": "x"}):
        assert dsschema.resolve(odd, NEW)
        assert dsschema.digest(odd, NEW)


def test_stored_data_is_what_packing_makes_of_it() -> None:
    stored = json.loads(FILE.read_bytes())
    opened = [
        {
            "deepspeed": version, "pydantic": said["pydantic"], "by_stage": said["by_stage"],
            "optimizers": said["optimizers"], "schedulers": said["schedulers"], "root": _opened(stored, said["root"]),
        }
        for version, said in stored["releases"].items()
    ]  # fmt: skip
    assert pack.pack(opened, stored["date"]) == stored


def _opened(stored: dict[str, Any], number: int) -> dict[str, Any]:
    said = stored["sections"][number]
    keys = {}
    for name, place in said["keys"].items():
        key = stored["keys"][place]
        keys[name] = {**key, "names": [name, *key.get("also", ())], "default": key.get("default")}
        if "section" in key:
            keys[name]["section"] = _opened(stored, key["section"])
    return {"extra": said["extra"], "model": said.get("model"), "removed": said.get("removed"), "keys": keys}


def test_what_is_a_version() -> None:
    for version in ("0.19.8", "0.14", "0.16.9+cu124", "0.20.0rc1", "0.19.8.dev0", "1"):
        assert len(dsschema.release(version)) >= 3
    for wrong in ("", " 0.14.4", "0.14.4 ", "0.14.4 foo", "0.14.4\x1b[31m", "v0.14.4", "0..1", "٣.١", "0.1\n"):
        with pytest.raises(InputError) as failed:
            dsschema.release(wrong)
        assert failed.value.message.isprintable()
