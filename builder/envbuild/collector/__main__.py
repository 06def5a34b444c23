"""The command line of the collector: one JSON document on stdout, a little narration on a terminal's stderr."""

import argparse
import contextlib
import json
import os
import signal
import sys

from . import collect


def main(argv=None, environ=None):
    """Collect, write, and return the exit code: 0 done, 2 usage or nowhere to write to, 130 interrupted."""
    closed = _open_streams()
    options = _options(argv)
    if closed and not options.output:
        sys.stderr.write("standard output is closed: name a file with --output\n")
        return 2
    wanted = collect.Wanted(
        python=options.python, guess=options.guess, nvme=options.nvme, bench=options.bench,
        imports=not options.no_import, timeout=options.timeout,
    )  # fmt: skip
    # Its children are in groups of their own: Ctrl-C does not reach them, and they end with what waits for them.
    for number in (signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(ValueError, OSError):
            signal.signal(number, _interrupted)
    try:
        document = collect.collect(wanted, dict(os.environ if environ is None else environ), _narrator(options.quiet))
    except KeyboardInterrupt:
        return 130
    return _write(json.dumps(document, sort_keys=True, allow_nan=False) + "\n", options.output)


def _options(argv):
    parser = argparse.ArgumentParser(
        prog="doctor.pyz",
        description="Collects what a training environment is. What it means: envbuild doctor --from FILE, anywhere.",
        epilog="Names of hosts and users, and secrets, are masked. Nothing is changed on this machine.",
    )
    parser.add_argument("--python", metavar="PATH", help="examine this interpreter; default: the one that runs this")
    parser.add_argument("--guess", action="store_true", help="examine the interpreter of the shell that has torch")
    parser.add_argument("--nvme", metavar="FOLDER", action="append", default=[], help="a folder offload would swap to")
    parser.add_argument("--bench", action="store_true", help="measure bandwidth of memory and of --nvme folders")
    parser.add_argument("--no-import", action="store_true", help="do not import torch and DeepSpeed")
    parser.add_argument("--timeout", metavar="S", type=_seconds, default=120.0, help="limit of the imports (120)")
    parser.add_argument("--output", metavar="FILE", help="write to a file in place of stdout")
    parser.add_argument("--quiet", action="store_true", help="no narration")
    return parser.parse_args(argv)


def _seconds(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1.0 <= value <= 86400.0:
        raise argparse.ArgumentTypeError("'{}' is no number of seconds from 1 to 86400".format(text))
    return value


def _open_streams():
    """Whether stdout is closed. Descriptors 0 to 2 are filled: a pipe that got one of them would be written to."""
    closed = False
    for number in (0, 1, 2):
        if not _is_open(number):
            closed = closed or number == 1
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.dup(2), "w")
    return closed


def _is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _interrupted(number, frame):
    raise KeyboardInterrupt


def _narrator(quiet):
    def say(text):
        if text and not quiet and sys.stderr.isatty():
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    return say


def _write(text, output):
    try:
        if output:
            with open(output, "w") as stream:
                stream.write(text)
            return 0
        # Written whole, or not at all: what reads it should not meet a half.
        # A parent may have left it non-blocking, and a pipe that is full is then an error.
        os.set_blocking(1, True)
        data = text.encode("ascii")
        while data:
            data = data[os.write(1, data) :]
        return 0
    except OSError as error:
        with contextlib.suppress(OSError):
            sys.stderr.write("cannot write {}: {}\n".format(output or "to standard output", error.strerror))
        return 2


def run():
    """Collect, and end: also where a thread still waits for a file system that does not answer."""
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # Python itself would wait for its threads.
    os._exit(code)


if __name__ == "__main__":
    run()
