"""One repository of a registry: its tags, manifests, and what refers to them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from envbuild.net import Missing, NetworkError
from envbuild.net.manners import backoff
from envbuild.registry import manifests
from envbuild.registry.manifests import ACCEPT, Descriptor, Index, Manifest, NotUnderstood
from envbuild.registry.reference import DIGEST, Reference, is_tag
from envbuild.registry.session import Session
from envbuild.registry.types import AGAIN_HINT, Access, Again, Reply

_MAX_PAGES = 1000
_MAX_TAGS = 100_000
# How often the list of what refers to an image is written while others write it too.
_LISTINGS = 6
_SIZE = re.compile("[0-9]{1,18}")
# What registries answer that know no referrers API, besides 404; some send a page for people.
_NO_SUCH_API = frozenset({400, 405, 406, 501})
_NEXT = re.compile(r'<([^<>]*)>(?=[^,]*;\s*rel\s*=\s*"?next\b)')


class Repository:
    """What is asked of one repository."""

    def __init__(self, session: Session, reference: Reference) -> None:
        self.session = session
        self.path = reference.path
        self.name = reference.repository
        self.reading = Access(repository=self.path)
        self.writing = Access(repository=self.path, push=True)

    def url(self, tail: str) -> str:
        """The path of something in this repository, below the registry."""
        return f"/v2/{self.path}/{tail}"

    def resolve(self, wanted: str) -> Descriptor | None:
        """What a tag or digest names now; None where it names nothing.

        Raises:
            NetworkError: No answer, or one that is none.
        """
        try:
            reply = self.session.ask("HEAD", self.url(f"manifests/{wanted}"), self.reading, headers={"Accept": ACCEPT})
        except Missing:
            return None
        digest, size = reply.headers.get("docker-content-digest", ""), reply.headers.get("content-length", "")
        if DIGEST.fullmatch(digest) and _SIZE.fullmatch(size):
            kind = reply.headers.get("content-type", "").partition(";")[0].strip()
            return Descriptor(media_type=kind, digest=digest, size=int(size))
        # The headers are optional; what they say can be worked out from the manifest.
        try:
            return self.manifest(wanted).descriptor
        except Missing:
            return None

    def manifest(self, wanted: str) -> Manifest | Index:
        """The manifest or index of a tag or digest; asked for by digest, its bytes are held to it.

        Raises:
            Missing: There is none.
            NotUnderstood: Something else came.
            NetworkError: No answer.
        """
        reply = self.session.ask("GET", self.url(f"manifests/{wanted}"), self.reading, headers={"Accept": ACCEPT})
        place = f"{self.name}@{wanted}" if DIGEST.fullmatch(wanted) else f"{self.name}:{wanted}"
        found = manifests.parse(reply.body, reply.headers.get("content-type", ""), place)
        if DIGEST.fullmatch(wanted) and found.descriptor.digest != wanted:
            raise NotUnderstood(f"{place}: the registry sent {found.descriptor.digest[:19]} in its place")
        return found

    def put_manifest(self, raw: bytes, media_type: str, name: str = "") -> Descriptor:
        """Write a manifest under its digest, or under a tag.

        Raises:
            NetworkError: The registry does not take it, or says it is another one.
        """
        return self._put(raw, media_type, name)[0]

    def delete_tag(self, name: str) -> None:
        """Take a tag away, and nothing else; one that is not there is gone already.

        Raises:
            NetworkError: The registry cannot, or does not let us.
        """
        with contextlib.suppress(Missing):
            self.session.ask("DELETE", self.url(f"manifests/{name}"), self.writing, ok=frozenset({200, 202, 204}))

    def _put(self, raw: bytes, media_type: str, name: str = "") -> tuple[Descriptor, bool]:
        """... and whether the registry itself keeps what it refers to."""
        digest = manifests.digest_of(raw)
        reply = self.session.ask(
            "PUT",
            self.url(f"manifests/{name or digest}"),
            self.writing,
            headers={"Content-Type": media_type},
            data=lambda: raw,
            ok=frozenset({200, 201, 202}),
        )
        said = reply.headers.get("docker-content-digest", digest)
        if said != digest:
            raise NotUnderstood(f"{self.name}: the registry calls {digest[:19]} {said[:19]!r}")
        return Descriptor(media_type=media_type, digest=digest, size=len(raw)), "oci-subject" in reply.headers

    def has_blob(self, digest: str) -> bool:
        """Whether the repository has a blob.

        Raises:
            NetworkError: No answer.
        """
        try:
            self.session.ask("HEAD", self.url(f"blobs/{digest}"), self.reading)
        except Missing:
            return False
        return True

    def tags(self) -> tuple[str, ...]:
        """Every tag; none where there is no such repository.

        Raises:
            NetworkError: No answer, or one that is none.
        """
        found: list[str] = []
        try:
            for reply in self._pages(self.url("tags/list?n=1000")):
                try:
                    names = json.loads(reply.body)["tags"] or []
                except (ValueError, KeyError, TypeError, RecursionError):
                    names = None
                if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                    raise NotUnderstood(f"{self.name}: {self.session.place(reply.url)} is no list of tags")
                found += filter(is_tag, names)
                if len(found) > _MAX_TAGS:
                    raise NetworkError(f"{self.name}: more than {_MAX_TAGS} tags")
        except Missing:
            return ()
        return tuple(dict.fromkeys(found))

    def referrers(self, digest: str, artifact_type: str = "") -> tuple[Descriptor, ...]:
        """What refers to a manifest: by the referrers API, or by the tag that stands in for it in older registries.

        Args:
            artifact_type: Those of this type alone.

        Raises:
            NetworkError: No answer, or one that is none.
        """
        query = f"?{urlencode({'artifactType': artifact_type})}" if artifact_type else ""
        found: dict[str, Descriptor] = {}
        try:
            for reply in self._pages(self.url(f"referrers/{digest}{query}"), also=_NO_SUCH_API):
                page = manifests.parse(reply.body, reply.headers.get("content-type", ""), f"{self.name}: referrers")
                if reply.status != 200 or not isinstance(page, Index):
                    raise NotUnderstood(f"{self.name}: referrers: no index")
                found.update((each.digest, each) for each in page.manifests)
                if len(found) > _MAX_TAGS:
                    raise NetworkError(f"{self.name}: more than {_MAX_TAGS} referrers of {digest[:19]}")
        except (Missing, NotUnderstood):
            if found:
                raise
            kept = self._fallback(digest)
            found = {each.digest: each for each in kept.manifests} if kept else {}
        # The registry is free to filter or not.
        return tuple(each for each in found.values() if artifact_type in ("", each.artifact_type))

    def attach(self, manifest: Mapping[str, Any], subject: str) -> Descriptor:
        """Write a manifest that refers to another one, so that ``referrers`` finds it.

        Raises:
            NetworkError: The registry does not take it.
        """
        raw = manifests.dump(manifest)
        written, kept = self._put(raw, manifests.OCI_MANIFEST)
        if kept:
            return written
        # "Referrers Tag Schema", OCI distribution specification 1.1: who pushes keeps the list.
        entry = Descriptor(
            media_type=written.media_type, digest=written.digest, size=written.size,
            artifact_type=str(manifest.get("artifactType", "")), annotations=manifest.get("annotations") or {},
        )  # fmt: skip
        self._list(entry, subject)
        return entry

    def _list(self, entry: Descriptor, subject: str) -> None:
        """Put an entry into the list that a tag names, and see to it that it stays there.

        Nothing in the specification makes one of two hosts wait that write the list at once, and the later one drops
        what it has not read. So each reads again what it has written, and puts back what is missing, of others too.

        Raises:
            Again: Others write all the time.
        """
        wanted = {entry.digest: entry.as_dict()}
        for attempt in range(_LISTINGS):
            known = self._fallback(subject)
            # As they stand there: of others' entries, nothing that we do not know is lost.
            there = {each["digest"]: each for each in json.loads(known.raw)["manifests"]} if known else {}
            if wanted.keys() <= there.keys():
                return
            wanted = {**there, **wanted}
            index = {"schemaVersion": 2, "mediaType": manifests.OCI_INDEX, "manifests": list(wanted.values())}
            self.put_manifest(manifests.dump(index), manifests.OCI_INDEX, fallback_tag(subject))
            if attempt:
                self.session.pause(backoff(attempt - 1))
        raise Again(
            f"{self.name}: others write the list of what refers to {subject[:19]} all the time", hint=AGAIN_HINT
        )

    def _fallback(self, digest: str) -> Index | None:
        try:
            found = self.manifest(fallback_tag(digest))
        except Missing:
            return None
        if not isinstance(found, Index):
            raise NotUnderstood(f"{self.name}:{fallback_tag(digest)}: no list of what refers to {digest[:19]}")
        return found

    def _pages(self, first: str, *, also: frozenset[int] = frozenset()) -> Iterator[Reply]:
        """Every page of a list (RFC 8288, "Web Linking"); a list that leads back to where it was has ended."""
        path, seen = first, {first}
        headers = {"Accept": f"application/json, {manifests.OCI_INDEX}"}
        for _ in range(_MAX_PAGES):
            reply = self.session.ask("GET", path, self.reading, headers=headers, ok=frozenset({200}) | also)
            yield reply
            more = _NEXT.search(reply.headers.get("link", "")[:4096])
            if more is None:
                return
            path = self.session.lead(reply.url, more[1])
            if path in seen:
                return
            seen.add(path)
        raise NetworkError(f"{self.name}: more than {_MAX_PAGES} pages of a list")


def fallback_tag(digest: str) -> str:
    """The tag of the list of what refers to a manifest, where a registry keeps none itself."""
    return digest.replace(":", "-")
