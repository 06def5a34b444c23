"""A container for people: the same limits as it was smoked with, plus their folder, their uid and the GPUs."""

from __future__ import annotations

import os
from pathlib import Path

from envbuild.engines import ContainerSpec, Mount
from envbuild.errors import InputError
from envbuild.model import Environment
from envbuild.pipeline.sizes import parse_size
from envbuild.plan import HOME, PREFIX

_COVERS = frozenset(
    map(
        Path,
        [
            "/",
            "/bin",
            "/boot",
            "/dev",
            "/etc",
            "/lib",
            "/lib64",
            "/proc",
            "/run",
            "/sbin",
            "/sys",
            "/usr",
            "/usr/bin",
            "/usr/lib",
            "/var",
        ],
    )
)


def run_spec(env: Environment, ref: str, command: tuple[str, ...], *, folder: Path, interactive: bool) -> ContainerSpec:
    """What ``envbuild run`` starts.

    The current folder is mounted at its own path, so that paths in configs and messages mean the same
    inside and outside. HOME stays the image's: the host's may hold another torch. stdin is passed on.

    Raises:
        InputError: Mounting that folder would cover the image's own files.
    """
    if folder in _COVERS or any(folder == Path(each) or folder in Path(each).parents for each in (PREFIX, HOME)):
        raise InputError(
            f"{folder} cannot be mounted: it would cover the image's own files", hint="Change to your project's folder."
        )
    return ContainerSpec(
        image=ref,
        argv=command,
        mounts=(Mount(source=folder, target=str(folder), read_only=False),),
        user=f"{os.getuid()}:{os.getgid()}",
        shm_bytes=parse_size(env.shm_size),
        memlock=-1 if env.memlock == "unlimited" else parse_size(env.memlock),
        gpus=("all",) if env.accelerator == "cuda" else (),
        workdir=str(folder),
        interactive=interactive,
        stdin=True,
    )
