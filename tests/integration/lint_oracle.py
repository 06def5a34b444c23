"""What DeepSpeed itself does with configurations. Runs inside an image: no part of envbuild is there.

Reads ``[{"name", "config", "how", "look", "ranks"}, ...]`` on standard input and prints ``{name: answer}`` as its last
line. An answer is how it ended (empty where it did not) and what the look saw.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import sys
import tempfile

# What an engine imports when it starts is imported once, before the forks: it takes longer than the start itself.
import deepspeed
import deepspeed.ops.adam
import deepspeed.runtime.superoffload.superoffload_stage3
import deepspeed.runtime.zero.muon.muon_optimizer
import deepspeed.runtime.zero.stage3
import torch
import torch._dynamo
from deepspeed.runtime.config import DeepSpeedConfig

LIMIT = 120
# More than 1 MiB in fp32: less is not swapped to NVMe.
WIDTH = 640


def parse(config):
    return DeepSpeedConfig(config)


def start(config):
    torch.manual_seed(0)
    # Parameters are swapped to NVMe only where they were made for it.
    swaps = config.get("zero_optimization", {}).get("offload_param", {}).get("device") == "nvme"
    if swaps:
        deepspeed.init_distributed("gloo")
    with deepspeed.zero.Init(config_dict_or_path=config) if swaps else contextlib.nullcontext():
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1))
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def step(config):
    engine = start(config)
    for _ in range(2):
        loss = engine(torch.ones(1, WIDTH, dtype=next(engine.module.parameters()).dtype)).float().mean()
        engine.backward(loss)
        engine.step()
    return engine


def activations(config):
    deepspeed.init_distributed("gloo")
    deepspeed.checkpointing.configure(None, deepspeed_config=config)


def swapped():
    return [name for _, _, names in os.walk("/swap") for name in names]


LOOKS = {
    "computes_in_fp32": lambda engine: next(engine.module.parameters()).dtype is torch.float32,
    "parameters_are_whole": lambda engine: all(
        each.numel() and not hasattr(each, "ds_id") for each in engine.module.parameters()
    ),
    "no_zero_optimizer": lambda engine: "Zero" not in type(engine.optimizer).__name__,
    "nothing_is_swapped": lambda engine: not swapped(),
    "no_optimizer": lambda engine: engine.optimizer is None or "Dummy" in type(engine.optimizer).__name__,
    "no_scheduler": lambda engine: engine.lr_scheduler is None,
}


def main():
    answers = {}
    # The parent only forks: a case cannot change another's world, and torch is loaded once.
    for case in json.load(sys.stdin):
        if case["how"] == "parse" and case["ranks"] == 1:
            answers[case["name"]] = tried(case)
        else:
            answers[case["name"]] = apart(case)
    sys.stdout.write(json.dumps({"fp16": fp16(), "answers": answers}) + "\n")


def fp16():
    from deepspeed.accelerator import get_accelerator

    return bool(get_accelerator().is_fp16_supported())


def tried(case):
    look = LOOKS.get(case["look"])
    try:
        with pathlib.Path(os.devnull).open("w") as quiet, contextlib.redirect_stdout(quiet):
            seen = globals()[case["how"]](case["config"])
            return {"ended": "", "saw": bool(look(seen)) if look else None}
    except BaseException as error:
        return {"ended": f"{type(error).__name__}: {error}", "saw": None}


def apart(case):
    """One process for each rank; the first that ends badly answers for all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {}
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(case["ranks"]):
            pid = os.fork()
            if pid == 0:
                child(case, rank, port, pathlib.Path(folder, str(rank)))
            ranks[pid] = pathlib.Path(folder, str(rank))
        answer = None
        while ranks:
            pid, status = os.wait()
            path = ranks.pop(pid, None)
            if path is None:
                continue
            if os.WIFSIGNALED(status):
                said = {"ended": f"killed by signal {os.WTERMSIG(status)}", "saw": None}
            else:
                said = json.loads(path.read_text())
            if answer is None or said["ended"]:
                answer = said
            if said["ended"]:
                break
        # The others wait for one that is gone.
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    # DeepSpeed's own communication leaves its buffers behind; when there is no more room, the next case crashes.
    for left in pathlib.Path("/dev/shm").iterdir():
        left.unlink()
    return answer


def child(case, rank, port, path):
    signal.alarm(LIMIT)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(case["ranks"]), LOCAL_SIZE=str(case["ranks"]),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1",
    )  # fmt: skip
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    torch.set_num_threads(1)
    answer = tried(case)
    path.write_text(json.dumps(answer))
    os._exit(0)


if __name__ == "__main__":
    main()
