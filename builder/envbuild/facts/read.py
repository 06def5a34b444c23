"""Reading the facts, once per process. They are files beside the matrix: newer ones need no newer envbuild."""

from __future__ import annotations

from collections.abc import Sequence
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
_SHARED = ("toolkits", "gpus", "distributions", "packages", "torch")
_OWN = ("deepspeed",)


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


@cache
def _load(folders: tuple[Path, ...]) -> Facts:
    documents = {name: _document(_path(name, folders)) for name in (*_SHARED, *_OWN)}
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


def _document(path: Path) -> dict[str, Any]:
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: must be a mapping")
    return document
