"""Cases of the rules about the system below the wheels, its driver and its end."""

from __future__ import annotations

from rulebook.rows import A100, CENTOS7, CPU, ERROR, H200, INFO, V100, WARNING, Broken, Kept

CUDA118 = "docker.io/nvidia/cuda:11.8.0-base-ubuntu22.04"

BROKEN: list[Broken] = [
    ("R13", ERROR, H200, CENTOS7, "torch 2.6.0 or older"),
    ("R13", ERROR, H200, CENTOS7, "el8"),
    ("R13", ERROR, H200, {**CENTOS7, "torch.version": "2.6.0", "torch.build": "cu126"}, "torch 2.6.0 or older"),
    ("R13", ERROR, H200, {**CENTOS7, "torch.version": "2.6.0", "platforms": ["linux/arm64"]}, "el8"),
    ("R13", ERROR, A100, {"family": "centos7", "base.image": "centos:7", "base.toolkit_image": None,
                          "torch.version": "2.7.1"}, "el8"),
    ("R13", WARNING, CPU, {"base.image": "registry.example/own:1"}, "bookworm"),
    ("R13", WARNING, CPU, {"torch.version": "2.16.0"}, "2.15.0"),
    ("R14", ERROR, H200, CENTOS7, "el8"),
    ("R14", WARNING, A100, {"base.image": "docker.io/library/ubuntu:20.04"}, "focal"),
    ("R15", ERROR, V100, {"torch.version": "2.7.1", "torch.build": "cu126"}, "torch 2.6.0 or older"),
    ("R15", ERROR, V100, {"torch.version": "2.6.0", "torch.build": "cu126"}, "gcc-toolset"),
    ("R16", ERROR, H200, {"driver": "575.57.08"}, 'driver: "580"'),
    ("R16", ERROR, A100, {"driver": "450.80.01"}, "450.80.02"),
    ("R16", ERROR, "b200-cu128", {"driver": "570.100"}, "570.133.20"),
    ("R16", ERROR, "h100-cu124", {"driver": "470.82.01", "packages": ["cuda-compat-11-8"]}, "525"),
    ("R16", ERROR, H200, {"driver": "535", "packages": ["cuda-compat-13-0"]}, "580"),
    ("R16", ERROR, "h100-cu124", {"gpus": ["rtx3090"], "driver": "470.82.01", "packages": ["cuda-compat-12-4"]}, "525"),
    ("R16", INFO, "h100-cu124", {"driver": "470.82.01", "packages": ["cuda-compat-12-4"]}, "cuda-compat-12-4 makes up"),
    ("R16", INFO, H200, {"driver": None}, 'driver: "580"'),
    ("R16", WARNING, A100, {"base.image": CUDA118, "driver": "495.29.05"}, "520.61.05"),
    ("R16", INFO, A100, {"base.image": "nvidia/cuda:12.4.1-base-ubuntu22.04", "driver": "525"}, "plain system image"),
    ("R16", WARNING, H200, {"cuda.version": "14.0"}, "check it by hand"),
    ("R21", WARNING, CPU, {"base.image": "ubuntu:20.04", "family": "ubuntu", "base.bootstrap": None}, "base.image"),
    ("R21", WARNING, CPU, {"base.bootstrap.suite": "focal", "family": "ubuntu"}, "key: base.bootstrap.suite"),
    ("R21", WARNING, A100, {"waivers": []}, "pin base.toolkit_digest"),
    ("R21", WARNING, A100, {"waivers": [], "base.toolkit_digest": "sha256:" + "0" * 64}, "key: base.toolkit_image"),
    ("R21", INFO, A100, {"base.image": "nvidia/cuda:13.9.0-base-ubuntu22.04", "cuda.toolkit": "none"}, "look it up"),
    ("PKG", ERROR, CPU, {"python": "3.12"}, "use Python 3.11"),
    ("PKG", ERROR, A100, {"python": "3.11"}, "use Python 3.10"),
    ("PKG", WARNING, CPU, {"base.image": "debian:sid", "base.bootstrap": None}, "bookworm"),
]  # fmt: skip

KEPT: list[Kept] = [
    ("R13", A100, {**CENTOS7, "cuda.toolkit": "none"}),
    ("R13", CPU, {}),
    ("R13", A100, {"base.image": "ubuntu:20.04", "torch.version": "2.11.0"}),
    ("R14", CPU, {}),
    ("R14", V100, {}),
    ("R14", A100, {"base.image": "docker.io/library/ubuntu:24.04"}),
    ("R14", "rhel8-cu118", {"torch.version": "2.7.1"}),
    ("R15", V100, {}),
    ("R15", "rhel8-cu118", {"torch.version": "2.7.1"}),
    ("R16", H200, {"driver": "580.95.05"}),
    ("R16", A100, {}),
    ("R16", CPU, {}),
    ("R16", A100, {"base.image": CUDA118, "driver": "470.82.01"}),
    ("R16", A100, {"base.image": CUDA118, "driver": "525.60.13"}),
    ("R21", CPU, {}),
    ("R21", H200, {}),
    ("R21", A100, {"cuda.toolkit": "none"}),
    ("R21", CPU, {"base.image": "registry.example/own:1"}),
    ("PKG", A100, {"base.image": "ubuntu:20.04", "python": "3.9"}),
]  # fmt: skip
