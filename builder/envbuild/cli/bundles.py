"""Commands about bundles for sites without a network: export, bundle inspect; verify of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import bundled, output
from envbuild.cli import options as opt
from envbuild.errors import InputError

if TYPE_CHECKING:
    from envbuild.pipeline.exported import Wish

_PARTS = ("rpms", "wheels", "image", "doctor")
_ARCHES = ("x86_64", "aarch64", "ppc64le", "s390x")
_RPMS, _BUNDLE = "Packages", "Bundle"
# Typer makes one paragraph of what is not separated by an empty line.
_EPILOG = "\n\n".join(
    (
        "Example: envbuild export rhel8-cu118 -o /srv/bundle --gpg-key bundle-key.asc",
        "look first: envbuild export rhel8-cu118 -o /srv/bundle --dry-run",
        "for hosts that have packages already: sh collect-target.sh -o web1.txt there, here --target-manifest web1.txt",
        "for DVDs: --volume-size 4.3GB. Only what is new: --base /srv/bundle-of-may",
        "any packages of any repository: envbuild export rhel8-cu118 -o tools --name tools --what rpms --root strace "
        "--root gdb "
        "--repo baseos=https://mirror.example.com/rocky/8/BaseOS/x86_64/os/ --repo-key RPM-GPG-KEY-rocky",
        "For whoever installs it: docs/offline.md",
    )
)

bundles = typer.Typer(
    no_args_is_help=True,
    help="Look at bundles for sites without a network: what is in one, and how two differ.",
    epilog="Example: envbuild bundle inspect /srv/bundle. Made by: envbuild export",
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("export", epilog=_EPILOG)(export)
    bundles.command("inspect", epilog="Example: envbuild bundle inspect /media/cdrom --list")(inspect)
    bundles.command("diff", epilog="Example: envbuild bundle diff /srv/bundle-of-may /srv/bundle")(diff)
    app.add_typer(bundles, name="bundle")


def _part_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Parts of a bundle; behind a comma the next one."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{part}" for part in _PARTS if part.startswith(last) and part not in before.split(",")]


def _arch_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Machines that Enterprise Linux runs on."""
    return [arch for arch in _ARCHES if arch.startswith(incomplete)]


def export(
    env: opt.Row,
    out: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="The bundle: a new folder, or one to be replaced.")
    ],
    what: Annotated[
        str | None,
        typer.Option(
            "--what", metavar="rpms,wheels,image,doctor", help="Some of these; all that the row has without it.",
            rich_help_panel=_BUNDLE, autocompletion=_part_names,
        ),
    ] = None,
    repo: Annotated[
        list[str] | None,
        typer.Option("--repo", metavar="NAME=URL", help="RPM repository (https, http, file: or a folder), in place of "
                     "the site's; may be given again.", rich_help_panel=_RPMS),
    ] = None,
    repo_key: Annotated[
        list[str] | None,
        typer.Option("--repo-key", metavar="FILE|URL", help="Key that their packages are signed with, in place of the "
                     "site's; may be given again.", rich_help_panel=_RPMS),
    ] = None,
    root: Annotated[
        list[str] | None,
        typer.Option("--root", metavar="PACKAGE", help="What to install, in place of what the row needs; may be given "
                     "again.", rich_help_panel=_RPMS),
    ] = None,
    target_manifest: Annotated[
        list[Path] | None,
        typer.Option("--target-manifest", metavar="FILE", help="A host that it has to fit, as collect-target.sh "
                     "described it; may be given again.", rich_help_panel=_RPMS),
    ] = None,
    module: Annotated[
        list[str] | None,
        typer.Option("--module", metavar="NAME:STREAM", help="Module stream to enable; else the default ones.",
                     rich_help_panel=_RPMS),
    ] = None,
    multilib: Annotated[
        bool, typer.Option("--multilib", help="Take 32-bit packages too, where 64-bit ones want them.",
                           rich_help_panel=_RPMS),
    ] = False,
    releasever: Annotated[
        str | None,
        typer.Option("--releasever", metavar="8.8", help="The hosts' exact release; older ones then refuse the bundle.",
                     rich_help_panel=_RPMS),
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option("--arch", metavar="MACHINE", help="Such as aarch64; the row's without it.", rich_help_panel=_RPMS,
                     autocompletion=_arch_names),
    ] = None,
    fips: Annotated[
        bool, typer.Option("--fips", help="For hosts in FIPS mode: take only what they accept.", rich_help_panel=_RPMS)
    ] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="What it is called, in place of the row's name: it is installed "
                     "into /opt/envbuild/NAME.", rich_help_panel=_BUNDLE),
    ] = None,
    volume_size: Annotated[
        str | None,
        typer.Option("--volume-size", metavar="4.3GB", help="Also write volumes for media of this size, beside DIR.",
                     rich_help_panel=_BUNDLE),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option("--base", metavar="BUNDLE", help="Carry only what this earlier bundle has not.",
                     rich_help_panel=_BUNDLE),
    ] = None,
    allow_level: Annotated[
        str | None,
        typer.Option("--allow-level", metavar="built|cpu|gpu-mig", help="Take an image that has proved less than the "
                     "row requires; its name says so.", rich_help_panel=_BUNDLE),
    ] = None,
    gpg_key: Annotated[
        str | None,
        typer.Option("--gpg-key", metavar="FILE|NAME", help="OpenPGP key (RSA) that signs the bundle: a secret key's "
                     "file, or one of your keyring.", rich_help_panel=_BUNDLE),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="FILE", help="Private key that signs its provenance, in place of the site's.",
                     rich_help_panel=_BUNDLE),
    ] = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
    dry_run: opt.DryRunOption = False,
) -> None:  # fmt: skip
    """Write a bundle of a row for a site without a network: RPM packages, wheels, image, doctor, and what installs them.

    Packages are resolved for an empty system and for every host that was described, checked, and resolved once more
    from what was written. What was fetched is kept: an interrupted export goes on. The same inputs give the same bytes.

    Without --gpg-key nobody vouches for the bundle, and install.sh refuses it. A key with a passphrase that no agent
    knows: ENVBUILD_GPG_PASSPHRASE.

    Exit codes: 0 written, 1 the row breaks a rule, 2 usage, 3 network, engine or disk, 5 an image that was asked for is
    not proven, 6 packages, wheels or the bundle itself.
    """  # noqa: E501
    from envbuild.bundle.writing import refuse_other
    from envbuild.pipeline import export as exporting

    wish = _wish(
        what=what, repo=repo, repo_key=repo_key, root=root, hosts=target_manifest, module=module, multilib=multilib,
        releasever=releasever, arch=arch, fips=fips, volume=volume_size, base=base, allow_level=allow_level, name=name,
    )  # fmt: skip
    settings = {"signing.key": key}
    done, place = None, out.expanduser().absolute()
    # Before anything is fetched for it.
    refuse_other(place)
    if base is not None and base.resolve() == place.resolve():
        raise InputError(
            f"-o is the folder of --base, which the new bundle would replace: {out}",
            hint="Name another folder with -o.",
        )
    with opt.narrated(project, host, engine, verbose=verbose, quiet=quiet, settings=settings) as bench:
        bench.need_signing_key()
        with exporting.signer(gpg_key, bench.environ) as openpgp:
            planned = exporting.plan(bench, env, wish, dry_run=dry_run)
            if not dry_run:
                done = exporting.export(bench, planned, place, openpgp)
    if done is None:
        bundled.print_planned(planned, signed=gpg_key is not None, json=json)
    else:
        bundled.print_exported(done, json=json, quiet=quiet)


