"""The options of doctor, in the order of its help: what is examined, what it is held to, what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli import options as opt
from envbuild.cli import places

_LOOK, _HOLD, _OUT = "What is examined", "What it is held to", "What comes out"

Image = Annotated[
    str | None,
    typer.Option(
        "--image", metavar="REF|ENV", help="An image, or the one of a row; without it this machine.",
        autocompletion=opt.rows_and_images, rich_help_panel=_LOOK,
    ),
]  # fmt: skip
Python = Annotated[
    str | None,
    typer.Option(
        "--python", metavar="PATH", help="An interpreter; without it the one of your PATH.", rich_help_panel=_LOOK
    ),
]
Saved = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="FILE|-", help="Facts collected before, such as by doctor.pyz.", rich_help_panel=_LOOK
    ),
]
Nvme = Annotated[
    list[str] | None,
    typer.Option(
        "--nvme", metavar="DIR", help="A folder that offload is to swap to; may be repeated.", rich_help_panel=_LOOK
    ),
]
Bench = Annotated[
    bool,
    typer.Option("--bench", help="Measure it, and host memory; takes some seconds.", rich_help_panel=_LOOK),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", callback=opt.seconds, help="Limit of both imports, in seconds.", rich_help_panel=_LOOK),
]
Row = Annotated[
    str | None,
    typer.Option("--row", metavar="ENV", help="A row of the matrix.", autocompletion=opt.rows, rich_help_panel=_HOLD),
]
Torch = Annotated[
    str | None,
    typer.Option(
        "--torch", metavar="V", help="Or versions, as many as you care about.", autocompletion=opt.torch_versions,
        rich_help_panel=_HOLD,
    ),
]  # fmt: skip
Cuda = Annotated[
    str | None,
    typer.Option("--cuda", metavar="V", help="Toolkit.", autocompletion=opt.cuda_versions, rich_help_panel=_HOLD),
]
DeepSpeed = Annotated[
    str | None,
    typer.Option(
        "--deepspeed", metavar="V", help="Its version.", autocompletion=opt.deepspeed_versions, rich_help_panel=_HOLD
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu", metavar="G", help="Such as a100; several by comma.", autocompletion=opt.gpu_names,
        rich_help_panel=_HOLD,
    ),
]  # fmt: skip
Params = Annotated[
    str | None,
    typer.Option(
        "--params", metavar="7b", help="Parameters of your model: does its offload fit into memory?",
        rich_help_panel=_HOLD,
    ),
]  # fmt: skip
Ranks = Annotated[
    int | None,
    typer.Option(
        "--gpus", metavar="N", min=1, max=1024, help="Ranks on this machine; as many as GPUs without it.",
        rich_help_panel=_HOLD,
    ),
]  # fmt: skip
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="FACTS.json", help="What has changed since these were saved?", rich_help_panel=_HOLD
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", metavar="CHECK", help="Some checks; may be repeated.", autocompletion=opt.check_names,
        rich_help_panel=_HOLD,
    ),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.", rich_help_panel=_OUT)]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", callback=places.file, help="Write one page with everything, for a ticket.",
        rich_help_panel=_OUT,
    ),
]  # fmt: skip
Report = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="FILE", callback=places.file, help="Write it as text (Markdown).", rich_help_panel=_OUT
    ),
]  # fmt: skip
Save = Annotated[
    Path | None,
    typer.Option(
        "--save", metavar="FACTS.json", callback=places.file, help="Write what was collected.", rich_help_panel=_OUT
    ),
]  # fmt: skip
Collector = Annotated[
    Path | None,
    typer.Option(
        "--collector", metavar="FILE", callback=places.file, help="Write the program that collects; nothing else.",
        rich_help_panel=_OUT,
    ),
]  # fmt: skip
Listed = Annotated[bool, typer.Option("--list", help="List the checks.", rich_help_panel=_OUT)]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Everything: notes, echoes, all libraries.", rich_help_panel=_OUT)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the findings.", rich_help_panel=_OUT)]
