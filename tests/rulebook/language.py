"""Cases of the rules about the C++ of torch's headers."""

from __future__ import annotations

from rulebook.rows import A100, B200, CPU, ERROR, H200, V100, WARNING, Broken, Kept

BROKEN: list[Broken] = [
    ("R02", ERROR, A100, {"deepspeed.version": "0.9.2"}, "use DeepSpeed 0.9.3 or newer, or a torch older than 2.1"),
    ("R03", WARNING, CPU, {"torch.version": "2.12.1", "deepspeed.version": "0.19.4"}, "DeepSpeed 0.19.5"),
    ("R03", WARNING, CPU, {"torch.version": "2.14.1", "deepspeed.version": "0.19.4"}, "older than 2.12"),
    ("R03", ERROR, B200, {"deepspeed.version": "0.19.4"}, "DeepSpeed 0.19.5"),
    ("R04", WARNING, B200, {"gcc.version": "11.2"}, "use GCC 11.3 or newer, or a torch older than 2.13"),
    ("R04", WARNING, A100, {"gcc.version": "9.3"}, "use GCC 9.4"),
    ("R05", ERROR, H200, {"deepspeed.version": "0.19.6"}, "DeepSpeed 0.19.7 or newer, or CUDA 12.9"),
]  # fmt: skip

KEPT: list[Kept] = [
    ("R02", A100, {"deepspeed.version": "0.9.3"}),
    ("R02", V100, {}),
    ("R03", CPU, {"torch.version": "2.14.1", "deepspeed.version": "0.19.5"}),
    ("R03", H200, {"deepspeed.version": "0.19.4"}),
    ("R04", B200, {"gcc.version": "11.3"}),
    ("R04", "a100-cu117", {}),
    ("R04", V100, {}),
    ("R05", H200, {"deepspeed.version": "0.19.7"}),
    ("R05", H200, {"deepspeed.version": "0.19.6", "deepspeed.ops": ["cpu_adam"]}),
    ("R05", A100, {}),
]  # fmt: skip
