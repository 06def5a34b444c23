"""Commands about registries: push, pull."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli import options as opt
from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.engines import ImageInfo
    from envbuild.pipeline.pull import Found


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("push", epilog="Example: envbuild push h200-cu130, and before its proof: --candidate")(push)
    app.command("pull", epilog="Example: envbuild pull h200-cu130 --require gpu --sm 90 --max-age 30d")(pull)


def push(
    image: opt.Image,
    row: opt.RowOption = None,
    candidate: Annotated[
        bool, typer.Option("--candidate", help="Publish an image that waits for its proof on another host.")
    ] = False,
    allow_level: opt.LevelOption = None,
    registry: opt.RegistryOption = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="FILE", help="Private key that signs what is pushed, in place of the site's."),
    ] = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
    dry_run: opt.DryRunOption = False,
) -> None:
    """Push a proven image to the site's registry, with its signed evidence and its lock beside it.

    Layers that the registry has stay here; a push that was killed goes on where it was. The names come last: until
    then nobody can pull it. Logs in as docker login or podman login has: envbuild stores no password.
    """
    from envbuild.pipeline import push as pushing

    settings = {"registry.name": registry, "signing.key": key}
    wish = pushing.Wish(candidate=candidate, allow_level=opt.level(allow_level))
    with opt.narrated(project, host, verbose=verbose, quiet=quiet or dry_run, settings=settings) as bench:
        bench.need_signing_key()
        planned = pushing.plan(bench, image, row=row, wish=wish)
        done = None if dry_run else pushing.push(bench, planned)
    if json and done is not None:
        output.document("push", images=[done.as_dict()])
    elif json:
        output.document("push", plan=planned.as_dict())
    elif done is None:
        output.pairs([(name, str(value)) for name, value in planned.as_dict().items()])
    else:
        for tag in planned.tags:
            output.text(f"{planned.repository}:{tag}")
        output.text(f"{planned.repository}@{done.digest}")
        if not done.signed and not quiet:
            output.narrate(
                "it is not signed: others can pull it only with --insecure-no-verify (see: envbuild key new)"
            )


def pull(
    env: opt.Row,
    require: opt.RequireOption = None,
    sm: opt.SmOption = None,
    key: opt.TrustOption = None,
    max_age: opt.MaxAgeOption = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="The image of the row's inputs as they are here, not the newest proven.")
    ] = False,
    candidate: Annotated[
        bool, typer.Option("--candidate", help="One that waits for its proof, to prove it on this host.")
    ] = False,
    any_host: Annotated[
        bool, typer.Option("--any-host", help="It is for another machine: do not ask whether it runs on this one.")
    ] = False,
    insecure_no_verify: Annotated[
        bool, typer.Option("--insecure-no-verify", help="Believe whoever can write to the registry.")
    ] = False,
    registry: opt.RegistryOption = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
    dry_run: opt.DryRunOption = False,
) -> None:
    """Pull a row's proven image. Its evidence is checked before its layers move, its bytes when they are here.

    Only layers that this engine has not are moved; a pull that was killed goes on where it was. Exit code 5 when the
    registry has no such image, its evidence is not good enough, or it would not run on this host.
    """
    from envbuild.pipeline import pull as pulling
    from envbuild.pipeline.wanted import Wanted, parse_age, parse_level, parse_sm

    wanted = Wanted(level=parse_level(require), sm=parse_sm(sm), max_age=parse_age(max_age))
    wish = pulling.Wish(
        wanted=wanted, locked=locked, candidate=candidate, verify=not insecure_no_verify, any_host=any_host
    )
    settings = {"registry.name": registry, "trust.keys": key or None}
    with opt.narrated(project, host, verbose=verbose, quiet=quiet or dry_run, settings=settings) as bench:
        found, info = pulling.pull(bench, env, wish, dry_run=dry_run)
    if json:
        _document(found, info)
        return
    if not quiet:
        output.findings(found.findings, narrated=True)
    if info is None:
        output.pairs([(name, str(value)) for name, value in found.as_dict().items()])
        return
    for tag in found.tags:
        output.text(tag)


def _document(found: Found, info: ImageInfo | None) -> None:
    if info is None:
        output.document("pull", plan=found.as_dict())
        return
    said = {**found.as_dict(), "image": info.id, "findings": output.documents(found.findings)}
    output.document("pull", images=[said])
