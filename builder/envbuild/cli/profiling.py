"""profile: what a training did, step by step: ours in an image or under an interpreter, or the user's own command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import cluster, modes, output, places, reading, sending, wishing
from envbuild.cli import options as opt

if TYPE_CHECKING:
    from envbuild.pipeline.profile_wish import Wish
    from envbuild.profile.document import Measurement

_EXAMPLE = (
    "Example: envbuild profile cpu --ds-config ds_config.json --set zero_optimization.stage=2 -o m.json · "
    "envbuild profile -- deepspeed train.py --deepspeed_config ds_config.json · "
    "envbuild profile h100-cu124 --executor slurm --nodes 2 -o m.json"
)
_LIMIT = "Limit of everything, in seconds; a training of your own has none unless it is said."


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("profile", epilog=_EXAMPLE)(profile)


def passes(ctx: typer.Context, incomplete: str) -> list[str]:
    """The passes, for completion."""
    return [name for name in ("timing", "comms", "trace", "parity") if name.startswith(incomplete)]


def models(ctx: typer.Context, incomplete: str) -> list[str]:
    """The models, for completion."""
    return [name for name in ("tiny", "mini", "small", "base", "large", "1b", "7b") if name.startswith(incomplete)]


def profile(
    ctx: typer.Context,
    image: Annotated[
        str | None,
        typer.Argument(metavar="[ENV|IMAGE]", help="A row (its image), or any image.", autocompletion=opt.rows),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- CMD...]", help="A training of your own, on this host or in IMAGE."),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PATH", help="Measure under this interpreter, in no container."),
    ] = None,
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            "--pass",
            metavar="timing|comms|trace|parity",
            autocompletion=passes,
            help="What to measure, each by itself; may be given again. Without it: timing and comms.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option("--model", metavar="tiny|mini|small|base|large|1b|7b", autocompletion=models, help="What trains."),
    ] = "tiny",
    ds_config: Annotated[
        Path | None,
        typer.Option("--ds-config", metavar="FILE", help="Your ds_config; without it ZeRO-3 with both offloads."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Of the ds_config, such as zero_optimization.stage=2."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, max=100000, help="Steps that count.")] = 20,
    warmup: Annotated[int, typer.Option("--warmup", min=0, max=100000, help="Steps before them.")] = 5,
    seq: Annotated[
        int | None, typer.Option("--seq", metavar="TOKENS", min=2, max=1 << 20, help="Length of a sequence.")
    ] = None,
    micro_batch: Annotated[
        int | None, typer.Option("--micro-batch", min=1, max=1 << 16, help="In place of the ds_config's.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME[=VALUE]",
            help="A variable for the ranks, or your own command; without a value this shell's.",
        ),
    ] = None,
    data: Annotated[
        str,
        typer.Option("--data", metavar="synthetic|slow:MS[@RANK]", help="Batches at once, or each after a wait."),
    ] = "synthetic",
    straggle: Annotated[
        str | None,
        typer.Option("--straggle", metavar="MS[@RANK]", help="Make a rank's forward pass slower, to see it found."),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option("--checkpoint-every", metavar="STEPS", min=1, help="Save a checkpoint so often.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Of weights and data.")] = 1,
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=1, max=1024, help="Processes; 2 on the CPU, one for each GPU.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, max=1024, help="OpenMP threads of each rank.")
    ] = None,
    gpus: opt.GpusOption = None,
    accelerator: Annotated[
        str | None,
        typer.Option("--accelerator", metavar="cpu|cuda", autocompletion=opt.accelerators, help="With --python."),
    ] = None,
    disk: Annotated[
        Path | None,
        typer.Option("--disk", metavar="DIR", help="For checkpoints and swapped states, in place of memory."),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option("--label", metavar="TEXT", help="What you call this kind of machine; part of the key."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            callback=places.file,
            help="Where the measurement goes; else into ENVBUILD_HOME.",
        ),
    ] = None,
    read: reading.FromOption = None,
    deepspeed: reading.DeepSpeedOption = None,
    row: opt.RowOption = None,
    project: opt.ProjectOption = None,
    host: opt.HostOption = None,
    engine: opt.EngineOption = None,
    timeout: Annotated[float, typer.Option("--timeout", callback=opt.seconds, help=_LIMIT)] = 1800,
    executor: opt.ExecutorOption = None,
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=10_000, help="With slurm: train over so many, a rank for each GPU.")
    ] = 1,
    per_node: Annotated[
        int | None, typer.Option("--ranks-per-node", min=1, max=1024, help="With --nodes on the CPU; 1 without it.")
    ] = None,
    detach: opt.DetachOption = False,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
    dry_run: opt.DryRunOption = False,
) -> None:
    """Measure a training step by step and rank by rank, and write one measurement (envbuild.profile/1).

    Behind -- stands a training of your own: it runs unchanged, with its own terminal and exit code, on this host or in
    the image that is named before. With --from nothing runs: files of other tools are read. With --executor slurm the
    node of a cluster measures; its engine has to have the image, and the measurement comes back (docs/cluster.md). With
    --nodes N besides it trains over N nodes, when they have shown by an all-reduce that they add right.

    Exit codes: 0 measured, 2 usage or a file that cannot be read, 3 engine or disk, 5 the training failed.
    """
    from envbuild.errors import InputError

    image, words = wishing.split(image, command or [])
    if executor == "slurm" or detach or nodes > 1:
        wishing.need_image(image, words, python=python, reads=bool(read))
    if read or deepspeed is not None:
        if read:
            modes.hold(ctx, "files")
        reading.read_files(read or [], deepspeed, out, json=json, measured=image or python or shlex.join(words))
        return
    if words:
        modes.hold(ctx, "command in an image" if image is not None else "command")
    elif (image is None) == (python is None):
        raise InputError(
            "profile takes an image, --python PATH, or a command behind --" if image is None
            else "profile takes an image or --python, and not both",
            hint="envbuild profile cpu, or envbuild profile -- deepspeed train.py",
        )  # fmt: skip
    elif python is not None:
        modes.hold(ctx, "interpreter")
    wish = wishing.wish(
        passes=chosen, model=model, ds_config=ds_config, settings=settings, steps=steps, warmup=warmup, length=seq,
        micro_batch=micro_batch, env=env, slow_data=wishing.slow(data), straggle=wishing.delay("--straggle", straggle),
        checkpoint_every=checkpoint_every, seed=seed, ranks=ranks, threads=threads, gpus=opt.gpus(gpus),
        timeout=timeout, label=label, disk=disk,
    )  # fmt: skip
    if words:
        # Nobody's own training is to end after half an hour because it is measured.
        limit = timeout if modes.is_typed(ctx, "timeout") else None
        with opt.narrated(project, host, engine, verbose=verbose, quiet=quiet) as bench:
            _command(bench, image, row, tuple(words), wish, limit, out, dry_run=dry_run, quiet=quiet)
        return
    if image is not None:
        bench = opt.workbench_with(project, host, {"engine.kind": engine, "executor.kind": executor})
        if cluster.on_cluster(bench, detach=detach):
            modes.hold(ctx, "nodes" if nodes > 1 else "slurm")
            how = cluster.How(json=json, verbose=verbose, quiet=quiet, dry_run=dry_run, detach=detach)
            if nodes > 1:
                sending.spread(bench, ctx, image, row, wish, nodes, per_node, out, how)
            else:
                sending.profile(bench, ctx, image, row, wish, out, how)
            return
        modes.hold(ctx, "image")
        if nodes > 1:
            raise InputError("--nodes goes with an image and --executor slurm: this host is one node")
    if accelerator not in (None, "cpu", "cuda"):
        raise InputError(f"--accelerator: '{accelerator}' is none", hint="Say cpu or cuda.")
    with opt.narrated(project, host, engine, verbose=verbose, quiet=quiet) as bench:
        from envbuild.pipeline import profiling
        from envbuild.pipeline.profile_wish import told

        if python is not None:
            argv, config, _ = profiling.python_argv(python, accelerator, wish)
            profiling.notes(bench, config)
            if dry_run:
                _plan(told(argv), config.values, as_json=json)
                return
            name, measured = Path(python).name, profiling.profile_python(bench, python, accelerator, wish)
        else:
            subject = profiling.subject(bench, image or "", row, wish)
            profiling.notes(bench, subject.config)
            if dry_run:
                _plan(profiling.foreseen(bench, subject, wish), subject.config.values, as_json=json)
                return
            name, measured = image or "", profiling.profile_image(bench, subject, wish)
        path = profiling.keep(measured, name, out)
    show(measured, path, as_json=json, quiet=quiet)


def _command(
    bench: Any, image: str | None, row: str | None, words: tuple[str, ...], wish: Wish, limit: float | None,
    out: Path | None, *, dry_run: bool, quiet: bool,
) -> None:  # fmt: skip
    from envbuild.cli.failure import Concluded
    from envbuild.errors import GateError
    from envbuild.pipeline import commanded, profiling

    asked = commanded.Asked(warmup=wish.warmup, label=wish.label, env=wish.env, timeout=limit)
    if dry_run:
        output.text(shlex.join(commanded.foreseen(bench, image, row, words, asked)))
        return
    done = commanded.on_host(words, asked) if image is None else commanded.in_image(bench, image, row, words, asked)
    if done.measurement is None:
        output.narrate("warning: nothing was measured: no engine of DeepSpeed made a step")
    else:
        from envbuild.pipeline.measured_text import summary

        path = profiling.keep(done.measurement, Path(words[0]).name, out)
        for line in () if quiet else summary(done.measurement):
            output.narrate(line)
        output.narrate(f"measurement: {path}")
    if done.late:
        raise GateError(
            f"{words[0]} did not end within {limit:g} s, and was ended",
            hint="Allow more: --timeout SECONDS. Without it a training of your own has no limit.",
        )
    if done.exit_code:
        raise Concluded(done.exit_code)


def _plan(argv: tuple[str, ...], config: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.document("profile", plan={"argv": list(argv), "ds_config": config})
    else:
        output.text(shlex.join(argv))


def show(measured: Measurement, path: Path, *, as_json: bool, quiet: bool) -> None:
    """The figures, and where the measurement lies."""
    if as_json:
        from envbuild.profile.files import as_dict

        output.document("profile", measurement=as_dict(measured))
        output.narrate(f"measurement: {path}")
        return
    if not quiet:
        from envbuild.pipeline.measured_text import summary

        for line in summary(measured):
            output.text(line)
    output.text(f"measurement  {path}")
