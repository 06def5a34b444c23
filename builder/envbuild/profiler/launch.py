"""Measures a training under ZeRO: starts one process per rank, samples the node, and prints lines of JSON.

    python -I launch.py --probes DIR --config '{"zero_optimization": {"stage": 3}, ...}' --model tiny --ranks 2

This file imports neither torch nor DeepSpeed, so it lives whatever they do. It needs a writable temporary folder, and
neither a network, a home, nor a user name. Progress goes to stderr. On stdout: a line ``launch``, the ranks' own lines
(``rank``, ``step``, ``pass``, ``error``), the node's ``sample`` lines, and at last ``end``, which says how each rank
ended. Exit code: 0 when every rank came to its end, 1 otherwise; what was measured is printed either way.

With --join it starts one rank of a training over several nodes, whose number and meeting place the environment says
(RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). Of a node's ranks the first one samples the node.
"""

import argparse
import glob
import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
import time

SCHEMA = "envbuild.probe.profile/1"
# A command line can be read by every user of the host: it has names only.
VALUES = "ENVBUILD_VALUES"
PASSES = ("timing", "comms", "trace", "parity")
_HERE = os.path.dirname(os.path.abspath(__file__))
_COLLECTIVE_SECONDS = (20.0, 60.0)
_TOLD_EVERY = 1.0
# "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM" in what NCCL_DEBUG=INFO says.
_VIA = re.compile(rb" via ([A-Z]+/[A-Za-z0-9_]+|[A-Z]+)")


