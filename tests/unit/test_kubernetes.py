"""A smoke as a Job of Kubernetes: held to the published schemas, and as strict as a smoke's own container."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
import yaml

from envbuild.errors import InputError
from envbuild.executors.kubernetes import manifests
from envbuild.matrix import load
from envbuild.pipeline.pods import pod_of
from envbuild.pipeline.proof import Wish
from envbuild.project import find
from envbuild.site.cluster import Gpus, KubernetesSection

MATRIX = load(find(None, Path(__file__)).matrix)
H100 = Gpus(count=8, selector={"nvidia.com/gpu.present": "true"})
SITE = KubernetesSection(namespace="training", pull_secret="registry", gpus={"h100": H100})


def rendered(image: str, row: str | None = None, site: KubernetesSection = SITE) -> tuple[dict[str, Any], ...]:
    around = SimpleNamespace(kubernetes=site, registry=SimpleNamespace(name=None))
    bench: Any = SimpleNamespace(matrix=MATRIX, site=around)
    made = manifests(pod_of(bench, image, row, Wish(timeout=600), seed=7))
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
