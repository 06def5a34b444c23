"""provision: a row's environment in a folder of this host, without a container and without root."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli import options as opt
from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.pipeline.provision import Provisioned, Provisioning


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    example = "Example: envbuild provision cpu --prefix ~/envs/cpu && . ~/envs/cpu/env.sh"
    app.command("provision", epilog=example)(provision)


def provision(
    env: opt.Row,
    prefix: Annotated[Path, typer.Option("--prefix", metavar="DIR", help="The folder to make it in.")],
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
    dry_run: opt.DryRunOption = False,
    python: Annotated[str | None, typer.Option("--python", metavar="PATH", help="The Python to make it with.")] = None,
    cc: Annotated[str | None, typer.Option("--cc", metavar="PATH", help="The C compiler.")] = None,
    cxx: Annotated[str | None, typer.Option("--cxx", metavar="PATH", help="The C++ compiler.")] = None,
    cuda_home: Annotated[
        str | None, typer.Option("--cuda-home", metavar="DIR", help="The CUDA toolkit, for rows that need one.")
    ] = None,
    index_url: Annotated[str | None, typer.Option("--index-url", metavar="URL", help="In place of the site's.")] = None,
    extra_index_url: Annotated[
        list[str] | None, typer.Option("--extra-index-url", metavar="URL", help="One more index.")
    ] = None,
    find_links: Annotated[
        list[str] | None, typer.Option("--find-links", metavar="PLACE", help="A folder or page of wheels.")
    ] = None,
    pip_config: Annotated[
        str | None, typer.Option("--pip-config", metavar="FILE", help="A pip.conf, in place of the site's settings.")
    ] = None,
    offline: Annotated[
        str | None, typer.Option("--offline", metavar="DIR", help="Install from this folder of wheels only.")
    ] = None,
    cache: Annotated[str | None, typer.Option("--cache", metavar="DIR", help="Keep what pip downloads here.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes that compile.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Make it anew, whatever is there already.")] = False,
    no_smoke: Annotated[bool, typer.Option("--no-smoke", help="Prove nothing in the end.")] = False,
    gpus: opt.GpusOption = None,
    allow_level: Annotated[
        str | None,
        typer.Option("--allow-level", metavar="built|cpu|gpu-mig", help="Be content with less than the row requires."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", callback=opt.seconds, help="Limit of the making, in seconds.")
    ] = 7200,
    smoke_timeout: Annotated[
        float, typer.Option("--smoke-timeout", callback=opt.seconds, help="Limit of the smoke, in seconds.")
    ] = 600,
) -> None:
    """Make a row's environment in a folder of this host, without root, and prove it there.

    The folder is made by the script that `envbuild render ENV --format provision` prints. Nothing outside it is
    changed. Run it again to go on after an interruption.

    Exit codes: 0 made or up to date, and proven; 1 the row breaks a rule; 3 the host lacks something, or network or
    disk; 4 a step failed; 5 it does not pass. What it shows counts for no image.
    """
    from envbuild.pipeline.proof import Wish
    from envbuild.pipeline.provision import Provisioning, foresee
    from envbuild.pipeline.provision import provision as run_provision

    own = (("--python", python), ("--cc", cc), ("--cxx", cxx), ("--cuda-home", cuda_home), ("--cache", cache),
           ("--jobs", str(jobs) if jobs else None))  # fmt: skip
    places = (("--index-url", index_url), ("--pip-config", pip_config), ("--offline", offline),
              *(("--extra-index-url", url) for url in extra_index_url or ()),
              *(("--find-links", place) for place in find_links or ()))  # fmt: skip
    wanted = Provisioning(
        prefix=prefix.expanduser(), options=(*_given(own), *(["--force"] if force else [])), places=_given(places),
        prove=not no_smoke, timeout=timeout,
        wish=Wish(timeout=smoke_timeout, gpus=opt.gpus(gpus), allow_level=opt.level(allow_level)),
    )  # fmt: skip
    with opt.narrated(project, None, verbose=verbose, quiet=quiet or dry_run) as bench:
        if dry_run:
            lines = foresee(bench, env, wanted)
            _print_plan(env, wanted, lines, json=json)
            return
        result = run_provision(bench, env, wanted)
    _print(env, result, json=json, quiet=quiet)


def _given(pairs: tuple[tuple[str, str | None], ...]) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in pairs if value is not None)


def _print_plan(env: str, wanted: Provisioning, lines: tuple[str, ...], *, json: bool) -> None:
    if json:
        output.document("provision", plan={"environment": env, "prefix": str(wanted.prefix), "steps": list(lines)})
        return
    for line in lines:
        output.text(line)


def _print(env: str, result: Provisioned, *, json: bool, quiet: bool) -> None:
    proof = result.proof
    if json:
        output.document(
            "provision",
            environments=[
                {
                    "environment": env,
                    "prefix": str(result.prefix),
                    "status": result.status,
                    "activate": str(result.prefix / "env.sh"),
                    "kind": "host",
                    "level": proof.level.value if proof else None,
                    "evidence": str(proof.path) if proof else None,
                    "findings": list(proof.record.findings) if proof else [],
                    "seconds": round(result.seconds, 3),
                }
            ],
        )
        return
    output.text(str(result.prefix / "env.sh"))
    if proof is None:
        output.narrate(f"{env}: {result.status}; nothing is proven. Prove it: envbuild provision {env} "
                       f"--prefix {result.prefix}")  # fmt: skip
        return
    if quiet:
        return
    from envbuild.pipeline.summary import summary

    output.narrate(f"{env}: {result.status}, level {proof.level.value} on this host (counts for no image)")
    for finding in proof.record.findings:
        output.narrate(f"{finding['severity']} [{finding['rule']}] {finding['message']}")
    for name, report in proof.record.smoke.items():
        for line in summary(report):
            output.narrate(f"  smoke    {name}: {line}")
    output.narrate(f"  record   {proof.path}")
    output.narrate(f"use it: . {result.prefix / 'env.sh'}")