def _wish(**said: Any) -> Wish:
    """The options, understood."""
    from envbuild.pipeline.exported import Wish, parse_name, parse_pairs, parse_parts, parse_volume

    repositories = parse_pairs("--repo", said["repo"] or (), "=", "URL")
    return Wish(
        parts=parse_parts(said["what"]),
        roots=tuple(dict.fromkeys(said["root"] or ())),
        repositories={name: _address(url) if url[0] in "/.~" else url for name, url in repositories.items()},
        keys=tuple(map(_address, said["repo_key"] or ())),
        hosts=tuple(said["hosts"] or ()),
        streams=parse_pairs("--module", said["module"] or (), ":", "STREAM"),
        multilib=said["multilib"],
        releasever=said["releasever"],
        arch=said["arch"],
        fips=said["fips"],
        allow_level=opt.level(said["allow_level"]),
        base=said["base"],
        volume=parse_volume(said["volume"]),
        name=parse_name(said["name"]),
    )


def _address(key: str) -> str:
    """A path of this machine as an address; an address as it is."""
    return key if "://" in key else Path(key).expanduser().absolute().as_uri()


def inspect(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A bundle, or a volume of one.")],
    listed: Annotated[bool, typer.Option("-l", "--list", help="Also every package, wheel and image.")] = False,
    json: opt.JsonOption = False,
) -> None:
    """Say what a bundle says of itself. Nothing of it is checked: that does envbuild verify DIR.

    Licences and sources of all that is in it: its sbom.cdx.json (CycloneDX).

    Exit codes: 0 told, 6 it is no bundle.
    """
    from envbuild.bundle.inspect import inspect as read

    found = read(folder)
    if json:
        output.document("bundle.inspect", bundle=found.as_dict())
    else:
        bundled.print_inspected(found, listed=listed)


def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A bundle; its manifest.json and SHA256SUMS will do.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Another one.")],
    json: opt.JsonOption = False,
) -> None:
    """Say what another bundle brings: packages, wheels and image that are new, gone, or of another version.

    Nothing of both is checked: that does envbuild verify DIR.

    Exit codes: 0 told, 6 one is no bundle.
    """
    from envbuild.bundle import differential
    from envbuild.bundle.compare import compare

    found = compare(*(differential.read(folder).manifest for folder in (old, new)))
    if json:
        output.document("bundle.diff", changes=[change.as_dict() for change in found.changes], fresh_bytes=found.fresh)
    else:
        bundled.print_compared(found)


def verify_folder(
    folder: Path,
    *,
    fingerprint: str | None,
    base: Path | None,
    keys: list[str] | None,
    project: Path | None,
    json: bool,
    quiet: bool,
) -> None:
    """``verify DIR``: whether a bundle is whole and comes from somebody who is trusted.

    Raises:
        InputError: A key or the fingerprint cannot be used (exit 2).
        BundleError: The folder is no bundle, or gpgv is not there (exit 6).
        typer.Exit: Something is wrong with it (exit 6).
    """
    from envbuild.bundle import signing
    from envbuild.bundle.verify import Wanted, verify
    from envbuild.pipeline.exported_writing import Progress

    settings = {"trust.keys": keys or None}
    with opt.narrated(project, None, verbose=False, quiet=quiet or json, settings=settings) as bench:
        wanted = Wanted(
            fingerprint=signing.fingerprint_of(fingerprint) if fingerprint is not None else None,
            keys=bench.trusted_keys, base=base,
        )  # fmt: skip
        progress = Progress(bench.sink, "read every file", "read")
        found = verify(folder, wanted, progress)
        progress.done()
    if json:
        output.document("verify", findings=output.documents(found.findings), bundle=bundled.verified(found))
    else:
        bundled.print_verified(found)
    if not found.good:
        raise typer.Exit(6)
