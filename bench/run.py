"""Measures what the README promises of speed, as ratios inside one run. `make bench` runs it; no test is timed.

    python bench/run.py [--rounds 3] [--only PART]... [--rows 8] [--json FILE] [--record]

A part is rules, diagnose, lint, bundle, bundle-io, help, build, step, layers, doctor, size, shipping, size-cuda or
rows. The last two are measured only where they are asked for: size-cuda weighs the row h200-cu130, which takes 30 GB,
and rows builds eight rows twice, with nothing in any cache, which takes an hour and 20 GB (--rows 2 for a quick try).

It builds and proves the row `cpu` first, if that was not done and more is measured than what needs no image. Exit
code 1 when a limit is exceeded.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import bundle_io
import commands
import examination
import images
import linting
import logs
import resolving
import rows
import rules
import shipping
import sizes
from figures import Measure, markdown, notes, table
from staging import must, stage

from envbuild import __version__
from envbuild.errors import EnvbuildError
from envbuild.model import Level
from envbuild.pipeline.host import describe
from envbuild.pipeline.names import names
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.sizes import format_size
from envbuild.pipeline.workbench import Workbench

ROW = "cpu"
# The release before the row's: what a user changes when DeepSpeed moves.
OTHER_DEEPSPEED = "0.19.7"
PARTS = (
    "rules",
    "diagnose",
    "lint",
    "bundle",
    "bundle-io",
    "help",
    "build",
    "step",
    "layers",
    "doctor",
    "size",
    "shipping",
)
ON_DEMAND = ("rows", "size-cuda")
# It has to be there, as `make integration-cuda` leaves it: tagged at the level of a machine without a GPU.
CUDA_ROW = "h200-cu130"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each measure")
    parser.add_argument(
        "--only", action="append", choices=(*PARTS, *ON_DEMAND), help="measure only this; may be given again"
    )
    parser.add_argument("--rows", type=int, default=len(rows.DEEPSPEED), help="how many rows the part rows builds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument(
        "--record", action="store_true", help="write docs/measured/bench-DATE.md, or bench-DATE-PART.md"
    )
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds has to be 1 or more")
    if not 2 <= options.rows <= len(rows.DEEPSPEED):
        parser.error(f"--rows has to be from 2 to {len(rows.DEEPSPEED)}")
    try:
        measures, machine = measure(options.only or PARTS, options.rounds, options.rows)
    except EnvbuildError as error:
        print(f"error: {error.message}\n{error.hint}".rstrip(), file=sys.stderr)
        return error.exit_code
    print(table(measures))
    print("", *notes(measures), "", *machine, sep="\n")
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    if options.json:
        document = {
            "schema": "envbuild.bench/1",
            "date": today,
            "rounds": options.rounds,
            "machine": machine,
            "measures": [each.as_dict() for each in measures],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    if options.record:
        parts = dict.fromkeys(options.only or ())
        path = commands.ROOT / "docs" / "measured" / f"bench-{'-'.join((today, *parts))}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        asked = "".join(f" --only {part}" for part in parts)
        path.write_text(report(measures, machine, options.rounds, today, asked))
        print(f"wrote {path.relative_to(commands.ROOT)}", file=sys.stderr)
    return 0 if all(each.ok for each in measures) else 1


def measure(parts: tuple[str, ...] | list[str], rounds: int, count: int) -> tuple[list[Measure], list[str]]:
    """The measures asked for, and the machine they were taken on."""
    measures: list[Measure] = []
    if "rules" in parts:
        say("measuring: rules")
        measures += rules.rules(rounds)
    if "diagnose" in parts:
        say("measuring: diagnose")
        with tempfile.TemporaryDirectory(prefix="envbuild-bench-") as scratch:
            measures += logs.diagnose(Path(scratch), rounds)
    if "lint" in parts:
        say("measuring: lint")
        with tempfile.TemporaryDirectory(prefix="envbuild-bench-") as scratch:
            measures.append(linting.linting(Path(scratch), rounds))
    if "bundle" in parts:
        say("measuring: bundle")
        with tempfile.TemporaryDirectory(prefix="envbuild-bench-") as scratch:
            measures += resolving.measures(Path(scratch), rounds)
    if "bundle-io" in parts:
        say("measuring: bundle-io")
        with tempfile.TemporaryDirectory(prefix="envbuild-bench-") as scratch:
            measures += bundle_io.bundle_io(Path(scratch), rounds)
    bench = Workbench(project_folder=commands.ROOT)
    if "rows" in parts:
        say(f"measuring: {count} rows, with -j 1 and with -j 2")
        with tempfile.TemporaryDirectory(prefix="envbuild-bench-") as scratch:
            measures += rows.measures(bench, Path(scratch), count)
    if set(parts) <= {"rules", "diagnose", "lint", "bundle", "bundle-io", "rows"}:
        return measures, [f"Python {sys.version.split()[0]}, envbuild {__version__}."]
    say(f"building and proving the row {ROW}, unless it is up to date")
    must((commands.ENVBUILD, "build", ROW), cwd=commands.ROOT)
    target = prepare(bench, ROW)
    proven = names(target.env, target.rendering.id8, bench.site.registry.name).proven
    with tempfile.TemporaryDirectory(prefix="envbuild-bench-") as scratch:
        folder = Path(scratch)
        staged = stage(bench, target, folder)
        cached = "envbuild-bench/cached:latest"

        def build() -> Measure:
            try:
                return commands.up_to_date(bench, staged, cached, rounds)
            finally:
                bench.engine.untag(cached)

        takers: dict[str, Callable[[], Measure | list[Measure]]] = {
            "help": lambda: commands.help_time(rounds),
            "build": build,
            "step": lambda: images.first_step(bench, staged, proven, folder, rounds),
            "layers": lambda: images.torch_stays(bench, staged, OTHER_DEEPSPEED, folder),
            "doctor": lambda: examination.doctor_time(bench, target, proven, rounds),
            "size": lambda: sizes.runtime_size(bench, staged, proven, folder),
            "shipping": lambda: [*shipping.measures(bench, target, proven, folder, rounds)],
            "size-cuda": lambda: cuda_size(bench, folder / "cuda"),
        }
        for part in takers:
            if part in parts:
                say(f"measuring: {part}")
                taken = takers[part]()
                measures += taken if isinstance(taken, list) else [taken]
    host = describe(bench.engine.info())
    machine = [
        f"Machine: {host.cpu}, {host.cpus} CPUs, {format_size(host.memory_bytes)} of memory, {host.system}.",
        f"Engine: {host.engine}. Python {sys.version.split()[0]}, envbuild {__version__}.",
        f"Image: {ROW}, target {target.rendering.id8}.",
    ]
    return measures, machine


def cuda_size(bench: Workbench, folder: Path) -> Measure:
    """The size of the CUDA row's image, wherever it was proven on the CPU."""
    must((commands.ENVBUILD, "build", CUDA_ROW, "--gpus", "none", "--allow-level", "cpu"), cwd=commands.ROOT)
    target = prepare(bench, CUDA_ROW)
    its = names(target.env, target.rendering.id8, bench.site.registry.name).below(Level.CPU)
    return sizes.runtime_size(bench, stage(bench, target, folder), its, folder)


def report(measures: list[Measure], machine: list[str], rounds: int, today: str, asked: str = "") -> str:
    """The document for docs/measured/; ``asked``: options that choose parts."""
    said = f"`python bench/run.py{asked}`" if asked else "`make bench`"
    lines = [
        f"# Speed, measured on {today}",
        "",
        f"{said}, {rounds} rounds of each that can be repeated, in turn. A cell is the median, and in brackets the",
        "smallest and the largest round. The ratio is taken round by round; its median has to keep the limit.",
        "",
        markdown(measures),
        "",
        *(f"- {line}" for line in (*notes(measures), *machine)),
    ]
    return "\n".join(lines) + "\n"


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
