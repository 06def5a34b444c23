"""promote --set: the images of several rows move together, or not one of them does.

A release is a name that never moves, given to each row's image, and then ``validated`` of each. Neither an engine nor a
registry can move several names at once; so what stood there is written down first, a failure puts it back, and a run
that was killed is finished by the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from envbuild import store
from envbuild.engines import Engine
from envbuild.errors import EngineError, EnvbuildError, GateError, InputError
from envbuild.events import Note, Sink
from envbuild.registry import Repository

_NAME = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,60}")
# Names that mean something else.
_OURS = re.compile(r"validated|candidate-.*|unverified-.*|sha256-.*|.*-[0-9a-f]{8}(-\w+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of a release.

    Attributes:
        repository: Where its names are.
        image: What they shall name: an engine's id, or a manifest's digest.
        own: The tag that the image has by its content; it is given too where it is not there yet.
    """

    environment: str
    repository: str
    image: str
    own: str


class Shelf(Protocol):
    """Something that has names for images: an engine, or a registry.

    Attributes:
        option: What ``promote --set`` is given, besides, to mean it.
    """

    option: ClassVar[str]

    def holds(self, repository: str, tag: str) -> str | None:
        """What a tag names; None where it names nothing."""
        ...

    def point(self, repository: str, tag: str, image: str) -> None:
        """Have a tag name an image."""
        ...

    def clear(self, repository: str, tag: str) -> None:
        """Take a tag away."""
        ...


@dataclass(frozen=True, slots=True)
class EngineShelf:
    """The names of an engine."""

    option: ClassVar[str] = ""
    engine: Engine

    def holds(self, repository: str, tag: str) -> str | None:
        """The engine's id of the image."""
        info = self.engine.image(f"{repository}:{tag}")
        return info.id if info is not None else None

    def point(self, repository: str, tag: str, image: str) -> None:
        """Tag it."""
        self.engine.tag(image, f"{repository}:{tag}")

    def clear(self, repository: str, tag: str) -> None:
        """Untag it; the image has other names."""
        self.engine.untag(f"{repository}:{tag}")


@dataclass(frozen=True, slots=True)
class RegistryShelf:
    """The names of a registry, by repository."""

    option: ClassVar[str] = "--remote "
    repositories: dict[str, Repository]

    def holds(self, repository: str, tag: str) -> str | None:
        """The manifest's digest."""
        found = self.repositories[repository].resolve(tag)
        return found.digest if found is not None else None

    def point(self, repository: str, tag: str, image: str) -> None:
        """Write the same manifest under the tag."""
        there = self.repositories[repository]
        manifest = there.manifest(image)
        there.put_manifest(manifest.raw, manifest.descriptor.media_type, tag)

    def clear(self, repository: str, tag: str) -> None:
        """Delete the tag, where the registry can do that without the image (OCI distribution 1.1; many cannot)."""
        self.repositories[repository].delete_tag(tag)


def name_of(text: str) -> str:
    """A release's name, checked.

    Raises:
        InputError: It cannot be one.
    """
    if not _NAME.fullmatch(text) or _OURS.fullmatch(text):
        raise InputError(
            f"--set: {text!r} cannot be the name of a release",
            hint="Letters, digits, . _ and -, such as 2026.12; not validated, and not like the name of one image.",
        )
    return text


def move(shelf: Shelf, place: str, release: str, entries: Sequence[Entry], sink: Sink) -> tuple[str, ...]:
    """Give the images of a release their names; returns the names, ``validated`` last.

    Args:
        place: What the shelf is called: a registry's name, or an engine's address.
        entries: The rows; their evidence has been looked at.

    Raises:
        GateError: The release's name is taken by another image, or another release is half done (exit 5).
        EngineError: A name could not be moved; then all are where they were, or the message says which are not.
    """
    journal = _journal(place)
    lock = store.FileLock(journal.with_suffix(".lock"))
    lock.acquire(lambda: sink(Note(message=f"another run moves names of {place}; waiting for it")))
    try:
        plan = {
            "release": release,
            "entries": [
                {"environment": each.environment, "repository": each.repository, "image": each.image}
                for each in sorted(entries, key=lambda each: each.repository)
            ],
        }
        before = _resumed(journal, plan, shelf, sink)
        try:
            _refuse_taken(shelf, release, entries)
        except GateError:
            # Somebody took a name after the run that was killed: what that one had moved goes back.
            if before is not None and not [*_back(shelf, _moved(shelf, entries, before), before)]:
                store.remove(journal)
            raise
        if before is None:
            before = {each.repository: shelf.holds(each.repository, "validated") for each in entries}
            store.write_json(journal, {**plan, "before": before})
        _move(shelf, release, entries, before, journal)
        store.remove(journal)
    finally:
        lock.release()
    return (
        *(f"{each.repository}:{release}" for each in entries),
        *(f"{each.repository}:validated" for each in entries),
    )


