"""What is reviewed in a pull request: ``images/<env>/`` with Dockerfile, lock and record."""

from __future__ import annotations

import json
from pathlib import Path

from envbuild import evidence, store
from envbuild.errors import InputError
from envbuild.lock import write
from envbuild.pipeline.prepare import Target
from envbuild.pipeline.workbench import Workbench


def require_writable(bench: Workbench) -> None:
    """Refuse before the work is done, not after it.

    Raises:
        InputError: The project is the packaged one, or cannot be written.
    """
    if not bench.project.writable:
        raise InputError(
            f"--record writes into the project, and {bench.project.root} is read-only",
            hint="Make a project of your own: envbuild init",
        )


def record(bench: Workbench, target: Target, path: Path) -> tuple[Path, ...]:
    """Write the row's Dockerfile, lock and evidence into the project, with the signed statement where there is one.

    Returns the paths.

    Raises:
        InputError: The project is the packaged one, or cannot be written.
        EngineError: The folder cannot be written.
    """
    require_writable(bench)
    folder = bench.project.images / target.env.name
    seen = evidence.read(path)
    store.write_atomic(folder / "Dockerfile", target.rendering.files["Dockerfile"])
    write(folder / "lock.json", target.lock)
    text = json.dumps(seen.model_dump(mode="json", by_alias=True), indent=2, sort_keys=True) + "\n"
    written = [folder / "Dockerfile", folder / "lock.json", folder / "record.json"]
    signed, copy = evidence.envelope_of(path), evidence.envelope_of(written[-1])
    if signed.is_file():
        store.write_together([(copy, signed.read_bytes()), (written[-1], text)])
        written.append(copy)
    else:
        store.remove(copy)
        store.write_atomic(written[-1], text)
    return tuple(written)
