"""Which ds_config for a model on a machine: tune."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli import modes, output, places
from envbuild.cli import options as opt
from envbuild.errors import GATE

_EPILOG = (
    "Example: envbuild tune llama-2-7b --gpu a100-80gb --gpus 8 --ram 1TiB -o ds_config.json        "
    "(a count: envbuild tune --params 7b ...; your own model: --model-config config.json)"
)
# The longest sequence and the largest batch that anybody means.
_MOST_TOKENS, _MOST_BATCH = 100_000_000, 100_000_000


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("tune", epilog=_EPILOG)(tune)


def _models(ctx: typer.Context, incomplete: str) -> list[str]:
    from envbuild.sizing import known

    return opt.completed(ctx, incomplete, lambda bench: known.names(bench.facts))


def _cards(ctx: typer.Context, incomplete: str) -> list[str]:
    from envbuild.sizing import cards

    return opt.completed(ctx, incomplete, lambda bench: cards.names(bench.facts))


def _versions(ctx: typer.Context, incomplete: str) -> list[str]:
    from envbuild.dsschema import VERSIONS

    return [each for each in VERSIONS if each.startswith(incomplete)]


def _launchers(ctx: typer.Context, incomplete: str) -> list[str]:
    from envbuild.sizing.settings import LAUNCHERS

    return [each for each in LAUNCHERS if each.startswith(incomplete)]


def _offloads(ctx: typer.Context, incomplete: str) -> list[str]:
    from envbuild.sizing.tuning import OFFLOADS

    return [each for each in OFFLOADS if each.startswith(incomplete)]


def _targets(ctx: typer.Context, incomplete: str) -> list[str]:
    return [each for each in ("throughput", "fit") if each.startswith(incomplete)]


def _dtypes(ctx: typer.Context, incomplete: str) -> list[str]:
    return [each for each in ("bf16", "fp16", "fp32") if each.startswith(incomplete)]


def tune(
    ctx: typer.Context,
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="GPU", help="Such as a100-80gb.", autocompletion=_cards, show_default=False)
    ],
    gpus: Annotated[
        int, typer.Option("--gpus", metavar="N", min=1, max=1024, help="GPUs of one node.", show_default=False)
    ],
    ram: Annotated[
        str, typer.Option("--ram", metavar="SIZE", help="Memory of one node, such as 1TiB.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="A public model, such as llama-2-7b.", autocompletion=_models),
    ] = None,
    params: Annotated[
        str | None,
        typer.Option("--params", metavar="N", help="How many parameters, such as 7b: a guess of that size."),
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option("--model-config", metavar="FILE", help="A Hugging Face config.json.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, max=100_000, help="Nodes.")] = 1,
    nvme: Annotated[
        str | None, typer.Option("--nvme", metavar="GB/S", help="What a node's NVMe reads a second, such as 7GB/s.")
    ] = None,
    nvme_path: Annotated[
        str | None, typer.Option("--nvme-path", metavar="DIR", help="Where it is mounted; /local_nvme without it.")
    ] = None,
    sequence: Annotated[
        int, typer.Option("--seq", metavar="N", min=1, max=_MOST_TOKENS, help="Tokens of a sequence.")
    ] = 4096,
    micro_batch: Annotated[
        int | None,
        typer.Option("--micro-batch", metavar="N", min=1, max=_MOST_BATCH, help="Sequences a GPU takes at a time."),
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option("--global-batch", metavar="N", min=1, max=_MOST_BATCH, help="Sequences of a step on all GPUs."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", metavar="TYPE", help="bf16, fp16 or fp32; bf16 where the GPU has it.", autocompletion=_dtypes
        ),
    ] = None,
    no_recompute: Annotated[
        bool, typer.Option("--no-recompute", help="The model checkpoints no activations.")
    ] = False,
    stage: Annotated[
        int | None, typer.Option("--stage", metavar="0-3", min=0, max=3, help="This ZeRO stage, and no other.")
    ] = None,
    offload: Annotated[
        str | None,
        typer.Option(
            "--offload", metavar="WHAT", autocompletion=_offloads,
            help="This, and nothing else: none, optimizer, parameters (both) or nvme.",
        ),
    ] = None,
    row: opt.RowOption = None,
    deepspeed: Annotated[
        str | None,
        typer.Option(
            "--deepspeed", metavar="V", help="Its release; the row's, or the newest known.", autocompletion=_versions
        ),
    ] = None,
    launcher: Annotated[
        str,
        typer.Option(
            "--with", metavar="LAUNCHER", autocompletion=_launchers,
            help="Who reads the file: deepspeed, hf-trainer or accelerate.",
        ),
    ] = "deepspeed",
    link: Annotated[
        str | None, typer.Option("--link", metavar="GB/S", help="Host to GPU, in place of the bus's own figure.")
    ] = None,
    network: Annotated[
        str | None, typer.Option("--network", metavar="Gb/S", help="What a node sends to others, such as 400.")
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            "--target", metavar="throughput|fit", autocompletion=_targets,
            help="The earliest rung and the largest micro-batch, or room to spare.",
        ),
    ] = "throughput",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", callback=places.file, help="Write the ds_config there."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print every formula with its numbers.")] = False,
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
) -> None:  # fmt: skip
    """Find a ds_config that fits a model on a machine, with the reason for every number.

    It climbs from ZeRO-0 to NVMe and takes the first rung that fits 90 % of GPU and host. Everything is computed: no
    GPU is used and nothing is run. --explain shows each formula, and what in it is assumed.

    Exit codes: 0 it fits, 2 bad usage, 5 nothing fits (the smallest changes that would are named).
    """
    from envbuild.cli import tuned as show
    from envbuild.pipeline import tuning
    from envbuild.pipeline.tuned import as_dict

    modes.need(ctx, "force", "out")
    wish = tuning.Wish(
        model=model, params=params, model_config=model_config, gpu=gpu, gpus=gpus, nodes=nodes, ram=ram, nvme=nvme,
        nvme_path=nvme_path, sequence=sequence, micro_batch=micro_batch, global_batch=global_batch, dtype=dtype,
        recompute=not no_recompute, stage=stage, offload=offload, row=row, deepspeed=deepspeed, launcher=launcher,
        link=link, network=network, target=target,
    )  # fmt: skip
    found = tuning.tune(opt.workbench(project), wish)
    if out is not None and found.answer.chosen is not None:
        tuning.write(out, found, force=force)
    if json:
        output.document("tune", **as_dict(found))
    else:
        show.show(found, explain=explain)
    if found.answer.chosen is None:
        raise typer.Exit(GATE)
    if out is not None:
        output.narrate(f"wrote {out}")
