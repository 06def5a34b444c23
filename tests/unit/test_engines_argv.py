"""The exact command lines and API payloads."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from envbuild.engines.argv import build_argv, create_payload, run_argv
from envbuild.engines.podman_argv import build_argv as podman_build_argv
from envbuild.engines.podman_argv import keeps_id, podman_argv
from envbuild.engines.types import BuildRequest, ContainerSpec, Mount

HOST = "unix:///run/docker.sock"

FULL = ContainerSpec(
    image="envbuild/cpu:validated",
    argv=("python", "-I", "/probe.py", "a b"),
    env=(("HOME", "/tmp"), ("X", "a=b c")),
    mounts=(
        Mount(source=Path("/probes"), target="/run/probes"),
        Mount(source=Path("/data,old"), target="/project", read_only=False),
    ),
    tmpfs=(("/tmp", "rw,exec,size=2g"), ("/scratch", "")),
    user="65532:65532",
    network="none",
    shm_bytes=1 << 30,
    memlock=-1,
    cpu_shares=16384,
    memory_bytes=1 << 31,
    read_only=True,
    gpus=("GPU-1", "MIG-2"),
    labels=(("io.envbuild.run", "r1"),),
    workdir="/project",
    cap_drop_all=True,
    no_new_privileges=True,
)


def test_build_argv_carries_everything_and_the_context_last() -> None:
    request = BuildRequest(
        context=Path("/ctx"),
        dockerfile=Path("/elsewhere/Dockerfile"),
        tag="envbuild/cpu:candidate-1",
        platform="linux/amd64",
        target="runtime",
        build_args=(("BASE", "envbuild/base:1"),),
        labels=(("title", "a b"),),
        secrets=(("pip", Path("/s/pip.conf")), ("ca", Path("/s/a,b"))),
        network="host",
        no_cache=True,
    )
    assert shlex.join(build_argv("/usr/bin/docker", HOST, request)) == (
        "/usr/bin/docker --host unix:///run/docker.sock build --progress=plain"
        " --file /elsewhere/Dockerfile --tag envbuild/cpu:candidate-1 --platform linux/amd64"
        " --target runtime --network host --no-cache --build-arg BASE=envbuild/base:1 --label 'title=a b'"
        " --secret id=pip,src=/s/pip.conf --secret 'id=ca,\"src=/s/a,b\"' /ctx"
    )


def test_build_argv_says_nothing_about_what_was_not_asked() -> None:
    request = BuildRequest(context=Path("/c"), dockerfile=Path("/c/D"), tag="t:1", platform="linux/arm64")
    assert build_argv("docker", HOST, request)[3:] == (
        *("build", "--progress=plain", "--file", "/c/D", "--tag", "t:1", "--platform", "linux/arm64", "/c"),
    )


def test_run_argv_is_the_line_a_person_would_type() -> None:
    assert shlex.join(run_argv("docker", HOST, FULL)) == (
        "docker --host unix:///run/docker.sock run --rm --cpu-shares 16384 --gpus '\"device=GPU-1,MIG-2\"'"
        " --shm-size 1073741824"
        " --ulimit memlock=-1:-1 --memory 2147483648 --memory-swap 2147483648 --user 65532:65532 --network none"
        " --workdir /project --read-only --cap-drop ALL --security-opt no-new-privileges"
        " --mount type=bind,source=/probes,target=/run/probes,readonly"
        " --mount 'type=bind,\"source=/data,old\",target=/project'"
        " --tmpfs /tmp:rw,exec,size=2g --tmpfs /scratch --env HOME=/tmp --env 'X=a=b c' --label io.envbuild.run=r1"
        " --entrypoint '' envbuild/cpu:validated python -I /probe.py 'a b'"
    )


def test_run_argv_for_a_person_at_a_terminal() -> None:
    spec = ContainerSpec(image="i", gpus=("all",), interactive=True)
    assert run_argv("docker", HOST, spec)[3:] == ("run", "--rm", "--interactive", "--tty", "--gpus", "all", "i")


def test_create_payload_is_the_same_container_for_the_api() -> None:
    assert create_payload(FULL) == {
        "Image": "envbuild/cpu:validated",
        "Entrypoint": [],
        "Cmd": ["python", "-I", "/probe.py", "a b"],
        "Env": ["HOME=/tmp", "X=a=b c"],
        "Labels": {"io.envbuild.run": "r1"},
        "User": "65532:65532",
        "WorkingDir": "/project",
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": False,
        "Tty": False,
        "HostConfig": {
            "Mounts": [
                {"Type": "bind", "Source": "/probes", "Target": "/run/probes", "ReadOnly": True},
                {"Type": "bind", "Source": "/data,old", "Target": "/project", "ReadOnly": False},
            ],
            "Tmpfs": {"/tmp": "rw,exec,size=2g", "/scratch": ""},
            "ReadonlyRootfs": True,
            "LogConfig": {"Type": "none", "Config": {}},
            "NetworkMode": "none",
            "ShmSize": 1073741824,
            "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
            "Memory": 2147483648,
            "MemorySwap": 2147483648,
            "CpuShares": 16384,
            "DeviceRequests": [
                {
                    "Driver": "",
                    "Count": 0,
                    "DeviceIDs": ["GPU-1", "MIG-2"],
                    "Capabilities": [["gpu"]],
                    "Options": {},
                }
            ],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
        },
    }


@pytest.mark.parametrize(("gpus", "count", "ids"), [(("all",), -1, []), (("GPU-1",), 0, ["GPU-1"])])
def test_device_requests_name_gpus_as_docker_does(gpus: tuple[str, ...], count: int, ids: list[str]) -> None:
    host = create_payload(ContainerSpec(image="i", gpus=gpus))["HostConfig"]
    assert isinstance(host, dict)
    assert [(each["Count"], each["DeviceIDs"]) for each in host["DeviceRequests"]] == [(count, ids)]


def test_podman_gets_each_gpu_by_cdi_and_all_else_as_docker_does() -> None:
    docker = run_argv("docker", HOST, FULL)
    podman = podman_argv("podman", HOST, FULL, name="n", keep_id=True, limits={"nofile": (1, 2)})
    own = ("run", "--name", "n", "--log-driver", "none", "--pull", "never", "--http-proxy=false",
           "--read-only-tmpfs=false", "--userns", "keep-id", "--security-opt", "label=disable",
           "--ulimit", "nofile=1:2",
           "--device", "nvidia.com/gpu=GPU-1", "--device", "nvidia.com/gpu=MIG-2")  # fmt: skip
    assert podman[: 3 + len(own)] == ("podman", "--url", HOST, *own)
    rest = [word.replace(",notmpcopyup", "").replace("notmpcopyup", "") for word in podman[3 + len(own) :]]
    assert [word.rstrip(":") for word in rest] == list(docker[docker.index("--gpus") + 2 :])
    assert [podman[place + 1] for place, word in enumerate(podman) if word == "--tmpfs"] == [
        "/tmp:rw,exec,size=2g,notmpcopyup", "/scratch:notmpcopyup",
    ]  # fmt: skip
    assert podman_argv("podman", None, ContainerSpec(image="i", gpus=("all",)))[:3] == ("podman", "run", "--rm")


def test_only_the_users_own_id_is_kept_and_only_where_it_would_be_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 1000)
    mine, other = ContainerSpec(image="i", user="1000:1000"), ContainerSpec(image="i", user="65532:65532")
    kept = [
        (spec, rootless) for spec in (mine, other) for rootless in (True, False) if keeps_id(spec, rootless=rootless)
    ]
    assert kept == [(mine, True)]


def test_podman_builds_what_docker_builds(tmp_path: Path) -> None:
    request = BuildRequest(
        context=tmp_path, dockerfile=tmp_path / "D", tag="e/x:1", platform="linux/amd64", target="runtime",
        build_args=(("BASE", "b"),), labels=(("k", "v w"),), secrets=(("pip", Path("/s")),), network="host",
        no_cache=True,
    )  # fmt: skip
    docker, podman = build_argv("docker", HOST, request), podman_build_argv("podman", None, request)
    assert podman[:5] == ("podman", "build", "--format", "docker", "--pull=missing")
    assert podman[6:] == docker[docker.index("--file") :]


def test_a_named_builder_brings_its_result_into_the_engine(tmp_path: Path) -> None:
    request = BuildRequest(context=tmp_path, dockerfile=tmp_path / "D", tag="e/x:1", platform="linux/amd64")
    plain, by_name = build_argv("docker", HOST, request), build_argv("docker", HOST, request, builder="farm")
    assert by_name[3:9] == ("buildx", "build", "--builder", "farm", "--load", "--progress=plain")
    assert by_name[9:] == plain[5:]


def test_create_payload_leaves_defaults_to_the_engine() -> None:
    payload = create_payload(ContainerSpec(image="i"))
    # An entrypoint of [] would switch the image's own command off.
    assert not {"Entrypoint", "Cmd", "User", "WorkingDir"} & payload.keys()
    host = payload["HostConfig"]
    assert isinstance(host, dict)
    assert host.keys() == {"Mounts", "Tmpfs", "ReadonlyRootfs", "LogConfig"}
