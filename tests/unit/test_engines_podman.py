"""Podman without Podman: its output, its names, its limits, and which engine is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild import process
from envbuild.engines import Candidate, Kind, Wish, cdi, connect, podman_builds, podman_run, seccomp
from envbuild.engines.buildkit import find_client
from envbuild.engines.cleanup import HOST_LABEL, RUN_LABEL
from envbuild.engines.images import familiar, matches
from envbuild.engines.incoming import Incoming, fill
from envbuild.engines.podman_build import Parser, failure
from envbuild.engines.podman_pull import Progress
from envbuild.engines.survey import survey
from envbuild.engines.tunnel import ssh_argv
from envbuild.errors import BuildError, EngineError, InputError
from envbuild.events import Event, StepDone, StepLine, StepStarted
from envbuild.registry import Manifest
from envbuild.registry.manifests import OCI_CONFIG, OCI_LAYER, OCI_MANIFEST, digest_of, parse

# The shape of what podman 4.3.1 prints: a step that mounts another stage is announced before that stage runs.
OUTPUT = """\
[1/3] STEP 1/2: FROM envbuild/base:1 AS tools
[1/3] STEP 2/2: RUN make tools
--> Using cache 15cc1cd495037a86d6e09cd635d1975a8f348430dd465f9ca2a33f019198c32b
--> 15cc1cd4950
[3/3] STEP 1/3: FROM 15cc1cd495037a86d6e09cd635d1975a8f348430dd465f9ca2a33f019198c32b AS runtime
[3/3] STEP 2/3: RUN --mount=type=bind,from=ops,source=/out,target=/in use
[2/3] STEP 1/2: FROM 15cc1cd495037a86d6e09cd635d1975a8f348430dd465f9ca2a33f019198c32b AS ops
[2/3] STEP 2/2: RUN compile
compiling
--> 4913419fb7a
using
--> 1e8a2bcec3d
[3/3] STEP 3/3: ENV A=b
[3/3] COMMIT envbuild/x:1
--> 3bb392b4f77
Successfully tagged localhost/envbuild/x:1
3bb392b4f770bede858749db616aecae756eae1b69e0ad2397cb87646381b001
""".replace("[3/3] COMMIT", "COMMIT")


def fed(text: str) -> tuple[Parser, list[Event]]:
    parser = Parser()
    return parser, [event for line in text.splitlines() for event in parser.feed(line)]


def test_every_step_begins_and_ends_once_and_has_its_own_lines() -> None:
    parser, events = fed(OUTPUT)
    names = {
        event.key: event.name.partition("] ")[2].split()[0:2] for event in events if isinstance(event, StepStarted)
    }
    ended = {event.key: event.status for event in events if isinstance(event, StepDone)}
    assert len(names) == 7
    assert ended == {key: "cached" if words == ["RUN", "make"] else "done" for key, words in names.items()}
    lines = [(names[event.key][1], event.text) for event in events if isinstance(event, StepLine)]
    assert lines == [("compile", "compiling"), ("--mount=type=bind,from=ops,source=/out,target=/in", "using")]
    assert parser.unfinished() == ()


def test_a_failed_step_is_named_and_what_failed_outside_is_the_engines() -> None:
    said = 'Error: building at STEP "RUN echo why; exit 7": while running runtime: exit status 7'
    parser, events = fed(f"STEP 1/2: FROM b\nSTEP 2/2: RUN echo why; exit 7\nwhy\n{said}")
    error = failure(parser, Path("/log"))
    assert isinstance(error, BuildError)
    assert error.message.splitlines() == [
        "build step failed: [2/2] RUN echo why; exit 7", "  why", "  exit code: 7", "full log: /log",
    ]  # fmt: skip
    assert isinstance(events[-1], StepDone)
    assert events[-1].status == "error"
    outside, _ = fed("STEP 1/2: FROM no:1\nError: creating build container: no:1: image not known")
    told = failure(outside, Path("/log"))
    assert isinstance(told, EngineError)
    assert "image not known" in told.message
    mapped, _ = fed("Error: copying: potentially insufficient UIDs or GIDs available in user namespace")
    assert "/etc/subuid" in failure(mapped, Path("/log")).hint


def test_a_pull_ends_every_layer_that_it_began() -> None:
    events: list[Event] = []
    progress = Progress(events.append)
    for line in (
        f"Copying blob sha256:{'a' * 64}",
        f"Copying blob {'b' * 12} skipped: already exists",
        "Copying config x",
    ):
        progress.feed(line)
    assert [(each.key[0], each.status) for each in events if isinstance(each, StepDone)] == [
        ("b", "cached"),
        ("a", "done"),
    ]
    progress.feed("Error: manifest unknown")
    progress.feed("more")
    assert progress.error == "manifest unknown"


@pytest.mark.parametrize(
    "pattern, fits",
    [("envbuild/cpu:*", True), ("envbuild/*", True), ("envbuild/cpu", True), ("*", False), ("*/*", True),
     ("envbuild/cpu:x", False)],
)  # fmt: skip
def test_names_fit_patterns_as_dockers_do(pattern: str, fits: bool) -> None:
    assert matches("envbuild/cpu:validated", pattern) is fits
    assert matches("host:5000/envbuild/cpu:validated", pattern) is False


def test_names_are_written_without_the_registry_that_nobody_wrote() -> None:
    assert [familiar(name) for name in ("localhost/envbuild/cpu:1", "docker.io/library/debian:12", "r.test/a:1")] == [
        "envbuild/cpu:1", "debian:12", "r.test/a:1",
    ]  # fmt: skip


def test_the_limits_that_are_asked_for_are_ones_that_this_process_may_give() -> None:
    for soft, hard in podman_run.own_limits().values():
        assert 0 < soft <= hard


def test_gpus_are_described_where_a_file_speaks_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: nvidia.com/gpu\n")
    (tmp_path / "b.json").write_text('{"kind": "vendor.example/net"}')
    (tmp_path / "c.txt").write_text("nvidia.com/gpu")
    (tmp_path / "d.yaml").mkdir()
    assert cdi.specifications((tmp_path, tmp_path / "none")) == (tmp_path / "a.yaml",)


class Fake:
    """An engine, as far as choosing one goes."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def info(self) -> None:
        raise EngineError("not asked")


