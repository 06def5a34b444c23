"""Options that several commands share, and the workbench made from them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from envbuild.model import Level
    from envbuild.pipeline.workbench import Workbench


def completed(ctx: typer.Context, incomplete: str, names: Callable[[Workbench], Iterable[str]]) -> list[str]:
    """Words for shell completion, from the project that the line has named so far; silent about all that is wrong."""
    try:
        from envbuild.pipeline.workbench import Workbench

        folder = ctx.params.get("project")
        bench = Workbench(project_folder=Path(folder) if folder else None)
        return [name for name in dict.fromkeys(names(bench)) if name.startswith(incomplete)]
    except Exception:
        return []


def rows(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of rows for shell completion; a broken matrix completes to nothing."""
    return completed(ctx, incomplete, lambda bench: bench.matrix.environments)


def rows_and_images(ctx: typer.Context, incomplete: str) -> list[str]:
    """Rows, and the images that the engine has; without an engine the rows alone."""

    def names(bench: Workbench) -> Iterable[str]:
        found = (info for pattern in ("*", "*/*") for info in bench.engine.images(pattern))
        return dict.fromkeys(tag for info in found for tag in info.repo_tags)

    return [*rows(ctx, incomplete), *completed(ctx, incomplete, names)]


def check_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """What doctor looks at."""
    from envbuild.doctor.checks import CHECKS

    return completed(ctx, incomplete, lambda bench: (check.name for check in CHECKS))


def gpu_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """GPUs that the facts know; behind a comma the next one."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in completed(ctx, last, lambda bench: bench.facts.gpus)]


def cuda_versions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Toolkits that the facts know."""
    return completed(ctx, incomplete, lambda bench: bench.facts.toolkits)


def torch_versions(ctx: typer.Context, incomplete: str) -> list[str]:
    """torch releases that the facts know, with their builds once the release is typed."""

    def names(bench: Workbench) -> list[str]:
        known = bench.facts.versions
        release = incomplete.partition("+")[0]
        builds = known[release].builds if release in known else ()
        return [*known, *(f"{release}+{build}" for build in builds)]

    return completed(ctx, incomplete, names)


def deepspeed_versions(ctx: typer.Context, incomplete: str) -> list[str]:
    """DeepSpeed releases at which something changes."""
    from envbuild.matrix.releases import deepspeed_releases

    return completed(ctx, incomplete, lambda bench: deepspeed_releases(bench.facts))


def release_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Distribution releases that the facts know."""
    return completed(ctx, incomplete, lambda bench: bench.facts.releases)


def family_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Families of distributions."""
    return completed(
        ctx, incomplete, lambda bench: (name for each in bench.facts.releases.values() for name in each.families)
    )


def accelerators(ctx: typer.Context, incomplete: str) -> list[str]:
    """Both of them."""
    return completed(ctx, incomplete, lambda bench: ("cpu", "cuda"))


def field_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """What can be asked for."""
    from envbuild.matrix.space import FIELDS

    return completed(ctx, incomplete, lambda bench: FIELDS)


_KINDS = ("docker", "podman", "auto")


def engine_kinds(ctx: typer.Context, incomplete: str) -> list[str]:
    """What ``--engine`` takes."""
    return [kind for kind in _KINDS if kind.startswith(incomplete)]


def engine_kind(value: str | None) -> str | None:
    """``--engine``, looked at."""
    if value is not None and value not in _KINDS:
        raise typer.BadParameter(f"'{value}' is no engine; say {', '.join(_KINDS[:-1])} or {_KINDS[-1]}")
    return value


_EXECUTORS = ("local", "slurm", "k8s")


def executors(ctx: typer.Context, incomplete: str) -> list[str]:
    """What ``--executor`` takes."""
    return [kind for kind in _EXECUTORS if kind.startswith(incomplete)]


def executor(value: str | None) -> str | None:
    """``--executor``, looked at."""
    if value is not None and value not in _EXECUTORS:
        raise typer.BadParameter(f"'{value}' is none; say {', '.join(_EXECUTORS[:-1])} or {_EXECUTORS[-1]}")
    return value


_LONGEST = 30 * 24 * 3600


def seconds(value: float) -> float:
    """A limit of time that can be waited for; not-a-number and infinity compare false or are too large."""
    if not 1 <= value <= _LONGEST:
        raise typer.BadParameter(f"say a number of seconds from 1 to {_LONGEST} (30 days)")
    return value


def minutes(value: float) -> float:
    """A length of training that can be waited for."""
    if not 0.1 <= value <= _LONGEST / 60:
        raise typer.BadParameter(f"say a number of minutes from 0.1 to {_LONGEST // 60} (30 days)")
    return value


