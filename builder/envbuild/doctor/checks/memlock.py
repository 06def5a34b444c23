"""RLIMIT_MEMLOCK. CUDA's pinned memory is not counted against it; what InfiniBand registers and DeepSpeed's aio locks
is."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.sizes import amount
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity


def look(view: View) -> Iterator[Finding]:
    """A limit, where something is there that runs into it."""
    machine = view.collection.machine
    if view.collection.image is not None or machine.memlock is None or machine.memlock[0] is None:
        return
    if machine.ipc_lock:  # the limit does not hold for it
        return
    users = [f"InfiniBand ({', '.join(machine.infiniband[:4])})"] if machine.infiniband else []
    users += ["DeepSpeed's aio buffers for NVMe"] if view.collection.nvme else []
    if not users:
        return
    soft, hard = machine.memlock[0], machine.memlock[1]
    if machine.container == "kubernetes":
        fix = "give the container the capability IPC_LOCK, or its runtime on the nodes LimitMEMLOCK=infinity"
    elif machine.container in ("docker", "podman"):
        fix = "start the container with --ulimit memlock=-1"
    else:
        fix = "set memlock to unlimited for this user in /etc/security/limits.d and log in again; services (sshd, "
        fix += "slurmd, dockerd) take LimitMEMLOCK=infinity, and Slurm hands limits on as PropagateResourceLimits says"
    yield Finding(
        rule="memlock.limited",
        severity=Severity.WARNING,
        subject="RLIMIT_MEMLOCK",
        message=f"{amount(soft)} may be locked in memory, and {' and '.join(users)} would lock more",
        why="Registering memory then ends with 'Cannot allocate memory' though RAM is free; pinned memory of CUDA is "
        "not concerned.",
        fix=fix,
        command="ulimit -l unlimited" if hard is None else "",
        source="NVIDIA/nccl-tests#206; DeepSpeed csrc/pin_memory/page_alloc.cpp (mlock)",
    )


CHECK = Check(
    name="memlock",
    title="memory may be locked without limit where InfiniBand or NVMe offload does it",
    look=look,
)
