"""A Plan follows what is built and nothing else; its id names content."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from envbuild import facts, plan
from envbuild.errors import InputError
from envbuild.model import Environment, Lock
from envbuild.project import find
from envbuild.render import render

FACTS = facts.load()
TEMPLATES = find(None, Path("/")).templates
A, B, C = (f"sha256:{letter * 64}" for letter in "abc")
# A row that sets every field, with a toolkit image, so that each field has something to change.
ROW: dict[str, Any] = {
    "name": "row",
    "summary": "a row",
    "accelerator": "cuda",
    "family": "debian",
    "base": {
        "image": "docker.io/library/debian:bookworm-slim",
        "digest": A,
        "toolkit_image": "docker.io/nvidia/cuda:12.4.1-devel-ubuntu22.04",
        "toolkit_digest": B,
        "bootstrap": {"suite": "bookworm", "components": ["main"], "packages": []},
    },
    "python": "3.11",
    "gcc": {"version": "12.2", "package": "gcc-12"},
    "torch": {"version": "2.6.0", "build": "cu124"},
    "deepspeed": {"version": "0.19.8", "ops": ["cpu_adam"]},
    "cuda": {"version": "12.4", "toolkit": "image"},
    "nccl": "2.21.5",
    "gpus": ["a100"],
    "requires": "gpu",
    "env": {"OMP_NUM_THREADS": "4"},
    "sources": {},
}
CPU: dict[str, Any] = {
    **{key: value for key, value in ROW.items() if key not in ("cuda", "nccl", "gpus", "env")},
    "accelerator": "cpu",
    "requires": "cpu",
    "torch": {"version": "2.13.0", "build": "cpu"},
    "deepspeed": {"version": "0.19.8", "ops": ["cpu_adam", "deepspeed_shm_comm"]},
}
PACKAGES = [
    ("accelerate", "1.0.0", "deps"),
    ("deepspeed", "0.19.8", "ops"),
    ("numpy", "2.1.0", "torch"),
    ("nvidia-nccl-cu12", "2.21.5", "torch"),
    ("nvidia-cuda-nvcc", "12.4.131", "toolkit"),
    ("pip", "25.0", "tools"),
    ("torch", "2.6.0+cu124", "torch"),
]


def row(base: dict[str, Any] = ROW, **changes: Any) -> Environment:
    """The row with values changed; a key with ``__`` is a path."""
    document = copy.deepcopy(base)
    for path, value in changes.items():
        *keys, last = path.split("__")
        node = document
        for key in keys:
            node = node[key]
        node[last] = value
    return Environment.model_validate(document)


def locked(*packages: tuple[str, str, str], **changes: Any) -> Lock:
    return Lock.model_validate(
        {
            "environment": "row",
            "platform": "linux/amd64",
            "python": "3.11",
            "inputs": A,
            "resolver": "uv 1",
            "packages": [
                {"name": name, "version": version, "group": group, "hashes": [C]}
                for name, version, group in packages or PACKAGES
            ],
            **changes,
        }
    )


def made(env: Environment, lock: Lock | None = None) -> plan.Plan:
    return plan.make(env, lock or locked(), FACTS)


def target_id(env: Environment, lock: Lock | None = None) -> str:
    return render(made(env, lock), TEMPLATES).target_id


BUILT_FROM: dict[str, Any] = {
    "name": "other",
    "accelerator": "cpu",
    "base__image": "docker.io/library/debian:bookworm",
    "base__digest": None,
    "base__toolkit_image": "docker.io/nvidia/cuda:12.4.0-devel-ubuntu22.04",
    "base__toolkit_digest": None,
    "base__bootstrap": None,
    "base__bootstrap__suite": "trixie",
    "base__bootstrap__components": ["main", "contrib"],
    "base__bootstrap__packages": ["less"],
    "python": "3.9",
    "gcc__version": "12.3",
    "gcc__package": "gcc-11",
    "torch__version": "2.6.1",
    "torch__build": "cu126",
    "deepspeed__version": "0.19.7",
    "deepspeed__ops": ["cpu_adam", "fused_adam"],
    "cuda__version": "12.6",
    "cuda__toolkit": "wheels",
    "nccl": "2.21.6",
    "gpus": ["a100", "h200"],
    "cpu_baseline": "x86-64-v4",
    "fabric": "verbs",
    "packages": ["git"],
    "env": {"OMP_NUM_THREADS": "8"},
}
NOT_BUILT_FROM: dict[str, Any] = {
    "summary": "another summary",
    "requires": "cpu",
    "shm_size": "2GiB",
    "memlock": "1GiB",
    "driver": "580",
    "claimed": {"nccl": {"value": "2.0", "by": "somebody", "contradicted": "the wheel"}},
    "performance": {"baseline": "required", "delta": "10%"},
    "waivers": [{"rule": "R21", "reason": "mirrored", "until": "2027-01-01"}],
    "sources": {"gcc": {"mark": "verified", "source": "seen", "date": "2026-11-01"}},
}
# What is installed for these is in the lock, which is stale when they change; so is the platform.
BY_THE_LOCK = {"pins", "extras", "platforms", "torch.index", "torch.torchvision", "torch.torchaudio"}
# It chooses template and package names, and those are what is built from.
BY_ITS_PACKAGES = {"family"}


@pytest.mark.parametrize("path", BUILT_FROM)
def test_the_id_follows_what_the_image_is_built_from(path: str) -> None:
    # A base that has two Pythons, so that another one can be asked for.
    base: dict[str, Any] = {"base__image": "docker.io/library/ubuntu:20.04", "family": "ubuntu", "python": "3.8"}
    one, other = (base, {**base, path: BUILT_FROM[path]}) if path == "python" else ({}, {path: BUILT_FROM[path]})
    assert target_id(row(**other)) != target_id(row(**one))


@pytest.mark.parametrize("path", NOT_BUILT_FROM)
def test_the_id_does_not_follow_what_the_image_is_not_built_from(path: str) -> None:
    assert target_id(row(**{path: NOT_BUILT_FROM[path]})) == target_id(row())


@pytest.mark.parametrize(
    "lock",
    [
        locked(("torch", "2.6.0+cu124", "deps")),
        locked(("torch", "2.6.1+cu124", "torch")),
        locked(("torch2", "2.6.0+cu124", "torch")),
        locked(("torch", "2.6.0+cu124", "torch"), platform="linux/arm64"),
    ],
    ids=["group", "version", "name", "platform"],
)
def test_the_id_follows_the_lock(lock: Lock) -> None:
    assert target_id(row(), lock) != target_id(row(), locked(("torch", "2.6.0+cu124", "torch")))


def test_the_id_follows_hashes_and_not_who_resolved() -> None:
    package = {"name": "torch", "version": "2.6.0", "group": "torch"}
    one, other = ([{**package, "hashes": [digest]}] for digest in (A, B))
    assert target_id(row(), locked(packages=one)) != target_id(row(), locked(packages=other))
    again = locked(packages=one, resolver="uv 2", inputs=B)
    assert target_id(row(), again) == target_id(row(), locked(packages=one))


def test_every_field_of_a_row_was_thought_of() -> None:
    """A new field must be put into one of the lists above, whoever adds it."""
    thought = {path.replace("__", ".") for path in (*BUILT_FROM, *NOT_BUILT_FROM)} | BY_THE_LOCK | BY_ITS_PACKAGES
    top = {path.split(".")[0] for path in thought}
    assert top == set(Environment.model_fields)
    for name in ("base", "torch", "deepspeed", "cuda", "gcc"):
        fields = {f"{name}.{field}" for field in type(getattr(row(), name)).model_fields}
        assert fields == {".".join(path.split(".")[:2]) for path in thought if path.startswith(f"{name}.")}


@pytest.mark.parametrize("name", ["apt.j2", "_steps.j2", "files/compiler"])
def test_the_id_follows_templates_and_mounted_files(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "templates"
    shutil.copytree(TEMPLATES, folder)
    assert render(made(row()), folder).target_id == target_id(row())
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace("set -eu", "set -eux"))
    assert render(made(row()), folder).target_id != target_id(row())


# --- what is in a Plan ------------------------------------------------------------------------------------------------


def test_what_the_row_limits_is_guarded_too() -> None:
    assert "pip==25.0" in made(row(pins=["pip<26"])).constraints


@pytest.mark.parametrize(
    ("requirement", "built"),
    [
        ("Flash_Attn[x]==2.8.3", "flash-attn==2.8.3"),
        ("flash-attn===2.8.3", "flash-attn==2.8.3"),
        # The ops stage makes one wheel of it, so the name is enough; which version it is, is the lock's to say.
        ("flash-attn>=2,<3", "flash-attn"),
        ("flash-attn==2.*", "flash-attn"),
    ],
)
def test_what_is_compiled_follows_from_the_row_alone(requirement: str, built: str) -> None:
    env = row(extras=[{"requirement": requirement, "build": True}, {"requirement": "einops"}])
    assert made(env).built == ("deepspeed==0.19.8", built)
    assert plan.make(env, None, FACTS).built == ("deepspeed==0.19.8", built)


def test_the_images_are_those_of_the_lock_where_the_row_names_no_digest() -> None:
    known = {"image": ROW["base"]["image"], "toolkit_image": ROW["base"]["toolkit_image"]}
    lock = locked(base={**known, "digest": C, "toolkit_digest": C})
    env = row(base__digest=None, base__toolkit_digest=None)
    pinned = made(env, lock)
    assert (pinned.base_digest, pinned.toolkit_digest) == (C, C)
    assert pinned == made(lock.pin(env), lock), "pinned twice is pinned once"
    assert target_id(env, lock) != target_id(env), "another base is another image"
    assert target_id(row(), lock) == target_id(row()), "the row's own digests win"
    other = locked(base={**known, "image": "docker.io/library/debian:trixie", "digest": C})
    assert made(env, other).base_digest is None


def test_constraints_guard_what_the_proof_stands_on_and_leave_the_rest_free() -> None:
    assert made(row()).constraints == (
        "deepspeed==0.19.8",
        "numpy==2.1.0",
        "nvidia-nccl-cu12==2.21.5",
        "torch==2.6.0+cu124",
    ), "not pip, not accelerate, and not the toolkit, which the image does not have"


def test_variables_of_a_cuda_image() -> None:
    env = dict(made(row()).env)
    assert env["CC"] == "/usr/bin/gcc-12"
    assert env["CXX"] == env["CUDAHOSTCXX"] == "/usr/bin/g++-12"
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["NVIDIA_DRIVER_CAPABILITIES"]) == ("all", "compute,utility")
    assert env["PIP_CONSTRAINT"] == env["UV_CONSTRAINT"] and env["PYTHONNOUSERSITE"] == "1"
    assert env["OMP_NUM_THREADS"] == "4"
    assert "DS_ACCELERATOR" not in env


def test_variables_of_a_cpu_image() -> None:
    env = dict(made(row(CPU)).env)
    assert env["DS_ACCELERATOR"] == "cpu"
    assert not {name for name in env if name.startswith(("NVIDIA", "CUDA"))}


def test_a_rows_own_variable_wins() -> None:
    assert dict(made(row(env={"CC": "/usr/bin/clang"})).env)["CC"] == "/usr/bin/clang"


def test_architectures_are_the_gpus_with_ptx_of_the_newest() -> None:
    two = row(gpus=["h200", "a100"])
    assert plan.arch_list(two, FACTS) == "8.0;9.0+PTX"
    assert plan.capabilities(two, FACTS) == ("9.0", "8.0"), "in the row's order"
    assert dict(made(two).ops_env)["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0+PTX"
    own = row(env={"TORCH_CUDA_ARCH_LIST": "9.0"})
    assert dict(made(own).ops_env)["TORCH_CUDA_ARCH_LIST"] == "9.0"


def test_fabric_brings_the_libraries_without_which_nccl_falls_back_to_sockets() -> None:
    verbs = {"ibverbs-providers", "libibverbs1", "librdmacm1"}
    assert verbs <= set(made(row(fabric="verbs")).packages)
    assert not verbs & set(made(row()).packages)


def test_toolkit_image_is_used_only_where_the_toolkit_comes_in_one() -> None:
    assert made(row()).toolkit_reference == f"docker.io/nvidia/cuda:12.4.1-devel-ubuntu22.04@{B}"
    wheels = made(row(cuda__toolkit="wheels"))
    assert wheels.toolkit_reference is None
    assert dict(wheels.ops_env)["CUDA_HOME"] == wheels.cuda_home


def test_ops_bring_their_variables_packages_and_companions() -> None:
    asked = made(row(deepspeed__ops=["async_io"]))
    assert "libaio-dev" in asked.op_packages and "libaio1" in asked.packages
    assert set(asked.ops) > {"async_io"}, "in this DeepSpeed async_io loads another op"
    built = {name for name, value in asked.ops_env if name.startswith("DS_BUILD_") and value == "1"}
    assert built == {FACTS.deepspeed.ops[op].build_variable for op in asked.ops}


def test_what_a_builder_forgets_to_link_is_told_to_the_compiler() -> None:
    ops = {"deepspeed__ops": ["cpu_adam", "async_io"]}
    assert dict(made(row(CPU, **ops)).ops_env)["ENVBUILD_LINK"] == "async_io_op=aio"
    assert "ENVBUILD_LINK" not in dict(made(row(**ops)).ops_env), "the cuda builder hands its flags on"


def test_packages_are_sorted_and_named_once() -> None:
    packages = made(row(packages=["git", "gcc-12", "ca-certificates"])).packages
    assert list(packages) == sorted(set(packages)) and "git" in packages


@pytest.mark.parametrize(
    ("changes", "said", "known"),
    [
        ({"family": "alpine"}, "family: 'alpine'", "debian"),
        ({"gpus": ["a100", "b900", "z1"]}, "b900, z1", "a100"),
        ({"deepspeed__ops": ["cpu_adam", "cpu_adan"]}, "cpu_adan", "cpu_adam"),
    ],
)
def test_what_nobody_knows_is_refused_with_what_is_known(changes: dict[str, Any], said: str, known: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        made(row(**changes))
    assert known in caught.value.hint