def _refuse_taken(shelf: Shelf, release: str, entries: Sequence[Entry]) -> None:
    for each in entries:
        for tag in (release, each.own):
            _free(shelf, each, tag)


def _free(shelf: Shelf, entry: Entry, tag: str) -> bool:
    """Whether a name that is given once names nothing yet; False where it names the image.

    Raises:
        GateError: It names another one.
    """
    held = shelf.holds(entry.repository, tag)
    if held not in (None, entry.image):
        raise GateError(
            f"{entry.repository}:{tag} is another image already ({str(held)[:19]}); it is never overwritten",
            hint="Such a name is given once. Take another one for this release." if tag != entry.own else "",
        )
    return held is None


def _move(shelf: Shelf, release: str, entries: Sequence[Entry], before: dict[str, str | None], journal: Path) -> None:
    made: list[tuple[str, str]] = []
    moved: list[Entry] = []
    try:
        for each in entries:
            for tag in (each.own, release):
                # Again, and not only before the first one: somebody else may have given it since, to another image.
                if _free(shelf, each, tag):
                    made.append((each.repository, tag))
                    shelf.point(each.repository, tag, each.image)
        for each in entries:
            # Not as it was noted: after a run that was killed somebody may have moved it.
            if shelf.holds(each.repository, "validated") != each.image:
                moved.append(each)
                shelf.point(each.repository, "validated", each.image)
    except EnvbuildError as error:
        left = [
            *_back(shelf, moved, before),
            *(name for repository, tag in made for name in _cleared(shelf, repository, tag)),
        ]
        if left:
            raise EngineError(
                f"{error.message}\nand {', '.join(left)} could not be put back",
                hint="Say the same again when the registry answers: it finishes what was begun.",
            ) from error
        store.remove(journal)
        raise


def _moved(shelf: Shelf, entries: Sequence[Entry], before: dict[str, str | None]) -> list[Entry]:
    return [
        each
        for each in entries
        if before[each.repository] != each.image and shelf.holds(each.repository, "validated") == each.image
    ]


def _back(shelf: Shelf, moved: Sequence[Entry], before: dict[str, str | None]) -> Iterator[str]:
    for each in moved:
        old = before[each.repository]
        if old is None:
            yield from _cleared(shelf, each.repository, "validated")
        else:
            with contextlib.suppress(EnvbuildError):
                shelf.point(each.repository, "validated", old)
                continue
            yield f"{each.repository}:validated"


def _cleared(shelf: Shelf, repository: str, tag: str) -> Iterator[str]:
    with contextlib.suppress(EnvbuildError):
        shelf.clear(repository, tag)
        return
    # A registry that cannot do it refuses also where there is nothing to do.
    with contextlib.suppress(EnvbuildError):
        if shelf.holds(repository, tag) is None:
            return
    yield f"{repository}:{tag}"


def _resumed(journal: Path, plan: dict[str, Any], shelf: Shelf, sink: Sink) -> dict[str, str | None] | None:
    """What stood there before a run of the same release that was killed; None where none was.

    Raises:
        GateError: A run of another release was killed half-way.
    """
    document: Any = None
    with contextlib.suppress(InputError):
        document = store.read_json(journal)
    if not isinstance(document, dict) or not isinstance(document.get("before"), dict):
        return None
    if {key: document.get(key) for key in plan} != plan:
        rows = " ".join(str(each.get("environment")) for each in document.get("entries", ()) if isinstance(each, dict))
        raise GateError(
            f"the release {document.get('release')} was begun and not finished",
            hint=f"Finish it first: envbuild promote --set {document.get('release')} {shelf.option}{rows}. "
            f"Or forget it, and its names stay where they are now: rm {journal}",
        )
    if document["before"].keys() != {each["repository"] for each in plan["entries"]}:
        return None
    sink(Note(message=f"going on with the release {plan['release']}, which was begun and not finished"))
    return {str(name): (str(image) if image is not None else None) for name, image in document["before"].items()}


def _journal(place: str) -> Path:
    return store.home() / "releases" / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"
