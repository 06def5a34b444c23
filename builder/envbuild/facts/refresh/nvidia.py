"""NVIDIA's wheels: which NCCL and which toolkits there are, and what each nvcc accepts as host compiler."""

from __future__ import annotations

import re
from collections.abc import Iterable

from packaging.version import Version

from envbuild.events import Sink
from envbuild.facts.refresh.reading import Notebook, Reading
from envbuild.facts.refresh.steps import attempt, step
from envbuild.facts.refresh.together import together
from envbuild.facts.refresh.torch import on_linux, where
from envbuild.facts.upstream import RemoteFile, Shape
from envbuild.facts.versions import parse, within
from envbuild.net import Missing

_HOST_CONFIG = r"nvidia/.*include/crt/host_config\.h"
_LIMIT = re.compile(rb"unsupported GNU version! gcc versions later than (\d+) are not supported!")
# From this toolkit on, host_config.h comes in a wheel of its own, and no wheel has the major in its name.
_SPLIT = "13.0"


def read_nccl(book: Notebook, sink: Sink) -> None:
    """The newest NCCL wheel of each CUDA major.

    Raises:
        NetworkError: A configured index does not answer.
        Shape: One of its pages is none.
    """
    for family in book.facts.nccl_wheels:
        name = f"nvidia-nccl-{family}"
        with step(sink, name):
            try:
                newest = _newest(book.upstream.files(name))
            except Missing as error:
                book.missed(name, error.message)
                continue
        if newest is None:
            book.missed(name, "no wheel for Linux x86-64 in the configured indexes")
            continue
        source = f"wheel file names of {name} {where(newest)}"
        values = {"newest": str(newest.version)}
        book.readings.append(Reading(file="nvidia", path=("nccl_wheels", family), values=values, source=source))


def read_toolkits(book: Notebook, sink: Sink) -> None:
    """Which CUDA toolkits exist as wheels, and the newest GCC that each nvcc accepts.

    Raises:
        NetworkError: A configured index does not answer.
        Shape: One of its pages is none.
    """
    with step(sink, "cuda-toolkit"):
        files = _released(book.upstream.files("cuda-toolkit"))
    series = sorted({_series(file.version) for file in files}, key=parse)
    for toolkit in series:
        newest = _newest(file for file in files if _series(file.version) == toolkit)
        if newest is not None and newest.version.release > (0, 0, 0):
            values = {"newest": str(newest.version)}
            source = f"wheel file names of cuda-toolkit {where(newest)}"
            path = ("toolkit_wheels", toolkit)
            book.readings.append(Reading(file="nvidia", path=path, values=values, source=source))
    wanted = sorted({*book.facts.toolkits, *(each for each in series if parse(each) > Version("1"))}, key=parse)
    together(lambda toolkit: _host_compiler(book, sink, toolkit), wanted)


def _host_compiler(book: Notebook, sink: Sink, toolkit: str) -> None:
    subject = f"CUDA {toolkit}: max_gcc"
    name = "nvidia-cuda-crt" if within(toolkit, _SPLIT, None) else f"nvidia-cuda-nvcc-cu{toolkit.split('.')[0]}"
    known = toolkit in book.facts.toolkits
    wheel = None
    with step(sink, f"{name} {toolkit}"), attempt(book, subject):
        try:
            wheel = _newest(file for file in book.upstream.files(name) if _series(file.version) == toolkit)
        except Missing:
            wheel = None
        if wheel is None:
            if known:
                book.missed(subject, f"{name} has no wheel of CUDA {toolkit}")
            return
        found = set(_LIMIT.findall(book.upstream.member(wheel, _HOST_CONFIG)))
        if len(found) != 1:
            raise Shape(f"{wheel.filename}: expected one limit for GCC in host_config.h, and found {len(found)}")
        limit = found.pop().decode()
        newest = max(book.facts.toolkits, key=parse)
        if not known and parse(toolkit) > parse(newest):
            # What the newest known toolkit compiles for holds up to it: a newer one first needs somebody who looks.
            book.remark(
                f"CUDA {toolkit}",
                f"exists as wheels and accepts GCC up to {limit}; add it to toolkits.yaml once it is known for "
                "which architectures it compiles",
            )
            return
        source = f"host_config.h of CUDA {toolkit} (wheel {wheel.version})"
        path = ("toolkits", toolkit)
        book.readings.append(Reading(file="toolkits", path=path, values={"max_gcc": limit}, source=source))


def _released(files: Iterable[RemoteFile]) -> list[RemoteFile]:
    return [file for file in on_linux(files) if not file.version.is_prerelease]


def _newest(files: Iterable[RemoteFile]) -> RemoteFile | None:
    return max(_released(files), key=lambda file: file.version, default=None)


def _series(version: Version) -> str:
    return f"{version.major}.{version.minor}"
