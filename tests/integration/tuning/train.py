"""Train a tiny model with ds_configs that tune wrote, one after the other, on two ranks.

Runs inside an image. Usage: train.py RANKS FOLDER, where FOLDER has config.json (the model's shape) and *.ds.json.
Prints a JSON object: for each file the losses of rank 0, the optimizer's class, the world size and the batch sizes.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main(ranks, folder):
    """Start the ranks, and print what the first has seen."""
    with tempfile.TemporaryDirectory() as out:
        running = []
        names = sorted(path.name for path in Path(folder).glob("*.ds.json"))
        ports = ",".join(str(free_port()) for _ in names)
        for rank in range(ranks):
            environment = dict(
                os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_SIZE=str(ranks),
                LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", DS_ACCELERATOR="cpu", GLOO_SOCKET_IFNAME="lo",
                OMP_NUM_THREADS="1", PORTS=ports, OUT=out,
            )  # fmt: skip
            argv = [sys.executable, __file__, "rank", folder, *names]
            running.append(subprocess.Popen(argv, env=environment, stdout=sys.stderr, stderr=sys.stderr))
        while any(each.poll() is None for each in running):
            if any(each.poll() for each in running):
                # The others would wait for it for ever.
                for each in running:
                    each.kill()
            time.sleep(0.2)
        codes = [each.wait() for each in running]
        if any(codes):
            sys.exit(f"a rank failed: {codes}")
        print(json.dumps({name: json.loads(Path(out, name).read_text()) for name in names}))  # noqa: T201


def free_port():
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank(folder, names):
    """One rank: a process of its own for each file, made after what they all need was loaded."""
    import deepspeed  # noqa: F401
    import torch  # noqa: F401

    for number, name in enumerate(names):
        child = os.fork()
        if child == 0:
            os.environ["MASTER_PORT"] = os.environ["PORTS"].split(",")[number]
            seen = train(folder, name)
            if os.environ["RANK"] == "0":
                Path(os.environ["OUT"], name).write_text(json.dumps(seen))
            sys.stderr.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"{name} ended with {status}")
        meet(number, "over")
        if os.environ["RANK"] == "0":
            # DeepSpeed's collectives for CPUs leave their segments behind; the other rank has no new ones yet.
            for left in Path("/dev/shm").iterdir():
                left.unlink()
        meet(number, "clean")


def meet(number, what):
    """Wait for the other ranks; one that failed has ended the whole run by then."""
    out = Path(os.environ["OUT"])
    (out / f"{what}-{number}-{os.environ['RANK']}").touch()
    while len(list(out.glob(f"{what}-{number}-*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.05)


def train(folder, name):
    """Train with one file, as it was written: DeepSpeed reads it itself."""
    import deepspeed
    import torch

    file = str(Path(folder, name))
    written = json.loads(Path(file).read_text())
    shape = json.loads(Path(folder, "config.json").read_text())
    torch.manual_seed(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    width, words = shape["hidden_size"], shape["vocab_size"]

    def made():
        layers = [torch.nn.Linear(width, width) for _ in range(shape["num_hidden_layers"])]
        return torch.nn.Sequential(torch.nn.Embedding(words, width), *layers, torch.nn.Linear(width, words))

    if written["zero_optimization"]["stage"] == 3:
        with deepspeed.zero.Init(config_dict_or_path=file):
            model = made()
    else:
        model = made()
    # FusedAdam, which runs where the parameters are, is no op of this image: torch's takes its place.
    client = None if "offload_optimizer" in written["zero_optimization"] else torch.optim.AdamW(model.parameters())
    engine, optimizer, *_ = deepspeed.initialize(
        model=model, optimizer=client, model_parameters=model.parameters(), config=file
    )
    # Every rank and every file sees the same sequences: the loss has to fall.
    tokens = torch.randint(0, words, (engine.train_micro_batch_size_per_gpu(), 8), generator=torch.manual_seed(7))
    losses = []
    for _ in range(6):
        for _ in range(engine.gradient_accumulation_steps()):
            scores = engine(tokens).float()
            loss = torch.nn.functional.cross_entropy(scores.reshape(-1, words), tokens.reshape(-1))
            engine.backward(loss)
            engine.step()
        losses.append(loss.item())
    basic = getattr(engine, "basic_optimizer", None) or optimizer
    return {
        "losses": losses, "optimizer": type(basic).__name__, "stage": engine.zero_optimization_stage(),
        "train_batch_size": engine.train_batch_size(), "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "bf16": engine.bfloat16_enabled(), "world": torch.distributed.get_world_size(),
    }  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank(sys.argv[2], sys.argv[3:])
    else:
        main(int(sys.argv[1]), sys.argv[2])
