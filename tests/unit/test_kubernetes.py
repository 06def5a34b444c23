"""A smoke as a Job of Kubernetes: held to the published schemas, and as strict as a smoke's own container."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

from envbuild.errors import InputError
from envbuild.executors.kubernetes import manifests
from envbuild.matrix import load
from envbuild.pipeline.pods import pod_of, pods_of
from envbuild.pipeline.proof import Wish
from envbuild.pipeline.sizes import parse_size
from envbuild.project import find
from envbuild.site.cluster import Gpus, KubernetesSection

MATRIX = load(find(None, Path(__file__)).matrix)
H100 = Gpus(count=8, selector={"nvidia.com/gpu.present": "true"})
SITE = KubernetesSection(namespace="training", pull_secret="registry", gpus={"h100": H100})


def rendered(
    image: str, row: str | None = None, site: KubernetesSection = SITE, nodes: int = 1
) -> tuple[dict[str, Any], ...]:
    around = SimpleNamespace(kubernetes=site, registry=SimpleNamespace(name=None))
    bench: Any = SimpleNamespace(matrix=MATRIX, site=around)
    wish = Wish(timeout=600)
    made = manifests(
        pod_of(bench, image, row, wish, seed=7) if nodes == 1
        else pods_of(bench, image, row, wish, nodes=nodes, seed=65535)
    )  # fmt: skip
    # As it is printed and read again.
    return tuple(yaml.safe_load_all(yaml.safe_dump_all(made, sort_keys=False)))


@pytest.mark.parametrize("version", ["1.31", "1.34", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("row", ["cpu", "h100-cu124"])
def test_the_published_schemas_take_it(row: str, version: str) -> None:
    for each in rendered(f"registry.example.com/envbuild/{row}:validated"):
        kubernetes_validate.validate(each, version, strict=True)


def test_a_schema_would_not_take_a_slip() -> None:
    _, job = rendered("registry.example.com/envbuild/cpu:validated")
    job["spec"]["template"]["spec"]["securityContext"]["runAsNonroot"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.34", strict=True)


def taken(job_set: dict[str, Any]) -> None:
    """Held to JobSet's schema, and its Job to that of Kubernetes, by whose rules the API server reads it."""
    # What a schema does not know is lost on the way, and what is of another type is refused.
    read = JobsetV1alpha2JobSet.from_dict(job_set)
    assert read is not None and read.to_dict() == job_set
    (replicated,) = job_set["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **replicated["template"]}
    kubernetes_validate.validate(job, "1.34", strict=True)


@pytest.mark.parametrize("row", sorted(MATRIX.environments))
def test_the_published_schema_of_a_job_set_takes_it(row: str) -> None:
    env = MATRIX.get(row)
    site = SITE.model_copy(update={"gpus": dict.fromkeys(env.gpus, H100)})
    config, job_set = rendered(f"registry.example.com/envbuild/{row}:validated", site=site, nodes=10_000)
    kubernetes_validate.validate(config, "1.34", strict=True)
    taken(job_set)
    # What the controller's webhook asks of names: of its Job, its service, and of the longest name of a pod.
    name = job_set["metadata"]["name"]
    for each in (name, f"{name}-node-0-9999-abcde", job_set["spec"]["network"]["subdomain"]):
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", each), each


def test_a_job_sets_schema_would_not_take_a_slip_either() -> None:
    for path, value in (
        (("network", "subDomain"), "x"),
        (("network", "enableDNSHostnames"), "yes"),
        (("replicatedJobs", 0, "replica"), 1),
        (("replicatedJobs", 0, "template", "spec", "completionmode"), "Indexed"),
    ):
        _, job_set = rendered("registry.example.com/envbuild/cpu:validated", nodes=2)
        place = job_set["spec"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        with pytest.raises((AssertionError, ValueError)):
            taken(job_set)


def test_the_job_set_is_the_all_reduce_with_a_pod_on_each_node() -> None:
    config, job_set = rendered("registry.example.com/envbuild/h100-cu124:validated", nodes=3)
    name = job_set["metadata"]["name"]
    (replicated,) = job_set["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (job["parallelism"], job["completions"], job["completionMode"], job["backoffLimit"]) == (3, 3, "Indexed", 0)
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    seen = {each["name"]: each for each in container["env"]}
    # The first pod's name is where the others meet, and every variable of the command line is there.
    assert seen["MASTER_ADDR"]["value"] == f"{name}-node-0-0.{name}"
    assert job_set["spec"]["network"] == {"enableDNSHostnames": True, "subdomain": name}
    line = " ".join(container["command"])
    assert set(re.findall(r"\$\((\w+)\)", line)) <= set(seen) and "--nproc_per_node=8" in line and "--nnodes=3" in line
    assert "/run/envbuild-probes/allreduce.py" in line and set(config["data"]) == {"allreduce.py"}
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"].items() <= job["template"]["metadata"]["labels"].items()
    assert {"emptyDir": {"medium": "Memory", "sizeLimit": str(parse_size(MATRIX.get("h100-cu124").shm_size))},
            "name": "shm"} in pod["volumes"]  # fmt: skip


def test_the_job_is_the_smoke() -> None:
    config, job = rendered("registry.example.com/envbuild/h100-cu124:validated")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"][:3] == ["/opt/venv/bin/python", "-I", "/run/envbuild-probes/zero3.py"]
    assert container["command"][3:7] == ["--ranks", "8", "--steps", "10"] and "cuda" in container["command"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"} and pod["imagePullSecrets"] == [
        {"name": "registry"}
    ]
    assert job["metadata"]["namespace"] == config["metadata"]["namespace"] == "training"
    assert container["securityContext"]["readOnlyRootFilesystem"] and pod["securityContext"]["runAsUser"] == 65532
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounted["shm"] == "/dev/shm" and mounted["probes"] == "/run/envbuild-probes"
    assert (
        next(each for each in pod["volumes"] if each["name"] == "probes")["configMap"]["name"]
        == config["metadata"]["name"]
    )
    # Every file that a probe loads is there, and a ConfigMap may hold a MiB.
    assert {"zero3.py", "zero3_rank.py", "common.py", "surroundings.py"} <= set(config["data"])
    assert sum(map(len, config["data"].values())) < 1 << 20


def test_the_cpus_row_wants_no_gpu_and_may_swap() -> None:
    _, job = rendered("registry.example.com/envbuild/cpu:validated", site=KubernetesSection())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert "resources" not in container and "namespace" not in job["metadata"]
    assert container["command"][container["command"].index("--nvme") + 1] == "/run/envbuild-disk"


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("registry.example.com/team/train:7", "which row"),
        ("cpu", "from a registry"),
        ("registry.example.com/envbuild/a100-cu118:1", r"\[kubernetes\.gpus\] knows h100"),
        ("no image", "neither a row"),
    ],
)
def test_what_is_missing_is_named(image: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        rendered(image)
