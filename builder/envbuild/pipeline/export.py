"""export: a row as a bundle for sites without a network. First what it would be, then the bundle, then its volumes."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild import __version__, store
from envbuild import plan as plans
from envbuild.bundle import differential, rpms, signing, volumes, writing
from envbuild.bundle.finishing import Seals, finish
from envbuild.bundle.gnupg import PASSPHRASE_VARIABLE
from envbuild.bundle.manifest import File, Manifest
from envbuild.bundle.signing import Signer
from envbuild.bundle.words import SUMS
from envbuild.errors import BundleError, EngineError, EnvbuildError, InputError
from envbuild.events import PhaseDone, PhaseStarted
from envbuild.model import Finding
from envbuild.pipeline import exported_rpms, exported_wheels
from envbuild.pipeline.exported import Wish, target_of
from envbuild.pipeline.exported_image import Carried, find
from envbuild.pipeline.exported_parts import Choice, choose, not_signed, without_toolkit
from envbuild.pipeline.exported_writing import Planned, Progress, Writer
from envbuild.pipeline.prepare import Target as Row
from envbuild.pipeline.prepare import prepare, require_clean
from envbuild.pipeline.sizes import format_media
from envbuild.pipeline.workbench import Workbench

EPOCH = "SOURCE_DATE_EPOCH"
# The first moment that zip archives and FAT file systems can name: of what says no time of its own.
_FIRST = 315532800
_LAST = 4102444800


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        signer: Fingerprint of the key that signs it; empty where nobody does.
        volumes: The folders for media.
        sums: SHA-256 of its SHA256SUMS, which says who it is.
        files: How many those are of; in a differential bundle also those of its base.
    """

    folder: Path
    manifest: Manifest
    signer: str
    findings: tuple[Finding, ...]
    volumes: tuple[Path, ...]
    seconds: float
    sums: str
    files: int

    @property
    def bytes(self) -> int:
        """What lies in the folder, of the parts and what every bundle has."""
        carried = None if self.manifest.carried is None else set(self.manifest.carried)
        return sum(file.bytes for file in self.manifest.files if carried is None or file.path in carried)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "folder": str(self.folder),
            "name": self.manifest.name,
            "parts": list(self.manifest.parts),
            "created": self.manifest.created,
            "sums_sha256": self.sums,
            "files": self.files,
            "carried": None if self.manifest.carried is None else len(self.manifest.carried),
            "bytes": self.bytes,
            "fingerprint": self.signer or None,
            "volumes": [str(path) for path in self.volumes],
            "seconds": round(self.seconds, 3),
        }


@contextlib.contextmanager
def signer(key: str | None, environ: Mapping[str, str]) -> Iterator[Signer | None]:
    """Open the OpenPGP key before any work is done; None without one.

    Raises:
        InputError: It cannot be used, or cannot sign.
        BundleError: There is no gpg.
    """
    if key is None:
        yield None
        return
    with signing.signer(key, environ.get(PASSPHRASE_VARIABLE)) as opened:
        # A wrong passphrase is told now, and not when everything was fetched.
        try:
            opened.sign(b"", "1980-01-01T00:00:00Z")
        except BundleError as error:
            said = environ.get(PASSPHRASE_VARIABLE)
            why = f"the passphrase in {PASSPHRASE_VARIABLE} is not its own" if said else "nobody says its passphrase"
            raise InputError(
                f"--gpg-key {key}: cannot sign, as it seems because {why}",
                hint=f"{error.hint} gpg says: {error.message.rpartition(': ')[2]}",
            ) from error
        yield opened


def plan(bench: Workbench, name: str, wish: Wish, *, dry_run: bool = False) -> Planned:
    """Find out what a bundle of a row would be. Nothing but caches is written, and a missing lock without ``dry_run``.

    Raises:
        FindingsError: The row breaks a rule or has no lock (exit 1), or its packages do not go together (exit 6).
        GateError: An image was asked for, and none is proven (exit 5).
        InputError: An option, a repository, or a part that the row cannot have (exit 2).
        BundleError: Wheels cannot be had for the target, or metadata is damaged (exit 6).
        EngineError: The network, the engine or the disk (exit 3).
    """
    env = bench.matrix.get(name)
    bench.read_site()
    to = target_of(env, bench.facts, wish)
    choice = choose(env, to, wish)
    findings = list(choice.findings)
    base = differential.read(wish.base) if wish.base is not None else None
    row = None
    if choice.needs_row:
        try:
            row = prepare(bench, name, lock_missing=not dry_run)
        except EnvbuildError as error:
            if wish.parts is None and "rpms" in choice.parts:
                before = f"{error.hint.rstrip('.')}; or " if error.hint else ""
                error.hint = f"{before}leave wheels and image out: --what rpms,doctor"
            raise
        env = row.env
    else:
        require_clean(bench, env)
    carried, told = _image(bench, row, choice, wish)
    findings += told
    parts = tuple(part for part in choice.parts if part != "image" or carried is not None)
    packages = chosen = None
    if "rpms" in parts:
        own = row.plan if row is not None else plans.make(env, None, bench.facts)
        packages = exported_rpms.plan(bench, env, own, to, wish)
        findings += packages.findings
    if "wheels" in parts and row is not None:
        info = carried.info if carried is not None else None
        chosen = exported_wheels.plan(bench, row, info, rpms="rpms" in parts)
        if not chosen.compiled:
            findings += without_toolkit(env)
    return Planned(
        env=env, row=row, to=to, parts=parts, wish=wish, base=base, packages=packages, wheels=chosen, image=carried,
        created=_created(bench, packages, carried), findings=tuple(dict.fromkeys(findings)),
    )  # fmt: skip


