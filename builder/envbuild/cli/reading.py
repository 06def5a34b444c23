"""What profile does with files of other tools: --from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli import output

FromOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--from", metavar="FILE",
        help="Measure nothing: read a log of DeepSpeed, a trace of torch.profiler or an SQLite export of nsys; packed "
        "ones too. Given again for each rank.",
    ),
]  # fmt: skip
DeepSpeedOption = Annotated[
    str | None,
    typer.Option(
        "--deepspeed", metavar="VERSION", help="With --from: DeepSpeed's version, where a log does not tell it."
    ),
]


def read_files(paths: list[Path], deepspeed: str | None, out: Path | None, *, json: bool, measured: str) -> None:
    """Print the measurement that files make, or write it.

    Raises:
        InputError: Something was to be measured as well, or a file cannot be read.
    """
    from envbuild import store
    from envbuild.errors import InputError
    from envbuild.profile import files, readers

    if not paths:
        raise InputError("--deepspeed goes with --from FILE", hint="An image says itself which version it has.")
    if measured:
        raise InputError(f"--from reads files, and '{measured}' would be measured", hint="Leave one of them out.")
    found = readers.read(paths, deepspeed=deepspeed)
    if out is not None:
        store.write_where_asked(out, store.encode_json(files.document(found)))
    if json:
        output.document("profile", measurement=files.as_dict(found))
        return
    for line in readers.summary(found):
        output.text(line)
    if out is not None:
        output.text(f"written: {out}")
    else:
        output.narrate("nothing was written: say -o FILE, or --json > FILE")
