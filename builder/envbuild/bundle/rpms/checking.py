"""Every package held to its repository's keys, to its own digests, and to what the targets' rpm accepts.

rpm-rs reads what strangers wrote; it is memory-safe, and whatever it raises is a finding. A header's signature says
nothing of the payload but through the digest in that header: both are looked at, always. Packages from before rpm 4.14
have no such digest; their whole file is signed, and is looked at whole.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.bundle.rpms import flaws, headers
from envbuild.bundle.rpms.planning import Plan, with_epoch
from envbuild.bundle.rpms.results import Check, Checked, PublicKey, Signed
from envbuild.bundle.rpms.telling import shared, step
from envbuild.bundle.rpms.transport import CHUNK, opened
from envbuild.bundle.rpms.types import Package, Stream
from envbuild.errors import BundleError, EnvbuildError
from envbuild.events import Sink, discard
from envbuild.model import Finding

_LINES = 4
# After so many packages it is told how far it is.
_EVERY = 50
KEY = "rpm-check"
# Tags of a header (rpm, include/rpm/rpmtag.h).
_FILE_DIGESTS, _FILE_DIGEST_ALGORITHM = 1035, 5011
_PAYLOAD_DIGEST, _PAYLOAD_DIGEST_ALGORITHM, _MODULARITY = 5092, 5093, 5096
# RFC 9580, section 9.5: what rpm writes as a number.
_HASHES = {8: "sha256", 9: "sha384", 10: "sha512"}
_MD5 = 1
# What is read at once of a package from before rpm 4.14, at most (bytes).
_IN_MEMORY = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a package's file says of itself.

    Attributes:
        good: Signatures made by a key of its repository; ``others`` by anybody else, with the reason.
        whole: Whether its payload is what its signed header, or the signature itself, says.
        strong: Whether something better than MD5 says so.
        md5_files: Whether the files in it have MD5 digests only.
    """

    name: str
    sha256: str
    matches: bool
    good: tuple[Signed, ...] = ()
    others: tuple[tuple[Signed, str], ...] = ()
    whole: bool = False
    strong: bool = True
    md5_files: bool = False
    module: str = ""
    problem: str = ""


def check(plan: Plan, paths: Mapping[str, Path], *, sink: Sink = discard) -> Check:
    """Look at every package. What is wrong is a finding; with one of severity error nothing should be written.

    Args:
        paths: File of each package by its full name, as ``fetch`` returns them.

    Raises:
        EngineError: The disk.
    """
    keys = {each.id: each.keys for each in plan.metadata}
    with step(shared(sink), KEY, f"signatures and digests of {len(plan.packages)} packages") as tell:
        seen = _seen(plan, paths, keys, tell)
    findings: list[Finding] = []
    checked, used, labels = [], set(), set()
    for package, found in zip(plan.packages, seen, strict=True):
        findings += _findings(plan, package, found, keys.get(package.repository, ()))
        signature = found.good[0] if found.good else None
        if signature is not None:
            used.add(signature.key_id)
        if found.module:
            labels.add((package, found.module))
        checked.append(
            Checked(
                package=package,
                path=paths[str(package.nevra)],
                sha256=found.sha256,
                signature=signature,
                module=found.module,
            )
        )
    signers = _signers(keys.values(), used)
    findings += flaws.of_keys(signers, plan.request.system)
    return Check(
        packages=tuple(checked),
        keys=signers,
        streams=_streams(plan, labels),
        findings=tuple(dict.fromkeys(findings)),
    )


def _seen(
    plan: Plan, paths: Mapping[str, Path], keys: Mapping[str, Sequence[PublicKey]], tell: Callable[[str], None]
) -> list[_Seen]:
    """Every package, looked at; some at a time."""
    lock, looked = threading.Lock(), [0]

    def one(package: Package) -> _Seen:
        found = _look(package, paths[str(package.nevra)], keys.get(package.repository, ()))
        with lock:
            looked[0] += 1
            if looked[0] % _EVERY == 0:
                tell(f"{looked[0]} of {len(plan.packages)}")
        return found

    with ThreadPoolExecutor(_LINES) as pool:
        return list(pool.map(one, plan.packages))


