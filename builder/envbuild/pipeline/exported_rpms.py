"""The RPM packages of an export: resolved for every host, fetched, looked at, written, and resolved again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envbuild.bundle import rpms, target
from envbuild.bundle.rpms import Checked, Request, System, flaws
from envbuild.bundle.sections import Target as For
from envbuild.bundle.signing import Signer
from envbuild.bundle.writing import Draft
from envbuild.errors import BUNDLE
from envbuild.events import Sink
from envbuild.model import Environment, Finding
from envbuild.pipeline.exported import Wish
from envbuild.pipeline.findings import FindingsError, errors
from envbuild.pipeline.workbench import Workbench
from envbuild.plan import Plan

_RELEASE = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}")
_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """What was written of packages.

    Attributes:
        section: As the bundle's manifest says it.
        checked: Every package, with what its repository says of it.
    """

    section: Mapping[str, object]
    checked: tuple[Checked, ...]
    findings: tuple[Finding, ...]


def roots_of(plan: Plan) -> tuple[str, ...]:
    """What a row wants of its distribution: what runs it, and what compiles ops on a host."""
    return tuple(sorted({*plan.packages, *plan.op_packages}))


def plan(bench: Workbench, env: Environment, row: Plan, to: For, wish: Wish) -> rpms.Plan:
    """Read the repositories and solve for every host. Nothing but the cache is written.

    Raises:
        FindingsError: Something stands against it (exit 6).
        InputError: A repository, a key or a description of a host cannot be used.
        NetworkError: A repository does not answer.
        BundleError: Metadata is damaged, or not signed as it has to be.
    """
    system = System(distro=to.distro, major=to.major, arch=to.arch, releasever=to.releasever, fips=to.fips)
    hosts = [rpms.target(target.read(path)) for path in wish.hosts]
    request = Request(
        roots=wish.roots or roots_of(row),
        sources=rpms.sources(
            bench.site, env.family, system, given=wish.repositories, keys=wish.keys, release=row.repositories
        ),
        system=system,
        targets=(rpms.EMPTY, *hosts),
        streams=wish.streams,
        multilib=wish.multilib,
    )
    planned = rpms.plan(request, bench.site.network, cache=bench.cache / "rpm", sink=bench.sink)
    refuse(planned.findings, "the packages do not go together")
    keyless = {each.id for each in planned.metadata if not each.keys}
    taken = Counter(each.repository for each in planned.packages if each.repository in keyless)
    # Each of them would be refused when it is here: it is said before anything is fetched.
    refuse([flaws.keyless(name, count) for name, count in sorted(taken.items())], "some packages cannot be taken")
    return planned


def fetch(bench: Workbench, planned: rpms.Plan) -> rpms.Check:
    """Bring the packages here and look at each.

    Raises:
        FindingsError: One is not signed, damaged, or nothing that the target's rpm accepts (exit 6).
        NetworkError: One does not come.
        EngineError: The disk.
    """
    paths = rpms.fetch(planned, cache=bench.cache / "rpm", sink=bench.sink)
    checked = rpms.check(planned, paths, sink=bench.sink)
    refuse(checked.findings, "some packages cannot be taken")
    return checked


def write(
    draft: Draft,
    planned: rpms.Plan,
    checked: rpms.Check,
    *,
    created: str,
    seconds: int,
    signer: Signer | None,
    sink: Sink,
) -> Packages:
    """Write them, and prove that they are enough.

    Raises:
        FindingsError: They are not (exit 6).
        BundleError: A file changed since it was looked at, or gpg cannot sign.
        EngineError: The disk.
    """
    written = rpms.write(planned, checked, draft.folder, created=seconds, sink=sink)
    proof = rpms.prove(planned, written, checked.streams, sink=sink)
    refuse(proof.findings, "what was written is not enough to install it")
    index = (draft.folder / written.repomd).read_bytes()
    sizes = {}
    for file in written.files:
        sizes[file.path] = file.bytes
        draft.adopt(file.path, file.sha256, "rpms")
    if signer is not None:
        # The packager of the target asks for it (repo_gpgcheck=1).
        draft.write(f"{written.repomd}.asc", signer.sign(index, created), "rpms")
    section = {
        "roots": planned.request.roots,
        "repositories": [
            {"id": each.id, "url_masked": each.url, "revision": each.revision, "repomd_sha256": each.repomd_sha256}
            for each in planned.repositories
        ],
        "packages": [_package(each, written, sizes) for each in checked.packages],
        "modules": [{"name": each.name, "stream": each.stream, "how": each.how} for each in checked.streams],
        "targets": [_target(each) for each in proof.closures],
        "keys": [{"fingerprint": each, "path": path} for each, path in sorted(written.keys.items())],
    }
    return Packages(section=section, checked=checked.packages, findings=proof.findings)


def _package(each: Checked, written: rpms.Written, sizes: dict[str, int]) -> dict[str, object]:
    name = str(each.package.nevra)
    path, signature = written.packages[name], each.signature
    return {
        "nevra": name,
        "path": path,
        "sha256": each.sha256,
        "bytes": sizes[path],
        "installed_bytes": each.package.installed_bytes,
        "repository": each.package.repository,
        "signature": None
        if signature is None
        else {"key_id": signature.key_id.upper(), "algorithm": signature.algorithm, "hash": signature.hash},
    }


def _target(closure: rpms.Closure) -> dict[str, object]:
    its = closure.target
    release = its.system.releasever if its.system else None
    return {
        "name": _NO_LABEL.sub("-", its.name).strip("-._")[:60] or "host",
        "source": its.source,
        "releasever": release if release and _RELEASE.fullmatch(release) else None,
        "installs": [str(each.nevra) for each in closure.installs],
    }


def refuse(findings: Sequence[Finding], message: str) -> None:
    """End where findings of severity error are.

    Raises:
        FindingsError: There are some (exit 6).
    """
    if wrong := errors(findings):
        raise FindingsError(
            f"{message}: {len(wrong)} error{'s' * (len(wrong) > 1)}; nothing was written",
            tuple(findings),
            exit_code=BUNDLE,
        )
