"""What builds by Podman leave behind when they are killed: working containers, and whose they are.

A working container is no container of Podman's: it runs nothing, has no labels, and `podman ps` shows it with
``--external`` only. Buildah keeps its state beside it (``userdata/buildah.json``), with the options of the build that
it belongs to. One of those is a secret that no step asks for: it is called after the run that builds.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envbuild.engines.cleanup import HOST_LABEL, RUN_LABEL
from envbuild.engines.types import ContainerInfo

_MARK = re.compile(r"^id=envbuild-run-(?P<run>[0-9a-f]{1,64})-(?P<host>[0-9a-f]{1,64}),")
_MAX_BYTES = 64 << 20


def mark(owner: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """What tells a build's working containers to be of the run with these labels; nothing without a run."""
    labels = dict(owner)
    if not {RUN_LABEL, HOST_LABEL} <= set(labels):
        return ()
    return ("--secret", f"id=envbuild-run-{labels[RUN_LABEL]}-{labels[HOST_LABEL]},src=/dev/null")


def places(store: Mapping[str, Any]) -> Path | None:
    """Where the working containers' own files are, by what ``podman info`` says of its store."""
    root, driver = store.get("graphRoot"), store.get("graphDriverName")
    return Path(root) / f"{driver}-containers" if isinstance(root, str) and isinstance(driver, str) else None


def containers(listed: list[dict[str, Any]], label: str, folder: Path | None) -> tuple[ContainerInfo, ...]:
    """Those with a ``key=value`` label; working containers have those of their run.

    Args:
        listed: What ``podman ps --all --external`` says.
        folder: Where the working containers' own files are; None where they are not on this host.
    """
    name, _, value = label.partition("=")
    found: list[ContainerInfo] = []
    for each in listed:
        state, labels = str(each.get("State", "")).lower(), dict(each.get("Labels") or {})
        if state == "storage" and folder is not None:
            labels = _labels(folder / str(each["Id"]) / "userdata" / "buildah.json")
        if name in labels and value in ("", labels[name]):
            made = ContainerInfo(
                id=str(each["Id"]), image=str(each["Image"]), state=state, labels=tuple(sorted(labels.items()))
            )
            found.append(made)
    return tuple(found)


def _labels(path: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        if path.stat().st_size <= _MAX_BYTES:
            for secret in json.loads(path.read_bytes())["CommonBuildOpts"]["Secrets"]:
                if found := _MARK.match(secret):
                    return {HOST_LABEL: found["host"], RUN_LABEL: found["run"]}
    return {}
