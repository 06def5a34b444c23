"""Resolve once more, from nothing but what was written, for every target: the set that a bundle has is whole, or it is
not made.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from envbuild.bundle.rpms import metadata, modules
from envbuild.bundle.rpms.objections import of_solution, of_streams
from envbuild.bundle.rpms.planning import Plan, closure
from envbuild.bundle.rpms.results import Written
from envbuild.bundle.rpms.solve import Loaded, Machine, Question, solve
from envbuild.bundle.rpms.transport import Way
from envbuild.bundle.rpms.types import Closure, Source, Stream
from envbuild.bundle.rpms.writing import REPOSITORY
from envbuild.events import Note, Sink, discard
from envbuild.model import Finding, Severity
from envbuild.site.sections import NetworkSection

_ID = "bundle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a target installs when the bundle is all that it has. With a finding of severity error, it is not enough.

    Attributes:
        spare: Packages that no target installs.
    """

    closures: tuple[Closure, ...]
    spare: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def good(self) -> bool:
        """Whether every target can be installed."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


def prove(plan: Plan, written: Written, streams: tuple[Stream, ...], *, sink: Sink = discard) -> Proof:
    """Resolve every target of a plan from the written repository, read anew from its files.

    Args:
        streams: What the bundle enables, or passes by, as ``check`` found it.

    Raises:
        BundleError: What was written cannot be read, or the solver crashed.
        EngineError: The disk.
    """
    request = plan.request
    source = Source(id=_ID, baseurls=(f"{(written.folder / REPOSITORY).absolute().as_uri()}/",))
    enabled = {each.name: each.stream for each in streams if each.how == "enable"}
    # As the installer does it: a stream that cannot be enabled is passed by, and then for the whole repository.
    hotfixes = any(each.how == "hotfixes" for each in streams)
    with tempfile.TemporaryDirectory(prefix="envbuild-prove-") as scratch:
        found = metadata.read(Way(source, NetworkSection.model_construct(), sink=sink), Path(scratch), sink=sink)
        described = modules.read([found.modules] if found.modules is not None else [])
        platform = f"el{request.system.major}"
        actives = [
            modules.active(described, {**target.streams, **enabled}, arch=request.system.arch, platform=platform)
            for target in request.targets
        ]
        answer = solve(
            Question(
                arch=request.system.arch,
                roots=request.roots,
                repositories=(Loaded(id=_ID, primary=found.primary, filelists=found.filelists, hotfixes=hotfixes),),
                machines=tuple(
                    Machine(name=target.name, installed=target.installed, filter=active.filter)
                    for target, active in zip(request.targets, actives, strict=True)
                ),
                # What is not meant to be there is not in the bundle.
                multilib=True,
            )
        )
    findings: list[Finding] = []
    closures = []
    for target, active, solution in zip(request.targets, actives, answer.solutions, strict=True):
        findings += (each for each in of_streams(request, target, active) if each.severity is Severity.ERROR)
        findings += of_solution(target, solution)
        closures.append(closure(target, active, solution))
    used = {str(package.nevra) for each in closures for package in each.installs}
    spare = tuple(name for name in written.packages if name not in used)
    if spare:
        sink(Note(message=f"{len(spare)} packages are in the bundle that no target installs, such as {spare[0]}"))
    return Proof(closures=tuple(closures), spare=spare, findings=tuple(dict.fromkeys(findings)))