def _look(package: Package, path: Path, keys: Sequence[PublicKey]) -> _Seen:
    # Imported here: nothing but an export needs it.
    import rpm_rs

    name = str(package.nevra)
    try:
        headers.hold(path)
        meta = rpm_rs.PackageMetadata.open(str(path))
        start = meta.package_segment_offsets().payload
        has = meta.header.entry_is_present
        algorithm = _number(meta.header.entry(_PAYLOAD_DIGEST_ALGORITHM)) if has(_PAYLOAD_DIGEST_ALGORITHM) else 8
        stated = _first(meta.header.entry(_PAYLOAD_DIGEST)) if has(_PAYLOAD_DIGEST) else ""
        file_digests = _number(meta.header.entry(_FILE_DIGEST_ALGORITHM)) if has(_FILE_DIGEST_ALGORITHM) else _MD5
        sums = {"sha256": (hashlib.sha256(), 0), package.checksum[0]: (hashlib.new(package.checksum[0]), 0)}
        payload = hashlib.new(_HASHES.get(algorithm, "sha256"))
        _feed(path, [each for each, _ in sums.values()], payload, start)
        matches = sums[package.checksum[0]][0].hexdigest() == package.checksum[1]
        sha256 = sums["sha256"][0].hexdigest()
        subject: Any = meta
        if not stated:
            # Nothing in the header says what the payload is: only a signature over everything does.
            if path.stat().st_size > _IN_MEMORY:
                raise BundleError("no digest of its payload, and too large to be read at once")
            subject = rpm_rs.Package.open(str(path))
        verifier = _verifier(keys)
        report = subject.check_signatures(verifier) if verifier else None
        signatures = [(each.info, _reason(each)) for each in report.signatures] if report else [
            (each, "no key is named for its repository") for each in meta.signatures()
        ]  # fmt: skip
        digests = report.digests if report else subject.check_digests()
        told = [(_signed(info), reason) for info, reason in signatures]
        nevra = meta.nevra()
        own = f"{nevra.name}-{nevra.epoch or '0'}:{nevra.version}-{nevra.release}.{nevra.arch}"
        return _Seen(
            name=own,
            sha256=sha256,
            matches=matches,
            good=tuple(sorted((one for one, reason in told if not reason), key=_strength, reverse=True)),
            others=tuple((one, reason) for one, reason in told if reason),
            whole=bool(digests.is_ok()) and (not stated or stated.lower() == payload.hexdigest()),
            strong=bool(stated) and algorithm in _HASHES,
            md5_files=has(_FILE_DIGESTS) and file_digests == _MD5 and any(_texts(meta.header.entry(_FILE_DIGESTS))),
            module=_first(meta.header.entry(_MODULARITY)) if has(_MODULARITY) else "",
        )
    except EnvbuildError as error:
        return _Seen(name=name, sha256="", matches=False, problem=error.message)
    except BaseException as error:
        # A panic of rpm-rs is a BaseException of its own; an interruption is none.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return _Seen(name=name, sha256="", matches=False, problem=f"{type(error).__name__}: {error}"[:200])


def _feed(path: Path, sums: Sequence[Any], payload: Any, start: int) -> None:
    at = 0
    with opened(path) as file:
        while block := file.read(CHUNK):
            for each in sums:
                each.update(block)
            if at + len(block) > start:
                payload.update(block[max(0, start - at) :])
            at += len(block)


def _verifier(keys: Sequence[PublicKey]) -> Any:
    import rpm_rs

    if not keys:
        return None
    verifier = rpm_rs.Verifier(keys[0].armored)
    for key in keys[1:]:
        verifier.load_from_asc_bytes(key.armored)
    return verifier


def _reason(each: Any) -> str:
    """Why a signature does not count; empty where it does."""
    return "" if each.is_verified() else str(each.error or "it does not fit").partition("\n")[0][:200] or "unknown"


def _signed(info: Any) -> Signed:
    fingerprint = str(info.fingerprint or "").upper()
    key_id = str(info.key_id or "").upper() or (fingerprint[-16:] if len(fingerprint) == 40 else fingerprint[:16])
    return Signed(key_id=key_id, algorithm=str(info.algorithm or "unknown"), hash=str(info.hash_algorithm or "unknown"))


def _strength(signed: Signed) -> bool:
    return signed.hash.upper().replace("-", "") not in flaws.WEAK


def _findings(plan: Plan, package: Package, seen: _Seen, keys: Sequence[PublicKey]) -> list[Finding]:
    name, system = str(package.nevra), plan.request.system
    if seen.problem:
        return [flaws.unreadable(name, seen.problem)]
    if not seen.matches:
        return [flaws.changed(name)]
    if seen.name != with_epoch(package):
        return [flaws.another(name, seen.name)]
    found = []
    if not seen.good and not seen.others:
        found.append(flaws.unsigned(name, package.repository))
    elif not seen.good:
        found.append(flaws.stranger(name, package.repository, seen.others[0], known=bool(keys)))
    if not seen.whole:
        found.append(flaws.tampered(name))
    found += [*flaws.of_signature(name, seen.good[:1], system), *flaws.of_digests(
        name, system, payload=seen.strong, files=not seen.md5_files
    )]  # fmt: skip
    return found


def _signers(keys: Any, used: set[str]) -> tuple[PublicKey, ...]:
    """The keys that signed something, each once."""
    found = {key.fingerprint: key for each in keys for key in each if used & set(key.ids)}
    return tuple(found[fingerprint] for fingerprint in sorted(found))


def _streams(plan: Plan, labels: set[tuple[Package, str]]) -> tuple[Stream, ...]:
    """The plan's streams, and those that a package says it is of and no metadata describes: a target takes such a
    package past modularity only (dnf.modularity(7), "Orphaned modular packages")."""
    described = {nevra for document in plan.modules.documents for nevra in document.artifacts}
    streams = {(each.name, each.stream): each for each in plan.streams}
    for package, label in labels:
        name, _, rest = label.partition(":")
        stream = rest.partition(":")[0]
        if with_epoch(package) not in described and name and stream:
            streams.setdefault((name, stream), Stream(name=name, stream=stream, how="hotfixes"))
    return tuple(streams[key] for key in sorted(streams))


def _texts(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, (list, tuple)) else [str(value)] if value else []


def _first(value: Any) -> str:
    return next(iter(_texts(value)), "")


def _number(value: Any) -> int:
    return int(value[0] if isinstance(value, (list, tuple)) else value)
