"""Measure a training in an image, or under an interpreter of this host."""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import envbuild
from envbuild import evidence, process, store
from envbuild.engines import ContainerSpec, ImageInfo, Mount, Run
from envbuild.errors import GateError, InputError
from envbuild.events import Note, Sink, StepLine
from envbuild.judge.outcome import Outcome
from envbuild.judge.suite import probes_folder
from envbuild.model import Environment
from envbuild.pipeline.causes import of_training
from envbuild.pipeline.gates import ALL, NONE, Decision, Surroundings, decide
from envbuild.pipeline.gpus import HostGpus
from envbuild.pipeline.gpus import read as read_gpus
from envbuild.pipeline.host import cpu_name
from envbuild.pipeline.interpreter import find_interpreter
from envbuild.pipeline.locate import locate
from envbuild.pipeline.measured import About, measurement_of, of_kind, read_lines
from envbuild.pipeline.prepare import FindingsError, errors
from envbuild.pipeline.profile_made import made_of
from envbuild.pipeline.profile_told import Told
from envbuild.pipeline.profile_wish import (
    MODELS,
    Wish,
    argv_of,
    nvml_file,
    profiler_folder,
    profiler_hash,
    told,
    values_of,
)
from envbuild.pipeline.runs import running
from envbuild.pipeline.smoking import outcome_of, smoke_spec
from envbuild.pipeline.training_config import TrainingConfig, training_config
from envbuild.pipeline.turns import training
from envbuild.pipeline.workbench import Workbench
from envbuild.profile.document import Hardware, Measurement

_PYTHON = "/opt/venv/bin/python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An image that is measured."""

    ref: str
    info: ImageInfo
    env: Environment
    decision: Decision
    config: TrainingConfig


def subject(bench: Workbench, reference: str, row: str | None, wish: Wish) -> Subject:
    """The image that is meant, and what it would train on here.

    Raises:
        InputError: No such row, or a ds_config that cannot be used.
        GateError: There is no such image, or its GPUs cannot be used (exit 5).
    """
    ref, info, env = locate(bench, reference, row)
    host = read_gpus() if env.accelerator == "cuda" and bench.engine.local and wish.gpus != NONE else None
    around = Surroundings(host=host, image_env=dict(info.env), compat=True, engine=bench.engine.endpoint)
    decision = decide(env, bench.facts, around, wish.gpus)
    if errors(decision.findings) or decision.device is None:
        raise FindingsError(f"{ref} cannot be measured here", decision.findings, exit_code=5)
    accelerator = decision.device.accelerator
    config = training_config(
        wish.ds_config, accelerator=accelerator, settings=wish.settings, micro_batch=wish.micro_batch,
        disk="/run/disk" if wish.disk else None,
    )  # fmt: skip
    return Subject(ref=ref, info=info, env=env, decision=decision, config=config)


def image_spec(subject: Subject, wish: Wish, run: Run) -> ContainerSpec:
    """The container that measures: the proof's own limits, with the profiler beside the probes."""
    device = subject.decision.device
    assert device is not None
    place, nvml = f"/run/{run.id}-profiler", f"/run/{run.id}-pynvml.py"
    driver = nvml_file() if device.accelerator == "cuda" else None
    argv = argv_of(
        wish, subject.config, device.accelerator, device.ranks, python=_PYTHON, place=place, probes=f"/run/{run.id}",
        nvml=nvml if driver else "",
    )  # fmt: skip
    spec = smoke_spec(subject.env, subject.info.id, argv, run, gpus=device.gpus)
    mounts = [*spec.mounts, Mount(source=profiler_folder(), target=place, read_only=True)]
    env = dict(spec.env)
    user = spec.user
    if driver:
        mounts.append(Mount(source=driver, target=nvml, read_only=True))
    if wish.disk:
        mounts.append(Mount(source=wish.disk, target="/run/disk", read_only=False))
        # What it leaves there when it is killed is the user's own to remove.
        env["TMPDIR"], user = "/run/disk", f"{os.getuid()}:{os.getgid()}"
    return dataclasses.replace(spec, mounts=tuple(mounts), env=tuple(env.items()), user=user, private=values_of(wish))


def foreseen(bench: Workbench, subject: Subject, wish: Wish) -> tuple[str, ...]:
    """The command line that starts just that container; its name of this run is another one in every run."""
    spec = image_spec(subject, wish, Run(store.home() / "runs", bench.cache / "contexts", bench.engine.endpoint))
    return told(bench.engine.run_line(spec))


