"""The folders that offload would swap to: DeepSpeed opens its swap files there with O_DIRECT, through libaio."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.doctor.checks.launcher import nodes
from envbuild.doctor.collection import NvmePath
from envbuild.doctor.sizes import GIB, amount, number
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity

_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
_LAYERED = frozenset({"overlay", "overlayfs", "aufs", "fuse.fuse-overlayfs"})
_NETWORK = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "lustre", "beegfs", "gpfs", "wekafs", "glusterfs",
        "afs", "drvfs", "fuse.sshfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse",
        "fuse.juicefs", "fuse.rclone",
    }
)  # fmt: skip
# Adam's part of a parameter on NVMe: weight, gradient and two moments, each in fp32 (DeepSpeed swaps four of them).
_STATES, _BYTES = 4, 4
# What the kernel says of the disk of a virtual machine is not the disk's own word. LVM and RAID pass theirs on.
_VIRTUAL = re.compile(r"(^|/)(vd|xvd)[a-z0-9]*$")
_FULL = re.compile("No space left|quota", re.I)
_SOURCE = "DeepSpeed csrc/aio/common/deepspeed_aio_common.cpp, open_file (O_DIRECT); runtime/swap_tensor"


def look(view: View) -> Iterator[Finding]:
    """What is wrong with each of them; with a bandwidth, what a step would take."""
    for folder in view.collection.nvme:
        broken = _unusable(view, folder)
        if broken is not None:
            yield broken
            continue
        yield from _unfit(view, folder)
        yield from _measured(view, folder)


def _unusable(view: View, folder: NvmePath) -> Finding | None:
    fix, what, rule, said = "", "", "", folder.error
    if not folder.exists:
        rule, what, said = "missing", folder.error or "it does not exist", None
        fix = "make the folder, or name the right one in nvme_path"
        if view.collection.machine.container:
            fix += "; in a container it has to be mounted (-v)"
    elif folder.direct is None and _FULL.search(folder.error or ""):
        rule, what, fix = "full", "nothing can be written", "free room there (or in your quota), or name another disk"
    elif "ro" in folder.options:
        rule, what, fix = "unwritable", "it is mounted read-only", "mount it for writing"
    elif not folder.writable:
        rule, what = "unwritable", f"user id {view.collection.machine.uid} cannot write to it"
        fix = "give the user who trains a folder of his own there"
    elif folder.direct is False:
        rule, what = "direct", f"{folder.kind or 'its file system'} does not open files with O_DIRECT"
        fix = "use a folder on a local disk (xfs or ext4)"
    elif folder.direct is None and folder.error:
        rule, what, fix = "unwritable", "writing to it fails", "look at the kernel's log (dmesg), or name another disk"
    if not rule:
        return None
    return Finding(
        rule=f"nvme.{rule}",
        severity=Severity.ERROR,
        subject=folder.path,
        message=what + (f": {said}" if said else ""),
        why="ZeRO-3 opens its swap files there when the optimizer is made: training ends before its first step.",
        fix=fix,
        source=_SOURCE,
    )


def _unfit(view: View, folder: NvmePath) -> Iterator[Finding]:
    kind = folder.kind or ""
    # Those of a container's layers name all of its folders.
    options = ",".join(option for option in folder.options if "=" not in option)
    told: list[tuple[str, str, str]] = []
    if kind in _MEMORY:
        told.append(("memory", f"it is {kind}: what is swapped there stays in host memory", "name a folder on a disk"))
    elif kind in _LAYERED:
        told.append(
            (
                "layer",
                f"it is {kind}: the container's own writable layer, which goes with the container",
                "mount a folder of the host's disk there (-v /mnt/nvme:/mnt/nvme)",
            )
        )
    elif kind in _NETWORK:
        told.append(
            (
                "network",
                f"it is {kind}: each step would read and write the whole optimizer over the network",
                "name a folder on a local NVMe disk",
            )
        )
    elif kind.startswith("fuse"):
        told.append(
            (
                "fuse",
                f"it is {kind}, a file system that a process serves: each read and write goes through that",
                "name a folder on a local NVMe disk with xfs or ext4",
            )
        )
    elif folder.rotational and not _VIRTUAL.search(folder.device or "") and not _guest(view):
        told.append(("rotational", f"{folder.device or 'its disk'} is a rotating one", "name a folder on an NVMe disk"))
    if {"sync", "dirsync"} & set(folder.options):
        told.append(("options", "it is mounted with sync: each write waits for the disk", "mount it without sync"))
    need = view.params * _STATES * _BYTES // nodes(view) if view.params else GIB
    if folder.free is not None and folder.free < need:
        whose = f"the optimizer's states of that model are {amount(need)}" if view.params else "next to nothing"
        told.append(("space", f"{amount(folder.free)} is free: {whose}", "free it, or name another disk"))
    for rule, message, fix in told:
        stops = rule == "space" and view.params is not None
        yield Finding(
            rule=f"nvme.{rule}",
            severity=Severity.ERROR if stops else Severity.WARNING,
            subject=folder.path,
            message=message,
            fix=fix,
            source=_SOURCE,
            why="Every step reads all optimizer states from there and writes them back: the disk sets the pace.",
            evidence=(f"{folder.device or '?'} {kind} {options}".strip(),),
        )


def _guest(view: View) -> bool:
    """Whether this is a virtual machine, as the CPU says (x86): its disks are what its host makes of them."""
    return "hypervisor" in view.collection.machine.cpu.flags


def _measured(view: View, folder: NvmePath) -> Iterator[Finding]:
    read, write, bench = folder.read_bandwidth, folder.write_bandwidth, view.collection.bench
    if not read or not write:
        return
    message = f"reads {amount(read)}/s and writes {amount(write)}/s past the page cache"
    if bench is not None and bench.memory_bandwidth:
        message += f"; host memory copies {amount(bench.memory_bandwidth)}/s"
    params = (view.params or 10**9) // nodes(view)
    one_way = params * _STATES * _BYTES
    message += f"; {number(params)} parameters take at least {one_way / read + one_way / write:.0f} s a step there"
    yield Finding(
        rule="nvme.bandwidth",
        severity=Severity.INFO,
        subject=folder.path,
        message=message,
        source=_SOURCE,
        why="DeepSpeed reads each tile of the optimizer's states, steps it, and writes it back.",
        fix="more disks, or CPU offload where host memory has room; tune block_size and queue_depth of the aio section",
    )


CHECK = Check(
    name="nvme",
    title="the folder to swap to is there, writable, on a real disk with O_DIRECT, and has room",
    look=look,
)
