"""smoke: prove an image in its container, or an interpreter on this host; tags nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, cast

import typer

from envbuild.cli import cluster, modes, output
from envbuild.cli import options as opt
from envbuild.errors import InputError

if TYPE_CHECKING:
    from envbuild.pipeline.bare import Accelerator
    from envbuild.pipeline.proof import Wish
    from envbuild.pipeline.workbench import Workbench


def smoke(
    ctx: typer.Context,
    image: Annotated[
        str | None,
        typer.Argument(metavar="ENV|IMAGE", help="A row (its image), or any image.", autocompletion=opt.rows),
    ] = None,
    row: opt.RowOption = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --executor slurm or k8s: print what would be submitted.")
    ] = False,
    gpus: opt.GpusOption = None,
    force: opt.ForceOption = False,
    allow_level: Annotated[
        str | None,
        typer.Option("--allow-level", metavar="built|cpu|gpu-mig", help="Be content with less than the row requires."),
    ] = None,
    long: Annotated[bool, typer.Option("--long", help="Train for minutes instead of steps.")] = False,
    minutes: Annotated[
        float, typer.Option("--minutes", callback=opt.minutes, help="How long a --long run trains, in minutes.")
    ] = 10,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="Prove this interpreter's torch and DeepSpeed, in no container."),
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", metavar="cpu|cuda", help="With --python: what to train on.")
    ] = None,
    key: opt.KeyOption = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", "--smoke-timeout", callback=opt.seconds, help="Limit of the training step, in seconds."
        ),
    ] = 600,
    executor: opt.ExecutorOption = None,
    nodes: Annotated[
        int,
        typer.Option("--nodes", min=1, max=10_000, help="With slurm or k8s: an all-reduce over so many nodes instead."),
    ] = 1,
    detach: opt.DetachOption = False,
) -> None:
    """Inspect an image and run ZeRO-3 offload in it; write the evidence, tag nothing.

    Where its row requires no regression against a baseline (docs/profile.md), it is then launched in turns with the
    baseline's image; --force does that again, too.

    With --executor slurm it is a job of a cluster's; the node's engine has to have the image (docs/cluster.md). With
    --nodes N besides, an all-reduce with a known answer runs over N nodes, and writes no evidence. With --executor k8s
    --dry-run the same is printed for kubectl apply: a Job, or a JobSet with --nodes.

    Exit codes: 0 it has the level that its row requires, 3 engine or disk, 5 it does not pass, this host cannot show
    that level (what was shown is in the evidence all the same), or it is not known to be as fast as its row requires.
    """
    from envbuild.pipeline.proof import Wish

    wish = Wish(
        timeout=timeout, gpus=opt.gpus(gpus), force=force, long_seconds=minutes * 60 if long else None,
        allow_level=opt.level(allow_level),
    )  # fmt: skip
    _check(image, python, accelerator)
    modes.need(ctx, "minutes", "long")
    if python is not None:
        modes.hold(ctx, "interpreter")
    settings = {"signing.key": key, "engine.kind": engine, "executor.kind": executor}
    if dry_run and image and (bench := opt.workbench_with(project, host, settings)).site.executor.kind == "k8s":
        modes.hold(ctx, "manifest over nodes" if nodes > 1 else "manifest")
        _manifests(bench, image, row, wish, nodes, json=json)
        return
    away = python is None and cluster.on_cluster(opt.workbench_with(project, host, settings), detach=detach)
    if nodes > 1 and not away:
        raise InputError(
            "--nodes goes with an image and --executor slurm, or k8s with --dry-run: this host is one node"
        )
    if away:
        modes.hold(ctx, "nodes" if nodes > 1 else "slurm")
    if nodes > 1:
        how = cluster.How(json=json, verbose=verbose, quiet=quiet, dry_run=dry_run, detach=detach)
        _spread(opt.workbench_with(project, host, settings), image or "", row, nodes, timeout, how)
        return
    if away:
        texts = {"--host": host, "--engine": engine, "--row": row, "--gpus": gpus, "--allow-level": allow_level,
                 "--minutes": minutes if long else None, "--timeout": timeout}  # fmt: skip
        flags = [name for name, given in {"--force": force, "--long": long}.items() if given]
        how = cluster.How(json=json, verbose=verbose, quiet=quiet, dry_run=dry_run, detach=detach)
        _send(opt.workbench_with(project, host, settings), image or "", row, key, texts, flags, how)
        return
    if dry_run:
        raise InputError(
            "--dry-run goes with --executor slurm or k8s: without it a smoke changes nothing but its evidence"
        )
    if python is None:
        modes.hold(ctx, "image")
    with opt.narrated(project, host, engine, verbose=verbose, quiet=quiet, settings=settings) as bench:
        if python is not None:
            _interpreter(bench, python, row=row, accelerator=accelerator, wish=wish, json=json, quiet=quiet)
            return
        bench.need_signing_key()
        from envbuild.pipeline.build import smoke as run_smoke
        from envbuild.pipeline.report import lines

        proof, ref = run_smoke(bench, image or "", row=row, wish=wish)
    if json:
        output.document(
            "smoke",
            findings=list(proof.record.findings),
            image=ref,
            level=proof.level.value,
            evidence=str(proof.path),
            reused=proof.reused,
            performance=[each.model_dump(mode="json", by_alias=True) for each in proof.compared],
        )
        return
    output.text(f"{ref} {'has passed' if proof.reused else 'passes'} at level {proof.level.value}")
    if not quiet:
        for line in lines(proof.record, proof.path):
            output.text(line)


def _manifests(bench: Workbench, image: str, row: str | None, wish: Wish, nodes: int, *, json: bool) -> None:
    """The same as a Job of Kubernetes, or over several nodes as a JobSet, for somebody else to submit."""
    import secrets

    import yaml

    from envbuild.executors.kubernetes import manifests
    from envbuild.pipeline.pods import pod_of, pods_of

    seed = secrets.randbelow(2**31)
    if nodes > 1:
        pod = pods_of(bench, image, row, wish, nodes=nodes, seed=seed)
    else:
        pod = pod_of(bench, image, row, wish, seed=seed)
    made = manifests(pod)
    if json:
        output.document("smoke", plan={"manifests": list(made)})
    else:
        output.result(yaml.safe_dump_all(made, sort_keys=False))


def _send(
    bench: Workbench,
    image: str,
    row: str | None,
    key: str | None,
    texts: Mapping[str, object],
    flags: list[str],
    how: cluster.How,
) -> None:
    """The same on a node of a cluster, whose engine has the image."""
    from envbuild.pipeline.cluster import row_of
    from envbuild.pipeline.works import Work

    bench.need_signing_key()
    given = {**texts, **cluster.seen_from_nodes(bench, key)}
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    argv = ("smoke", *options, *flags, "--json", "--", image)
    cluster.carry_out(bench, "smoke", [Work(name=image, row=row_of(bench, image, row), argv=argv)], how)


def _spread(bench: Workbench, image: str, row: str | None, nodes: int, timeout: float, how: cluster.How) -> None:
    """An all-reduce with a known answer over several nodes."""
    import datetime
    import secrets

    from envbuild.cli import lines
    from envbuild.executors.ranks import UNTRIED
    from envbuild.pipeline import collective
    from envbuild.pipeline.cluster import row_of

    planned = collective.plan(
        bench, image, row_of(bench, image, row), nodes=nodes, seed=secrets.randbelow(1009), timeout=timeout,
        program=lines.program(), now=datetime.datetime.now(datetime.timezone.utc),
    )  # fmt: skip
    if (kind := bench.site.slurm.container) in UNTRIED:
        output.narrate(f"warning: [slurm] container = {kind}: written from its manual, and never run by us")
    cluster.submit(bench, planned, how)


def _check(image: str | None, python: str | None, accelerator: str | None) -> None:
    if (image is None) == (python is None):
        raise InputError(
            "smoke takes an image or --python, and not both" if image else "smoke needs an image, or --python PATH",
            hint="envbuild smoke IMAGE, or envbuild smoke --python /path/to/python",
        )
    if accelerator not in (None, "cpu", "cuda"):
        raise InputError(f"--accelerator: '{accelerator}' is none", hint="Say cpu or cuda.")


def _interpreter(
    bench: Workbench, python: str, *, row: str | None, accelerator: str | None, wish: Wish, json: bool, quiet: bool
) -> None:
    """Prove an interpreter on this host, and print what came of it."""
    from envbuild.pipeline.bare import prove_host
    from envbuild.pipeline.summary import summary

    env = bench.matrix.get(row) if row is not None else None
    proof = prove_host(bench, python, env, cast("Accelerator | None", accelerator), wish)
    if json:
        output.document(
            "smoke", kind="host", findings=list(proof.record.findings), python=str(proof.interpreter),
            level=proof.level.value, evidence=str(proof.path),
        )  # fmt: skip
        return
    held = f"as {env.name}" if env else "held to no row"
    output.text(f"{proof.interpreter} passes at level {proof.level.value} on this host ({held}; counts for no image)")
    if quiet:
        return
    for finding in proof.record.findings:
        output.narrate(f"{finding['severity']} [{finding['rule']}] {finding['message']}")
    for name, report in proof.record.smoke.items():
        for line in summary(report):
            output.text(f"  smoke    {name}: {line}")
    output.text(f"  record   {proof.path}")
