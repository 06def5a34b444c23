"""/dev/shm: NCCL, gloo and data loaders exchange data between processes through it."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.found import ranks
from envbuild.doctor.sizes import GIB, amount, size
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity

_LEAST = GIB


def look(view: View) -> Iterator[Finding]:
    """Too small, full, or not writable. Of an image that envbuild started it says nothing: that one's was ours."""
    shm = view.collection.machine.shm
    if view.collection.image is not None or shm.total is None:
        return
    several = ranks(view) > 1
    wanted = size(view.row.shm_size) if view.row is not None and view.said is None else _LEAST
    container = view.collection.machine.container
    fix = f"start the container with --shm-size={wanted // GIB or 1}g (or --ipc=host)"
    if container in (None, "apptainer"):  # which shows the host's own
        fix = f"make it larger: mount -o remount,size={wanted // GIB or 1}G /dev/shm, and in /etc/fstab"
    if container == "kubernetes":
        fix = "give the pod an emptyDir with medium: Memory at /dev/shm, and a sizeLimit"
    if shm.writable is False:
        yield Finding(
            rule="shm.unwritable", severity=Severity.ERROR if several else Severity.WARNING, subject="/dev/shm",
            message="this user cannot write to /dev/shm" if shm.total else "there is no /dev/shm",
            why="NCCL, gloo and data loaders with workers end when they make their first segment in it.",
            fix="let it be a tmpfs with mode 1777", source="NCCL user guide, NCCL_SHM_DISABLE",
        )  # fmt: skip
    elif shm.total < wanted:
        yield Finding(
            rule="shm.small",
            severity=Severity.WARNING if several or view.collection.gpu.devices else Severity.INFO,
            subject="/dev/shm",
            message=f"{amount(shm.total)} of shared memory for {ranks(view)} rank(s); it should be {amount(wanted)}",
            why=_WHY,
            fix=fix,
            source="NVIDIA/nccl#342; docker run --shm-size is 64 MB unless said",
        )
    elif shm.free is not None and shm.free < wanted // 4:
        yield Finding(
            rule="shm.full",
            severity=Severity.WARNING,
            subject="/dev/shm",
            message=f"only {amount(shm.free)} of {amount(shm.total)} is free",
            why=_WHY,
            fix="see what lies in it: a killed job leaves nccl-*, torch_* and sem.* files behind; remove those of jobs "
            "that are gone",
            source="NVIDIA/nccl#342",
        )


_WHY = (
    "Where it is full NCCL says 'No space left on device' (and means this, not a disk), and a data loader's worker "
    "dies with a bus error."
)

CHECK = Check(
    name="shm",
    title="/dev/shm is large enough, has room, and can be written",
    look=look,
)
