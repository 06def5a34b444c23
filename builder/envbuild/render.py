"""Plan to text. Pure but for reading templates; the same Plan gives the same bytes, everywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from envbuild.errors import EngineError, InputError
from envbuild.lock import requirements_txt
from envbuild.model import LockGroup
from envbuild.plan import Plan

GROUPS: tuple[LockGroup, ...] = get_args(LockGroup)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """A build context, and the name of what it builds.

    Attributes:
        files: Content by path inside the context, sorted by path. Wheels are not in it: the lock names them.
        target_id: SHA-256 (hex) of the Plan and of every file: same id, same declared inputs.
    """

    files: Mapping[str, bytes]
    target_id: str

    @property
    def id8(self) -> str:
        """The first eight digits, as tags carry them."""
        return self.target_id[:8]


def render(plan: Plan, templates: Path) -> Rendering:
    """Render the Dockerfile and everything it mounts.

    Args:
        plan: What to build.
        templates: Folder with the templates.

    Raises:
        InputError: A template is missing or wrong.
    """
    files = {
        "Dockerfile": dockerfile(plan, templates),
        "constraints.txt": "".join(f"{line}\n" for line in plan.constraints).encode(),
    }
    for group in GROUPS:
        files[f"requirements/{group}.txt"] = requirements_txt(plan.wheels, group).encode()
    for name in ("compiler", *(["cuda-home"] if plan.toolkit == "wheels" else [])):
        files[f"files/{name}"] = _read(templates / "files" / name)
    files = dict(sorted(files.items()))
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    declared = plan.canonical() + b"\n" + json.dumps(hashes, sort_keys=True).encode()
    return Rendering(files=files, target_id=hashlib.sha256(declared).hexdigest())


def write(rendering: Rendering, folder: Path) -> tuple[Path, ...]:
    """Write the rendered files into ``folder``, which is made; returns the paths in order.

    Raises:
        EngineError: The folder cannot be written.
    """
    written = []
    try:
        for name, content in rendering.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            written.append(path)
    except OSError as error:
        raise EngineError(f"cannot write {error.filename}: {error.strerror}") from error
    return tuple(written)


def dockerfile(plan: Plan, templates: Path) -> bytes:
    """The Dockerfile alone: all of a row that can be rendered without its wheels.

    Raises:
        InputError: A template is missing or wrong.
    """
    import jinja2  # slow to import; most commands do not render
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # Sandboxed: `list` renders too, and a project that was merely cloned must not run code of its own.
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        # The result is a Dockerfile; every value was held to a pattern when the matrix was read.
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=False,
        lstrip_blocks=False,
    )
    try:
        return environment.get_template("Dockerfile.j2").render(plan=plan).encode()
    except jinja2.TemplateNotFound as error:
        raise InputError(f"{templates / str(error.name)}: this template is missing") from error
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"{error.filename or error.name}:{error.lineno}: {error.message}") from error
    except Exception as error:
        # A template is a program of the project's: whatever it raises, the template is what is wrong.
        raise InputError(f"{templates / 'Dockerfile.j2'}: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
