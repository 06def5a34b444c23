"""An engine for real: builds, containers, exports, leftovers, and what a bootstrapped base holds."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envbuild.engines import BuildRequest, ContainerSpec, DockerEngine, Engine, Mount, Run, sweep
from envbuild.engines.cleanup import HOST_LABEL, RUN_LABEL, host_id
from envbuild.errors import BuildError, EngineError
from envbuild.events import Event, StepDone, StepLine, discard

if TYPE_CHECKING:
    from conftest import CanaryBase

Labels = tuple[tuple[str, str], ...]
PlacesOf = Callable[[str, tuple[bytes, ...]], list[str]]


def request(folder: Path, tag: str, dockerfile: str, *, secret: Path | None = None) -> BuildRequest:
    context = folder / "context"
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(textwrap.dedent(dockerfile))
    return BuildRequest(
        context=context,
        dockerfile=context / "Dockerfile",
        tag=tag,
        platform="linux/amd64",
        labels=(("io.envbuild.test", "yes"),),
        secrets=(("token", secret),) if secret else (),
        network="none",
    )


def spec(base: str, script: str, **rest: object) -> ContainerSpec:
    return ContainerSpec(image=base, argv=("sh", "-c", script), network="none", **rest)  # type: ignore[arg-type]


def mine(engine: Engine, run: str) -> list[str]:
    return [each.id for each in engine.containers(f"{RUN_LABEL}={run}")]


def test_a_build_tells_its_steps_and_the_second_one_is_cached(
    engine: Engine, base: str, tag: str, tmp_path: Path
) -> None:
    wanted = request(tmp_path, tag, f"FROM {base}\nRUN echo {secrets.token_hex(4)} && echo made >/made\n")
    first: list[Event] = []
    engine.build(wanted, sink=first.append, log=tmp_path / "first.log")
    second: list[Event] = []
    engine.build(wanted, sink=second.append, log=tmp_path / "second.log")

    def status(events: list[Event]) -> list[str]:
        return [event.status for event in events if isinstance(event, StepDone) and " RUN " in event.name]

    assert (status(first), status(second)) == (["done"], ["cached"])
    info = engine.image(tag)
    assert info is not None
    assert dict(info.labels)["io.envbuild.test"] == "yes"
    assert len(info.diff_ids) == 2
    assert "RUN echo" in (tmp_path / "first.log").read_text()
    assert [found.id for found in engine.images(tag)] == [info.id]


def test_a_failing_step_is_named_with_its_last_lines_and_tags_nothing(
    engine: Engine, base: str, tag: str, tmp_path: Path
) -> None:
    log = tmp_path / "build.log"
    wanted = request(tmp_path, tag, f"FROM {base}\nRUN echo {secrets.token_hex(4)}; echo the reason >&2; exit 7\n")
    with pytest.raises(BuildError) as caught:
        engine.build(wanted, log=log)
    message = caught.value.message
    assert caught.value.exit_code == 4
    # Podman counts the labels as a step.
    assert re.search(r"\[2/[23]\] RUN echo", message.splitlines()[0])
    assert "  the reason" in message.splitlines()
    assert str(log) in message
    assert engine.image(tag) is None


def test_an_interrupted_build_ends_at_once_and_leaves_no_tag(
    engine: Engine, base: str, tag: str, tmp_path: Path
) -> None:
    wanted = request(tmp_path, tag, f"FROM {base}\nRUN echo {secrets.token_hex(4)} running; sleep 3; touch /late\n")

    def interrupt_when_running(event: Event) -> None:
        if isinstance(event, StepLine) and event.text.endswith("running"):
            # What Ctrl-C does: the signal arrives while the main thread reads the client's output.
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engine.build(wanted, sink=interrupt_when_running, log=tmp_path / "log")
    assert time.monotonic() - began < 3
    time.sleep(max(0.0, began + 4.2 - time.monotonic()))
    assert engine.image(tag) is None, "the engine finished a build that nobody waited for"


def test_a_secret_reaches_the_step_and_nothing_else(
    engine: Engine, base: str, tag: str, tmp_path: Path, places_of: PlacesOf
) -> None:
    word = f"s3cret-{secrets.token_hex(8)}"
    secret = tmp_path / "token.txt"
    secret.write_text(word)
    wanted = request(
        tmp_path,
        tag,
        f"""
        FROM {base}
        RUN --mount=type=secret,id=token wc -c < /run/secrets/token > /length
        """,
        secret=secret,
    )
    engine.build(wanted, log=tmp_path / "log")
    assert engine.run(spec(tag, "cat /length; ls /run/secrets 2>/dev/null"), timeout=20).stdout == f"{len(word)}\n"
    for needle in (word, str(secret)):
        # The history is part of the config.
        assert places_of(tag, (needle.encode(),)) == []
    assert word not in (tmp_path / "log").read_text()


def test_streams_stay_apart_and_lines_come_live(engine: Engine, base: str) -> None:
    seen: list[tuple[float, str]] = []
    began = time.monotonic()

    def sink(event: Event) -> None:
        if isinstance(event, StepLine):
            seen.append((time.monotonic() - began, event.text))

    result = engine.run(spec(base, "echo out; echo one >&2; sleep 1.2; echo two >&2; exit 3"), timeout=20, sink=sink)
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "one\ntwo\n")
    assert (result.timed_out, result.oom_killed) == (False, False)
    assert [text for _, text in seen] == ["one", "two"]
    assert seen[1][0] - seen[0][0] > 0.8
    assert 1.2 <= result.seconds < 15


def test_time_out_kills_and_keeps_what_was_said(engine: Engine, base: str) -> None:
    result = engine.run(spec(base, "echo before; trap '' TERM; sleep 60; echo after"), timeout=1.5)
    assert result.timed_out
    assert result.stdout == "before\n"
    assert result.seconds < 15


def test_out_of_memory_is_told_apart_from_a_crash(engine: Engine, base: str) -> None:
    result = engine.run(spec(base, "exec tail /dev/zero", memory_bytes=32 << 20), timeout=60)
    assert (result.exit_code, result.oom_killed, result.timed_out) == (137, True, False)
    child = engine.run(spec(base, "tail /dev/zero; echo $? survived", memory_bytes=32 << 20), timeout=60)
    # Podman's monitor does not see it under cgroup v1 (conmon 2.1.6).
    seen = engine.kind == "docker" or not engine.info().cgroup.startswith("v1")
    assert (child.stdout, child.oom_killed) == ("137 survived\n", seen)
    crash = engine.run(spec(base, "sh -c 'kill -9 $$'; exit $?"), timeout=20)
    assert (crash.exit_code, crash.oom_killed) == (137, False)


def test_a_strict_container_is_as_strict_as_it_says(engine: Engine, base: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "probe").write_text("probe\n")
    script = """
        id -u; pwd; cat /m/probe; touch /m/x; touch /x
        cp /bin/true /tmp/x && /tmp/x && echo exec
        df -k --output=size /dev/shm | tail -1
        grep -E 'CapBnd|NoNewPrivs' /proc/self/status
        echo $A; ls /sys/class/net
        """
    result = engine.run(
        spec(
            base,
            script,
            user="12345:12345",
            workdir="/tmp",
            env=(("A", "b c"),),
            mounts=(Mount(source=tmp_path, target="/m"),),
            tmpfs=(("/tmp", "rw,exec"),),
            shm_bytes=1 << 20,
            memlock=65536,
            read_only=True,
            cap_drop_all=True,
            no_new_privileges=True,
        ),
        timeout=20,
    )
    said = "12345 /tmp probe exec 1024 CapBnd: 0000000000000000 NoNewPrivs: 1 b c lo"
    assert result.stdout.split() == said.split()
    assert result.stderr.count("Read-only file system") == 2


def test_a_program_that_is_not_there_is_a_result_and_what_the_engine_cannot_make_is_an_error(
    engine: Engine, base: str
) -> None:
    missing = engine.run(ContainerSpec(image=base, argv=("/opt/venv/bin/python", "-V")), timeout=20)
    assert missing.exit_code == 127
    assert "/opt/venv/bin/python" in missing.stderr
    for impossible in (
        ContainerSpec(image="envbuild-test/never:built"),
        spec(base, "true", mounts=(Mount(source=Path("/nonexistent"), target="/m"),)),
    ):
        with pytest.raises(EngineError):
            engine.run(impossible, timeout=20)


def test_an_interrupted_run_leaves_no_container(engine: Engine, base: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "runs", tmp_path / "contexts")
    began = time.monotonic()
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with run, pytest.raises(KeyboardInterrupt):
        engine.run(spec(base, "echo x; sleep 40", labels=run.labels), timeout=60)
    assert mine(engine, run.id) == []
    assert time.monotonic() - began < 20


def created(engine: Engine, base: str, labels: Labels) -> str:
    """The id of a container that was never started."""
    if isinstance(engine, DockerEngine):
        return str(engine._link.api.create_container(base, ["true"], labels=dict(labels))["Id"])
    options = [part for key, value in labels for part in ("--label", f"{key}={value}")]
    argv = [engine.any_client(), "create", *options, base, "true"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def sleeper(engine: Engine, base: str, tmp_path: Path) -> Iterator[str]:
    """The id of a run that was ended by kill -9 while its container ran."""
    program = textwrap.dedent(
        f"""
        from pathlib import Path
        from envbuild.engines import ContainerSpec, Run, connect
        with Run(Path({str(tmp_path / "runs")!r}), Path({str(tmp_path / "contexts")!r})) as run:
            run.folder.mkdir(parents=True)
            print(run.id, flush=True)
            connect({engine.endpoint if engine.kind == "docker" else None!r}, kind={engine.kind!r}).run(
                ContainerSpec(image={base!r}, argv=("sleep", "120"), network="none", labels=run.labels), timeout=120
            )
        """
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    run = child.stdout.readline().strip()
    deadline = time.monotonic() + 20
    while not any(each.state == "running" for each in engine.containers(f"{RUN_LABEL}={run}")):
        assert time.monotonic() < deadline, "the container did not start"
        time.sleep(0.1)
    child.kill()
    child.wait()
    child.stdout.close()
    yield run
    for container in mine(engine, run):
        engine.remove_container(container)


def test_leftovers_of_a_killed_run_are_swept_and_a_living_runs_are_not(
    engine: Engine, base: str, sleeper: str, tmp_path: Path
) -> None:
    runs, contexts = tmp_path / "runs", tmp_path / "contexts"
    assert len(mine(engine, sleeper)) == 1
    foreign = ((RUN_LABEL, sleeper), (HOST_LABEL, "0123456789ab"))
    with Run(runs, contexts) as live:
        kept = [
            created(engine, base, labels)
            for labels in (live.labels, foreign, ((RUN_LABEL, "of-another-store"), (HOST_LABEL, host_id())))
        ]
        try:
            removed = sweep(engine, runs, contexts)
            assert len(removed) == 2
            assert all(sleeper in line for line in removed)
            left = {each.id for each in engine.containers(HOST_LABEL)}
            assert set(kept) <= left
            assert mine(engine, sleeper) == [kept[1]]
            assert not (contexts / sleeper).exists()
        finally:
            for container in kept:
                engine.remove_container(container)


def test_an_export_is_a_tar_with_the_config_and_every_layer(engine: Engine, base: str) -> None:
    names: list[str] = []
    documents: dict[str, bytes] = {}
    with engine.save(base) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            names.append(member.name)
            if member.name.endswith(".json"):
                file = archive.extractfile(member)
                assert file is not None
                documents[member.name] = file.read()
    manifest = json.loads(documents["manifest.json"])[0]
    config = json.loads(documents[manifest["Config"]])
    info = engine.image(base)
    assert info is not None
    assert tuple(config["rootfs"]["diff_ids"]) == info.diff_ids
    assert set(manifest["Layers"]) <= set(names)
    with pytest.raises(EngineError, match="never:built"), engine.save("envbuild-test/never:built") as stream:
        stream.read(1)


def test_an_export_that_is_given_up_holds_nothing_open(engine: Engine, base: str) -> None:
    def sockets() -> int:
        number = 0
        for name in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                number += str(name.readlink()).startswith("socket:")
        return number

    before = sockets()
    for _ in range(2):
        with engine.save(base) as stream:
            stream.read(10)
    assert sockets() <= before + 1


def test_a_registry_that_never_answers_costs_only_its_time(engine: Engine) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        began = time.monotonic()
        assert engine.ask_registry(f"127.0.0.1:{port}/a:b", timeout=2).digest is None
    assert time.monotonic() - began < 6
    refused = engine.ask_registry(f"127.0.0.1:{port}/a:b", timeout=5)
    assert refused.digest is None
    assert "refused" in refused.reason


def test_names_move_and_go(engine: Engine, base: str, tag: str) -> None:
    assert engine.image(tag) is None
    engine.tag(base, tag)
    tagged, original = engine.image(tag), engine.image(base)
    assert tagged is not None
    assert original is not None
    assert tagged.id == original.id
    engine.untag(tag)
    engine.untag(tag)
    assert engine.image(tag) is None
    assert engine.image(base) is not None


def test_a_bootstrapped_base_keeps_nothing_of_the_site_that_made_it(
    engine: Engine, canary_base: CanaryBase, places_of: PlacesOf
) -> None:
    assert any("/dists/bookworm/InRelease" in path for path in canary_base.canaries.requests), "the proxy was not used"
    assert canary_base.used.how == "bootstrapped"
    reference = canary_base.used.reference
    assert places_of(reference, canary_base.canaries.needles) == []
    result = engine.run(
        spec(
            reference,
            "cat /etc/apt/sources.list; cd /etc/apt; ls -A sources.list.d apt.conf.d; find /var/log -size +0",
        ),
        timeout=20,
    )
    assert "http://deb.debian.org/debian bookworm main" in result.stdout
    assert "http://deb.debian.org/debian-security bookworm-security main" in result.stdout
    assert "mmdebstrap" not in result.stdout


def test_a_proof_that_the_search_for_canaries_can_find_one(
    engine: Engine, base: str, tag: str, tmp_path: Path, places_of: PlacesOf
) -> None:
    word = f"canary-{secrets.token_hex(6)}"
    engine.build(
        request(tmp_path, tag, f"FROM {base}\nRUN echo {word} > /etc/{word}\n"), sink=discard, log=tmp_path / "l"
    )
    places = places_of(tag, (word.encode(),))
    assert any(place.endswith(f"etc/{word}") for place in places)
    assert any(place.endswith(".json") for place in places), "the history is part of the config"
