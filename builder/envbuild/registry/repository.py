"""One repository of a registry: its tags, manifests, and what refers to them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from envbuild.net import Missing, NetworkError
from envbuild.registry import manifests
from envbuild.registry.manifests import ACCEPT, Descriptor, Index, Manifest, NotUnderstood
from envbuild.registry.reference import DIGEST, Reference
from envbuild.registry.session import Session
from envbuild.registry.types import Access

_MAX_PAGES = 1000


class Repository:
    """What is asked of one repository."""

    def __init__(self, session: Session, reference: Reference) -> None:
        self.session = session
        self.path = reference.path
        self.name = reference.repository
        self.reading = Access(repository=self.path)
        self.writing = Access(repository=self.path, push=True)
        # Whether the registry keeps what refers to a manifest itself; it says so when it takes one.
        self._keeps_referrers = False

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
        if DIGEST.fullmatch(digest) and size.isdigit():
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
            raise NotUnderstood(f"{self.name}: the registry calls {digest[:19]} {said[:19]}")
        self._keeps_referrers = "oci-subject" in reply.headers
        return Descriptor(media_type=media_type, digest=digest, size=len(raw))

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
            for page in self._pages(self.url("tags/list?n=1000")):
                names = page.get("tags") or []
                if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                    raise NotUnderstood(f"{self.name}: the registry's list of tags is none")
                found += names
        except Missing:
            return ()
        return tuple(found)

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """What refers to a manifest: by the referrers API, or by the tag that stands in for it in older registries.

        Raises:
            NetworkError: No answer, or one that is none.
        """
        try:
            reply = self.session.ask(
                "GET", self.url(f"referrers/{digest}"), self.reading, headers={"Accept": manifests.OCI_INDEX}
            )
            kind = reply.headers.get("content-type", "")
            found: Manifest | Index | None = manifests.parse(reply.body, kind, f"{self.name}: referrers")
        except (Missing, NotUnderstood):
            # Registries that know no such API may answer with a page for people, too.
            found = self._fallback(digest)
        return found.manifests if isinstance(found, Index) else ()

    def attach(self, manifest: Mapping[str, Any], subject: str) -> Descriptor:
        """Write a manifest that refers to another one, so that ``referrers`` finds it.

        Raises:
            NetworkError: The registry does not take it.
        """
        raw = manifests.dump(manifest)
        written = self.put_manifest(raw, manifests.OCI_MANIFEST)
        if self._keeps_referrers:
            return written
        # "Referrers Tag Schema", OCI distribution specification 1.1: who pushes keeps the list.
        entry = Descriptor(
            media_type=written.media_type, digest=written.digest, size=written.size,
            artifact_type=str(manifest.get("artifactType", "")), annotations=manifest.get("annotations") or {},
        )  # fmt: skip
        known = self._fallback(subject)
        others = known.manifests if isinstance(known, Index) else ()
        if entry.digest not in {each.digest for each in others}:
            index = {
                "schemaVersion": 2,
                "mediaType": manifests.OCI_INDEX,
                "manifests": [each.as_dict() for each in (*others, entry)],
            }
            self.put_manifest(manifests.dump(index), manifests.OCI_INDEX, fallback_tag(subject))
        return entry

    def _fallback(self, digest: str) -> Manifest | Index | None:
        try:
            return self.manifest(fallback_tag(digest))
        except Missing:
            return None

    def _pages(self, first: str) -> Iterator[dict[str, Any]]:
        path = first
        for _ in range(_MAX_PAGES):
            reply = self.session.ask("GET", path, self.reading)
            try:
                page = json.loads(reply.body)
            except (ValueError, RecursionError):
                page = None
            if not isinstance(page, dict):
                raise NotUnderstood(f"{self.name}: {self.session.place(reply.url)} is not JSON of a registry")
            yield page
            link = reply.headers.get("link", "")
            if 'rel="next"' not in link or not link.startswith("<"):
                return
            path = link[1 : link.index(">")] if ">" in link else ""
        raise NetworkError(f"{self.name}: more than {_MAX_PAGES} pages of tags")


def fallback_tag(digest: str) -> str:
    """The tag of the list of what refers to a manifest, where a registry keeps none itself."""
    return digest.replace(":", "-")
