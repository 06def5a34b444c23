"""Index pages: both standards are read, and a page that is neither is an error that says where and what."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from envbuild.facts.upstream import Shape
from envbuild.facts.upstream.page import parse

URL = "https://user:geheim@index.example/simple/torch/?token=geheim"
HTML = "text/html; charset=UTF-8"
JSON = "application/vnd.pypi.simple.v1+json"
DIGEST = "ab" * 32
WHEEL = "torch-2.11.0-cp310-cp310-manylinux_2_28_x86_64.whl"


def entry(**changes: Any) -> dict[str, Any]:
    return {"filename": WHEEL, "url": f"../../files/{WHEEL}", "hashes": {"sha256": DIGEST}, **changes}


def document(*files: Any, **changes: Any) -> bytes:
    return json.dumps({"meta": {"api-version": "1.1"}, "name": "torch", "files": list(files), **changes}).encode()


def test_json_and_html_say_the_same() -> None:
    files = [
        entry(size=530, **{"core-metadata": {"sha256": DIGEST}}),
        entry(filename="torch-2.12.0.tar.gz", url="https://other.example/torch-2.12.0.tar.gz", yanked="broken"),
        entry(filename="torch-2.11.0-cp310-cp310-win_amd64.exe"),
        entry(filename="torchvision-0.1.0-py3-none-any.whl"),
    ]
    html = f"""<html><head><meta name="pypi:repository-version" content="1.0"></head><body>
      <a href="../../files/{WHEEL}#sha256={DIGEST}" data-core-metadata="sha256={DIGEST}">{WHEEL}</a>
      <a href="https://other.example/torch-2.12.0.tar.gz#sha256={DIGEST}" data-yanked="broken">x</a>
      <a href="/simple/">up</a><a name="no link">x</a><a href="torchvision-0.1.0-py3-none-any.whl">x</a>
    </body></html>"""
    first, second = parse(document(*files), JSON, URL, "torch"), parse(html.encode(), HTML, URL, "torch")
    assert [file.filename for file in first] == [WHEEL, "torch-2.12.0.tar.gz"]
    assert [file.size for file in first] == [530, None]
    for one, other in zip(first, second, strict=True):
        assert one.url == other.url and one.sha256 == other.sha256 == DIGEST
        assert (one.metadata, one.yanked, one.tags) == (other.metadata, other.yanked, other.tags)
    assert first[0].url.endswith("@index.example/files/" + WHEEL)
    assert (first[0].metadata, first[1].metadata, first[1].yanked) == (DIGEST, None, True)


@pytest.mark.parametrize(
    ("beside", "expected"),
    [(True, ""), (False, None), ({"sha256": "short"}, ""), ({}, ""), (None, None), ("yes", None)],
)
def test_metadata_beside_a_file(beside: object, expected: str | None) -> None:
    found = parse(document(entry(**{"core-metadata": beside})), JSON, URL, "torch")
    assert found[0].metadata == expected


def test_a_base_moves_relative_links() -> None:
    body = f'<base href="https://files.example/a/"><a href="{WHEEL}">x</a>'
    assert parse(body.encode(), HTML, URL, "torch")[0].url == f"https://files.example/a/{WHEEL}"


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (b"<html><h1>Sign in</h1><a href='/login'>here</a></html>", HTML, "links to files of torch"),
        (b"", HTML, "none of its 0 links"),
        (b"<meta name='pypi:repository-version' content='2.0'><a href='x'>", HTML, "repository-version 1.x, and got 2"),
        (b"%PDF-1.4", "application/pdf", "in HTML (PEP 503) or JSON (PEP 691), and got application/pdf"),
        (b"{", JSON, "expected JSON"),
        (b"[" * 200_000, JSON, "expected JSON"),
        (b"[]", JSON, "api-version"),
        (b'{"releases": {}}', JSON, "api-version"),
        (document(entry(), meta={"api-version": "2.0"}), JSON, "1.x"),
        (document(), JSON, "a list that is not empty"),
        (document(files={"a": 1}), JSON, '"files", a list'),
        (document("torch-2.11.0.tar.gz"), JSON, '"files"[0] to be an object'),
        (document(entry(), entry(url=7)), JSON, '"filename" and "url" in "files"[1]'),
        (document(entry(hashes="abc")), JSON, '"hashes" in "files"[0]'),
        (document(entry(filename="numpy-1.0.tar.gz")), JSON, "file names of torch"),
    ],
)
def test_a_page_that_has_changed_shape_is_loud(body: bytes, kind: str, expected: str) -> None:
    with pytest.raises(Shape, match=re.escape(expected)) as raised:
        parse(body, kind, URL, "torch")
    assert "https://index.example/simple/torch/?***" in raised.value.message
    assert "geheim" not in raised.value.message + raised.value.hint
    assert raised.value.exit_code == 3


def test_a_page_of_links_need_not_know_the_project() -> None:
    assert parse(b"<a href='numpy-1.0.tar.gz'>x</a>", HTML, URL, "torch", strict=False) == ()
