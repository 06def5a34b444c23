"""Commands that work in several ways: an option that was typed has an effect in the chosen one, or is refused.

A way is a ``Mode``: the options that count in it. What is in no mode's list is refused, so a new option counts where it
was thought of, and nowhere else. ``--dry-run`` is no mode: what is planned is told the same as what is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import typer

from envbuild.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way in which a command works.

    Attributes:
        name: What takes no such option, in an error.
        takes: Parameters of the command whose options have an effect.
        fix: What to do instead of an option that has none.
        instead: The same of single options, by their parameters.
    """

    name: str
    takes: frozenset[str]
    fix: str
    instead: Mapping[str, str] = field(default_factory=dict)


def hold(ctx: typer.Context, name: str) -> None:
    """Refuse what was typed and has no effect in a mode of this command.

    Raises:
        InputError: There is such an option; the message names each, and what to do.
    """
    mode = MODES[ctx.command.name or ""][name]
    refused = [param for param in typed(ctx) if param.name not in mode.takes]
    if refused:
        fixes = dict.fromkeys(mode.instead.get(param.name, mode.fix) for param in refused)
        raise InputError(f"{mode.name} takes no {', '.join(map(option, refused))}", hint=" ".join(fixes))


def need(ctx: typer.Context, name: str, other: str) -> None:
    """Refuse an option that has an effect with another one only, which was not given.

    Raises:
        InputError: It was typed, and the other was not.
    """
    named = {param.name: option(param) for param in ctx.command.params}
    if is_typed(ctx, name) and not is_typed(ctx, other):
        raise InputError(
            f"{named[name]} has no effect without {named[other]}", hint=f"Say {named[other]}, too, or leave it out."
        )


