"""An interpreter on this host: finding it, running a probe with it, and a row that says what it has."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envbuild import process
from envbuild.errors import InputError
from envbuild.judge.claims import module
from envbuild.judge.outcome import Outcome, dig
from envbuild.model import Environment

_ASK_SECONDS = 60.0
# The first Python that the probes run on.
_OLDEST = (3, 7)
_RELEASE = re.compile(r"[0-9]+(\.[0-9]+)*")


def find_interpreter(python: str) -> Path:
    """The interpreter that is meant; links are kept, because a virtual environment is one.

    Raises:
        InputError: It is not there, or no Python that the probes run on.
    """
    found = process.which(python)
    if found is None:
        there = Path(python).exists()
        what = "cannot be executed" if there else "is not there"
        raise InputError(f"--python {python}: it {what}", hint="Name an interpreter: --python /path/to/venv/bin/python")
    path = Path(found).absolute()
    code = "import json, sys; print(json.dumps(['envbuild', list(sys.version_info[:3])]))"
    try:
        done = process.run((str(path), "-I", "-c", code), timeout=_ASK_SECONDS)
        said = json.loads((done.stdout.strip().splitlines() or [""])[-1])
        version = tuple(said[1]) if said[0] == "envbuild" else ()
    except process.TimedOut:
        version = ()
    except (ValueError, LookupError, TypeError):
        version = ()
    if not version or not all(isinstance(part, int) for part in version):
        raise InputError(f"--python {python}: {path} is no Python interpreter that answers")
    if version < _OLDEST:
        raise InputError(f"--python {python}: it is Python {'.'.join(map(str, version))}, and 3.7 is the oldest")
    return path


def run_probe(argv: tuple[str, ...], timeout: float, extra: Mapping[str, str] | None = None) -> Outcome:
    """Run one probe to its end, in a folder of its own and with a limit in seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="envbuild-host-") as scratch:
        # The user's own compiled extensions are neither used nor touched.
        env = {"TORCH_EXTENSIONS_DIR": f"{scratch}/extensions", **(extra or {})}
        try:
            done = process.run(argv, env=env, cwd=Path(scratch), timeout=timeout)
        except process.TimedOut:
            return Outcome(exit_code=137, stdout="", stderr="", oom_killed=False, timed_out=True,
                           seconds=time.monotonic() - began)  # fmt: skip
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return Outcome(exit_code=code, stdout=done.stdout, stderr=done.stderr, oom_killed=False, timed_out=False,
                   seconds=time.monotonic() - began)  # fmt: skip


def described(inside: Mapping[str, Any]) -> Environment:
    """A row that says just what the interpreter's modules say of themselves, for one that is held to no row."""
    version, _, local = str(module(inside, "imported", "torch", "version")).partition("+")
    deepspeed = str(module(inside, "imported", "deepspeed", "version"))
    python = _release(str(dig(inside, "python", "version"))).split(".")
    return Environment.model_validate(
        {
            "name": "host",
            "summary": "what an interpreter says of itself",
            "accelerator": "cpu",
            "family": "any",
            "base": {"image": "none"},
            "python": ".".join((*python, "0")[:2]),
            "gcc": {"version": "0.0", "package": "gcc"},
            "torch": {
                "version": _release(version),
                "build": local if re.fullmatch(r"cu[0-9]{2,3}", local) else "cpu",
            },
            "deepspeed": {"version": _release(deepspeed), "ops": []},
            "requires": "cpu",
            "sources": {},
        }
    )


def _release(text: str) -> str:
    """The numbers that a version begins with; 0 where there are none."""
    found = _RELEASE.match(text)
    return found[0][:40] if found else "0"
