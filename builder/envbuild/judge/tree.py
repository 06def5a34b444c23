"""Layers put on top of one another: the filesystem a container would see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from envbuild.errors import EngineError
from envbuild.judge.layers import Entry, Hardlink, Layer

_MAX_LINKS = 40  # as the kernel counts them (MAXSYMLINKS)
_IMPLIED = Entry("folder", mode=0o755)


class _Node:
    __slots__ = ("children", "entry")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.children: dict[str, _Node] | None = {} if entry.kind == "folder" else None


def merge(layers: Iterable[Layer]) -> tuple[dict[str, Entry], frozenset[str]]:
    """Every path of the merged filesystem, by its name without a leading slash; and the files that were replaced.

    Raises:
        EngineError: A layer puts a file below something that is not a folder, or links to what is not there.
    """
    root = _Node(_IMPLIED)
    ever: set[str] = set()
    replaced: set[str] = set()
    for layer in layers:
        _apply(root, layer)
        own = {path for path, change in layer.changes if isinstance(change, Hardlink) or change.kind == "file"}
        replaced |= own & ever  # also where a layer between, or the same one, had removed it
        ever |= own
    entries: dict[str, Entry] = {}
    pending = [("", root)]
    while pending:
        prefix, node = pending.pop()
        for name, child in (node.children or {}).items():
            entries[prefix + name] = child.entry
            if child.children:
                pending.append((f"{prefix}{name}/", child))
    return entries, frozenset(replaced)


def resolve(entries: Mapping[str, Entry], path: str) -> str | None:
    """The path behind all symbolic links, inside the image; None where it leads nowhere or round in circles."""
    pending = path.split("/")[::-1]
    done: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del done[-1:]
            continue
        entry = entries.get("/".join([*done, part]))
        if entry is None:
            return None
        if entry.kind == "symlink":
            links += 1
            if links > _MAX_LINKS:
                return None
            if entry.target.startswith("/"):
                done.clear()
            pending.extend(entry.target.split("/")[::-1])
        else:
            done.append(part)
    return "/".join(done)


def _apply(root: _Node, layer: Layer) -> None:
    # A layer's marks speak of the layers below, wherever they stand in its archive: so they come first.
    for path in layer.removed:
        parent = _find(root, path.rpartition("/")[0])
        if parent is not None and parent.children:
            parent.children.pop(path.rpartition("/")[2], None)
    for path in layer.opaque:
        folder = _find(root, path)
        if folder is not None and folder.children:
            folder.children.clear()
    last, children = "", _folder(root, "")
    for path, change in layer.changes:
        prefix, _, name = path.rpartition("/")
        if prefix != last:
            last, children = prefix, _folder(root, prefix)
        entry = _linked(root, path, change) if isinstance(change, Hardlink) else change
        old = children.get(name)
        if entry.kind == "folder" and old is not None and old.children is not None:
            old.entry = entry
            continue
        children[name] = _Node(entry)
        if old is not None:
            last, children = "", _folder(root, "")  # what was remembered may have gone with the old one


def _linked(root: _Node, path: str, link: Hardlink) -> Entry:
    found = _find(root, link.target)
    if found is None or found.entry.kind == "folder":
        raise EngineError(f"a layer of the image is damaged: {path} links to {link.target}, which is not a file in it")
    entry = found.entry
    if link.wanted and entry.kind == "file" and entry.data is None and not entry.missing:
        # Its bytes went by under the other name, which nobody wanted.
        return Entry("file", entry.size, entry.mode, missing=f"it is a hard link to {link.target}")
    return entry


def _find(root: _Node, path: str) -> _Node | None:
    """The node at a path, with links in its folders followed and a link at its end not."""
    prefix, _, name = path.rpartition("/")
    if not name:
        return root
    try:
        folder = _walk(root, prefix, create=False)
    except EngineError:
        return None
    return None if folder is None else folder.get(name)


def _folder(root: _Node, path: str) -> dict[str, _Node]:
    found = _walk(root, path, create=True)
    assert found is not None
    return found


def _walk(root: _Node, path: str, *, create: bool) -> dict[str, _Node] | None:
    """The children of the folder at ``path``; folders that no layer names come into being, as they do in an engine.

    Raises:
        EngineError: Something on the way is not a folder.
    """
    trail = [root]
    pending = path.split("/")[::-1]
    links = 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del trail[max(1, len(trail) - 1) :]
            continue
        children = trail[-1].children
        assert children is not None
        node = children.get(part)
        if node is None:
            if not create:
                return None
            node = children[part] = _Node(_IMPLIED)
        if node.entry.kind == "symlink" and links < _MAX_LINKS:
            links += 1
            if node.entry.target.startswith("/"):
                del trail[1:]
            pending.extend(node.entry.target.split("/")[::-1])
        elif node.children is None:
            raise EngineError(f"a layer of the image is damaged: {path} lies below {part}, which is not a folder")
        else:
            trail.append(node)
    return trail[-1].children
