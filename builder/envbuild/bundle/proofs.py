"""What the image of a bundle has proved: whether its records are of it, show what is said, and whose word that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envbuild.bundle.finding import about
from envbuild.bundle.manifest import Image
from envbuild.bundle.tree import Tree, Unreadable
from envbuild.evidence import Evidence, PublicKey, Refused
from envbuild.evidence.files import ENVELOPE
from envbuild.evidence.record import MAX_BYTES
from envbuild.evidence.statement import decode
from envbuild.evidence.trust import MAX_ENVELOPE, fitting
from envbuild.model import Finding, Level

_AGAIN = "Whoever made the bundle has to export it again."
_SIGN = "Have it proven and signed by a key that is trusted here: [trust] keys, or --key FILE."


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the evidence in a bundle is worth.

    Attributes:
        level: What it shows; None without an image, or without evidence that could be read.
        key: The trusted key that signed it; None where no key is trusted here, or none of them did.
    """

    findings: tuple[Finding, ...] = ()
    level: Level | None = None
    key: PublicKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    path: str
    record: Evidence
    plain: bytes


def look(tree: Tree, image: Image | None, keys: Sequence[PublicKey]) -> Shown:
    """Look at the records of an image and, where keys are trusted, at their signatures."""
    if image is None:
        return Shown()
    findings: list[Finding] = []
    try:
        records = list(_records(tree, image, findings))
    except Unreadable:
        return Shown(findings=tuple(findings))  # told with what is missing, or left to the base
    showing = [each for each in records if each.record.level is image.level]
    if image.level is not None and not showing:
        text = f"no evidence here shows level {image.level.value}"
        return Shown(findings=(*findings, about("evidence", image.path, text, _AGAIN)))
    key, reasons = None, []
    for each in records if keys else ():
        signer, reason = _signer(tree, each, keys)
        if each in showing:
            key = key or signer
            reasons.append(reason)
    if keys and image.level is not None and key is None:
        text = f"no trusted key has signed that the image shows level {image.level.value}: {'; '.join(reasons)}"
        findings.append(about("evidence", image.path, text, _SIGN))
    return Shown(findings=tuple(findings), level=image.level, key=key)


def _records(tree: Tree, image: Image, findings: list[Finding]) -> Iterator[_Record]:
    for path in (path for path in image.evidence if not path.endswith(ENVELOPE)):
        try:
            plain = tree.read(path, MAX_BYTES)
            record = Evidence.model_validate(decode(plain))
        except Unreadable as error:
            if error.missing:
                raise
            record = None
        except ValueError:  # pydantic's error is one
            record = None
        if record is None or record.image.config_digest != image.config_digest:
            findings.append(about("evidence", path, f"{path} is no evidence of the image in this bundle", _AGAIN))
        else:
            yield _Record(path=path, record=record, plain=plain)


def _signer(tree: Tree, each: _Record, keys: Sequence[PublicKey]) -> tuple[PublicKey | None, str]:
    """The trusted key that signed a record, or why there is none."""
    beside = each.path.removesuffix(".json") + ENVELOPE
    try:
        return fitting(each.plain, tree.read(beside, MAX_ENVELOPE), keys, each.path).key, ""
    except Unreadable as error:
        return None, f"nobody has signed {each.path}" if error.missing else f"{beside}: {error}"
    except Refused as refused:
        return None, f"{beside}: {refused.reason}"
