"""What a row must say beyond the types of its keys: evidence for its facts, and no contradiction with itself.

These checks read the tree, not the Environment, so that they report together with pydantic's complaints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.matrix.explain import NOT_IN_ROW, REQUIREMENT, fields_at, row_keys
from envbuild.matrix.merge import EXTENDS, near
from envbuild.matrix.tree import KeyPath, Mapping, Node, Scalar, Sequence, quoted

# Keys whose values are facts about the world, so that somebody has to have looked them up.
_FACTS = ("base", "python", "gcc", "torch", "deepspeed")
_CUDA_FACTS = ("cuda", "nccl", "gpus")
_NO_SOURCE = NOT_IN_ROW | {"sources", "summary", "claimed", "performance", "waivers", EXTENDS}

# Variables that envbuild sets, or that decide what Python and the loader take in place of the proven files.
_RESERVED = frozenset(
    [
        "CC",
        "CUDAHOSTCXX",
        "CXX",
        "DS_ACCELERATOR",
        "HOME",
        "LD_PRELOAD",
        "PATH",
        "PIP_CONSTRAINT",
        "PYTHONHOME",
        "PYTHONNOUSERSITE",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "PYTHONUSERBASE",
        "USER",
        "UV_CONSTRAINT",
        "VIRTUAL_ENV",
    ]
)

# Path, whether it is about the key, and text.
Complaint = tuple[KeyPath, bool, str]


def complaints(row: Mapping) -> Iterator[Complaint]:
    """Everything that is wrong with a row whatever its single values look like."""
    accelerator = _text(row, "accelerator")
    if accelerator == "cuda":
        yield from _cuda(row)
    elif accelerator == "cpu":
        yield from _cpu(row)
    yield from _sources(row, (*_FACTS, *_CUDA_FACTS) if accelerator == "cuda" else _FACTS)
    yield from _claimed(row)
    yield from _requirements(row)
    variables = _get(row, "env")
    if isinstance(variables, Mapping):
        for name in sorted(_RESERVED & variables.entries.keys()):
            yield ("env", name), True, "is not a row's to set: the proof depends on it"


def _cuda(row: Mapping) -> Iterator[Complaint]:
    for key in _CUDA_FACTS:
        node = _get(row, key)
        if node is None or (isinstance(node, Sequence) and not node.items):
            yield (key,), False, "is required when the accelerator is cuda"
    if _text(row, "cuda", "toolkit") == "image" and _get(row, "base", "toolkit_image") is None:
        yield ("base", "toolkit_image"), False, "is required when cuda.toolkit is image: the image that has nvcc"
    if _text(row, "requires") == "cpu":
        yield ("requires",), False, "must be gpu when the accelerator is cuda: its tag stands for a step on a GPU"


def _cpu(row: Mapping) -> Iterator[Complaint]:
    for key in _CUDA_FACTS:
        node = _get(row, key)
        if node is not None and not (isinstance(node, Sequence) and not node.items):
            yield (key,), True, "has no meaning when the accelerator is cpu; remove it"
    build = _text(row, "torch", "build")
    if build not in (None, "cpu"):
        yield ("torch", "build"), False, f"must be cpu when the accelerator is cpu, not {quoted(build)}"
    if _text(row, "requires") == "gpu":
        yield ("requires",), False, "cannot be gpu when the accelerator is cpu"


def _sources(row: Mapping, wanted: tuple[str, ...]) -> Iterator[Complaint]:
    sources = _get(row, "sources")
    if not isinstance(sources, Mapping):
        return
    for key in wanted:
        if key not in sources.entries and _get(row, key) is not None:
            yield ("sources", key), False, f"is required: who says so, for the row's {key}?"
    for key in sources.entries:
        yield from _fact_key("sources", key)


def _claimed(row: Mapping) -> Iterator[Complaint]:
    """What somebody claimed is about a fact of the row, for which the row names its own evidence."""
    claimed, sources = _get(row, "claimed"), _get(row, "sources")
    if not isinstance(claimed, Mapping):
        return
    known = sources.entries.keys() if isinstance(sources, Mapping) else frozenset()
    for key in claimed.entries:
        wrong = list(_fact_key("claimed", key))
        yield from wrong
        parts = key.split(".")
        if not wrong and not any(".".join(parts[:end]) in known for end in range(1, len(parts) + 1)):
            yield ("claimed", key), True, f"needs the evidence that contradicts it: an entry of sources for {key}"


def _fact_key(mapping: str, key: str) -> Iterator[Complaint]:
    """A key of ``sources`` or ``claimed`` is a key of the row, or a dotted path to one."""
    path: list[str] = []
    known = [k for k in row_keys() if k not in _NO_SOURCE]
    for part in key.split("."):
        if part not in known:
            under = f" of {'.'.join(path)}" if path else " of a row"
            yield (mapping, key), True, f"{quoted(part)} is not a key{under}{near(part, known)}"
            return
        path.append(part)
        known = fields_at(tuple(path))


def _requirements(row: Mapping) -> Iterator[Complaint]:
    pins, extras = _get(row, "pins"), _get(row, "extras")
    if isinstance(pins, Sequence):
        for index, item in enumerate(pins.items):
            yield from _requirement(item, ("pins", index))
    if isinstance(extras, Sequence):
        for index, item in enumerate(extras.items):
            if isinstance(item, Mapping):
                yield from _requirement(_get(item, "requirement"), ("extras", index, "requirement"))


def _requirement(node: Node | None, path: KeyPath) -> Iterator[Complaint]:
    """The version part of a requirement: the model's pattern lets through some that PEP 440 does not."""
    text = (isinstance(node, Scalar) and node.text) or ""
    if len(text) > 200 or not re.fullmatch(REQUIREMENT, text):
        return  # pydantic complains
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(re.sub(r"^[A-Za-z0-9._-]*(\[[^\]]*\])?", "", text))
    except InvalidSpecifier:
        yield path, False, f"{quoted(text)} has no valid version part, such as <2 or ==1.26.4"


def _get(node: Node | None, *keys: str) -> Node | None:
    """The value at a path; None where it is absent or empty."""
    for key in keys:
        entry = node.entries.get(key) if isinstance(node, Mapping) else None
        node = entry.node if entry else None
    return None if isinstance(node, Scalar) and node.text is None else node


def _text(row: Mapping, *keys: str) -> str | None:
    node = _get(row, *keys)
    return node.text if isinstance(node, Scalar) else None
