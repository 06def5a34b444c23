"""A repository's metadata on this disk: index, signature, checksums, then plain files, each by its own digest."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from envbuild import process, store
from envbuild.bundle.rpms import armor, filelists, repomd
from envbuild.bundle.rpms.addresses import joined, local
from envbuild.bundle.rpms.repomd import REPOMD, Entry, Repomd
from envbuild.bundle.rpms.results import PublicKey
from envbuild.bundle.rpms.transport import Progress, Wanted, Way, digest_of
from envbuild.bundle.rpms.unpack import harmless, unpack
from envbuild.errors import BundleError, EnvbuildError, InputError
from envbuild.events import Note, Sink, discard
from envbuild.net import Missing, NetworkError
from envbuild.site import urls

# The largest distributions have 100 MB of packed metadata in one file, and 1 GB of it plain.
_PACKED, _PLAIN = 1 << 30, 4 << 30
_SIGNATURE = 1 << 16
_LINES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """One repository's metadata, verified.

    Attributes:
        base: Where it was found; packages are looked for there first, then at ``mirrors``.
        repomd_sha256: Of its ``repomd.xml``.
        signer: Fingerprint of the key that signed that; empty where nobody did, or no key is at hand.
        asked: Files that its dependencies name and that only file lists know.
    """

    way: Way
    base: str
    mirrors: tuple[str, ...]
    index: Repomd
    repomd_sha256: str
    signer: str
    keys: tuple[PublicKey, ...]
    primary: Path
    filelists: Path | None
    other: Path | None
    modules: Path | None
    asked: frozenset[str]

    @property
    def id(self) -> str:
        """Its repository's."""
        return self.way.source.id

    def addresses(self, location: tuple[str, str | None]) -> tuple[str, ...]:
        """Where a package of it lies, best first.

        Raises:
            BundleError: Its metadata leads out of the repository.
        """
        path, elsewhere = location
        try:
            if elsewhere is None:
                return tuple(joined(base, path) for base in (self.base, *self.mirrors))
            if not urls.is_remote(elsewhere):
                raise BundleError(f"its metadata leads to {urls.mask(elsewhere)[:200]}")
            return (joined(elsewhere, path),)
        except BundleError as error:
            raise of_repository(self.id, error) from None


def read(way: Way, cache: Path, *, moved: Progress = lambda count: None, sink: Sink = discard) -> Metadata:
    """Bring a repository's metadata into ``cache``, or find it there.

    Args:
        moved: Told of every piece, in bytes; what it raises ends the transfer.

    Raises:
        NetworkError: It does not come.
        BundleError: It is damaged, changed, or not signed as it has to be; the message names the repository.
        InputError: A key cannot be used.
        EngineError: The disk.
    """
    source = way.source
    keys = tuple(key for name in source.keys for key in _keys(way, name))
    base, mirrors, raw = _index(way, sink)
    try:
        index = repomd.parse(raw, f"repository {source.id}: {urls.mask(base)}{REPOMD}")
        signer = _signer(way, base, raw, keys)
        bases = (base, *mirrors)
        entries = [index.entries[kind] for kind in sorted(index.entries)]
        with ThreadPoolExecutor(_LINES) as pool:
            paths = pool.map(lambda entry: _file(way, entry, bases, cache, moved), entries)
            files = {entry.type: path for entry, path in zip(entries, paths, strict=True)}
    except EnvbuildError as error:
        raise of_repository(source.id, error)  # noqa: B904
    return Metadata(
        way=way,
        base=base,
        mirrors=mirrors,
        index=index,
        repomd_sha256=hashlib.sha256(raw).hexdigest(),
        signer=signer,
        keys=keys,
        primary=files["primary"],
        filelists=files.get("filelists"),
        other=files.get("other"),
        modules=files.get("modules"),
        asked=filelists.asked(files["primary"]),
    )


def of_repository(name: str, error: EnvbuildError) -> EnvbuildError:
    """An error that names the repository that it is about."""
    if not error.message.startswith(f"repository {name}: "):
        error.message = f"repository {name}: {error.message}"
        error.args = (error.message,)
    return error


def _index(way: Way, sink: Sink) -> tuple[str, tuple[str, ...], bytes]:
    """Where the repository is at hand, its other mirrors, and its ``repomd.xml``."""
    source, sums = way.source, frozenset[tuple[str, str]]()
    bases = source.baseurls
    if source.listing is not None:
        kind, address = source.listing
        said, place = way.small(address, repomd.LARGEST), f"repository {source.id}: {urls.mask(address)}"
        if kind == "metalink":
            link = repomd.metalink(said, place)
            bases, sums = link.mirrors, link.sums
        else:
            bases = repomd.mirrorlist(said, place)
    fault: EnvbuildError | None = None
    for number, base in enumerate(bases):
        try:
            raw = way.small(base + REPOMD, repomd.LARGEST)
            if sums and not any(hashlib.new(kind, raw).hexdigest() == digest for kind, digest in sums):
                raise BundleError(f"{urls.mask(base)}{REPOMD} is none that the metalink knows: the mirror is stale")
            if fault is not None:
                sink(Note(message=f"repository {source.id}: {fault.message}", level="warning"))
            return base, (*bases[:number], *bases[number + 1 :]), raw
        except EnvbuildError as error:  # noqa: PERF203
            if fault is not None:
                sink(Note(message=f"repository {source.id}: {fault.message}", level="warning"))
            fault = error
    assert fault is not None
    if isinstance(fault, Missing | InputError) and not fault.hint:
        fault.hint = f"The address of a repository is that of the folder in which {REPOMD.partition('/')[0]} lies."
    elif isinstance(fault, NetworkError):
        proxy = way.proxy(bases[-1])
        through = f"through the proxy {proxy}" if proxy else "without a proxy"
        asked = f"It was asked {through} ([rpm] proxy, [network] and https_proxy say which)."
        fault.hint = f"{fault.hint}. {asked}" if fault.hint else asked
    raise of_repository(source.id, fault)


