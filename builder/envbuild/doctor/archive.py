"""``doctor.pyz``: the collector as one file that any Python from 3.6 runs, where envbuild is not installed."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import envbuild
from envbuild import store
from envbuild.errors import EngineError

NAME = "doctor.pyz"
# Under another name than envbuild's: nothing on a machine can be taken for it.
_PACKAGE = "envbuild_collector"
_READER = "elftools"
_SHEBANG = b"#!/usr/bin/env python3\n"
# The first moment that a zip file can name; without it, every archive would have another hash.
_MOMENT = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644 << 16
# -I: nothing of the user's environment may decide what the collector imports; the environment is what it examines.
_START = f'''"""Collects what a training environment is, as JSON on stdout. --help says more."""
import sys

if sys.version_info < (3, 6):
    sys.exit("{NAME}: this is Python %d.%d, and it needs 3.6 or later" % sys.version_info[:2])
if not sys.flags.isolated and sys.executable:
    import os

    os.execv(sys.executable, [sys.executable, "-I", "-S"] + sys.argv)

from {_PACKAGE}.__main__ import run

run()
'''


def archive(cache: Path) -> Path:
    """The archive in a cache folder, written when it is not there yet.

    Args:
        cache: Where what can be made again lies.

    Raises:
        EngineError: It cannot be written, or the package is not installed as files.
    """
    files = _files()
    path = cache / "doctor" / _digest(files)[:16] / NAME
    if not path.is_file():
        store.write_atomic(path, _packed(files))
    # It is mounted into containers, whose users are not this one.
    try:
        for place, mode in ((path, 0o644), (path.parent, 0o755)):
            if place.stat().st_mode & 0o777 != mode:
                place.chmod(mode)
    except OSError as error:
        raise EngineError(f"cannot open {path} to its readers: {error.strerror}") from error
    return path


def write_archive(path: Path) -> None:
    """Write the archive where a person wants it, to be copied to another machine.

    Raises:
        EngineError: It cannot be written, or the package is not installed as files.
    """
    store.write_atomic(path, _packed(_files()))
    try:
        path.chmod(0o755)
    except OSError as error:
        raise EngineError(f"cannot make {path} executable: {error.strerror}") from error


def _packed(files: dict[str, bytes]) -> bytes:
    """The same bytes for the same files, whenever and wherever they are packed with the same zlib."""
    buffer = io.BytesIO(_SHEBANG)
    buffer.seek(len(_SHEBANG))
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _MOMENT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = _MODE
            entry.create_system = 3  # Unix
            packed.writestr(entry, content)
    return buffer.getvalue()


def _digest(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _files() -> dict[str, bytes]:
    """Every file of the archive by its name in it."""
    folder = Path(envbuild.__file__).parent / "collector"
    if not (folder / "__main__.py").is_file():
        raise EngineError(
            f"the collector is not where it belongs: {folder}",
            hint="Install envbuild as files (pip, pipx); it cannot run from a zip archive.",
        )
    files = {"__main__.py": _START.encode()}
    try:
        for path in folder.rglob("*.py"):
            files[f"{_PACKAGE}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
        files.update(_reader_files(files))
    except OSError as error:
        raise EngineError(f"cannot read the collector: {error}") from error
    return files


def _reader_files(files: dict[str, bytes]) -> dict[str, bytes]:
    """The part of pyelftools that the collector imports, and what that part imports in turn."""
    spec = importlib.util.find_spec(_READER)
    places = spec.submodule_search_locations if spec else None
    if not places:
        raise EngineError("pyelftools is not installed", hint="Install envbuild anew: it is one of its requirements.")
    root = Path(places[0])
    found: dict[str, bytes] = {}
    wanted = [name for content in files.values() for name in _imports(content, "") if name.split(".")[0] == _READER]
    while wanted:
        module = wanted.pop()
        base = root.joinpath(*module.split(".")[1:])
        path = next((each for each in (base.with_suffix(".py"), base / "__init__.py") if each.is_file()), None)
        if path is None:  # a name inside a module, not a module
            continue
        name = f"{_READER}/{path.relative_to(root).as_posix()}"
        if name not in found:
            found[name] = path.read_bytes()
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            wanted += [*_imports(found[name], package), *_parents(module)]
    return found


def _imports(content: bytes, package: str) -> Iterator[str]:
    """Every module that a source may import, by its absolute name; names in modules are among them."""
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[:length]) for length in range(1, len(parts)))
