"""The wheels of an export: those of the row's lock, and what its proven image has compiled."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.bundle import wheels
from envbuild.bundle.fetching import Fetcher
from envbuild.bundle.sections import Wheels as Section
from envbuild.bundle.wheels import Choice, Own
from envbuild.bundle.wheels import Wish as Wheels
from envbuild.bundle.writing import Draft
from envbuild.engines import ImageInfo
from envbuild.facts.upstream import Upstream
from envbuild.facts.upstream.reader import route
from envbuild.net import Client
from envbuild.pipeline import shipping
from envbuild.pipeline.exported import release_of
from envbuild.pipeline.prepare import Target
from envbuild.pipeline.workbench import Workbench
from envbuild.site import urls

# What a virtual environment says by itself, and what only a container has.
_NOT_HERE = frozenset({
    "HOME", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES", "PATH", "PIP_CONSTRAINT", "PYTHONNOUSERSITE",
    "USER", "UV_CONSTRAINT", "VIRTUAL_ENV",
})  # fmt: skip
# Where nobody installs the row's compiler, its path would lead nowhere.
_COMPILER = frozenset({"CC", "CXX", "COMPILER_PATH", "CUDAHOSTCXX"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which files it will be.

    Attributes:
        bytes: What they have, as far as the indexes say.
        compiled: Names of what the image has compiled, where it does.
    """

    wish: Wheels
    choices: tuple[Choice, ...]
    bytes: int
    compiled: tuple[str, ...]


def plan(bench: Workbench, target: Target, image: ImageInfo | None, *, rpms: bool) -> Chosen:
    """Choose the file of each package; only lists of indexes are read.

    Args:
        image: The row's proven image on the engine: what it has compiled is not compiled again.
        rpms: Whether the bundle brings the row's compiler and interpreter.

    Raises:
        BundleError: Some cannot be had for the target; it names each.
        EngineError: An index does not answer.
    """
    env, facts = target.env, bench.facts
    release = release_of(env, facts)
    major, minor = facts.releases[release].glibc.split(".")
    compiled = tuple(package.name for package in target.lock.packages if package.group == "ops") if image else ()
    left_out = _NOT_HERE if rpms else _NOT_HERE | _COMPILER
    wish = Wheels(
        lock=target.lock,
        glibc=(int(major), int(minor)),
        # Only their names count here; they are made when they are wanted.
        own={name: Own(path=Path(), filename="", sha256="") for name in compiled},
        program=target.plan.python_program if rpms else None,
        env=tuple((name, value) for name, value in target.plan.env if value and name not in left_out),
    )
    return _chosen(bench, target, wish, compiled)


def size_of(choice: Choice) -> int | None:
    """Bytes of a file; None where nobody says."""
    file = choice.file
    if file is None or file.size is not None:
        return file.size if file is not None else None
    path = urls.local_path(file.url)
    with contextlib.suppress(OSError):
        return path.stat().st_size if path is not None else None
    return None


def write(
    bench: Workbench, target: Target, chosen: Chosen, image: ImageInfo | None, draft: Draft, scratch: Path
) -> Section:
    """Fetch them, and put them into a bundle.

    Args:
        scratch: An empty folder, kept until the draft is finished.

    Raises:
        BundleError: A file is not what the lock says, or the image has not what it was proven with.
        EngineError: The network, the engine or the disk.
    """
    if chosen.compiled and image is not None:
        limits = shipping.limits_of(bench.facts, release_of(target.env, bench.facts))
        own, note = shipping.own_wheels(bench.engine, image, target.lock, limits, scratch)
        wish = replace(chosen.wish, own=own, note=note)
        again = set(own) != set(chosen.compiled)
        chosen = _chosen(bench, target, wish, tuple(own)) if again else replace(chosen, wish=wish)
    pip = bench.pip_for(target.env)
    fetcher = Fetcher(Client(route(pip), sink=bench.sink), bench.cache, bench.sink)
    return wheels.write(draft, chosen.wish, chosen.choices, fetcher)


def _chosen(bench: Workbench, target: Target, wish: Wheels, compiled: tuple[str, ...]) -> Chosen:
    upstream = Upstream(bench.pip_for(target.env), bench.cache / "upstream", sink=bench.sink)
    choices = wheels.choose(wish, upstream, bench.cache)
    size = sum(size_of(each) or 0 for each in choices)
    return Chosen(wish=wish, choices=choices, bytes=size, compiled=compiled)
