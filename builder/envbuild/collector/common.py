"""What every part of the collector works with: the machine's files, its programs, and a note of what went wrong."""

import contextlib
import errno
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time

_TEXT_BYTES = 1 << 20
_OUTPUT_BYTES = 1 << 20
_ERROR_CHARS = 500
# The temporary folders that are tried; never the current folder, which is the user's.
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")


class Host:
    """The machine as files under a root, and the environment variables that are examined.

    Attributes:
        root: "/" but in tests.
        environ: The user's variables; the collector's own process may have others.
    """

    def __init__(self, environ, root="/"):
        self.environ = environ
        self.root = root

    def path(self, path):
        """Where an absolute path of the machine lies."""
        return path if self.root == "/" else os.path.join(self.root, path.lstrip("/"))

    def text(self, path, limit=_TEXT_BYTES):
        """The text of a small file without surrounding blanks, or None where it cannot be read."""
        try:
            with opened(self.path(path)) as stream:
                return stream.read(limit).decode("utf-8", "replace").strip()
        except (OSError, ValueError):
            return None

    def number(self, path):
        """A file that holds one whole number, or None."""
        try:
            return int(self.text(path) or "")
        except ValueError:
            return None

    def names(self, path):
        """The names in a folder, sorted; none where there is no such folder."""
        try:
            return sorted(os.listdir(self.path(path)))
        except (OSError, ValueError):
            return []

    def exists(self, path):
        """Whether something is there."""
        return os.path.exists(self.path(path))

    def home(self):
        """The user's home folder, as Python's expanduser takes it."""
        if self.environ.get("HOME"):
            return self.environ["HOME"]
        home = os.path.expanduser("~")
        return home if home.startswith("/") else "/"

    def which(self, name):
        """A program as the shell would find it, or None."""
        return shutil.which(name, path=self.environ.get("PATH", os.defpath))


class Parts:
    """How the parts went: seconds of each, and what failed."""

    def __init__(self):
        self.seconds = {}
        self.errors = []

    def fail(self, part, error):
        """Write down that something could not be collected."""
        self.errors.append({"part": part, "error": describe(error)})

    def run(self, part, work, default=None):
        """The answer of ``work``; ``default`` and a note when it raises."""
        began = time.time()
        try:
            return work()
        except Exception as error:
            self.fail(part, error)
            return default
        finally:
            self.seconds[part] = round(time.time() - began, 3)


def describe(error):
    """A failure as one line."""
    text = error if isinstance(error, str) else "{}: {}".format(type(error).__name__, error)
    return " ".join(text.split())[:_ERROR_CHARS]


@contextlib.contextmanager
def temporary(environ):
    """A folder that may be written to, removed afterwards; None where there is none."""
    folder = None
    for place in (environ.get("TMPDIR"), *_TEMPORARY):
        if place and os.path.isabs(place):
            try:
                folder = tempfile.mkdtemp(prefix="envbuild-doctor-", dir=place)
                break
            except (OSError, ValueError):
                continue
    try:
        yield folder
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


class Done:
    """A process that ended.

    Attributes:
        code: Its exit code, negative for a signal; None when it was ended because its time was up.
        out: What it printed, stderr and all where the two were not kept apart; ``lines`` without empty ones.
        error: Why it could not be started; empty otherwise.
    """

    def __init__(self, code=None, out="", error=""):
        self.code = code
        self.out = out
        self.error = error

    @property
    def lines(self):
        """Its output's lines, blanks at the ends removed; without what the loader says of an LD_PRELOAD before all."""
        lines = (line.strip() for line in self.out.splitlines())
        return [line for line in lines if line and not line.startswith("ERROR: ld.so: object")]

    def explain(self, timeout):
        """Why it is not a success, in one line; empty when it is one."""
        if self.error:
            return self.error
        if self.code is None:
            return "not done after {:g} s".format(timeout)
        last = self.lines[-1][:300] if self.lines else ""
        if self.code < 0:
            return "ended by signal {}{}".format(-self.code, ": " + last if last else "")
        return "exit code {}{}".format(self.code, ": " + last if last else "") if self.code else ""


def run(argv, environ, timeout, cwd="/", merged=False):
    """Run a program to its end, with no stdin, in a process group of its own that ends with it.

    Args:
        argv: Program and arguments.
        environ: All of its environment variables.
        timeout: In seconds.
        cwd: Where it runs.
        merged: Its stderr belongs to its output; else it is dropped.
    """
    try:
        child = subprocess.Popen(
            argv, env=environ, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        return Done(error=describe(error))
    reader = Reader(child.stdout)
    code = wait(child, timeout)
    # Its own children may hold the pipe open for longer than it lived.
    end_group(child)
    return Done(code=code, out=reader.text(1.0))


# The children that live: whoever interrupts the collector interrupts them.
_children = set()


def watch(child):
    """Let a child end with the collector, also when nobody waits for it yet."""
    _children.add(child)


def wait(child, timeout):
    """A child's exit code; None, and the end of it, when its time is up."""
    watch(child)
    try:
        return child.wait(timeout=timeout)
    except subprocess.TimeoutExpired:
        end_group(child)
        # One that hangs inside the kernel (a driver that does not answer) outlives SIGKILL; it is left behind.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=2.0)
        return None


def end_group(child):
    """Kill what is left of a child's process group, which is its own."""
    _children.discard(child)
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)


def end_all():
    """Kill every child that is waited for."""
    for child in list(_children):
        end_group(child)


class Reader:
    """Reads a pipe to its end in a thread, and keeps the end of what comes: nobody may block on a full pipe."""

    def __init__(self, stream, keep=_OUTPUT_BYTES):
        self._stream = stream
        self._keep = keep
        self._data = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.daemon = True
        self._thread.start()

    def _read(self):
        with contextlib.suppress(OSError, ValueError):
            while True:
                data = os.read(self._stream.fileno(), 65536)
                if not data:
                    break
                self._data = (self._data + data)[-self._keep :]

    def text(self, timeout):
        """What has come, after at most ``timeout`` seconds of waiting for the end."""
        self._thread.join(timeout)
        if not self._thread.is_alive():
            with contextlib.suppress(OSError):
                self._stream.close()
        return self._data.decode("utf-8", "replace")


def version_in(text):
    """The first number with a dot in a text, such as 12.2.0; None without one."""
    found = re.search(r"(?<![\w.])[vV]?(\d+\.\d+(?:\.\d+)*)", text or "")
    return found.group(1) if found else None


def opened(path):
    """A regular file, to be read as bytes.

    Raises:
        OSError: It cannot be read, or is something that a reader may wait for without end, such as a pipe.
    """
    # Without O_NONBLOCK the open itself waits for somebody to write to a pipe. Of a regular file it changes nothing.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no regular file", path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def real(path):
    """The file behind links, or the path itself."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def unique(items):
    """Each item once, in their order."""
    return list(dict.fromkeys(items))


def is_program(path):
    """Whether it is a file that this user may execute."""
    return os.path.isfile(path) and os.access(path, os.X_OK)
