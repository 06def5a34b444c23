"""Where a library comes from, read off its path."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in words, and what the path names."""

    words: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)


# The first that fits counts: a wheel inside of a conda environment is a wheel.
_PLACES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r".*/torch_extensions/(?:[^/]*/)*(?P<op>\w+)/[^/]+$"), "DeepSpeed's JIT cache (op {op})"),
    (re.compile(r".*/deepspeed/ops/(?:[^/]+/)*(?P<op>\w+?)_op[^/]*\.so$"), "an op prebuilt with DeepSpeed ({op})"),
    (re.compile(r".*/(?:site|dist)-packages/(?P<package>nvidia/[^/]+|[^/]+)(?:/.*)?$"), "the Python package {package}"),
    (re.compile(r"(?P<conda_prefix>/.*/envs/[^/]+)/.*"), "the conda environment {conda_prefix}"),
    (
        re.compile(r"(?P<conda_prefix>/(?:[^/]+/)*?(?:[^/]*conda[^/]*|miniforge[^/]*|mambaforge|mamba))/.*"),
        "the conda environment {conda_prefix}",
    ),
    (re.compile(r"(?P<toolkit>/(?:[^/]+/)*?cuda(?:-[\d.]+)?)/.*"), "the CUDA toolkit {toolkit}"),
    (re.compile(r"/opt/rh/(?P<toolset>[^/]+)/.*"), "the compiler toolset {toolset}"),
    (re.compile(r"/usr/local/.*"), "something installed by hand in /usr/local"),
    (re.compile(r"/(?:usr/)?lib(?:32|64|x32)?/.*"), "the operating system"),
)


def place_of(path: str) -> Place:
    """Where a library of this path comes from; nothing where the path does not say so."""
    plain = posixpath.normpath(path) if path else ""
    for regex, words in _PLACES:
        found = regex.fullmatch(plain)
        if found:
            parts = {name: value for name, value in found.groupdict().items() if value}
            return Place(words=words.format(**parts), parts=parts)
    return Place()
