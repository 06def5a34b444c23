"""Rules about what the row's distribution has to install."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.facts import Facts
from envbuild.facts.versions import parse
from envbuild.matrix.rules.problem import Problem, unknown
from envbuild.model import Environment


def python_of_distribution(env: Environment, facts: Facts) -> Iterator[Problem]:
    """PKG: the row's Python comes from its distribution, or from a supported add-on of it."""
    suite = env.base.bootstrap.suite if env.base.bootstrap else None
    known = facts.packages_of(env.family, env.base.image, suite)
    if known is None:
        what = f"the base {env.base.image} of family {env.family}"
        yield unknown(("base", "image"), what, f"that it has Python {env.python}", known=facts.packages)
    elif env.python not in known.pythons:
        has = sorted(known.pythons, key=parse)
        yield Problem(
            key=("python",),
            message=f"the distribution of {env.base.image} has no Python {env.python}",
            fix=f"use Python {' or '.join(has)}, or a base that has {env.python}",
            facts=tuple(known.pythons[version] for version in has),
        )
