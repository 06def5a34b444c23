"""What the probes share: a clean stdout, legal JSON, and the end of a log.

Standard library only, Python 3.7 and later. The probes load this file by its path, because ``python -I``
keeps their own folder off ``sys.path``.
"""

import contextlib
import json
import math
import os
import shutil
import signal
import sys
import traceback

_TAIL_BYTES = 64 * 1024
_LINE_CHARS = 500


def claim_stdout():
    """Take stdout for the document; whatever else prints, natively or in Python, goes to stderr.

    DeepSpeed logs to stdout and native libraries write to descriptor 1, so the descriptor itself moves.
    """
    sys.stdout.flush()
    claimed = os.dup(1)
    os.dup2(2, 1)
    return claimed


def emit(descriptor, document):
    """Write the one document and close its channel."""
    text = json.dumps(clean(document), allow_nan=False, sort_keys=True) + "\n"
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(text.encode("ascii"))


def write_json(path, document):
    """Write a document beside its final place, then rename: a reader never sees half of it."""
    beside = path + ".part"
    with open(beside, "w") as stream:
        json.dump(clean(document), stream, allow_nan=False)
    os.replace(beside, path)


def clean(value):
    """The same value in types JSON has; NaN and the infinities become "nan", "inf" and "-inf"."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [clean(item) for item in value]
    return str(value)


def attempt(figures, name, function):
    """Put the function's answer under ``name``, or None and the reason under ``errors``."""
    try:
        figures[name] = function()
    except Exception as error:
        figures[name] = None
        figures.setdefault("errors", {})[name] = describe(error)


def describe(error):
    """An exception as one line."""
    return "{}: {}".format(type(error).__name__, error)[:2000]


def traceback_tail(lines=12):
    """The end of the traceback that is being handled."""
    return traceback.format_exc().splitlines()[-lines:]


def tail(path, lines):
    """The last lines of a log, each cut to a readable length."""
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line[:_LINE_CHARS] for line in text.splitlines()[-lines:]]


def read_text(path):
    """A small file's text without surrounding blanks, or None."""
    try:
        with open(path, "rb") as stream:
            return stream.read(_TAIL_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return None


def count_files(folder):
    """Number of files under a folder: an extension folder that is not empty tells of JIT compilation."""
    return sum(len(files) for _, _, files in os.walk(folder))


def kill_group(leader):
    """End a process group that we started, down to the last descendant."""
    with contextlib.suppress(OSError):
        os.killpg(leader, signal.SIGKILL)


def remove(folder):
    """Delete a scratch folder; what cannot be deleted goes with the container."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def empty(folder):
    """Delete what lies in a folder that is someone else's, and outlives this process; "" is none."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder) if folder else ():
            remove(os.path.join(folder, name))
