"""Where evidence lies: written atomically, found by what an image is."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path

from envbuild import store
from envbuild.errors import EngineError
from envbuild.evidence.keys import SigningKey
from envbuild.evidence.record import Evidence, read
from envbuild.evidence.signing import seal
from envbuild.evidence.statement import document_of, payload
from envbuild.model import Level

ENVELOPE = ".dsse.json"


def save(evidence: Evidence, engine_id: str, *, key: SigningKey | None = None) -> Path:
    """Write evidence into the store, atomically, and index it by the engine's id of the image.

    With a key its signed statement is written beside it. The record comes last, and an unsigned one takes the envelope
    of its predecessor away first: whatever a kill leaves between the two is never taken for signed, so the next run
    with the key writes both again.

    Raises:
        EngineError: The store cannot be written.
    """
    path = path_of(
        evidence.image.config_digest, evidence.environment, evidence.suite, evidence.level, on=evidence.seen_on
    )
    record = store.encode_json(document_of(evidence))
    if key is None:
        store.make_folder(path.parent)
        store.remove(envelope_of(path))
        store.write_atomic(path, record)
    else:
        envelope = store.encode_json(seal(payload(evidence), key))
        store.write_together([(envelope_of(path), envelope), (path, record)])
    store.write_atomic(_index(engine_id), evidence.image.config_digest)
    return path


def adopt(record: Evidence, data: bytes, envelope: bytes | None, engine_id: str) -> Path:
    """Take evidence from elsewhere into the store, byte for byte, for an image that the engine has.

    From then on it counts as what was seen here: the caller has checked whom it comes from, and of which image it is.

    Raises:
        EngineError: The store cannot be written.
    """
    path = path_of(record.image.config_digest, record.environment, record.suite, record.level, on=record.seen_on)
    if envelope is None:
        store.make_folder(path.parent)
        store.remove(envelope_of(path))
        store.write_atomic(path, data)
    else:
        store.write_together([(envelope_of(path), envelope), (path, data)])
    store.write_atomic(_index(engine_id), record.image.config_digest)
    return path


def path_of(config_digest: str, environment: str, suite: str, level: Level, *, on: str = "") -> Path:
    """Where evidence of a level, for a row's claims, from a suite is kept for an image.

    Args:
        on: GPU and driver of a GPU's evidence (``Evidence.seen_on``): what another GPU has shown stays beside it.
    """
    return folder_of(config_digest) / f"{'-'.join(filter(None, (environment, suite[:12], level.value, on)))}.json"


def envelope_of(path: Path) -> Path:
    """Where the signed statement of a record lies, whether or not there is one."""
    return path.with_name(path.name.removesuffix(".json") + ENVELOPE)


def digest_of(engine_id: str) -> str | None:
    """The config digest of an image that has evidence, by the engine's id; None when it has none."""
    try:
        return _index(engine_id).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def best(
    engine_id: str, diff_ids: tuple[str, ...], *, environment: str, claims: Mapping[str, str], suite: str
) -> tuple[Level, Evidence, Path] | None:
    """The strongest level that an image has proven, for these claims and this suite, on whatever GPU; of several the
    newest.

    A record counts when all of it fits: the image's digest and layers, the row and what it claims today, the suite, and
    the level that its name promises. A record that does not, or cannot be read, is as good as none.

    Args:
        engine_id: What the engine calls the image.
        diff_ids: The image's layers, as the engine says.
    """
    digest = digest_of(engine_id)
    if digest is None:
        return None
    for level in reversed(Level):
        fitting = []
        for path in _candidates(path_of(digest, environment, suite, level)):
            try:
                record = read(path)
            except EngineError:
                continue
            said = (record.image.config_digest, record.image.diff_ids, record.environment, record.suite, record.level)
            named = path_of(digest, environment, suite, level, on=record.seen_on)
            if (
                said == (digest, diff_ids, environment, suite, level)
                and record.claims == dict(claims)
                and path == named
            ):
                fitting.append((level, record, path))
        if fitting:
            return max(fitting, key=lambda found: found[1].finished)
    return None


def every(engine_id: str, diff_ids: tuple[str, ...]) -> list[tuple[Evidence, Path]]:
    """Every record of an image that can be read and lies where it belongs, of any row and suite, newest first."""
    digest = digest_of(engine_id)
    found = []
    for path in stored(digest) if digest else ():
        try:
            record = read(path)
        except EngineError:
            continue
        named = path_of(digest or "", record.environment, record.suite, record.level, on=record.seen_on)
        if (record.image.config_digest, record.image.diff_ids, named) == (digest, diff_ids, path):
            found.append((record, path))
    return sorted(found, key=lambda each: each[0].finished, reverse=True)


def _candidates(plain: Path) -> list[Path]:
    """The file of a level, and those that name a GPU and a driver too."""
    found = (plain, *sorted(plain.parent.glob(f"{plain.stem}-*.json")))
    return [path for path in found if path.is_file() and not path.name.endswith(ENVELOPE)]


def records(engine_id: str) -> list[Path]:
    """Every record of an image, of any suite, newest first."""
    digest = digest_of(engine_id)
    return [] if digest is None else stored(digest)


def fresh(home: Path, since: float, also: Collection[Path] = ()) -> list[tuple[str, Path]]:
    """Records and comparisons that a store got since a moment (seconds since the epoch), and ``also`` these, each with
    the engine's id of its image. Not one is believed yet."""
    found = []
    for index in sorted((home / "evidence" / "index").glob("[0-9a-f]*")):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            folder = home / "evidence" / index.read_text().strip().removeprefix("sha256:")
            for path in sorted((*folder.glob("*.json"), *folder.glob("*/*.json"))):
                if not path.name.endswith(ENVELOPE) and (_modified(path) >= since or path in also):
                    found += [(f"sha256:{index.name}", path)]
    return found


def stored(config_digest: str) -> list[Path]:
    """Every record that is kept for an image, of any row, suite and level, newest first. Not one is believed yet."""
    found = [path for path in folder_of(config_digest).glob("*.json") if not path.name.endswith(ENVELOPE)]
    return sorted(found, key=lambda path: (_modified(path), path.name), reverse=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it went away, or leads nowhere
        return 0.0


def folder_of(config_digest: str) -> Path:
    """Where everything about an image is kept."""
    return store.home() / "evidence" / config_digest.removeprefix("sha256:")


def _index(engine_id: str) -> Path:
    return store.home() / "evidence" / "index" / engine_id.removeprefix("sha256:")


def remember_built(target_id: str, engine_id: str) -> None:
    """Note which image a build of a target gave. Labels are inherited by derived images; this is not.

    Raises:
        EngineError: The store cannot be written.
    """
    store.write_atomic(_built(target_id), engine_id)


def is_built(target_id: str, engine_id: str) -> bool:
    """Whether an image is what a build of the target gave here."""
    try:
        return _built(target_id).read_text(errors="replace").strip() == engine_id
    except OSError:
        return False


def any_built(target_id: str) -> bool:
    """Whether it is noted what a build of the target gave here."""
    return _built(target_id).is_file()


def _built(target_id: str) -> Path:
    return store.home() / "built" / target_id
