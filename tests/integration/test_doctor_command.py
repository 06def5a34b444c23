"""doctor on the proven image, from inside of a container: nothing to say, and the saved facts say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.engines import DockerEngine
from proving import Cli

pytestmark = pytest.mark.integration


def test_the_proven_image_is_healthy_and_so_are_its_saved_facts(
    cli: Cli, proven: dict[str, Any], engine: DockerEngine, tmp_path: Path
) -> None:
    before = {each.id for each in engine.images("*")}
    facts, page, ticket = (tmp_path / name for name in ("facts.json", "page.html", "ticket.md"))
    files = ("--save", str(facts), "--html", str(page), "--report", str(ticket))
    done = cli("doctor", "--image", "cpu", *files, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["schema"] == "envbuild.doctor/1" and told["held"] == "the row cpu"
    assert [each for each in told["findings"] if each["severity"] == "error"] == []
    assert told["problems"] == [], "everything could be looked at"
    assert told["machine"]["torch"].startswith("2.13.0+cpu") and "cpu_adam" in told["machine"]["DeepSpeed"]
    loaded = {each["name"]: each for each in told["libraries"]}
    assert loaded["libstdc++.so.6"]["path"].startswith("/usr/lib") and loaded["libstdc++.so.6"]["enough"]
    assert {each["name"] for each in told["layers"]} == {"compiler", "python", "torch", "op", "runtime"}

    again = cli("doctor", "--from", str(facts), "--row", "cpu", "--json")
    assert again.returncode == 0 and json.loads(again.stdout) == told
    same = cli("doctor", "--from", str(facts), "--row", "cpu", "--since", str(facts), "--json")
    assert json.loads(same.stdout)["changes"] == []
    assert page.read_text().startswith("<!doctype html>") and "<script" not in page.read_text()
    assert ticket.read_text().startswith("# envbuild doctor: image ")
    assert {each.id for each in engine.images("*")} == before, "nothing was made"
