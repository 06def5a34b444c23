"""Where the matrix, the templates and the records of a project lie."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from envbuild import store
from envbuild.errors import EngineError, InputError

MATRIX = "matrix.yaml"
SITE_FILE = "envbuild.toml"
LOCK_FILE = "lock.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The folders that one command works with.

    Attributes:
        root: The folder that holds the matrix.
        matrix: ``matrix.yaml``.
        templates: Folder of templates: the project's own, else the ones that come with envbuild.
        facts: Folders of facts, file by file the first counts: the project's own, the user's refreshed ones, and those
            that come with envbuild.
        signatures: Folders of signatures of failures: the project's own, and those that come with envbuild. All of
            them count; of two entries of one kind the project's own.
        images: Folder of what is reviewed, one folder for each row; need not exist.
        writable: Whether records and locks may be written into the project.
        packaged: Whether this is the matrix that comes with envbuild, because no other one was found.
    """

    root: Path
    matrix: Path
    templates: Path
    facts: tuple[Path, ...]
    signatures: tuple[Path, ...]
    images: Path
    writable: bool
    packaged: bool


def find(explicit: Path | None, cwd: Path) -> Project:
    """The project to work with: ``explicit`` (``--project``), else the nearest parent of ``cwd`` with a matrix, else
    the packaged one, which is read-only.

    Raises:
        InputError: ``explicit`` holds no matrix.
    """
    if explicit is not None:
        root = (cwd / explicit.expanduser()).resolve()
        # People name the file as often as its folder.
        if root.name == MATRIX and root.is_file():
            root = root.parent
        if not (root / MATRIX).is_file():
            what = f"has no {MATRIX}" if root.is_dir() else "is not a folder"
            raise InputError(
                f"--project: {root} {what}",
                hint=f"name a folder that holds a {MATRIX}, or make one with: envbuild init {explicit}",
            )
        return _project(root, packaged=False)
    start = cwd.resolve()
    for folder in (start, *start.parents):
        if (folder / MATRIX).is_file():
            return _project(folder, packaged=False)
    return _project(own_root(), packaged=True)


def lock_path(project: Project, env: str) -> Path:
    """Where a new lock of row ``env`` is written: into the project, or the user's store when that is read-only."""
    return project.images / env / LOCK_FILE if project.writable else _stored_lock(env)


def existing_lock(project: Project, env: str) -> Path | None:
    """The lock of row ``env`` to read, or None: the one in the project, or, for a read-only project, the user's own
    before the one that it came with, so that locking again there has an effect."""
    paths = [project.images / env / LOCK_FILE, _stored_lock(env)]
    for path in paths if project.writable else reversed(paths):
        if path.is_file():
            return path
    return None


