"""The ds_config that trains where nobody brings one, and what every other one is given or relieved of. Pure."""

from __future__ import annotations

from typing import Any

MICRO_BATCH = 2
# They print or write files in every step, or wait for the device: the step would be another one. So would those that
# talk to a service (secrets.MONITORS), which also hold what nobody else is to read.
LOUD = ("comms_logger", "flops_profiler", "wall_clock_breakdown", "autotuning", "dump_state")
# Steps between two lines: more than anybody measures.
SILENT = 1_000_000


def usual(accelerator: str) -> dict[str, Any]:
    """ZeRO-3 with both offloads, as somebody would write it who writes no more than necessary."""
    config: dict[str, Any] = {
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
        # Said aloud: DeepSpeed 0.19.5 clips at 1.0 by default (0.19.0 does not), and plain torch does not.
        "gradient_clipping": 0.0,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu"},
        },
    }
    if accelerator == "cuda":
        config["bf16"] = {"enabled": True}
    return config


def whole(accelerator: str) -> dict[str, Any]:
    """The same with all that is filled in: what DeepSpeed is given."""
    return {**usual(accelerator), "steps_per_print": SILENT, "train_micro_batch_size_per_gpu": MICRO_BATCH}
