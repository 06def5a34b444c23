"""The parts of an image as a CycloneDX document. The same parts give the same bytes."""

from __future__ import annotations

import datetime
import json
import re
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from envbuild import __version__
from envbuild.sbom.part import Contents, Part, Purl

if TYPE_CHECKING:
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.component import Component
    from cyclonedx.model.license import License
    from packageurl import PackageURL

MEDIA_TYPE = "application/vnd.cyclonedx+json"
FORMAT = "CycloneDX 1.6"
# Before these, envbuild's own properties need a name that nobody else's have.
_PREFIX = "envbuild:"
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)")


def dump(contents: Contents) -> bytes:
    """The document. Who asks, when, and where the image lies have no part in it.

    Its serial number is made from the image's digest, its timestamp is the image's own.
    """
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.dependency import Dependency
    from cyclonedx.output.json import JsonV1Dot6

    maker = _Maker(LicenseFactory())
    image = Component(
        type=ComponentType.CONTAINER, bom_ref=contents.digest, name=contents.name, version=contents.digest,
        properties=[Property(name=_named(name), value=value) for name, value in contents.properties],
    )  # fmt: skip
    created = _instant(contents.created)
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"oci:{contents.digest}"),
        metadata=BomMetaData(
            timestamp=created or datetime.datetime.fromtimestamp(0, datetime.timezone.utc), component=image
        ),
        components=[maker.component(part) for part in contents.parts],
        properties=[Property(name=f"{_PREFIX}incomplete", value=problem) for problem in contents.problems],
    )
    bom.metadata.tools.components.add(
        Component(type=ComponentType.APPLICATION, bom_ref="tool:envbuild", name="envbuild", version=__version__)
    )
    refs = {component.bom_ref.value: component.bom_ref for component in bom.components}
    needed = {need for part in contents.parts for need in part.needs}
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
        from cyclonedx.model import HashAlgorithm, HashType, Property
        from cyclonedx.model.component import Component, ComponentType
        from cyclonedx.model.component_evidence import ComponentEvidence, Occurrence

        return Component(
            type=ComponentType(part.kind),
            bom_ref=part.ref,
            group=part.group or None,
            name=part.name,
            version=part.version or None,
            description=part.description or None,
            publisher=part.publisher or None,
            purl=_purl(part.purl) if part.purl is not None else None,
            licenses=self._stated(part.licences),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=part.sha256)] if part.sha256 else (),
            evidence=ComponentEvidence(occurrences=[Occurrence(location=place) for place in part.places])
            if part.places
            else None,
            properties=[Property(name=_named(name), value=value) for name, value in part.properties],
            components=[self.component(each) for each in part.inside],
        )

    def _stated(self, names: Iterable[str]) -> list[License]:
        """One expression stands alone, or there are any number of licences: the schema allows no mixture."""
        from cyclonedx.model.license import LicenseExpression

        found = [self._licences.make_from_string(name) for name in names]
        if len(found) > 1:
            found = [
                self._licences.make_with_name(each.value) if isinstance(each, LicenseExpression) else each
                for each in found
            ]
        return found


def _named(name: str) -> str:
    return name if name.startswith(_PREFIX) else f"{_PREFIX}{name}"


def _purl(purl: Purl) -> PackageURL:
    from packageurl import PackageURL

    return PackageURL(
        type=purl.type, namespace=purl.namespace or None, name=purl.name, version=purl.version or None,
        qualifiers={name: value for name, value in purl.qualifiers.items() if value},
    )  # fmt: skip


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
