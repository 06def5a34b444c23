"""One reader for all that upstream says: files of a project, METADATA, single members."""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Lock

from packaging.utils import canonicalize_name

from envbuild import __version__
from envbuild.errors import EngineError
from envbuild.events import Sink, discard
from envbuild.facts.upstream import archive, metadata, page
from envbuild.facts.upstream.cache import Cache
from envbuild.facts.upstream.metadata import Metadata
from envbuild.facts.upstream.page import RemoteFile, Shape
from envbuild.net import Client, Missing, NoRanges, Route
from envbuild.net.manners import shown
from envbuild.site import urls
from envbuild.site.pip import PYPI, PYTORCH, PipSettings

AGENT = f"envbuild/{__version__}"
_TIMEOUT = 30.0
_PAGE_LIMIT = 64 << 20
_TEXT_LIMIT = 4 << 20
_WHEEL_LIMIT = 4 << 30


class Upstream:
    """Reads from the indexes, links and folders that pip uses here. May be used from several threads.

    Args:
        pip: Where packages come from.
        cache: Folder that keeps what was read.
        whole: Whether a wheel may be downloaded whole where its server sends no parts.
    """

    def __init__(
        self, pip: PipSettings, cache: Path, *, sink: Sink = discard, whole: bool = False, client: Client | None = None
    ) -> None:
        self._pip = pip
        self._whole = whole
        self._cache = Cache(cache)
        self._client = client or Client(route(pip), sink=sink)
        self._pages: dict[tuple[str, str], tuple[RemoteFile, ...]] = {}
        self._lock = Lock()

    @property
    def offline(self) -> bool:
        """Whether pip is told to ask no index at all."""
        return self._pip.no_index

    @property
    def ca(self) -> Path | None:
        """The site's CA bundle."""
        return self._pip.cert

    @property
    def proxies(self) -> dict[str, str]:
        """The site's proxies by scheme."""
        return self._pip.proxies

    def files(self, project: str, *, yanked: bool = False) -> tuple[RemoteFile, ...]:
        """Every wheel and source archive of a project, from all indexes and links.

        Args:
            yanked: With those that were withdrawn: what is pinned exactly may still be installed (PEP 592).

        Raises:
            NetworkError: An index does not answer; Missing when none of them knows the project.
            Shape: A page is not what an index's page has to be.
        """
        found: list[RemoteFile] = []
        for link in self._pip.find_links:
            # pip only warns of a page or a folder of links that is not there.
            with contextlib.suppress(Missing):
                found += self._links(link, project)
        known = bool(found)
        for index in self._pip.indexes:
            with contextlib.suppress(Missing):
                found += self._index(index, project)
                known = True
        if not known:
            where = ", ".join(map(shown, self._pip.locations)) or "no index"
            raise Missing(f"{project}: not found in {where}", hint="check the indexes that pip is configured for")
        return tuple(file for file in found if yanked or not file.yanked)

    def pytorch_files(self, project: str, build: str) -> tuple[RemoteFile, ...]:
        """The files of a project for one build (``cu118``) in PyTorch's own index.

        Raises:
            NetworkError: It does not answer, or has none.
            Shape: As ``files``.
        """
        return tuple(file for file in self._index(f"{PYTORCH}/{build}", project) if not file.yanked)

    def metadata(self, file: RemoteFile) -> Metadata:
        """What a wheel or a source archive says of itself, by the cheapest way there is.

        Raises:
            NetworkError: It cannot be reached.
            Shape: It is not what its name says, or has another hash.
        """
        if not file.is_wheel:
            return metadata.parse(self.sources(file, ("PKG-INFO",))["PKG-INFO"], file)
        if file.metadata is not None and urls.is_remote(file.url):
            content = self._cache.piece(file, f"PEP 658 METADATA {file.metadata}", lambda: self._beside(file))
        else:
            content = self.member(file, r"[^/]+\.dist-info/METADATA")
        return metadata.parse(content, file)

    def member(self, file: RemoteFile, pattern: str, *, limit: int = _TEXT_LIMIT) -> bytes:
        """The one member of a wheel whose path matches a pattern completely.

        Raises:
            NetworkError: It cannot be reached.
            Shape: There is not exactly one, it is larger than ``limit`` bytes, or the wheel is damaged.
        """

        def read() -> bytes:
            with self._wheel(file) as opened:
                return archive.member(opened, only(opened, pattern, shown(file.url)), shown(file.url), limit)

        return self._cache.piece(file, f"member {pattern}", read)

    def distilled(
        self, file: RemoteFile, pattern: str, what: str, distill: Callable[[Iterator[bytes]], bytes]
    ) -> bytes:
        """What ``distill`` makes of a large member, which is streamed and not kept; ``what`` names it in the cache.

        Raises:
            NetworkError: It cannot be reached.
            Shape: As ``member``.
        """

        def read() -> bytes:
            with self._wheel(file) as opened, opened.open(only(opened, pattern, shown(file.url))) as stream:
                return distill(iter(lambda: stream.read(1 << 20), b""))

        return self._cache.piece(file, f"distilled {pattern} {what}", read)

    def sources(self, file: RemoteFile, patterns: tuple[str, ...], *, every: bool = False) -> dict[str, bytes]:
        """Members of a source archive by their path below its top folder.

        Args:
            patterns: What the path has to match completely, one of them.
            every: Look for all that match, to the end; else for one of each pattern, and no further.

        Raises:
            NetworkError: It cannot be reached.
            Shape: One is missing, or the archive is damaged.
        """
        found = self._kept_sources(file, patterns, every=every)
        for pattern in patterns:
            if not any(re.fullmatch(pattern, name) for name in found):
                raise Shape(
                    f"{shown(file.url)}: expected a file {_plain(pattern)}", hint="the archive has changed its shape"
                )
        return found

    def _kept_sources(self, file: RemoteFile, patterns: tuple[str, ...], *, every: bool) -> dict[str, bytes]:
        import base64
        import json

        def wanted(name: str) -> bool:
            return any(re.fullmatch(pattern, name) for pattern in patterns)

        def enough(found: dict[str, bytes]) -> bool:
            return not every and all(any(re.fullmatch(pattern, name) for name in found) for pattern in patterns)

        def read() -> bytes:
            found = archive.sdist(self._client, file, wanted, enough, _TEXT_LIMIT)
            return json.dumps({name: base64.b64encode(data).decode() for name, data in found.items()}).encode()

        kept = json.loads(self._cache.piece(file, f"sources {every} {patterns}", read))
        return {name: base64.b64decode(data) for name, data in kept.items()}

    @contextlib.contextmanager
    def _wheel(self, file: RemoteFile) -> Iterator[zipfile.ZipFile]:
        with contextlib.ExitStack() as stack:
            try:
                opened = stack.enter_context(archive.wheel(self._client, file))
            except NoRanges as error:
                if not self._whole:
                    size = f"{file.size / 1e6:.0f} MB" if file.size else "the whole file"
                    raise archive.Whole(
                        f"{error.message}; not downloaded: {size}", hint="say --download to download whole wheels"
                    ) from error
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                opened = stack.enter_context(archive.downloaded(self._client, file, folder, _WHEEL_LIMIT))
            with archive.named(shown(file.url), "a wheel that can be read"):
                yield opened

    def _beside(self, file: RemoteFile) -> bytes:
        answer = self._client.get(f"{file.url}.metadata", limit=_TEXT_LIMIT)
        if file.metadata and hashlib.sha256(answer.body).hexdigest() != file.metadata:
            raise Shape(f"{shown(answer.url)}: its SHA-256 is not the one that the index names")
        return answer.body

    def _index(self, index: str, project: str) -> tuple[RemoteFile, ...]:
        url = f"{index.rstrip('/')}/{canonicalize_name(project)}/"
        with self._lock:
            kept = self._pages.get((url, project))
        if kept is None:
            kept = self._read_page(url, project, strict=True)
            if index.rstrip("/") == PYPI:
                kept = tuple(replace(file, from_pypi=True) for file in kept)
            with self._lock:
                self._pages[url, project] = kept
        return kept

    def _links(self, link: str, project: str) -> tuple[RemoteFile, ...]:
        path = urls.local_path(link)
        if path is None:
            return self._read_page(link, project, strict=False)
        if not path.is_dir():
            return self._read_page(path.absolute().as_uri(), project, strict=False)
        named = (page.file_of(entry.absolute().as_uri(), entry.name, project) for entry in sorted(path.iterdir()))
        return tuple(file for file in named if file is not None)

    def _read_page(self, url: str, project: str, *, strict: bool) -> tuple[RemoteFile, ...]:
        path = urls.local_path(url)
        if path is not None:
            inside = path / "index.html" if path.is_dir() or url.endswith("/") else path
            try:
                content = inside.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                raise Missing(f"{url}: not there") from None
            except OSError as error:
                raise EngineError(f"{inside} cannot be read: {error.strerror}") from error
            return page.parse(content, "text/html", inside.absolute().as_uri(), project, strict=strict)
        answer = self._cache.page(self._client, url, accept=page.ACCEPT, limit=_PAGE_LIMIT)
        try:
            return page.parse(answer.body, answer.headers.get("content-type", ""), answer.url, project, strict=strict)
        except Shape:
            self._cache.forget(url, accept=page.ACCEPT)
            raise


def route(pip: PipSettings) -> Route:
    """The way to the servers of a site's indexes."""
    return Route(
        agent=AGENT,
        timeout=float(pip.timeout or _TIMEOUT),
        ca=pip.cert,
        proxies=pip.proxies,
        direct=lambda url: urls.bypasses(url, pip.no_proxy),
        unverified=pip.trusted_hosts,
        accounts=tuple(url for url in pip.locations if urls.is_remote(url)),
    )


def only(opened: zipfile.ZipFile, pattern: str, place: str) -> str:
    """The one member whose path matches a pattern completely.

    Raises:
        Shape: There is none, or more than one.
    """
    found = [name for name in opened.namelist() if re.fullmatch(pattern, name)]
    if len(found) != 1:
        raise Shape(f"{place}: expected one member {_plain(pattern)}, and found {len(found)}")
    return found[0]


def _plain(pattern: str) -> str:
    return pattern.replace("\\", "")
