"""One rank of the ZeRO-3 probe: trains with DeepSpeed, and next to it with plain torch. Started by zero3.py.

One process and one import for everything: ZeRO-3 in fp32, a checkpoint and back, bf16 where the device has it, NVMe
where there is a folder for it, and minutes of training where they are asked for. Each part writes down what it saw
before the next one begins. What differs is written down; nothing is judged here.

Gradients are compared before the first step, because Adam divides a wrong scale out of the parameters: doubled
gradients moved them by 3e-4 only, and the gradients by 1.0.
"""

import argparse
import contextlib
import ctypes
import datetime
import faulthandler
import importlib.util
import os
import signal
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PR_SET_PDEATHSIG = 1
# The further passes prove that a way works; the first one measures how well.
_LOW_STEPS = 6
_NVME_STEPS = 5


def _load(name):
    spec = importlib.util.spec_from_file_location("envbuild_probe_" + name, os.path.join(_HERE, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = _load("common")
checkpoint = _load("zero3_checkpoint")
long = _load("zero3_long")
nvme = _load("zero3_nvme")
seen = _load("zero3_seen")
train = _load("zero3_train")
watch = _load("zero3_watch")


def imported(options, phases, figures):
    """Import what is probed; a Job with everything the parts need."""
    phases.enter("import")
    import deepspeed
    import torch

    figures["versions"] = {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "torch": str(torch.__version__),
        "torch_cuda": torch.version.cuda,
        "deepspeed": str(deepspeed.__version__),
    }
    figures["threads"] = torch.get_num_threads()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if options.accelerator == "cuda" else "cpu"
    parts = {"common": common, "zero3_model": _load("zero3_model"), "zero3_seen": seen}
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return train.Job(torch, deepspeed, options, device, rank, world, phases, parts)


def meet(job, figures):
    """The process group, and all-reduces with a known answer."""
    torch, deepspeed, device = job.torch, job.deepspeed, job.device
    job.phases.enter("rendezvous")
    if job.options.accelerator == "cuda":
        torch.cuda.set_device(device)
        job.phases.gpu = lambda: seen.gpu_memory(torch, device)
    patience = datetime.timedelta(seconds=max(30.0, job.options.timeout))
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False, timeout=patience)
    common.attempt(figures, "backend", lambda: str(torch.distributed.get_backend()))
    common.attempt(figures, "device", lambda: seen.device(torch, device))
    common.attempt(
        figures, "collective", lambda: seen.collective(torch, deepspeed, device, job.rank, job.world, job.phases)
    )
    common.attempt(figures, "bf16", lambda: seen.bf16(torch, deepspeed, device))


def run(job, figures, keep):
    """Every part, one after the other; ``keep`` writes the report as it is by then."""
    options = job.options
    passes = figures["passes"] = {"fp32": {}}
    held, own = train.one_pass(job, passes["fp32"], options.steps)
    keep()

    def other_weights():
        network, plain = job.model.pair(job.torch, job.device, options.seed + 2)
        return network, plain, train.open_engine(job, network, train.configuration(job))

    figures["checkpoint"] = {}
    checkpoint.there_and_back(
        job, figures["checkpoint"], train, held, other_weights, lambda step: own,
        os.path.join(options.scratch, "checkpoint"),
    )  # fmt: skip
    train.close_engine(held)
    keep()
    if (figures["bf16"] or {}).get("supported"):
        passes["bf16"] = {}
        held, _ = train.one_pass(job, passes["bf16"], _LOW_STEPS, "bf16 ", job.torch.bfloat16)
        train.close_engine(held)
        keep()
    if options.nvme:
        passes["nvme"] = {}
        nvme.one_pass(job, passes["nvme"], train, watch, _NVME_STEPS, options.nvme)
        keep()
    if options.seconds > 0:
        figures["long"] = {}
        folder = os.path.join(options.scratch, "long")
        long.train_on(job, figures["long"], train, checkpoint, watch, options.seconds, folder)


def finish(job, figures):
    """What is known only at the end."""
    job.phases.enter("close")
    common.attempt(figures, "jit", seen.jit)
    figures["peak_rss_bytes"] = watch.peak_resident_bytes()
    job.torch.distributed.barrier()
    job.torch.distributed.destroy_process_group()


def _die_with_launcher():
    # Best effort: should the launcher be killed outright, no rank may live on without it.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", required=True)
    parser.add_argument("--phase", required=True)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--nvme", default="")
    parser.add_argument("--accelerator", required=True)
    for name, kind in (("--steps", int), ("--seed", int), ("--timeout", float), ("--seconds", float)):
        parser.add_argument(name, type=kind, required=True)
    options = parser.parse_args()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the launcher asks a hanging rank where it stands
    _die_with_launcher()
    # What this rank leaves on a mounted folder must go away with a user who is not the container's.
    os.umask(0)
    phases = watch.Phases(options.phase)
    programs = watch.Programs(phases)
    figures = {"error": None, "seed": options.seed}

    def keep():
        figures.update(phases=phases.figures, programs=programs.figures())
        common.write_json(options.report, figures)

    try:
        job = imported(options, phases, figures)
        meet(job, figures)
        run(job, figures, keep)
        finish(job, figures)
    except Exception as error:
        figures["error"] = common.describe(error)
        keep()
        raise
    phases.enter("done")
    keep()


if __name__ == "__main__":
    main()
