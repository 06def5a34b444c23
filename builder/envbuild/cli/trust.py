"""Commands about trust: key, verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import options as opt
from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.evidence import PublicKey
    from envbuild.pipeline.verify import Verified

_EPILOG = "\n\n".join(
    (
        "Example: envbuild verify envbuild/cpu:validated --key farm.pub --max-age 30d",
        "a bundle: envbuild verify ./bundle --fingerprint 0123...4567",
    )
)

keys = typer.Typer(
    no_args_is_help=True,
    help="Make and show the keys that evidence and bundles are signed with.",
    epilog="Example: envbuild key new, then envbuild build cpu --key FILE",
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    keys.command("new", epilog="Example: envbuild key new --out ~/keys/build-farm.pem")(key_new)
    keys.command("show", epilog="Example: envbuild key show ~/keys/build-farm.pub")(key_show)
    app.add_typer(keys, name="key")
    app.command("verify", epilog=_EPILOG)(verify)


def key_new(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The private key; your own folder without it.")
    ] = None,
    passphrase: Annotated[
        bool, typer.Option("--passphrase", help="Ask for one, and encrypt the private key with it.")
    ] = False,
    openpgp: Annotated[
        str | None,
        typer.Option("--openpgp", metavar="NAME", help="An OpenPGP key instead, to sign bundles with: the name in it, "
                     "such as 'Example Corp bundles <ops@example.com>'."),
    ] = None,
    json: opt.JsonOption = False,
    dry_run: opt.DryRunOption = False,
) -> None:  # fmt: skip
    """Make an ed25519 key pair: the private half of mode 0600, the public one beside it. Overwrites nothing.

    With ENVBUILD_KEY_PASSPHRASE set, the private half is encrypted with that; build and smoke then want it too.

    With --openpgp: an RSA key for bundles (envbuild export --gpg-key); its passphrase is ENVBUILD_GPG_PASSPHRASE.
    """
    import os

    from envbuild.evidence import keys as pairs

    if openpgp is not None:
        _new_openpgp(openpgp, out, passphrase=passphrase, dry_run=dry_run, json=json)
        return
    path = _absolute(out) if out is not None else _default()
    if dry_run:
        files = [str(path), str(pairs.public_path(path))]
        if json:
            output.document("key", plan={"files": files})
        else:
            for name in files:
                output.text(name)
        return
    secret = os.environ.get(pairs.PASSPHRASE_VARIABLE)
    if passphrase and not secret:
        secret = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
    made = pairs.make(path, passphrase=secret)
    _print_key(made, private=path, json=json)
    if json:
        return
    output.narrate("to sign with it, in envbuild.toml:")
    output.narrate(f'[signing]\nkey = "{path}"')
    output.narrate("for those who are to trust it, in theirs:")
    output.narrate(f'[trust]\nkeys = ["{Path(made.origin).name}"]')


def key_show(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A private or public key; the site's without it.")
    ] = None,
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Show a key's id and its public half. A private key that others can read is refused.

    Of an OpenPGP key, which signs bundles: its fingerprint.
    """
    import os

    from envbuild.evidence import keys as pairs

    path = _absolute(file) if file is not None else opt.workbench(project).site.signing.key or _default()
    if file is not None and _is_openpgp(path):
        _show_openpgp(path, json=json)
        return
    if pairs.is_private(path):
        secret = os.environ.get(pairs.PASSPHRASE_VARIABLE)
        _print_key(pairs.load_signing(path, passphrase=secret).public, private=path, json=json)
    else:
        _print_key(pairs.load_public(path), private=None, json=json)


def _new_openpgp(user: str, out: Path | None, *, passphrase: bool, dry_run: bool, json: bool) -> None:
    import os

    from envbuild.bundle import signing
    from envbuild.bundle.gnupg import PASSPHRASE_VARIABLE

    path = _absolute(out) if out is not None else _default().with_name("bundle-key.asc")
    if dry_run:
        files = [str(path), str(signing.public_path(path))]
        if json:
            output.document("key", plan={"files": files})
        else:
            output.result("".join(f"{name}\n" for name in files))
        return
    secret = os.environ.get(PASSPHRASE_VARIABLE)
    if passphrase and not secret:
        secret = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
    made = signing.make(path, user, secret)
    if json:
        said = {"fingerprint": made.fingerprint, "type": "openpgp", "public_file": str(signing.public_path(path))}
        output.document("key", keys=[{**said, "private_file": str(path)}])
        return
    output.pairs([
        ("fingerprint", made.fingerprint), ("type", "openpgp"), ("private", str(path)),
        ("public", str(signing.public_path(path))),
    ])  # fmt: skip
    output.narrate(f"to sign with it: envbuild export ROW -o DIR --gpg-key {path}")
    output.narrate("tell the fingerprint to those who install bundles, on another way than bundles go")


