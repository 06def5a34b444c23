"""Upstream in folders and file: indexes: METADATA, members, source archives, and what is wrong with them."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

import upstream as made
from envbuild.facts.upstream import RemoteFile, Shape, Upstream
from envbuild.facts.upstream.archive import Pipe
from envbuild.facts.upstream.cache import Cache
from envbuild.facts.upstream.page import file_of
from envbuild.net import Missing
from envbuild.net.manners import account, origin, retry_after, shown
from envbuild.site.pip import PipSettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "wheels"
    path.mkdir()
    return path


def reader(folder: Path, **settings: object) -> Upstream:
    pip = PipSettings(no_index=True, find_links=(str(folder),), **settings)  # type: ignore[arg-type]
    return Upstream(pip, folder.parent / "cache")


def only(found: tuple[RemoteFile, ...]) -> RemoteFile:
    (file,) = found
    return file


def test_a_folder_and_a_file_index_are_read(folder: Path, tmp_path: Path) -> None:
    path = made.wheel(folder, "torch", "2.11.0", "triton==3.6.0", tag="cp310-cp310-linux_x86_64")
    (folder / "notes.txt").write_text("no package")
    index = tmp_path / "index"
    (index / "torch").mkdir(parents=True)
    (index / "torch" / "index.html").write_text(made.page(path, link="../../wheels/{}"))
    by_index = Upstream(PipSettings(index=index.as_uri()), tmp_path / "cache")
    for each in (reader(folder), by_index):
        said = each.metadata(only(each.files("torch")))
        assert said.pin("triton", python="3.10") == "3.6.0"
    with pytest.raises(Missing, match="numpy: not found in file://"):
        by_index.files("numpy")


def test_a_pin_is_one_exact_version_for_the_target(folder: Path) -> None:
    linux = 'platform_system == "Linux" and platform_machine == "x86_64"'
    needs = (
        f"nvidia-nccl-cu12 (==2.18.1) ; {linux}",
        'triton==2.2.0; python_version < "3.12"',
        'triton==9.9; platform_system == "Windows"',
        "numpy~=1.26",
        "a==1.*",
        "b==1.0",
        'b==2.0; python_version >= "3.8"',
        'c==1.0; extra == "more"',
    )
    made.wheel(folder, "torch", "2.1.0", *needs)
    upstream = reader(folder)
    said = upstream.metadata(only(upstream.files("torch")))
    pins = {name: said.pin(name, python="3.10") for name in ("nvidia-nccl-cu12", "triton", "numpy", "a", "b", "c", "d")}
    assert pins == {"nvidia-nccl-cu12": "2.18.1", "triton": "2.2.0"} | dict.fromkeys(("numpy", "a", "b", "c", "d"))
    assert said.pin("triton", python="3.12") is None
    assert said.wants("nvidia-nccl", python="3.10") == ("nvidia-nccl-cu12",)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "Metadata-Version, Name and Version"),
        (b"<html>Not found</html>", "Metadata-Version, Name and Version"),
        (made.metadata("numpy", "2.11.0"), "speaks of numpy 2.11.0"),
        (made.metadata("torch", "2.11.1"), "speaks of torch 2.11.1"),
        (made.metadata("torch", "2.11.0", "triton=>3"), "versions and requirements"),
        (made.metadata("torch", "two"), "versions and requirements"),
    ],
)
def test_metadata_of_another_shape_is_loud(folder: Path, content: bytes, expected: str) -> None:
    made.wheel(folder, "torch", "2.11.0", said=content)
    upstream = reader(folder)
    with pytest.raises(Shape, match=expected):
        upstream.metadata(only(upstream.files("torch")))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def scramble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[60:120] = bytes(60)
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("spoil", [cut, scramble, empty])
def test_a_damaged_wheel_is_named(folder: Path, spoil: Callable[[Path], None]) -> None:
    path = made.wheel(folder, "torch", "2.11.0", members={"torch/a": b"x" * 5000}, said=bytes(range(256)) * 20)
    spoil(path)
    upstream = reader(folder)
    with pytest.raises(Shape, match=r"torch-2\.11\.0-py3-none-any\.whl"):
        upstream.metadata(only(upstream.files("torch")))


def test_a_member_that_unpacks_to_more_than_is_sensible_is_refused(folder: Path) -> None:
    made.wheel(folder, "torch", "2.11.0", said=made.metadata("torch", "2.11.0") + bytes(5_000_000))
    upstream = reader(folder)
    with pytest.raises(Shape, match=r"METADATA is larger than \d+ bytes"):
        upstream.metadata(only(upstream.files("torch")))


def test_a_member_has_to_be_the_only_one(folder: Path) -> None:
    made.wheel(folder, "torch", "2.11.0", members={"a/x.h": b"1", "b/x.h": b"2"})
    upstream = reader(folder)
    file = only(upstream.files("torch"))
    assert upstream.member(file, r"a/x\.h") == b"1"
    with pytest.raises(Shape, match="found 2"):
        upstream.member(file, r".*/x\.h")
    with pytest.raises(Shape, match="found 0"):
        upstream.member(file, r"c/x\.h")


def test_a_source_archive_gives_single_files(folder: Path) -> None:
    made.deepspeed(folder, "0.19.8")
    upstream = reader(folder)
    file = only(upstream.files("deepspeed"))
    assert upstream.metadata(file).classifiers[0].endswith("3.8")
    assert upstream.sources(file, (r"op_builder/.*\.py",), every=True).keys() == {"op_builder/builder.py"}
    with pytest.raises(Shape, match=r"expected a file op_builder/none\.py"):
        upstream.sources(file, (r"op_builder/none\.py",))


def test_a_source_archive_that_breaks_off_is_named(folder: Path) -> None:
    path = made.deepspeed(folder, "0.19.8", builder=bytes(range(256)) * 4000)
    whole = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(whole[: len(whole) // 2]))
    upstream = reader(folder)
    with pytest.raises(Shape, match=r"deepspeed-0\.19\.8\.tar\.gz"):
        upstream.sources(only(upstream.files("deepspeed")), (r"requirements/.*",))


def test_another_source_archive_than_the_index_names_is_refused(folder: Path, tmp_path: Path) -> None:
    path = made.deepspeed(folder, "0.19.8")
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "index.html").write_text(made.page(path, link="../wheels/{}"))
    upstream = Upstream(PipSettings(index=tmp_path.as_uri()), tmp_path / "cache")
    made.deepspeed(folder, "0.19.8", pydantic="pydantic<2")
    with pytest.raises(Shape, match="its SHA-256 is not the one that the index names"):
        upstream.sources(only(upstream.files("deepspeed")), (r"op_builder/.*",), every=True)


def test_a_pipe_hands_on_every_byte_once() -> None:
    data = bytes(range(256)) * 50
    pipe = Pipe(iter([data[:7], data[7:700], data[700:]]))
    assert b"".join(iter(lambda: pipe.read(333), b"")) == data
    assert pipe.digest == hashlib.sha256(data).hexdigest()


def test_the_cache_keeps_pieces_and_distrusts_damaged_ones(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    known = file_of(
        "https://user:geheim@index.example/torch-2.11.0-py3-none-any.whl", "torch-2.11.0-py3-none-any.whl", "torch"
    )
    assert known is not None
    reads: list[int] = []

    def read() -> bytes:
        reads.append(1)
        return b"content"

    assert [cache.piece(known, "a", read) for _ in range(3)] == [b"content"] * 3
    assert len(reads) == 1
    assert cache.piece(known, "b", read) == b"content" and len(reads) == 2
    for path in (tmp_path / "files").iterdir():
        assert b"geheim" not in path.read_bytes() and "geheim" not in str(path)
        path.write_bytes(path.read_bytes()[:-1])
    assert cache.piece(known, "a", read) == b"content" and len(reads) == 3


def test_manners() -> None:
    assert origin("https://a.example/x") == origin("https://u:p@a.example:443/y") != origin("http://a.example/x")
    assert account("https://u%40x:p%3A@a.example/") == ("u@x", "p:")
    assert account("https://a.example/") is None
    assert shown("https://u:p@a.example/x?t=1#f") == "https://a.example/x?***"
    asked, date = "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:27:30 GMT"
    after = [retry_after({"Retry-After": text}) for text in ("7", "soon", "", asked)]
    assert after == [7.0, None, None, 0.0]
    assert retry_after({"Retry-After": asked, "Date": date}) == 30.0
