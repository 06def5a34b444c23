"""The one rule about op names: a mistyped one would only fail at the end of a long build."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.facts import Facts
from envbuild.facts.versions import parse, within
from envbuild.matrix.merge import near
from envbuild.matrix.rules.problem import Problem, either
from envbuild.model import Environment, Severity


def ops_exist(env: Environment, facts: Facts) -> Iterator[Problem]:
    """OPS: every op is in DeepSpeed's registry for the row's accelerator, and can be compiled."""
    known, version, newest = facts.deepspeed.ops, env.deepspeed.version, facts.deepspeed.newest
    there = {name: op for name, op in known.items() if env.accelerator in op.since}
    compiles = env.cuda is not None and env.cuda.toolkit != "none"
    unread = []
    for index, name in enumerate(env.deepspeed.ops):
        key, op = ("deepspeed", "ops", index), there.get(name)
        if op is None:
            yield Problem(
                key=key,
                # The names were read in one release; what another one has may differ.
                severity=Severity.ERROR if version == newest.version else Severity.WARNING,
                message=f"DeepSpeed {newest.version} registers no op {name} for the accelerator {env.accelerator}"
                f"{near(name, there)}",
                fix=f"use one of {', '.join(there)}",
                facts=(newest,),
            )
            continue
        if not within(version, op.since[env.accelerator], newest.version):
            unread.append(name)
        if op.needs_toolkit(env.accelerator, version) and not compiles:
            yield Problem(
                key=key,
                message=f"the op {name} cannot be compiled without a CUDA toolkit",
                fix=either("set cuda.toolkit to wheels or image", f"remove {name}"),
                facts=(op,),
            )
    if unread:
        oldest = max((there[name].since[env.accelerator] for name in unread), key=parse)
        what = f"whether DeepSpeed {version} has {', '.join(unread)}"
        yield Problem(
            key=("deepspeed", "ops"),
            severity=Severity.WARNING,
            message=f"{what} is unknown to the facts, unverified",
            fix=f"check it by hand, or use DeepSpeed {oldest} to {newest.version}",
            facts=(newest,),
        )