def _keys(way: Way, name: str) -> Iterable[PublicKey]:
    try:
        data = way.small(name if "://" in name else f"file://{Path(name).absolute()}", armor.LARGEST)
    except (InputError, Missing) as error:
        raise InputError(
            f"repository {way.source.id}: the key {urls.mask(name)} is not at hand: {error.message}",
            hint="Name the file with the key that its packages are signed with: --repo-key FILE, or [rpm] gpgkey in "
            "envbuild.toml.",
        ) from error
    return armor.keys(data, urls.mask(name))


def _signer(way: Way, base: str, raw: bytes, keys: tuple[PublicKey, ...]) -> str:
    """Who signed ``repomd.xml``: looked at where a key is at hand, wanted where the configuration says so."""
    source = way.source
    if not keys:
        if source.signed:
            raise BundleError("its repomd.xml has to be signed (repo_gpgcheck), and no key is named for it")
        return ""
    try:
        signature = way.small(f"{base}{REPOMD}.asc", _SIGNATURE)
    except (Missing, InputError) as error:
        if source.signed:
            raise BundleError(f"{REPOMD}.asc: it has to be signed (repo_gpgcheck): {error.message}") from error
        return ""
    if process.which("gpgv") is None:
        if source.signed:
            raise BundleError("nobody can look at the signature of its repomd.xml: there is no gpgv here")
        return ""
    with tempfile.TemporaryDirectory(prefix="envbuild-gpgv-") as scratch:
        folder = Path(scratch)
        for name, data in (("keys.gpg", b"".join(map(armor.binary, keys))), ("signature", signature), ("data", raw)):
            (folder / name).write_bytes(data)
        # --homedir: nothing of the user's own keyring counts. --enable-special-filenames is not given: names are files.
        argv = ("gpgv", "--homedir", scratch, "--status-fd", "1", "--keyring", f"{scratch}/keys.gpg",
                f"{scratch}/signature", f"{scratch}/data")  # fmt: skip
        done = process.run(argv, env={"LC_ALL": "C"}, timeout=60)
    good = re.findall(r"^\[GNUPG:\] VALIDSIG (?:\S+ )*([0-9A-F]{40,64})$", done.stdout, re.MULTILINE)
    # gpgv ends well for a key that was revoked (GnuPG 2.2.40).
    if done.returncode != 0 or not good or "[GNUPG:] REVKEYSIG" in done.stdout:
        # A key that is for the packages only is common; the metadata then has another one, and dnf does not look.
        if not source.signed and "ERRSIG" in done.stdout and "NO_PUBKEY" in done.stdout:
            return ""
        raise BundleError(
            f"the signature of {REPOMD} is not one of its keys: {process.last_words(done.stderr, 300)}",
            hint="Somebody changed the metadata, or the key is another one. Nothing of it was used.",
        )
    return str(good[0])


def _file(way: Way, entry: Entry, bases: tuple[str, ...], cache: Path, moved: Progress) -> Path:
    """A file of metadata, plain."""
    algorithm, digest = entry.checksum
    target = cache / "metadata" / f"{algorithm}-{digest}.{'yaml' if entry.type == 'modules' else 'xml'}"
    if entry.open_size is not None and entry.open_size > _PLAIN:
        raise BundleError(f"{entry.type}: {entry.open_size} bytes of metadata are more than any repository has")
    packed = Wanted(name=f"its {entry.type} metadata", checksum=entry.checksum, size=entry.size, limit=_PACKED)
    with store.FileLock(target.with_name(f"{target.name}.lock")):
        if target.is_file() and _same(target, entry):
            return target
        addresses = [joined(base, entry.location) for base in bases]
        path = way.fetch(addresses, target.with_name(f"{target.name}.packed"), packed, moved=moved)
        try:
            limit = _PLAIN if entry.open_size is None else entry.open_size
            unpack(path, target, checksum=entry.checksum, limit=limit, sync=entry.opened_as is None)
        finally:
            if local(addresses[0]) != path:
                store.remove(path)
        if entry.type != "modules":
            try:
                harmless(target)
            except BundleError:
                store.remove(target)
                raise
    return target


def _same(path: Path, entry: Entry) -> bool:
    """Whether a file that was unpacked before is still what it was, as far as the repository says what it is."""
    if entry.opened_as is None:
        return True
    wanted = Wanted(name="", checksum=entry.opened_as, size=entry.open_size, limit=_PLAIN)
    return digest_of(path, wanted) == entry.opened_as[1]
