"""Python packages: every installation that left its metadata in a folder of packages, and what it carries with it.

What is hashed is RECORD: it lies in the image and holds the SHA-256 of every file of its package (PyPA, "Recording
installed projects"). The hash of the wheel itself is known only where the installer wrote it down (PEP 610).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.metadata import RawMetadata, parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuild.sbom.part import Part, Purl
from envbuild.sbom.texts import Texts

_METADATA = re.compile(
    r"(?:(?P<folder>.+)/)?(?:[^/]+\.dist-info/METADATA|[^/]+\.egg-info/PKG-INFO|[^/]+\.egg/EGG-INFO/PKG-INFO"
    r"|[^/]+-[^/]+\.egg-info)"
)
_BESIDE = re.compile(r"(?:.+/)?[^/]+\.dist-info/(?:RECORD|INSTALLER|direct_url\.json)")
_PACKAGES = re.compile(r"(?:^|/)(?:site|dist)-packages$")
_PYTHON = re.compile(r"(?:^|/)lib(?:64)?/python(\d+\.\d+)(?:/|$)")
_VENDORED = re.compile(r"^\"?([^,\n]+\.dist-info)/METADATA\"?,", re.MULTILINE)
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# A licence's name; some packages put the whole text into the field.
_LONGEST = 100


def wanted(path: str) -> bool:
    """Whether the bytes of a file are needed."""
    return _METADATA.fullmatch(path) is not None or _BESIDE.fullmatch(path) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One package.

    Attributes:
        place: Folder of its metadata, or their file.
        folder: In which that lies.
        raw: What the metadata say.
        ref: As in ``Part``.
        record: Its RECORD; empty without one.
    """

    place: str
    folder: str
    name: str
    version: str
    raw: RawMetadata
    ref: str
    record: bytes

    @property
    def key(self) -> str:
        """Its normalised name."""
        return canonicalize_name(self.name)


def parts(texts: Texts, found: Sequence[Package], brought: Mapping[str, tuple[str, ...]]) -> list[Part]:
    """Every package, with what it needs of its own folder and what it carries with it.

    Args:
        texts: Of the image.
        found: Its packages.
        brought: References of other parts that a package needs, by its folder and normalised name, ``folder/name``.
    """
    owners = _owners(found)
    installed = [each for each in found if each.place not in owners]
    carried: dict[str, list[Part]] = {}
    for each in found:
        if each.place in owners:
            carried.setdefault(owners[each.place], []).append(_part(each, texts))
    needs = _needs(installed, str(texts.image.config.get("architecture")))
    return [
        _part(
            each, texts, inside=tuple(carried.get(each.place, ())),
            needs=tuple(sorted({*needs[each.place], *brought.get(f"{each.folder}/{each.key}", ())})),
        )
        for each in installed
    ]  # fmt: skip


def packages(texts: Texts) -> list[Package]:
    """Every package that an image has the metadata of, also those inside of others."""
    return list(_packages(texts))


def _packages(texts: Texts) -> Iterator[Package]:
    seen: set[str] = set()
    for path in texts.paths(_METADATA):
        match = _METADATA.fullmatch(path)
        raw, _ = parse_email(texts.bytes(path))
        place = path.removesuffix("/METADATA").removesuffix("/PKG-INFO").removesuffix("/EGG-INFO")
        stem = place.rpartition("/")[2].rpartition(".")[0]
        name, version = raw.get("name") or stem.partition("-")[0], raw.get("version") or stem.partition("-")[2]
        if not name or not version:
            texts.problems.append(f"/{path} states no version")
        ref = f"pypi:{canonicalize_name(name)}@{version}"
        if ref in seen:
            ref += f"#/{place}"
        seen.add(ref)
        record = texts.bytes(f"{place}/RECORD") if place.endswith(".dist-info") else b""
        yield Package(
            place=place, folder=(match and match["folder"]) or "", name=name, version=version, raw=raw, ref=ref,
            record=record,
        )  # fmt: skip


