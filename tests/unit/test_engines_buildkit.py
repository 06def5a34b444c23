"""BuildKit's progress output, the choice of a client, and what is said when a build fails.

``interleaved``, ``cached`` and ``failed`` were recorded from docker 20.10.24; ``buildx_failed`` is written
by hand after the format that newer clients print.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild import process
from envbuild.engines import buildkit
from envbuild.engines.buildkit import PlainParser, clean, failure, find_client
from envbuild.engines.endpoint import Endpoint
from envbuild.engines.types import BuildRequest
from envbuild.errors import BuildError, EngineError, InputError
from envbuild.events import Event, StepDone, StepLine, StepStarted, discard

DATA = Path(__file__).parent / "data" / "buildkit"


def parse(name: str) -> tuple[PlainParser, list[Event]]:
    parser = PlainParser()
    # Bytes, because reading text would turn the carriage returns of progress bars into line ends.
    text = (DATA / f"{name}.txt").read_bytes().decode()
    return parser, [event for line in text.split("\n") for event in parser.feed(line)]


def outcome(events: list[Event]) -> dict[str, tuple[str, float]]:
    return {event.key: (event.status, event.seconds) for event in events if isinstance(event, StepDone)}


def test_interleaved_steps_keep_their_own_lines() -> None:
    parser, events = parse("interleaved")
    started = [event.key for event in events if isinstance(event, StepStarted)]
    assert sorted(started, key=int) == [str(number) for number in range(1, 15)], "every step begins exactly once"
    lines = [event.text for event in events if isinstance(event, StepLine) and event.key == "8"]
    assert lines == ["other 1", "other 2", "other 3", "other 4"]
    assert outcome(events)["8"] == ("done", 2.5)
    assert outcome(events)["4"] == ("cached", 0.0)
    assert parser.failed_step() is None
    assert parser.unfinished() == ()


def test_a_last_line_without_newline_does_not_swallow_the_end_of_its_step() -> None:
    _, events = parse("interleaved")
    lines = [event.text for event in events if isinstance(event, StepLine) and event.key == "13"]
    assert lines == ["progress 100%", "unterminated"]
    assert outcome(events)["13"] == ("done", 0.1)


def test_a_cached_build_is_all_cached() -> None:
    _, events = parse("cached")
    done = outcome(events)
    assert [done[str(number)][0] for number in range(5, 11)] == ["cached"] * 6


def test_a_failing_step_is_named_with_its_last_lines() -> None:
    parser, events = parse("failed")
    step = parser.failed_step()
    assert step is not None
    assert step.name.startswith("[broken 2/2] RUN echo before")
    assert step.lines[-1] == "line 30"
    assert len(step.lines) == buildkit.TAIL
    assert step.error.endswith("exit code: 7")
    assert outcome(events)["5"][0] == "canceled"
    assert outcome(events)["7"][0] == "error"


def test_the_newer_dialect_says_the_same() -> None:
    parser, events = parse("buildx_failed")
    step = parser.failed_step()
    assert step is not None
    assert step.name == "[tools 2/2] RUN pip install torch"
    assert step.lines == ("Collecting torch", "ERROR: No matching distribution found for torch")
    assert step.error.endswith("exit code: 1")
    assert [event.name for event in events if isinstance(event, StepStarted) and event.key == "0"] == []
    pulled = [event for event in events if isinstance(event, StepDone) and event.key == "3"]
    assert [event.seconds for event in pulled] == [0.0, 2.4], "a step that goes on after its DONE ends again"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("10%\r50%\r100%\r", "100%"),
        ("\x1b[32mgreen\x1b[0m\x07", "green"),
        ("a\tb  ", "a b"),
        ("\r\r", ""),
    ],
)
def test_lines_are_what_a_terminal_would_end_up_with(line: str, shown: str) -> None:
    assert clean(line) == shown


def fed(*lines: str) -> PlainParser:
    parser = PlainParser()
    for line in lines:
        parser.feed(line)
    return parser


def test_the_message_names_step_lines_and_log_and_leaves_the_instruction_out_of_the_error(tmp_path: Path) -> None:
    parser, _ = parse("failed")
    error = failure(parser, tmp_path / "build.log")
    assert isinstance(error, BuildError)
    assert error.exit_code == 4
    head, *lines = error.message.splitlines()
    assert head.startswith("build step failed: [broken 2/2] RUN echo before")
    assert lines[-3:] == ["  line 30", "  exit code: 7", f"full log: {tmp_path / 'build.log'}"]


def test_a_dockerfile_that_cannot_be_read_is_a_build_failure_with_the_builders_words(tmp_path: Path) -> None:
    said = "failed to solve with frontend dockerfile.v0: dockerfile parse error line 2: unknown instruction: RUNN"
    error = failure(fed("#1 [internal] load build definition from D", "#1 DONE 0.0s", said), tmp_path / "log")
    assert isinstance(error, BuildError)
    assert said in error.message


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            ("#3 [internal] load metadata for docker.io/library/debian:x", "#3 ERROR: dial tcp: no such host"),
            "the base image docker.io/library/debian:x cannot be read: dial tcp: no such host",
        ),
        (
            ("#5 [a 1/1] RUN x", "#5 0.1 cc1: write: No space left on device", "#5 ERROR: exit code: 1"),
            "No space left on device",
        ),
    ],
)
def test_what_is_not_the_dockerfiles_fault_is_the_engines(lines: tuple[str, ...], says: str, tmp_path: Path) -> None:
    error = failure(fed(*lines), tmp_path / "log")
    assert isinstance(error, EngineError)
    assert says in error.message


def answering(monkeypatch: pytest.MonkeyPatch, able: set[str], on_path: tuple[str, ...]) -> list[str]:
    asked: list[str] = []

    def run(argv: list[str], *, env: dict[str, str], timeout: float) -> process.Completed:
        asked.append(argv[0])
        assert argv[1:] == ["--host", "unix:///s", "build", "--help"]
        assert env["DOCKER_BUILDKIT"] == "1"
        if argv[0] == "/gone":
            raise EngineError("/gone was not found")
        text = "      --secret stringArray  ..." if argv[0] in able else "ERROR: the buildx component is missing"
        return process.Completed(argv=tuple(argv), returncode=0, stdout=text, stderr="")

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(process, "which_all", lambda program: on_path)
    return asked


def test_the_first_capable_client_wins_whatever_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, {"/usr/bin/docker"}, ("/usr/local/bin/docker", "/usr/bin/docker"))
    assert find_client("unix:///s", None) == "/usr/bin/docker"
    assert asked == ["/usr/local/bin/docker", "/usr/bin/docker"]


def test_the_configured_client_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"/opt/docker", "/usr/bin/docker"}, ("/usr/bin/docker",))
    assert find_client("unix:///s", "/opt/docker") == "/opt/docker"
    assert find_client("unix:///s", "/gone") == "/usr/bin/docker"


def test_no_capable_client_is_an_error_that_names_those_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, set(), ("/usr/bin/docker",))
    with pytest.raises(EngineError, match=r"BuildKit \(tried: /gone, /usr/bin/docker\)") as caught:
        find_client("unix:///s", "/gone")
    assert "buildx" in caught.value.hint


def test_missing_files_are_all_named_before_anything_starts(tmp_path: Path) -> None:
    request = BuildRequest(
        context=tmp_path / "ctx",
        dockerfile=tmp_path / "D",
        tag="t",
        platform="linux/amd64",
        secrets=(("pip", tmp_path / "s"),),
    )
    endpoint = Endpoint(url="unix:///s", origin="test")
    with pytest.raises(InputError) as caught:
        buildkit.build("docker", endpoint, request, sink=discard, log=tmp_path / "l", timeout=None)
    assert [line.split()[0] for line in caught.value.message.splitlines()] == ["Dockerfile", "build", "build"]


def request(folder: Path) -> BuildRequest:
    (folder / "D").write_text("FROM scratch\n")
    return BuildRequest(context=folder, dockerfile=folder / "D", tag="t", platform="linux/amd64")


def test_the_whole_output_is_logged_and_only_events_reach_the_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DATA / "cached.txt").read_text()

    def stream(argv: object, *, on_line: object, env: dict[str, str], timeout: float | None) -> int:
        assert env["DOCKER_HOST"] == "unix:///s"
        assert env["BUILDX_NO_DEFAULT_ATTESTATIONS"] == "1"
        assert callable(on_line)
        for line in text.splitlines():
            on_line(line)
        return 0

    monkeypatch.setattr(process, "stream", stream)
    seen: list[Event] = []
    log = tmp_path / "logs" / "build.log"
    endpoint = Endpoint(url="unix:///s", origin="test")
    buildkit.build("docker", endpoint, request(tmp_path), sink=seen.append, log=log, timeout=None)
    command, _, logged = log.read_text().partition("\n")
    assert command.startswith("$ docker --host unix:///s build")
    assert logged == text
    assert seen == parse("cached")[1]


def test_a_build_that_takes_too_long_says_which_steps_were_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stream(argv: object, *, on_line: object, env: object, timeout: float | None) -> int:
        assert callable(on_line)
        for line in ("#5 [a 1/2] RUN one", "#5 DONE 1.0s", "#6 [a 2/2] RUN two", "#6 0.1 working", "#6 CANCELED"):
            on_line(line)
        raise process.TimedOut("docker did not end")

    monkeypatch.setattr(process, "stream", stream)
    endpoint = Endpoint(url="unix:///s", origin="test")
    with pytest.raises(BuildError) as caught:
        buildkit.build("docker", endpoint, request(tmp_path), sink=discard, log=tmp_path / "l", timeout=60)
    assert caught.value.message.splitlines()[:2] == [
        "the build did not end within 60 s; unfinished steps:",
        "  [a 2/2] RUN two",
    ]
