"""engine: which container engine is used here, what was found, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from envbuild.cli import options as opt
from envbuild.cli import output
from envbuild.errors import ENGINE

if TYPE_CHECKING:
    from envbuild.engines.survey import Seen


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("engine", epilog="Example: envbuild engine --engine podman")(engine)


def engine(
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    builder: opt.BuilderOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Say which container engine is used here, what was found, and why.

    Every engine that could be meant is asked: the chosen address or docker context, the usual sockets, and the podman
    client. Nothing is started and nothing changes. Exit codes: 0 one is taken, 3 none answers.
    """
    from envbuild.engines import Wish, nobody
    from envbuild.engines.survey import survey

    bench = opt.workbench(project, host, engine, builder)
    wanted = bench.site.engine
    wish = Wish(host=host or wanted.host, client=wanted.client, kind=wanted.kind, builder=wanted.builder)
    seen = survey(wish, bench.environ)
    taken = any(each.taken for each in seen)
    if json:
        output.document("engine", kind=wish.kind, engines=[_as_dict(each) for each in seen])
        if not taken:
            raise typer.Exit(ENGINE)
        return
    for each in seen:
        _print(each)
    if not taken:
        raise nobody(wish, [each.candidate for each in seen if each.candidate.engine is None])


def _as_dict(each: Seen) -> dict[str, Any]:
    found, info = each.candidate, each.info
    body: dict[str, Any] = {
        "kind": info.kind if info else found.kind,
        "endpoint": found.place,
        "origin": found.origin,
        "answers": info is not None,
        "taken": each.taken,
        "why": each.why,
        "hint": found.hint,
        "obstacles": list(each.obstacles),
    }
    if info is not None:
        body |= {
            "version": info.version,
            "storage": info.storage_driver,
            "cgroup": info.cgroup,
            "rootless": info.rootless,
            "runtimes": list(info.runtimes),
            "cpus": info.cpus,
            "memory_bytes": info.memory_bytes,
            "builds_with": each.builds,
            "gpus": list(each.gpus),
        }
    return body


def _print(each: Seen) -> None:
    found, info = each.candidate, each.info
    verdict = output.paint("taken", "32") if each.taken else "not taken"
    output.text(f"{info.kind if info else found.kind}  {found.place} ({found.origin})")
    output.text(f"    {verdict}: {each.why}")
    if info is not None:
        root = "without root" if info.rootless else "with root"
        output.text(f"    version {info.version}, {root}, storage {info.storage_driver}, cgroup {info.cgroup}")
        output.text(f"    {info.cpus} CPUs, {info.memory_bytes / 2**30:.0f} GiB; runtimes: {', '.join(info.runtimes)}")
        output.text(
            f"    builds with {each.builds or 'nothing here'}; GPUs by {', '.join(each.gpus) or 'no way found'}"
        )
    for line in each.obstacles:
        output.text(f"    {output.paint('problem', '33')}: {line}")
    if found.hint:
        output.text(f"    hint: {found.hint}")
