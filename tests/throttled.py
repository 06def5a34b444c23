"""A disk that is slow for one container alone: by the kernel's own throttle, of either version of cgroups."""

from __future__ import annotations

import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def disk_of(folder: Path) -> str:
    """The whole disk that a folder lies on, as the kernel numbers it (``254:0``)."""
    number = folder.stat().st_dev
    block = Path("/sys/dev/block", f"{os.major(number)}:{os.minor(number)}")
    assert block.exists(), f"{folder} lies on no disk that can be throttled"
    place = block.resolve()
    whole = place.parent if (place / "partition").exists() else place
    return (whole / "dev").read_text().strip()


def throttle(container: str, disk: str, rate: int) -> None:
    """Let a running container read and write at most so many bytes a second each, past the page cache."""
    group, second = _group(container)
    if second:
        (group / "io.max").write_text(f"{disk} rbps={rate} wbps={rate}")
        return
    for way in ("read", "write"):
        (group / f"blkio.throttle.{way}_bps_device").write_text(f"{disk} {rate}")


def _group(container: str) -> tuple[Path, bool]:
    """The container's control group for disks, and whether it is of cgroups' second version."""
    for place in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            lines = place.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if container in path and controllers in ("blkio", ""):
                group = _GROUPS / controllers / path.lstrip("/")
                if group.is_dir():
                    return group, not controllers
    raise AssertionError(f"the container {container[:12]} has no control group for disks here")