Row = Annotated[str, typer.Argument(metavar="ENV", help="A row of the matrix.", autocompletion=rows)]
Rows = Annotated[
    list[str] | None, typer.Argument(metavar="[ENV]...", help="Rows; all when none is named.", autocompletion=rows)
]
SomeRows = Annotated[list[str] | None, typer.Argument(metavar="[ENV]...", help="Rows.", autocompletion=rows)]
AllOption = Annotated[bool, typer.Option("--all", help="Every row of the matrix.")]
Image = Annotated[
    str, typer.Argument(metavar="ENV|IMAGE", help="A row (its image), or any image.", autocompletion=rows)
]
RowOption = Annotated[
    str | None,
    typer.Option("--row", metavar="ENV", help="The row whose claims count.", autocompletion=rows),
]
ProjectOption = Annotated[
    Path | None,
    typer.Option("--project", metavar="DIR", help="Folder with a matrix.yaml; found upwards without it."),
]
HostOption = Annotated[
    str | None, typer.Option("--host", metavar="URL", help="Engine endpoint, such as unix:///run/docker.sock.")
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="KIND", callback=engine_kind, autocompletion=engine_kinds,
        help="docker, podman, or auto: what answers; in place of the site's.",
    ),
]  # fmt: skip
BuilderOption = Annotated[
    str | None, typer.Option("--builder", metavar="NAME", help="One of buildx's builders; in place of the site's.")
]
ExecutorOption = Annotated[
    str | None,
    typer.Option(
        "--executor", metavar="KIND", callback=executor, autocompletion=executors,
        help="local: on this host; slurm: as jobs of a cluster; k8s: a manifest, of a smoke; in place of the site's.",
    ),
]  # fmt: skip
DetachOption = Annotated[
    bool, typer.Option("--detach", help="With slurm: submit, print the run's name, and do not wait.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show every line of every step.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Only the result and errors.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would be done; change nothing.")]
LevelOption = Annotated[
    str | None,
    typer.Option("--allow-level", metavar="built|cpu|gpu-mig", help="Tag below the required level; the tag says so."),
]

GpusOption = Annotated[
    str | None,
    typer.Option(
        "--gpus", metavar="all|none|GPU,...", help="For cuda rows: by UUID or index; all that fit without it."
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Run again although there is evidence.")]


KeyOption = Annotated[
    str | None,
    typer.Option("--key", metavar="FILE", help="Private key that signs the evidence, in place of the site's."),
]

RegistryOption = Annotated[
    str | None,
    typer.Option("--registry", metavar="NAME", help="Such as registry.example.com/team, in place of the site's."),
]
RequireOption = Annotated[
    str | None,
    typer.Option("--require", metavar="LEVEL", help="built, cpu, gpu-mig or gpu; else what the row requires."),
]
SmOption = Annotated[
    str | None,
    typer.Option("--sm", metavar="SM", help="GPU architecture it has to have code for, such as 90."),
]
TrustOption = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="PUB", help="Public key to trust, in place of the site's; may be given again."),
]
MaxAgeOption = Annotated[
    str | None, typer.Option("--max-age", metavar="AGE", help="Days, such as 30 or 30d, or hours, such as 12h.")
]


def gpus(text: str | None) -> tuple[str, ...]:
    """``--gpus``, understood; nothing heavy is imported where it was not given."""
    if text is None:
        return ("all",)
    from envbuild.pipeline.gates import parse_gpus

    return parse_gpus(text)


def level(text: str | None) -> Level | None:
    """``--allow-level``, understood."""
    from envbuild.errors import InputError
    from envbuild.model import Level

    if text is None:
        return None
    if text not in ("built", "cpu", "gpu-mig"):
        raise InputError(
            f"--allow-level: '{text}' is not a level that can be allowed", hint="Say built, cpu or gpu-mig."
        )
    return Level(text)


def workbench(
    project: Path | None, host: str | None = None, engine: str | None = None, builder: str | None = None
) -> Workbench:
    """A silent workbench, for commands that only answer."""
    from envbuild.pipeline.workbench import Workbench

    return Workbench(project_folder=project, host=host, settings={"engine.kind": engine, "engine.builder": builder})


def workbench_with(project: Path | None, host: str | None, settings: Mapping[str, object]) -> Workbench:
    """A silent workbench with what the command line says in place of the site's settings."""
    from envbuild.pipeline.workbench import Workbench

    return Workbench(project_folder=project, host=host, settings=settings)


@contextlib.contextmanager
def narrated(
    project: Path | None,
    host: str | None,
    engine: str | None = None,
    *,
    verbose: bool,
    quiet: bool,
    settings: Mapping[str, object] | None = None,
) -> Iterator[Workbench]:
    """A workbench whose events are shown on stderr while the block runs; ``settings`` override the site's."""
    from envbuild.cli.display import make_sink
    from envbuild.pipeline.workbench import Workbench

    with make_sink(quiet=quiet, verbose=verbose) as sink:
        yield Workbench(
            project_folder=project, host=host, sink=sink, settings={"engine.kind": engine, **(settings or {})}
        )


def chosen(bench: Workbench, envs: list[str] | None, every: bool, command: str) -> list[str]:
    """The rows that are meant; a command that changes something never means all by default."""
    if envs and every:
        raise typer.BadParameter("name rows, or say --all")
    if not envs and not every:
        raise typer.BadParameter(f"name a row, or say --all (envbuild {command} ENV)")
    return [bench.matrix.get(name).name for name in dict.fromkeys(envs or bench.matrix.environments)]
