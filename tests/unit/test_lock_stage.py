from __future__ import annotations

import hashlib
import os
from pathlib import Path
from urllib.parse import quote

import pytest

from envbuild import lock
from envbuild.errors import EngineError
from envbuild.lock import local
from envbuild.model import Lock
from envbuild.site.pip import PipSettings

GROUPS = ("deps", "ops", "toolkit", "tools", "torch")
WHEEL = "thing-1.0-py3-none-any.whl"
TORCH = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def make(*packages: tuple[str, str, str, tuple[bytes, ...]]) -> Lock:
    return Lock.model_validate(
        {
            "environment": "row",
            "platform": "linux/amd64",
            "python": "3.11",
            "inputs": f"sha256:{'0' * 64}",
            "resolver": "uv 1",
            "packages": [
                {"name": name, "version": version, "group": group, "hashes": [digest(item) for item in contents]}
                for name, version, group, contents in packages
            ],
        }
    )


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


def stage(made: Lock, *, into: Path, links: tuple[str, ...] = (), indexes: tuple[str, ...] = ()) -> tuple[str, ...]:
    return lock.stage_local(made, PipSettings(find_links=links, extra_index=indexes), into)


def content_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_only_locked_files_enter(wheels: Path, tmp_path: Path) -> None:
    (wheels / TORCH).write_bytes(b"torch")
    (wheels / WHEEL).write_bytes(b"another build of the same version")
    (wheels / "secret.txt").write_bytes(b"secret")
    (wheels / "other-1.0-py3-none-any.whl").write_bytes(b"thing")
    (wheels / "thing-2.0-py3-none-any.whl").write_bytes(b"thing")
    (wheels / "not a wheel.whl").write_bytes(b"thing")
    made = make(("torch", "2.13.0+cpu", "torch", (b"torch", b"elsewhere")), ("thing", "1.0", "deps", (b"thing",)))
    into = tmp_path / "context"
    assert stage(made, into=into, links=(str(wheels),)) == (f"torch/{TORCH}",)
    assert content_of(into) == sorted([*(f"{group}/.keep" for group in GROUPS), f"torch/{TORCH}"])
    assert (into / "torch" / TORCH).read_bytes() == b"torch"


def test_what_was_staged_before_is_gone(wheels: Path, tmp_path: Path) -> None:
    (wheels / WHEEL).write_bytes(b"thing")
    made = make(("thing", "1.0", "deps", (b"thing",)))
    into = tmp_path / "context"
    stage(made, into=into, links=(str(wheels),))
    (into / "deps" / "left-over").touch()
    assert stage(made, into=into) == ()
    assert content_of(into) == [f"{group}/.keep" for group in GROUPS]


