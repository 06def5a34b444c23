"""Cases of the rules about how the image runs."""

from __future__ import annotations

from rulebook.rows import A100, CPU, ERROR, H200, INFO, WARNING, Broken, Kept

BROKEN: list[Broken] = [
    ("R19", WARNING, CPU, {"platforms": ["linux/arm64"]}, "cpu_baseline: armv8-a"),
    ("R19", WARNING, CPU, {"platforms": ["linux/amd64", "linux/arm64"]}, "platforms: [linux/amd64]"),
    ("R19", WARNING, CPU, {"cpu_baseline": "armv8-a"}, "cpu_baseline: x86-64-v3"),
    ("R19", WARNING, CPU, {"cpu_baseline": "armv8-a", "platforms": ["linux/arm64"]}, "cannot be verified"),
    ("R19", INFO, CPU, {"cpu_baseline": "x86-64-v4"}, "AVX-512"),
    ("R19", INFO, CPU, {"cpu_baseline": "x86-64-v2"}, "x86-64-v3"),
    ("R22", WARNING, H200, {"env": {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}}, "remove it"),
    ("R22", WARNING, H200, {"env": {"NCCL_ASYNC_ERROR_HANDLING": "0"}}, "TORCH_NCCL_ASYNC_ERROR_HANDLING: 1"),
    ("R22", WARNING, H200, {"env": {"NCCL_ASYNC_ERROR_HANDLING": "1"}}, "TORCH_NCCL_ASYNC_ERROR_HANDLING: 1"),
    ("R22", WARNING, A100, {"env": {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}}, "NCCL_ASYNC_ERROR_HANDLING: 3"),
    ("R24", ERROR, CPU, {"env": {"LAUNCH": "deepspeed --zero-offload train.py"}}, "ds_config"),
]  # fmt: skip

KEPT: list[Kept] = [
    ("R19", CPU, {}),
    ("R22", H200, {"env": {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}}),
    ("R22", A100, {"env": {"NCCL_ASYNC_ERROR_HANDLING": "2"}}),
    ("R22", H200, {}),
    ("R24", CPU, {"env": {"LAUNCH": "deepspeed train.py --zero-offload-ratio 1"}}),
]  # fmt: skip
