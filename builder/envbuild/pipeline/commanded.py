"""Measure a user's own training: their command, unchanged, with the hook in every Python that it starts."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import envbuild
from envbuild import evidence, process, store
from envbuild.collector import secrets
from envbuild.engines import ContainerSpec, ImageInfo, Mount
from envbuild.errors import GATE, InputError
from envbuild.judge.suite import probes_folder
from envbuild.model import Environment
from envbuild.pipeline import limited
from envbuild.pipeline.gpus import HostGpus
from envbuild.pipeline.gpus import read as read_gpus
from envbuild.pipeline.host import cpu_name
from envbuild.pipeline.locate import locate
from envbuild.pipeline.measured import About, measurement_of, read_lines
from envbuild.pipeline.profile_wish import nvml_file, profiler_folder, profiler_hash
from envbuild.pipeline.running import run_spec
from envbuild.pipeline.workbench import Workbench
from envbuild.profile.document import Hardware, Measurement
from envbuild.site.urls import mask

_PLACE, _PROBES, _OUT, _NVML = "/run/envbuild-profiler", "/run/envbuild-probes", "/run/envbuild-out", "/run/pynvml.py"
_FILE = "variables"
# Variables that an engine's client heeds itself: only the container gets them, from a file that the client reads.
_CLIENTS_OWN = re.compile(r"(?i)PATH|HOME|TMPDIR|GO[A-Z]+|(LD|DOCKER|CONTAINERS?|PODMAN|BUILDAH|XDG|SSL)_.*|.*_PROXY")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a command is to be measured.

    Attributes:
        label: What the team calls this kind of machine.
        env: ``NAME=VALUE`` that the command gets besides its environment.
        timeout: Seconds after which it is ended; None lets it run.
    """

    warmup: int
    label: str | None = None
    env: tuple[str, ...] = ()
    timeout: float | None = None

    @property
    def given(self) -> dict[str, str]:
        """``env``, by name."""
        return dict(each.partition("=")[::2] for each in self.env)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commanded:
    """A command that has ended.

    Attributes:
        exit_code: The command's own.
        late: Whether it was ended because its time was up.
        measurement: None where no engine of DeepSpeed made a step that could be measured.
    """

    exit_code: int
    late: bool = False
    measurement: Measurement | None


def variables(out: str, *, profiler: str, probes: str, nvml: str, warmup: int, path: str) -> dict[str, str]:
    """What a measured command's environment has besides its own.

    ``sitecustomize`` is imported by every Python but an isolated one, and PYTHONPATH goes through every launcher:
    ``deepspeed``, ``torchrun``, ``accelerate``, ``srun``, a shell script. A ``-X`` option or a wrapper around
    the script would end at the first of them; ``usercustomize`` is switched off in a virtual environment.

    Args:
        path: The PYTHONPATH that there is.
    """
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (f"{profiler}/shim", path))),
        "ENVBUILD_PROFILE": out,
        "ENVBUILD_PROFILER": profiler,
        "ENVBUILD_PROBES": probes,
        "ENVBUILD_PROFILE_NVML": nvml,
        "ENVBUILD_PROFILE_WARMUP": str(warmup),
    }


def on_host(command: tuple[str, ...], asked: Asked) -> Commanded:
    """Run a command on this host, with this terminal.

    Raises:
        EngineError: It cannot be started.
    """
    with store.scratch(store.home() / "runs", "command-") as folder:
        code, late = _run(command, _host_variables(folder, asked), asked, limited.end)
        return Commanded(exit_code=code, late=late, measurement=_read(folder, _about(command, asked)))


