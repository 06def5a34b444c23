"""A training job up to the end of its first step, as a user writes it: ZeRO-3, optimizer and parameters offloaded.

Runs inside the images, under torchrun. Rank 0 says when the step is done, and how many libraries had to be
compiled for it.
"""

import os
from pathlib import Path

import deepspeed
import torch

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
    },
}


def main():
    """Make a model, train one step, say so."""
    torch.manual_seed(0)
    deepspeed.init_distributed()
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(256, 256), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    loss = engine(torch.randn(4, 256)).square().mean()
    engine.backward(loss)
    engine.step()
    if engine.global_rank == 0:
        compiled = list(Path(os.environ["TORCH_EXTENSIONS_DIR"]).rglob("*.so"))
        print(f"first step done, compiled {len(compiled)}", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
