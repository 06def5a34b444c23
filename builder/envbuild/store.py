"""The user's own store: where it lies, files that appear whole or not at all, and locks between runs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import platformdirs

from envbuild.errors import EngineError, InputError

HOME_VARIABLE = "ENVBUILD_HOME"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_CLOSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def home() -> Path:
    """Folder of evidence, logs and locks: ``ENVBUILD_HOME``, else the platform's user data folder."""
    configured = os.environ.get(HOME_VARIABLE)
    return Path(configured).expanduser().absolute() if configured else Path(platformdirs.user_data_dir("envbuild"))


def cache(configured: Path | None = None) -> Path:
    """Folder of what can be made again: ``configured`` (``[paths] cache``), or below the home, or the platform's."""
    if configured is not None:
        return configured
    return home() / "cache" if os.environ.get(HOME_VARIABLE) else Path(platformdirs.user_cache_dir("envbuild"))


def make_folder(path: Path) -> Path:
    """Create ``path`` and its parents; returns it.

    Raises:
        EngineError: The store cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _store_error("create", path, error) from error
    return path


@contextlib.contextmanager
def scratch(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder of this run's own below ``parent``, gone at the end.

    Raises:
        EngineError: The disk is full or the folder cannot be written.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix=prefix, dir=make_folder(parent), ignore_cleanup_errors=True)
    except OSError as error:
        raise _store_error("create a folder in", parent, error) from error
    with folder as name:
        yield Path(name)


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a file so that a reader, or a crash at any moment, sees the old content or the new, never a part.

    Creates the parent folders. A killed writer leaves at most a ``.NAME.*.tmp`` beside the file, which nothing reads.

    Raises:
        EngineError: The disk is full or the folder cannot be written.
    """
    write_together([(path, data)])


def write_where_asked(path: Path, data: bytes | str) -> None:
    """Write what a user wants at a place of theirs: a file as ``write_atomic`` does, through a link to it; into what is
    there and no file, such as a pipe or ``/dev/stdout``.

    Raises:
        EngineError: It cannot be written there.
    """
    # The store's own advice is about its own folder.
    hint = "Name a file in a folder that you may write to."
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data.encode() if isinstance(data, str) else data)
        else:
            write_atomic(path.resolve(), data)
    except OSError as error:
        raise EngineError(f"cannot write {path}: {error.strerror or error}", hint=hint) from error
    except EngineError as error:
        raise EngineError(error.message, hint=hint) from error


def write_together(files: Sequence[tuple[Path, bytes | str]]) -> None:
    """Write files that belong together, each as ``write_atomic`` does, in the order given.

    The first one appears when every one is on the disk: a full disk changes none of them. A kill between two renames
    leaves the first ones new and the others old, so what a reader must not find alone comes last.

    Raises:
        EngineError: As ``write_atomic``; it names the file.
    """
    temporaries: list[Path] = []
    path = Path()
    try:
        for path, data in files:
            make_folder(path.parent)
            descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
            temporaries.append(Path(name))
            with os.fdopen(descriptor, "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                # mkstemp makes files for the owner alone; these are as readable as any other file of the user.
                os.fchmod(file.fileno(), 0o666 & ~_umask())
                os.fsync(file.fileno())
        for path, _ in files:
            temporaries[0].replace(path)
            temporaries.pop(0)
            sync_folder(path.parent)
    except OSError as error:
        raise _store_error("write", path, error) from error
    finally:
        for temporary in temporaries:
            with contextlib.suppress(OSError):
                temporary.unlink()


def remove(path: Path) -> None:
    """Remove a file; one that is not there is removed already.

    Raises:
        EngineError: The folder cannot be written.
    """
    try:
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _store_error("remove", path, error) from error
    sync_folder(path.parent)


def write_json(path: Path, document: object) -> None:
    """Write JSON atomically, as ``encode_json`` writes it.

    Raises:
        EngineError: As ``write_atomic``.
    """
    write_atomic(path, encode_json(document))


def encode_json(document: object) -> str:
    """JSON with sorted keys, two spaces and a newline at the end, so that equal documents are equal bytes."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path) -> object:
    """Parse a JSON file.

    Raises:
        InputError: It is missing, unreadable, or not JSON; with the line and column where there is one.
    """
    try:
        document: object = json.loads(path.read_bytes())
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid JSON: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise InputError(f"{path}: not valid JSON: nested too deeply") from error
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    return document


class FileLock:
    """An exclusive lock on a file, between processes and between threads.

    The kernel holds it (``flock``), so it ends with its process, even after ``kill -9``. The file stays: removing it
    would let two holders lock two different files of one name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def try_acquire(self) -> bool:
        """Take the lock if it is free; returns whether it is now held. Never waits.

        Raises:
            EngineError: The lock file cannot be created, or its file system has no locks.
        """
        return self._take(wait=False)

    def acquire(self, on_wait: Callable[[], None] | None = None) -> None:
        """Take the lock; where another run holds it, call ``on_wait`` once and wait.

        Raises:
            EngineError: As ``try_acquire``.
        """
        if self._take(wait=False):
            return
        if on_wait is not None:
            on_wait()
        self._take(wait=True)

    def release(self) -> None:
        """Give the lock back; does nothing when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _take(self, *, wait: bool) -> bool:
        if self._descriptor is not None:
            return True
        make_folder(self.path.parent)
        while True:
            descriptor = -1
            try:
                # Not inheritable (PEP 446), so that no child process keeps the lock alive.
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                if _same_file(descriptor, self.path):
                    self._descriptor = descriptor
                    return True
                # Someone removed the file while we waited; lock the one that now has the name.
                os.close(descriptor)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except OSError as error:
                if descriptor >= 0:
                    os.close(descriptor)
                raise _store_error("lock", self.path, error) from error
            except BaseException:
                if descriptor >= 0:
                    os.close(descriptor)
                raise


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where its file system can do that."""
    # Without this a power cut can forget the rename. Some file systems cannot sync a folder; the file is whole anyway.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_disk(folder: Path) -> None:
    """Have everything that was written to the disk of a folder on it: one wait for thousands of small files.

    Raises:
        OSError: The disk failed, or is full after all.
    """
    import ctypes

    # Python has no name for syncfs(2) of Linux.
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _store_error(verb: str, path: Path, error: OSError) -> EngineError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        hint = (
            f"free some space on the disk that holds {path.parent}, or set {HOME_VARIABLE} to a folder on another one"
        )
    elif error.errno in _CLOSED:
        hint = f"make {path.parent} writable, or set {HOME_VARIABLE} to a folder that is"
    else:
        hint = f"set {HOME_VARIABLE} to another folder if this one cannot be used"
    return EngineError(f"cannot {verb} {path}: {reason}", hint=hint)
