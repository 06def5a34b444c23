"""Processes on several nodes, each in a container of its own: one for each GPU, started by ``srun``. Pure.

Tried: docker and podman, on two nodes of one machine. Never run: pyxis, enroot, apptainer; their lines are written from
the manuals of pyxis 0.20 (``srun --help``), enroot 3.5 (``doc/cmd/start.md``) and apptainer 1.3 (``apptainer exec``).
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from envbuild import VALUES_VARIABLE

PLACE = "/run/envbuild-inside"
# What a rank has to be told, and what it says of itself.
_TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURMD_NODENAME")
_OWN_SOCKET = "/run/envbuild/docker.sock"
UNTRIED = ("pyxis", "enroot", "apptainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What runs on every node.

    Attributes:
        container: ``docker``, ``podman``, ``pyxis``, ``enroot`` or ``apptainer``.
        argv: The command in the container; the folder ``inside`` lies at ``PLACE`` there.
        per_node: Processes on a node: one for each of its GPUs.
        interface: The network interface that nodes reach one another by; the libraries choose without it.
        host: Docker's endpoint on the nodes; without it they look for it as envbuild does.
        said: The folder for what the ranks say.
        values: The file with values of variables that the command needs, where it needs any.
        ports: Where the ports begin that ranks meet at: two launches of one job do not want the same.
    """

    container: str
    image: str
    argv: tuple[str, ...]
    inside: Path
    nodes: int
    per_node: int
    shm_bytes: int
    gpus: bool = False
    interface: str | None = None
    host: str | None = None
    said: str = "ranks"
    ports: int = 20000
    values: Path | None = None

    @property
    def world(self) -> int:
        """All processes."""
        return self.nodes * self.per_node


def again(launch: Launch, argv: tuple[str, ...], *, said: str, ports: int, values: Path | None = None) -> Launch:
    """The same ranks with another program, later in the same job."""
    return dataclasses.replace(launch, argv=argv, said=said, ports=ports, values=values)


def gpus_of(gres: str | None) -> int:
    """How many GPUs of a node ``--gres`` asks for: ``gpu:h100:8``, ``gpu:8``, ``gpu``."""
    found = re.match(r"gpu(?::[A-Za-z][^:,(]*)?(?::(\d+))?(?=[,(]|$)", gres or "")
    return int(found[1] or 1) if found else 0


def srun(launch: Launch, script: Path) -> tuple[str, ...]:
    """The line that starts every rank; what they say goes into a folder of the current one, by their number."""
    own: tuple[str, ...] = ()
    if launch.container == "pyxis":
        mounts = f"{launch.inside}:{PLACE}:ro,{script}:{script}:ro"
        # The script runs in the container.
        mounts += f",{launch.values}:{launch.values}:ro" if launch.values else ""
        own = (f"--container-image={launch.image}", f"--container-mounts={mounts}", "--no-container-mount-home")
    return (
        "srun", f"--nodes={launch.nodes}", f"--ntasks-per-node={launch.per_node}", "--kill-on-bad-exit=1",
        f"--output={launch.said}/%t.json", f"--error={launch.said}/%t.txt", *own, "sh", str(script),
    )  # fmt: skip


def rank(launch: Launch) -> str:
    """What ``srun`` starts for each rank: who it is, from the allocation, and its container.

    The first rank is on the node that ``srun`` was started on, so that its address is where the others meet; the port
    is the job's own.
    """
    lines = [
        "#!/bin/sh",
        "# One rank of a run of envbuild's, on the node that Slurm chose for it.",
        "set -eu",
        'export RANK="$SLURM_PROCID" WORLD_SIZE="$SLURM_NTASKS" LOCAL_RANK="$SLURM_LOCALID"',
        f'export MASTER_ADDR="$SLURM_LAUNCH_NODE_IPADDR" MASTER_PORT="$(({launch.ports} + SLURM_JOB_ID % 10000))"',
    ]
    if launch.container == "docker":
        # As for every command of envbuild: what is said, Docker's own socket, the one that `make demo` makes.
        lines.append(
            f"export DOCKER_HOST={shlex.quote(launch.host)}" if launch.host
            else f'[ -n "${{DOCKER_HOST-}}" ] || [ -S /var/run/docker.sock ] || [ ! -S {_OWN_SOCKET} ] || '
            f"export DOCKER_HOST=unix://{_OWN_SOCKET}"
        )  # fmt: skip
    names: tuple[str, ...] = _TOLD
    if launch.interface:
        lines += [f"export GLOO_SOCKET_IFNAME={launch.interface} NCCL_SOCKET_IFNAME={launch.interface}"]
        names = (*_TOLD, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    if launch.values:
        # On no command line, which every user of the node can read: the engine's client hands it on by its name.
        lines += [f'{VALUES_VARIABLE}="$(cat {shlex.quote(str(launch.values))})"', f"export {VALUES_VARIABLE}"]
        if launch.container == "apptainer":
            lines.append(f'export APPTAINERENV_{VALUES_VARIABLE}="${VALUES_VARIABLE}"')
        else:
            names = (*names, VALUES_VARIABLE)
    return "\n".join((*lines, f"exec {_container(launch, names)}")) + "\n"


def _container(launch: Launch, names: tuple[str, ...]) -> str:
    """The container's command line, as a shell reads it."""
    mount = f"{launch.inside}:{PLACE}"
    if launch.container == "pyxis":  # srun has opened it
        return shlex.join(launch.argv)
    if launch.container == "enroot":
        told = [word for name in names for word in ("--env", name)]
        return shlex.join(("enroot", "start", "--mount", mount, *told, launch.image, *launch.argv))
    if launch.container == "apptainer":
        told = [f'--env {name}="${name}"' for name in names]
        nv = ("--nv",) if launch.gpus else ()
        head = shlex.join(("apptainer", "exec", "--containall", *nv, "--bind", f"{mount}:ro"))
        return " ".join((head, *told, shlex.join((f"docker://{launch.image}", *launch.argv))))
    # What talks over InfiniBand locks memory; an engine may not raise that limit everywhere, so not on the CPU.
    gpus: tuple[str, ...] = ()
    if launch.gpus:
        how = ("--gpus", "all") if launch.container == "docker" else ("--device", "nvidia.com/gpu=all")
        gpus = ("--ulimit", "memlock=-1", *how)
    told = [word for name in names for word in ("--env", name)]
    options = (
        launch.container, "run", "--rm", "--network", "host", "--shm-size", str(launch.shm_bytes), "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp:rw,exec", "--env", "HOME=/tmp", *told,
        "--volume", f"{mount}:ro", *gpus,
    )  # fmt: skip
    return shlex.join((*options, "--entrypoint", launch.argv[0], launch.image, *launch.argv[1:]))
