"""What an engine says about an image, and names the way Docker writes them."""

from __future__ import annotations

import fnmatch
from typing import Any

from envbuild.engines.types import ImageInfo


def image_info(said: dict[str, Any]) -> ImageInfo:
    """The answer of ``image inspect``, whatever it leaves out."""
    config: dict[str, Any] = said.get("Config") or {}
    return ImageInfo(
        id=str(said["Id"]),
        diff_ids=tuple((said.get("RootFS") or {}).get("Layers") or ()),
        labels=tuple(sorted((config.get("Labels") or {}).items())),
        env=tuple((key, value) for key, _, value in (entry.partition("=") for entry in config.get("Env") or ())),
        architecture=str(said.get("Architecture", "")),
        os=str(said.get("Os", "")),
        size=int(said.get("Size", 0)),
        created=str(said.get("Created", "")),
        repo_tags=tuple(said.get("RepoTags") or ()),
        repo_digests=tuple(said.get("RepoDigests") or ()),
    )


def familiar(name: str) -> str:
    """A name as Docker writes it: without the registry that podman puts before a name that has none."""
    for prefix in ("localhost/", "docker.io/library/", "docker.io/"):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def matches(name: str, pattern: str) -> bool:
    """Whether a name fits a pattern, with its tag or without; a star does not reach over a slash."""
    repository = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
    return any(
        len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
        for parts, wanted in ((text.split("/"), pattern.split("/")) for text in (name, repository))
    )
