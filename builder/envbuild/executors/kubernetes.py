"""A proof as a Job of Kubernetes, or over several nodes as a JobSet: rendered, for somebody else to submit. Pure.

The container is as strict as the one that a smoke starts: no capabilities, no rights to be had, an ordinary uid, a
read-only root. Two things a pod cannot say: no network at all, and a limit of locked memory, which is the node's own.

A JobSet (https://jobset.sigs.k8s.io) has one Job with a pod for each node. Its controller makes the headless service
that gives each pod a name, ``NAME-node-0-INDEX.NAME`` (``Network`` in ``api/jobset/v1alpha2/jobset_types.go`` of
kubernetes-sigs/jobset); the others meet at that of index 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Nobody of the image's, as a smoke's container has it.
_USER = 65532
_PROBES, _DISK = "/run/envbuild-probes", "/run/envbuild-disk"
# Of a JobSet: what its one Job is called, where its pods meet (each has a network of its own), and the annotation in
# which an indexed Job tells a pod its number.
_NODE, _PORT = "node", 29500
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# Seconds that what has ended can be looked at.
_KEPT = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What one proof wants of a cluster.

    Attributes:
        name: What its Job or JobSet is called.
        component: What it does, for a label.
        argv: The command line of the probe, whose files are in ``probes()`` and whose disk is ``disk()``.
        files: The probes, by file name.
        gpus: How many each pod wants of ``nvidia.com/gpu``.
        nodes: More than one: so many pods, each on another node, as a JobSet.
        selector: Labels of the nodes that will do.
        seconds: After so long it is ended.
    """

    name: str
    row: str
    image: str
    argv: tuple[str, ...]
    files: Mapping[str, str]
    shm_bytes: int
    seconds: int
    component: str = "smoke"
    swaps: bool = False
    gpus: int = 0
    nodes: int = 1
    selector: Mapping[str, str] = field(default_factory=dict)
    namespace: str | None = None
    pull_secret: str | None = None


def probes() -> str:
    """Where the probes lie in a pod."""
    return _PROBES


def disk() -> str:
    """Where a pod may swap to a disk."""
    return _DISK


def launcher(python: str, *, nodes: int, per_node: int) -> tuple[str, ...]:
    """What starts the ranks of a node in its pod, before their own command line: torch's launcher.

    Kubernetes puts a container's variables into its command line. Underscores, as torch before 2.0 takes nothing else.
    """
    return (
        python, "-I", "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc_per_node={per_node}",
        "--node_rank=$(NODE_RANK)", "--master_addr=$(MASTER_ADDR)", "--master_port=$(MASTER_PORT)", "--no_python",
    )  # fmt: skip


def manifests(pod: Pod) -> tuple[dict[str, Any], ...]:
    """The probes as a ConfigMap, named by their content, and the Job or JobSet that runs them."""
    labels = {
        "app.kubernetes.io/name": "envbuild",
        "app.kubernetes.io/component": pod.component,
        "envbuild.io/row": pod.row,
        "envbuild.io/run": pod.name,
    }
    where = {"namespace": pod.namespace} if pod.namespace else {}
    content = hashlib.sha256(json.dumps(dict(pod.files), sort_keys=True).encode()).hexdigest()[:10]
    config = f"envbuild-probes-{content}"
    shared = {name: value for name, value in labels.items() if name != "envbuild.io/run"}
    template = {"metadata": {"labels": dict(labels)}, "spec": _spec(pod, config)}
    metadata = {"name": pod.name, "labels": labels, **where}
    return (
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": config, "labels": shared, **where},
            "immutable": True,
            "data": dict(pod.files),
        },
        _job(pod, metadata, template) if pod.nodes == 1 else _job_set(pod, metadata, template),
    )


def _job(pod: Pod, metadata: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            # A node that fails is tried once more; a proof that fails is an answer.
            "backoffLimit": 1,
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
                ]
            },
            "activeDeadlineSeconds": pod.seconds,
            "ttlSecondsAfterFinished": _KEPT,
            "template": template,
        },
    }


def _job_set(pod: Pod, metadata: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    job = {
        "completionMode": "Indexed",
        "parallelism": pod.nodes,
        "completions": pod.nodes,
        # One pod that fails leaves nothing for the others to do; a JobSet is not started again by itself.
        "backoffLimit": 0,
        "activeDeadlineSeconds": pod.seconds,
        "template": template,
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": pod.name},
            "ttlSecondsAfterFinished": _KEPT,
            "replicatedJobs": [{"name": _NODE, "replicas": 1, "template": {"spec": job}}],
        },
    }


def _spec(pod: Pod, config: str) -> dict[str, Any]:
    """What a pod is made of."""
    volumes: list[tuple[str, str, dict[str, Any]]] = [
        ("probes", _PROBES, {"configMap": {"name": config}}),
        ("tmp", "/tmp", {"emptyDir": {"sizeLimit": "2Gi"}}),
        # The engine's own /dev/shm has 64 MiB, in which collectives of several ranks do not fit.
        ("shm", "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": str(pod.shm_bytes)}}),
        *([("disk", _DISK, {"emptyDir": {}})] if pod.swaps else ()),
    ]
    variables: list[dict[str, Any]] = [
        {"name": "HOME", "value": "/tmp"},
        {"name": "TORCH_EXTENSIONS_DIR", "value": "/tmp/extensions"},
        *(_meeting(pod) if pod.nodes > 1 else ()),
    ]
    container: dict[str, Any] = {
        "name": pod.component,
        "image": pod.image,
        "command": list(pod.argv),
        "env": variables,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": name, "mountPath": path, **({"readOnly": True} if name == "probes" else {})}
            for name, path, _ in volumes
        ],
    }
    if pod.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": pod.gpus}}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": name, **source} for name, _, source in volumes],
    }
    if pod.nodes > 1:
        own = {"labelSelector": {"matchLabels": {"envbuild.io/run": pod.name}}, "topologyKey": "kubernetes.io/hostname"}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [own]}}
    if pod.selector:
        spec["nodeSelector"] = dict(pod.selector)
    if pod.pull_secret:
        spec["imagePullSecrets"] = [{"name": pod.pull_secret}]
    return spec


def _meeting(pod: Pod) -> tuple[dict[str, Any], ...]:
    """Which pod this is, on which node, and where the others are."""
    return (
        {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
        {"name": "ENVBUILD_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "MASTER_ADDR", "value": f"{pod.name}-{_NODE}-0-0.{pod.name}"},
        {"name": "MASTER_PORT", "value": str(_PORT)},
    )
