"""What a comparison with a baseline has shown of an image's speed: a statement of its own beside the evidence.

A smoke's record stays as it was signed; this comes later, may come again, and is of a baseline that a team chose. One
file for each baseline lies in the folder ``performance`` of the image's evidence; docs/evidence.md describes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, ValidationError

from envbuild import store
from envbuild.errors import EngineError
from envbuild.evidence import files
from envbuild.evidence.keys import PublicKey, SigningKey
from envbuild.evidence.record import Identity, printable, read_bounded
from envbuild.evidence.signing import Refused, State, seal, unseal
from envbuild.evidence.statement import STATEMENT_TYPE, NotUnderstood, canonical, decode, read_statement
from envbuild.model import Digest, Frozen, Line, Name, Word

COMPARED_FAMILY = "urn:uuid:e91f46f7-bc55-4d90-9fee-7a939b449fa9#envbuild-performance/"
COMPARED_TYPE = f"{COMPARED_FAMILY}v1"
# A record is some 2 KiB.
MAX_COMPARED = 256 * 1024
_FOLDER = "performance"

Answer = Literal["baseline", "same", "faster", "regressed", "inconclusive", "incomparable"]
PASSED: frozenset[Answer] = frozenset({"baseline", "same", "faster"})


class Compared(Frozen):
    """One comparison of an image with one baseline.

    Attributes:
        baseline: The baseline's name.
        measurement: SHA-256 of the measurement that counted as baseline.
        base_image: Config digest of the image that it is of, and that was launched in turns with this one.
        key: What both sides have in common, as a measurement's key says it: ds_config, model, hardware, ranks.
        verdict: As ``compare`` gives it; ``baseline`` where the image is the baseline's own.
        reason: Why; of a baseline, why it was promoted.
        delta, rounds: What was asked for.
        ratio, low, high: Step time of the image to that of the baseline's, and its bounds.
        detectable: The smallest change that would have been found four times in five.
        base_seconds, seconds: Median step of both.
        attempt: How often this image was compared with this measurement.
        session: The name of the launches, in the store of the machine that made them; None where there were none.
    """

    schema_: Literal["envbuild.performance/1"] = Field("envbuild.performance/1", alias="schema")
    environment: Name
    image: Identity
    baseline: Line
    measurement: Line
    base_image: Digest
    key: dict[str, Any]
    verdict: Answer
    reason: Line
    delta: float
    rounds: int
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    detectable: float | None = None
    base_seconds: float | None = None
    seconds: float | None = None
    attempt: Annotated[int, Field(ge=1)] = 1
    session: Word | None = None
    envbuild: Line
    started: AwareDatetime
    finished: AwareDatetime

    @property
    def passed(self) -> bool:
        """Whether there is no regression in it."""
        return self.verdict in PASSED


def save_compared(record: Compared, *, key: SigningKey | None = None) -> Path:
    """Write a comparison into the store, atomically, and its signed statement where there is a key.

    Raises:
        EngineError: The store cannot be written.
    """
    document = record.model_dump(mode="json", by_alias=True)
    envelope = store.encode_json(seal(_payload(record), key)).encode() if key is not None else None
    return _write(record, store.encode_json(document).encode(), envelope)


def adopt_compared(record: Compared, data: bytes, envelope: bytes | None) -> Path:
    """Take a comparison from elsewhere into the store, byte for byte; the caller has checked whom it comes from.

    Raises:
        EngineError: The store cannot be written.
    """
    return _write(record, data, envelope)


def compared(config_digest: str) -> list[tuple[Compared, Path]]:
    """Every comparison of an image that can be read and is of it. Not one is believed yet."""
    found = []
    for path in compared_paths(config_digest):
        try:
            record = read_compared(path)
        except EngineError:
            continue
        if record.image.config_digest == config_digest and _path(record) == path:
            found.append((record, path))
    return found


def compared_paths(config_digest: str) -> list[Path]:
    """The files of an image's comparisons."""
    return _compared_in(files.folder_of(config_digest))


def compared_beside(record: Path) -> list[Path]:
    """The files of the comparisons of the image that a record of evidence is of, in whatever store that lies."""
    return _compared_in(record.parent)


def _compared_in(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / _FOLDER).glob("*.json") if not path.name.endswith(files.ENVELOPE))


def is_compared(path: Path) -> bool:
    """Whether a path of the store is a comparison's, and no record of evidence."""
    return path.parent.name == _FOLDER


def read_compared(path: Path) -> Compared:
    """Read one comparison.

    Raises:
        EngineError: It is missing or not what one looks like.
    """
    try:
        return Compared.model_validate_json(read_bounded(path, MAX_COMPARED))
    except ValidationError as error:
        first = error.errors()[0]
        place = printable(".".join(map(str, first["loc"])))[:200]
        raise EngineError(f"{path}: not a comparison: {place}: {first['msg']}", hint="Remove the file.") from error


def compared_by(path: Path, keys: Sequence[PublicKey]) -> tuple[Compared, PublicKey]:
    """A comparison as it was signed, and the trusted key that signed it.

    Raises:
        Refused: No trusted key signed it, or the file says something else than what was signed.
    """
    envelope = files.envelope_of(path)
    try:
        sealed, plain = read_bounded(envelope, MAX_COMPARED * 2), read_bounded(path, MAX_COMPARED)
    except EngineError as error:
        raise Refused(State.UNSIGNED, f"nobody has signed {path.name}") from error
    payload, key = unseal(sealed, keys)
    try:
        statement = read_statement(payload)
        if statement.predicate_type != COMPARED_TYPE:
            raise NotUnderstood(f"its predicate is no comparison: {statement.predicate_type[:200]!r}")
        record = Compared.model_validate(statement.predicate)
        same = canonical(decode(plain)) == canonical(statement.predicate)
    except (NotUnderstood, ValidationError, ValueError) as error:
        raise Refused(State.UNKNOWN, f"signed by key {key.id[:12]}, but not understood: {error}"[:300]) from error
    if f"sha256:{statement.subject[0].digest.sha256}" != record.image.config_digest or not same:
        raise Refused(State.TAMPERED, f"{path.name} says something else than what was signed")
    return record, key


def _payload(record: Compared) -> bytes:
    subject = {
        "name": record.environment,
        "digest": {"sha256": record.image.config_digest.removeprefix("sha256:")},
    }
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [subject],
        "predicateType": COMPARED_TYPE,
        "predicate": record.model_dump(mode="json", by_alias=True),
    }
    return canonical(statement)


def _write(record: Compared, data: bytes, envelope: bytes | None) -> Path:
    path = _path(record)
    if envelope is None:
        store.make_folder(path.parent)
        store.remove(files.envelope_of(path))
        store.write_atomic(path, data)
    else:
        store.write_together([(files.envelope_of(path), envelope), (path, data)])
    return path


def _path(record: Compared) -> Path:
    plain = re.sub(r"[^a-z0-9.]+", "-", record.baseline.lower()).strip("-.") or "x"
    return files.folder_of(record.image.config_digest) / _FOLDER / f"{record.environment}.{plain[:120]}.json"