def in_image(bench: Workbench, reference: str, row: str | None, command: tuple[str, ...], asked: Asked) -> Commanded:
    """Run a command in an image, as ``envbuild run`` does.

    Raises:
        EngineError: The engine failed.
        GateError: There is no such image.
    """
    ref, info, env = locate(bench, reference, row)
    with store.scratch(store.home() / "runs", "command-") as folder:
        spec = bench.engine.granted(command_spec(env, ref, info, command, folder, asked), bench.sink)
        mark = ("io.envbuild.command", os.urandom(8).hex())
        if asked.timeout is not None:
            spec = dataclasses.replace(spec, labels=(*spec.labels, mark))

        def stop(client: int) -> None:
            # It passes SIGTERM on; what does not hear of that is the engine's to end.
            limited.end(client)
            for each in bench.engine.containers("=".join(mark)):
                bench.engine.remove_container(each.id)

        _write(folder, asked)
        code, late = _run(_line(bench, spec, folder, asked), _inside(asked), asked, stop)
        about = _about(command, asked)
        about = dataclasses.replace(about, image=evidence.digest_of(info.id) or info.id, row=env.name)
        return Commanded(exit_code=code, late=late, measurement=_read(folder, about))


def _run(
    argv: tuple[str, ...], env: Mapping[str, str], asked: Asked, stop: Callable[[int], object]
) -> tuple[int, bool]:  # fmt: skip
    """The exit code, and whether its time was up."""
    try:
        return process.foreground(argv, env=env, timeout=asked.timeout, stop=stop), False
    except process.TimedOut:
        return GATE, True


def _host_variables(folder: Path, asked: Asked) -> dict[str, str]:
    path = asked.given.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    own = variables(
        str(folder), profiler=str(profiler_folder()), probes=str(probes_folder()), nvml=str(nvml_file() or ""),
        warmup=asked.warmup, path=path,
    )  # fmt: skip
    return {**asked.given, **own}


def _told(folder: Path, asked: Asked) -> tuple[str, ...]:
    """What the engine's client heeds itself it reads from a file of this user's alone."""
    own = [each for each in asked.env if _is_clients(each.partition("=")[0])]
    return ("--env-file", str(folder / _FILE)) if own else ()


def _write(folder: Path, asked: Asked) -> None:
    own = [each for each in asked.env if _is_clients(each.partition("=")[0])]
    if any("\n" in each for each in own):
        raise InputError("--env: a variable that the engine's client heeds itself is of one line", hint="Leave it out.")
    if not own:
        return
    with os.fdopen(os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.writelines(f"{each}\n" for each in own)


def _is_clients(name: str) -> bool:
    return name != "PYTHONPATH" and _CLIENTS_OWN.fullmatch(name) is not None


def _inside(asked: Asked) -> dict[str, str]:
    """What the engine's client hands over by name: values on its command line could be read by everybody."""
    return {name: value for name, value in asked.given.items() if name != "PYTHONPATH" and not _is_clients(name)}


def _line(bench: Workbench, spec: ContainerSpec, folder: Path, asked: Asked) -> tuple[str, ...]:
    line = bench.engine.run_line(spec)
    place = line.index("run") + 1
    return (
        *line[:place],
        *_told(folder, asked),
        *(word for name in _inside(asked) for word in ("--env", name)),
        *line[place:],
    )


def command_spec(
    env: Environment, ref: str, info: ImageInfo, command: tuple[str, ...], out: Path, asked: Asked
) -> ContainerSpec:
    """What ``envbuild run`` starts, with the hook's folders."""
    spec = run_spec(env, ref, command, folder=Path.cwd(), interactive=False)
    driver = nvml_file() if spec.gpus else None
    named = variables(
        _OUT, profiler=_PLACE, probes=_PROBES, nvml=_NVML if driver else "", warmup=asked.warmup,
        path=asked.given.get("PYTHONPATH", dict(info.env).get("PYTHONPATH", "")),
    )  # fmt: skip
    mounts = [
        *spec.mounts,
        Mount(source=profiler_folder(), target=_PLACE),
        Mount(source=probes_folder(), target=_PROBES),
        Mount(source=out, target=_OUT, read_only=False),
        *([Mount(source=driver, target=_NVML)] if driver else []),
    ]
    return dataclasses.replace(spec, mounts=tuple(mounts), env=(*spec.env, *named.items()))


def foreseen(
    bench: Workbench, image: str | None, row: str | None, command: tuple[str, ...], asked: Asked
) -> tuple[str, ...]:
    """The command line that would be started; the folder for what is measured is another one in every run."""
    out = store.home() / "runs" / "command-..."
    if image is None:
        own = {name: value for name, value in _host_variables(out, asked).items() if asked.given.get(name) != value}
        return ("env", *_by_name(asked.given), *(f"{name}={value}" for name, value in own.items()), *command)
    ref, info, env = locate(bench, image, row)
    line = _line(bench, command_spec(env, ref, info, command, out, asked), out, asked)
    named = _by_name(_inside(asked))
    return ("env", *named, *line) if named else line


def _by_name(given: Iterable[str]) -> tuple[str, ...]:
    """Variables for people, whoever looks on."""
    return tuple(f"{name}={secrets.SECRET}" for name in given)


def _about(command: tuple[str, ...], asked: Asked) -> About:
    gpus = read_gpus()
    seen = gpus if isinstance(gpus, HostGpus) else None
    hardware = Hardware(
        cpu=cpu_name(), cpus=len(os.sched_getaffinity(0)), label=asked.label, driver=seen.driver if seen else None,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=tuple(dict.fromkeys(gpu.name for gpu in seen.gpus)) if seen else (),
    )  # fmt: skip
    notes = ["a command was measured: a checkpoint is part of the step after it, and of losses the ranks' own"]
    notes += [f"variables that were set for it: {', '.join(asked.given)[:400]}"] if asked.given else []
    return About(
        accelerator="cpu", hardware=hardware, probe=profiler_hash(), envbuild=envbuild.__version__,
        command=masked(command), notes=tuple(notes),
    )  # fmt: skip


def masked(command: tuple[str, ...]) -> str:
    """A command line for a document that others read: without secrets, and without the user's home."""
    words = (_quoted(mask(word)) for word in secrets.command(command))
    text = " ".join(words).replace(str(Path.home()), "~")
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:400]


