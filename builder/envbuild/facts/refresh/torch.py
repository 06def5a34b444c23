"""torch and its companions, as their wheels have them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from packaging.version import Version

from envbuild import net
from envbuild.events import Sink
from envbuild.facts.refresh.reading import Notebook, Reading
from envbuild.facts.refresh.steps import attempt, step
from envbuild.facts.refresh.together import together
from envbuild.facts.types import TorchVersion
from envbuild.facts.upstream import RemoteFile, Shape
from envbuild.facts.versions import parse
from envbuild.site.pip import PYTORCH

COMPANIONS = ("torchvision", "torchaudio")
_MACHINE = re.compile(r"(many)?linux.*_x86_64$")
_CUDA = re.compile(rb"^cuda(?:: [^=]*)? = (?:'(\d+\.\d+)'|None)$", re.MULTILINE)
# Compilers pack texts closely: in some releases another one ends right before it, with no zero between.
_FLAGS = re.compile(rb"(?:sm|compute)_\d+[a-z]?(?: (?:sm|compute)_\d+[a-z]?)+(?=\0)")
_NCCL = re.compile(rb"NCCL version (\d+\.\d+\.\d+)\+cuda")
_OVERLAP = 4096
_FIRST_CHOICE = ("cp310", "cp311", "cp39", "cp38", "cp312")


def read(book: Notebook, sink: Sink) -> None:
    """Read what PyPI (and PyTorch's own index, where it answers) says of every known and every newer torch.

    Raises:
        NetworkError: A configured index does not answer.
        Shape: One of its pages is none.
    """
    files = on_linux(book.upstream.files("torch"))
    releases = _releases(book, files)
    together(lambda version: _release(book, sink, version, files), releases)
    for name in COMPANIONS:
        _companions(book, sink, name, releases)
    _other_builds(book, sink, files)


def _releases(book: Notebook, files: Iterable[RemoteFile]) -> list[str]:
    """The known releases, and those that are newer than all of them."""
    known = book.facts.versions
    newest = max(map(parse, known))
    found = {file.version for file in files if file.version.local is None and not file.version.is_prerelease}
    return sorted({*known, *(str(version) for version in found if version > newest)}, key=parse)


def _release(book: Notebook, sink: Sink, version: str, files: Iterable[RemoteFile]) -> None:
    known = book.facts.versions.get(version)
    own = [file for file in files if file.version == Version(version)]
    subject = f"torch {version}"
    if not own:
        book.missed(subject, "no wheel for Linux x86-64 in the configured indexes")
        return
    readings: list[Reading] = []
    with step(sink, subject), attempt(book, subject):
        readings += _pythons(version, own)
        wheel = choose(own)
        build = _build(book, wheel)
        place = where(wheel)
        readings.append(
            _reading(version, ("pypi",), {"build": build}, f"wheel torch {version} {place}, torch/version.py", "builds")
        )
        readings += _content(book, version, build, wheel, place)
    # A new release is taken whole or not at all; of a known one, what was read counts.
    if known is not None or any(len(each.path) == 4 for each in readings):
        book.readings += readings


def _pythons(version: str, own: Iterable[RemoteFile]) -> list[Reading]:
    minors = [
        int(found[1])
        for file in own
        for tag in file.tags
        if (found := re.fullmatch(r"cp3(\d+)", tag.interpreter)) and not tag.abi.endswith("t")
    ]
    if not minors:
        return []
    values = {"python_min": f"3.{min(minors)}", "python_max": f"3.{max(minors)}"}
    place = where(next(iter(own)))
    return [_reading(version, (), values, f"wheel file names of torch {version} {place}")]


def _content(book: Notebook, version: str, build: str, wheel: RemoteFile, place: str) -> list[Reading]:
    """NCCL and the other pins, and the architectures of one build."""
    python = _python(wheel)
    said = book.upstream.metadata(wheel)
    local = f"+{wheel.version.local}" if wheel.version.local else ""
    path = ("builds", build)
    readings: list[Reading] = []
    names = said.wants("nvidia-nccl", python=python)
    nccl = said.pin(names[0], python=python) if len(names) == 1 else None
    if nccl is not None:
        pins = {"nccl": nccl, "triton": said.pin("triton", python=python)}
        pins["cuda_toolkit"] = said.pin("cuda-toolkit", python=python)
        values = {key: value for key, value in pins.items() if value is not None}
        readings.append(_reading(version, path, values, f"wheel METADATA of torch {version}{local}"))
    elif book.deep and build != "cpu":
        values = {"nccl": _static_nccl(book, wheel)}
        readings.append(_reading(version, path, values, f"wheel torch {version}{local} {place}, text in libtorch_cuda"))
    elif build != "cpu":
        book.missed(
            f"torch {version}+{build}: nccl",
            "its METADATA pins none: NCCL is linked statically",
            hint="--download reads it out of the library (about 1 GB)",
        )
    flags = book.upstream.distilled(wheel, r"torch/lib/libtorch_python\.so", "architectures 2", _flags).decode()
    sm = tuple(f"{flag[3:-1]}.{flag[-1]}" for flag in flags.split() if re.fullmatch(r"sm_\d+", flag))
    known = book.facts.torch_build(version, build)
    if not sm and build != "cpu":
        what = f"{wheel.filename}: expected a list of architectures (sm_90 sm_100 ...) in libtorch_python.so"
        if version not in book.facts.versions:
            raise Shape(what)
        book.missed(f"torch {version}+{build}: architectures", what, failed=True)
    elif build != "cpu" and (readings or known is not None):
        source = f"wheel torch {version}{local} {place}, CUDA_ARCH_FLAGS in libtorch_python.so"
        readings.append(_reading(version, (*path, "architectures"), {"sm": sm}, source))
        for flag in flags.split():
            if not re.fullmatch(r"sm_\d+", flag):
                book.remark(f"torch {version}+{build}", f"its wheel also has code for {flag}, which facts do not hold")
    return readings


def _companions(book: Notebook, sink: Sink, name: str, releases: list[str]) -> None:
    """The newest release of a companion whose METADATA pins each torch."""
    files = [file for file in on_linux(book.upstream.files(name)) if file.version.local is None]
    by_version: dict[Version, list[RemoteFile]] = {}
    for file in files:
        if not file.version.is_prerelease:
            by_version.setdefault(file.version, []).append(file)
    known = {torch: getattr(entry, name) for torch, entry in book.facts.versions.items() if getattr(entry, name)}
    oldest = min((parse(entry.version) for entry in known.values()), default=Version("0"))
    wheels = [choose(own) for version, own in by_version.items() if version >= oldest]
    pins: dict[str, list[RemoteFile]] = {}
    failed: list[str] = []

    def look(wheel: RemoteFile) -> None:
        subject = f"{name} {wheel.version}"
        with step(sink, subject), attempt(book, subject, failed):
            torch = book.upstream.metadata(wheel).pin("torch", python=_python(wheel))
            if torch is not None:
                pins.setdefault(Version(torch).public, []).append(wheel)

    together(look, wheels)
    taken = {reading.path[1] for reading in book.readings if reading.file == "torch"}
    for torch in releases:
        if torch in pins and torch in taken and not failed:
            version = str(max(wheel.version for wheel in pins[torch]))
            source = f"wheel METADATA of {name} {version}"
            book.readings.append(_reading(torch, (name,), {"version": version}, source, "builds"))
        elif torch in known and torch not in pins:
            book.missed(f"torch {torch}: {name}", f"no {name} pins this torch in its METADATA")


def _other_builds(book: Notebook, sink: Sink, files: list[RemoteFile]) -> None:
    """The builds that PyPI does not ship, from a configured index that has them or from PyTorch's own."""
    wanted = [
        (version, build)
        for version, entry in book.facts.versions.items()
        for build in entry.builds
        if build != "cpu" and not _is_pypi(entry, build)
    ]
    answers: dict[str, bool] = {}
    for version, build in wanted:
        subject = f"torch {version}+{build}"
        own = [file for file in files if str(file.version) == f"{version}+{build}"]
        place = "in a configured index"
        if not own:
            if not answers:
                answers["pytorch"] = not book.upstream.offline and net.answers(
                    f"{PYTORCH}/", timeout=5.0, ca=book.upstream.ca, proxies=book.upstream.proxies or None, below=400
                )
            place = "in PyTorch's index"
            if answers["pytorch"]:
                with attempt(book, subject, network=True):
                    own = [
                        file
                        for file in on_linux(book.upstream.pytorch_files("torch", build))
                        if str(file.version) == f"{version}+{build}"
                    ]
            if not own:
                why = "has no such wheel" if answers["pytorch"] else "does not answer"
                book.missed(subject, f"PyPI does not ship it, and PyTorch's own index {why}")
                continue
        with step(sink, subject), attempt(book, subject):
            wheel = choose(own)
            if _build(book, wheel) != build:
                raise Shape(f"torch/version.py of {wheel.filename} speaks of another build")
            book.readings += _content(book, version, build, wheel, place)


def _build(book: Notebook, wheel: RemoteFile) -> str:
    found = _CUDA.search(book.upstream.member(wheel, r"torch/version\.py"))
    if found is None:
        raise Shape(f"torch/version.py of {wheel.filename}: expected a line cuda = '12.6'")
    return "cpu" if found[1] is None else f"cu{found[1].decode().replace('.', '')}"


def _static_nccl(book: Notebook, wheel: RemoteFile) -> str:
    for library in (r"torch/lib/libtorch_cuda\.so", r"torch/lib/libtorch_cuda_cpp\.so"):
        found = book.upstream.distilled(wheel, library, "nccl", _nccl).decode()
        if found:
            return found
    raise Shape(f"{wheel.filename}: expected the text of NCCL's version in libtorch_cuda")


def _flags(blocks: Iterator[bytes]) -> bytes:
    found = set(_search(blocks, _FLAGS))
    if len(found) > 1:
        raise Shape("libtorch_python.so has more than one list of architectures")
    return found.pop() if found else b""


def _nccl(blocks: Iterator[bytes]) -> bytes:
    return next((_NCCL.search(found)[1] for found in _search(blocks, _NCCL)), b"")  # type: ignore[index]


def _search(blocks: Iterator[bytes], pattern: re.Pattern[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        rest += block
        end = 0
        for found in pattern.finditer(rest):
            yield found[0]
            end = found.end()
        rest = rest[max(end, len(rest) - _OVERLAP) :]


def on_linux(files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """The wheels that run on Linux x86-64."""
    return [
        file
        for file in files
        if any(tag.platform == "any" or _MACHINE.match(tag.platform) for tag in file.tags)
    ]  # fmt: skip


def choose(files: Iterable[RemoteFile]) -> RemoteFile:
    """One of the wheels of a release: they differ in their Python only."""

    def rank(file: RemoteFile) -> tuple[int, str]:
        tags = {tag.interpreter for tag in file.tags if not tag.abi.endswith("t")}
        return next((n for n, tag in enumerate(_FIRST_CHOICE) if tag in tags), len(_FIRST_CHOICE)), file.filename

    return min(files, key=rank)


def _python(wheel: RemoteFile) -> str:
    minors = [int(found[1]) for tag in wheel.tags if (found := re.fullmatch(r"cp3(\d+)", tag.interpreter))]
    return f"3.{min(minors)}" if minors else "3.11"


def where(file: RemoteFile) -> str:
    """In which index a file is, without its host: that is nobody's business."""
    return "on PyPI" if file.from_pypi else "in a configured index"


def _is_pypi(entry: TorchVersion, build: str) -> bool:
    return entry.pypi is not None and entry.pypi.build == build


def _reading(
    version: str, below: tuple[str, ...], values: dict[str, str] | dict[str, tuple[str, ...]], source: str,
    before: str | None = None,
) -> Reading:  # fmt: skip
    return Reading(file="torch", path=("versions", version, *below), values=values, source=source, before=before)
