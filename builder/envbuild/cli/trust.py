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

keys = typer.Typer(
    no_args_is_help=True,
    help="Make and show the keys that evidence is signed with.",
    epilog="Example: envbuild key new, then envbuild build cpu --key FILE",
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    keys.command("new", epilog="Example: envbuild key new --out ~/keys/build-farm.pem")(key_new)
    keys.command("show", epilog="Example: envbuild key show ~/keys/build-farm.pub")(key_show)
    app.add_typer(keys, name="key")
    app.command("verify", epilog="Example: envbuild verify envbuild/cpu:validated --key farm.pub --max-age 30d")(verify)


def key_new(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The private key; your own folder without it.")
    ] = None,
    passphrase: Annotated[
        bool, typer.Option("--passphrase", help="Ask for one, and encrypt the private key with it.")
    ] = False,
    json: opt.JsonOption = False,
    dry_run: opt.DryRunOption = False,
) -> None:
    """Make an ed25519 key pair: the private half of mode 0600, the public one beside it. Overwrites nothing.

    With ENVBUILD_KEY_PASSPHRASE set, the private half is encrypted with that; build and smoke then want it too.
    """
    import os

    from envbuild.evidence import keys as pairs

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
    """Show a key's id and its public half. A private key that others can read is refused."""
    import os

    from envbuild.evidence import keys as pairs

    path = _absolute(file) if file is not None else opt.workbench(project).site.signing.key or _default()
    if pairs.is_private(path):
        secret = os.environ.get(pairs.PASSPHRASE_VARIABLE)
        _print_key(pairs.load_signing(path, passphrase=secret).public, private=path, json=json)
    else:
        _print_key(pairs.load_public(path), private=None, json=json)


def verify(
    image: opt.Image,
    row: opt.RowOption = None,
    require: opt.RequireOption = None,
    sm: opt.SmOption = None,
    key: opt.TrustOption = None,
    max_age: opt.MaxAgeOption = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Check that an image has signed evidence of a trusted key, at the level that is wanted. Runs nothing in it.

    Exit code 5 when it is unsigned, signed by another key, of another image, of a lower level, of another suite,
    too old, or tampered with. All of it is told at once.
    """
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
