"""Commands about where images are: push, pull, images, prune."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli import options as opt
from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.engines import ImageInfo
    from envbuild.pipeline.listing import Listed
    from envbuild.pipeline.pull import Found


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("push", epilog="Example: envbuild push h200-cu130, and before its proof: --candidate")(push)
    app.command("pull", epilog="Example: envbuild pull h200-cu130 --require gpu --sm 90 --max-age 30d")(pull)
    app.command("images", epilog="Example: envbuild images h200-cu130 --json")(images)
    app.command("prune", epilog="Example: envbuild prune --dry-run")(prune)


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
    engine: opt.EngineOption = None,
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
    with opt.narrated(project, host, engine, verbose=verbose, quiet=quiet or dry_run, settings=settings) as bench:
        bench.need_signing_key()
        planned = pushing.plan(bench, image, row=row, wish=wish)
        done = None if dry_run else pushing.push(bench, planned)
    if json and done is not None:
        output.document("push", images=[done.as_dict()])
    elif json:
        output.document("push", plan=planned.as_dict())
    elif done is None:
        output.plan(planned.as_dict())
    else:
        for tag in planned.tags:
            output.text(f"{planned.repository}:{tag}")
        output.text(f"{planned.repository}@{done.digest}")
        if not done.signed and not quiet:
            output.narrate(
                "it is not signed: others can pull it only with --insecure-no-verify (see: envbuild key new)"
            )


def pull(
    env: Annotated[
        str, typer.Argument(metavar="ENV|REF", help="A row; with --image-only any image.", autocompletion=opt.rows)
    ],
    image_only: Annotated[
        bool, typer.Option("--image-only", help="Any image by its reference: no row, no evidence.")
    ] = False,
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
    engine: opt.EngineOption = None,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
    dry_run: opt.DryRunOption = False,
) -> None:
    """Pull a row's proven image. Its evidence is checked before its layers move, its bytes when they are here.

    Only layers that this engine has not are moved; a pull that was killed goes on where it was. Exit code 5 when the
    registry has no such image, its evidence is not good enough, or it would not run on this host.
    """
    from envbuild.errors import InputError
    from envbuild.pipeline import pull as pulling
    from envbuild.pipeline.wanted import Wanted, parse_age, parse_level, parse_sm

    wanted = Wanted(level=parse_level(require), sm=parse_sm(sm), max_age=parse_age(max_age))
    wish = pulling.Wish(
        wanted=wanted, locked=locked, candidate=candidate, verify=not insecure_no_verify, any_host=any_host
    )
    settings = {"registry.name": registry, "trust.keys": key or None}
    if image_only:
        if wish != pulling.Wish(wanted=Wanted()) or key or registry:
            raise InputError(
                "--image-only asks for no evidence",
                hint="Leave out what is about evidence, rows and the site's registry.",
            )
        _pull_plain(env, project, host, engine, json=json, verbose=verbose, quiet=quiet, dry_run=dry_run)
        return
    with opt.narrated(project, host, engine, verbose=verbose, quiet=quiet or dry_run, settings=settings) as bench:
        found, info = pulling.pull(bench, env, wish, dry_run=dry_run)
    if json:
        _document(found, info)
        return
    if not quiet:
        output.findings(found.findings, narrated=True)
    if info is None:
        output.plan(found.as_dict())
        return
    for tag in found.tags:
        output.text(tag)


def _pull_plain(
    ref: str,
    project: Path | None,
    host: str | None,
    engine: str | None,
    *,
    json: bool,
    verbose: bool,
    quiet: bool,
    dry_run: bool,
) -> None:
    from envbuild.pipeline.plain import pull_plain

    with opt.narrated(project, host, engine, verbose=verbose, quiet=quiet or dry_run) as bench:
        image, info = pull_plain(bench, ref, dry_run=dry_run)
    said = {
        "reference": ref,
        "digest": image.manifest.descriptor.digest,
        "config_digest": image.identity.config_digest,
        "layers": len(image.manifest.layers),
    }
    if json and info is None:
        output.document("pull", plan=said)
    elif json and info is not None:
        output.document("pull", images=[{**said, "image": info.id}])
    else:
        output.text(f"{ref}: {image.manifest.descriptor.digest}")


def _document(found: Found, info: ImageInfo | None) -> None:
    if info is None:
        output.document("pull", plan=found.as_dict())
        return
    said = {**found.as_dict(), "image": info.id, "findings": output.documents(found.findings)}
    output.document("pull", images=[said])


def images(
    envs: opt.Rows = None,
    local: Annotated[bool, typer.Option("--local", help="Only those that this engine has.")] = False,
    remote: Annotated[bool, typer.Option("--remote", help="Only those that the registry has.")] = False,
    registry: opt.RegistryOption = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """List the images of rows, here and in the site's registry, by row, level, age and size.

    Levels of the registry are as its evidence says, and not checked: pull and verify do that.
    """
    from envbuild.errors import EnvbuildError
    from envbuild.events import Note
    from envbuild.pipeline import listing
    from envbuild.pipeline.remote import need_registry

    found = []
    with opt.narrated(project, host, engine, verbose=False, quiet=quiet, settings={"registry.name": registry}) as bench:
        rows = [bench.matrix.get(name).name for name in dict.fromkeys(envs or bench.matrix.environments)]
        if not remote or local:
            try:
                found += listing.local(bench, rows)
            except EnvbuildError as error:
                if local or not bench.site.registry.name:
                    raise
                bench.sink(Note(message=error.message, level="warning"))
        if remote or (not local and bench.site.registry.name):
            try:
                found += listing.remote(bench, need_registry(bench), rows)
            except EnvbuildError as error:
                if remote:
                    raise
                bench.sink(Note(message=f"the registry's are not listed: {error.message}", level="warning"))
    if json:
        output.document("images", images=[each.as_dict() for each in found])
    elif found:
        _table(found)
    else:
        push = "push one: envbuild push ENV" if remote and not local else "or pull it: envbuild pull ENV"
        output.narrate(f"no image of these rows; build one: envbuild build ENV, {push}")


def _table(found: list[Listed]) -> None:
    import datetime

    from envbuild.pipeline.sizes import format_size
    from envbuild.pipeline.wanted import duration

    now = datetime.datetime.now(datetime.timezone.utc)
    output.table(
        ("ROW", "WHERE", "REPOSITORY", "TAGS", "LEVEL", "PROVEN", "SIZE", "IMAGE"),
        [
            (
                each.environment,
                each.where,
                each.repository or "<none>",
                "\n".join(_names(each)) or "<none>",
                each.standing,
                f"{duration(now - each.seen)} ago" if each.seen else "",
                format_size(each.size_bytes),
                each.image.removeprefix("sha256:")[:12],
            )
            for each in found
        ],
        spare=("IMAGE", "REPOSITORY", "SIZE"),
    )


def _names(each: Listed) -> list[str]:
    """Its tags; whole names where the repository is not the row's, so that they say whose they are without it."""
    own = f"/{each.repository}".endswith(f"/envbuild/{each.environment}")
    return [tag if own else f"{each.repository}:{tag}" for tag in each.tags]


