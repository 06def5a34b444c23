"""The hook for pre-commit: which files it is run on, and with what."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuild.cli import COMMANDS

HOOKS = Path(__file__).parents[2] / ".pre-commit-hooks.yaml"


@pytest.fixture
def hook() -> dict[str, Any]:
    (only,) = yaml.safe_load(HOOKS.read_text(encoding="utf-8"))
    assert isinstance(only, dict)
    return only


def test_it_starts_a_command_that_there_is(hook: dict[str, Any]) -> None:
    program, command, *options = shlex.split(hook["entry"])
    assert (program, hook["language"]) == ("envbuild", "python")
    assert command in {name for names in COMMANDS.values() for name in names}
    assert options == ["--quiet"]
    assert {"id", "name", "description"} <= hook.keys()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("ds_config.json", True),
        ("conf/ds_z3_offload_config.json", True),
        ("deepspeed_zero3.json", True),
        ("train/deepspeed_configs/zero3.json", True),
        ("config.json", False),
        ("conf/tokenizer.json", False),
        ("ads_config.json", False),
        ("ds_config.yaml", False),
    ],
)
def test_it_looks_at_configurations_of_deepspeed(hook: dict[str, Any], name: str, wanted: bool) -> None:
    assert bool(re.search(hook["files"], name)) is wanted
