"""Commands on measurement files: verdicts as exit codes, legal JSON, baselines that stay whole, and no tracebacks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from envbuild import store
from envbuild.profile import files
from measured import key, launch, measurement, turns

STEADY = [1.0, 1.01, 0.99, 1.005, 0.995, 1.0, 1.012, 0.99, 1.003, 0.998]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    def write(name: str, made: Any) -> None:
        store.write_json(tmp_path / name, files.document(made))

    write("base.json", measurement(*turns("base", STEADY)))
    write("same.json", measurement(*turns("candidate", STEADY[::-1]), side="candidate"))
    write("slow.json", measurement(*turns("candidate", [each * 1.21 for each in STEADY]), side="candidate"))
    write("fresh.json", measurement(launch([1.0] * 5), side="candidate"))
    write("other.json", measurement(launch([1.0]), key=key(model="7b")))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "code", "verdict"),
    [
        ("same.json", 0, "same"),
        ("slow.json", 1, "regressed"),
        ("other.json", 2, "incomparable"),
        ("fresh.json", 5, "inconclusive"),
    ],
)
def test_the_verdict_is_the_exit_code(cli: Any, place: Path, name: str, code: int, verdict: str) -> None:
    done = cli("compare", "base.json", name, "--json", cwd=place)
    assert done.code == code and done.json["schema"] == "envbuild.compare/1"
    assert done.json["comparison"]["verdict"] == verdict
    text = cli("compare", "base.json", name, cwd=place)
    assert text.code == code and text.out.startswith(f"{verdict}: ")
    if verdict == "inconclusive":
        assert "next: launch both in turns" in text.out, "what would decide is offered"
        assert "does not say what it was started with" in text.out, "and a command only where there is one"
    if verdict == "incomparable":
        assert "--differs model" in text.err


def test_few_rounds_are_legal_json_without_bounds(cli: Any, place: Path) -> None:
    for side in ("base", "candidate"):
        made = measurement(*turns(side, STEADY[:2]), side=side)
        store.write_json(place / f"few-{side}.json", files.document(made))
    done = cli("compare", "few-base.json", "few-candidate.json", "--json", cwd=place)
    assert done.code == 5 and "Infinity" not in done.out and "NaN" not in done.out
    assert done.json["comparison"]["timing"]["judgement"]["high"] is None


def test_structural_needs_no_times(cli: Any, place: Path) -> None:
    counted = {"steps": 5, "collectives": [{"op": "all_reduce", "count": 10, "bytes": 40}]}
    store.write_json(place / "one.json", files.document(measurement(launch([1.0] * 5, structure=counted))))
    store.write_json(place / "two.json", files.document(measurement(launch([9.0] * 5, structure=counted))))
    assert cli("compare", "one.json", "two.json", "--structural", cwd=place).code == 0
    nothing = cli("compare", "one.json", "fresh.json", "--structural", cwd=place)
    assert nothing.code == 5 and "lacks exact figures" in nothing.out, "what was not measured passes no gate"
    done = cli("compare", "base.json", "slow.json", "--delta", "25%", cwd=place)
    assert done.code == 0, "21 % is no matter where 25 % was asked for"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--delta", "fast"), "is no share"),
        (("--delta", "0"), "is no share"),
        (("--differs", "everything"), "there is no 'everything'"),
        (("--rounds", "5", "--dry-run"), "a comparison of files takes no --rounds, --dry-run"),
    ],
)
def test_wrong_options_are_named(cli: Any, place: Path, arguments: tuple[str, ...], said: str) -> None:
    done = cli("compare", "base.json", "same.json", *arguments, cwd=place)
    assert done.code == 2 and said in done.err


def test_another_file_is_told_with_its_place(cli: Any, place: Path) -> None:
    (place / "broken.json").write_text('{"schema": "envbuild.profile/1", "measurement": {"origin": {"kind": "log"}}}')
    for command in (("compare", "base.json", "broken.json"), ("bottleneck", "broken.json")):
        done = cli(*command, "--json", cwd=place)
        assert done.code == 2 and "measurement.launches: Field required" in done.json["message"]
    done = cli("bottleneck", "missing.json", cwd=place)
    assert done.code == 2 and "missing.json" in done.err


def test_a_baseline_lives_in_the_project(cli: Any, place: Path) -> None:
    (place / "matrix.yaml").write_text("schema: envbuild.matrix/1\nenvironments: {}\n")
    assert cli("baseline", "show", cwd=place).code == 0
    plan = cli("baseline", "add", "base.json", "--reason", "first", "--dry-run", "--json", cwd=place).json["plan"]
    assert not Path(plan["write"]).exists()
    added = cli("baseline", "add", "base.json", "--reason", "first", "--json", cwd=place)
    path = Path(added.json["baselines"][0]["file"])
    assert added.code == 0 and path.parent == place / "baselines" and str(path) == plan["write"]
    again = cli("baseline", "add", "base.json", "--reason", "again", cwd=place)
    assert again.code == 2 and "promote" in again.err
    assert cli("baseline", "promote", "slow.json", "--reason", "wanted", cwd=place).code == 0
    shown = cli("baseline", "show", "cpu-tiny", cwd=place)
    assert "first" in shown.out and "wanted" in shown.out and "1.21 s" in shown.out
    found = cli("baseline", "show", "--json", cwd=place).json["baselines"]
    assert [len(each["history"]) for each in found] == [2]
    assert cli("compare", "cpu-tiny", "same.json", "--json", cwd=place).code in (0, 5)
    assert cli("compare", str(path), "slow.json", "--json", cwd=place).json["comparison"]["undeclared"] == []
    assert cli("baseline", "promote", "other.json", "--reason", "x", cwd=place).code == 2
    assert [each.name for each in (place / "baselines").iterdir()] == [path.name]


def test_behind_an_update_a_baseline_goes_on_and_what_lies_beside_it_breaks_nothing(cli: Any, place: Path) -> None:
    (place / "matrix.yaml").write_text("schema: envbuild.matrix/1\nenvironments: {}\n")
    assert cli("baseline", "add", "base.json", "--reason", "first", cwd=place).code == 0
    (path,) = (place / "baselines").iterdir()
    store.write_json(place / "update.json", files.document(measurement(launch([1.0]), key=key("candidate", probe="2"))))
    again = cli("baseline", "add", "update.json", "--reason", "x", cwd=place)
    assert again.code == 2 and "baseline promote update.json" in again.err
    compared = cli("compare", path.stem, "update.json", "--structural", cwd=place)
    assert compared.code == 2 and "--differs probe" in compared.err, "what two probes have measured is declared"
    (place / "baselines" / "package.json").write_text("{}")
    os.mkfifo(place / "baselines" / "pipe.json")
    assert cli("baseline", "promote", "update.json", "--reason", "the next envbuild", cwd=place).code == 0
    shown = cli("baseline", "show", "--json", cwd=place)
    assert [len(each["history"]) for each in shown.json["baselines"]] == [2] and shown.json["baselines"][0][
        "file"
    ] == str(path)
    assert "warning: " in shown.err and "package.json: not a baseline" in shown.err and "pipe.json" in shown.err
    assert cli("compare", path.stem, "update.json", "--json", cwd=place).code == 5
    assert cli("baseline", "show", "package", cwd=place).code == 2
    report = cli("report", "update.json", cwd=place)
    assert report.code == 0 and "package.json: not a baseline" in report.err and "the next envbuild" not in report.err
    assert sorted(each.name for each in (place / "baselines").iterdir()) == [path.name, "package.json", "pipe.json"]


def test_the_bottleneck_is_named_with_what_to_run(cli: Any, place: Path) -> None:
    parts = {"data_wait": [0.4] * 4, "forward": [0.5] * 4}
    started = {"kind": "probe", "made": {"image": "envbuild/cpu:validated", "model": "small", "steps": 40, "ranks": 4}}
    launch = {"ranks": [{"rank": 0, "steps": {"number": [0, 1, 2, 3], "seconds": [1.0] * 4, "parts": parts}}]}
    store.write_json(place / "data.json", files.document(measurement(launch, origin=started)))
    done = cli("bottleneck", "data.json", cwd=place)
    assert done.code == 0 and "the data loader is too slow" in done.out
    again = "--model small --steps 40 --ranks 4 --data synthetic --json"
    assert f"envbuild profile envbuild/cpu:validated {again}" in done.out
    assert "data_wait: 400 ms, 40%" in done.out and "other: 100 ms, 10%" in done.out and "e+" not in done.out
    found = json.loads(cli("bottleneck", "data.json", "--target", "mine:1", "--json", cwd=place).out)
    assert found["findings"][0]["rule"] == "data" and found["findings"][0]["changes"] == []
    assert found["findings"][0]["commands"] == [f"envbuild profile mine:1 {again}"]
    assert {each["rule"] for each in found["abstained"]} >= {"communication", "memory"}


def test_experiments_that_cannot_be_run_are_refused_or_listed(cli: Any, place: Path) -> None:
    steps = {"number": [0, 1, 2, 3], "seconds": [1.0] * 4, "parts": {"data_wait": [0.4] * 4, "forward": [0.5] * 4}}
    for kind in ("log", "command"):
        made = measurement({"ranks": [{"rank": 0, "steps": steps}]}, origin={"kind": kind})
        store.write_json(place / f"{kind}.json", files.document(made))
    refused = cli("bottleneck", "log.json", "--experiment", cwd=place)
    assert refused.code == 2 and "which image" in refused.err and "--target IMAGE" in refused.err
    own = cli("bottleneck", "command.json", "--experiment", cwd=place)
    assert own.code == 0 and own.out.startswith("No experiment was run.\nnot run [data]: it is a training of your own")
    assert "\n  batches that are in memory already\n" in own.out, "nobody but the user can start it"
    plan = cli("bottleneck", "command.json", "--experiment", "--dry-run", "--json", cwd=place).json["plan"]
    assert plan["experiments"] == [] and [each["rule"] for each in plan["left"]] == ["data"]
    away = cli("bottleneck", "log.json", "--experiment", "--target", "mine:1", "--dry-run", cwd=place)
    assert away.code == 3, "no engine answers"
    for words, said in (
        (("--experiment", "--only", "luck"), "there is no rule 'luck'"),
        (("--experiment", "--only", "swap"), "that was not found"),
        (("--dry-run",), "go with --experiment"),
        (("--baselines", "x"), "--baselines has no effect without --baseline"),
    ):
        done = cli("bottleneck", "command.json", *words, cwd=place)
        assert done.code == 2 and said in done.err


def test_files_of_other_tools_become_measurements(cli: Any, tmp_path: Path) -> None:
    timers = "fwd: 100.00 | bwd: 200.00 | bwd_inner: 150.00 | bwd_allreduce: 50.00 | step: 400.00"
    rows = [f"[2024-05-01 12:00:0{n},000] [INFO] [Rank 0] time (ms) | {timers}" for n in range(5)]
    (tmp_path / "train.log").write_text("\n".join(rows))
    told = cli("profile", "--from", "train.log", "-o", "m.json", cwd=tmp_path)
    assert told.code == 0 and "forward: 100 ms, 10%" in told.out and "data_wait" in told.out
    found = cli("profile", "--from", "train.log", "--json", cwd=tmp_path).json
    assert found == json.loads((tmp_path / "m.json").read_text())
    assert "the optimizer" in cli("bottleneck", "m.json", cwd=tmp_path).out
    for arguments, said in (
        (("cpu", "--from", "train.log"), "'cpu' would be measured"),
        (("--deepspeed", "0.19.8"), "goes with --from"),
        (("--from", "m.json"), "a measurement already"),
        (("--from", "none.log"), "none.log"),
    ):
        done = cli("profile", *arguments, cwd=tmp_path)
        assert done.code == 2 and said in done.err
