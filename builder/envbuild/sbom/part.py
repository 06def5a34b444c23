"""What an image is made of, before it is written down in anybody's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Purl:
    """The parts of a package URL (ECMA-427).

    Attributes:
        type: ``deb``, ``rpm`` or ``pypi``.
        namespace: The distribution, for its packages.
    """

    type: str
    name: str
    version: str
    namespace: str = ""
    qualifiers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing in an image.

    Attributes:
        ref: Its name in the document; no two parts have the same.
        kind: What CycloneDX calls it.
        version: Empty where nobody states one.
        group: What it belongs to, where its name alone says too little.
        purl: None where no index of packages has it.
        licences: As its metadata states them: SPDX expressions, or names.
        sha256: Hex digest of the file that it is; empty for what has several files.
        places: Where it lies in the image.
        properties: Names and values, beside what the format has fields for.
        needs: References of the parts that its metadata asks for.
        inside: Parts that it carries with it.
    """

    ref: str
    name: str
    version: str
    kind: Literal["library", "operating-system", "container"] = "library"
    group: str = ""
    description: str = ""
    publisher: str = ""
    purl: Purl | None = None
    licences: tuple[str, ...] = ()
    sha256: str = ""
    places: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()
    inside: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A whole image, or a bundle.

    Attributes:
        digest: Of its config, ``sha256:...``: who it is.
        name: The row that its labels name, or ``image``.
        created: As its config says it (RFC 3339); empty where it does not.
        kind: ``container`` for an image, ``file`` for a bundle: what CycloneDX calls it.
        properties: What is said of the image as a whole.
        parts: Everything in it, in the order of the references.
        problems: What could not be read: the list of parts may lack something for each of them.
    """

    digest: str
    name: str
    created: str
    properties: tuple[tuple[str, str], ...]
    parts: tuple[Part, ...]
    problems: tuple[str, ...] = ()
    kind: Literal["container", "file"] = "container"
