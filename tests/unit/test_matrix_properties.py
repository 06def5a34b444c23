"""Whatever is in the file: rows or clear errors, and nothing in a row that a Dockerfile would read as syntax."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from envbuild import facts
from envbuild.matrix import MatrixError, check, tree
from envbuild.matrix.load import parse
from envbuild.model import Environment

SHIPPED = (Path(__file__).parents[2] / "matrix.yaml").read_text(encoding="utf-8")
DATA = yaml.load(SHIPPED, Loader=yaml.BaseLoader)

# Free text for people: it is printed, and given to the engine as a label, never written into a Dockerfile.
FOR_PEOPLE = {"summary", "sources", "claimed", "waivers"}

BOTH_PARSERS = pytest.mark.parametrize("loader", [tree.LOADER, yaml.SafeLoader], ids=["libyaml", "python"])


def outcome(raw: bytes) -> None:
    """Load; anything but rows or a proper refusal fails the test."""
    try:
        matrix = parse(raw, "m.yaml")
    except MatrixError as error:
        assert error.findings
        lines = error.message.split("\n")
        assert len(lines) == len(error.findings), "one line a finding, whatever the file has in it"
        for line, finding in zip(lines, error.findings, strict=True):
            assert line.isprintable()
            assert line.startswith(f"m.yaml:{finding.line}:{finding.column}: ")
            assert finding.line and finding.column and finding.message
        return
    for environment in matrix.environments.values():
        assert_no_syntax(environment)
        for finding in check(environment, facts.load(), matrix):
            assert finding.line and finding.message and finding.fix


def assert_no_syntax(environment: Environment) -> None:
    for path, text in texts(environment, ()):
        assert len(text.splitlines()) <= 1, path
        if path[0] not in FOR_PEOPLE:
            assert not set(text) & set("\"'$`\\"), path


def texts(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from texts(getattr(value, name), (*path, name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield (*path, "key"), str(key)
            yield from texts(item, (*path, str(key)))
    elif isinstance(value, tuple):
        for item in value:
            yield from texts(item, path)
    elif isinstance(value, str):
        yield path, str(value)


WEIRD = st.one_of(
    st.text(max_size=20),
    st.text(alphabet="abc019.-_\n\r\t\0\x1b\x85\u2028$`'\"\\;&|<>(){}[]*#!:,@ ", max_size=20),
    st.sampled_from(
        ["", "~", "null", "true", "3.10", "2026-11-01", "$(id)", "a\nRUN id", "x" * 1000, "%", "../..", "-"]
    ),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.lists(st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=5), st.text(max_size=3), max_size=3),
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


def dumped(document: Any, *, allow_unicode: bool = True) -> bytes:
    # libyaml's emitter takes no lone surrogates.
    fast = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    try:
        text = yaml.dump(document, Dumper=fast, allow_unicode=allow_unicode)
    except UnicodeEncodeError:
        text = yaml.dump(document, Dumper=yaml.SafeDumper, allow_unicode=allow_unicode)
    return str(text).encode("utf-8", errors="surrogatepass")


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        value = value[part]
    return value


def as_matrix(row: dict[str, Any]) -> bytes:
    document = {"schema": DATA["schema"], "environments": {"row": row}}
    # Escaped, so that what is read is what was meant.
    return dumped(document, allow_unicode=False)


ALL_PATHS = sorted(paths(DATA), key=repr)
MUTATION = st.tuples(
    st.sampled_from(ALL_PATHS), st.sampled_from(["drop", "rename", "replace", "add"]), st.text(max_size=8), WEIRD
)


def mutated(mutations: list[Any]) -> Any:
    document = copy.deepcopy(DATA)
    for path, action, key, value in mutations:
        node = document
        try:
            for part in path[:-1]:
                node = node[part]
            old = node[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier mutation took it away
        if not isinstance(node, dict | list):
            continue  # or put a text in its place, which has places, too
        if action == "drop":
            del node[path[-1]]
        elif action == "replace" or isinstance(node, list):
            node[path[-1]] = value
        elif action == "rename":
            node[key] = node.pop(path[-1])
        elif isinstance(old, dict):
            old[key] = value
    return document


@given(st.text())
@example("a: *a")
@example("? ? ?")
@example('"\\ud800": x')
@example('{"a\\u2028b": 1, "\\x9b": [}')
@example("%YAML 9.9\n---\n")
@example("&a [*a]")
@example("\u2029\x85: \ufeff")
@settings(max_examples=200, deadline=None)
def test_any_text(text: str) -> None:
    outcome(text.encode("utf-8", errors="surrogatepass"))


@given(st.binary())
@settings(max_examples=50, deadline=None)
def test_any_bytes(raw: bytes) -> None:
    outcome(raw)


@given(st.lists(MUTATION, min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_mutated_rows(mutations: list[Any]) -> None:
    outcome(dumped(mutated(mutations)))


@given(st.integers(0, len(SHIPPED)), st.integers(0, 40), st.text(max_size=5))
@settings(max_examples=100, deadline=None)
def test_mutated_text(start: int, length: int, text: str) -> None:
    outcome((SHIPPED[:start] + text + SHIPPED[start + length :]).encode("utf-8", errors="surrogatepass"))


@given(WEIRD, st.sampled_from(["family", "python", "nccl", "pins", "packages", "gpus", "base.image", "gcc.package",
                               "torch.version", "deepspeed.ops", "cuda.version", "env", "driver", "torch.torchvision",
                               "claimed", "waivers", "fabric", "shm_size"]))  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_weird_values_where_a_dockerfile_would_see_them(value: Any, path: str) -> None:
    document = copy.deepcopy(DATA)
    *parents, last = path.split(".")
    node = document["environments"]["h200-cu130"]
    node.update(claimed={}, waivers=[])
    for parent in parents:
        node = node[parent]
    said = {"value": value, "by": value, "contradicted": value}
    waiver = {"rule": "R21", "key": value, "reason": value, "until": "2030-01-01"}
    wrapped: dict[str, Any] = {"pins": [value], "packages": [value], "gpus": [value], "ops": [value]}
    wrapped |= {"env": {"A": value}, "claimed": {"nccl": said}, "waivers": [waiver]}
    node[last] = wrapped.get(last, value)
    outcome(dumped(document))


def everything() -> dict[str, Any]:
    """A row with every key that a row may have."""
    document = copy.deepcopy(DATA)["environments"]
    row: dict[str, Any] = {**document["h200-cu130"], **{key: document["v100-cu113"][key] for key in ("claimed",)}}
    row["base"] |= {
        "digest": f"sha256:{'0' * 64}",
        "toolkit_image": "nvidia/cuda:13.0.2-devel-ubuntu24.04",
        "toolkit_digest": f"sha256:{'0' * 64}",
    }
    row["base"]["bootstrap"]["packages"] = ["vim"]
    return row | {
        "performance": {"baseline": "required", "delta": "5%", "rounds": "10"},
        "waivers": [{"rule": "R21", "key": "base.image", "reason": "one", "until": "2030-01-01"}],
        "cpu_baseline": "x86-64-v3",
        "platforms": ["linux/amd64"],
        "packages": ["vim"],
        "pins": ["numpy<3"],
        "extras": [{"requirement": "transformers==4.57.1", "build": "false"}],
        "env": {"A": "1"},
        "shm_size": "1GiB",
        "memlock": "1GiB",
    }


FULL = everything()
LEAVES = [path for path in paths(FULL) if not isinstance(at(FULL, path), dict | list)]


def test_the_full_row_has_every_key_and_loads() -> None:
    assert set(FULL) == set(Environment.model_fields) - {"name"}
    outcome(as_matrix(FULL))
    parse(as_matrix(FULL), "m.yaml")


@pytest.mark.parametrize(
    "value", ["a\nRUN id", "a\r\nb", "a\u2028b", "a\x85b", "$(id)", "`id`", 'a"b', "a'b", "a\\b", "a\0b"]
)
def test_no_text_of_a_row_takes_syntax(value: str) -> None:
    for path in LEAVES:
        row = copy.deepcopy(FULL)
        at(row, path[:-1])[path[-1]] = value
        free = path[0] in FOR_PEOPLE and path[-1] not in ("mark", "date", "until", "rule")
        if free and value.isprintable():
            parse(as_matrix(row), "m.yaml")
            continue
        with pytest.raises(MatrixError) as caught:
            parse(as_matrix(row), "m.yaml")
        if "\0" not in value:  # that one is no text at all
            subjects = {finding.subject for finding in caught.value.findings}
            assert f"environments.row.{'.'.join(map(str, path))}" in subjects, path


@pytest.mark.parametrize("key", ["a\nRUN id", "$(id)", "a b", "A;B", "A\u2028B"])
def test_no_key_of_a_row_takes_syntax(key: str) -> None:
    for path in [(), *(path for path in paths(FULL) if isinstance(at(FULL, path), dict))]:
        row = copy.deepcopy(FULL)
        at(row, path)[key] = "x"
        with pytest.raises(MatrixError) as caught:
            parse(as_matrix(row), "m.yaml")
        assert all(line.isprintable() for line in caught.value.message.split("\n"))


@BOTH_PARSERS
@given(text=st.text(alphabet="ab:-?[]{}&*!|>'\"%@`#,\n \t\\xu0U", max_size=40))
@example(text='"\\UFFFFFFFF"')
@example(text='"\\uD800"')
@settings(max_examples=150, deadline=None)
def test_the_tree_is_built_or_refused(loader: Any, text: str) -> None:
    try:
        node, _ = tree.compose(text, loader)
    except tree.Unreadable as error:
        assert error.problems[-1].line >= 1 and error.problems[-1].column >= 1
    else:
        tree.plain(node, [10_000])


@BOTH_PARSERS
def test_both_parsers_build_the_same_tree(loader: Any) -> None:
    node, problems = tree.compose(SHIPPED, loader)
    assert not problems
    assert node == tree.compose(SHIPPED)[0]