def profile_image(bench: Workbench, subject: Subject, wish: Wish) -> Measurement:
    """Measure a training in an image.

    Raises:
        EngineError: The engine failed.
        GateError: The training did not come to its end; the message says which rank, and its last words (exit 5).
    """
    device = subject.decision.device
    assert device is not None
    if wish.disk and not wish.disk.is_dir():
        raise InputError(f"--disk {wish.disk}: there is no such folder")
    with running(bench) as run, training(bench, device):
        spec = image_spec(subject, wish, run)
        with Told(bench.sink, f"{subject.ref}: {wish.model}, {', '.join(wish.passes)}") as sink:
            result = bench.engine.run(spec, timeout=wish.timeout, sink=sink)
    about = _about(wish, subject.config, device.accelerator, hardware_of(bench, subject, wish.label))
    about = dataclasses.replace(
        about, image=evidence.digest_of(subject.info.id) or subject.info.id, row=subject.env.name,
        made=made_of(wish, subject.config.values, image=subject.ref),
    )  # fmt: skip
    outcome = outcome_of(subject.env, result)
    return measurement(bench, subject.ref, outcome, read_lines(outcome.stdout), about)


def hardware_of(bench: Workbench, subject: Subject, label: str | None) -> Hardware:
    """What an image is measured on here."""
    host = bench.engine.info()
    return Hardware(
        cpu=cpu_name() if bench.engine.local else None, cpus=host.cpus, memory_bytes=host.memory_bytes,
        gpus=tuple(dict.fromkeys(str(gpu["name"]) for gpu in subject.decision.gpus)),
        driver=subject.decision.driver, label=label,
    )  # fmt: skip


def profile_python(bench: Workbench, python: str, accelerator: str | None, wish: Wish) -> Measurement:
    """Measure a training under an interpreter of this host.

    Raises:
        InputError: That is no Python.
        GateError: The training did not come to its end (exit 5).
    """
    argv, config, device = python_argv(python, accelerator, wish)
    with Told(bench.sink, f"{argv[0]}: {wish.model}, {', '.join(wish.passes)}") as heard:
        outcome = _streamed(argv, wish, heard)
    host = read_gpus() if device == "cuda" else None
    seen = host if isinstance(host, HostGpus) else None
    hardware = Hardware(
        cpu=cpu_name(), cpus=len(os.sched_getaffinity(0)), label=wish.label, driver=seen.driver if seen else None,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=tuple(dict.fromkeys(gpu.name for gpu in seen.gpus)) if seen else (),
    )  # fmt: skip
    about = dataclasses.replace(
        _about(wish, config, device, hardware), made=made_of(wish, config.values, python=argv[0])
    )
    return measurement(bench, argv[0], outcome, read_lines(outcome.stdout), about)


def python_argv(python: str, accelerator: str | None, wish: Wish) -> tuple[tuple[str, ...], TrainingConfig, str]:
    """What measures under an interpreter: its command line, the ds_config, and what it trains on."""
    interpreter = find_interpreter(python)
    if wish.gpus not in (ALL, NONE):
        raise InputError(
            "--gpus: an interpreter trains on the GPUs that it sees",
            hint="Say which: CUDA_VISIBLE_DEVICES=0,1 envbuild profile --python ...; none of them: --gpus none.",
        )
    if wish.disk and not wish.disk.is_dir():
        raise InputError(f"--disk {wish.disk}: there is no such folder")
    device = accelerator or ("cuda" if isinstance(read_gpus(), HostGpus) and wish.gpus != NONE else "cpu")
    config = training_config(
        wish.ds_config, accelerator=device, settings=wish.settings, micro_batch=wish.micro_batch,
        disk=str(wish.disk.absolute()) if wish.disk else None,
    )  # fmt: skip
    argv = argv_of(
        wish, config, device, 0 if device == "cuda" else 2, python=str(interpreter), place=str(profiler_folder()),
        probes=str(probes_folder()), nvml=str(nvml_file() or "") if device == "cuda" else "",
    )  # fmt: skip
    return argv, config, device