def is_typed(ctx: typer.Context, name: str) -> bool:
    """Whether a parameter was given on the command line."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def option(param: Any) -> str:
    """What an option is called."""
    return str(next((each for each in param.opts if each.startswith("--")), param.opts[0]))


def typed(ctx: typer.Context) -> Iterator[Any]:
    """The options that were given on the command line."""
    for param in ctx.command.params:
        if param.param_type_name == "option" and is_typed(ctx, param.name or ""):
            yield param


_TOLD = frozenset({"json", "verbose", "quiet", "dry_run"})
_WHERE = frozenset({"project", "host", "engine"})
_LEAVE = "Leave it out."

_TRAINING = frozenset({
    "chosen", "model", "ds_config", "settings", "steps", "warmup", "seq", "micro_batch", "env", "data", "straggle",
    "seed", "threads", "label", "timeout", "out",
})  # fmt: skip
_ONE_NODE = frozenset({"ranks", "gpus", "disk", "checkpoint_every"})
_IMAGE = _TRAINING | _ONE_NODE | _TOLD | _WHERE | {"row", "executor", "nodes"}
_OWN = frozenset({"warmup", "label", "env", "timeout", "out", "quiet", "dry_run"})
_OWN_FIX = "It runs as it is typed; what it trains is said by its own arguments and files."
_OWN_INSTEAD = {
    "json": "Its output is the command's own; the measurement goes into a file: -o FILE.",
    "python": "Name the interpreter in the command.",
    "threads": "Say --env OMP_NUM_THREADS=N.",
    "gpus": "Say --env CUDA_VISIBLE_DEVICES=0,1.",
}
_SHARE_NO_FOLDER = "{} is measured on one node: the ranks' containers share no folder."
_ENGINE_OF_ONE = "--host and --engine are of one node: what opens an image on every node is [slurm] container."
_PER_NODE = "--ranks-per-node goes with --nodes N and --executor slurm; one node has --ranks."
_ROW_SAYS = "--accelerator goes with --python: an image trains on what its row says."

_PROFILE = {
    "image": Mode(
        name="an image on this host", takes=_IMAGE, fix=_LEAVE,
        instead={"per_node": _PER_NODE, "accelerator": _ROW_SAYS},
    ),
    "slurm": Mode(
        name="an image on a node", takes=_IMAGE | {"detach"}, fix=_LEAVE,
        instead={"per_node": _PER_NODE, "accelerator": _ROW_SAYS},
    ),
    "nodes": Mode(
        name="a training over --nodes", takes=(_IMAGE | {"per_node", "detach"}) - _ONE_NODE - {"host", "engine"},
        fix=_LEAVE,
        instead={
            "ranks": "--ranks is of one node: say --ranks-per-node; a GPU has one rank anyway.",
            "gpus": "--gpus is of one node: how many a node gives is said by [slurm.gpus].",
            "disk": _SHARE_NO_FOLDER.format("--disk"),
            "checkpoint_every": _SHARE_NO_FOLDER.format("--checkpoint-every"),
            "host": _ENGINE_OF_ONE, "engine": _ENGINE_OF_ONE,
        },
    ),
    "interpreter": Mode(
        name="an interpreter (--python)", takes=_TRAINING | _ONE_NODE | _TOLD | {"project", "python", "accelerator"},
        fix="It runs on this host, in no container.",
    ),
    "command": Mode(name="a command behind --", takes=_OWN, fix=_OWN_FIX, instead=_OWN_INSTEAD),
    "command in an image": Mode(
        name="a command behind --", takes=_OWN | _WHERE | {"row"}, fix=_OWN_FIX, instead=_OWN_INSTEAD
    ),
    "files": Mode(
        name="--from", takes=frozenset({"read", "deepspeed", "out", "json"}), fix="It measures nothing: it reads files."
    ),
}  # fmt: skip

_SIDES = frozenset({"delta", "differs", "structural", "json"})
_LAUNCHED = _SIDES | _WHERE | {
    "rounds", "model", "ds_config", "settings", "candidate_settings", "steps", "warmup", "seq", "ranks", "threads",
    "env", "timeout", "fresh", "executor", "dry_run",
}  # fmt: skip
_FOLDER = {"folder": "A baseline is a measurement: its image is compared by its name."}

_COMPARE = {
    "files": Mode(
        name="a comparison of files", takes=_SIDES | {"folder", "project"},
        fix="Files are compared here, as they are; such options go with images, which are launched first.",
    ),
    "images": Mode(name="a comparison of images", takes=_LAUNCHED, fix=_LEAVE, instead=_FOLDER),
    "slurm": Mode(name="a comparison of images", takes=_LAUNCHED | {"detach"}, fix=_LEAVE, instead=_FOLDER),
}  # fmt: skip

_READ = frozenset({"base", "folder", "target", "project", "json"})
_BOTTLENECK = {
    "reading": Mode(
        name="bottleneck by itself", takes=_READ,
        fix="It launches nothing; such options go with --experiment, which does.",
    ),
    "experiments": Mode(
        name="--experiment", takes=_READ | _WHERE | {"experiment", "rounds", "only", "fresh", "dry_run"}, fix=_LEAVE
    ),
}  # fmt: skip

_REPORTED = frozenset({"base", "row", "out", "delta", "differs", "folder"}) | _WHERE
_REPORT = {
    "page": Mode(name="a page on standard output", takes=_REPORTED, fix="Write it into a file: -o FILE."),
    "text": Mode(name="the summary", takes=_REPORTED | {"text"}, fix=_LEAVE),
    "json": Mode(name="--json", takes=_REPORTED | {"json"}, fix="The document has all that the summary has."),
}

_PROOF = frozenset({"row", "project", "timeout", "long", "minutes"})
_ENGINES = _PROOF | _TOLD | _WHERE | {"gpus", "force", "allow_level", "key", "executor", "nodes"}
_NOT_SUBMITTED = (
    "GPUs are asked for by [kubernetes.gpus]; nothing is submitted here, no evidence written, and nothing tagged."
)
_SMOKE = {
    "image": Mode(name="a smoke on this host", takes=_ENGINES, fix=_LEAVE, instead={"accelerator": _ROW_SAYS}),
    "slurm": Mode(
        name="a smoke on a node", takes=_ENGINES | {"detach"}, fix=_LEAVE, instead={"accelerator": _ROW_SAYS}
    ),
    "nodes": Mode(
        name="an all-reduce over --nodes",
        takes=_TOLD | {"row", "project", "timeout", "executor", "nodes", "detach"},
        fix="It trains nothing, and writes no evidence.",
        instead={
            "host": _ENGINE_OF_ONE, "engine": _ENGINE_OF_ONE,
            "gpus": "--gpus is of one node: how many a node gives is said by [slurm.gpus].",
        },
    ),
    "interpreter": Mode(
        name="an interpreter (--python)",
        takes=_PROOF | {"json", "verbose", "quiet", "gpus", "allow_level", "python", "accelerator"},
        fix="It runs on this host, in no container, whenever it is asked to.",
        instead={"key": "Evidence of a host is not signed, and counts for no image."},
    ),
    "manifest": Mode(
        name="a manifest", takes=_PROOF | {"json", "quiet", "executor", "nodes", "dry_run"}, fix=_NOT_SUBMITTED
    ),
    "manifest over nodes": Mode(
        name="a manifest over several nodes",
        takes=frozenset({"row", "project", "timeout", "json", "quiet", "executor", "nodes", "dry_run"}),
        fix=_NOT_SUBMITTED,
    ),
}  # fmt: skip

_BUILT = _TOLD | _WHERE | {
    "every", "changed_since", "builder", "no_cache", "record", "allow_level", "gpus", "force", "key", "timeout",
    "smoke_timeout", "executor", "compilers",
}  # fmt: skip
_BUILD = {
    "here": Mode(name="a build on this host", takes=_BUILT | {"jobs"}, fix=_LEAVE),
    "slurm": Mode(
        name="a build on a cluster", takes=_BUILT | {"detach"}, fix=_LEAVE,
        instead={"jobs": "--jobs is of one host: how many rows run at a time is the cluster's to say."},
    ),
}  # fmt: skip

_WATCHED = frozenset({
    "interval", "factor", "first", "pause", "on_hang", "dump", "swap", "horizon", "openmetrics", "project", "json",
    "quiet",
})  # fmt: skip
_WATCH = {
    "process": Mode(
        name="--pid", takes=_WATCHED | {"pid", "follow"}, fix="It runs already, and is looked at from this host.",
        instead={"log": "--log goes with a command; what its output goes to is said by --follow FILE."},
    ),
    "command": Mode(
        name="a command on this host", takes=_WATCHED | {"log"},
        fix="Name the image before --, where it is to run in one.",
        instead={"follow": "--follow goes with --pid: what a command says is heard anyway."},
    ),
    "image": Mode(
        name="a command in an image", takes=_WATCHED | {"log", "row", "host", "engine"}, fix=_LEAVE,
        instead={"follow": "--follow goes with --pid: what a command says is heard anyway."},
    ),
}  # fmt: skip

MODES: Mapping[str, Mapping[str, Mode]] = {
    "profile": _PROFILE, "compare": _COMPARE, "bottleneck": _BOTTLENECK, "report": _REPORT, "smoke": _SMOKE,
    "build": _BUILD, "watch": _WATCH,
}  # fmt: skip
