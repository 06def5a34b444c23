"""Train a small model under DeepSpeed configurations, one after the other, and tell what each rank then holds.

Runs inside an image. Usage: train.py RANKS CASES, where CASES is a JSON list of ds_config, tables, rows, layers, width,
steps and checkpoint. Prints a JSON list: the tensors of the model, the bytes of tensors and process of each rank, and
those of the checkpoint.
"""

import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile


def main(ranks, cases):
    """Start the ranks, and put their reports together."""
    with tempfile.TemporaryDirectory() as folder:
        ports = [str(free_port()) for _ in cases]
        running = []
        for rank in range(ranks):
            environment = dict(
                os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_SIZE=str(ranks),
                LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", DS_ACCELERATOR="cpu", GLOO_SOCKET_IFNAME="lo",
                OMP_NUM_THREADS="1", MALLOC_ARENA_MAX="1", PORTS=",".join(ports), FOLDER=folder,
            )  # fmt: skip
            argv = [sys.executable, __file__, "rank", json.dumps(cases)]
            running.append(subprocess.Popen(argv, env=environment, stdout=sys.stderr, stderr=sys.stderr))
        codes = [each.wait() for each in running]
        if any(codes):
            sys.exit(f"a rank failed: {codes}")
        found = []
        for number in range(len(cases)):
            reports = [read(os.path.join(folder, f"{number}-{rank}.json")) for rank in range(ranks)]
            saved = size_of(os.path.join(folder, f"checkpoint-{number}"))
            found.append({"tensors": reports[0]["tensors"], "ranks": reports, "checkpoint": saved})
    print(json.dumps(found))


def free_port():
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def read(path):
    """A rank's report."""
    with open(path) as stream:
        return json.load(stream)


def size_of(folder):
    """The bytes of all files in a folder."""
    return sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names)


def rank(cases):
    """One rank: a process of its own for each case, so that none finds the memory of another; what they all need is
    loaded once."""
    import deepspeed  # noqa: F401
    import torch  # noqa: F401

    for number, case in enumerate(cases):
        child = os.fork()
        if child == 0:
            os.environ["MASTER_PORT"] = os.environ["PORTS"].split(",")[number]
            folder = os.environ["FOLDER"]
            report = train(case, os.path.join(folder, f"checkpoint-{number}"))
            with open(os.path.join(folder, "{}-{}.json".format(number, os.environ["RANK"])), "w") as stream:
                json.dump(report, stream)
            sys.stderr.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"case {number} ended with {status}")


def train(case, checkpoint):
    """Train one case, and tell what this rank holds afterwards."""
    import deepspeed
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    # Collectives that only inference uses: their segments in /dev/shm stay behind, and soon there is no room for more.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.manual_seed(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    config = case["ds_config"]
    zero = config["zero_optimization"]
    width = case["width"]

    class Model(torch.nn.Module):
        """Mostly tables: parameters that cost no arithmetic."""

        def __init__(self):
            super().__init__()
            rows = case["rows"]
            self.tables = torch.nn.ModuleList(torch.nn.Embedding(rows, width) for _ in range(case["tables"]))
            layers = [
                each
                for _ in range(case["layers"])
                for each in (torch.nn.LayerNorm(width), torch.nn.Linear(width, width), torch.nn.GELU())
            ]
            self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(width, 64))

        def forward(self, tokens):
            return self.layers(sum(table(tokens) for table in self.tables))

    # Everything that a process needs once, before the first measurement: threads, collectives, the optimizer's library.
    small = torch.nn.Linear(8, 8)
    DeepSpeedCPUAdam(small.parameters())
    torch.distributed.all_reduce(torch.ones(8))
    start = process()
    if zero["stage"] == 3:
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = Model()
    else:
        model = Model()
    tensors = [[name, getattr(each, "ds_numel", each.numel())] for name, each in model.named_parameters()]
    offloaded = zero.get("offload_optimizer", {}).get("device", "none") != "none"
    if offloaded:
        optimizer = DeepSpeedCPUAdam(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    del optimizer
    for _ in range(case["steps"] * config["gradient_accumulation_steps"]):
        tokens = torch.randint(0, case["rows"], (1, 8))
        loss = engine(tokens).float().logsumexp(-1).sum()
        engine.backward(loss)
        engine.step()
    del loss, tokens
    settle()
    report = {
        "tensors": tensors,
        "held": held(torch),
        "process": process() - start,
        "optimizer": type(engine.optimizer).__name__,
    }
    if case["checkpoint"]:
        engine.save_checkpoint(checkpoint)
    return report


def settle():
    """Give back what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def held(torch):
    """The bytes of all storages that some tensor of this process refers to."""
    storages = {}
    for each in gc.get_objects():
        try:
            if isinstance(each, torch.Tensor) and each.device.type == "cpu":
                storages[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
                if each.grad is not None:
                    storages[each.grad.untyped_storage().data_ptr()] = each.grad.untyped_storage().nbytes()
        except (RuntimeError, ReferenceError, NotImplementedError):
            continue
    return sum(storages.values())


def process():
    """The bytes that are this process's own: anonymous memory, which no other process shares."""
    settle()
    with open("/proc/self/smaps_rollup") as stream:
        for line in stream:
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) * 1024
    raise SystemExit("no Pss_Anon in /proc/self/smaps_rollup")


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank(json.loads(sys.argv[2]))
    else:
        main(int(sys.argv[1]), json.loads(sys.argv[2]))
