"""The examined interpreter, asked in a child process; and its packages, read as files and never imported."""

import json
import os
import pkgutil
import re
import signal
import subprocess
import time

from .common import Reader, end_group, opened, real, wait, watch

# Variables of the child alone: nothing that belongs to the user is written to, or waited for.
_SCRATCH = {
    "TORCH_EXTENSIONS_DIR": "extensions",
    "TRITON_CACHE_DIR": "triton",
    "TRITON_HOME": "triton-home",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "MPLCONFIGDIR": "matplotlib",
    "NUMBA_CACHE_DIR": "numba",
    "CUDA_CACHE_PATH": "cuda",
}
_METADATA_BYTES = 256 * 1024
_PACKAGES = 5000
_START_SECONDS = 20.0
_TRACE_LINES = 25
_NO_FOLDER = "/nonexistent"


class Examined:
    """The child: started at once, asked for what has come of it later."""

    def __init__(self, python, environ, folder, imports, timeout):
        """Start it.

        Args:
            python: Path of the interpreter.
            environ: The user's variables: they are a part of what is examined.
            folder: A folder that may be written to; None where there is none.
            imports: Whether torch and DeepSpeed are imported.
            timeout: Limit in seconds.
        """
        self.timeout = timeout
        self.began = time.time()
        code = pkgutil.get_data(__package__, "child.py").decode("utf-8")
        scratch = {name: os.path.join(folder or _NO_FOLDER, part) for name, part in _SCRATCH.items()}
        self.environ = dict(environ, PYTHONDONTWRITEBYTECODE="1", **scratch)
        # The interpreter names its own path by argv[0]; a link of a virtual environment must stay one.
        options = ["-X", "faulthandler"] if imports else []
        told, tells = os.pipe()
        os.set_inheritable(tells, True)
        try:
            self._child = subprocess.Popen(
                [python, *options, "-c", code, str(tells), "imports" if imports else "", str(timeout)],
                env=self.environ, cwd=folder or "/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, pass_fds=(tells,), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(told)
            raise
        finally:
            os.close(tells)
        watch(self._child)
        self._pieces = Reader(os.fdopen(told, "rb"), keep=16 << 20)
        self._printed = Reader(self._child.stdout)
        self.code = None
        self._finished = False

    def first(self):
        """What the interpreter is, as soon as it says so; None when it does not."""
        while time.time() - self.began < min(_START_SECONDS, self.timeout):
            found = self._found()
            if "interpreter" in found:
                return found["interpreter"]
            if self._child.poll() is not None:
                break
            time.sleep(0.01)
        return self._found(1.0).get("interpreter")

    def finish(self):
        """Wait for the end, for as long as there is time; returns all pieces by their names. May be asked again."""
        if not self._finished:
            self.code = wait(self._child, max(0.1, self.timeout - (time.time() - self.began)))
            end_group(self._child)
            self._finished = True
        return self._found(2.0)

    def printed(self):
        """The end of what it printed, as lines."""
        lines = [line.rstrip()[:500] for line in self._printed.text(1.0).splitlines() if line.strip()]
        return lines[-_TRACE_LINES:]

    def ended(self):
        """How it ended, in words, when it did not end well."""
        if self.code is None:
            return "not done after {:g} s".format(self.timeout)
        if self.code < 0:
            return "ended by signal {} ({})".format(-self.code, signal_name(-self.code))
        return "the interpreter ended with exit code {}".format(self.code)

    def _found(self, patience=0.0):
        lines = self._pieces.text(patience).splitlines()
        return dict(piece for piece in map(_piece, lines) if piece)


def _piece(line):
    """One piece as (name, what was found); None for half a line, or what somebody else wrote to the descriptor."""
    try:
        piece = json.loads(line)
        return piece["part"], _local(piece["found"])
    except (ValueError, KeyError, TypeError):
        return None


def _local(node):
    """Strings as this process's own locale would read them, for paths that are opened: Python 3.6 under LC_ALL=C."""
    if isinstance(node, str):
        return os.fsdecode(node.encode("utf-8", "surrogateescape"))
    if isinstance(node, dict):
        return {_local(key): _local(value) for key, value in node.items()}
    return [_local(item) for item in node] if isinstance(node, list) else node


def signal_name(number):
    """Such as SIGILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def imports(child, pieces):
    """What became of the two imports: (torch, deepspeed), None for one that is not installed."""
    found = {}
    for name in ("torch", "deepspeed"):
        if name in pieces:
            found[name] = pieces[name]
        elif name + " begins" in pieces:
            found[name] = _ended(child)
        elif name == "deepspeed" and "torch begins" in pieces and "torch" not in pieces:
            found[name] = {"ok": False, "error": "not tried: the import of torch ended the interpreter"}
        elif name == "deepspeed" and "available begins" in pieces and "available" not in pieces:
            found[name] = {"ok": False, "error": "not tried: torch.cuda.is_available() ended the interpreter"}
        else:
            found[name] = None
    if found["torch"] and "available begins" in pieces:
        answer = pieces.get("available") or {}
        if "available" not in pieces:
            answer = {"unavailable": "torch.cuda.is_available(): " + child.ended()}
        found["torch"] = dict(found["torch"], **answer)
    return found["torch"], found["deepspeed"]


def _ended(child):
    code = child.code
    return {
        "ok": False,
        "error": child.ended(),
        "signal": -code if code is not None and code < 0 else None,
        "trace": child.printed(),
        "seconds": round(time.time() - child.began, 3),
    }


def described(said):
    """An interpreter's own words, with what its files say."""
    found = dict(said, real=real(said["executable"]))
    prefix, base = found.get("prefix") or "", found.get("base") or ""
    if os.path.isdir(os.path.join(prefix, "conda-meta")):
        found["kind"] = "conda"
    else:
        found["kind"] = "venv" if prefix != base else "system"
    path = [folder for folder in found.get("path") or [] if os.path.isdir(folder)]
    found["closed"] = [folder for folder in path if not os.access(folder, os.R_OK | os.X_OK)]
    found["packages"] = packages(path)
    return found


def packages(path):
    """Every distribution on sys.path, in its order: one that is there twice is listed twice, the one that counts first.

    Read from METADATA (or PKG-INFO), as PyPA's "Recording installed projects" has it.
    """
    found = []
    folders = {}
    for each in path:
        # Called as sys.path has it, so that it can be told whose entry it is; once, however many names lead there.
        folders.setdefault(real(each), each)
    for folder in filter(None, folders.values()):
        try:
            names = sorted(os.listdir(folder))
        except (OSError, ValueError):
            continue
        for name in names:
            # pip renames to ~orch-... what it is about to replace, and an end in between leaves it: that is no package.
            if name.endswith((".dist-info", ".egg-info", ".egg")) and name[0] != "~" and len(found) < _PACKAGES:
                package = _package(folder, name)
                if package:
                    found.append(dict(package, info=name))
    return found


def _package(folder, name):
    place = os.path.join(folder, name)
    for file in ("METADATA", "PKG-INFO", "EGG-INFO/PKG-INFO", ""):
        path = os.path.join(place, file) if file else place
        if os.path.isfile(path):
            try:
                with opened(path) as stream:
                    text = stream.read(_METADATA_BYTES).decode("utf-8", "replace")
            except OSError:
                continue
            return parsed(text, folder)
    return None


def parsed(text, folder):
    """A distribution by its metadata's head; None without name and version."""
    head = re.split(r"\r?\n\r?\n", text, maxsplit=1)[0]
    fields = re.findall(r"^(Name|Version|Requires-Dist):[ \t]*(.*?)[ \t\r]*$", head, re.M)
    name, version = (next((value for key, value in fields if key == wanted), "") for wanted in ("Name", "Version"))
    if not name or not version:
        return None
    # transformers and accelerate name the DeepSpeed that they accept in an extra, and check for it themselves.
    wanted = [value for key, value in fields if key == "Requires-Dist"]
    requires = [value for value in wanted if "extra ==" not in value or value.lower().startswith("deepspeed")]
    return {"name": name, "version": version, "location": folder, "requires": requires}
