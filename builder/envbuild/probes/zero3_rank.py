"""One rank of the ZeRO-3 probe: trains with DeepSpeed, and next to it with plain torch. Started by zero3.py.

The same weights, the same data, the same hyper-parameters: DeepSpeed sees its rank's micro-batches, plain
torch.optim.Adam the whole batch at once. What differs is written down; nothing is judged here.

Gradients are compared before the first step, because Adam divides a wrong scale out of the parameters: doubled
gradients moved them by 3e-4 only, and the gradients by 1.0.
"""

import argparse
import contextlib
import copy
import ctypes
import datetime
import faulthandler
import importlib.util
import os
import resource
import signal
import sys
import time

_HERE = os.path.dirname(os.path.abspath(__file__))
_PR_SET_PDEATHSIG = 1


def _load(name):
    spec = importlib.util.spec_from_file_location("envbuild_probe_" + name, os.path.join(_HERE, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = _load("common")
model = _load("zero3_model")
seen = _load("zero3_seen")

ACCUMULATION = 2
LEARNING_RATE = 2e-4  # small steps: rounding differences do not grow into the loss
# With 0.999 the kernel's bias correction in fp32 is off by 3e-5 in the first steps, and the losses by 3e-6.
BETAS = (0.9, 0.95)
EPS = 1e-8


class Phases:
    """Where this rank is, in a file that outlives it, and how long each phase took."""

    def __init__(self, path):
        self._path = path
        self._began = time.monotonic()
        self._name = None
        self.seconds = {}

    def enter(self, name, detail=""):
        now = time.monotonic()
        if self._name is not None:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._began
        self._name, self._began = name, now
        with open(self._path, "w") as stream:
            stream.write((name + " " + detail).strip())


def configuration(options, micro_batch, world):
    """The ds_config: ZeRO-3 with both offloads, small buckets so that a small model has several of each."""
    pinned = options.accelerator == "cuda"
    config = {
        "train_batch_size": micro_batch * ACCUMULATION * world,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": ACCUMULATION,
        # By name, as users do: that DeepSpeed picks its CPU optimizer is part of what is looked at.
        "optimizer": {"type": "Adam", "params": {"lr": LEARNING_RATE, "betas": list(BETAS), "eps": EPS}},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": pinned},
            "offload_param": {"device": "cpu", "pin_memory": pinned},
            "stage3_param_persistence_threshold": 0,  # every parameter is partitioned and released
            "sub_group_size": 300000,
            "reduce_bucket_size": 250000,
            "stage3_prefetch_bucket_size": 100000,
        },
        # Said aloud: DeepSpeed clips at 1.0 by default in 0.19.8, plain torch does not clip.
        "gradient_clipping": 0.0,
        "steps_per_print": 1000000,
    }
    if options.dtype == "bf16":
        config["bf16"] = {"enabled": True}
    return config


def reference(torch, plain, batch, steps, low):
    """Plain torch on the whole batch: losses and the first step's gradients; ``plain`` ends as the trained one.

    With ``low`` (bfloat16) the losses come from the usual mixed precision: a low copy computes, Adam moves the fp32
    weights. The gradients come from fp32 in either case.
    """
    plain(*batch).backward()
    gradients = {name: value.grad.detach().clone() for name, value in plain.named_parameters()}
    worker, inputs = plain, batch[0]
    if low is not None:
        worker, inputs = copy.deepcopy(plain).to(low), batch[0].to(low)
    adam = torch.optim.Adam(plain.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPS)
    pairs = list(zip(plain.parameters(), worker.parameters()))  # noqa: B905 (Python 3.7)
    losses = []
    for _ in range(steps):
        worker.zero_grad()
        loss = worker(inputs, batch[1])
        loss.backward()
        for master, value in pairs:
            master.grad = value.grad.float()
        adam.step()
        with torch.no_grad():
            for master, value in pairs:
                value.copy_(master)
        losses.append(float(loss.detach()))
    return losses, gradients


def train(engine, batches, steps, phases, at_first_boundary):
    """DeepSpeed's steps: the mean loss of this rank's micro-batches, and the seconds of each step."""
    losses, seconds = [], []
    for step in range(steps):
        phases.enter("first step" if step == 0 else "steps", "" if step == 0 else str(step))
        began = time.monotonic()
        micro_losses = []
        for index, (inputs, labels) in enumerate(batches):
            loss = engine(inputs, labels)
            engine.backward(loss)
            if step == 0 and index == ACCUMULATION - 1:
                at_first_boundary()
            engine.step()
            micro_losses.append(float(loss.detach()))
        losses.append(sum(micro_losses) / len(micro_losses))
        seconds.append(time.monotonic() - began)
    return losses, seconds


def run(options, phases, figures):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    phases.enter("import")
    import deepspeed
    import torch

    attempt = common.attempt
    figures["versions"] = {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "deepspeed": str(deepspeed.__version__),
    }
    figures["threads"] = torch.get_num_threads()
    figures["accumulation"] = ACCUMULATION
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if options.accelerator == "cuda" else "cpu"

    phases.enter("rendezvous")
    if options.accelerator == "cuda":
        torch.cuda.set_device(device)
    patience = datetime.timedelta(seconds=max(30.0, options.timeout))
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False, timeout=patience)
    attempt(figures, "device", lambda: seen.device(torch, device))

    phases.enter("collective")
    attempt(figures, "collective", lambda: seen.collective(torch, deepspeed, device, rank, world))

    phases.enter("reference")
    low = torch.bfloat16 if options.dtype == "bf16" else None
    network, plain = model.pair(torch, device, low)
    whole, own = model.batches(torch, device, rank, world, ACCUMULATION)
    numels = [value.numel() for value in network.parameters()]
    figures["reference_losses"], gradients = reference(torch, plain, whole, options.steps, low)

    phases.enter("engine")
    config = configuration(options, model.MICRO_BATCH, world)
    engine, _, _, _ = deepspeed.initialize(model=network, model_parameters=network.parameters(), config=config)
    attempt(figures, "native", lambda: seen.count_native_calls(engine))
    if low is not None:
        own = [(inputs.to(low), labels) for inputs, labels in own]

    def look_at_gradients():
        attempt(figures, "gradients", lambda: seen.gradients(torch, deepspeed, network, gradients))

    figures["losses"], figures["step_seconds"] = train(engine, own, options.steps, phases, look_at_gradients)

    phases.enter("compare")
    figures["numels"] = numels
    attempt(figures, "shards", lambda: seen.shards(network))
    attempt(figures, "offload", lambda: seen.offload(engine))
    attempt(figures, "optimizer", lambda: seen.optimizer(torch, engine))
    attempt(figures, "parameters", lambda: seen.parameters(torch, deepspeed, network, plain))
    attempt(figures, "backend", lambda: str(torch.distributed.get_backend()))
    attempt(figures, "jit", seen.jit)
    figures["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if options.accelerator == "cuda":
        attempt(figures, "peak_gpu_bytes", lambda: torch.cuda.max_memory_allocated(device))

    phases.enter("close")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _die_with_launcher():
    # Best effort: should the launcher be killed outright, no rank may live on without it.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", required=True)
    parser.add_argument("--phase", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--accelerator", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--timeout", type=float, required=True)
    options = parser.parse_args()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the launcher asks a hanging rank where it stands
    _die_with_launcher()
    phases = Phases(options.phase)
    figures = {"error": None}
    try:
        run(options, phases, figures)
    except Exception as error:
        figures["error"] = common.describe(error)
        common.write_json(options.report, figures)
        raise
    phases.enter("done")
    figures["phase_seconds"] = phases.seconds
    common.write_json(options.report, figures)


if __name__ == "__main__":
    main()