def _owners(found: Sequence[Package]) -> dict[str, str]:
    """Of each package that another one carries with it, that one's place."""
    installed = [each for each in found if _PACKAGES.search(each.folder)]
    owners = {
        f"{each.folder}/{name}": each.place
        for each in installed
        for name in _VENDORED.findall(each.record.decode("utf-8", "replace"))
    }
    by_name = {f"{each.folder}/{each.key}": each.place for each in installed}
    known = {each.place for each in installed}
    for each in found:
        # Without a RECORD: by the folder of the package in whose inside it lies.
        for folder in _above(each.folder):
            packages, _, name = folder.rpartition("/")
            if each.place not in owners and (owner := by_name.get(f"{packages}/{canonicalize_name(name)}")):
                owners[each.place] = owner
    return {place: owner for place, owner in owners.items() if place not in known}


def _above(folder: str) -> Iterable[str]:
    parts = folder.split("/")
    return ("/".join(parts[:count]) for count in range(len(parts), 1, -1))


def _part(each: Package, texts: Texts, *, needs: tuple[str, ...] = (), inside: tuple[Part, ...] = ()) -> Part:
    properties = []
    if each.record:
        properties.append(("python:record:sha256", hashlib.sha256(each.record).hexdigest()))
    if installer := texts.get(f"{each.place}/INSTALLER", optional=True).strip():
        properties.append(("python:installer", installer))
    return Part(
        ref=each.ref,
        name=each.name,
        version=each.version,
        description=each.raw.get("summary") or "",
        publisher=each.raw.get("author") or each.raw.get("author_email") or "",
        purl=Purl(type="pypi", name=each.key, version=each.version),
        licences=_licences(each.raw),
        sha256=_wheel(texts.get(f"{each.place}/direct_url.json", optional=True)),
        places=(f"/{each.place}",),
        properties=tuple(properties),
        needs=needs,
        inside=inside,
    )


def _licences(raw: RawMetadata) -> tuple[str, ...]:
    """The expression of metadata 2.4, or else what the free field names, or else what the classifiers say."""
    if expression := raw.get("license_expression"):
        return (expression,)
    said = (raw.get("license") or "").strip()
    if said and said.upper() != "UNKNOWN" and "\n" not in said and len(said) <= _LONGEST:
        return (said,)
    names = (each.split(" :: ") for each in raw.get("classifiers") or () if each.startswith("License :: "))
    return tuple(sorted({parts[-1] for parts in names if parts[-1] != "OSI Approved"}))


def _wheel(text: str) -> str:
    """The wheel's SHA-256 where the installer noted it; empty otherwise."""
    try:
        info = json.loads(text)["archive_info"]
        stated = info.get("hashes", {}).get("sha256") or info.get("hash", "").removeprefix("sha256=")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    return stated if isinstance(stated, str) and re.fullmatch(r"[0-9a-f]{64}", stated) else ""


def _needs(installed: list[Package], architecture: str) -> dict[str, set[str]]:
    """References by place. Needs of an extra count once somebody asks for it."""
    newest = max((_python(each) for each in installed), key=lambda text: [int(part) for part in text.split(".")],
                 default="3.0")  # fmt: skip
    by_name = {(each.folder, each.key): each for each in reversed(installed)}
    needs: dict[str, set[str]] = {each.place: set() for each in installed}
    pending = [(each, "") for each in installed]
    done: set[tuple[str, str]] = set()
    while pending:
        each, extra = pending.pop()
        if (each.place, extra) in done:
            continue
        done.add((each.place, extra))
        python = _python(each) if _PYTHON.search(each.folder) else newest
        for need in _requirements(each.raw, python, architecture, extra):
            other = by_name.get((each.folder, canonicalize_name(need.name)))
            if other is not None:
                needs[each.place].add(other.ref)
                pending += ((other, name) for name in need.extras)
    return needs


def _python(each: Package) -> str:
    match = _PYTHON.search(each.folder)
    return match[1] if match else "3.0"


def _requirements(raw: RawMetadata, python: str, architecture: str, extra: str) -> Iterator[Requirement]:
    environment = {
        "implementation_name": "cpython", "implementation_version": f"{python}.0", "os_name": "posix",
        "platform_machine": _MACHINES.get(architecture, architecture), "platform_python_implementation": "CPython",
        "platform_release": "", "platform_system": "Linux", "platform_version": "",
        "python_full_version": f"{python}.0", "python_version": python, "sys_platform": "linux", "extra": extra,
    }  # fmt: skip
    for text in raw.get("requires_dist") or ():
        try:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate(environment):
                yield need
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName, ValueError):  # noqa: PERF203
            continue
