"""The parts of the engine that can be seen without one."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator

import pytest
from requests import Response

from envbuild.engines.container import STDERR, STDOUT, Output
from envbuild.engines.faults import plain, root_cause
from envbuild.engines.images import image_info
from envbuild.engines.transfer import Chunks, PullProgress, frames, split
from envbuild.errors import EngineError
from envbuild.events import Event, StepDone, StepLine, StepStarted, discard


@pytest.mark.parametrize(
    ("ref", "parts"),
    [
        ("debian", ("debian", "latest")),
        ("docker.io/library/debian:bookworm", ("docker.io/library/debian", "bookworm")),
        ("host:5000/a/b", ("host:5000/a/b", "latest")),
        ("host:5000/a/b:c", ("host:5000/a/b", "c")),
        ("host:5000/a:tag@sha256:12", ("host:5000/a", "sha256:12")),
    ],
)
def test_references_split_as_the_api_wants_them(ref: str, parts: tuple[str, str]) -> None:
    assert split(ref) == parts


def test_an_export_reads_as_a_tar_whatever_its_chunks() -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        info = tarfile.TarInfo("a")
        info.size = 70_000
        tar.addfile(info, io.BytesIO(b"x" * 70_000))
    data = whole.getvalue()
    chunks = iter([b"", *(data[start : start + 1013] for start in range(0, len(data), 1013))])
    with (
        io.BufferedReader(Chunks(chunks, contextlib.nullcontext)) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        member = tar.next()
        assert member is not None
        extracted = tar.extractfile(member)
        assert extracted is not None
        assert extracted.read() == b"x" * 70_000


def test_an_export_that_breaks_off_is_the_engines_error_not_a_short_file() -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * 10
        raise ConnectionResetError(104, "Connection reset by peer")

    stream = io.BufferedReader(Chunks(broken(), lambda: plain("export the image i", "unix:///s")))
    with pytest.raises(EngineError, match=r"cannot export the image i.*connection reset by peer"):
        stream.read()


def test_engine_exceptions_become_one_plain_message() -> None:
    import requests
    from docker.errors import APIError

    response = requests.Response()
    response.status_code = 500
    cases: list[tuple[Exception, str]] = [
        (
            APIError(
                "500", response=response, explanation='could not\n  select device driver "" with capabilities: [[gpu]]'
            ),
            "nvidia-ctk runtime configure",
        ),
        (requests.exceptions.ReadTimeout("Read timed out. (read timeout=5)"), ""),
        (requests.exceptions.ConnectionError("Connection aborted.", ConnectionRefusedError(111, "Refused")), "daemon"),
    ]
    for error, hint in cases:
        with pytest.raises(EngineError) as caught, plain("do it", "unix:///s"):
            raise error
        assert caught.value.message.startswith("cannot do it: ")
        assert "\n" not in caught.value.message
        assert hint in caught.value.hint
    with pytest.raises(ZeroDivisionError), plain("do it", "unix:///s"):
        raise ZeroDivisionError


def test_the_root_cause_of_a_wrapped_error_is_the_systems_own_word() -> None:
    wrapped = RuntimeError("Error while fetching", OSError("aborted", PermissionError(13, "Permission denied")))
    assert root_cause(wrapped) == "permission denied"
    assert root_cause(ValueError("odd\n  thing")) == "odd thing"


def testimage_info_survives_what_old_and_new_engines_leave_out() -> None:
    info = image_info({"Id": "sha256:1", "Config": None, "RootFS": {"Layers": None}, "RepoTags": None})
    assert (info.diff_ids, info.labels, info.env, info.repo_tags) == ((), (), (), ())
    info = image_info({"Id": "sha256:1", "Config": {"Env": ["A=b=c", "EMPTY="], "Labels": {"k": "v"}}})
    assert info.env == (("A", "b=c"), ("EMPTY", ""))
    assert info.labels == (("k", "v"),)


def test_a_pull_is_one_step_per_layer_with_sparse_progress() -> None:
    seen: list[Event] = []
    progress = PullProgress(seen.append)
    progress.feed({"status": "Pulling from library/debian", "id": "bookworm"})
    progress.feed({"status": "Already exists", "progressDetail": {}, "id": "aaa"})
    progress.feed({"status": "Pulling fs layer", "progressDetail": {}, "id": "bbb"})
    for current in range(101):
        detail = {"current": current * 1_000_000, "total": 100_000_000}
        progress.feed({"status": "Downloading", "progressDetail": detail, "id": "bbb"})
    progress.feed({"status": "Pull complete", "progressDetail": {}, "id": "bbb"})
    progress.feed({"status": "Digest: sha256:1"})
    steps = [(event.key, event.status) for event in seen if isinstance(event, StepDone)]
    assert steps == [("aaa", "cached"), ("bbb", "done")]
    assert sum(isinstance(event, StepStarted) for event in seen) == 2
    lines = [event.text for event in seen if isinstance(event, StepLine)]
    assert lines[1] == "Downloading 0.0 / 100.0 MB"
    assert 10 <= len(lines) <= 13
    assert progress.error == ""
    progress.feed({"errorDetail": {"message": "x"}, "error": "manifest\n unknown"})
    assert progress.error == "manifest unknown"


def frame(stream: int, data: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def response(*pieces: tuple[int, bytes]) -> Response:
    answer = Response()
    answer.raw = io.BytesIO(b"".join(frame(*piece) for piece in pieces))
    return answer


def test_container_output_keeps_streams_apart_and_tells_whole_lines() -> None:
    seen: list[Event] = []
    pieces = [(1, b"out 1\n"), (2, b"err"), (2, b""), (2, b" 1\r\nerr 2\n\n"), (1, b"\xff"), (2, b"tail")]
    output = Output(response(*pieces), seen.append)
    output.start()
    output.join(5)
    assert output.text(STDOUT) == "out 1\n\ufffd"
    assert output.text(STDERR) == "err 1\r\nerr 2\n\ntail"
    assert [event.text for event in seen if isinstance(event, StepLine)] == ["err 1", "err 2", "tail"]


def test_output_that_breaks_off_keeps_what_came() -> None:
    whole = frame(1, b"all of it") + frame(1, b"only a part of this")
    assert list(frames(io.BytesIO(whole[:-5]))) == [(1, b"all of it"), (1, b"only a part of")]
    assert list(frames(io.BytesIO(whole[:4]))) == []


def test_a_flood_of_output_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envbuild.engines.container._KEEP_BYTES", 1000)
    output = Output(response(*((STDOUT, b"%05d\n" % number) for number in range(1000))), discard)
    output.start()
    output.join(5)
    assert len(output.text(STDOUT)) <= 1000
    assert output.text(STDOUT).endswith("00999\n")
