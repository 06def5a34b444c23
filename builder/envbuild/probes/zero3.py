"""Trains a small model under ZeRO-3 with offload, and prints what was seen, as raw numbers.

    python -I zero3.py --ranks 2 --steps 10 --accelerator cpu --seed 1 --timeout 300 [--nvme DIR] [--seconds 60]

This file starts one process per rank (``zero3_rank.py``), watches them, ends all of them when one dies, when a
collective takes too long or the time is up, and prints one JSON document. It imports neither torch nor DeepSpeed, so
it lives whatever they do. It needs a writable temporary folder, and neither a network, a home, nor a user name.
Exit code: 0 when every rank reported, 1 otherwise; the document is printed either way.
"""

import argparse
import contextlib
import glob
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

SCHEMA = "envbuild.probe.zero3/2"
_HERE = os.path.dirname(os.path.abspath(__file__))
_POLL_SECONDS = 0.05
_PEER_GRACE_SECONDS = 3.0  # for the others to say why they failed, once one is dead
_DUMP_SECONDS = 0.7  # for a hanging rank to write where it hangs
_LOG_LINES = 60
# Both all-reduces together took 0.03 s on two idle cores and 0.3 s on busy ones. Where the whole run has less than
# three times as long, a third of it, but never so little that a slow machine looks like a hang.
_COLLECTIVE_SECONDS = (20.0, 60.0)
_COLLECTIVE = "collective"


def _load(name):
    spec = importlib.util.spec_from_file_location("envbuild_probe_" + name, os.path.join(_HERE, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = _load("common")
surroundings = _load("surroundings")


class Rank:
    """One child process and the files it writes."""

    def __init__(self, number, scratch):
        self.number = number
        self.report_path = os.path.join(scratch, "rank-{}.json".format(number))
        self.phase_path = os.path.join(scratch, "rank-{}.phase".format(number))
        self.log_path = os.path.join(scratch, "rank-{}.log".format(number))
        self.process = None
        self.ended_after = None
        self.ended_by_launcher = False

    def start(self, arguments, environment):
        argv = [sys.executable, "-I", os.path.join(_HERE, "zero3_rank.py")]
        argv += ["--report", self.report_path, "--phase", self.phase_path, *arguments]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def alive(self, since):
        if self.process is None:
            return False
        if self.process.poll() is None:
            return True
        if self.ended_after is None:
            self.ended_after = time.monotonic() - since
        return False

    def send(self, number):
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(self.process.pid, number)

    def place(self):
        """How many phases this rank has entered, and the name of the present one."""
        number, _, name = (common.read_text(self.phase_path) or "0 start").partition(" ")
        return (int(number) if number.isdigit() else 0), name

    def failed(self):
        return self.process.returncode != 0 or not os.path.exists(self.report_path)

    def document(self):
        code = None if self.process is None else self.process.returncode
        number = -code if code is not None and code < 0 else None
        entered, phase = self.place()
        figures = {
            "rank": self.number,
            "exit_code": code if number is None else None,
            "signal": number,
            "signal_name": _signal_name(number),
            "ended_by_launcher": self.ended_by_launcher,
            "phase": phase,
            "phases_entered": entered,
            "seconds": self.ended_after,
            "log_tail": common.tail(self.log_path, _LOG_LINES),
            "report": None,
        }
        try:
            with open(self.report_path) as stream:
                figures["report"] = json.load(stream)
        except (OSError, ValueError) as error:
            figures["report_error"] = common.describe(error)
        if figures["report"] is not None and code == 0:
            figures["log_tail"] = []  # only a failure needs its last words
        return figures


def _signal_name(number):
    try:
        return None if number is None else signal.Signals(number).name
    except ValueError:
        return "SIG{}".format(number)


def _free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _visible_gpus(timeout):
    # Asking torch is the only count that agrees with what a rank sees (visible devices, MIG slices).
    code = "import sys, torch; sys.stderr.write('\\ngpus=%d' % torch.cuda.device_count())"
    argv = [sys.executable, "-I", "-c", code]
    answer = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=timeout
    )
    text = answer.stderr.decode("utf-8", "replace")
    count = text.rpartition("\ngpus=")[2]
    if answer.returncode != 0 or not count.isdigit():
        raise RuntimeError("torch could not count the GPUs: {}".format(text.strip()[-500:]))
    if int(count) == 0:
        raise RuntimeError("torch sees no GPU (torch.cuda.device_count() is 0)")
    return int(count)


def _environment(options, ranks, number, port, scratch):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "TORCHELASTIC_"))}
    environment.update(
        RANK=str(number),
        LOCAL_RANK=str(number),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        LOCAL_SIZE=str(ranks),  # DeepSpeed's CPU accelerator counts its devices by it
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        DS_ACCELERATOR=options.accelerator,
        TORCH_EXTENSIONS_DIR=os.path.join(scratch, "extensions"),
    )
    # Without a network there is no other interface, and gloo cannot find this one by the host's name.
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Ranks share the CPUs; a number that the image sets itself is what its users get, so it stays.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, surroundings.usable_cpus() // ranks)))
    return environment