Answering = Callable[..., None]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answering:
    """Says which engines answer."""

    def those(*kinds: str) -> None:
        def candidate(kind: str) -> Callable[..., Candidate]:
            engine = Fake(kind) if kind in kinds else None
            reason = "" if engine else f"no {kind}"
            return lambda *args: Candidate(kind=kind, place=kind, origin="test", engine=engine, reason=reason)  # type: ignore[arg-type]

        for name in ("docker", "podman"):
            monkeypatch.setattr(f"envbuild.engines.choosing._{name}", candidate(name))
        monkeypatch.setenv("DOCKER_CONFIG", "/nonexistent")
        for variable in ("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST"):
            monkeypatch.delenv(variable, raising=False)

    return those


@pytest.mark.parametrize(
    "there, host, kind, taken",
    [
        (("docker", "podman"), None, "auto", "docker"),
        (("podman",), None, "auto", "podman"),
        (("docker", "podman"), None, "podman", "podman"),
        (("podman",), None, "docker", None),
        (("podman",), "tcp://chosen:1", "auto", None),
        (("docker",), None, "podman", None),
    ],
)
def test_docker_comes_first_and_a_choice_stands_alone(
    there: tuple[str, ...], host: str | None, kind: Kind, taken: str | None, answering: Answering
) -> None:
    answering(*there)
    if taken is None:
        with pytest.raises(EngineError, match="answers; tried"):
            connect(host, kind=kind)
    else:
        assert connect(host, kind=kind).kind == taken
    seen = survey(Wish(host=host, kind=kind), {"DOCKER_CONFIG": "/nonexistent"})
    assert [each.candidate.kind for each in seen if each.taken] == ([taken] if taken else [])
    # All of them are told of, with a reason.
    assert {each.candidate.kind for each in seen} == {"docker", "podman"}
    assert all(each.why for each in seen)


