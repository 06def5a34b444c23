"""What is asked of an export, in values: parts, sizes, repositories and targets, as a command line says them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.bundle.sections import Target
from envbuild.bundle.words import PARTS, PREFIX, Part
from envbuild.errors import InputError
from envbuild.facts import Facts
from envbuild.model import Environment, Level
from envbuild.site.rpm import FAMILIES

ARCHES: Mapping[str, str] = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(b|[kmgt]i?b)?", re.IGNORECASE | re.ASCII)
_FACTORS = {"b": 1, **{f"{unit}b": 1000 ** (n + 1) for n, unit in enumerate("kmgt")},
            **{f"{unit}ib": 1024 ** (n + 1) for n, unit in enumerate("kmgt")}}  # fmt: skip
_LEAST_VOLUME = 10**6
# As a bundle's manifest takes it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_RELEASEVER = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}")
_FAMILY = re.compile(r"([a-z]+)([0-9]+)")
# How Debian and Ubuntu call a release in names of images: debian:12, ubuntu:22.04.
_NUMBERED = re.compile(r"[a-z]+:([0-9]+)(\.[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What an export should hold, and for whom.

    Attributes:
        parts: None: everything that the row has and that makes sense.
        roots: RPM packages in place of the row's own.
        repositories: Addresses by id, in place of the site's.
        keys: Files or addresses of the keys that packages are signed with, in place of the site's.
        hosts: Descriptions of hosts that the packages have to fit (``collect-target.sh``).
        streams: Module streams to enable, by module.
        multilib: Whether 32-bit packages are taken beside 64-bit ones.
        releasever: The exact release, such as ``8.8``.
        arch: As ``uname -m`` says it; None: the row's.
        fips: Whether only what FIPS mode admits is good enough.
        allow_level: A level of the image below what the row requires that is enough.
        base: The bundle that a differential one stands on.
        volume: Bytes of a medium; None: no volumes.
        name: What the bundle is called, and so the folder that it is installed into; None: as the row.
    """

    parts: tuple[Part, ...] | None = None
    roots: tuple[str, ...] = ()
    repositories: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    hosts: tuple[Path, ...] = ()
    streams: Mapping[str, str] = field(default_factory=dict)
    multilib: bool = False
    releasever: str | None = None
    arch: str | None = None
    fips: bool = False
    allow_level: Level | None = None
    base: Path | None = None
    volume: int | None = None
    name: str | None = None


def parse_parts(text: str | None) -> tuple[Part, ...] | None:
    """``--what``: some of the parts, in the order that bundles have.

    Raises:
        InputError: There is no such part.
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",") if word.strip()]
    if unknown := [word for word in words if word not in PARTS]:
        raise InputError(f"--what: {unknown[0]!r} is no part of a bundle", hint=f"Say some of {','.join(PARTS)}.")
    if not words:
        raise InputError("--what names nothing", hint=f"Say some of {','.join(PARTS)}.")
    return tuple(part for part in PARTS if part in words)


def parse_volume(text: str | None) -> int | None:
    """``--volume-size`` in bytes: ``4.3GB`` as on the box of a medium (powers of 1000), or ``4GiB``.

    Raises:
        InputError: It is no size.
    """
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"--volume-size: {text[:40]!r} is no size", hint="Say it as 4.3GB, 650MB or 4GiB.")
    size = int(float(match[1]) * _FACTORS[(match[2] or "b").lower()])
    if size < _LEAST_VOLUME:
        # Told now, and not when everything was fetched and written.
        unit = "" if match[2] else f" Without a unit these are bytes: did you mean {match[1]}GB?"
        raise InputError(f"--volume-size: {text.strip()} is no medium: 1MB at least", hint=f"Such as 4.3GB.{unit}")
    return size


def parse_name(text: str | None) -> str | None:
    """``--name``: a word that can be a folder.

    Raises:
        InputError: It cannot.
    """
    if text is not None and not _NAME.fullmatch(text):
        raise InputError(
            f"--name: {text[:80]!r} cannot be the name of a bundle",
            hint="Letters, digits and . _ - can be in it, 60 at most, the first a letter or a digit: it is installed "
            f"into {PREFIX}/NAME.",
        )
    return text


def parse_pairs(option: str, texts: Iterable[str], between: str, value: str = "VALUE") -> dict[str, str]:
    """``NAME=URL`` and ``NAME:STREAM``, by name.

    Args:
        value: What messages call the part behind the sign.

    Raises:
        InputError: One is none, or a name comes twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, sign, said = text.partition(between)
        if not name or not sign or not said:
            raise InputError(f"{option}: {text[:80]!r} is not of the form {option} NAME{between}{value}")
        if name in found:
            raise InputError(f"{option}: {name} is named twice")
        found[name] = said
    return found


def is_rpm(env: Environment) -> bool:
    """Whether a row stands on a distribution of RPM packages."""
    return env.family in FAMILIES


def target_of(env: Environment, facts: Facts, wish: Wish) -> Target:
    """The machines that a bundle of a row is for.

    Raises:
        InputError: Nothing is known of the row's release, or an option contradicts it.
    """
    match = _FAMILY.fullmatch(env.family)
    if match is not None:
        distro, major = match[1], int(match[2])
    else:
        known = facts.release_of(env.family, env.base.image, env.base.bootstrap.suite if env.base.bootstrap else None)
        numbers = [each[1] for name in (known.images if known else ()) if (each := _NUMBERED.fullmatch(name))]
        if not numbers:
            raise InputError(f"{env.name}: which release {env.base.image} is, is not known")
        distro, major = env.family, int(numbers[0])
    releasever = wish.releasever
    if releasever is not None:
        if not _RELEASEVER.fullmatch(releasever):
            raise InputError(f"--releasever: {releasever[:40]!r} is no release", hint=f"Such as {major}.8")
        if int(releasever.split(".")[0]) != major:
            raise InputError(
                f"--releasever {releasever}: the row {env.name} is for release {major}",
                hint=f"Say {major}.N, or take another row: envbuild list",
            )
    arch = wish.arch or ARCHES[env.platforms[0]]
    return Target(distro=distro, major=major, releasever=releasever, arch=arch, fips=wish.fips)


def release_of(env: Environment, facts: Facts) -> str:
    """The name of a row's release in the facts, such as ``el8``.

    Raises:
        InputError: Nothing is known of it.
    """
    bootstrap = env.base.bootstrap
    known = facts.release_of(env.family, env.base.image, bootstrap.suite if bootstrap else None)
    if known is None:
        raise InputError(f"{env.name}: which release {env.base.image} is, is not known")
    return facts.name_of(known)
