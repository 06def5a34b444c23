"""METADATA of a wheel and PKG-INFO of a source archive, as far as facts need them."""

from __future__ import annotations

import email.parser
import email.policy
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.facts.upstream.page import RemoteFile, Shape
from envbuild.net.manners import shown

_CHANGED = "the file has changed its shape, or something else answers in its place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What a package says of itself."""

    name: str
    version: Version
    requires_python: str | None
    classifiers: tuple[str, ...]
    requirements: tuple[Requirement, ...]

    def pin(self, name: str, *, python: str) -> str | None:
        """The one version of ``name`` that it wants on Linux x86-64 with that Python; None where it pins none."""
        found = {
            specifier.version
            for each in self.requirements
            if canonicalize_name(each.name) == name and _applies(each, python)
            for specifier in each.specifier
            if specifier.operator == "==" and len(each.specifier) == 1 and not specifier.version.endswith(".*")
        }
        return found.pop() if len(found) == 1 else None

    def wants(self, prefix: str, *, python: str) -> tuple[str, ...]:
        """The names that it asks for on Linux x86-64, as far as they start with ``prefix``."""
        names = (canonicalize_name(each.name) for each in self.requirements if _applies(each, python))
        return tuple(dict.fromkeys(name for name in names if name.startswith(prefix)))


def parse(content: bytes, file: RemoteFile) -> Metadata:
    """Core metadata.

    Raises:
        Shape: It is none, or that of another package or version than the file's name says.
    """
    place = shown(file.url)
    message = email.parser.BytesParser(policy=email.policy.compat32).parsebytes(content, headersonly=True)
    fields: Mapping[str, list[str]] = {
        key: [str(value) for value in message.get_all(key) or ()]
        for key in ("Metadata-Version", "Name", "Version", "Requires-Python", "Classifier", "Requires-Dist")
    }
    if not fields["Metadata-Version"] or not fields["Name"] or not fields["Version"]:
        raise Shape(f"{place}: expected METADATA with Metadata-Version, Name and Version", hint=_CHANGED)
    try:
        version = Version(fields["Version"][0])
        requirements = tuple(Requirement(text) for text in fields["Requires-Dist"])
    except (InvalidVersion, InvalidRequirement) as error:
        said = " ".join(str(error).split())[:200]
        raise Shape(f"{place}: expected METADATA with versions and requirements: {said}", hint=_CHANGED) from error
    name = fields["Name"][0]
    if canonicalize_name(name) != file.name or version.public != file.version.public:
        raise Shape(f"{place}: its METADATA speaks of {name[:80]} {version}", hint=_CHANGED)
    return Metadata(
        name=canonicalize_name(name),
        version=version,
        requires_python=next(iter(fields["Requires-Python"]), None),
        classifiers=tuple(fields["Classifier"]),
        requirements=requirements,
    )


def _applies(requirement: Requirement, python: str) -> bool:
    if requirement.marker is None:
        return True
    target = {
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    try:
        return requirement.marker.evaluate(target)
    except (UndefinedComparison, UndefinedEnvironmentName):
        return False
