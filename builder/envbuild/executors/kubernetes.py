"""A proof as a Kubernetes Job: rendered, for somebody else to submit. Pure.

The container is as strict as the one that a smoke starts: no capabilities, no rights to be had, an ordinary uid, a
read-only root. Two things a pod cannot say: no network at all, and a limit of locked memory, which is the node's own.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What one proof wants of a cluster.

    Attributes:
        name: What its Job is called.
        argv: The command line of the probe, whose files are in ``probes()`` and whose disk is ``disk()``.
        files: The probes, by file name.
        gpus: How many it wants of ``nvidia.com/gpu``.
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
    swaps: bool = False
    gpus: int = 0
    selector: Mapping[str, str] = field(default_factory=dict)
    namespace: str | None = None
    pull_secret: str | None = None


def probes() -> str:
    """Where the probes lie in a pod."""
    return _PROBES


def disk() -> str:
    """Where a pod may swap to a disk."""
    return _DISK


def manifests(pod: Pod) -> tuple[dict[str, Any], ...]:
    """The probes as a ConfigMap, named by their content, and the Job that runs them."""
    labels = {
        "app.kubernetes.io/name": "envbuild",
        "app.kubernetes.io/component": "smoke",
        "envbuild.io/row": pod.row,
    }
    where = {"namespace": pod.namespace} if pod.namespace else {}
    content = hashlib.sha256(json.dumps(dict(pod.files), sort_keys=True).encode()).hexdigest()[:10]
    config = f"envbuild-probes-{content}"
    volumes: list[tuple[str, str, dict[str, Any]]] = [
        ("probes", _PROBES, {"configMap": {"name": config}}),
        ("tmp", "/tmp", {"emptyDir": {"sizeLimit": "2Gi"}}),
        # The engine's own /dev/shm has 64 MiB, in which collectives of several ranks do not fit.
        ("shm", "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": str(pod.shm_bytes)}}),
        *([("disk", _DISK, {"emptyDir": {}})] if pod.swaps else ()),
    ]
    container: dict[str, Any] = {
        "name": "smoke",
        "image": pod.image,
        "command": list(pod.argv),
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "TORCH_EXTENSIONS_DIR", "value": "/tmp/extensions"}],
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
    if pod.selector:
        spec["nodeSelector"] = dict(pod.selector)
    if pod.pull_secret:
        spec["imagePullSecrets"] = [{"name": pod.pull_secret}]
    return (
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": config, "labels": labels, **where},
            "immutable": True,
            "data": dict(pod.files),
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": pod.name, "labels": labels, **where},
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
                "ttlSecondsAfterFinished": 86400,
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        },
    )