def _load(name, folder):
    spec = importlib.util.spec_from_file_location("envbuild_profiler_" + name, os.path.join(folder, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Progress:
    """Says on stderr which pass is on, and how far the slowest rank is; writes the samples down."""

    def __init__(self, ranks):
        self._ranks = ranks
        self._said = None
        self._next = 0.0
        self.samples = []

    def __call__(self, sample):
        self.samples.append(sample)
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _TOLD_EVERY
            self.tell()

    def tell(self):
        _, place = min((rank.place() for rank in self._ranks), key=lambda each: each[0])
        if place != self._said:
            self._said = place
            sys.stderr.write("envbuild: {}\n".format(place))
            sys.stderr.flush()


def _joined(options):
    """Who the one rank is that this program starts, from what the cluster says; None where it starts them all."""
    if not options.join:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return {name: os.environ[name] for name in names}


def _environment(options, zero3, place, wanted, number, port, scratch):
    if place is None:
        return zero3._environment(options, wanted, number, port, scratch)
    environment = zero3._environment(options, options.join, number, port, scratch)
    environment.update(place)
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        environment.pop("GLOO_SOCKET_IFNAME")  # the loopback leads to no other node
    return environment


def _rank_class(zero3):
    class Rank(zero3.Rank):
        """A child process as the proof's, with another program."""

        def start(self, arguments, environment):
            self._program, here = zero3._HERE, os.path.join(_HERE, "rank.py")
            argv = [sys.executable, "-I", here, "--report", self.report_path, "--phase", self.phase_path]
            with open(self.log_path, "wb") as log:
                self.process = zero3.subprocess.Popen(
                    argv + arguments, env=environment, stdin=zero3.subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip

        def document(self):
            figures = dict(super().document(), report=None)
            figures.pop("report_error", None)
            if self.process is not None and self.process.returncode == 0:
                figures["log_tail"] = []
            return figures

    return Rank


def _measure(options, config, values, parts, scratch, print_line):
    common, zero3, sampling = parts
    place = _joined(options)
    wanted = 1 if place else options.ranks or zero3._visible_gpus(min(120.0, options.timeout))
    with open(os.path.join(scratch, "config.json"), "w") as stream:
        json.dump(config, stream)
    os.mkdir(os.path.join(scratch, "extensions"))
    port = zero3._free_port()
    numbers = [int(place["RANK"])] if place else range(wanted)
    ranks = [_rank_class(zero3)(number, scratch) for number in numbers]
    passed = ["--scratch", scratch, "--config", os.path.join(scratch, "config.json")]
    for name in ("probes", "accelerator", "passes", "model", "steps", "warmup", "seed", "length", "timeout",
                 "checkpoint_every", "slow_data", "slow_rank", "straggle", "straggler", "join"):  # fmt: skip
        passed += ["--" + name.replace("_", "-"), str(getattr(options, name))]
    if options.unobserved:
        passed.append("--unobserved")
    least, most = _COLLECTIVE_SECONDS
    patience = min(most, max(least, options.timeout / 3.0))
    end = {"timed_out": False, "stuck": None, "ranks_started": wanted}
    progress = Progress(ranks)
    sampler = sampling.Sampler(lambda: {rank.number: rank.process.pid for rank in ranks if rank.process}, progress,
                               options.nvml, whole=place is None or place["LOCAL_RANK"] == "0")  # fmt: skip
    end["gpus"] = sampler.gpus.reason
    since = time.monotonic()
    try:
        for rank in ranks:
            environment = _environment(options, zero3, place, wanted, rank.number, port, scratch)
            if options.threads:
                environment["OMP_NUM_THREADS"] = str(options.threads)
            environment.setdefault("NCCL_DEBUG", "INFO")
            environment.setdefault("NCCL_DEBUG_FILE", os.path.join(scratch, "nccl-%p.log"))
            environment.update((name, values[name]) for name in options.env)
            rank.start(passed, environment)
        if not options.unobserved:
            sampler.start()
        end["timed_out"], end["stuck"] = zero3._watch(ranks, since, options.timeout, patience)
    finally:
        sampler.stop() if sampler.is_alive() else None
        zero3._end(ranks, since)
        zero3._remove_segments(port)
        for rank in ranks:
            print_line.copy(rank.report_path)
        for sample in progress.samples:
            print_line("sample", **sample)
        end["ranks"] = [rank.document() for rank in ranks]
        end["transports"] = _transports(scratch)
        end["extension_files"] = common.count_files(os.path.join(scratch, "extensions"))
    return end


def _transports(scratch):
    found = set()
    for path in glob.glob(os.path.join(scratch, "nccl-*.log")):
        with open(path, "rb") as stream:
            found.update(match.decode() for match in _VIA.findall(stream.read(8 << 20)))
    return sorted(found)


class Printer:
    """Lines on the stdout that nobody else writes to."""

    def __init__(self, descriptor, common):
        self._out = os.fdopen(descriptor, "wb")
        self._common = common

    def __call__(self, kind, **figures):
        document = self._common.clean(dict(figures, kind=kind))
        self._out.write(json.dumps(document, allow_nan=False, sort_keys=True).encode("ascii") + b"\n")
        self._out.flush()

    def copy(self, path):
        """The whole lines of a rank's file; the last one of a rank that was killed may be none."""
        try:
            with open(path, "rb") as stream:
                for line in stream:
                    if line.endswith(b"\n"):
                        self._out.write(line)
        except OSError:
            pass
        self._out.flush()


def _stop(number, frame):
    raise SystemExit(128 + number)


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--probes", required=True, help="folder of the proof's programs")
    parser.add_argument("--config", required=True, help="the ds_config, as JSON")
    parser.add_argument("--passes", default="timing")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--ranks", type=int, default=0, help="number of ranks; 0: one per visible GPU (cuda)")
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--length", type=int, default=0, help="tokens of a sequence; 0: the model's own")
    parser.add_argument("--checkpoint-every", type=int, default=0)
    parser.add_argument("--slow-data", type=float, default=0.0, help="milliseconds to wait for each micro-batch")
    parser.add_argument("--slow-rank", type=int, default=-1, help="the rank that waits; -1: all")
    parser.add_argument("--straggle", type=float, default=0.0, help="milliseconds more in each forward pass")
    parser.add_argument("--straggler", type=int, default=-1, help="the rank that is slower; -1: all")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument(
        "--env", action="append", default=[], help="NAME for the ranks; {} has its value".format(VALUES)
    )
    parser.add_argument("--nvml", default="", help="nvidia-ml-py's pynvml.py")
    parser.add_argument("--join", type=int, default=0, help="one rank of many; so many are on each node")
    parser.add_argument("--unobserved", action="store_true", help="whole steps only: what measuring costs")
    parser.add_argument("--jit", action="store_true", help="ops may be compiled at run time")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for everything")
    return parser.parse_args()


def _values(names):
    """Of each variable its value; no child inherits them all together."""
    values = json.loads(os.environ.pop(VALUES, "{}"))
    missing = [name for name in names if name not in values]
    if missing:
        sys.exit("launch.py: {} has no value for {}".format(VALUES, ", ".join(missing)))
    return values


def main():
    options = _options()
    values = _values(options.env)
    if options.accelerator == "cpu" and options.ranks < 1 and not options.join:
        options.ranks = 2
    common, zero3, surroundings = (_load(name, options.probes) for name in ("common", "zero3", "surroundings"))
    print_line = Printer(common.claim_stdout(), common)
    signal.signal(signal.SIGTERM, _stop)  # as PID 1 of a container the default would be to ignore it
    began = time.monotonic()
    arguments = {name: value for name, value in vars(options).items() if name not in ("config", "nvml", "probes")}
    node = os.environ.get("SLURMD_NODENAME", "") if options.join else None
    print_line("launch", schema=SCHEMA, started=time.time(), arguments=arguments, surroundings=surroundings.measure(),
               node=node)  # fmt: skip
    scratch, end, error = None, {"ranks": []}, None
    try:
        scratch = tempfile.mkdtemp(prefix="envbuild-profile-")
        end = _measure(options, json.loads(options.config), values, (common, zero3, _load("sampling", _HERE)), scratch,
                       print_line)  # fmt: skip
    except (Exception, SystemExit, KeyboardInterrupt) as stopped:
        error = common.describe(stopped)
        end["traceback"] = common.traceback_tail()
    common.remove(scratch)
    print_line("end", **dict(end, error=error, seconds=time.monotonic() - began, memory=surroundings.memory()))
    whole = error is None and end["ranks"] and all(rank["exit_code"] == 0 for rank in end["ranks"])
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
