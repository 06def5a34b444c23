"""The statement that is signed: an in-toto Statement about one image, with the whole record as its predicate.

The layout is that of in-toto's attestation framework, Statement v1 (github.com/in-toto/attestation, spec/v1). Its
published test-result predicate has no place for a level, a GPU, a driver or a suite, so the predicate is our own; it
is described in docs/evidence.md.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envbuild.evidence.record import Evidence
from envbuild.model import Digest

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
# A type has to be a URI that nobody else uses, and need not lead anywhere (in-toto's field types). A random UUID is
# ours without a domain that somebody would have to keep; the fragment says to people what it is, and its version.
PREDICATE_FAMILY = "urn:uuid:b0d351bc-76db-48c0-8a67-69cf9c61947f#envbuild-evidence/"
PREDICATE_TYPE = f"{PREDICATE_FAMILY}v1"


class NotUnderstood(Exception):
    """A payload that is no statement of ours, or of a version that this envbuild does not know."""


class _Lenient(BaseModel):
    # in-toto's parsing rules: fields that are not known are ignored.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class DigestSet(_Lenient):
    """One digest of a subject."""

    sha256: str


class Subject(_Lenient):
    """What a statement is about."""

    name: str = ""
    digest: DigestSet


class Statement(_Lenient):
    """A statement, with its predicate as it is written."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[Subject, ...] = Field(min_length=1, max_length=1)
    predicate_type: str = Field(alias="predicateType")
    predicate: dict[str, Any]


def document_of(record: Evidence) -> dict[str, Any]:
    """A record as JSON carries it, in its file and in a statement."""
    return record.model_dump(mode="json", by_alias=True)


def payload(record: Evidence) -> bytes:
    """The bytes to sign: compact JSON with sorted keys. The subject is the image's config, by its digest."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {
                "name": record.environment,
                "digest": {"sha256": record.image.config_digest.removeprefix("sha256:")},
            }
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": document_of(record),
    }
    return canonical(statement)


def parse(data: bytes) -> tuple[Digest, dict[str, Any], Evidence]:
    """The image's digest, the predicate as it is written, and the record that it is.

    Args:
        data: A payload whose signature has been verified.

    Raises:
        NotUnderstood: It is something else.
    """
    statement = read_statement(data)
    if statement.predicate_type != PREDICATE_TYPE:
        known = statement.predicate_type.startswith(PREDICATE_FAMILY)
        what = "a version that this envbuild does not know" if known else "not evidence of envbuild"
        raise NotUnderstood(f"its predicate is {what}: {statement.predicate_type[:200]!r}")
    try:
        record = Evidence.model_validate(statement.predicate)
    except (ValidationError, RecursionError) as error:
        reason = _first(error) if isinstance(error, ValidationError) else "nested too deeply"
        raise NotUnderstood(f"its predicate is no record of evidence: {reason}") from error
    return f"sha256:{statement.subject[0].digest.sha256}", statement.predicate, record


def read_statement(data: bytes) -> Statement:
    """A statement about one thing, whatever it says of it.

    Raises:
        NotUnderstood: It is none.
    """
    try:
        return Statement.model_validate(decode(data))
    except ValidationError as error:
        raise NotUnderstood(f"it is no in-toto Statement v1 about one image: {_first(error)}") from error
    except ValueError as error:
        raise NotUnderstood(f"it is not JSON: {error}") from error


def decode(data: bytes) -> Any:
    """JSON from outside.

    Raises:
        ValueError: It is not JSON, not UTF-8, nested too deeply, has a number that JSON does not know, or a key twice
            (readers differ in which one they take).
    """
    try:
        return json.loads(data.decode(), parse_constant=_no_constant, object_pairs_hook=_each_once)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def canonical(document: Any) -> bytes:
    """One document, one sequence of bytes: for signing, and to compare what two files say.

    Raises:
        ValueError: It has a number that JSON does not know, or is nested too deeply.
    """
    try:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return text.encode()


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return found


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))[:200]
    return f"{place}: {first['msg'][:200]}" if place else first["msg"][:200]
