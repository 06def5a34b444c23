"""What the site's registry could save a build: one question, with little patience, and never in the way."""

from __future__ import annotations

from envbuild.base.registry import manifest_digest
from envbuild.model import Environment
from envbuild.pipeline.names import Names
from envbuild.pipeline.workbench import Workbench
from envbuild.site.sections import BaseSection

# Of each of the two or three requests: a build takes minutes, and is not held up by a registry that is not there.
SECONDS = 4.0


def offer(bench: Workbench, env: Environment, wanted: Names) -> str:
    """Words for the user where the registry has a proven image of these inputs; empty otherwise, for whatever reason.

    It is asked for the name alone, which proves nothing: what its evidence is worth is what ``pull`` looks at.
    """
    if not bench.site.registry.name:
        return ""
    # A row's own image has no mirror.
    site = bench.site.model_copy(update={"base": BaseSection()})
    there = manifest_digest(wanted.proven, site, timeout=SECONDS, environ=bench.environ, login_seconds=SECONDS)
    if there.digest is None:
        return ""
    moving = manifest_digest(wanted.moving, site, timeout=SECONDS, environ=bench.environ, login_seconds=SECONDS)
    how = "" if moving.digest == there.digest else " --locked"
    return f"the registry has a proven image of these inputs; to take it and not build: envbuild pull {env.name}{how}"