def _quoted(word: str) -> str:
    bare = word.replace(secrets.SECRET, "x")
    return word if shlex.quote(bare) == bare else shlex.quote(word)


def _read(folder: Path, about: About) -> Measurement | None:
    """What the ranks wrote; of a rank that was started again, the process that came farthest."""
    ranks: dict[int, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("rank-*-*.jsonl")):
        lines = read_lines(path.read_text(errors="replace"))
        closing = path.with_suffix(".pass")
        if closing.is_file():
            lines.append(json.loads(closing.read_text()))
        number = int(path.name.split("-")[1])
        if len(lines) > len(ranks.get(number, ())):
            ranks[number] = lines
    whole = [lines for lines in ranks.values() if _trained(lines)]
    if not whole:
        return None
    lines = [line for each in whole for line in each]
    for path in sorted(folder.glob("samples-*.jsonl")):
        lines += read_lines(path.read_text(errors="replace"))
    first: Mapping[str, Any] = next(line for line in lines if line["kind"] == "rank")
    about = dataclasses.replace(
        about, accelerator=first["accelerator"], micro_batch=first["micro_batch"], accumulation=first["accumulation"],
        hardware=about.hardware.model_copy(update={"gpus": _gpus(lines, about.hardware.gpus)}),
    )  # fmt: skip
    return measurement_of(lines, about)


def _gpus(lines: list[dict[str, Any]], seen: tuple[str, ...]) -> tuple[str, ...]:
    """The models of the GPUs that the ranks had, of all that were seen on the host."""
    ranks = [line for line in lines if line["kind"] == "rank" and line["accelerator"] == "cuda"]
    names = dict.fromkeys(str(device["name"]) for line in ranks if (device := line.get("device")))
    return tuple(names) if names or not ranks else seen


def _trained(lines: list[dict[str, Any]]) -> bool:
    kinds = {line["kind"] for line in lines}
    return {"rank", "step", "pass"} <= kinds
