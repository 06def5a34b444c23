"""The Dockerfile, and everything that it mounts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from envbuild.errors import EngineError
from envbuild.lock import requirements_txt
from envbuild.model import LockGroup
from envbuild.plan import Plan
from envbuild.render.templates import file, text

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
        files[f"files/{name}"] = file(templates / "files" / name)
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
    return text(templates, "Dockerfile.j2", {"plan": plan}).encode()
