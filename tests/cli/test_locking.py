"""`lock` and `render` over many rows, where no index has anything and no registry answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def nothing(tmp_path: Path) -> dict[str, str]:
    """A site whose only index is empty, and whose proxy lets nothing through."""
    (tmp_path / "empty").mkdir()
    return {
        "ENVBUILD_PIP_INDEX": (tmp_path / "empty").as_uri(),
        "ENVBUILD_PIP_EXTRA_INDEX": "",
        "ENVBUILD_PIP_FIND_LINKS": "",
        "ENVBUILD_NETWORK_HTTPS_PROXY": "http://127.0.0.1:1",
        "ENVBUILD_NETWORK_HTTP_PROXY": "http://127.0.0.1:1",
    }


def test_one_row_that_fails_stops_no_other(cli: Any, project: Path, nothing: dict[str, str]) -> None:
    before = (project / "images/cpu/lock.json").read_bytes()
    done = cli("lock", "cpu", "h100-cu121", "--allow-unresolved", **nothing)
    assert done.code == 2, done.err
    path = project / "images/h100-cu121/lock.json"
    assert done.out.splitlines()[:2] == ["cpu: failed", f"{path}: unresolved"]
    assert "the lock that is there still fits the row, and was kept" in done.err
    assert "2 rows: 1 failed, 1 unresolved" in done.err
    assert (project / "images/cpu/lock.json").read_bytes() == before
    made = json.loads(path.read_text())
    assert made["status"] == "unresolved" and made["packages"] == [] and made["base"]["digest"] is None
    assert any(line.startswith("torch===2.2.0: ") for line in made["missing"])
    assert "127.0.0.1" not in path.read_text() and "file:" not in path.read_text(), "nothing of the site"

    # What it is good for: the Dockerfile, and to be named; not a build context.
    printed = cli("render", "h100-cu121")
    assert printed.code == 0 and printed.out.startswith("# Rendered by envbuild") and "unresolved" in printed.err
    said = cli("render", "h100-cu121", "--json").json["plan"]
    assert said["target_id"] is None and said["files"] == {"Dockerfile": printed.out}
    refused = cli("render", "h100-cu121", "-o", str(project / "out"))
    assert refused.code == 1 and "torch===2.2.0" in refused.err and not (project / "out").exists()
    checked = cli("check", "h100-cu121", "--json").json["findings"]
    assert [finding["severity"] for finding in checked if finding["rule"] == "lock"] == ["info"]
    assert cli("lock", "h100-cu121", "--check", **nothing).code == 0, "it is as it would be made"
    built = cli("build", "h100-cu121", "--dry-run")
    assert built.code == 0 and "resolve the wheels" in built.out


def test_without_leave_nothing_is_written(cli: Any, project: Path, nothing: dict[str, str]) -> None:
    done = cli("lock", "h100-cu121", "--json", **nothing)
    assert done.code == 2
    assert done.json["code"] == "input" and "torch===2.2.0" in done.json["message"]
    assert not (project / "images/h100-cu121").exists()
    several = cli("lock", "h100-cu121", "h100-cu124", "--json", "-q", **nothing)
    assert several.code == 2
    assert [(each["status"], each["error"]["exit_code"]) for each in several.json["locks"]] == [("failed", 2)] * 2


def test_lock_check_names_what_has_to_be_made_anew(cli: Any, project: Path) -> None:
    assert cli("lock", "cpu", "h200-cu130", "--check").code == 0
    path = project / "images/h200-cu130/lock.json"
    path.write_text(path.read_text().replace('"version": "0.19.8"', '"version": "0.19.7"'))
    done = cli("lock", "--check", "--json")
    assert done.code == 1
    found = {finding["subject"]: finding for finding in done.json["findings"]}
    assert "has changed since envbuild wrote it" in found["h200-cu130"]["message"]
    assert found["b200-cu132"]["message"] == "there is no lock" and "cpu" not in found


def test_render_keeps_images_up_to_date(cli: Any, project: Path) -> None:
    done = cli("render", "cpu", "--check")
    assert done.code == 1 and "envbuild render cpu --write" in done.out
    written = cli("render", "cpu", "h200-cu130", "--write")
    paths = [project / "images" / row / "Dockerfile" for row in ("cpu", "h200-cu130")]
    assert (written.code, written.out.splitlines()) == (0, [str(path) for path in paths])
    assert paths[0].read_text() == cli("render", "cpu").out
    assert cli("render", "cpu", "h200-cu130", "--check").code == 0
    paths[1].write_text(paths[1].read_text().replace("WORKDIR", "USER root\nWORKDIR"))
    (found,) = cli("render", "cpu", "h200-cu130", "--check", "--json").json["findings"]
    assert (found["rule"], found["subject"], found["file"]) == ("render", "h200-cu130", str(paths[1]))
    assert "WORKDIR /home/envbuild" in found["message"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lock"], "name a row, or say --all"),
        (["lock", "cpu", "--all"], "name rows, or say --all"),
        (["render"], "name a row, or say --all"),
        (["render", "--all"], "one row is printed"),
        (["render", "cpu", "h200-cu130", "-o", "x"], "one row is printed"),
        (["render", "--write"], "name a row, or say --all"),
        (["render", "--check", "--write"], "choose one of"),
        (["lock", "cpu", "zzz"], "no environment 'zzz'"),
        (["render", "zzz", "--check"], "no environment 'zzz'"),
    ],
    ids=" ".join,
)
def test_what_is_meant_has_to_be_said(arguments: list[str], said: str, cli: Any, project: Path) -> None:
    before = sorted(project.rglob("*"))
    done = cli(*arguments)
    assert done.code == 2 and said in done.err and done.out == ""
    assert sorted(project.rglob("*")) == before


def test_the_packaged_rows_are_checked_and_not_rewritten(cli: Any, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    assert cli("render", "cpu", "--check", cwd=away).code == 0
    refused = cli("render", "cpu", "--write", cwd=away)
    assert refused.code == 2 and "read-only" in refused.err
    assert cli("lock", "cpu", "--check", cwd=away).code == 0
