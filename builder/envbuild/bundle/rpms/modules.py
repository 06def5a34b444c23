"""Modularity: which packages count, given the streams that are active. libsolv knows nothing of it.

Rules: dnf.modularity(7), "Package filtering". A stream is active when it is enabled, or is its module's default, or one
of those needs it. Packages of other streams do not count, nor do plain packages that are called as one of an active
stream, or provide its name. Of a stream every version counts whose needs
are met (seen with dnf 4.14: packages of older versions can be installed).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.bundle.rpms.solve import Filter
from envbuild.bundle.rpms.transport import opened
from envbuild.errors import BundleError

# Of all modules of a distribution some 10 MB, and of one document what nothing comes near.
_LARGEST, _LARGEST_DOCUMENT = 64 << 20, 16 << 20
_START = re.compile(rb"^---[^\n]*$", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z0-9._+:~^-]{1,200}")
_NEVRA = re.compile(r"(?P<name>[^\s/]{1,200})-[0-9]+:[^\s/:-]{1,100}-[^\s/:-]{1,100}\.(?P<arch>[a-z0-9_]{1,20})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One build of a stream.

    Attributes:
        requires: Alternatives of modules with their streams: none is any, and ``-x`` any but x.
        artifacts: Full names of its packages, with their epochs.
        released: Names that are plain packages again (``demodularized``).
        text: The document as it stands in the metadata.
    """

    name: str
    stream: str
    version: int
    context: str
    arch: str
    requires: tuple[Mapping[str, tuple[str, ...]], ...]
    artifacts: frozenset[str]
    released: frozenset[str]
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """What repositories say of modules.

    Attributes:
        defaults: The stream of each module that is active unless another one is enabled.
        default_texts: The documents that say so, by module.
    """

    documents: tuple[Document, ...] = ()
    defaults: Mapping[str, str]
    default_texts: Mapping[str, bytes]


