"""Packages of Debian and Ubuntu: dpkg's status, and the licences that a package's copyright file states.

A copyright file is understood where it is machine-readable (Debian's "Machine-readable debian/copyright file", 1.0):
most are. Distroless images keep one paragraph for each package in ``status.d``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from envbuild.sbom.part import Part, Purl
from envbuild.sbom.texts import Release, Texts

_STATUS = re.compile(r"var/lib/dpkg/status(?:\.d/(?!.*\.md5sums$)[^/]+)?")
_COPYRIGHT = re.compile(r"usr/share/doc/[^/]+/copyright")
_FORMAT = re.compile(r"^Format(?:-Specification)?:\s*\S*copyright-format", re.IGNORECASE)
_FIELD = re.compile(r"^([A-Za-z][A-Za-z0-9-]*):[ \t]*(.*)$")
_SOURCE = re.compile(r"(\S+)(?:\s+\((.+)\))?")
_NAME = re.compile(r"\s*([a-z0-9][a-z0-9+.-]*)", re.IGNORECASE)


def wanted(path: str) -> bool:
    """Whether the bytes of a file are needed."""
    return _STATUS.fullmatch(path) is not None or _COPYRIGHT.fullmatch(path) is not None


def parts(texts: Texts, release: Release) -> list[Part]:
    """Every package that dpkg has installed, with what it depends on."""
    installed = [
        fields
        for path in texts.paths(_STATUS)
        for fields in paragraphs(texts.get(path))
        if fields.get("package") and fields.get("version") and _is_installed(fields)
    ]
    refs = [f"deb:{each['package']}:{each.get('architecture', '')}@{each['version']}" for each in installed]
    providers = _providers(installed, refs)
    return [
        _part(fields, ref, _needs(fields, providers), texts, release)
        for fields, ref in zip(installed, refs, strict=True)
    ]


def _is_installed(fields: Mapping[str, str]) -> bool:
    # Distroless has no status: what lies in its folder is installed.
    return fields.get("status", "install ok installed").endswith(" installed")


def _part(fields: Mapping[str, str], ref: str, needs: tuple[str, ...], texts: Texts, release: Release) -> Part:
    name, version, arch = fields["package"], fields["version"], fields.get("architecture", "")
    source = _SOURCE.match(fields.get("source", ""))
    origin, built = (source[1], source[2] or version) if source else (name, version)
    qualifiers = {"arch": arch, "distro": release.label}
    if source:
        # Advisories of Debian name source packages; scanners look for this qualifier.
        qualifiers["upstream"] = origin if built == version else f"{origin}@{built}"
    return Part(
        ref=ref,
        name=name,
        version=version,
        description=fields.get("description", ""),
        publisher=fields.get("maintainer", ""),
        purl=Purl(type="deb", namespace=release.id or "debian", name=name, version=version, qualifiers=qualifiers),
        licences=_licences(texts.get(f"usr/share/doc/{name}/copyright", optional=True)),
        properties=(("dpkg:source", origin), ("dpkg:source:version", built), ("dpkg:architecture", arch)),
        needs=needs,
    )


def _providers(installed: list[dict[str, str]], refs: list[str]) -> dict[str, str]:
    """Who meets a need for a name: the package that has it, or else the first that provides it."""
    found: dict[str, str] = {}
    for fields, ref in zip(installed, refs, strict=True):
        found.setdefault(fields["package"], ref)
    for fields, ref in zip(installed, refs, strict=True):
        for name in _names(fields.get("provides", "")):
            found.setdefault(name[0], ref)
    return found


def _needs(fields: Mapping[str, str], providers: Mapping[str, str]) -> tuple[str, ...]:
    needs = f"{fields.get('pre-depends', '')},{fields.get('depends', '')}"
    # Of alternatives, the first that is installed.
    found = (next((providers[name] for name in names if name in providers), None) for names in _names(needs))
    return tuple(sorted({ref for ref in found if ref is not None}))


def _names(relation: str) -> Iterator[tuple[str, ...]]:
    """The names of a relationship field, alternatives together; versions and architectures are left out."""
    for clause in relation.split(","):
        names = tuple(match[1] for each in clause.split("|") if (match := _NAME.match(each)))
        if names:
            yield names


def _licences(text: str) -> tuple[str, ...]:
    stanzas = list(paragraphs(text)) if _FORMAT.match(text) else []
    found = (fields.get("license", "").strip() for fields in stanzas if "files" in fields)
    return tuple(sorted({name for name in found if name and len(name) <= 200}))


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Paragraphs of deb822(5): the first line of each field, by its name in lower case; the first of a name counts."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            if fields:
                yield fields
            fields = {}
        elif match := _FIELD.match(line):
            fields.setdefault(match[1].lower(), match[2].strip())
    if fields:
        yield fields