def prune(
    candidates: Annotated[
        bool, typer.Option("--candidates", help="Names of unproven candidates of older inputs, too.")
    ] = False,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    json: opt.JsonOption = False,
    quiet: opt.QuietOption = False,
    dry_run: opt.DryRunOption = False,
) -> None:
    """Free space: images of rows without name and evidence, leftovers of transfers and dead runs, old logs, and old
    runs on a cluster.

    What a name or evidence still speaks of stays. Build cache is the engine's own: docker builder prune,
    podman image prune.
    """
    from envbuild.pipeline import pruning
    from envbuild.pipeline.sizes import format_size

    with opt.narrated(project, host, engine, verbose=False, quiet=quiet) as bench:
        items = pruning.plan(bench, candidates=candidates)
        gone = items if dry_run else pruning.carry_out(bench, items)
    if json:
        said = [each.as_dict() for each in gone]
        output.document("prune", **{"plan" if dry_run else "removed": said})
        return
    for each in gone:
        what = each.what[:19] if each.what.startswith("sha256:") else each.what
        output.text(f"{each.kind:6} {format_size(each.size_bytes):>10}  {what}  ({each.why})")
    freed = sum(each.size_bytes for each in gone)
    verb = "would be removed" if dry_run else "removed"
    output.text(f"{len(gone)} thing{'' if len(gone) == 1 else 's'} {verb}, at most {format_size(freed)}")
