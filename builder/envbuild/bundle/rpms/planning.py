"""What would be taken: every repository read, every target solved, the union of it all. Nothing is fetched yet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.bundle.rpms import filelists, metadata, modules
from envbuild.bundle.rpms.metadata import Metadata
from envbuild.bundle.rpms.modules import Active, Modules
from envbuild.bundle.rpms.objections import conflicting_streams, of_package, of_solution, of_streams, of_target
from envbuild.bundle.rpms.solve import Answer, Loaded, Machine, Question, Solution, solve
from envbuild.bundle.rpms.telling import Brake, shared, step
from envbuild.bundle.rpms.transport import Way
from envbuild.bundle.rpms.types import Closure, Package, RepositorySeen, Request, Stream, Target
from envbuild.errors import InputError
from envbuild.events import Sink, discard
from envbuild.model import Finding, Severity
from envbuild.site import urls
from envbuild.site.sections import NetworkSection

_LINES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be taken. With a finding of severity error, nothing is.

    Attributes:
        packages: Of every target, each once, in the order of their names.
        metadata: Of each repository, for whoever fetches.
        peak: The most memory that the solver took, in bytes.
    """

    request: Request
    repositories: tuple[RepositorySeen, ...]
    packages: tuple[Package, ...]
    closures: tuple[Closure, ...]
    streams: tuple[Stream, ...]
    findings: tuple[Finding, ...]
    metadata: tuple[Metadata, ...] = field(repr=False)
    modules: Modules = field(repr=False)
    peak: int = 0

    @property
    def good(self) -> bool:
        """Whether nothing stands against it."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)

    @property
    def bytes(self) -> int:
        """What has to be transferred, at most."""
        return sum(package.bytes for package in self.packages)

    @property
    def installed_bytes(self) -> int:
        """What the packages take up when they are installed."""
        return sum(package.installed_bytes for package in self.packages)

    @property
    def timestamp(self) -> int:
        """The newest metadata, in seconds since the epoch: what a bundle's own date may be."""
        return max((each.timestamp for each in self.repositories), default=0)


def plan(request: Request, network: NetworkSection, *, cache: Path, sink: Sink = discard) -> Plan:
    """Read the repositories and solve every target.

    Args:
        network: Of the site: certificates to trust, proxies.
        cache: Folder of metadata and packages (``[paths] cache``, below it ``rpm``).

    Raises:
        InputError: The request, a key or a local repository cannot be used.
        NetworkError: A repository does not answer.
        BundleError: Metadata is damaged or not signed as it has to be; the solver crashed.
        EngineError: The disk.
    """
    _sensible(request)
    sink = shared(sink)
    ways = [Way(source, network, sink=sink) for source in request.sources]
    found = _read_all(ways, cache, sink)
    described = modules.read(each.modules for each in found if each.modules is not None)
    actives = [_active(described, request, target) for target in request.targets]
    with step(sink, "rpm-solve", f"solving for {_targets(request.targets)}") as tell:
        with tempfile.TemporaryDirectory(prefix="envbuild-files-") as scratch:
            answer = solve(_question(request, found, actives, _lists(request, found, Path(scratch))))
        if any(each.problems or each.missing for each in answer.solutions):
            # Some mirrors' primary metadata lists fewer files than usual: with every file once more, before it is said.
            answer = solve(_question(request, found, actives, {each.id: each.filelists for each in found}))
        planned = _plan(request, tuple(found), described, actives, answer)
        tell(f"{len(planned.packages)} packages")
    return planned


def _sensible(request: Request) -> None:
    if not request.roots or not request.targets or not request.sources:
        raise InputError("there is nothing to resolve: it takes a package, a repository and a target")
    for root in request.roots:
        if root.startswith("@"):
            raise InputError(f"{root}: groups and modules cannot be asked for by name; name packages")
        if not root or any(character.isspace() or not character.isprintable() for character in root):
            raise InputError(f"{root!r}: not the name of a package")
    for what, names in (
        ("repository", [source.id for source in request.sources]),
        ("target", [target.name for target in request.targets]),
    ):
        if twice := {name for name in names if names.count(name) > 1}:
            raise InputError(f"{what} {min(twice)}: there are two of that name")


def _targets(targets: tuple[Target, ...]) -> str:
    return ", ".join("an empty system" if target.empty else target.name for target in targets)


