"""Measure a user's own training: their command, unchanged, with the hook in every Python that it starts."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import envbuild
from envbuild import evidence, process, store
from envbuild.collector import secrets
from envbuild.engines import ContainerSpec, ImageInfo, Mount
from envbuild.judge.suite import probes_folder
from envbuild.model import Environment
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Commanded:
    """A command that has ended.

    Attributes:
        exit_code: The command's own.
        measurement: None where no engine of DeepSpeed made a step that could be measured.
    """

    exit_code: int
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


def on_host(command: tuple[str, ...], *, warmup: int, label: str | None) -> Commanded:
    """Run a command on this host, with this terminal.

    Raises:
        EngineError: It cannot be started.
    """
    with store.scratch(store.home() / "runs", "command-") as folder:
        env = variables(
            str(folder), profiler=str(profiler_folder()), probes=str(probes_folder()), nvml=str(nvml_file() or ""),
            warmup=warmup, path=os.environ.get("PYTHONPATH", ""),
        )  # fmt: skip
        code = process.foreground(command, env=env)
        return Commanded(exit_code=code, measurement=_read(folder, _about(command, label)))


def in_image(
    bench: Workbench, reference: str, row: str | None, command: tuple[str, ...], *, warmup: int, label: str | None
) -> Commanded:
    """Run a command in an image, as ``envbuild run`` does.

    Raises:
        EngineError: The engine failed.
        GateError: There is no such image.
    """
    ref, info, env = locate(bench, reference, row)
    with store.scratch(store.home() / "runs", "command-") as folder:
        spec = command_spec(env, ref, info, command, folder, warmup=warmup)
        line = bench.engine.run_line(bench.engine.granted(spec, bench.sink))
        code = process.foreground(line)
        about = dataclasses.replace(_about(command, label), image=evidence.digest_of(info.id) or info.id, row=env.name)
        return Commanded(exit_code=code, measurement=_read(folder, about))


def command_spec(
    env: Environment, ref: str, info: ImageInfo, command: tuple[str, ...], out: Path, *, warmup: int
) -> ContainerSpec:
    """What ``envbuild run`` starts, with the hook's folders."""
    spec = run_spec(env, ref, command, folder=Path.cwd(), interactive=False)
    driver = nvml_file() if spec.gpus else None
    named = variables(
        _OUT, profiler=_PLACE, probes=_PROBES, nvml=_NVML if driver else "", warmup=warmup,
        path=dict(info.env).get("PYTHONPATH", ""),
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
    bench: Workbench, image: str | None, row: str | None, command: tuple[str, ...], *, warmup: int
) -> tuple[str, ...]:
    """The command line that would be started; the folder for what is measured is another one in every run."""
    out = store.home() / "runs" / "command-..."
    if image is None:
        env = variables(
            str(out), profiler=str(profiler_folder()), probes=str(probes_folder()), nvml=str(nvml_file() or ""),
            warmup=warmup, path=os.environ.get("PYTHONPATH", ""),
        )  # fmt: skip
        return ("env", *(f"{name}={value}" for name, value in env.items()), *command)
    ref, info, env_row = locate(bench, image, row)
    return bench.engine.run_line(command_spec(env_row, ref, info, command, out, warmup=warmup))


def _about(command: tuple[str, ...], label: str | None) -> About:
    gpus = read_gpus()
    seen = gpus if isinstance(gpus, HostGpus) else None
    hardware = Hardware(
        cpu=cpu_name(), cpus=len(os.sched_getaffinity(0)), label=label, driver=seen.driver if seen else None,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=tuple(dict.fromkeys(gpu.name for gpu in seen.gpus)) if seen else (),
    )  # fmt: skip
    return About(
        accelerator="cpu", hardware=hardware, probe=profiler_hash(), envbuild=envbuild.__version__,
        command=masked(command),
        notes=("a command was measured: a checkpoint is part of the step after it, and of losses the ranks' own",),
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