def export(bench: Workbench, planned: Planned, folder: Path, openpgp: Signer | None) -> Exported:
    """Write the bundle; it is at its place when this ends well, and not at all otherwise.

    Raises:
        FindingsError: A package cannot be taken, or what was written is not enough (exit 6).
        BundleError: There is something else at its place, or a file is not what it should be (exit 6).
        InputError: The volumes would be too small (exit 2).
        EngineError: The network, the engine or the disk (exit 3).
    """
    began = time.monotonic()
    bench.sink(PhaseStarted(phase="export", detail=f"{planned.name} to {folder}"))
    findings = [*planned.findings, *(() if openpgp is not None else not_signed())]
    _room(folder, planned.carried_bytes)
    checked = exported_rpms.fetch(bench, planned.packages) if planned.packages is not None else None
    findings += checked.findings if checked is not None else ()
    known = planned.base.files if planned.base is not None else None
    progress = Progress(bench.sink, "write the bundle", "written")
    with (
        _in_words(),
        store.scratch(bench.cache, "export-") as scratch,
        writing.drafting(folder, planned.created, base=known, told=progress, sink=bench.sink) as draft,
    ):
        writer = Writer(bench, planned, draft, openpgp)
        sections = writer.common() | writer.rpms(checked) | writer.wheels(scratch) | writer.image()
        findings += writer.findings
        writer.bill(sections)

        def describe(files: tuple[File, ...], carried: tuple[str, ...]) -> Manifest:
            return Manifest.model_validate({
                "name": planned.name, "row": planned.env.name, "created": planned.created, "envbuild": __version__,
                "target_id": planned.row.rendering.target_id if planned.row else None,
                "accelerator": planned.env.accelerator, "target": planned.to, "parts": planned.parts, "files": files,
                "base": planned.base.base if planned.base else None, "carried": carried if planned.base else None,
                **sections,
            })  # fmt: skip

        made = finish(draft, describe, Seals(openpgp=openpgp, dsse=bench.signing_key))
        progress.done()
    listed = (folder / SUMS).read_bytes()
    if planned.wish.volume is not None:
        cut = volumes.write(folder, planned.wish.volume)
    else:
        cut = ()
        volumes.remove_foreign(folder)
    bench.sink(PhaseDone(phase="export", seconds=time.monotonic() - began, detail=f"{len(listed.splitlines())} files"))
    return Exported(
        folder=folder, manifest=made, signer=openpgp.key.fingerprint if openpgp else "", volumes=cut,
        findings=tuple(dict.fromkeys(findings)), seconds=time.monotonic() - began,
        sums=hashlib.sha256(listed).hexdigest(), files=len(listed.splitlines()),
    )  # fmt: skip


def _room(folder: Path, need: int) -> None:
    """That the bundle has room where it goes, before hours are spent on what goes in.

    Raises:
        EngineError: It has not.
    """
    place = next(parent for parent in folder.parents if parent.exists())
    free = shutil.disk_usage(place).free
    if free < need:
        raise EngineError(
            f"{place}: about {format_media(need)} are needed for the bundle, and {format_media(free)} are free",
            hint="Free some space, or name a folder on another disk with -o.",
        )


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    """What no bundle can say, such as a variable that a shell cannot be given."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place, what = ".".join(map(str, first["loc"]))[:200], first["msg"]
        raise BundleError(f"this cannot be said in a bundle: {place}: {what}") from error


def _image(bench: Workbench, row: Row | None, choice: Choice, wish: Wish) -> tuple[Carried | None, tuple[Finding, ...]]:
    """The row's proven image where it is wanted, or what its wheels can come from."""
    if row is None or not ({"image", "wheels"} & set(choice.parts)):
        return None, ()
    return choice.tried(lambda: find(bench, row, wish), row.env)


def _created(bench: Workbench, packages: rpms.Plan | None, carried: Carried | None) -> str:
    """SOURCE_DATE_EPOCH, or the newest of what goes in: never the time of the export itself."""
    said = bench.environ.get(EPOCH)
    if said is not None:
        if not said.isdecimal() or not _FIRST <= int(said) <= _LAST:
            raise InputError(f"{EPOCH}: {said[:40]!r} is no time in seconds since 1970 that media can name")
        seconds = int(said)
    else:
        seconds = max(_FIRST, packages.timestamp if packages is not None else 0, _seconds(carried))
    moment = datetime.datetime.fromtimestamp(min(seconds, _LAST), datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(carried: Carried | None) -> int:
    if carried is None:
        return 0
    with contextlib.suppress(ValueError):
        return int(datetime.datetime.fromisoformat(f"{carried.created[:19]}+00:00").timestamp())
    return 0
