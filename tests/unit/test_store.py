from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from envbuild import store
from envbuild.errors import EngineError, InputError


def test_home_and_cache_follow_the_variable_and_the_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path / "own"))
    assert store.home() == tmp_path / "own"
    assert store.cache() == tmp_path / "own" / "cache"
    assert store.cache(tmp_path / "site") == tmp_path / "site"
    monkeypatch.delenv("ENVBUILD_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert store.home() == tmp_path / "data" / "envbuild"
    assert store.cache() == tmp_path / "cache" / "envbuild"


def test_write_replaces_the_whole_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file.json"
    store.write_atomic(path, "a long first content")
    store.write_atomic(path, b"short")
    assert path.read_bytes() == b"short"
    assert list(path.parent.iterdir()) == [path]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "writable"), (errno.EIO, "ENVBUILD_HOME")]
)
def test_failed_write_keeps_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    path = tmp_path / "file"
    store.write_atomic(path, "old")

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(EngineError) as caught:
        store.write_atomic(path, "new")
    assert str(path) in caught.value.message
    assert os.strerror(number) in caught.value.message
    assert hint in caught.value.hint
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_belong_together_come_in_order_and_when_all_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "a" / "first", tmp_path / "b" / "second"
    store.write_together([(first, "1"), (second, b"2")])
    assert (first.read_text(), second.read_text()) == ("1", "2")
    with pytest.raises(EngineError, match="second"):
        store.write_together([(first, "new"), (second / "third", "new")])
    assert first.read_text() == "1", "the second one could not be written"
    real = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if target == second:
            raise OSError(errno.EIO, "broken")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(EngineError, match="second: broken"):
        store.write_together([(first, "new"), (second, "new")])
    assert (first.read_text(), second.read_text()) == ("new", "2")
    assert list(first.parent.iterdir()) == [first] and list(second.parent.iterdir()) == [second]


def test_removing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store.remove(tmp_path / "file")
    store.remove(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(EngineError, match="cannot remove"):
        store.remove(tmp_path)


def test_a_folder_that_cannot_be_made_is_an_engine_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(EngineError, match="taken"):
        store.write_atomic(tmp_path / "taken" / "file", "x")
    with pytest.raises(EngineError, match="taken"):
        store.FileLock(tmp_path / "taken" / "lock").try_acquire()


def test_json_is_the_same_bytes_whatever_the_order(tmp_path: Path) -> None:
    store.write_json(tmp_path / "a", {"b": [1, 2], "a": "ü"})
    store.write_json(tmp_path / "b", {"a": "ü", "b": [1, 2]})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes().endswith(b"}\n")
    assert store.read_json(tmp_path / "a") == {"a": "ü", "b": [1, 2]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": 1,\n  "b" 2}', r"file:2:7: not valid JSON"),
        (b"", r"file:1:1: not valid JSON"),
        (b'"\xff"', r"not valid JSON: .* at byte 1"),
        (b"[" * 200_000, r"nested too deeply"),
        (None, r"file does not exist"),
    ],
)
def test_bad_json_is_an_input_error_with_its_place(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=said):
        store.read_json(tmp_path / "file")


def test_a_folder_is_not_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        store.read_json(tmp_path)


def test_only_one_holds_a_lock(tmp_path: Path) -> None:
    first, second = (store.FileLock(tmp_path / "locks" / "one") for _ in range(2))
    with first:
        assert first.held
        assert first.try_acquire(), "taking a lock one holds is no wait for oneself"
        assert not second.try_acquire()
        assert not second.held
    assert second.try_acquire()
    second.release()
    second.release()
    assert not second.held


def test_waiting_is_said_once_and_ends_when_the_lock_is_free(tmp_path: Path) -> None:
    holder, waiter = (store.FileLock(tmp_path / "one") for _ in range(2))
    said: list[str] = []
    waiting = threading.Event()

    def on_wait() -> None:
        said.append("waiting")
        waiting.set()

    holder.acquire(on_wait=on_wait)
    assert said == [], "a free lock is no wait"
    thread = threading.Thread(target=waiter.acquire, args=(on_wait,))
    thread.start()
    assert waiting.wait(10)
    assert not waiter.held
    holder.release()
    thread.join(10)
    assert waiter.held
    assert said == ["waiting"]
    waiter.release()


def test_a_removed_lock_file_does_not_give_two_holders(tmp_path: Path) -> None:
    path = tmp_path / "one"
    holder, waiter = store.FileLock(path), store.FileLock(path)
    holder.acquire()
    waiting = threading.Event()
    thread = threading.Thread(target=waiter.acquire, args=(waiting.set,))
    thread.start()
    assert waiting.wait(10)
    path.unlink()
    holder.release()
    thread.join(10)
    # The waiter holds the file that has the name now, so a third one has to wait.
    assert waiter.held
    assert not store.FileLock(path).try_acquire()
    waiter.release()


def test_where_a_user_asked_a_link_stays_one_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    store.write_where_asked(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        store.write_where_asked(tmp_path / "pipe", b"into it")
        assert os.read(reader, 100) == b"into it" and (tmp_path / "pipe").is_fifo()
    finally:
        os.close(reader)
    with pytest.raises(EngineError, match="cannot write") as caught:
        store.write_where_asked(tmp_path, b"")
    assert "ENVBUILD_HOME" not in caught.value.hint
