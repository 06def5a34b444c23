"""DeepSpeed, as its source archives have it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envbuild.events import Sink
from envbuild.facts.refresh.reading import Notebook, Reading, Value
from envbuild.facts.refresh.steps import attempt, step
from envbuild.facts.refresh.together import together
from envbuild.facts.upstream import RemoteFile, Shape, Upstream
from envbuild.facts.versions import parse, within

BUILDER = "op_builder/builder.py"
REQUIREMENTS = "requirements/requirements.txt"
_PATTERNS = (r"op_builder/(cpu/)?[^/]+\.py", r"requirements/requirements\.txt")
_CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)$")
_TOLERATED = "cuda_minor_mismatch_ok"
_DEFAULT = "DEFAULT_COMPUTE_CAPABILITIES"


def archives(upstream: Upstream) -> dict[Version, RemoteFile]:
    """The source archive of every release, oldest first.

    Raises:
        NetworkError: A configured index does not answer.
        Shape: One of its pages is none.
    """
    found = {file.version: file for file in upstream.files("deepspeed") if not file.is_wheel}
    return {version: found[version] for version in sorted(found) if not version.is_prerelease}


def read(book: Notebook, sink: Sink) -> None:
    """Read the newest release, and what the releases before and at each threshold tolerate.

    Raises:
        NetworkError: A configured index does not answer.
        Shape: One of its pages is none.
    """
    every = archives(book.upstream)
    if not every:
        book.missed("DeepSpeed", "no source archive in the configured indexes")
        return
    newest = max(every)
    subject = f"DeepSpeed {newest}"
    remarks = len(book.remarks)
    readings: list[Reading] = []
    with step(sink, subject), attempt(book, subject):
        sources = book.upstream.sources(every[newest], _PATTERNS, every=True)
        readings += _package(book, every[newest])
        readings += _builder(book, every, newest, sources[BUILDER])
        _pydantic(book, str(newest), sources[REQUIREMENTS])
        _ops(book, str(newest), sources)
        if len(book.remarks) == remarks:
            # Only then do the facts hold for it.
            readings.append(_reading(("newest",), {"version": str(newest)}, f"DeepSpeed sdist {newest}"))
    book.readings += readings
    _thresholds(book, sink, every)


def tolerated(source: bytes, place: str) -> dict[int, tuple[str, ...]]:
    """The CUDA versions that a release lets differ inside one major, from its builder.

    Raises:
        Shape: The table is not there.
    """
    value = _assigned(source, _TOLERATED, place)
    if not isinstance(value, dict) or not all(isinstance(each, list) for each in value.values()):
        raise Shape(f"{place}: expected {_TOLERATED}, a table of lists")
    return {int(major): tuple(map(str, minors)) for major, minors in value.items()}


def pydantic_of(requirements: bytes, place: str) -> SpecifierSet:
    """The pydantic that a release asks for, from its requirements.

    Raises:
        Shape: It names none.
    """
    for line in requirements.decode("utf-8", errors="replace").splitlines():
        try:
            requirement = Requirement(line.partition("#")[0].strip())
        except InvalidRequirement:
            continue
        if requirement.name == "pydantic":
            return requirement.specifier
    raise Shape(f"{place}: expected pydantic in {REQUIREMENTS}")


def newest_python(classifiers: tuple[str, ...], place: str) -> str:
    """The newest Python among classifiers.

    Raises:
        Shape: There is none.
    """
    found = [match[1] for each in classifiers if (match := _CLASSIFIER.match(each))]
    if not found:
        raise Shape(f"{place}: expected classifiers that name Python versions")
    return max(found, key=parse)


def _package(book: Notebook, archive: RemoteFile) -> list[Reading]:
    said = book.upstream.metadata(archive)
    values = {"newest": newest_python(said.classifiers, archive.filename)}
    return [_reading(("python_classifiers",), values, f"DeepSpeed sdist {archive.version}, PKG-INFO")]


def _builder(
    book: Notebook, every: Mapping[Version, RemoteFile], newest: Version, source: bytes
) -> list[Reading]:  # fmt: skip
    place = every[newest].filename
    default = _assigned(source, _DEFAULT, place)
    if not isinstance(default, str):
        raise Shape(f"{place}: expected {_DEFAULT}, a text")
    where = f"DeepSpeed sdist {newest}, {BUILDER}"
    readings = [_reading(("default_architectures",), {"sm": tuple(default.split(";"))}, where)]
    listed = [cuda for major, minors in tolerated(source, place).items() if major >= 11 for cuda in minors]
    entries = book.facts.deepspeed.tolerated_cuda
    known = [cuda for entry in entries for cuda in entry.cuda]
    for cuda in sorted(set(known) - set(listed), key=parse):
        book.remark(f"DeepSpeed {newest}", f"no longer lists CUDA {cuda} among those that may differ")
    for number, entry in enumerate(entries):
        if entry.since is None and set(entry.cuda) <= set(listed):
            readings.append(_reading(("tolerated_cuda", number), {"cuda": entry.cuda}, where))
    fresh: dict[Version, list[str]] = {}
    for cuda in [each for each in listed if each not in known]:
        fresh.setdefault(_first(book, every, newest, cuda), []).append(cuda)
    for number, (since, minors) in enumerate(sorted(fresh.items()), len(entries)):
        values: dict[str, Value] = {"since": str(since), "cuda": tuple(minors)}
        readings.append(_reading(("tolerated_cuda", number), values, f"DeepSpeed sdist {since}, {BUILDER}"))
    return readings


def _first(book: Notebook, every: Mapping[Version, RemoteFile], newest: Version, cuda: str) -> Version:
    """The first release after the newest known one that lists a CUDA version."""
    known = parse(book.facts.deepspeed.newest.version)
    for version in (each for each in every if each > known):
        if cuda in _listed(book, every[version]):
            return version
    return newest


def _thresholds(book: Notebook, sink: Sink, every: Mapping[Version, RemoteFile]) -> None:
    """Whether each known entry of tolerated CUDA versions begins where the facts say."""
    releases = list(every)

    def check(number: int) -> None:
        entry = book.facts.deepspeed.tolerated_cuda[number]
        since = Version(entry.since or "0")
        if since not in every:
            return
        subject = f"DeepSpeed {since}: tolerated CUDA"
        with step(sink, subject), attempt(book, subject):
            before = releases[releases.index(since) - 1] if releases.index(since) else None
            early = _listed(book, every[before]) if before is not None else ()
            now = _listed(book, every[since])
            wrong = [cuda for cuda in entry.cuda if cuda not in now or cuda in early]
            if wrong:
                book.remark(subject, f"CUDA {', '.join(wrong)}: {since} is not the first release that lists it")
            else:
                source = f"DeepSpeed sdist {since}, {BUILDER}"
                values: dict[str, Value] = {"since": str(entry.since), "cuda": entry.cuda}
                book.readings.append(_reading(("tolerated_cuda", number), values, source))

    together(check, [n for n, entry in enumerate(book.facts.deepspeed.tolerated_cuda) if entry.since is not None])


def _listed(book: Notebook, archive: RemoteFile) -> tuple[str, ...]:
    source = book.upstream.sources(archive, (re.escape(BUILDER),))[BUILDER]
    return tuple(cuda for minors in tolerated(source, archive.filename).values() for cuda in minors)


def _pydantic(book: Notebook, newest: str, requirements: bytes) -> None:
    asked = pydantic_of(requirements, f"DeepSpeed {newest}")
    fits = [each for each in book.facts.deepspeed.pydantic if within(newest, each.since, each.through)]
    # Compared by what they allow, not by how they are written (>=2 and >=2.0.0).
    for major in ("1.10.13", "2.11.0"):
        said = all(SpecifierSet(each.specifier).contains(major) for each in fits)
        if said != asked.contains(major):
            book.remark(f"DeepSpeed {newest}", f"asks for pydantic{asked or ' of any version'}, and the facts differ")
            return


def _ops(book: Notebook, newest: str, sources: Mapping[str, bytes]) -> None:
    """New ops, ops that are gone, and ops under another builder or variable: all for a person to look at."""
    found = {name: (builder, variable) for name, builder, variable in builders(sources, f"DeepSpeed {newest}")}
    known = book.facts.deepspeed.ops
    for name in sorted(found.keys() - known.keys()):
        book.remark(
            f"DeepSpeed {newest}", f"has an op {name} ({found[name][0]}, {found[name][1]}), unknown to the facts"
        )
    for name in sorted(known.keys() - found.keys()):
        book.remark(f"DeepSpeed {newest}", f"has no op {name} any more")
    for name in sorted(known.keys() & found.keys()):
        op = known[name]
        if found[name] != (op.builder, op.build_variable):
            book.remark(f"DeepSpeed {newest}", f"its op {name} is now {found[name][0]}, {found[name][1]}")


def builders(sources: Mapping[str, bytes], place: str) -> Iterator[tuple[str, str, str]]:
    """Every op's name, builder class and build variable, from the classes of the op registry.

    Raises:
        Shape: A file is no Python.
    """
    for path, source in sorted(sources.items()):
        if not path.endswith(".py"):
            continue
        for node in _parsed(source, f"{place}, {path}").body:
            if not isinstance(node, ast.ClassDef):
                continue
            said = {
                target.id: each.value.value
                for each in node.body
                if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)
                for target in each.targets
                if isinstance(target, ast.Name)
            }
            # What an accelerator gives in place of an op that it does not have.
            placeholder = node.name == "NotImplementedBuilder"
            if isinstance(said.get("NAME"), str) and isinstance(said.get("BUILD_VAR"), str) and not placeholder:
                yield str(said["NAME"]), node.name, str(said["BUILD_VAR"])


def _assigned(source: bytes, name: str, place: str) -> object:
    for node in _parsed(source, place).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            try:
                return ast.literal_eval(node.value)
            except (ValueError, TypeError, RecursionError, MemoryError):
                break
    raise Shape(f"{place}: expected {name} = ... in {BUILDER}", hint="DeepSpeed has changed the shape of its builder")


def _parsed(source: bytes, place: str) -> ast.Module:
    import warnings

    try:
        with warnings.catch_warnings():
            # Old releases have regular expressions with stray backslashes; that is their business.
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Shape(f"{place}: expected Python source") from error


def _reading(path: tuple[str | int, ...], values: Mapping[str, Value], source: str) -> Reading:
    return Reading(file="deepspeed", path=path, values=values, source=source)