def test_large_files_cost_no_copy(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (wheels / WHEEL).write_bytes(b"thing")
    made = make(("thing", "1.0", "deps", (b"thing",)))
    stage(made, into=tmp_path / "a", links=(str(wheels),))
    assert (tmp_path / "a" / "deps" / WHEEL).samefile(wheels / WHEEL)

    def no_links(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_links)
    stage(made, into=tmp_path / "b", links=(str(wheels),))
    assert not (tmp_path / "b" / "deps" / WHEEL).samefile(wheels / WHEEL)
    assert (tmp_path / "b" / "deps" / WHEEL).read_bytes() == b"thing"


def test_links_folders_and_unreadable_files(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "elsewhere" / "blob"
    real.parent.mkdir()
    real.write_bytes(b"thing")
    (wheels / WHEEL).symlink_to(real)
    (wheels / "broken-1.0-py3-none-any.whl").symlink_to("nowhere")
    (wheels / "loop-1.0-py3-none-any.whl").symlink_to("loop-1.0-py3-none-any.whl")
    (wheels / "folder-1.0-py3-none-any.whl").mkdir()
    (wheels / "locked-1.0-py3-none-any.whl").write_bytes(b"thing")
    read = local.sha256

    def refuse(path: Path, cache: Path) -> str:
        if path.name.startswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, cache)

    monkeypatch.setattr(local, "sha256", refuse)
    names = ("thing", "broken", "loop", "folder", "locked")
    made = make(*((name, "1.0", "deps", (b"thing",)) for name in names))
    into = tmp_path / "context"
    assert stage(made, into=into, links=(str(wheels), str(tmp_path / "gone"))) == (f"deps/{WHEEL}",)
    assert not (into / "deps" / WHEEL).is_symlink()
    assert (into / "deps" / WHEEL).read_bytes() == b"thing"


def test_an_index_in_a_folder(tmp_path: Path) -> None:
    root = tmp_path / "an index"
    (root / "files").mkdir(parents=True)
    (root / "files" / TORCH).write_bytes(b"torch")
    (root / "files" / "more-1-py3-none-any.whl").write_bytes(b"more")
    torch, more, empty = (root / "simple" / name for name in ("torch", "more", "empty"))
    for folder in (torch, more, empty):
        folder.mkdir(parents=True)
    # Relative, percent-encoded, with a fragment; then an absolute file: URL, a base, and links to be left alone.
    (torch / "index.html").write_text(
        f'<!DOCTYPE html><a HREF="../../files/{quote(TORCH)}#sha256=0">torch</a>'
        '<a href="https://x.example/torch-2.13.0+cpu-py3-none-any.whl">remote</a><a>none</a><a href="http://[">bad</a>'
    )
    (more / "index.html").write_text(
        f'<base href="{root.as_uri()}/files/"><a href="more-1-py3-none-any.whl?x=1#sha256=0">more</a>'
    )
    made = make(
        ("torch", "2.13.0+cpu", "torch", (b"torch",)),
        ("more", "1", "toolkit", (b"more",)),
        ("empty", "1", "deps", (b"",)),
        ("absent", "1", "deps", (b"",)),
    )
    index = f"{root.as_uri()}/simple"
    assert stage(made, into=tmp_path / "context", indexes=(index,)) == (
        "toolkit/more-1-py3-none-any.whl",
        f"torch/{TORCH}",
    )
    # The same pages as find-links.
    page = str(torch / "index.html")
    assert stage(made, into=tmp_path / "context", links=(page, more.as_uri())) == (f"torch/{TORCH}",)
    assert stage(made, into=tmp_path / "context", indexes=("https://x.example/simple",)) == ()


@pytest.mark.parametrize(
    ("filename", "fits"),
    [
        ("thing-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("thing-1.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True),
        ("thing-1.0-cp38-abi3-manylinux2014_x86_64.whl", True),
        ("thing-1.0-py2.py3-none-any.whl", True),
        ("thing-1.0.0-py3-none-linux_x86_64.whl", True),
        ("thing-1.0-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("thing-1.0-cp312-abi3-manylinux_2_28_x86_64.whl", False),
        ("thing-1.0-cp311-cp311-manylinux_2_28_aarch64.whl", False),
        ("thing-1.0-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("thing-1.0-cp311-cp311-win_amd64.whl", False),
    ],
)
def test_only_what_runs_on_the_platform(wheels: Path, tmp_path: Path, filename: str, fits: bool) -> None:
    (wheels / filename).write_bytes(b"thing")
    made = make(("thing", "1.0", "deps", (b"thing",)))
    assert bool(stage(made, into=tmp_path / "context", links=(str(wheels),))) is fits


def test_source_archives(wheels: Path, tmp_path: Path) -> None:
    (wheels / "deepspeed-0.19.8.tar.gz").write_bytes(b"source")
    (wheels / "deepspeed-0.19.8-py3-none-any.whl").write_bytes(b"wheel")
    (wheels / "thing-1.0.tar.gz").write_bytes(b"source")
    (wheels / WHEEL).write_bytes(b"wheel")
    (wheels / "only-1.0.tar.gz").write_bytes(b"source")
    both = (b"source", b"wheel")
    made = make(("deepspeed", "0.19.8", "ops", both), ("thing", "1.0", "deps", both), ("only", "1.0", "deps", both))
    assert stage(made, into=tmp_path / "context", links=(str(wheels),)) == (
        f"deps/{'only-1.0.tar.gz'}",
        f"deps/{WHEEL}",
        "ops/deepspeed-0.19.8-py3-none-any.whl",
        "ops/deepspeed-0.19.8.tar.gz",
    )


def test_large_hashes_are_remembered_until_the_file_changes(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = wheels / "large", tmp_path / "cache"
    path.write_bytes(b"a" * (local._WORTH_REMEMBERING + 1))
    first = local.sha256(path, cache)
    assert first == digest(path.read_bytes())
    real = Path.open

    def no_reading(self: Path, *args: object, **options: object) -> object:
        assert self != path, "hashed again"
        return real(self, *args, **options)  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", no_reading)
        assert local.sha256(path, cache) == first
    seen = path.stat()
    path.write_bytes(b"b" * seen.st_size)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns + 1))
    assert local.sha256(path, cache) == digest(path.read_bytes()) != first
    # A damaged entry, or a cache that cannot be written, costs time and nothing else.
    for entry in (cache / "sha256").iterdir():
        entry.write_bytes(b"\xff")
    assert local.sha256(path, cache) != first
    blocked = tmp_path / "file"
    blocked.touch()
    assert local.sha256(path, blocked) == digest(path.read_bytes())


def test_no_space_in_the_context(wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match="into the build context"):
        stage(make(("thing", "1.0", "deps", (b"thing",))), into=tmp_path / "file")
