"""What an image's config, and folders beside the environment, would do to whoever runs or pulls it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from envbuild.judge import secrets
from envbuild.judge.archive import ImageArchive
from envbuild.judge.number import show
from envbuild.judge.outcome import dig
from envbuild.model import Environment
from envbuild.plan import LABEL_ENV, LABEL_TARGET

_USER_SITE = re.compile(r"(.*\.local/lib/python\d+\.\d+/site-packages)/([^/]+)\.(?:dist-info|egg-info)")
_TARGET = re.compile(r"[0-9a-f]{64}")
_NO_USER_SITE = "PYTHONNOUSERSITE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReport:
    """Beside the environment itself.

    Attributes:
        labels: The labels that envbuild gives an image, as this one has them.
        leaks: Place and kind of what looks like a secret, in the config or in any layer.
        user_site: PYTHONNOUSERSITE of the image; without it a home's packages come before the image's.
        user_packages: Packages in a user's own folder of the image.
        sizes: Bytes of the merged filesystem by part: torch, the CUDA libraries, DeepSpeed, other packages, the system.
    """

    labels: dict[str, str]
    leaks: tuple[tuple[str, str], ...]
    user_site: str | None
    user_packages: tuple[str, ...]
    sizes: dict[str, int]


def config(image: ImageArchive, env: Environment, leaks: Iterable[secrets.Leak], site: str) -> ConfigReport:
    """Read it. Never raises.

    Args:
        image: The image.
        env: The row; its own variables are no secrets.
        leaks: What was found in the layers.
        site: The packages' folder, without a leading slash.
    """
    found = [*leaks, *secrets.in_config(image.config, env.env.values())]
    return ConfigReport(
        labels={name: image.labels[name] for name in (LABEL_ENV, LABEL_TARGET) if name in image.labels},
        leaks=tuple(sorted({(leak.place, leak.kind) for leak in found})),
        user_site=image.env.get(_NO_USER_SITE),
        user_packages=tuple(sorted(match[0] for path in image.entries if (match := _USER_SITE.fullmatch(path)))),
        sizes=_sizes(image, site),
    )


def problems(
    env: Environment, report: ConfigReport, inside: Mapping[str, object] | None
) -> Iterator[tuple[str, str, str]]:
    """Rule, message and fix of everything that is wrong; without a document from inside, of what is seen outside."""
    named = report.labels.get(LABEL_ENV)
    fix = "Labels are inherited and can be set by anybody: build the image by envbuild, or name the row that it is."
    if named is not None and named != env.name:
        yield (
            "content.labels",
            f"the label {LABEL_ENV} says {show(named)}, the image is held to the row {env.name}",
            fix,
        )
    target = report.labels.get(LABEL_TARGET)
    if target is not None and not _TARGET.fullmatch(target):
        yield "content.labels", f"the label {LABEL_TARGET} is {show(target)}, which is no target id", fix
    fix = (
        "Take it out of the Dockerfile: secrets go in by --mount=type=secret. What was in an image is known: revoke it."
    )
    for place in dict.fromkeys(place for place, _ in report.leaks):
        kinds = " and ".join(kind for where, kind in report.leaks if where == place)
        yield "content.secret", f"{show(place)} holds what looks like {kinds}", fix
    yield from _user_site(report, inside)


def _user_site(report: ConfigReport, inside: Mapping[str, object] | None) -> Iterator[tuple[str, str, str]]:
    fix = f"Set {_NO_USER_SITE}=1: with a home mounted, as clusters do, its ~/.local comes before the image's packages."
    seen = [("the image's config", report.user_site)]
    if inside is not None:
        seen.append(("the container", dig(inside, "environment", _NO_USER_SITE)))
    for where, value in seen:
        if value != "1":
            held = f"; the image itself has {', '.join(report.user_packages[:5])}" if report.user_packages else ""
            yield "content.usersite", f"{_NO_USER_SITE} is {show(value)} in {where}, not 1{held}", fix


def _sizes(image: ImageArchive, site: str) -> dict[str, int]:
    parts = {"torch": 0, "cuda": 0, "deepspeed": 0, "packages": 0, "system": 0}
    names = {"torch": "torch", "nvidia": "cuda", "deepspeed": "deepspeed"}
    for path, entry in image.entries.items():
        if path.startswith(f"{site}/"):
            parts[names.get(path[len(site) + 1 :].partition("/")[0], "packages")] += entry.size
        else:
            parts["system"] += entry.size
    return parts
