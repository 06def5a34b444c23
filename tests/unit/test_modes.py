"""Commands that work in several ways: in each of them every option has an effect, or is refused by its name."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from envbuild.cli import application, modes
from envbuild.cli.modes import MODES
from envbuild.errors import EnvbuildError

MODULES = {
    "compare": "measures",
    "profile": "profiling",
    "report": "reporting",
    "build": "building",
    "watch": "watching",
}
SLURM, NODES = ("--executor", "slurm"), ("--executor", "slurm", "--nodes", "2")
MANIFEST = ("--executor", "k8s", "--dry-run")
# A line for each mode of each command; what follows -- is somebody else's.
LINES: dict[str, dict[str, tuple[str, ...]]] = {
    "profile": {
        "image": ("cpu",), "slurm": ("cpu", *SLURM), "nodes": ("cpu", *NODES), "interpreter": ("--python", "python3"),
        "command": ("--", "true"), "command in an image": ("cpu", "--", "true"), "files": ("--from", "x.log"),
    },
    "compare": {"files": ("a.json", "b.json"), "images": ("a", "b"), "slurm": ("a", "b", *SLURM)},
    "bottleneck": {"reading": ("m.json",), "experiments": ("m.json", "--experiment")},
    "report": {"page": ("m.json", "-o", "-"), "text": ("m.json",), "json": ("m.json", "--json")},
    "smoke": {
        "image": ("cpu",), "slurm": ("cpu", *SLURM), "nodes": ("cpu", *NODES), "interpreter": ("--python", "python3"),
        "manifest": ("cpu", *MANIFEST), "manifest over nodes": ("cpu", *MANIFEST, "--nodes", "2"),
    },
    "build": {"here": ("cpu",), "slurm": ("cpu", *SLURM)},
    "watch": {"process": ("--pid", "1"), "command": ("--", "true"), "image": ("cpu", "--", "true")},
}  # fmt: skip
# Values that their own commands take; every other option gets a number.
VALUES = {
    "accelerator": "cpu", "allow_level": "cpu", "candidate_settings": "a=1", "chosen": "timing", "data": "synthetic",
    "delta": "5%", "differs": "config", "engine": "podman", "env": "A=1", "executor": "local", "gpus": "0",
    "host": "unix:///none", "model": "tiny", "on_hang": "tell", "settings": "a=1",
}  # fmt: skip
# They make another mode of it, and have refusals of their own.
CHOOSES = {"--python", "--from", "--deepspeed", "--executor", "--nodes", "--detach", "--pid", "--json", "--experiment"}


@functools.cache
def command_of(name: str) -> Any:
    group: Any = typer.main.get_command(application([MODULES.get(name, name)]))
    return group.commands[name]


def refused(name: str, mode: str) -> Iterator[tuple[str, ...]]:
    """Each option that has no effect, with a value."""
    for param in command_of(name).params:
        if param.param_type_name == "option" and param.name not in {*MODES[name][mode].takes, "help"}:
            yield modes.option(param), *(() if param.is_flag else (VALUES.get(param.name, "3"),))


def error_of(name: str, typed: list[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> EnvbuildError:
    monkeypatch.setenv("ENVBUILD_HOME", str(folder))
    monkeypatch.setattr(sys, "argv", ["envbuild", name, *typed])
    with pytest.raises(EnvbuildError) as caught:
        command_of(name).main(typed, prog_name=name, standalone_mode=False)
    return caught.value


def test_every_mode_is_tried_and_every_option_counts_somewhere() -> None:
    assert {name: set(lines) for name, lines in LINES.items()} == {name: set(each) for name, each in MODES.items()}
    for name, found in MODES.items():
        there = {each.name for each in command_of(name).params if each.param_type_name == "option"} - {"help"}
        assert set().union(*(mode.takes for mode in found.values())) == there, name
        assert all(set(mode.instead) <= there - mode.takes for mode in found.values()), name


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name, lines in LINES.items() for mode in lines])
def test_options_without_effect_are_refused_by_their_names(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line, typed = LINES[name][mode], list(refused(name, mode))
    together = [words for words in typed if words[0] not in CHOOSES]
    if together:
        error = error_of(name, [*(word for words in together for word in words), *line], monkeypatch, tmp_path)
        names = ", ".join(words[0] for words in together)
        assert error.exit_code == 2 and error.message == f"{MODES[name][mode].name} takes no {names}" and error.hint
    for words in typed:
        if words[0] in CHOOSES and words[0] not in line:
            assert error_of(name, [*words, *line], monkeypatch, tmp_path).exit_code == 2, words


def test_each_has_its_own_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    error = error_of("profile", ["--steps", "3", "--json", "--threads", "2", "--", "true"], monkeypatch, tmp_path)
    assert error.message == "a command behind -- takes no --steps, --threads, --json"
    for said in ("its own arguments", "--env OMP_NUM_THREADS=N", "the measurement goes into a file: -o FILE"):
        assert said in error.hint
