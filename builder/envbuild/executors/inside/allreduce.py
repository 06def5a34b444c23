"""One rank of an all-reduce whose answer is known; prints one JSON document of raw figures.

    python -I allreduce.py --accelerator cpu --seed 7 --elements 65536 --repeat 5 --timeout 120

Whoever starts it says by environment variables which rank it is and where the others are: RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Element ``i`` of rank ``r`` is ``(i * (r + 1) + seed) % 1009``, so that every
rank brings something else and each sum is exact. Exit code: 0 when the sums were printed, whatever they are; with
``--check``, where nobody reads them, 1 when one of them is wrong.
"""

import argparse
import datetime
import json
import os
import signal
import sys
import time


def main():
    # As the first process of a container it would not hear of it.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    parser = argparse.ArgumentParser()
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), required=True)
    for name in ("seed", "elements", "repeat", "timeout"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()

    import torch
    import torch.distributed as dist

    rank, world, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    cuda = asked.accelerator == "cuda"
    if cuda:
        torch.cuda.set_device(local)
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    began = time.monotonic()
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method="env://",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=asked.timeout),
    )
    seconds = []
    place = torch.arange(asked.elements, dtype=torch.float64, device=device)
    own = (place * (rank + 1) + asked.seed) % 1009
    for _ in range(asked.repeat):
        summed = own.clone()
        dist.barrier()
        started = time.monotonic()
        dist.all_reduce(summed)
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.monotonic() - started)
        if len(seconds) == 1:
            joined = time.monotonic() - began
    document = {
        "schema": "envbuild.probe.allreduce/1",
        "rank": rank,
        "world": world,
        "node": os.environ.get("ENVBUILD_NODE") or os.environ.get("SLURMD_NODENAME", ""),
        "backend": dist.get_backend(),
        "device": torch.cuda.get_device_name(local) if cuda else "cpu",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
        "bytes": own.numel() * own.element_size(),
        "joined_seconds": joined,
        "seconds": seconds,
        "total": float(summed.sum()),
        "values": [float(summed[number * 7919 % asked.elements]) for number in range(16)],
    }
    if asked.check:
        right = sum((place * (each + 1) + asked.seed) % 1009 for each in range(world))
        document["wrong"] = int((summed != right).sum())
    print(json.dumps(document), flush=True)
    dist.destroy_process_group()
    return int(bool(document.get("wrong")))


if __name__ == "__main__":
    sys.exit(main())
