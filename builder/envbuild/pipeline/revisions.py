"""What a git revision had of a project, as files in a folder."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from envbuild import process, project
from envbuild.errors import EngineError, InputError

# What of a revision decides about images, or speaks of them.
_PARTS = (project.MATRIX, "templates", "facts", "images")
_KEPT = (project.LOCK_FILE, "record.json", "record.dsse.json")
_LINK, _SUBMODULE = "120000", "160000"
_TIMEOUT = 60.0
_MOST_FILES = 5_000
# What git hosts call the revision before the first.
_NOTHING = "0" * 40


class NoMatrix(InputError):
    """A revision is one of the project's repository, and had no matrix."""


def check_out(root: Path, revision: str, folder: Path) -> tuple[str, Path]:
    """Write what counts of a revision into a folder; returns its name with the commit, and the project's root there.

    Symbolic links are followed as far as they stay in the repository; others lead to what lies there today.

    Raises:
        InputError: The project is in no git repository, or that has no such revision, or it cannot be read.
    """
    if revision.startswith("-"):
        raise InputError(f"{revision!r} is neither a path nor a revision", hint="Name a revision such as HEAD~1.")
    told = f"{root} is in no git repository, so {revision!r} cannot be a revision"
    prefix = _git(root, "rev-parse", "--show-prefix", told=told).removesuffix("\n")
    top = Path(_git(root, "rev-parse", "--show-toplevel", told=told).removesuffix("\n"))
    commit = _git(
        root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}",
        told=f"{revision!r} is neither a path with a {project.MATRIX} nor a git revision of {root}",
        hint=lambda: _why_not(root, revision),
    ).strip()  # fmt: skip
    name = f"{revision} ({commit[:8]})"
    files, links = _entries(root, commit, prefix, name)
    for path, blob in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(_content(root, blob, f"{path} of {name}"))
    # Last, so that nothing is written through one.
    for path, target in links.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        inside = _inside(path, target) is not None
        place.symlink_to(target if inside else top / posixpath.dirname(path) / target)
    if not (folder / prefix / project.MATRIX).is_file():
        raise NoMatrix(f"{name} has no {project.MATRIX} in {root}")
    return name if not commit.startswith(revision) else commit[:8], folder / prefix


def _entries(root: Path, commit: str, prefix: str, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Blobs of files, and targets of links, by path from the top of the repository."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    asked = {f"{prefix}{part}" for part in _PARTS}
    pending = set(asked)
    while pending:
        found = _listed(root, commit, pending, name)
        pending = set()
        for path, (mode, blob) in found.items():
            if mode == _LINK and path not in links:
                links[path] = _content(root, blob, f"{path} of {name}").decode("utf-8", "surrogateescape")
                target = _inside(path, links[path])
                if target is not None and target not in asked:
                    pending.add(target)
            elif mode != _LINK and _counts(path.removeprefix(prefix)):
                files[path] = blob
        asked |= pending
        if len(files) + len(links) > _MOST_FILES:
            raise InputError(f"{name} has more than {_MOST_FILES} files that would count, too many to read")
    return files, links


def _listed(root: Path, commit: str, paths: Iterable[str], name: str) -> Mapping[str, tuple[str, str]]:
    said = _git(root, "ls-tree", "-r", "-z", "--full-tree", commit, "--", *sorted(paths), told=f"cannot list {name}")
    found: dict[str, tuple[str, str]] = {}
    for line in filter(None, said.split("\0")):
        described, _, path = line.partition("\t")
        mode, _, blob = described.split(" ")
        if mode == _SUBMODULE:
            raise InputError(f"{path} of {name} is a git submodule: what is in it is in another repository")
        if ".." not in path.split("/") and not path.startswith("/"):
            found[path] = (mode, blob)
    return found


def _inside(path: str, target: str) -> str | None:
    """Where a link leads, from the top of the repository; None where it leads out of that."""
    place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return None if place.startswith("/") or place.split("/")[0] in ("..", ".") else place


def _counts(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 3 and parts[2] in _KEPT if parts[0] == "images" else True


def _why_not(root: Path, revision: str) -> str:
    if revision == _NOTHING:
        return "That stands for no revision, as before the first push of a branch. Build all: envbuild build --all"
    shallow = _git(root, "rev-parse", "--is-shallow-repository", told="")
    return "This clone is shallow: git fetch --unshallow" if shallow.strip() == "true" else ""


def _content(root: Path, blob: str, what: str) -> bytes:
    try:
        return b"".join(process.chunks(["git", "-C", str(root), "cat-file", "blob", blob]))
    except EngineError as error:
        raise InputError(f"cannot read {what}", hint=error.message[:300]) from error


def _git(root: Path, *arguments: str, told: str, hint: Callable[[], str] = str) -> str:
    try:
        done = process.run(["git", "-C", str(root), *arguments], timeout=_TIMEOUT)
    except EngineError as error:
        raise InputError(f"a revision needs git: {error.message}", hint="Name two folders or files instead.") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InputError(told, hint=hint() or (said[-1][:300] if said else ""))
    return done.stdout
