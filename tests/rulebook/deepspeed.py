"""Cases of the rules about what a DeepSpeed release needs."""

from __future__ import annotations

from rulebook.rows import A100, CPU, ERROR, H200, V100, WARNING, Broken, Kept

BROKEN: list[Broken] = [
    ("R17", ERROR, A100, {"deepspeed.version": "0.11.1"}, "pins: [pydantic<2]"),
    ("R17", ERROR, A100, {"deepspeed.version": "0.8.3", "pins": ["pydantic>=1.10,<3"]}, "pins: [pydantic<2]"),
    ("R17", ERROR, A100, {"deepspeed.version": "0.8.3", "pins": ["Pydantic!=2.0"]}, "pins: [pydantic<2]"),
    ("R17", ERROR, CPU, {"pins": ["numpy<2", "pydantic<2"]}, "drop the pin pydantic<2"),
    ("R17", ERROR, CPU, {"extras": [{"requirement": "pydantic[email]~=1.10"}]}, "pins: [pydantic>=2]"),
    ("R17", WARNING, CPU, {"deepspeed.version": "0.20.0"}, "0.19.8"),
    ("R23", ERROR, CPU, {"deepspeed.version": "0.14.0"}, "DeepSpeed 0.14.1"),
    ("R23", ERROR, CPU, {"deepspeed.version": "0.14.4"}, "packages: [numactl], or set LOCAL_SIZE"),
    ("R23", ERROR, CPU, {"deepspeed.version": "0.15.4"}, "DeepSpeed 0.16.0"),
    ("R25", WARNING, "h100-cu124", {"torch.version": "2.6.0"}, "DeepSpeed 0.16.0 or newer, or a torch older than 2.6"),
    ("PINS", WARNING, A100, {"pins": ["setuptools<82"]}, "pins: [numpy<2]"),
    ("PINS", WARNING, A100, {"pins": ["numpy<2", "setuptools<83"]}, "pins: [setuptools<82]"),
    ("TRITON", ERROR, "h100-cu126", {"deepspeed.version": "0.16.3"}, "use DeepSpeed 0.16.4 or newer, or a torch older"),
    ("OPS", ERROR, CPU, {"deepspeed.ops": ["shm_comm"]}, "deepspeed_shm_comm"),
    ("OPS", ERROR, H200, {"deepspeed.ops": ["deepspeed_shm_comm"]}, "fused_adam"),
    ("OPS", ERROR, H200, {"cuda.toolkit": "none", "deepspeed.ops": ["fused_adam"]}, "set cuda.toolkit"),
    ("OPS", WARNING, A100, {"deepspeed.version": "0.8.2"}, "0.8.3 to 0.19.8"),
    ("OPS", WARNING, A100, {"deepspeed.version": "0.11.0", "deepspeed.ops": ["cpu_lion"]}, "0.11.1 to 0.19.8"),
]  # fmt: skip

KEPT: list[Kept] = [
    ("R17", A100, {"deepspeed.version": "0.11.1", "pins": ["pydantic<2"]}),
    ("R17", A100, {"deepspeed.version": "0.11.1", "pins": ["pydantic~=1.10"]}),
    ("R17", A100, {"deepspeed.version": "0.12.3"}),
    ("R17", CPU, {"pins": ["pydantic>=1.10"]}),
    ("R23", CPU, {"deepspeed.version": "0.14.1", "env": {"LOCAL_SIZE": "2"}}),
    ("R23", CPU, {"deepspeed.version": "0.14.4", "packages": ["numactl"]}),
    ("R23", CPU, {"deepspeed.version": "0.15.4", "env": {"LOCAL_SIZE": "2"}}),
    ("R23", CPU, {"deepspeed.version": "0.16.0"}),
    ("R23", H200, {"deepspeed.version": "0.14.0"}),
    ("R25", "h100-cu124", {"torch.version": "2.6.0", "deepspeed.version": "0.16.0"}),
    ("R25", "h100-cu124", {}),
    ("PINS", A100, {"pins": ["numpy==1.26.4", "setuptools~=75.0"]}),
    ("PINS", A100, {"torch.version": "2.2.0", "pins": ["numpy<2"]}),
    ("PINS", "h100-cu124", {}),
    ("TRITON", "h100-cu126", {"deepspeed.version": "0.16.4"}),
    ("TRITON", "h100-cu124", {}),
    ("TRITON", CPU, {"deepspeed.version": "0.15.4"}),
    ("OPS", CPU, {"deepspeed.ops": ["cpu_adam", "fused_adam", "async_io"]}),
    ("OPS", H200, {"cuda.toolkit": "none", "deepspeed.ops": ["cpu_adam"]}),
    ("OPS", A100, {}),
    ("OPS", V100, {}),
]  # fmt: skip