def init(folder: Path) -> tuple[Path, ...]:
    """Write a starter project; returns the files. All of them, or none.

    Raises:
        InputError: One of the files exists already, or the folder cannot be used.
        EngineError: The disk is full.
    """
    files = {folder / MATRIX: _MATRIX_TEXT, folder / SITE_FILE: _SITE_TEXT, folder / ".gitignore": _GITIGNORE_TEXT}
    taken = [path.name for path in files if os.path.lexists(path)]
    if taken:
        raise InputError(
            f"{folder} already holds {' and '.join(taken)}", hint="choose a folder without them; nothing was changed"
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    made: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            # "x": a file that appeared since the check above is an error, never overwritten.
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
    except BaseException as error:
        for path in made:
            with contextlib.suppress(OSError):
                path.unlink()
        if isinstance(error, FileExistsError):
            raise InputError(f"{error.filename} already exists", hint="nothing was changed") from error
        if isinstance(error, OSError):
            raise EngineError(
                f"cannot write into {folder}: {error.strerror}", hint="choose a folder you can write to"
            ) from error
        raise
    return tuple(made)


def _project(root: Path, *, packaged: bool) -> Project:
    own = root / "templates"
    templates = own if own.is_dir() else own_root() / "templates"
    writable = not packaged and os.access(root, os.W_OK)
    return Project(
        root=root,
        matrix=root / MATRIX,
        templates=templates,
        # Of the packaged project the user's refreshed facts are the newer ones.
        facts=(*(() if packaged else (root / "facts",)), stored_facts(), own_root() / "facts"),
        signatures=(*(() if packaged else (root / "signatures",)), own_root() / "signatures"),
        images=root / "images",
        writable=writable,
        packaged=packaged,
    )


def stored_facts() -> Path:
    """Where facts that a user refreshed without a project of their own lie."""
    return store.home() / "facts"


def own_root() -> Path:
    """Envbuild's own matrix, templates, facts and records: in the wheel, or the repository of an editable install."""
    package = Path(__file__).resolve().parent
    for root in (package / "_project", package.parent.parent):
        if (root / MATRIX).is_file() and (root / "templates").is_dir():
            return root
    raise EngineError("this installation of envbuild has no matrix and no templates", hint="install it again")


def _stored_lock(env: str) -> Path:
    return store.home() / "locks" / env / LOCK_FILE


# The row has no image digest: a starter that is a year old should not pin a base that old. `extends` nothing.
_MATRIX_TEXT = """\
# One row is one environment: what it stands on, what it holds, and who says that this goes together.
# `envbuild check` compares it with known facts, `envbuild build ENV` builds it, proves it and then names it.
schema: envbuild.matrix/1

environments:
  # The name of the row, and of its image: envbuild/cpu.
  cpu:
    summary: ZeRO-3 offload on the CPU, for tests and for trying things out
    accelerator: cpu            # or cuda, which also needs: cuda, nccl, gpus
    family: debian
    base:
      image: docker.io/library/debian:bookworm-slim
      # digest: sha256:...      # pins the base; `docker pull` prints it
      bootstrap:                # how to make the base where no registry answers
        suite: bookworm
    python: "3.11"              # major.minor, as the base has it
    gcc:
      version: "12.2"
      package: gcc-12
    torch:
      version: 2.13.0
      build: cpu
    deepspeed:
      version: 0.19.8
      # Compiled ahead of time, so that no user's first step compiles.
      ops: [cpu_adam, deepspeed_shm_comm]
    cpu_baseline: x86-64-v3     # the oldest CPU that the compiled code has to run on
    requires: cpu               # the level of evidence without which nothing is tagged
    # pins: ["numpy<3"]         # limits on wheels
    # extras:                   # packages of your own
    #   - requirement: transformers==4.57.1
    # packages: [git]           # operating system packages
    sources:                    # who says so, for each fact: verified, partial or unverified
      base: {mark: partial, source: measured by running a root of the same release, date: "2026-11-01"}
      python: {mark: verified, source: wheel METADATA of torch 2.13.0, date: "2026-11-01"}
      gcc: {mark: verified, source: Debian 12 package gcc-12 12.2.0, date: "2026-11-01"}
      torch: {mark: verified, source: measured by running torch 2.13.0+cpu, date: "2026-11-01"}
      deepspeed: {mark: verified, source: measured by running DeepSpeed 0.19.8, date: "2026-11-01"}
"""

_SITE_TEXT = """\
# What is particular to your site; no byte of it gets into an image. Every key is optional, a variable
# ENVBUILD_<SECTION>_<KEY> overrides one, and paths are relative to this file.

# [apt]
# mirror = "https://mirror.example.com/debian"
# security_mirror = "https://mirror.example.com/debian-security"
# proxy = "http://proxy.example.com:3128"

# Where packages of Enterprise Linux come from (families rhel8, rocky8, rhel9, centos7). Without repositories: where the
# base image's own configuration leads (CentOS 7: the vault). What dnf uses on this host is not looked at.
# [rpm]
# gpgkey = ["RPM-GPG-KEY-site"] # keys of these repositories; without it, the distribution's keys in the base image
# repo_file = "site.repo"       # for repositories that need more than an address
# client_cert = "entitlement.pem"  # what `export` shows to repositories that want to know who asks
# client_key = "entitlement-key.pem"
# proxy = "http://proxy.example.com:3128"
# [rpm.repositories]
# baseos = "https://mirror.example.com/rocky/8/BaseOS/x86_64/os/"
# appstream = "https://mirror.example.com/rocky/8/AppStream/x86_64/os/"
# For one family, in place of these:
# [rpm.families.centos7]
# base = "https://mirror.example.com/centos/7.9.2009/os/x86_64/"
# extras = "https://mirror.example.com/centos/7.9.2009/extras/x86_64/"
# sclo = "https://mirror.example.com/centos/7.9.2009/sclo/x86_64/rh/"

# Without this section, what pip uses on this host is used: index, folders of wheels, certificate, proxy.
# [pip]
# index = "https://pypi.example.com/simple"
# extra_index = ["https://mirror.example.com/pytorch/whl/cpu"]
# find_links = ["wheels"]
# trusted_hosts = []
# cert = "ca.pem"
# proxy = "http://proxy.example.com:3128"
# timeout = 60

# [base]
# bootstrap = "auto"            # make the base from a package mirror: auto, always, never
# [base.mirrors]
# "docker.io" = "registry.example.com/dockerhub"

# [network]
# ca = "ca.pem"                 # every certificate to trust, the public ones too
# http_proxy = "http://proxy.example.com:3128"
# https_proxy = "http://proxy.example.com:3128"
# no_proxy = "example.com,10.0.0.0/8"
# build = "auto"                # network of build containers: auto, host, default

# [engine]
# kind = "auto"                 # docker, podman, or auto: what answers (`envbuild engine` says which, and why)
# host = "unix:///var/run/docker.sock"
# client = "/usr/bin/docker"    # a client that can build with BuildKit
# builder = "farm"              # one of buildx's builders

# [registry]
# name = "registry.example.com/team"

# Where `build` and `smoke` run: on this host, or as jobs of a cluster (docs/cluster.md).
# [executor]
# kind = "local"                # local or slurm; --executor says it for one command
# folder = "/shared/envbuild"   # a folder that this host and the nodes share
# home = "/var/lib/envbuild"    # the store on a node; without it FOLDER/nodes/NODE
# envbuild = "/shared/venv/bin/envbuild"  # the program on the nodes; without it this one, by its path
# setup = ["module load podman"]  # lines of shell that a node runs before it
# at_once = 4                   # tasks of a run at a time

# [slurm]
# partition = "gpu"
# account = "team"
# qos = "normal"
# time = "2:00:00"
# constraint = "ib"
# options = ["--mem=64G", "--exclusive"]  # more options of sbatch
# container = "docker"          # docker, podman, pyxis, enroot or apptainer: for ranks on several nodes
# interface = "ib0"             # the network interface that nodes reach one another by
# What a GPU of the matrix is here, and what one row needs; both take partition, gres, constraint, time and options.
# [slurm.gpus]
# h100 = {gres = "gpu:h100:8", partition = "h100"}
# [slurm.rows]
# cpu = {partition = "cpu", time = "30"}

# What the manifests of --executor k8s --dry-run say.
# [kubernetes]
# namespace = "training"
# pull_secret = "registry"
# [kubernetes.gpus]
# h100 = {count = 8, selector = {"nvidia.com/gpu.product" = "NVIDIA-H100-80GB-HBM3"}}

# [paths]
# cache = "/var/cache/envbuild"

# Whose evidence counts: public keys, as files or as PEM texts (`envbuild key show` prints yours).
# [trust]
# keys = ["keys/build-farm.pub"]

# With what `build` and `smoke` sign evidence: a private key of mode 0600, outside the project (`envbuild key new`).
# [signing]
# key = "~/.config/envbuild/keys/signing.pem"
"""

_GITIGNORE_TEXT = """\
# envbuild.toml may hold credentials of your site; matrix.yaml and images/ are what is reviewed.
/envbuild.toml
/wheels/
# A private key. Better keep it elsewhere.
signing.pem
"""


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, sorted; what lies behind links to folders too, each folder once."""
    found: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for name, folders, files in os.walk(folder, followlinks=True):
        there = Path(name).stat()
        if (there.st_dev, there.st_ino) in seen:
            folders.clear()
            continue
        seen.add((there.st_dev, there.st_ino))
        folders.sort()
        found += (path for path in map(Path(name).joinpath, files) if path.is_file())
    return sorted(found)
