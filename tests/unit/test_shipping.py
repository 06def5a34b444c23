"""images: a table that fits a terminal, and loses nothing in a pipe."""

from __future__ import annotations

import pytest

from envbuild.cli import shipping
from envbuild.pipeline.listing import Listed


def listed(repository: str, *tags: str) -> Listed:
    return Listed(
        where="remote", environment="cpu", repository=repository, tags=tags, image="sha256:" + "a" * 64, level=None,
        current=None, seen=None, size_bytes=3 << 30,
    )  # fmt: skip


def test_every_tag_has_a_line_where_somebody_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tags = ("2.13.0-cpu-6ae1af04", *(f"2026.{month:02}" for month in range(1, 13)), "validated")
    rows = [listed("registry.example.com/team/envbuild/cpu", *tags), listed("team/train", "7"), listed("")]
    monkeypatch.setenv("COLUMNS", "80")
    shipping._table(rows)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) == 1 + len(tags) + 2
    assert lines[1].split() == ["cpu", "remote", tags[0], "unproven", "3.00", "GiB"], "the size is not what has to go"
    assert [line.split() for line in lines[2:-2]] == [[tag] for tag in tags[1:]]
    # Whose tag it is when it is not the row's own, and no column says so.
    assert "team/train:7" in lines[-2] and "<none>" in lines[-1]
    monkeypatch.delenv("COLUMNS")
    shipping._table(rows)
    first = capsys.readouterr().out.splitlines()[1]
    assert ",".join(tags) in first and "registry.example.com/team/envbuild/cpu" in first
