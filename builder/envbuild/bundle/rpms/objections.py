"""What stands against a plan, as findings: what nothing has, what does not go together, what would be taken away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from envbuild.bundle.rpms.modules import Active
from envbuild.bundle.rpms.solve import Solution
from envbuild.bundle.rpms.transport import STRONG
from envbuild.bundle.rpms.types import Package, Request, Stream, System, Target
from envbuild.evidence.record import printable
from envbuild.model import Finding, Severity
from envbuild.site.urls import mask

_SOLVER = "libsolv, with dnf's own rules"
_MAN = "dnf.modularity(7)"
_LACKING = "Name the repository that has what is missing: --repo NAME=URL"
_IN_THE_WAY = (
    "What that machine has stands against it, and no bundle takes it away: update or remove it there and describe the "
    "machine anew, or make a bundle of other packages."
)
_LEFT_OUT = (
    "One of that name is there, but for another machine (--arch), for 32 bits (--multilib), in a module stream that is "
    "not active (--module), or excluded by the repository's configuration."
)
# One word for a file system, a shell and every medium, as in a bundle's manifest.
_NAME = re.compile(r"[A-Za-z0-9_](\.?[A-Za-z0-9_+~^-])*")


def of_target(system: System, target: Target) -> Iterator[Finding]:
    """A target that is another kind of machine than the bundle is for."""
    has = target.system
    if has is None:
        return
    yield from _of_fips(system, target)
    pairs = [("architecture", system.arch, has.arch), ("major release", str(system.major), str(has.major))]
    if system.releasever and "." in system.releasever and has.releasever and "." in has.releasever:
        pairs.append(("release", system.releasever, has.releasever))
    for what, wanted, found in pairs:
        if wanted != found:
            yield Finding(
                rule="rpm.target",
                severity=Severity.ERROR,
                subject=target.name,
                message=f"the bundle is for {what} {wanted}, and this machine has {found}",
                fix="Make a bundle of its own for it" + (f": --releasever {found}" if what == "release" else "."),
                source="the target's manifest",
            )


def _of_fips(system: System, target: Target) -> Iterator[Finding]:
    if target.system is not None and target.system.fips and not system.fips:
        yield Finding(
            rule="rpm.target",
            severity=Severity.ERROR,
            subject=target.name,
            message="this machine is in FIPS mode, and the bundle is not held to what that admits",
            fix="--fips",
            source="the target's manifest",
        )


def of_streams(request: Request, target: Target, active: Active) -> Iterator[Finding]:
    """Streams that cannot be active. dnf never switches a stream by itself."""
    for problem in active.problems:
        asked = any(f"{name}:{stream}" in problem for name, stream in request.streams.items())
        yield Finding(
            rule="rpm.stream",
            severity=Severity.ERROR if asked else Severity.WARNING,
            subject=target.name,
            message=problem,
            fix="Name a repository that has the module, or another stream." if asked else "",
            source=_MAN,
        )
    for name, stream in request.streams.items():
        if target.streams.get(name, stream) != stream:
            yield Finding(
                rule="rpm.stream",
                severity=Severity.ERROR,
                subject=target.name,
                message=f"{name}:{stream} is asked for, and this machine has {name}:{target.streams[name]} enabled",
                fix=f"Ask for {name}:{target.streams[name]}, or reset the module there: dnf module reset {name}",
                source=_MAN,
            )


def conflicting_streams(streams: Iterable[Stream]) -> Iterator[Finding]:
    """Modules of which one bundle would have two streams."""
    by_name: dict[str, set[str]] = {}
    for each in streams:
        by_name.setdefault(each.name, set()).add(each.stream)
    for name, found in sorted(by_name.items()):
        if len(found) > 1:
            yield Finding(
                rule="rpm.stream",
                severity=Severity.ERROR,
                subject=name,
                message=f"the targets have different streams of it: {', '.join(sorted(found))}",
                fix="Make a bundle for each kind of machine: one bundle enables one stream.",
                source=_MAN,
            )


def of_solution(target: Target, solution: Solution) -> Iterator[Finding]:
    """Why packages cannot be installed on a target, or not without taking something away."""
    where = "an empty system" if target.empty else target.name
    for root in solution.missing:
        near = solution.near.get(root, ())
        # Its own name among them: it is there, and was left out before anything was solved.
        left_out = root in near
        fix = f"Did you mean {', '.join(near)}?" if near else "Name the repository that has it: --repo NAME=URL"
        yield Finding(
            rule="rpm.missing",
            severity=Severity.ERROR,
            subject=root,
            message=f"no repository has {root}" + (f" that counts for {where}" if left_out else ""),
            fix=_LEFT_OUT if left_out else fix,
            source=_SOLVER,
        )
    if solution.problems:
        reasons = tuple(map(mask, solution.problems))
        lacking = any("nothing provides" in reason for reason in reasons)
        small = "Only with 32-bit packages beside the others there is a solution: ask for those, if they are meant."
        yield Finding(
            rule="rpm.unsolvable",
            severity=Severity.ERROR,
            subject=where,
            message=f"{where} cannot take the packages: {'; '.join(reasons[:3])}",
            fix=small if solution.multilib_helps else _LACKING if lacking or target.empty else _IN_THE_WAY,
            source=_SOLVER,
            evidence=reasons,
        )
    for rule, names, what in (
        ("rpm.erases", solution.erases, "would take away"),
        ("rpm.downgrades", solution.downgrades, "would put an older one in place of"),
    ):
        if names:
            yield Finding(
                rule=rule,
                severity=Severity.ERROR,
                subject=where,
                message=f"the installation {what} {', '.join(names[:5])}{' and more' * (len(names) > 5)}",
                fix="Remove them on that machine first, if they may go; the bundle never does.",
                source=_SOLVER,
                evidence=names,
            )
    if solution.replaces:
        yield Finding(
            rule="rpm.replaces",
            severity=Severity.WARNING,
            subject=where,
            message=f"{', '.join(solution.replaces[:5])} would go: packages of the bundle obsolete them",
            fix="Nothing, if that is meant: dnf does the same.",
            source=_SOLVER,
            evidence=solution.replaces,
        )


def of_package(package: Package) -> Iterator[Finding]:
    """A package that cannot be told from another one, or whose name is none."""
    name, kind = printable(str(package.nevra)), printable(package.checksum[0])[:40]
    if package.checksum[0] not in STRONG or not re.fullmatch("[0-9a-f]{64,128}", package.checksum[1]):
        yield Finding(
            rule="rpm.checksum",
            severity=Severity.ERROR,
            subject=name,
            message=f"the repository {package.repository} states no SHA-256 of it ({kind or 'nothing'})",
            fix="Make its metadata anew: createrepo_c --checksum sha256",
            source="primary metadata",
        )
    nevra = package.nevra
    for part in (nevra.name, nevra.version, nevra.release, nevra.arch):
        if not _NAME.fullmatch(part):
            yield Finding(
                rule="rpm.name",
                severity=Severity.ERROR,
                subject=name[:200],
                message=f"{part[:80]!r} cannot be a part of a file's name on every medium",
                source="primary metadata",
            )
