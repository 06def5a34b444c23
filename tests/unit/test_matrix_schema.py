"""The checked-in JSON Schema is the generated one, and says the same as the loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest
import yaml

from envbuild.matrix.schema import dumps, json_schema

REPOSITORY = Path(__file__).parents[2]
CHECKED_IN = REPOSITORY / "docs" / "matrix.schema.json"
REGENERATE = (
    "docs/matrix.schema.json is stale; regenerate it with:\n  python -c 'from pathlib import Path; "
    'from envbuild.matrix.schema import dumps; Path("docs/matrix.schema.json").write_text(dumps())\''
)


class AsAnEditorReads(yaml.SafeLoader):
    """YAML 1.2's types: numbers and booleans, but no dates."""

    yaml_implicit_resolvers: ClassVar[Any] = {
        first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture
def shipped() -> Any:
    return yaml.load((REPOSITORY / "matrix.yaml").read_text(encoding="utf-8"), Loader=AsAnEditorReads)


def test_checked_in_schema_is_current() -> None:
    assert CHECKED_IN.read_text(encoding="utf-8") == dumps(), REGENERATE
    assert json.loads(dumps()) == json_schema()


def test_shipped_matrix_validates(validator: Any, shipped: Any) -> None:
    assert [error.message for error in validator.iter_errors(shipped)] == []


def test_partial_rows_and_unquoted_versions_are_fine(validator: Any, shipped: Any) -> None:
    shipped["environments"]["child"] = {
        "extends": "cpu", "python": 3.12, "torch": {"version": "2.12.1"}, "nccl": None, "env": {"A": 1},
    }  # fmt: skip
    assert [error.message for error in validator.iter_errors(shipped)] == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"pyhton": "3.11"}, "pyhton"),
        ({"accelerator": "gpu"}, "gpu"),
        ({"name": "x"}, "name"),
        ({"torch": {"version": "newest"}}, "newest"),
        ({"python": "3"}, "3"),
        ({"env": {"A": "a$b"}}, "a$b"),
        ({"extras": [{"build": True}]}, "requirement"),
        ({"extends": "No Row"}, "No Row"),
    ],
)
def test_mistakes_do_not_validate(validator: Any, shipped: Any, row: Any, said: str) -> None:
    shipped["environments"]["new"] = row
    errors = [error.message for error in validator.iter_errors(shipped)]
    assert len(errors) == 1 and said in errors[0]


def test_defaults_cannot_extend(validator: Any, shipped: Any) -> None:
    shipped["defaults"]["extends"] = "cpu"
    assert not validator.is_valid(shipped)
