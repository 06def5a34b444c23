"""Which interpreter is examined when nobody names one: the one that the shell would start, if it has torch."""

import glob
import os
import re
import sys

from .common import is_program, unique

# Where the first is Python 2, the second is the one that could have torch.
_NAMES = ("python3", "python")
# Where images of NVIDIA's, PyTorch's and of this project keep their environment, should it not be on PATH.
_PLACES = ("/opt/venv/bin/python", "/opt/conda/bin/python", "/usr/local/bin/python3", "/usr/bin/python3")


def guess(host):
    """The first interpreter with torch; without one the first of all.

    The active environment's comes first, then PATH's, then the one that runs the collector.
    """
    found = candidates(host)
    return next((path for path in found if has_torch(host, path)), found[0] if found else sys.executable)


def candidates(host):
    """Every interpreter that may be meant, the likeliest first."""
    prefixes = (host.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
    paths = [os.path.join(prefix, "bin", "python") for prefix in prefixes if prefix]
    paths += [host.which(name) for name in _NAMES] + [sys.executable] + list(_PLACES)
    return unique(path for path in paths if path and is_program(path))


def has_torch(host, python):
    """Whether a folder named torch lies where an interpreter's packages do; nothing is started."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    prefixes = [own]
    # A virtual environment may see the packages of what it was made of (PEP 405).
    said = dict(re.findall(r"^([\w-]+) *= *(.*?) *$", host.text(own + "/pyvenv.cfg") or "", re.M))
    if said.get("include-system-site-packages", "").lower() == "true" and said.get("home"):
        prefixes.append(os.path.dirname(said["home"]))
    return any(_has_torch(host, prefix) for prefix in prefixes)


def _has_torch(host, prefix):
    escaped = glob.escape(prefix)
    folders = [os.path.join(escaped, lib, "python3*", "site-packages") for lib in ("lib", "lib64")]
    if prefix == "/usr":
        folders += [
            "/usr/lib/python3/dist-packages",
            "/usr/local/lib/python3*/*-packages",
            "/usr/local/lib64/python3*/*-packages",
        ]
        folders += [os.path.join(glob.escape(host.home()), ".local/lib/python3*/site-packages")]
    return any(glob.glob(os.path.join(folder, "torch", "__init__.py")) for folder in folders)
