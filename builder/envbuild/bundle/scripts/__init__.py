"""The shell scripts of a bundle: they run on the disconnected side, with a POSIX shell and the system's own tools.

``install.sh`` and ``verify.sh`` are all that runs before a bundle is verified; ``lib/`` is read only after that.
"""

from __future__ import annotations

from pathlib import Path

from envbuild.errors import EngineError

_FOLDER = Path(__file__).parent
# Who stands before a medium without a network has no other page.
README = "README.txt"


def files() -> dict[str, bytes]:
    """Every script by its path in the bundle.

    Raises:
        EngineError: The package is not installed as files.
    """
    found = {path.relative_to(_FOLDER).as_posix(): path for path in sorted(_FOLDER.rglob("*.sh"))}
    try:
        contents = {name: path.read_bytes() for name, path in found.items()}
    except OSError as error:
        raise EngineError(f"cannot read the bundle's scripts: {error}") from error
    if "install.sh" not in contents:
        raise EngineError(
            f"the bundle's scripts are not where they belong: {_FOLDER}",
            hint="Install envbuild as files (pip, pipx); it cannot run from a zip archive.",
        )
    return contents


def readme() -> bytes:
    """What tells people about them, and lies beside them.

    Raises:
        EngineError: The package is not installed as files.
    """
    try:
        return (_FOLDER / README).read_bytes()
    except OSError as error:
        raise EngineError(f"cannot read the bundle's {README}: {error}") from error