NONE = Modules(defaults={}, default_texts={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """Which documents count on one target.

    Attributes:
        enabled: The modules of them whose stream somebody enabled.
        problems: What cannot be: a stream that nothing describes, or whose needs are not met.
    """

    documents: tuple[Document, ...]
    enabled: frozenset[str]
    problems: tuple[str, ...]
    filter: Filter

    def owner(self, name: str) -> Document | None:
        """The document that a package belongs to, by its full name with its epoch."""
        return next((document for document in self.documents if name in document.artifacts), None)


def read(paths: Iterable[Path]) -> Modules:
    """The modules of several repositories.

    Raises:
        BundleError: One is no modules' metadata.
    """
    documents: dict[tuple[str, str, int, str, str], Document] = {}
    defaults: dict[str, str] = {}
    texts: dict[str, bytes] = {}
    for path in paths:
        for document, raw in _documents(path):
            data = document.get("data")
            if not isinstance(data, dict):
                continue
            if document.get("document") == "modulemd-defaults":
                name, stream = _text(data, "module"), _text(data, "stream")
                if name and stream:
                    defaults.setdefault(name, stream)
                    texts.setdefault(name, raw)
            elif document.get("document") == "modulemd" and (found := _document(data, raw)) is not None:
                documents[(found.name, found.stream, found.version, found.context, found.arch)] = found
    return Modules(documents=tuple(documents[key] for key in sorted(documents)), defaults=defaults, default_texts=texts)


def active(modules: Modules, streams: Mapping[str, str], *, arch: str, platform: str) -> Active:
    """What counts, where ``streams`` are enabled (by module).

    Args:
        platform: What modules call the release, such as ``el8``.
    """
    chosen: dict[str, list[Document]] = {}
    problems: list[str] = []
    wanted = {**modules.defaults, **streams}
    by_stream: dict[tuple[str, str], list[Document]] = {}
    for document in modules.documents:
        if document.arch in ("", arch):
            by_stream.setdefault((document.name, document.stream), []).append(document)
    todo = [(name, stream, name in streams) for name, stream in sorted(wanted.items())]
    while todo:
        name, stream, asked = todo.pop(0)
        if name in chosen:
            continue
        builds = by_stream.get((name, stream), [])
        fitting = [each for each in builds if _needs(each, wanted, by_stream, platform) is not None]
        if not fitting:
            # A default whose needs are not met is not active, and nobody asked for it.
            if asked:
                what = "needs what is not there" if builds else "is described by no repository"
                problems.append(f"the stream {name}:{stream} {what}")
            continue
        best = max(fitting, key=lambda each: (each.version, each.context))
        chosen[name] = fitting
        for other, needed in (_needs(best, wanted, by_stream, platform) or {}).items():
            wanted[other] = needed
            todo.append((other, needed, asked))
    documents = tuple(document for name in sorted(chosen) for document in chosen[name])
    counted = frozenset(nevra for document in documents for nevra in document.artifacts)
    every = frozenset(nevra for document in modules.documents for nevra in document.artifacts)
    released = frozenset(name for document in documents for name in document.released)
    names = {match["name"] for each in counted if (match := _NEVRA.fullmatch(each)) and match["arch"] not in _SOURCES}
    return Active(
        documents=documents,
        enabled=frozenset(streams),
        problems=tuple(problems),
        filter=Filter(inactive=every - counted, active=counted, names=frozenset(names - released)),
    )


_SOURCES = frozenset({"src", "nosrc"})


def _needs(
    document: Document,
    wanted: Mapping[str, str],
    known: Mapping[tuple[str, str], list[Document]],
    platform: str,
) -> dict[str, str] | None:
    """The modules that a document needs beside those that are wanted, with their streams; None where that cannot be."""
    for alternative in document.requires or ({},):
        more: dict[str, str] | None = {}
        for name, streams in alternative.items():
            has = platform if name == "platform" else wanted.get(name)
            if has is not None:
                if not _allowed(has, streams):
                    more = None
                    break
            else:
                found = [stream for other, stream in sorted(known) if other == name and _allowed(stream, streams)]
                if not found:
                    more = None
                    break
                assert more is not None
                more[name] = found[-1]
        if more is not None:
            return more
    return None


def _allowed(stream: str, streams: tuple[str, ...]) -> bool:
    without = {each[1:] for each in streams if each.startswith("-")}
    exactly = {each for each in streams if not each.startswith("-")}
    return stream not in without and (not exactly or stream in exactly)


def _documents(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    with opened(path) as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise BundleError(f"{path.name}: more than {_LARGEST >> 20} MiB of modules")
    # Imported here: with its C part it costs what a small command takes.
    import yaml

    # Everything is a text: `stream: 1.10` is no number.
    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    starts = [match.start() for match in _START.finditer(data)] or [0]
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        raw = data[start:end]
        if len(raw) > _LARGEST_DOCUMENT or b"modulemd" not in raw:
            continue
        try:
            document = yaml.load(raw, Loader=loader)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            problem = getattr(error, "problem", None) or type(error).__name__
            raise BundleError(f"{path.name}: modules that cannot be read ({problem})") from error
        if isinstance(document, dict):
            yield document, _ended(raw)


def _ended(raw: bytes) -> bytes:
    """A document from its first line to its end, with both marks."""
    text = raw.rstrip()
    body = text.removesuffix(b"...").rstrip()
    return (body if body.startswith(b"---") else b"---\n" + body) + b"\n...\n"


def _document(data: dict[str, Any], raw: bytes) -> Document | None:
    name, stream, version = _text(data, "name"), _text(data, "stream"), _text(data, "version")
    if not name or not stream or not version.isdigit():
        return None
    requires = []
    for each in _list(data.get("dependencies")):
        asked = each.get("requires") if isinstance(each, dict) else None
        if isinstance(asked, dict):
            # Texts alone: a list in a list may stand for gigabytes of text (YAML's aliases).
            requires.append({str(key): tuple(_texts(value)) for key, value in asked.items()})
    return Document(
        name=name,
        stream=stream,
        version=int(version[:20]),
        context=_text(data, "context"),
        arch=_text(data, "arch"),
        requires=tuple(requires),
        artifacts=frozenset(_names(data, "artifacts")),
        released=frozenset(_names(data, "demodularized")),
        text=raw,
    )


def _text(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) and _WORD.fullmatch(value) else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _names(data: dict[str, Any], key: str) -> Iterator[str]:
    section = data.get(key)
    rpms = section.get("rpms") if isinstance(section, dict) else None
    return _texts(rpms)


def _texts(value: object) -> Iterator[str]:
    return (each for each in _list(value) if isinstance(each, str))
