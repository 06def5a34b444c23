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


def working(listed: list[dict[str, Any]], folder: Path | None) -> list[ContainerInfo]:
    """The working containers of runs, with the run's labels.

    Args:
        listed: What ``podman ps --all --external`` says.
        folder: Where their own files are; None where they are not on this host.
    """
    found: list[ContainerInfo] = []
    for each in listed:
        if folder is None or str(each.get("State", "")).lower() != "storage":
            continue
        labels = _labels(folder / str(each["Id"]) / "userdata" / "buildah.json")
        found.append(
            ContainerInfo(id=str(each["Id"]), image=str(each.get("Image", "")), state="storage", labels=labels)
        )
    return found


def _labels(path: Path) -> tuple[tuple[str, str], ...]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        if path.stat().st_size <= _MAX_BYTES:
            for secret in json.loads(path.read_bytes())["CommonBuildOpts"]["Secrets"]:
                if found := _MARK.match(secret):
                    return ((HOST_LABEL, found["host"]), (RUN_LABEL, found["run"]))
    return ()