def _read_all(ways: Iterable[Way], cache: Path, sink: Sink) -> list[Metadata]:
    brake = Brake()

    def one(way: Way) -> Metadata:
        with step(sink, f"rpm-metadata-{way.source.id}", f"metadata of {way.source.id}") as tell:
            found = metadata.read(way, cache, moved=brake.moved, sink=sink)
            tell(f"revision {found.index.revision or 'unknown'}")
        return found

    with ThreadPoolExecutor(_LINES) as pool:
        try:
            return list(pool.map(one, ways))
        except BaseException:
            # The pool waits for what runs: it ends at its next piece.
            brake.set()
            raise


def _active(described: Modules, request: Request, target: Target) -> Active:
    streams = {**target.streams, **request.streams}
    return modules.active(described, streams, arch=request.system.arch, platform=f"el{request.system.major}")


def _lists(request: Request, found: Iterable[Metadata], folder: Path) -> dict[str, Path | None]:
    """File lists of each repository, with no other files than somebody asks for."""
    installed = (text for target in request.targets for each in target.installed for text in each.requires)
    wanted = filelists.beyond((*request.roots, *installed)).union(*(each.asked for each in found))
    made: dict[str, Path | None] = {}
    for number, each in enumerate(found):
        made[each.id] = None
        if each.filelists is not None and wanted:
            path = made[each.id] = folder / f"{number}.xml"
            filelists.reduce(each.filelists, wanted, path)
    return made


def _question(
    request: Request, found: Iterable[Metadata], actives: Iterable[Active], lists: Mapping[str, Path | None]
) -> Question:
    sources = {source.id: source for source in request.sources}
    return Question(
        arch=request.system.arch,
        roots=request.roots,
        multilib=request.multilib,
        repositories=tuple(
            Loaded(
                id=each.id,
                primary=each.primary,
                filelists=lists[each.id],
                priority=sources[each.id].priority,
                hotfixes=sources[each.id].hotfixes,
                excludes=sources[each.id].excludes,
                includes=sources[each.id].includes,
            )
            for each in found
        ),
        machines=tuple(
            Machine(name=target.name, installed=target.installed, filter=active.filter)
            for target, active in zip(request.targets, actives, strict=True)
        ),
    )


def _plan(
    request: Request, found: tuple[Metadata, ...], described: Modules, actives: list[Active], answer: Answer
) -> Plan:
    findings: list[Finding] = []
    closures = []
    packages: dict[str, Package] = {}
    for target, active, solution in zip(request.targets, actives, answer.solutions, strict=True):
        findings += of_target(request.system, target)
        findings += of_streams(request, target, active)
        findings += of_solution(target, solution)
        closures.append(closure(target, active, solution))
        for package in solution.installs:
            packages.setdefault(str(package.nevra), package)
    chosen = tuple(packages[name] for name in sorted(packages))
    findings += (finding for package in chosen for finding in of_package(package))
    streams = sorted(
        {stream for each in closures for stream in each.streams}, key=lambda each: (each.name, each.stream)
    )
    findings += conflicting_streams(streams)
    return Plan(
        request=request,
        repositories=tuple(_seen(each, answer.packages) for each in found),
        packages=chosen,
        closures=tuple(closures),
        streams=tuple(streams),
        findings=tuple(dict.fromkeys(findings)),
        metadata=found,
        modules=described,
        peak=answer.peak,
    )


def closure(target: Target, active: Active, solution: Solution) -> Closure:
    """What a solution is for a target, with the streams that it takes packages from."""
    owners = {nevra: document for document in active.documents for nevra in document.artifacts}
    streams = {
        Stream(name=document.name, stream=document.stream)
        for package in solution.installs
        if (document := owners.get(with_epoch(package))) is not None
    }
    return Closure(
        target=target,
        installs=solution.installs,
        replaces=solution.replaces,
        streams=tuple(sorted(streams, key=lambda each: each.name)),
    )


def with_epoch(package: Package) -> str:
    """A package's full name as modules write it."""
    nevra = package.nevra
    return f"{nevra.name}-{nevra.epoch or '0'}:{nevra.version}-{nevra.release}.{nevra.arch}"


def _seen(found: Metadata, packages: Mapping[str, int]) -> RepositorySeen:
    return RepositorySeen(
        id=found.id,
        url=urls.mask(found.base),
        revision=found.index.revision,
        repomd_sha256=found.repomd_sha256,
        packages=packages.get(found.id, 0),
        timestamp=found.index.timestamp,
        key=found.signer,
    )
