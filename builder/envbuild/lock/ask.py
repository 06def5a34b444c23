"""What the resolver is asked for a row."""

from __future__ import annotations

import hashlib
import json
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild import net
from envbuild.events import Note, Sink
from envbuild.model import Environment, LockedBase
from envbuild.site.pip import PYPI, PYTORCH, PipSettings

TORCH_INDEX = PYTORCH
TOOLS = ("pip", "setuptools", "wheel")
# What compiles DeepSpeed's CUDA ops (run with cuda-toolkit 13.0 and DeepSpeed 0.19.8). `crt` and `nvvm` are parts of
# nvcc that its wheel asks for without a version: unless named here they come from the newest toolkit, and the newest
# nvvm writes PTX that an older ptxas refuses.
TOOLKIT_PARTS = ("nvcc", "crt", "nvvm", "cudart", "cccl", "cublas", "curand", "cusolver", "cusparse")
_PROBE_SECONDS = 5.0


def torch_requirements(env: Environment) -> tuple[str, ...]:
    """The exact torch, torchvision and torchaudio of the row.

    PyTorch's own index marks builds with a local version (``2.13.0+cpu``), PyPI does not. ``===`` because ``==2.13.0``
    also accepts ``2.13.0+cpu``, and prefers it where a wheel folder has one.
    """
    local = f"=={{}}+{env.torch.build}" if env.torch.index == "pytorch" else "==={}"
    pairs = (("torch", env.torch.version), ("torchvision", env.torch.torchvision), ("torchaudio", env.torch.torchaudio))
    return tuple(f"{name}{local.format(version)}" for name, version in pairs if version is not None)


def runtime_requirements(env: Environment) -> tuple[str, ...]:
    """What the image is to hold in the end."""
    # DeepSpeed's setup.py adds nvidia-ml-py to its needs where it finds CUDA, which its published metadata cannot say.
    cuda = ("nvidia-ml-py",) if env.accelerator == "cuda" else ()
    return (
        *torch_requirements(env),
        f"deepspeed=={env.deepspeed.version}",
        *(extra.requirement for extra in env.extras),
        *env.pins,
        *TOOLS,
        "ninja",
        *cuda,
    )


def requirements(env: Environment) -> tuple[str, ...]:
    """Everything the resolver is asked for: what the image holds, and the toolkit that only its ops stage needs."""
    toolkit: tuple[str, ...] = ()
    if env.cuda is not None and env.cuda.toolkit == "wheels":
        toolkit = (f"cuda-toolkit[{','.join(TOOLKIT_PARTS)}]=={env.cuda.version}.*",)
    return (*runtime_requirements(env), *toolkit)


def built_names(env: Environment) -> frozenset[str]:
    """Canonical names of what is compiled from source: DeepSpeed and the extras that say so."""
    extras = (canonicalize_name(Requirement(extra.requirement).name) for extra in env.extras if extra.build)
    return frozenset({"deepspeed", *extras})


def torch_index(env: Environment) -> str | None:
    """PyTorch's own index for the row's build; None for a row that takes torch from PyPI."""
    return f"{TORCH_INDEX}/{env.torch.build}" if env.torch.index == "pytorch" else None


def inputs_digest(env: Environment, platform: str) -> str:
    """``sha256:...`` of what a lock depends on. Only public names are in it, nothing of the site: a lock made behind a
    mirror is as good elsewhere, and stale for the same reasons."""
    bootstrap = env.base.bootstrap
    document = {
        "requirements": sorted(requirements(env)),
        "build": sorted(built_names(env)),
        "python": env.python,
        "platform": platform,
        "indexes": [index for index in (PYPI, torch_index(env)) if index],
        # Its C library decides which wheels run on it, and its digest is in the lock.
        "base": {**images(env).model_dump(), "suite": bootstrap.suite if bootstrap else None},
    }
    return f"sha256:{hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()}"


def images(env: Environment) -> LockedBase:
    """The images that a row stands on, with the digests that it names itself."""
    toolkit = env.cuda is not None and env.cuda.toolkit == "image"
    return LockedBase(
        image=env.base.image,
        digest=env.base.digest,
        toolkit_image=env.base.toolkit_image if toolkit else None,
        toolkit_digest=env.base.toolkit_digest if toolkit else None,
    )


def with_torch_index(env: Environment, pip: PipSettings, sink: Sink) -> PipSettings:
    """``pip`` with PyTorch's own index, where the row needs it, the site has no mirror of it, and it answers.

    Where it does not answer, a note says so, and what the site offers has to do. The result, not ``pip``, is what the
    build's own pip needs too.
    """
    url = torch_index(env)
    if url is None or pip.no_index or any(_is_copy(location, url) for location in pip.locations):
        return pip
    if net.answers(f"{url}/", timeout=_PROBE_SECONDS, ca=pip.cert, proxies=pip.proxies or None, below=400):
        return pip.with_extra_index(url)
    sink(
        Note(
            message=f"PyTorch's index {url} does not answer; looking for torch {env.torch_version} in the other "
            "indexes and wheel folders"
        )
    )
    return pip


def unasked_torch_index(env: Environment, pip: PipSettings) -> str | None:
    """PyTorch's own index where the row needs it and neither it nor a mirror of it is asked; else None."""
    url = torch_index(env)
    return None if url is None or any(_is_copy(location, url) for location in pip.indexes) else url


def _is_copy(location: str, url: str) -> bool:
    # Mirrors keep the path: https://mirror.example.com/pytorch/whl/cpu
    if "://" not in location:
        return False
    return urlsplit(location).path.rstrip("/").endswith(urlsplit(url).path)
