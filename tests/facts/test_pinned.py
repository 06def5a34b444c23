"""Facts that wheels and source archives state in so many words.

Every shipped fact whose source is a wheel, an nvcc header or DeepSpeed's builder is read again, and has to be what it
was. With FACTS_DEEP=1 also the NCCL inside torch's libraries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from envbuild.facts.refresh.reading import Notebook
from envbuild.facts.versions import parse

from .conftest import FOLDER

SOURCES = re.compile(r"wheel |ELF members|host_config\.h|DeepSpeed (tag|sdist)s? .*(builder\.py|PKG-INFO|setup\.py)")
EVIDENCE = {"mark", "source", "date", "note"}
Path_ = tuple[str | int, ...]


def below(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, dict[str, Any]]]:
    if isinstance(value, dict):
        if value.get("mark") == "verified" and SOURCES.match(value["source"]):
            yield path, value
        for key, each in value.items():
            yield from below(each, (*path, str(key)))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from below(each, (*path, number))


# The op registry has a test of its own, below.
PINNED = [
    (name, path, fact)
    for name in ("torch", "toolkits", "nvidia", "deepspeed")
    for path, fact in below(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))
    if path[0] not in ("libraries", "ops", "minimums", "unseen_gpu", "native_flags", "architectures")
]


def text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@pytest.mark.parametrize(("name", "path", "fact"), PINNED, ids=[f"{n}:{'.'.join(map(str, p))}" for n, p, _ in PINNED])
def test_a_pinned_fact_is_what_upstream_says(
    name: str, path: Path_, fact: dict[str, Any], book: Notebook, say: Any
) -> None:
    read = next((each for each in book.readings if each.file == name and each.path == path), None)
    if read is None:
        where = re.escape(str(path[1] if len(path) > 1 else path[0]))
        missed = [each for each in book.unread if re.search(rf"(?<![\d.]){where}(?![\d.])", each.subject)]
        assert missed and not any(each.failed for each in missed), f"{path} was not read: {missed}"
        pytest.skip("; ".join(each.reason for each in missed))
    differ = {}
    for key, value in read.values.items():
        if key not in fact:
            continue
        same = text(fact[key]) == text(value)
        if not same and not isinstance(value, tuple):
            same = parse(text(fact[key])) == parse(text(value))
        if not same:
            differ[key] = (fact[key], value)
    assert not differ, f"{name}.yaml {'.'.join(map(str, path))}: (the fact, upstream) {differ}"
    if len(path) > 1:
        say(
            f"{name}: {'.'.join(map(str, path))}",
            ", ".join(f"{k} {text(v)}" for k, v in read.values.items() if k in fact),
        )


def test_what_was_looked_at_is_not_empty() -> None:
    assert len(PINNED) > 100


def test_nothing_upstream_is_for_a_person_but_newer_toolkits(book: Notebook) -> None:
    assert [each for each in book.remarks if not each.subject.startswith("CUDA ")] == []
