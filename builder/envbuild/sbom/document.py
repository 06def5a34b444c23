"""The parts of an image as a CycloneDX document. The same parts give the same bytes."""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import re
import uuid
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuild import __version__
from envbuild.judge.suite import suite_hash
from envbuild.sbom.part import Contents, Part, Purl

if TYPE_CHECKING:
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component
    from cyclonedx.model.license import License
    from packageurl import PackageURL

MEDIA_TYPE = "application/vnd.cyclonedx+json"
FORMAT = "CycloneDX 1.6"
_LONGEST = 1000
# Before these, envbuild's own properties need a name that nobody else's have.
_PREFIX = "envbuild:"
_SPACES = {"container": "oci", "file": "envbuild-bundle"}
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)")


@functools.cache
def revision() -> str:
    """What makes documents, as a name: while it is the same, the same image gives the same bytes."""
    # The suite's hash covers what reads archives, ELF files and RPM databases.
    digest = hashlib.sha256(f"{__version__} {version('cyclonedx-python-lib')} {suite_hash()}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def dump(contents: Contents) -> bytes:
    """The document. Who asks, when, and where the image lies have no part in it.

    Its serial number is made from the image's digest, its timestamp is the image's own.
    """
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.bom_ref import BomRef
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.dependency import Dependency
    from cyclonedx.output.json import JsonV1Dot6

    maker = _Maker(LicenseFactory())
    image = Component(
        type=ComponentType(contents.kind), bom_ref=contents.digest, name=_text(contents.name), version=contents.digest,
        properties=_properties(contents.properties),
    )  # fmt: skip
    created = _instant(contents.created)
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{_SPACES[contents.kind]}:{contents.digest}"),
        metadata=BomMetaData(
            timestamp=created or datetime.datetime.fromtimestamp(0, datetime.timezone.utc), component=image
        ),
        components=[maker.component(part) for part in contents.parts],
        properties=_properties(("incomplete", problem) for problem in contents.problems),
    )
    bom.metadata.tools.components.add(
        Component(type=ComponentType.APPLICATION, bom_ref="tool:envbuild", name="envbuild", version=__version__)
    )
    refs = {part.ref: BomRef(_ref(part)) for part in contents.parts}
    needed = {need for part in contents.parts for need in part.needs if need != part.ref}
    # What nobody in the image asks for is what somebody wanted in it.
    roots = [ref for name, ref in refs.items() if name not in needed] or list(refs.values())
    bom.dependencies.add(Dependency(ref=image.bom_ref, dependencies=[Dependency(ref=ref) for ref in roots]))
    for part in contents.parts:
        needs = [Dependency(ref=refs[name]) for name in part.needs if name in refs and name != part.ref]
        bom.dependencies.add(Dependency(ref=refs[part.ref], dependencies=needs))
    document: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    if created is None:
        # The library always writes one; of an image that does not say when it was made nobody knows.
        document["metadata"].pop("timestamp", None)
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=True) + "\n").encode()


class _Maker:
    def __init__(self, licences: LicenseFactory) -> None:
        self._licences = licences

    def component(self, part: Part) -> Component:
        """One part, with what it carries."""
        from cyclonedx.model import HashAlgorithm, HashType
        from cyclonedx.model.component import Component, ComponentType
        from cyclonedx.model.component_evidence import ComponentEvidence, Occurrence

        return Component(
            type=ComponentType(part.kind),
            bom_ref=_ref(part),
            group=part.group or None,
            name=_text(part.name),
            version=_text(part.version) or None,
            description=_text(part.description) or None,
            publisher=_text(part.publisher) or None,
            purl=_purl(part.purl) if part.purl is not None else None,
            licenses=self._stated(part.licences),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=part.sha256)] if part.sha256 else (),
            evidence=ComponentEvidence(occurrences=[Occurrence(location=_text(place)) for place in part.places])
            if part.places
            else None,
            properties=_properties(part.properties),
            components=[self.component(each) for each in part.inside],
        )

    def _stated(self, names: Iterable[str]) -> list[License]:
        """One expression stands alone, or there are any number of licences: the schema allows no mixture."""
        from cyclonedx.model.license import LicenseExpression

        found = [self._licences.make_from_string(_text(name)) for name in names]
        if len(found) > 1:
            found = [
                self._licences.make_with_name(each.value) if isinstance(each, LicenseExpression) else each
                for each in found
            ]
        return found


def _properties(pairs: Iterable[tuple[str, str]]) -> list[Property]:
    from cyclonedx.model import Property

    return [Property(name=f"{_PREFIX}{name}", value=_text(value)) for name, value in pairs]


def _text(value: str) -> str:
    """Bytes that were no UTF-8 as escapes, and no more than the schema allows of a version."""
    return value.encode("utf-8", "backslashreplace").decode()[:_LONGEST]


def _ref(part: Part) -> str:
    # In full: two long names may differ at their ends.
    return part.ref.encode("utf-8", "backslashreplace").decode()


def _purl(purl: Purl) -> PackageURL | None:
    from packageurl import PackageURL

    try:
        found = PackageURL(
            type=purl.type, namespace=_text(purl.namespace) or None, name=_text(purl.name),
            version=_text(purl.version) or None,
            qualifiers={name: _text(value) for name, value in purl.qualifiers.items() if value},
        )  # fmt: skip
    except ValueError:
        return None
    # Of a name of slashes alone nothing is left.
    return found if found.name else None


def _instant(text: str) -> datetime.datetime | None:
    """A time of the OCI image specification (RFC 3339), to the second: Python's own reader is older than its digits."""
    match = _INSTANT.fullmatch(text)
    if match is None:
        return None
    try:
        found = datetime.datetime.fromisoformat(match[1] + match[2].replace("Z", "+00:00"))
        return found.astimezone(datetime.timezone.utc)
    except (ValueError, OverflowError):
        return None
