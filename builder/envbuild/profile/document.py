"""The measurement document ``envbuild.profile/1``: what a training did, step by step and rank by rank.

Every reader and the profiler make this one document; every command after them reads nothing else. A figure that was not
measured is absent (null, or a key that is not there), never 0; why, is said under ``unavailable``. Times are seconds,
sizes are bytes, rates are bytes per second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, Field, model_validator

from envbuild.collector import secrets
from envbuild.model.words import Frozen, Line, Word
from envbuild.profile.figures import Bytes, Count, Finite, Number, Rank, Samples, Seconds, Seed, Several
from envbuild.profile.numbers import in_words, read_number

SCHEMA: Literal["envbuild.profile/1"] = "envbuild.profile/1"

Pass = Literal["timing", "comms", "trace", "parity"]
Origin = Literal["probe", "command", "log", "comms-log", "trace", "nsys"]
# A ds_config may hold what JSON has no word for: ``1e999``, and what DeepSpeed made of it. Others read this document:
# there are no monitors and no secrets in it, whoever wrote the file.
Config = Annotated[dict[str, Any], AfterValidator(in_words), AfterValidator(secrets.config)]


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of a resolved ds_config: equal settings are equal hashes."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Unavailable(Frozen):
    """A figure that there is not, and why.

    Attributes:
        figure: As in the document, such as ``gpu_percent`` or ``collectives.seconds``.
        rank: The rank it is of; None is every one.
    """

    figure: Word
    reason: Line
    rank: Count | None = None


class Hardware(Frozen):
    """What it ran on, without anybody's name.

    Attributes:
        label: What a team calls this machine or kind of machine, so that look-alikes can be told apart.
        gpus: Model of each GPU that was used on one node.
        cpus: CPUs that the processes could use.
    """

    cpu: Line | None = None
    cpus: Count | None = None
    memory_bytes: Bytes | None = None
    gpus: tuple[Line, ...] = ()
    driver: Line | None = None
    label: Line | None = None


class Key(Frozen):
    """What a measurement is of: two with equal keys may be compared, others where the difference is declared.

    Attributes:
        image: Config digest of the image; None for a run outside one.
        config: SHA-256 of the resolved ds_config.
        probe: Version of the program that measured; None where a log was read.
        row: The row of the matrix.
    """

    image: Line | None = None
    config: Line | None = None
    model: Line | None = None
    probe: Line | None = None
    hardware: Hardware = Hardware()
    world_size: Several | None = None
    nodes: Several | None = None
    deepspeed: Line | None = None
    torch: Line | None = None
    nccl: Line | None = None
    accelerator: Literal["cpu", "cuda"] | None = None
    row: Line | None = None


class Communication(Frozen):
    """How the ranks talk.

    Attributes:
        backend: ``nccl``, ``gloo``, ...
        startup_seconds: From creating the process group to the end of the first collective, on the slowest rank.
        import_seconds: Before that: importing torch and DeepSpeed, on the slowest rank.
        transports: What NCCL says that it uses, such as ``NET/IB`` or ``P2P/CUMEM``.
    """

    backend: Word | None = None
    startup_seconds: Seconds | None = None
    import_seconds: Seconds | None = None
    transports: tuple[Line, ...] = ()


class StructuralCollective(Frozen):
    """How often and how much, of all ranks and counted steps together: no clock is in it."""

    op: Word
    count: Count
    bytes: Bytes | None = None


class Parity(Frozen):
    """The step against plain torch, and whether that is close enough."""

    precision: Literal["fp32", "bf16", "fp16"]
    passed: bool
    gradient_error: Number | None = None
    gradient_ratio: Number | None = None
    parameter_error: Number | None = None
    loss_error: Number | None = None

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: read_number(each) if isinstance(each, str) else each for name, each in value.items()}
        return value


class Structure(Frozen):
    """Figures without noise: the same inputs give the same ones on every machine.

    Attributes:
        steps: How many steps the collectives were counted over.
        host_tensor_bytes: Of weights, gradients and optimizer state in host memory, all ranks.
        checkpoint_bytes: Of the tensors in a checkpoint.
        devices: Where what lives, such as ``{"parameters": "cpu", "optimizer_class": "DeepSpeedCPUAdam"}``.
    """

    steps: Several | None = None
    collectives: tuple[StructuralCollective, ...] = ()
    parameters: Several | None = None
    host_tensor_bytes: Bytes | None = None
    checkpoint_bytes: Bytes | None = None
    parity: tuple[Parity, ...] = ()
    devices: dict[Word, Line] = Field(default_factory=dict)


class Turn(Frozen):
    """Where a launch stood in a comparison that launched two sides in turns.

    Attributes:
        session: The same in both documents.
        position: In the order of all launches of the session: 0, 1, 2, ...; positions 2n and 2n + 1 are round n.
    """

    session: Word
    position: Count


class Node(Frozen):
    """A host that ranks ran on, where a cluster chose it.

    Attributes:
        name: What the cluster calls it.
        clock_ahead: Seconds that its clock was ahead of the first node's; its times were moved by that, so that all of
            a launch is on the first node's axis.
        clock_error: By how much that may be wrong.
    """

    name: Line
    clock_ahead: Finite | None = None
    clock_error: Seconds | None = None


class Launch(Frozen):
    """One start of the training, from its first process to its last.

    Attributes:
        nodes: The hosts, where they are known; ``node`` of a rank and of a series is a place in it.
        seconds: Of the whole pass: making the engine, its steps, and closing it.
        outside: Of the run's time, what belongs to none of its passes: starting the container and the processes,
            importing, coming together, ending.
        warmup: How many of each rank's first steps are not to be counted.
        interval: Steps between two checkpoints; None where none is made.
        samples_per_step, tokens_per_step: Of all ranks together.
    """

    pass_: Pass = Field("timing", alias="pass")
    started: AwareDatetime | None = None
    turn: Turn | None = None
    seconds: Seconds | None = None
    outside: Seconds | None = None
    seed: Seed | None = None
    warmup: Count = 0
    interval: Several | None = None
    samples_per_step: Count | None = None
    tokens_per_step: Count | None = None
    nodes: tuple[Node, ...] = ()
    ranks: tuple[Rank, ...] = ()
    samples: Samples = Samples()
    communication: Communication = Communication()
    structure: Structure = Structure()
    unavailable: tuple[Unavailable, ...] = ()

    @model_validator(mode="after")
    def _once(self) -> Launch:
        numbers = [rank.rank for rank in self.ranks]
        if len(set(numbers)) != len(numbers):
            raise ValueError("a rank is there twice")
        return self


class Delay(Frozen):
    """A wait that was asked for, and the one rank that waits; None is every one."""

    milliseconds: Annotated[float, Field(ge=0, le=1e9)]
    rank: Count | None = None


class Made(Frozen):
    """With what the training was started, so that it can be started again.

    Attributes:
        image, python: Name of the image, or the interpreter that it ran under without one.
        ds_config: What DeepSpeed was given; ``Measurement.config`` is what it made of that.
        env: ``NAME=VALUE`` of the ranks; of a variable that is none of the tools' own the value is ``***``.
        disk: Folder of the host for checkpoints and swapped states.
        timeout: Limit of a launch, in seconds.
    """

    image: Line | None = None
    python: Line | None = None
    model: Word = "tiny"
    length: Several | None = None
    steps: Several = 20
    warmup: Count = 5
    seed: Seed = 1
    ds_config: Config | None = None
    env: tuple[Line, ...] = ()
    slow_data: Delay | None = None
    straggle: Delay | None = None
    checkpoint_every: Several | None = None
    ranks: Several | None = None
    threads: Several | None = None
    gpus: tuple[Line, ...] = ()
    disk: Line | None = None
    timeout: Seconds | None = None


class Origins(Frozen):
    """Where it comes from.

    Attributes:
        files: Names of the files that were read, without their folders.
        command: The command that was measured, masked.
        made: How the training was started; None where it was not envbuild's own.
    """

    kind: Origin
    envbuild: Line | None = None
    files: tuple[Line, ...] = ()
    command: Line | None = None
    made: Made | None = None


class Measurement(Frozen):
    """What one image, or one run, did: a key, and one or more launches.

    Attributes:
        config: The resolved ds_config, without its monitors and what looks like a secret.
        notes: What a reader should know, such as a correction that was made.
    """

    key: Key = Key()
    origin: Origins
    config: Config | None = None
    launches: Annotated[tuple[Launch, ...], Field(min_length=1)]
    notes: tuple[Line, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _hashed(cls, value: Any) -> Any:
        """Of a file that was written with monitors the key follows, or it would be another one's than today's."""
        config, key = (value.get(name) if isinstance(value, dict) else None for name in ("config", "key"))
        if isinstance(config, dict) and isinstance(key, dict) and key.get("config") == config_hash(config):
            return {**value, "key": {**key, "config": config_hash(secrets.config(in_words(config)))}}
        return value


class Document(Frozen):
    """The file, and what ``envbuild profile --json`` prints."""

    schema_: Literal["envbuild.profile/1"] = Field(SCHEMA, alias="schema")
    measurement: Measurement
