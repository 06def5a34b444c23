"""Reading the facts, once per process. They are files beside the matrix: newer ones need no newer envbuild."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from envbuild import project
from envbuild.errors import InputError
from envbuild.facts.types import Facts

# libyaml is about ten times faster, and is missing only from builds made without it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Files whose keys are the names of Facts, and those that are one of its values.
_SHARED = ("toolkits", "gpus", "distributions", "packages", "runtimes", "torch", "nvidia", "models")
_OWN = ("deepspeed", "lifetimes")


def load(folders: Sequence[Path] = ()) -> Facts:
    """All facts.

    Args:
        folders: Where to look, the first that has a file counts; without any, the ones that come with envbuild.

    Raises:
        InputError: A file is missing, is no YAML, or says what facts cannot say.
    """
    return _load(tuple(folders) or (project.own_root() / "facts",))


def paths(folders: Sequence[Path]) -> tuple[Path, ...]:
    """The files that ``load`` reads.

    Raises:
        InputError: One is missing.
    """
    return tuple(_path(name, tuple(folders)) for name in (*_SHARED, *_OWN))


def check(folders: Sequence[Path], changed: Mapping[str, str]) -> None:
    """Whether the facts would still be facts with other texts for some of the files, by name.

    Raises:
        InputError: They would not.
    """
    _build(tuple(folders), {name: _parse(content, f"{name}.yaml") for name, content in changed.items()})


def forget() -> None:
    """Read the files again when they are next asked for: they were changed."""
    _load.cache_clear()


def text(path: Path) -> str:
    """The text of a facts file, its line ends as they are.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from error


@cache
def _load(folders: tuple[Path, ...]) -> Facts:
    return _build(folders, {})


def _build(folders: tuple[Path, ...], given: Mapping[str, dict[str, Any]]) -> Facts:
    documents = {name: given.get(name) or document(_path(name, folders)) for name in (*_SHARED, *_OWN)}
    content: dict[str, Any] = {name: documents[name] for name in _OWN}
    for name in _SHARED:
        content.update(documents[name])
    try:
        return Facts.model_validate(content)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        lines = [f"facts: {'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems]
        raise InputError("\n".join(lines), hint=f"the facts were read from {', '.join(map(str, folders))}") from error


def _path(name: str, folders: tuple[Path, ...]) -> Path:
    for folder in folders:
        path = folder / f"{name}.yaml"
        if path.is_file():
            return path
    raise InputError(f"no facts {name}.yaml in {', '.join(map(str, folders))}", hint="install envbuild again")


def document(path: Path) -> dict[str, Any]:
    """A facts file as its parser gives it.

    Raises:
        InputError: It is missing, or no YAML mapping.
    """
    return _parse(text(path), str(path))


def _parse(content: str, place: str) -> dict[str, Any]:
    try:
        found = yaml.load(content, Loader=_Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{place}: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise InputError(f"{place}: must be a mapping")
    return found
