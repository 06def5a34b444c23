"""The measurement document: what it takes, what it refuses and where, and that its file says nothing that is not so."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from envbuild import store
from envbuild.errors import InputError
from envbuild.profile import files, schema

CHECKED_IN = Path(__file__).parents[2] / "docs" / "measurement.schema.json"
STALE = (
    "docs/measurement.schema.json is stale; regenerate it with:\n  python -c 'from pathlib import Path; "
    'from envbuild.profile.schema import dumps; Path("docs/measurement.schema.json").write_text(dumps())\''
)


def body(**launch: Any) -> dict[str, Any]:
    steps = {"number": [0, 1], "seconds": [0.5, None], "loss": [1.5, "nan"], "parts": {"forward": [0.1, None]}}
    ranks = [{"rank": 0, "steps": steps}]
    measured = {"origin": {"kind": "probe"}, "launches": [{"ranks": ranks, **launch}]}
    return {"schema": "envbuild.profile/1", "measurement": measured}


def written(folder: Path, document: Any) -> Path:
    path = folder / "m.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_the_schema_is_the_one_that_is_checked_in() -> None:
    assert CHECKED_IN.read_text() == schema.dumps(), STALE


def test_a_document_survives_its_file_and_absent_figures_stay_absent(tmp_path: Path) -> None:
    from jsonschema import Draft202012Validator

    measured = files.read(written(tmp_path, body()))
    again = files.document(measured)
    Draft202012Validator(schema.json_schema()).validate(again)
    assert math.isnan(measured.launches[0].ranks[0].steps.loss[1] or 0)
    path = written(tmp_path, store.encode_json(again))
    assert files.document(files.read(path)) == again
    rank = again["measurement"]["launches"][0]["ranks"][0]
    assert rank["steps"]["seconds"] == [0.5, None]
    assert "memory" not in rank and "collectives" not in rank, "what was not measured is absent, not empty or 0"


def test_an_empty_object_of_the_configuration_is_kept(tmp_path: Path) -> None:
    document = body()
    document["measurement"]["config"] = {"zero_optimization": {}, "flags": [], "x": None}
    measured = files.read(written(tmp_path, document))
    assert files.document(measured)["measurement"]["config"] == document["measurement"]["config"]


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ({"pace": 1}, "launches.0.pace: Extra inputs are not permitted"),
        ({"ranks": [{"rank": 0}, {"rank": 0}]}, "a rank is there twice"),
        ({"ranks": [{"rank": 0, "steps": {"number": [0], "seconds": [1.0, 2.0]}}]}, "seconds has 2 values for 1 steps"),
        ({"ranks": [{"rank": 0, "steps": {"number": [0], "seconds": [-1]}}]}, "steps.seconds.0"),
        ({"ranks": [{"rank": 0, "steps": {"number": [0], "seconds": [1e308]}}]}, "steps.seconds.0"),
        ({"ranks": [{"rank": 0, "steps": {"number": [0], "loss": [-1e308]}}]}, "no loss or error is beyond"),
        ({"ranks": [{"rank": 0, "memory": {"host_peak_bytes": 10**400}}]}, "host_peak_bytes"),
        ({"ranks": [{"rank": 0, "steps": {"number": [0], "parts": {"sleep": [1]}}}]}, "parts.sleep"),
        ({"ranks": [{"rank": 0, "collectives": [{"op": "all_reduce", "count": 1, "seconds": 1}]}]}, "belong together"),
        ({"samples": {"at": [0.0], "series": [{"kind": "cpu_percent", "values": []}]}}, "0 values for 1 times"),
    ],
)
def test_what_it_cannot_be_is_refused_with_its_place(tmp_path: Path, launch: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match="not a measurement") as refused:
        files.read(written(tmp_path, body(**launch)))
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not valid JSON"),
        ("[rank 0] time (ms) | fwd: 1.00", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"schema": "envbuild.profile/2"}', "schema"),
        (json.dumps(body()).replace("0.5", "Infinity"), "launches.0.ranks.0.steps.seconds.0"),
    ],
)
def test_another_file_is_an_error_of_the_user(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        files.read(written(tmp_path, text))
    assert said in refused.value.message and refused.value.hint


def test_no_file_no_folder_no_fifo(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "fifo")
    for name in ("missing", ".", "fifo"):
        with pytest.raises(InputError):
            files.read(tmp_path / name)
