"""Cases of the rules about GPUs."""

from __future__ import annotations

from rulebook.rows import A100, CPU, ERROR, H200, INFO, V100, WARNING, Broken, Kept

BROKEN: list[Broken] = [
    ("R08", ERROR, H200, {"gpus": []}, "gpus: [h200]"),
    ("R08", ERROR, H200, {"env": {"TORCH_CUDA_ARCH_LIST": "7.0;9.0+PTX"}}, "set it to 9.0"),
    ("R08", ERROR, H200, {"env": {"TORCH_CUDA_ARCH_LIST": ""}}, "remove the variable"),
    ("R08", WARNING, H200, {"env": {"TORCH_CUDA_ARCH_LIST": "Hopper"}}, "check it by hand"),
    ("R09", ERROR, H200, {"gpus": ["h200", "v100"]}, "use CUDA 11.3 to 12.9"),
    ("R09", ERROR, A100, {"gpus": ["b200"]}, "use CUDA 12.8"),
    ("R09", WARNING, H200, {"gpus": ["h20"]}, "h200"),
    ("R09", WARNING, H200, {"cuda.version": "13.9"}, "check it by hand"),
    ("R10", ERROR, H200, {"gpus": ["v100"]}, "use torch 2.10.0+cu128"),
    ("R10", ERROR, "b200-cu128", {"torch.version": "2.7.1", "torch.build": "cu126"}, "2.8.0+cu128"),
    ("R10", ERROR, "h100-cu121", {"torch.version": "2.0.1", "torch.build": "cu117"}, "2.1.0+cu121"),
    ("R10", ERROR, H200, {"env": {"TORCH_CUDA_ARCH_LIST": "8.0;8.6"}}, "add 9.0"),
    ("R10", ERROR, H200, {"gpus": ["h100", "b200"], "env": {"TORCH_CUDA_ARCH_LIST": "9.0a"}}, "add 10.0"),
    ("R10", ERROR, H200, {"env": {"TORCH_CUDA_ARCH_LIST": "10.0+PTX"}}, "add 9.0"),
    ("R10", WARNING, H200, {"torch.version": "2.99.0"}, "2.15.0"),
    ("R10", WARNING, H200, {"torch.build": "cu126"}, "cu130"),
    ("R10", INFO, A100, {}, "measured"),
    ("R10", INFO, V100, {}, "measured"),
]  # fmt: skip

KEPT: list[Kept] = [
    ("R08", H200, {"env": {"TORCH_CUDA_ARCH_LIST": "8.0 9.0+PTX"}}),
    ("R08", H200, {"gpus": [], "deepspeed.ops": ["cpu_adam"]}),
    ("R08", A100, {"gpus": []}),
    ("R09", H200, {"gpus": ["a100", "b200"]}),
    ("R09", A100, {"gpus": ["v100", "h100"]}),
    ("R10", H200, {"gpus": ["a100", "rtx4090", "l40s", "b200", "rtx5090"]}),
    ("R10", "v100-cu126", {}),
    ("R10", H200, {"gpus": ["l40s"], "env": {"TORCH_CUDA_ARCH_LIST": "8.6"}}),
    ("R10", H200, {"env": {"TORCH_CUDA_ARCH_LIST": "8.0+PTX"}}),
    ("R10", H200, {"env": {"TORCH_CUDA_ARCH_LIST": "9.0a 10.0"}}),
    ("R10", H200, {"env": {"TORCH_CUDA_ARCH_LIST": "8.0"}, "deepspeed.ops": ["cpu_adam"]}),
    ("R10", CPU, {}),
]  # fmt: skip
