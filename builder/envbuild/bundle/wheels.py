"""The wheels of a bundle: for each locked package the one file that the target's own pip would take, by its hash.

pip itself is not asked: it takes environment markers from the Python that it runs under (pip #4304), and the lock has
answered those for the target already.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from envbuild.bundle.fetching import Fetcher
from envbuild.bundle.manifest import Wheel, Wheels
from envbuild.bundle.writing import Draft
from envbuild.errors import BundleError
from envbuild.facts.upstream import RemoteFile, Upstream
from envbuild.lock import local
from envbuild.model import Lock, LockedPackage
from envbuild.net import Missing
from envbuild.site import urls

FOLDER = "wheels"
REQUIREMENTS = f"{FOLDER}/requirements.lock"
_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
# PEP 600: the names that these levels had before.
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_OLDEST = {"linux/amd64": 5, "linux/arm64": 17}
_LINES = 4
_FROM_SOURCE = (
    "DeepSpeed is a source archive here: it is compiled on the target, by the compiler of the RPM packages, after the "
    "wheels were installed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """For whom.

    Attributes:
        lock: What is wanted, and the Python and platform that it is for.
        glibc: The target's C library: wheels for a newer one do not run there.
        own: Wheels that were compiled for this, by normalised name, such as DeepSpeed's out of a proven image.
        note, program, imports, env: As in the manifest.
    """

    lock: Lock
    glibc: tuple[int, int]
    own: Mapping[str, Own]
    note: str = ""
    program: str | None = None
    imports: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """A wheel on this disk that no index has."""

    path: Path
    filename: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The file of one package, or the reason that there is none."""

    package: LockedPackage
    file: RemoteFile | None = None
    reason: str = ""


def tags(python: str, platform: str, glibc: tuple[int, int]) -> tuple[Tag, ...]:
    """What runs on the target, best first: its own level of manylinux, then every older one (PEP 600).

    Args:
        python: Such as ``3.9``.
        platform: ``linux/amd64`` or ``linux/arm64``.
    """
    major, minor = (int(part) for part in python.split("."))
    machine = _MACHINES[platform]
    platforms: list[str] = []
    for level in range(glibc[1], _OLDEST[platform] - 1, -1):
        platforms.append(f"manylinux_2_{level}_{machine}")
        if level in _OLD_NAMES:
            platforms.append(f"{_OLD_NAMES[level]}_{machine}")
    platforms.append(f"linux_{machine}")
    interpreter = f"cp{major}{minor}"
    # Python up to 3.7 has an "m" in its ABI.
    abis = [interpreter if (major, minor) >= (3, 8) else f"{interpreter}m"]
    return tuple(
        itertools.chain(
            cpython_tags((major, minor), abis, platforms), compatible_tags((major, minor), interpreter, platforms)
        )
    )


def choose(wish: Wish, upstream: Upstream, cache: Path) -> tuple[Choice, ...]:
    """The file of each package that the target needs and nobody brings. Only the lists of indexes are read.

    Args:
        cache: A folder where the hashes of large local files are remembered.

    Raises:
        BundleError: Some of them cannot be had; it names each.
        EngineError: An index does not answer.
    """
    order = {tag: rank for rank, tag in enumerate(tags(wish.lock.python, wish.lock.platform, wish.glibc))}
    wanted = [package for package in wish.lock.packages if _wanted(package, wish)]
    with ThreadPoolExecutor(_LINES) as pool:
        choices = tuple(pool.map(lambda package: _choice(package, upstream, order, cache), wanted))
    if lacking := [each for each in choices if each.file is None]:
        lines = (f"  {each.package.name} {each.package.version}: {each.reason}" for each in lacking)
        raise BundleError(
            f"{len(lacking)} of {len(wanted)} locked packages cannot be had for Python {wish.lock.python} on "
            f"{wish.lock.platform} with glibc {wish.glibc[0]}.{wish.glibc[1]}:\n" + "\n".join(lines),
            hint="Name an index or a folder that has them under [pip] in envbuild.toml; or lock the row anew.",
        )
    return choices


