"""The pods of a JobSet, as containers of this engine: with the variables, names and limits of their manifest."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.engines import DockerEngine
from envbuild.executors.kubernetes import manifests
from envbuild.matrix import load
from envbuild.pipeline.pods import pods_of
from envbuild.pipeline.proof import Wish
from envbuild.project import find
from envbuild.site.cluster import KubernetesSection


@pytest.fixture
def network(engine: DockerEngine) -> Iterator[str]:
    docker = ["docker", "-H", engine.endpoint]
    name = f"envbuild-pods-{secrets.token_hex(4)}"
    subprocess.run([*docker, "network", "create", name], check=True, capture_output=True)
    yield name
    left = subprocess.run([*docker, "ps", "-aq", "-f", f"network={name}"], check=True, capture_output=True, text=True)
    subprocess.run([*docker, "rm", "-f", *left.stdout.split()], check=False, capture_output=True)
    subprocess.run([*docker, "network", "rm", name], check=True, capture_output=True)


def started(docker: list[str], network: str, job_set: dict[str, Any], index: int, folder: Path) -> str:
    """The pod of this number; gives its container's name."""
    pod = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    fields = {
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
        "spec.nodeName": f"node-{index}",
    }  # fmt: skip
    env = {
        each["name"]: each.get("value") or fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container["env"]
    }
    argv = [re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], word) for word in container["command"]]
    user = pod["securityContext"]["runAsUser"]
    name, subdomain = f"{network}-{index}", job_set["spec"]["network"]["subdomain"]
    line = [*docker, "run", "-d", "--name", name, "--network", network, "--read-only", "--cap-drop", "ALL",
            "--security-opt", "no-new-privileges", "--user", f"{user}:{user}",
            "--network-alias", f"{job_set['metadata']['name']}-node-0-{index}.{subdomain}"]  # fmt: skip
    for mount in container["volumeMounts"]:
        volume = next(each for each in pod["volumes"] if each["name"] == mount["name"])
        if "configMap" in volume:
            line += ["-v", f"{folder}:{mount['mountPath']}:ro"]
        else:
            line += ["--tmpfs", f"{mount['mountPath']}:rw,exec,mode=1777"]
    line += [f"--env={key}={value}" for key, value in env.items()]
    subprocess.run([*line, "--entrypoint", argv[0], container["image"], *argv[1:]], check=True, capture_output=True)
    return name


def test_the_pods_of_a_job_set_meet_by_name_and_their_sums_are_right(
    engine: DockerEngine, proven: dict[str, object], network: str, tmp_path: Path
) -> None:
    docker = ["docker", "-H", engine.endpoint]
    around = SimpleNamespace(kubernetes=KubernetesSection(), registry=SimpleNamespace(name=None))
    bench: Any = SimpleNamespace(matrix=load(find(None, Path(__file__)).matrix), site=around)
    image = str(proven["tags"][0])  # type: ignore[index]
    config, job_set = manifests(pods_of(bench, image, "cpu", Wish(timeout=120), nodes=2, seed=7))
    tmp_path.chmod(0o755)
    for name, text in config["data"].items():
        (tmp_path / name).write_text(text)
    # The first pod may be the last to begin: its name is not known until then.
    names = [started(docker, network, job_set, index, tmp_path) for index in (1, 0)]
    said = {}
    for name in names:
        code = subprocess.run([*docker, "wait", name], check=True, capture_output=True, text=True, timeout=240).stdout
        logs = subprocess.run([*docker, "logs", name], check=True, capture_output=True, text=True)
        assert code.strip() == "0", logs.stderr
        document = json.loads(logs.stdout.splitlines()[-1])
        said[document["rank"]] = (document["world"], document["node"], document["wrong"])
    assert said == {0: (2, "node-0", 0), 1: (2, "node-1", 0)}
