"""One rank of the profiler: trains with DeepSpeed and writes down what each step took. Started by launch.py."""

import argparse
import contextlib
import ctypes
import datetime
import faulthandler
import gc
import importlib.util
import json
import os
import shutil
import signal
import sys
import time

_HERE = os.path.dirname(os.path.abspath(__file__))
_PR_SET_PDEATHSIG = 1
# The first steps allocate, compile and connect; these many of them are shown and not counted in the other passes.
_FEW = 3
_TRACED = 3


def _load(name, folder=_HERE):
    spec = importlib.util.spec_from_file_location("envbuild_profiler_" + name, os.path.join(folder, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


clocks, collectives, hooks = (_load(name) for name in ("clocks", "collectives", "hooks"))
models, parity = (_load(name) for name in ("models", "parity"))
parts, recorder, swapping, tracing = (_load(name) for name in ("parts", "recorder", "swapping", "tracing"))


class Job:
    """What every pass works with."""

    def __init__(self, options, phases, lines, probes):
        phases.enter("import")
        began = time.monotonic()
        import deepspeed
        import torch

        self.torch, self.deepspeed, self.options = torch, deepspeed, options
        self.phases, self.lines, self.models = phases, lines, models
        self.common, self.watch, self.seen, self.surroundings = probes
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        gpu = options.accelerator == "cuda"
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
        self.cuda = torch.cuda if gpu else None
        self.clock = parts.NoClock() if options.unobserved else parts.Clock(self.cuda)
        self.hooks = hooks.Hooks(self.clock, swapping.Swaps(self.clock))
        self.counted = collectives.Counted(torch, self.cuda)
        with open(options.config) as stream:
            self.config = json.load(stream)
        self.micro_batch = self.config["train_micro_batch_size_per_gpu"]
        self.accumulation = self.config["gradient_accumulation_steps"]
        self.seconds = {"import": time.monotonic() - began}

    def low(self):
        """The precision that it trains in; None is fp32."""
        for name, kind in (("bf16", self.torch.bfloat16), ("fp16", self.torch.float16)):
            if (self.config.get(name) or {}).get("enabled"):
                return kind
        return None

    @property
    def stage(self):
        return int((self.config.get("zero_optimization") or {}).get("stage", 0))

    def meet(self):
        """The process group and a first collective, which is when NCCL connects."""
        torch, deepspeed = self.torch, self.deepspeed
        self.phases.enter("rendezvous")
        if self.cuda is not None:
            self.cuda.set_device(self.device)
        began = time.monotonic()
        patience = datetime.timedelta(seconds=max(30.0, self.options.timeout))
        deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False, timeout=patience)
        self.seconds["rendezvous"] = time.monotonic() - began
        self.phases.enter("collective", "the first")
        began = time.monotonic()
        value = torch.full((1024,), float(self.rank + 1), device=self.device)
        deepspeed.comm.all_reduce(value)
        answer = float(value[0])
        self.seconds["first_collective"] = time.monotonic() - began
        if answer != self.world * (self.world + 1) / 2.0:
            raise RuntimeError("an all-reduce of 1..{} gave {}".format(self.world, answer))
        if not self.options.unobserved:
            self.hooks.install(deepspeed.runtime.engine.DeepSpeedEngine)
            self.counted.install(deepspeed.comm.comm.cdb)

    def network(self):
        """The model; under stage 3 it is made in parts, so that no rank ever holds all of it."""
        torch, options = self.torch, self.options
        torch.manual_seed(options.seed)
        if self.stage == 3:
            with self.deepspeed.zero.Init(config_dict_or_path=self.config):
                return models.network(torch, options.model, options.length)
        return models.network(torch, options.model, options.length)

    def open_engine(self, network, config):
        engine, _, _, _ = self.deepspeed.initialize(model=network, model_parameters=network.parameters(), config=config)
        return engine

    def close(self, held):
        engine = held.pop()
        destroy = getattr(engine, "destroy", None)
        if destroy is not None:
            destroy()
        del engine, destroy
        gc.collect()
        if self.cuda is not None:
            self.cuda.empty_cache()

    def feed(self):
        """Micro-batches of this rank."""
        wait = self.options.slow_data if self.options.slow_rank in (-1, self.rank) else 0.0
        return models.feed(
            self.torch, self.options.model, self.micro_batch, self.options.seed + 1000 * (self.rank + 1), self.device,
            self.options.length, wait / 1000.0,
        )  # fmt: skip


def steps(job, engine, feed, name, count, warmup, tell=True):
    """Train; a line for each step. Collectives are those of the counted steps."""
    clock, options = job.clock, job.options
    folder = os.path.join(options.scratch, "checkpoint")
    saved = None
    clock.start()
    job.hooks.swaps.take()
    for number in range(warmup + count):
        job.phases.enter(name, "{} {}".format(number, warmup + count))
        if number == warmup:
            job.counted.empty()
        losses, job.hooks.losses = [], []
        for _ in range(job.accumulation):
            with clock.part("data_wait"):
                batch = next(feed)
            loss = engine(*batch)
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        if options.checkpoint_every and (number + 1) % options.checkpoint_every == 0:
            engine.save_checkpoint(folder, tag="envbuild")
            saved = folder
        before = job.counted.seconds
        at, seconds, spent, inside = clock.end()
        if job.counted.timed:
            inside["communication"] = before
            job.counted.seconds = 0.0
        beside = job.hooks.seen(inside)
        if tell:
            job.lines.write(
                "step", **{"pass": name}, rank=job.rank, number=number, warmup=number < warmup, at=at, seconds=seconds,
                parts=spent, loss=float(sum(losses)) / len(losses), gradient_norm=job.hooks.norm(engine), **beside,
            )  # fmt: skip
    return saved


def measured(job, name):
    """A pass that trains: timing, comms, or trace."""
    options, torch = job.options, job.torch
    began = time.time()
    job.phases.enter(name, "engine")
    if job.cuda is not None:
        job.cuda.reset_peak_memory_stats(job.device)
    held = [job.open_engine(job.network(), job.config)]
    if options.straggle and options.straggler in (-1, job.rank):
        held[0].module.register_forward_pre_hook(lambda module, given: _busy(options.straggle / 1000.0))
    figures = {"started": began, "engine_seconds": time.time() - began}
    feed = job.feed()
    job.counted.timed = name == "comms"
    count, warmup = (options.steps, options.warmup) if name != "trace" else (_TRACED, _FEW)
    saved = None
    if name == "trace":
        steps(job, held[0], feed, name, 0, warmup, tell=False)
        path = os.path.join(options.scratch, "trace-{}.json".format(job.rank))
        figures["trace"] = tracing.traced(
            torch, job.cuda is not None, lambda: steps(job, held[0], feed, name, count, 0), path
        )
        figures["trace"]["steps"] = count
    else:
        saved = steps(job, held[0], feed, name, count, warmup)
    job.counted.timed = False
    figures["collectives"] = collectives.lines(job.counted.empty(), name == "comms")
    figures["steps"], figures["warmup"] = count, warmup if name != "trace" else 0
    figures["swap"] = job.hooks.swaps.reason
    common = job.common
    common.attempt(figures, "memory", lambda: recorder.memory(torch, job.cuda, job.watch, job.device))
    common.attempt(figures, "structure", lambda: recorder.structure(torch, held[0]))
    common.attempt(figures, "config", lambda: recorder.resolved(held[0], common))
    torch.distributed.barrier()
    if saved is not None:
        common.attempt(figures, "checkpoint_bytes", lambda: recorder.checkpoint_bytes(saved))
        torch.distributed.barrier()
        if job.rank == 0:
            shutil.rmtree(saved, ignore_errors=True)
    job.close(held)
    figures["ended"] = time.time()
    return figures


def _busy(seconds):
    """Use the CPU, as computing does, for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def compared(job, name):
    """The pass that compares with plain torch."""
    figures = {"started": time.time()}
    job.phases.enter(name, "reference")
    job.close(parity.compare(job, figures))
    figures["ended"] = time.time()
    return figures


def _compare_clocks(job):
    # Before the first step and behind the last: what they drift shows, too.
    if job.options.join:
        job.lines.write("clock", rank=job.rank, rounds=clocks.rounds(job.torch, job.device))


def run(job):
    job.meet()
    torch = job.torch
    about = {
        "rank": job.rank,
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "versions": {
            "python": "{}.{}.{}".format(*sys.version_info[:3]),
            "torch": str(torch.__version__),
            "deepspeed": str(job.deepspeed.__version__),
        },
        "cores": recorder.cores(torch, job.surroundings),
        "seconds": job.seconds,
        "parameters": models.parameters_of(job.options.model, job.options.length),
    }
    job.common.attempt(about, "backend", lambda: str(torch.distributed.get_backend()))
    job.common.attempt(about, "device", lambda: job.seen.device(torch, job.device if job.cuda else "cpu"))
    if job.cuda is not None:
        job.common.attempt(about, "gpu", lambda: recorder.gpu(torch, job.device))
    job.lines.write("rank", **about)
    _compare_clocks(job)
    for name in job.options.passes.split(","):
        figures = compared(job, name) if name == "parity" else measured(job, name)
        job.lines.write("pass", **dict(figures, **{"pass": name}), rank=job.rank)
    job.phases.enter("close")
    _compare_clocks(job)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--report", "--phase", "--scratch", "--probes", "--config", "--accelerator", "--passes", "--model"):
        parser.add_argument(name, required=True)
    for name in ("--steps", "--warmup", "--seed", "--length", "--checkpoint-every", "--slow-rank", "--straggler",
                 "--join"):  # fmt: skip
        parser.add_argument(name, type=int, required=True)
    for name in ("--timeout", "--slow-data", "--straggle"):
        parser.add_argument(name, type=float, required=True)
    parser.add_argument("--unobserved", action="store_true")
    options = parser.parse_args()
    options.length = options.length or None
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the launcher asks a hanging rank where it stands
    # Best effort: should the launcher be killed outright, no rank may live on without it.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0)
    names = ("common", "zero3_watch", "zero3_seen", "surroundings")
    probes = tuple(_load(name, options.probes) for name in names)
    common, watch = probes[:2]
    lines = recorder.Lines(options.report, common)
    try:
        job = Job(options, watch.Phases(options.phase), lines, probes)
        run(job)
    except Exception as error:
        lines.write("error", rank=int(os.environ["RANK"]), error=common.describe(error))
        raise


if __name__ == "__main__":
    main()
