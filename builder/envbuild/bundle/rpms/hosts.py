"""A host that was described (``bundle.target``), as a target to resolve for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from envbuild.bundle.rpms.types import Installed, Nevra, System, Target
from envbuild.errors import InputError


class InstalledPackage(Protocol):
    """A package of a host. What it provides and needs is written as rpm does: ``name``, or ``name >= evr``."""

    @property
    def name(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def version(self) -> str: ...
    @property
    def release(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def provides(self) -> Sequence[object]: ...
    @property
    def requires(self) -> Sequence[object]: ...
    @property
    def conflicts(self) -> Sequence[object]: ...
    @property
    def obsoletes(self) -> Sequence[object]: ...
    @property
    def files(self) -> Sequence[str]: ...


class ModuleStream(Protocol):
    """A stream that a host has chosen; ``state`` is ``enabled`` or ``disabled``."""

    @property
    def name(self) -> str: ...
    @property
    def stream(self) -> str: ...
    @property
    def state(self) -> str: ...


class Host(Protocol):
    """What is known of a host."""

    @property
    def name(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def os_id(self) -> str: ...
    @property
    def os_version(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def fips(self) -> bool: ...
    @property
    def modules(self) -> Sequence[ModuleStream]: ...
    @property
    def packages(self) -> Sequence[InstalledPackage]: ...


def target(host: Host) -> Target:
    """A host as a target.

    Raises:
        InputError: Its release is no number.
    """
    major = re.match("[0-9]{1,2}", host.os_version)
    if major is None:
        raise InputError(f"{host.name}: its release {host.os_version[:40]!r} is no number")
    return Target(
        name=host.name,
        source=host.sha256,
        installed=tuple(_installed(each) for each in host.packages),
        streams={each.name: each.stream for each in host.modules if each.state == "enabled"},
        system=System(
            distro=host.os_id, major=int(major[0]), releasever=host.os_version, arch=host.arch, fips=host.fips
        ),
    )


def _installed(each: InstalledPackage) -> Installed:
    nevra = Nevra(name=each.name, epoch=str(each.epoch), version=each.version, release=each.release, arch=each.arch)
    return Installed(
        nevra=nevra,
        provides=tuple(map(str, each.provides)),
        requires=tuple(map(str, each.requires)),
        conflicts=tuple(map(str, each.conflicts)),
        obsoletes=tuple(map(str, each.obsoletes)),
        files=tuple(each.files),
    )