def _is_openpgp(path: Path) -> bool:
    try:
        with path.open("rb") as opened:
            return b"-----BEGIN PGP " in opened.read(4096)
    except OSError:
        return False


def _show_openpgp(path: Path, *, json: bool) -> None:
    from envbuild.bundle import signing

    keys = signing.fingerprints(path)
    if json:
        output.document("key", keys=[{"fingerprint": each, "type": "openpgp", "file": str(path)} for each in keys])
        return
    for each in keys:
        output.pairs([("fingerprint", each), ("type", "openpgp")])


def verify(
    image: Annotated[
        str,
        typer.Argument(
            metavar="ENV|IMAGE|DIR",
            help="A row (its image), any image, or the folder of a bundle.",
            autocompletion=opt.rows,
        ),
    ],
    row: opt.RowOption = None,
    require: opt.RequireOption = None,
    sm: opt.SmOption = None,
    key: opt.TrustOption = None,
    max_age: opt.MaxAgeOption = None,
    fingerprint: Annotated[
        str | None,
        typer.Option("--fingerprint", metavar="HEX", help="For a bundle: of the OpenPGP key that has signed it."),
    ] = None,
    base: Annotated[
        Path | None, typer.Option("--base", metavar="DIR", help="For a differential bundle: the one it stands on.")
    ] = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Check that an image has signed evidence of a trusted key, at the level that is wanted. Runs nothing in it.

    Exit code 5 when it is unsigned, signed by another key, of another image, of a lower level, of another suite,
    too old, or tampered with. All of it is told at once.

    Or check a bundle: its signature, every file's sum, and that its parts are what it says. Exit code 6 when something
    is wrong with it. A folder with a row's name is meant by ./NAME.
    """
    if _is_bundle(image, project):
        from envbuild.cli.bundles import verify_folder

        _refuse_for_bundles({"--row": row, "--require": require, "--sm": sm, "--max-age": max_age})
        verify_folder(
            Path(image), fingerprint=fingerprint, base=base, keys=key, project=project, json=json, quiet=quiet
        )
        return
    if fingerprint is not None or base is not None:
        raise typer.BadParameter(f"--fingerprint and --base are for bundles, and {image} is no folder")
    if image.startswith(("/", "./", "../", "~")) or image in (".", ".."):
        from envbuild.errors import BundleError

        # No name of an image begins like that.
        raise BundleError(f"{image}: there is no such folder", hint="Name the folder of a bundle, a row, or an image.")
    from envbuild.pipeline.prove import as_dict as finding_dict
    from envbuild.pipeline.verify import as_dict
    from envbuild.pipeline.verify import verify as run_verify
    from envbuild.pipeline.wanted import Wanted, parse_age, parse_level, parse_sm

    wanted = Wanted(level=parse_level(require), sm=parse_sm(sm), max_age=parse_age(max_age))
    settings = {"trust.keys": key or None}
    with opt.narrated(project, host, engine, verbose=False, quiet=quiet or json, settings=settings) as bench:
        found = run_verify(bench, image, row=row, wanted=wanted)
    if json:
        output.document("verify", findings=[finding_dict(each) for each in found.findings], image=as_dict(found))
    else:
        _print_verified(found)
    if not found.good:
        raise typer.Exit(5)


def _is_bundle(text: str, project: Path | None) -> bool:
    """Whether a folder is meant. A row's name means the row."""
    if not Path(text).is_dir():
        return False
    return "/" in text or text in (".", "..") or text not in opt.workbench(project).matrix.environments


def _refuse_for_bundles(options: dict[str, Any]) -> None:
    if said := [name for name, value in options.items() if value is not None]:
        raise typer.BadParameter(f"{said[0]} is for images, and this is the folder of a bundle")


def _default() -> Path:
    """Beside the user's own envbuild.toml, where no project and no image is."""
    import os

    from envbuild.site.config import user_file

    return user_file(os.environ).absolute().parent / "keys" / "signing.pem"


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _print_key(key: PublicKey, *, private: Path | None, json: bool) -> None:
    if json:
        said: dict[str, Any] = {
            "id": key.id,
            "type": "ed25519",
            "public": key.pem,
            "public_file": key.origin if key.origin != str(private) else None,
            "private_file": str(private) if private else None,
        }
        output.document("key", keys=[said])
        return
    rows = [("key id", key.id), ("type", "ed25519")]
    if private is not None:
        rows.append(("private", str(private)))
    if private is None or key.origin != str(private):
        rows.append(("public", key.origin))
    output.pairs(rows)
    output.result(key.pem)


def _print_verified(found: Verified) -> None:
    from envbuild.pipeline.prepare import errors
    from envbuild.pipeline.verify import lines

    output.pairs(lines(found))
    output.findings(found.findings)
    count = len(errors(found.findings))
    said = "verified" if found.good else f"not verified: {count} reason{'' if count == 1 else 's'}"
    output.text(f"{found.ref}: {said}")
