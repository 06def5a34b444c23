"""Cases of the rules about compiling with a CUDA toolkit."""

from __future__ import annotations

from rulebook.rows import A100, CPU, ERROR, H200, V100, WARNING, Broken, Kept

# A row of CUDA 12 with a toolkit that is not torch's.
MIXED = {"cuda.version": "12.4", "torch.version": "2.2.0", "torch.build": "cu121", "nccl": "2.19.3"}
RUNTIME = "docker.io/nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04"

BROKEN: list[Broken] = [
    ("R01", ERROR, A100, {"gcc.version": "12.3"}, "use GCC 11 (package gcc-11), or CUDA 12.0"),
    ("R01", ERROR, H200, {"gcc.version": "16.1"}, "CUDA 13.4 or newer"),
    ("R01", WARNING, H200, {"cuda.version": "11.5"}, "11.3 and 11.7"),
    ("R06", ERROR, H200, {**MIXED, "deepspeed.version": "0.14.0"}, "DeepSpeed 0.14.3"),
    ("R06", ERROR, H200, {**MIXED, "deepspeed.version": "0.14.0"}, "use the toolkit 12.1, or torch's build cu124"),
    ("R06", ERROR, H200, {**MIXED, "deepspeed.version": "0.9.2", "env": {"DS_SKIP_CUDA_CHECK": "1"}}, "12.1"),
    ("R06", WARNING, H200, {**MIXED, "deepspeed.version": "0.14.0", "env": {"DS_SKIP_CUDA_CHECK": "1"}}, "12.1"),
    ("R06", ERROR, H200, {**MIXED, "deepspeed.version": "0.14.0", "env": {"DS_SKIP_CUDA_CHECK": "0"}}, "12.1"),
    ("R06", ERROR, H200, {"cuda.version": "13.2"}, "use the toolkit 13.0, or torch's build cu132"),
    ("R06", ERROR, A100, {"cuda.version": "12.1"}, "use the toolkit 11.8"),
    ("R06", ERROR, A100, {"torch.build": "cpu"}, "cu118"),
    ("R07", WARNING, V100, {"cuda.version": "10.2"}, "use the toolkit 11.3"),
    ("R07", WARNING, V100, {"cuda.version": "12.1", "deepspeed.version": "0.9.0"}, "toolkit 11.3"),
    ("R18", ERROR, A100, {"deepspeed.version": "0.14.2", "cuda.toolkit": "none"}, "newer than 0.14.2"),
    ("R18", ERROR, A100, {"deepspeed.version": "0.14.2", "base.toolkit_image": RUNTIME}, "cudnn8-devel-ubuntu22.04"),
    ("R18", ERROR, A100, {"base.toolkit_image": "nvidia/cuda:11.8.0-base-ubuntu22.04"}, "11.8.0-devel-ubuntu22.04"),
    ("WHEELS", ERROR, "h100-cu126", {"cuda.toolkit": "wheels"}, "set cuda.toolkit to image"),
]  # fmt: skip

KEPT: list[Kept] = [
    ("WHEELS", "b200-cu132", {}),
    ("WHEELS", "h100-cu126", {"cuda.toolkit": "none"}),
    ("R01", H200, {"gcc.version": "15.2"}),
    ("R01", A100, {"gcc.version": "13.1", "cuda.toolkit": "none"}),
    ("R06", H200, {**MIXED, "deepspeed.version": "0.14.3"}),
    ("R06", A100, {"cuda.version": "11.7", "deepspeed.version": "0.8.3"}),
    ("R06", H200, {"cuda.version": "12.4", "cuda.toolkit": "none"}),
    ("R07", V100, {}),
    ("R07", V100, {"cuda.version": "11.7"}),
    ("R07", V100, {"cuda.version": "10.2", "deepspeed.version": "0.9.1"}),
    ("R18", A100, {"deepspeed.version": "0.14.2"}),
    ("R18", H200, {"deepspeed.version": "0.14.2"}),
    ("R18", A100, {"deepspeed.version": "0.14.3", "cuda.toolkit": "none", "deepspeed.ops": ["cpu_adam"]}),
    ("R18", CPU, {"deepspeed.version": "0.14.2"}),
    ("R18", A100, {"base.toolkit_image": "registry.example/own-runtime:1"}),
]  # fmt: skip
