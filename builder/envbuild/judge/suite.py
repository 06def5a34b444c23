"""The suite that judges images: its sources, and one hash for all of them.

Evidence counts only for the suite that produced it: change a probe or a threshold, and every image is asked again.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import envbuild
from envbuild.errors import EngineError

# Folders of the package, not imports of it: reading native code and databases is not needed to hash their readers.
_PACKAGE = Path(envbuild.__file__).parent
_FOLDERS = ("collector/elf", "elf", "judge", "probes", "rpmdb")


def probes_folder() -> Path:
    """The folder with the probes, to be mounted read-only into a container.

    Raises:
        EngineError: The package is not installed as files.
    """
    folder = _PACKAGE / "probes"
    if not (folder / "zero3.py").is_file():
        raise EngineError(
            f"the probes are not where they belong: {folder}",
            hint="Install envbuild as files (pip, pipx); it cannot run from a zip archive.",
        )
    return folder


@functools.cache
def suite_hash() -> str:
    """SHA-256 (hex) over the sources, with names, of probes and judges and of what reads native code and packages.

    Raises:
        EngineError: The package is not installed as files.
    """
    probes_folder()
    digest = hashlib.sha256()
    for name in _FOLDERS:
        folder = _PACKAGE / name
        for path in sorted(folder.rglob("*.py")):
            content = path.read_bytes()
            # Length first: no two sets of files may read as the same bytes.
            digest.update(f"{name}/{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()
