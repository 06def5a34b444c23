"""Cases of the rules about torch's wheels."""

from __future__ import annotations

from rulebook.rows import A100, CPU, ERROR, H200, INFO, V100, WARNING, Broken, Kept

BROKEN: list[Broken] = [
    ("R11", ERROR, H200, {"nccl": "2.27.5"}, "nccl: 2.28.9"),
    ("R11", ERROR, H200, {"nccl": "2.28.90"}, "nccl: 2.28.9"),
    ("R11", ERROR, H200, {"nccl": None}, "nccl: 2.28.9"),
    ("R11", WARNING, H200, {"nccl": "2.28"}, "nccl: 2.28.9"),
    ("R11", ERROR, A100, {"nccl": "2.14.3"}, "nccl: 2.18"),
    ("R11", INFO, A100, {"nccl": "2.18.3"}, "measured"),
    ("R11", WARNING, H200, {"torch.version": "2.99.0"}, "2.15.0"),
    ("R11", WARNING, H200, {"torch.build": "cu126"}, "cu130"),
    ("R12", INFO, H200, {"nccl": "2.27.5"}, "CUDA 13.0"),
    ("R12", INFO, V100, {}, "torch 1.12.1+cu113 carries"),
    ("R12", WARNING, H200, {"pins": ["nvidia-nccl-cu12==2.27.5"]}, "nvidia-nccl-cu13"),
    ("R12", WARNING, H200, {"extras": [{"requirement": "nvidia_nccl_cu11"}]}, "nvidia-nccl-cu13"),
    ("R20", ERROR, CPU, {"python": "3.9"}, "use Python 3.10 to 3.14, or torch 2.8.0"),
    ("R20", ERROR, A100, {"python": "3.12"}, "use Python 3.8 to 3.11, or torch 2.2.0"),
    ("R20", ERROR, H200, {"torch.version": "2.15.0", "python": "3.10"}, "use Python 3.11 to 3.15"),
    ("R20", WARNING, CPU, {"torch.version": "2.99.0"}, "2.15.0"),
    ("R20", WARNING, CPU, {"python": "3.13"}, "use Python 3.12"),
    ("R26", ERROR, "h100-cu124", {"torch.torchvision": "0.25.0"}, 'torchvision: "0.20.1", or torch 2.10.0'),
    ("R26", ERROR, A100, {"torch.torchaudio": "2.1.0"}, 'torchaudio: "2.1.2"'),
    ("R26", INFO, "b200-cu132", {}, "was not checked"),
    ("R26", INFO, "b200-cu132", {"torch.torchvision": None, "torch.torchaudio": "2.11.0"}, "pip check"),
    ("INDEX", ERROR, H200, {"torch.build": "cu128"}, "index: pytorch, or build: cu130"),
    ("INDEX", ERROR, CPU, {"torch.index": "pypi"}, "build: cu130"),
]  # fmt: skip

KEPT: list[Kept] = [
    ("R11", H200, {}),
    ("R11", H200, {"torch.version": "2.13.0", "nccl": "2.29.7"}),
    ("R12", H200, {}),
    ("R12", H200, {"pins": ["nvidia-nccl-cu13"]}),
    ("R12", CPU, {"pins": ["nvidia-nccl-cu12"]}),
    ("R20", CPU, {"python": "3.12"}),
    ("R20", H200, {"torch.version": "2.15.0", "python": "3.11"}),
    ("R26", A100, {}),
    ("R26", CPU, {}),
    ("R26", H200, {"torch.torchaudio": None}),
    ("INDEX", H200, {}),
    ("INDEX", H200, {"torch.build": "cu128", "torch.index": "pytorch"}),
    ("INDEX", H200, {"torch.version": "2.99.0"}),
]  # fmt: skip