def write(draft: Draft, wish: Wish, choices: Sequence[Choice], fetcher: Fetcher) -> Wheels:
    """Fetch what is not here yet, and put everything into a bundle.

    Raises:
        BundleError: A file is not what the lock says.
        EngineError: The network or the disk.
    """
    packages: list[Wheel] = []
    with ThreadPoolExecutor(_LINES) as pool:
        coming = [pool.submit(fetcher.get, each.file, each.package.hashes) for each in choices if each.file]
        try:
            for choice, future in zip(choices, coming, strict=True):
                assert choice.file is not None
                path, sha256 = future.result()
                packages.append(_put(draft, choice.package, choice.file.filename, path, sha256))
        except BaseException:
            fetcher.stop()
            for each in coming:
                each.cancel()
            raise
    for package in wish.lock.packages:
        if (own := wish.own.get(package.name)) is not None:
            packages += [_own(draft, wish, package, own)]
    packages.sort(key=lambda wheel: wheel.name)
    draft.write(REQUIREMENTS, requirements(packages), "wheels")
    compiled = next((wheel.file for wheel in packages if wheel.name == "deepspeed"), None)
    deepspeed = None if compiled is None else "image" if compiled.endswith(".whl") else "source"
    notes = (wish.note, _FROM_SOURCE if deepspeed == "source" else "")
    return Wheels.model_validate({
        "python": wish.lock.python, "platform": wish.lock.platform, "requirements": REQUIREMENTS,
        "packages": packages, "deepspeed": deepspeed, "note": "; ".join(filter(None, notes)),
        "program": wish.program, "imports": wish.imports, "env": wish.env,
    })  # fmt: skip


def requirements(packages: Iterable[Wheel]) -> bytes:
    """Lines for ``pip install --no-index --require-hashes -r``: exactly the files of the bundle."""
    lines = (
        f"{each.name}=={each.version} \\\n    --hash=sha256:{each.sha256}\n"
        for each in sorted(packages, key=lambda wheel: wheel.name)
    )
    return "".join(lines).encode("ascii")


def _wanted(package: LockedPackage, wish: Wish) -> bool:
    if package.name in wish.own:
        return False
    # The toolkit's wheels only compile; they are no use where nothing is compiled.
    compiles = any(other.group == "ops" and other.name not in wish.own for other in wish.lock.packages)
    return package.group != "toolkit" or compiles


def _choice(package: LockedPackage, upstream: Upstream, order: Mapping[Tag, int], cache: Path) -> Choice:
    try:
        files = [each for each in upstream.files(package.name, yanked=True) if _same(each, package)]
    except Missing as error:
        return Choice(package=package, reason=error.message)
    files = [_hashed(each, cache) for each in files]
    known = [each for each in files if each.sha256 is None or f"sha256:{each.sha256}" in package.hashes]
    if package.group == "ops":
        archives = [each for each in known if not each.is_wheel]
        return Choice(package=package, file=archives[0]) if archives else _none(package, files, known)
    ranked = [(min(order[tag] for tag in each.tags if tag in order), each.sha256 is None, number)
              for number, each in enumerate(known) if not order.keys().isdisjoint(each.tags)]  # fmt: skip
    return Choice(package=package, file=known[min(ranked)[2]]) if ranked else _none(package, files, known)


def _hashed(file: RemoteFile, cache: Path) -> RemoteFile:
    """With the hash that a folder does not say."""
    path = urls.local_path(file.url) if file.sha256 is None else None
    if path is None:
        return file
    with contextlib.suppress(OSError):
        return dataclasses.replace(file, sha256=local.sha256(path, cache).removeprefix("sha256:"))
    return file


def _same(file: RemoteFile, package: LockedPackage) -> bool:
    return local.same_version(str(file.version), package.version)


def _none(package: LockedPackage, files: Sequence[RemoteFile], known: Sequence[RemoteFile]) -> Choice:
    if not files:
        reason = "no index or folder has this version"
    elif not known:
        reason = f"its {len(files)} files have other hashes than the lock"
    elif package.group == "ops":
        reason = "there is no source archive of it"
    else:
        names = sorted(each.filename for each in known)
        reason = f"no wheel of it runs there: {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}"
    return Choice(package=package, reason=reason)


def _own(draft: Draft, wish: Wish, package: LockedPackage, own: Own) -> Wheel:
    name, version, _, runs_on = parse_wheel_filename(own.filename)
    fits = not runs_on.isdisjoint(tags(wish.lock.python, wish.lock.platform, wish.glibc))
    if name != package.name or not local.same_version(str(version), package.version) or not fits:
        raise BundleError(
            f"{own.filename} is not {package.name} {package.version} for Python {wish.lock.python} on "
            f"{wish.lock.platform}",
            hint="The image is of other inputs than the lock: export without it, or build the row again.",
        )
    return _put(draft, package, own.filename, own.path, own.sha256)


def _put(draft: Draft, package: LockedPackage, filename: str, path: Path, sha256: str) -> Wheel:
    place = f"{FOLDER}/{filename}"
    draft.copy(place, path, sha256, "wheels")
    return Wheel(name=package.name, version=package.version, file=place, sha256=sha256)
