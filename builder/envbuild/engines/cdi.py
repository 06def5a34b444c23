"""Descriptions of devices for containers (Container Device Interface): which there are on this host."""

from __future__ import annotations

import contextlib
from pathlib import Path

# https://github.com/cncf-tags/container-device-interface: /etc/cdi for what is written once, /var/run/cdi for what a
# daemon writes.
FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_VENDOR = "nvidia.com/"
_MOST_BYTES = 1 << 20


def specifications(folders: tuple[Path, ...] = FOLDERS) -> tuple[Path, ...]:
    """The files that describe NVIDIA's GPUs; a file that cannot be read is none."""
    found: list[Path] = []
    for folder in folders:
        with contextlib.suppress(OSError):
            files = (path for path in sorted(folder.iterdir()) if path.suffix in (".json", ".yaml", ".yml"))
            found += [path for path in files if _speaks_of_gpus(path)]
    return tuple(found)


def _speaks_of_gpus(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return _VENDOR.encode() in file.read(_MOST_BYTES)
    return False
