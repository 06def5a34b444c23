"""The oracle of lint: DeepSpeed itself, in the cpu image, does what lint says it does.

Every configuration of tests/lintbook that lint calls an error is handed to DeepSpeed: it is rejected, with the words
that the case names, or runs and ignores what was asked for. And for every key of the schema, with good and bad values:
what DeepSpeed rejects when it reads a configuration, lint rejects, too.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envbuild import dsschema
from envbuild.dsconfig.context import Context
from envbuild.dsconfig.document import parse
from envbuild.dsconfig.linting import lint
from envbuild.dsconfig.rules import RULES
from envbuild.engines import DockerEngine
from lintbook import BROKEN, FILES, IGNORED, KEPT, REJECTED, UNSEEN

HERE = Path(__file__).parent
RELEASE = "0.19.8"
SEEN = {f"{index} {case.rule}": case for index, case in enumerate(BROKEN) if case.does in (REJECTED, IGNORED)}
# A rule of the schema that never finds an error. (Those of memory are tried on shapes alone.)
LIGHTER = {"schema.deprecated"}
# One of each kind of value that a file can hold.
VALUES: tuple[Any, ...] = (
    True, False, None, 0, 1, -1, 2.5, 1e9, "", "x", "8", "true", "auto", [], [1], ["x"], {}, {"x": 1}
)  # fmt: skip
# What DeepSpeed refuses and lint does not: sections that few files have, and values that nobody writes there.
UNSAID = {
    "aio.use_gds": "on CPUs only, which lint is not told of here",
    "autotuning": "its own program reads it",
    "checkpoint.writer": "its own words and objects",
    "data_efficiency.data_sampling": "auto, and texts for numbers",
    "expert_parallel.load_balance_coeff": "every value is refused in that release",
    "tensor_parallel.dtype": "no JSON value is a torch.dtype",
    "compile.passes": "items of the list",
    "data_types.keep_in_fp32_modules": "a text but auto",
    "torch_autocast.lower_precision_safe_modules": "items of the list",
    "vocabulary_size": "auto, and lists",
    "zero_optimization.leaf_module": "its own objects and lists",
    "zero_optimization.zenflow": "its own words, and texts for numbers",
    "flops_profiler.enabled": "null", "wall_clock_breakdown": "null",
    # false for a number above 0, and null
    "train_": "", "gradient_accumulation_steps": "",
}  # fmt: skip


@dataclass(frozen=True)
class Told:
    """What DeepSpeed told of every configuration."""

    fp16: bool
    answers: Mapping[str, Mapping[str, Any]]


def swept() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every key of the release's schema with every kind of value, alone in an otherwise good configuration."""
    for path, section in dsschema.for_version(RELEASE).sections():
        for key in section:
            where = f"{path}.{key.name}" if path else key.name
            for index, value in enumerate(VALUES):
                config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}
                inner = config
                for word in where.split(".")[:-1]:
                    inner = inner.setdefault(word, {})
                inner[key.name] = value
                yield f"sweep {where} {index}", config


def kept() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Configurations without an error, as plain DeepSpeed on one process would read them."""
    for index, (rule, config, about) in enumerate(KEPT):
        if not about and "autotuning" not in config and not errors(config):
            yield f"kept {index} {rule}", config
    for kind, (launcher, config) in FILES.items():
        if launcher == "deepspeed":
            yield f"file {kind}", config


def errors(config: Mapping[str, Any]) -> list[str]:
    """What lint calls an error, on one process of the image's DeepSpeed."""
    found = lint(parse(json.dumps(config)), Context(deepspeed=RELEASE, gpus=1))
    return [each.rule for each in found if each.severity.value == "error"]


@pytest.fixture(scope="module")
def told(docker: DockerEngine, proven: dict[str, object]) -> Told:
    """One container answers for all of them."""
    asked = [
        {"name": name, "config": case.config, "how": case.how, "look": case.seen, "ranks": case.ranks}
        for name, case in SEEN.items()
    ]
    asked += [
        {"name": name, "config": config, "how": "parse", "look": "", "ranks": 1} for name, config in (*swept(), *kept())
    ]
    command = [
        docker.any_client(), "--host", docker.endpoint, "run", "--rm", "-i", "--network", "none", "--shm-size", "1g",
        "-v", f"{HERE / 'lint_oracle.py'}:/lint_oracle.py:ro", str(proven["id"]), "python", "-I", "/lint_oracle.py",
    ]  # fmt: skip
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    return Told(fp16=said["fp16"], answers=said["answers"])


@pytest.mark.parametrize("name", SEEN)
def test_deepspeed_does_what_lint_says(told: Told, name: str) -> None:
    case, answer = SEEN[name], told.answers[name]
    if case.rule == "precision.fp16-cpu" and told.fp16:
        assert answer["ended"] == "", "this CPU computes fp16"
        return
    if case.does == REJECTED:
        assert answer["ended"], "DeepSpeed took it"
        assert case.seen in answer["ended"]
    else:
        assert answer == {"ended": "", "saw": True}


def test_what_lint_leaves_alone_is_read(told: Told) -> None:
    refused = {name: told.answers[name]["ended"] for name, _ in kept() if told.answers[name]["ended"]}
    assert refused == {}


def test_what_deepspeed_rejects_lint_rejects(told: Told) -> None:
    missed = {
        name: told.answers[name]["ended"][:200]
        for name, config in swept()
        if told.answers[name]["ended"] and not errors(config) and not name.split()[1].startswith(tuple(UNSAID))
    }
    assert missed == {}


def test_every_rule_with_an_error_was_seen_or_says_why_not() -> None:
    shown = {case.rule for case in BROKEN}
    assert {rule.id for rule in RULES if not rule.id.startswith("memory.")} - shown <= LIGHTER
    assert all(case.seen for case in BROKEN if case.does == UNSEEN)