def _watch(ranks, since, timeout, patience):
    """Wait for all ranks; whether the time ran out, and who stood where when a collective took longer than
    ``patience``. Who is alive afterwards has written where it stands."""
    deadline = since + timeout
    timed_out, stuck = False, None
    waiting_since = None
    while _alive(ranks, since):
        now = time.monotonic()
        if any(not rank.alive(since) and rank.failed() for rank in ranks):
            deadline = min(deadline, now + _PEER_GRACE_SECONDS)
            _wait(ranks, since, deadline)
            break
        if now >= deadline:
            timed_out = True
            break
        inside = [rank.number for rank in ranks if rank.place()[1].split(" ")[0] == _COLLECTIVE]
        if not inside:
            waiting_since = None
        elif waiting_since is None:
            waiting_since = now
        elif now - waiting_since >= patience:
            stuck = {"seconds": now - waiting_since, "inside": inside}
            break
        time.sleep(_POLL_SECONDS)
    left = _alive(ranks, since)
    for rank in left:
        rank.ended_by_launcher = True
        rank.send(signal.SIGUSR1)  # faulthandler: where every thread stands
    if left:
        _wait(left, since, time.monotonic() + _DUMP_SECONDS)
    return timed_out, stuck


def _alive(ranks, since):
    return [rank for rank in ranks if rank.alive(since)]  # of all: each notes its own end


def _wait(ranks, since, deadline):
    while _alive(ranks, since) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _end(ranks, since):
    for rank in ranks:
        if rank.process is not None:
            rank.send(signal.SIGKILL)
            rank.process.wait()
            rank.alive(since)


def _remove_segments(port):
    # DeepSpeed 0.19.8 leaves 69 MB of shared memory per rank behind; outside a container nobody else removes them.
    pattern = "/dev/shm/deepspeed_allreduce_buffer_{}_127.0.0.1_{}_*".format(os.getuid(), port)
    for path in glob.glob(pattern):
        with contextlib.suppress(OSError):
            os.unlink(path)


def _probe(options, document, scratch):
    ranks_wanted = options.ranks or _visible_gpus(min(120.0, options.timeout))
    document["ranks_started"] = ranks_wanted
    extensions = os.path.join(scratch, "extensions")
    os.mkdir(extensions)
    if not options.jit:
        os.chmod(extensions, 0o555)
    document["extensions_writable"] = os.access(extensions, os.W_OK)
    port = _free_port()
    ranks = [Rank(number, scratch) for number in range(ranks_wanted)]
    passed = ["--scratch", scratch]
    for name in ("steps", "seed", "seconds", "accelerator", "timeout"):
        passed += ["--" + name, str(getattr(options, name))]
    if options.nvme and document["surroundings"]["nvme"]["direct"]:
        passed += ["--nvme", options.nvme]
    least, most = _COLLECTIVE_SECONDS
    patience = min(most, max(least, options.timeout / 3.0))
    since = time.monotonic()
    try:
        for rank in ranks:
            rank.start(passed, _environment(options, ranks_wanted, rank.number, port, scratch))
        document["timed_out"], document["stuck"] = _watch(ranks, since, options.timeout, patience)
    finally:
        _end(ranks, since)
        _remove_segments(port)
        document["ranks"] = [rank.document() for rank in ranks]
        document["extension_files"] = common.count_files(extensions)
        common.empty(options.nvme)


def _stop(number, frame):
    raise SystemExit(128 + number)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=0, help="number of ranks; 0: one per visible GPU (cuda)")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, required=True, help="weights and data depend on it")
    parser.add_argument("--seconds", type=float, default=0.0, help="seconds to train on after the steps")
    parser.add_argument("--nvme", default="", help="empty folder on a disk, for the pass that swaps to it")
    parser.add_argument("--jit", action="store_true", help="ops may be compiled at run time")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for everything")
    options = parser.parse_args()
    if options.accelerator == "cpu" and options.ranks < 1:
        options.ranks = 2
    stdout = common.claim_stdout()
    signal.signal(signal.SIGTERM, _stop)  # as PID 1 of a container the default would be to ignore it
    began = time.monotonic()
    document = {
        "schema": SCHEMA,
        "arguments": dict(vars(options)),
        "error": None,
        "timed_out": False,
        "stuck": None,
        "ranks": [],
        "surroundings": {},
    }
    scratch = None
    try:
        document["surroundings"] = surroundings.measure()
        document["surroundings"]["nvme"] = surroundings.disk(options.nvme) if options.nvme else None
        scratch = tempfile.mkdtemp(prefix="envbuild-zero3-")
        _probe(options, document, scratch)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        document["error"] = common.describe(error)
        document["traceback"] = common.traceback_tail()
    document["memory_after"] = surroundings.memory()
    document["seconds"] = time.monotonic() - began
    common.remove(scratch)
    common.emit(stdout, document)
    reported = [rank for rank in document["ranks"] if rank["exit_code"] == 0 and rank["report"]]
    return 0 if document["error"] is None and reported and len(reported) == len(document["ranks"]) else 1


if __name__ == "__main__":
    sys.exit(main())