def test_podmans_own_variable_chooses_podman_where_nothing_of_dockers_is_chosen(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering("docker", "podman")
    environ = {"DOCKER_CONFIG": "/nonexistent", "CONTAINER_HOST": "unix:///p.sock"}
    monkeypatch.setenv("CONTAINER_HOST", environ["CONTAINER_HOST"])
    assert connect().kind == "podman" and connect("tcp://chosen:1").kind == "docker"
    assert connect(kind="docker").kind == "docker"
    seen = survey(Wish(), environ)
    assert (seen[0].candidate.kind, seen[0].taken) == ("podman", True)
    assert any(each.candidate.kind == "docker" and "CONTAINER_HOST" in each.why for each in seen)


def test_a_build_is_marked_as_its_runs_and_what_it_left_is_known_by_that(tmp_path: Path) -> None:
    owner = ((RUN_LABEL, "0123456789abcdef"), (HOST_LABEL, "0123456789ab"))
    option, secret = podman_builds.mark(owner)
    assert option == "--secret" and podman_builds.mark(()) == ()
    states = {
        "a": {"CommonBuildOpts": {"Secrets": ["id=token,src=/t", secret]}},
        "b": {"CommonBuildOpts": None},
        "c": [],
    }
    for name, state in states.items():
        (tmp_path / name / "userdata").mkdir(parents=True)
        (tmp_path / name / "userdata/buildah.json").write_text(json.dumps(state))
    listed = [{"Id": name, "Image": "i", "State": "storage", "Labels": None} for name in ("a", "b", "c", "gone")]
    listed.append({"Id": "d", "Image": "i", "State": "running", "Labels": dict(owner)})
    for label in (f"{RUN_LABEL}=0123456789abcdef", HOST_LABEL):
        assert [each.id for each in podman_builds.containers(listed, label, tmp_path)] == ["a", "d"]
    assert [each.id for each in podman_builds.containers(listed, f"{RUN_LABEL}=f", tmp_path)] == []


def test_layers_that_the_engine_has_are_called_by_their_diff_ids_and_the_rest_stays_as_it_is(tmp_path: Path) -> None:
    config = b'{"rootfs": {"diff_ids": ["sha256:%s", "sha256:%s"]}}' % (b"1" * 64, b"2" * 64)
    layers = [{"mediaType": OCI_LAYER, "digest": f"sha256:{digit * 64}", "size": 5} for digit in "ab"]
    raw = json.dumps({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": layers, "config": {
        "mediaType": OCI_CONFIG, "digest": digest_of(config), "size": len(config)}}).encode()  # fmt: skip
    manifest = parse(raw, OCI_MANIFEST, "test")
    assert isinstance(manifest, Manifest)
    for skipped, names in ((0, "ab"), (1, "b"), (2, "")):
        folder = tmp_path / str(skipped)
        folder.mkdir()
        fill(folder, Incoming(manifest=manifest, config=config, skipped=skipped), lambda digest: tmp_path / digest)
        assert {path.name[0] for path in folder.iterdir() if path.is_symlink()} == set(names)
        written = (folder / "manifest.json").read_bytes()
        assert (written == raw) is (skipped == 0)
        digests = [layer["digest"] for layer in json.loads(written)["layers"]]
        assert digests == [
            *(f"sha256:{digit * 64}" for digit in "12"[:skipped]),
            *(each["digest"] for each in layers[skipped:]),
        ]


def test_a_builder_is_buildxs_alone(answering: Answering) -> None:
    answering("podman")
    with pytest.raises(InputError, match="farm"):
        connect(builder="farm")


@pytest.mark.parametrize(
    "url, argv",
    [
        ("ssh://lab", "-- lab docker system dial-stdio"),
        ("ssh://me@lab:2222", "-l me -p 2222 -- lab docker system dial-stdio"),
        ("ssh://lab/run/d.sock", "-- lab docker --host unix:///run/d.sock system dial-stdio"),
    ],
)
def test_ssh_reaches_the_engine_as_dockers_client_does(url: str, argv: str) -> None:
    assert " ".join(ssh_argv(url)) == f"ssh -T -o BatchMode=yes -o ConnectTimeout=15 {argv}"


@pytest.mark.parametrize("url", ["ssh://", "ssh://-oProxyCommand=x", "ssh://a:b@lab", "ssh://lab:x", "ssh://lab?q"])
def test_an_ssh_address_is_not_taken_for_an_option(url: str) -> None:
    with pytest.raises(EngineError):
        ssh_argv(url)


def test_a_builder_needs_buildx_and_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, tuple[int, str]] = {}

    def run(argv: list[str], **options: object) -> process.Completed:
        code, text = said[argv[-2] if argv[-1] == "farm" else argv[-1]]
        return process.Completed(argv=tuple(argv), returncode=code, stdout="", stderr=text)

    monkeypatch.setattr(process, "which_all", lambda program: ("/bin/docker",))
    monkeypatch.setattr(process, "run", run)
    said |= {"version": (0, ""), "inspect": (0, "")}
    assert find_client("unix:///s", None, "farm") == "/bin/docker"
    said["inspect"] = (1, 'no builder "farm" found')
    with pytest.raises(EngineError, match='no builder "farm" found'):
        find_client("unix:///s", None, "farm")
    said["version"] = (1, "docker: 'buildx' is not a docker command.")
    with pytest.raises(EngineError, match="has no buildx") as caught:
        find_client("unix:///s", None, "farm")
    assert "docker-buildx" in caught.value.hint


def test_a_filter_is_mended_only_where_it_refuses_what_async_io_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path / "home"))
    system = tmp_path / "seccomp.json"
    refusing = {"names": ["io_pgetevents", "kexec_load"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}
    allowing = {"names": ["io_getevents", "read"], "action": "SCMP_ACT_ALLOW"}
    system.write_text(json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [refusing, allowing]}))
    mended = seccomp.profile(str(system))
    assert mended is not None
    said = json.loads(mended.read_text())
    assert [(rule["names"], rule["action"]) for rule in said["syscalls"]] == [
        (["kexec_load"], "SCMP_ACT_ERRNO"), (["io_getevents", "read"], "SCMP_ACT_ALLOW"),
        (["io_pgetevents"], "SCMP_ACT_ALLOW"),
    ]  # fmt: skip
    assert seccomp.profile(str(mended)) is None
    for damage in ("{", "[]", '{"syscalls": [1]}'):
        system.write_text(damage)
        assert seccomp.profile(str(system)) is None
