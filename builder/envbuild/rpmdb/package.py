"""What a header says of an installed package and of each of its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from envbuild.rpmdb.faults import RpmdbError
from envbuild.rpmdb.header import Header

# Tags, flags and states: rpm's include/rpm/rpmtag.h, rpmfiles.h and rpmvf.h (4.18).
_NAME, _VERSION, _RELEASE, _EPOCH, _ARCH, _SIZE, _LONGSIZE = 1000, 1001, 1002, 1003, 1022, 1009, 5009
_VENDOR, _LICENSE, _SOURCERPM = 1011, 1014, 1044
_OLDFILENAMES, _BASENAMES, _DIRNAMES, _DIRINDEXES = 1027, 1117, 1118, 1116
_SIZES, _LONGSIZES, _STATES, _MODES, _DIGESTS, _ALGORITHM = 1028, 5008, 1029, 1030, 1035, 5011
_LINKS, _FLAGS, _USERS, _VERIFY = 1036, 1037, 1039, 1045
_CONFIG, _DOC, _MISSINGOK, _GHOST = 1 << 0, 1 << 1, 1 << 3, 1 << 6
_STATE_NORMAL = 0
_VERIFY_DIGEST, _VERIFY_LINK, _VERIFY_MODE = 1 << 0, 1 << 2, 1 << 6
# By the numbers of OpenPGP (RFC 4880, 9.4); without the tag it is MD5.
_ALGORITHMS = {1: "md5", 2: "sha1", 8: "sha256", 9: "sha384", 10: "sha512", 11: "sha224"}
# What building the paths of one package may cost; a hostile header has long folders for many names.
_MAX_CHARACTERS = 32 << 20
_MAX_PATH = 4096
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFile:
    """One path of a package.

    Attributes:
        path: Absolute.
        mode: As lstat says it: type and permissions.
        size: Bytes.
        digest: Of a regular file's content; empty where the package states none.
        link: Where a symbolic link points.
        user: Its owner.
        config: It is there to be changed (%config).
        doc: Documentation.
        ghost: The package owns it and did not bring it.
        optional: It may be missing (%missingok).
        installed: The file of this package lies there: it was not left out (documentation, languages) and not
            replaced by another package's.
        verify: What is to be compared: ``digest``, ``link``, ``mode`` (%verify says what is not).
    """

    path: str
    mode: int
    size: int
    digest: bytes = b""
    link: str = ""
    user: str = ""
    config: bool = False
    doc: bool = False
    ghost: bool = False
    optional: bool = False
    installed: bool = True
    verify: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One installed package.

    Attributes:
        name: Such as gcc-toolset-11-gcc.
        epoch: None where there is none, which is not the same as 0.
        arch: Empty for the signing keys that rpm keeps as packages.
        size: Bytes of all files.
        algorithm: Of the files' digests, as hashlib calls it; one that is unknown by its number.
        licence: As the package states it; empty where it does not, like the next two.
        source: File name of the source package that it was built from.
        vendor: Who built it.
        files: In the package's order.
        problem: Why its files cannot be told; empty otherwise.
    """

    name: str
    epoch: int | None
    version: str
    release: str
    arch: str
    size: int = 0
    algorithm: str = "md5"
    licence: str = ""
    source: str = ""
    vendor: str = ""
    files: tuple[PackageFile, ...] = ()
    problem: str = ""

    @property
    def label(self) -> str:
        """As ``rpm -qa`` prints it."""
        return f"{self.name}-{self.version}-{self.release}" + (f".{self.arch}" if self.arch else "")


def package(header: Header) -> Package:
    """The package of a header.

    Raises:
        RpmdbError: It is no package's, or damaged.
    """
    name, version, release = header.text(_NAME), header.text(_VERSION), header.text(_RELEASE)
    if not name or not version:
        raise RpmdbError("a header without a name or a version")
    number = next(iter(header.numbers(_ALGORITHM)), 1)
    old = _BASENAMES not in header and _OLDFILENAMES in header
    return Package(
        name=name,
        epoch=next(iter(header.numbers(_EPOCH)), None),
        version=version,
        release=release,
        arch=header.text(_ARCH),
        size=next(iter(header.numbers(_LONGSIZE) or header.numbers(_SIZE)), 0),
        algorithm=_ALGORITHMS.get(number, f"kind {number}"),
        licence=header.text(_LICENSE),
        source=header.text(_SOURCERPM),
        vendor=header.text(_VENDOR),
        files=_files(header),
        problem="its files are listed as rpm did before version 4, which is not read" if old else "",
    )


def _files(header: Header) -> tuple[PackageFile, ...]:
    names, folders, indexes = header.texts(_BASENAMES), header.texts(_DIRNAMES), header.numbers(_DIRINDEXES)
    total = len(names)
    if len(indexes) != total or any(index >= len(folders) for index in indexes):
        raise RpmdbError("its list of files and its list of folders do not fit")
    if sum(len(folders[index]) for index in indexes) + sum(map(len, names)) > _MAX_CHARACTERS:
        raise RpmdbError("its paths are longer than any package's")
    sizes = _column(header.numbers(_LONGSIZES) or header.numbers(_SIZES), total, 0)
    modes = _column(header.numbers(_MODES), total, 0)
    digests = _column(header.texts(_DIGESTS), total, "")
    links = _column(header.texts(_LINKS), total, "")
    flags = _column(header.numbers(_FLAGS), total, 0)
    users = _column(header.texts(_USERS), total, "")
    states = _column(header.numbers(_STATES), total, _STATE_NORMAL)
    verify = _column(header.numbers(_VERIFY), total, 0xFFFFFFFF)
    files = []
    for number, name in enumerate(names):
        path, flag = folders[indexes[number]] + name, flags[number]
        if not path.startswith("/") or len(path) > _MAX_PATH:
            raise RpmdbError(f"a file is named {path[:80]!r}, which is no absolute path")
        files.append(
            PackageFile(
                path=path, mode=modes[number], size=sizes[number], digest=_digest(digests[number]), link=links[number],
                user=users[number], config=bool(flag & _CONFIG), doc=bool(flag & _DOC), ghost=bool(flag & _GHOST),
                optional=bool(flag & _MISSINGOK), installed=states[number] == _STATE_NORMAL,
                verify=_VERIFY_SETS[_verified(verify[number])],
            )
        )  # fmt: skip
    return tuple(files)


def _verified(flags: int) -> tuple[bool, bool, bool]:
    return bool(flags & _VERIFY_DIGEST), bool(flags & _VERIFY_LINK), bool(flags & _VERIFY_MODE)


# One set for all files that have the same: a system has some ten thousand.
_VERIFY_SETS = {
    (digest, link, mode): frozenset(
        name for name, there in (("digest", digest), ("link", link), ("mode", mode)) if there
    )
    for digest in (False, True)
    for link in (False, True)
    for mode in (False, True)
}


def _column(values: tuple[_T, ...], total: int, default: _T) -> tuple[_T, ...]:
    """One value for each file; a tag that is not there says nothing of any."""
    if values and len(values) != total:
        raise RpmdbError(f"it has {total} files and {len(values)} values of a kind for them")
    return values or (default,) * total


def _digest(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise RpmdbError(f"a file has the digest {text[:40]!r}, which is none") from None
