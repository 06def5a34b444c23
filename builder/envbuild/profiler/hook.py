"""Measures a training that is not ours: hooked into DeepSpeed's engine, with no change to anybody's code.

Loaded by ``shim/sitecustomize.py`` in every process that imports DeepSpeed's engine. Each rank writes its lines into
the folder that ENVBUILD_PROFILE names; the first one on a node samples it. Standard library only, Python 3.7 and later.
"""

import atexit
import importlib.util
import os
import sys
import time

_HERE = os.path.dirname(os.path.abspath(__file__))
# When the figures of the whole run are written: a launcher that kills its ranks leaves no time at the end.
_EARLY = (3, 10, 25)
_EVERY = 50


def _load(name, folder=_HERE):
    spec = importlib.util.spec_from_file_location("envbuild_profiler_" + name, os.path.join(folder, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Watched:
    """The first engine of this process that trains."""

    def __init__(self, folder, probes):
        import torch

        self._torch, self._folder = torch, folder
        self._common, self._watch, self._seen, self._surroundings = (
            _load(name, probes) for name in ("common", "zero3_watch", "zero3_seen", "surroundings")
        )
        self._parts, self._collectives, self._recorder = (_load(name) for name in ("parts", "collectives", "recorder"))
        clock = self._parts.Clock()
        self.hooks = _load("hooks").Hooks(clock, _load("swapping").Swaps(clock))
        self.hooks.before = self._first
        self.hooks.after_step = self._step
        self._engine = None
        self._number = 0
        self._warmup = int(os.environ.get("ENVBUILD_PROFILE_WARMUP", "5"))
        self._sampler = None

    def _first(self, engine):
        """The engine's first forward pass begins: everything about it is known now."""
        if self._engine is not None or getattr(engine, "optimizer", None) is None:
            return
        torch = self._torch
        self._engine = engine
        self._rank = int(getattr(engine, "global_rank", os.environ.get("RANK", 0)))
        self._local = int(getattr(engine, "local_rank", os.environ.get("LOCAL_RANK", 0)) or 0)
        self._began = time.time()
        gpu = getattr(getattr(engine, "device", None), "type", "cpu") == "cuda"
        self._cuda = torch.cuda if gpu else None
        self._device = engine.device
        if gpu:
            self.hooks.clock.cuda = torch.cuda
        self._counted = self._collectives.Counted(torch, self._cuda)
        comm = sys.modules.get("deepspeed.comm.comm")
        if comm is not None and comm.cdb is not None:
            self._counted.install(comm.cdb)
        name = os.path.join(self._folder, "rank-{}-{}".format(self._rank, os.getpid()))
        self._lines = self._recorder.Lines(name + ".jsonl", self._common)
        self._pass_path = name + ".pass"
        with open(os.path.join(self._folder, "rank-{}.pid".format(self._rank)), "w") as stream:
            stream.write(str(os.getpid()))
        import deepspeed

        about = {
            "rank": self._rank,
            "local_rank": self._local,
            "accelerator": "cuda" if gpu else "cpu",
            "micro_batch": int(engine.train_micro_batch_size_per_gpu()),
            "accumulation": int(engine.gradient_accumulation_steps()),
            "cores": self._recorder.cores(torch, self._surroundings),
            "versions": {
                "python": "{}.{}.{}".format(*sys.version_info[:3]),
                "torch": str(torch.__version__),
                "deepspeed": str(deepspeed.__version__),
            },
        }
        self._common.attempt(about, "backend", lambda: str(torch.distributed.get_backend()))
        self._common.attempt(about, "device", lambda: self._seen.device(torch, engine.device if gpu else "cpu"))
        if gpu:
            self._common.attempt(about, "gpu", lambda: self._recorder.gpu(torch, engine.device))
        self._lines.write("rank", **about)
        if self._local == 0:
            self._sample()
        self._wrap_loader()
        atexit.register(self._end)
        self.hooks.clock.start()
        self.hooks.swaps.take()

    def _sample(self):
        folder, common = self._folder, self._common
        lines = self._recorder.Lines(os.path.join(folder, "samples-{}.jsonl".format(self._rank)), common)

        def pids():
            found = {}
            for name in os.listdir(folder):
                if name.endswith(".pid"):
                    found[int(name[5:-4])] = int(common.read_text(os.path.join(folder, name)) or 0)
            return found

        self._sampler = _load("sampling").Sampler(
            pids, lambda sample: lines.write("sample", **sample), os.environ.get("ENVBUILD_PROFILE_NVML", "")
        )
        self._sampler.start()

    def _wrap_loader(self):
        """Waiting for data is what torch's loader takes to give the next batch."""
        loader = self._torch.utils.data.dataloader._BaseDataLoaderIter
        inner, clock = loader.__next__, self.hooks.clock

        def following(iterator):
            if clock.inside is not None:
                return inner(iterator)
            with clock.part("data_wait"):
                return inner(iterator)

        loader.__next__ = following

    def _step(self, engine):
        if engine is not self._engine:
            return
        at, seconds, spent, inside = self.hooks.clock.end()
        if self._number == self._warmup - 1:
            self._counted.empty()
        self._lines.write(
            "step", **{"pass": "timing"}, rank=self._rank, number=self._number, warmup=self._number < self._warmup,
            at=at, seconds=seconds, parts=spent, loss=self.hooks.take_loss(), gradient_norm=self.hooks.norm(engine),
            **self.hooks.seen(inside),
        )  # fmt: skip
        self._number += 1
        if self._number in _EARLY or self._number % _EVERY == 0:
            self._keep()

    def _keep(self):
        common, figures = self._common, {"kind": "pass", "pass": "timing", "rank": self._rank, "started": self._began}
        counted = self._number - self._warmup
        figures.update(
            warmup=min(self._warmup, self._number),
            steps=max(0, counted),
            collectives=self._collectives.lines(self._counted.rows, False) if counted > 0 else [],
            swap=self.hooks.swaps.reason,
        )
        torch, engine = self._torch, self._engine
        common.attempt(figures, "memory", lambda: self._recorder.memory(torch, self._cuda, self._watch, self._device))
        common.attempt(figures, "structure", lambda: self._recorder.structure(torch, engine))
        common.attempt(figures, "config", lambda: self._recorder.resolved(engine, common))
        common.write_json(self._pass_path, figures)

    def _end(self):
        if self._sampler is not None:
            self._sampler.stop()
        self._keep()


def begin(engine_class):
    """Hook the engine's class, once in a process."""
    watched = Watched(os.environ["ENVBUILD_PROFILE"], os.environ["ENVBUILD_PROBES"])
    watched.hooks.install(engine_class)
