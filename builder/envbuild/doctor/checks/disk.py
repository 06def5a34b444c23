"""Room, and the right to write, where ops are compiled and where the row's image will lie."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.collection import Disk
from envbuild.doctor.found import pending
from envbuild.doctor.sizes import GIB, amount
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity

# Below that nothing is compiled any more: an op of DeepSpeed and what the compiler keeps meanwhile.
_LEAST = 32 << 20
# What the images of the rows cpu and h200-cu130 take (1.5 and 5.5 GB), twice: packed and unpacked.
_IMAGES = {"cpu": 3 * GIB, "cuda": 11 * GIB}
_USES = {"cache": "where torch compiles ops", "temporary": "where programs keep temporary files"}
_ELSEWHERE = {
    "cache": "set TORCH_EXTENSIONS_DIR to a folder of your own on a disk with room, one for each environment",
    "temporary": "set TMPDIR to a folder of your own on a disk with room",
}


def look(view: View) -> Iterator[Finding]:
    """Disks that are full or closed to this user, where something has to be written."""
    disks = {disk.use: disk for disk in view.collection.machine.disks}
    ops = pending(view)
    for use in ("cache", "temporary"):
        disk = disks.get(use)
        # Of an image that envbuild started the folders were its own.
        if disk is None or view.collection.image is not None or (use == "cache" and not ops):
            continue
        full = (disk.free is not None and disk.free < _LEAST) or disk.inodes == 0
        if not disk.writable:
            yield _finding(disk, "unwritable", "this user cannot write to it", ops)
        elif full:
            left = f"{amount(disk.free or 0)} is free" if disk.inodes != 0 else "no inode is free"
            yield _finding(disk, "full", left, ops)
    images = disks.get("images")
    if images is not None and view.row is not None and view.said is None and view.collection.image is None:
        yield from _image(view, images)


def _finding(disk: Disk, kind: str, what: str, ops: tuple[str, ...]) -> Finding:
    why = f"{', '.join(ops)} is compiled when training first needs it, and ends there." if ops else ""
    return Finding(
        rule=f"disk.{kind}",
        severity=Severity.ERROR if ops else Severity.WARNING,
        subject=disk.path,
        message=f"{disk.path}, {_USES[disk.use]}: {what}",
        why=why or "Data loaders, compilers and torch itself write there.",
        fix=f"make room, or {_ELSEWHERE[disk.use]}" if kind == "full" else _ELSEWHERE[disk.use],
        source="statvfs(3), access(2)",
    )


def _image(view: View, disk: Disk) -> Iterator[Finding]:
    """Whether the row's image would have room; in a container that is no question."""
    row = view.row
    need = _IMAGES[row.accelerator] if row is not None else 0
    if row is None or view.collection.machine.container is not None or disk.free is None or disk.free >= need:
        return
    yield Finding(
        rule="disk.image",
        severity=Severity.WARNING,
        subject=disk.path,
        message=f"{amount(disk.free)} is free where images lie ({disk.path}); pulling or building {row.name} takes "
        f"about {amount(need)}",
        why="A pull that meets a full disk ends half way, and with it every container of the host.",
        fix="make room (docker system df shows what takes it), or move the engine's data-root to a larger disk",
        source="measured: the images of the rows cpu and h200-cu130, packed and unpacked",
    )


CHECK = Check(
    name="disk",
    title="there is room, and the right to write, where ops are compiled, and for the row's image",
    look=look,
    explains=("host-compiler.broken",),
)