def _streamed(argv: tuple[str, ...], wish: Wish, heard: Sink) -> Outcome:
    """Run the profiler on this host, and tell what it says on the way. Its documents begin with a brace."""
    began = time.monotonic()
    lines: list[str] = []
    said: list[str] = []

    def on_line(line: str) -> None:
        if line.startswith("{"):
            lines.append(line)
        else:
            said.append(line)
            heard(StepLine(key="profiler", text=line))

    code, late = 137, False
    with tempfile.TemporaryDirectory(prefix="envbuild-host-") as scratch:
        # The user's own compiled extensions are neither used nor touched.
        env = {"TORCH_EXTENSIONS_DIR": f"{scratch}/extensions", **dict(values_of(wish))}
        if wish.disk:
            env["TMPDIR"] = str(wish.disk.absolute())
        try:
            code = process.stream(argv, on_line=on_line, env=env, cwd=Path(scratch), timeout=wish.timeout)
        except process.TimedOut:
            late = True
    code = code if code >= 0 else 128 - code
    return Outcome(exit_code=code, stdout="\n".join(lines), stderr="\n".join(said), oom_killed=False, timed_out=late,
                   seconds=time.monotonic() - began)  # fmt: skip


def _about(wish: Wish, config: TrainingConfig, accelerator: str, hardware: Hardware) -> About:
    tokens = wish.length or MODELS[wish.model]
    return About(
        accelerator=accelerator, hardware=hardware, probe=profiler_hash(), envbuild=envbuild.__version__,
        model=f"{wish.model}, {tokens} tokens", tokens=tokens, seed=wish.seed, interval=wish.checkpoint_every,
        micro_batch=config.values["train_micro_batch_size_per_gpu"],
        accumulation=config.values["gradient_accumulation_steps"], notes=config.notes,
    )  # fmt: skip


def measurement(
    bench: Workbench, name: str, outcome: Outcome, lines: list[dict[str, Any]], about: About
) -> Measurement:  # fmt: skip
    """What the profiler's lines come to.

    Raises:
        GateError: The training did not come to its end; the message says which rank, and its last words (exit 5).
    """
    end = next(iter(of_kind(lines, "end")), None)
    if outcome.exit_code == 0 and end is not None and not outcome.timed_out:
        return measurement_of(lines, dataclasses.replace(about, seconds=outcome.seconds))
    error = GateError(_failure(name, outcome, end, lines), hint=_hint(outcome, end))
    error.causes = of_training(bench, end or {}, ())
    raise error


def _failure(name: str, outcome: Outcome, end: Any, lines: Iterable[Any]) -> str:
    if outcome.oom_killed:
        return f"{name}: the kernel ended the training for memory"
    if outcome.timed_out or (end and end.get("timed_out")):
        places = ", ".join(f"rank {rank['rank']} in {rank['phase']}" for rank in (end or {}).get("ranks") or ())
        return f"{name}: the training did not end in time" + (f" ({places})" if places else "")
    if end is None:
        last = [line.strip() for line in outcome.stderr.splitlines() if line.strip()][-3:]
        return f"{name}: the profiler ended with exit code {outcome.exit_code}" + "".join(
            f"\n  {line}" for line in last
        )
    said = [f"rank {line['rank']}: {line['error']}" for line in of_kind(lines, "error")]
    died = [
        f"rank {rank['rank']} ended with {rank['signal_name'] or rank['exit_code']} in {rank['phase']}"
        for rank in end.get("ranks") or ()
        if rank["exit_code"] != 0 and not rank["ended_by_launcher"]
    ]
    why = end.get("error") or "; ".join(dict.fromkeys(said or died)) or "a rank did not come to its end"
    return f"{name}: the training failed: {' '.join(why.split())[:600]}"


def _hint(outcome: Outcome, end: Any) -> str:
    if outcome.timed_out or (end and end.get("timed_out")):
        return "Allow more with --timeout, or measure less: --steps, a smaller --model."
    if outcome.oom_killed:
        return "Take a smaller --model, fewer --ranks, or offload to a disk."
    return "Does the image train at all? envbuild smoke ENV. What a ds_config may say: envbuild lint FILE."


def keep(measurement: Measurement, name: str, out: Path | None) -> Path:
    """Write a measurement, whole or not at all; returns where.

    Raises:
        EngineError: It cannot be written.
    """
    from envbuild.profile import files

    text = store.encode_json(files.document(measurement))
    if out is not None:
        store.write_where_asked(out, text)
        return out
    started = cast("datetime.datetime", measurement.launches[0].started)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")[-80:]
    path = store.home() / "measurements" / f"{plain}-{started:%Y%m%dT%H%M%S}.json"
    store.write_atomic(path, text)
    return path


def notes(bench: Workbench, config: TrainingConfig) -> None:
    """Say what was changed in the user's ds_config."""
    for note in config.notes:
        bench.sink(Note(message=note))
