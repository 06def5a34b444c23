"""JSON with places: what is read, what is not JSON and where, and that no text ends in a traceback."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envbuild.dsconfig.document import DEEPEST, LONGEST, Document, Node, parse, read
from envbuild.errors import InputError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip
# Texts that are nearly JSON, which random letters hardly ever are.
NEARLY = st.lists(
    st.sampled_from(
        [*'{}[]:,"\'\\/#\n\r\t 0', "1e5", "true", "nul", '"a"', "-", "\ufeff", "\u2028", "//", "/*", "*/", "01"]
    ),
    max_size=25,
).map("".join)  # fmt: skip


def nodes(node: Node) -> list[Node]:
    inner = [each for member in node.members for each in nodes(member.node)]
    return [node, *inner, *(each for item in node.items for each in nodes(item))]


def flaws(text: str) -> list[tuple[str, int, int]]:
    return [(flaw.kind, flaw.place.line, flaw.place.column) for flaw in parse(text).flaws]


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_it_reads_what_the_standard_library_reads(value: dict[str, Any], indent: Any, plain: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=plain)
    document = parse(text)
    assert not document.flaws
    assert document.root is not None
    assert document.root.value == value
    for node in nodes(document.root):
        assert text[node.place.start : node.place.end] == node.raw
        assert json.loads(node.raw) == node.value
        assert document.line(node.place.line)[node.place.column - 1 :].startswith(node.raw.splitlines()[0])


@settings(deadline=None)
@given(st.text() | NEARLY | NEARLY.map(lambda text: f'{{"a": {text}}}'))
@example('{"a": "\ud800"}')
@example("[" * 5000)
@example('{"a":' * 5000)
def test_any_text_is_read_or_has_a_flaw_with_a_place(text: str) -> None:
    document = parse(text)
    assert document.root is not None or document.flaws
    for flaw in document.flaws:
        assert flaw.message
        assert 1 <= flaw.place.column <= len(document.line(flaw.place.line)) + 2
    try:
        strict = json.loads(text)
    except (ValueError, RecursionError):
        assert document.flaws, "what the standard library refuses is no JSON"
    else:
        finite = "NaN" not in text and "Infinity" not in text
        if isinstance(strict, dict) and finite and document.root is None:
            assert {flaw.kind for flaw in document.flaws} & {"number", "depth"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', ("syntax", 2, 9)),
        ('{"a" 1}', ("syntax", 1, 5)),
        ('{"a": }', ("syntax", 1, 7)),
        ('{"a": [1, 2}', ("syntax", 1, 12)),
        ('{"a": {"b": 1}', ("syntax", 1, 15)),
        ("{'a': 1}", ("syntax", 1, 2)),
        ("{a: 1}", ("syntax", 1, 2)),
        ('{"a": True}', ("syntax", 1, 7)),
        ('{"a": NaN}', ("number", 1, 7)),
        ('{"a": -Infinity}', ("number", 1, 7)),
        ('{"a": 1e400}', ("number", 1, 7)),
        ('{"a": ' + "9" * 5000 + "}", ("number", 1, 7)),
        ('{"a": 01}', ("syntax", 1, 7)),
        ('{"a": "\\q"}', ("syntax", 1, 8)),
        ('{"a": "b\n"}', ("syntax", 1, 7)),
        ('{"a": "b\x01"}', ("syntax", 1, 9)),
        ('{"a": 1} {}', ("syntax", 1, 10)),
        ('{"a": /* 1}', ("syntax", 1, 7)),
        ("", ("empty", 1, 1)),
        ("  \n", ("empty", 1, 1)),
        ("[1]", ("object", 1, 1)),
        ('{"a":' + "[" * (DEEPEST + 1), ("depth", 1, DEEPEST + 5)),
    ],
)
def test_what_is_not_json_is_found_where_it_stands(text: str, expected: tuple[str, int, int]) -> None:
    document = parse(text)
    assert document.root is None
    assert flaws(text) == [expected]


def test_what_hjson_allows_is_read_and_noted() -> None:
    document = parse('\ufeff{ // why\n  "a": [1, 2,],\r\n  "b": 5e8, # so\n}')
    assert document.root is not None
    assert document.root.value == {"a": [1, 2], "b": 5e8}
    assert [flaw.kind for flaw in document.flaws] == ["bom", "comment", "comma", "comment", "comma"]
    for flaw in document.flaws:
        if flaw.kind in ("bom", "comma"):
            assert flaw.edit is not None
            start, end, text = flaw.edit
            assert document.text[start:end] in ("\ufeff", ",")
            assert text == ""


def test_of_two_equal_keys_the_last_counts_and_both_are_kept() -> None:
    document = parse('{\r\n"stage": 1,\r"x": 2,\n"stage": 3}')
    assert document.root is not None
    assert document.root.value == {"stage": 3, "x": 2}
    assert [member.node.value for member in document.root.members] == [1, 2, 3]
    assert flaws(document.text) == [("duplicate", 4, 1)]
    assert "first in line 2" in document.flaws[0].message


def test_numbers_keep_their_style() -> None:
    document = parse('{"a": 5e8, "b": 500000000, "c": 1.50, "d": -0, "e": 123456789012345678901234567890}')
    assert document.root is not None
    assert [member.node.raw for member in document.root.members] == [
        "5e8", "500000000", "1.50", "-0", "123456789012345678901234567890",
    ]  # fmt: skip
    assert not any(math.isinf(value) for value in document.root.value.values())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"a": "\xe4"}', ":1:8: not UTF-8: byte 0xe4"),
        (b'{\n"b": 1,\r\n"a": "\xff"}', ":3:7: not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "UTF-16"),
        ('{"a": 1}'.encode("utf-16-le"), "UTF-16"),
        ('{"a": 1}'.encode("utf-32"), "UTF-16 or UTF-32"),
        (b" " * (LONGEST + 1), "longer than 1 MiB"),
    ],
)
def test_what_is_no_text_of_a_configuration_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read(str(path))
    assert said in caught.value.message
    assert caught.value.hint


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (str(tmp_path), str(tmp_path / "missing"), str(tmp_path / "pipe"), "/dev/zero", "a\0b", "x" * 5000, ""):
        with pytest.raises(InputError) as caught:
            read(name)
        assert caught.value.hint


def test_a_pipe_that_somebody_writes_is_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"a": 1}')
    os.close(writing)
    try:
        document: Document = read(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
    assert document.root is not None
    assert document.root.value == {"a": 1}


def test_standard_input_is_read_by_its_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}')))
    document = read("-")
    assert (document.name, document.root and document.root.value) == ("<stdin>", {"a": 1})
