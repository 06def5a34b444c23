"""What DeepSpeed's launcher needs to reach other nodes; nothing where only this one trains."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity

_COUNTS = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")


def nodes(view: View) -> int:
    """How many nodes are meant, as the scheduler's or the launcher's variables say; 1 where nothing says so."""
    said = [_count(view, name) for name in _COUNTS]
    every, here = _count(view, "WORLD_SIZE"), _count(view, "LOCAL_WORLD_SIZE")
    return max([1, *said, -(-every // here) if here else 0])


def _count(view: View, name: str) -> int:
    text = view.collection.environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


def look(view: View) -> Iterator[Finding]:
    """pdsh and ssh, where several nodes are meant."""
    count = nodes(view)
    tools = {tool.name: tool for tool in view.collection.tools}
    # A collector that did not look for them says nothing of them.
    lacking = [name for name in ("pdsh", "ssh") if name in tools and not tools[name].path]
    if count < 2 or not lacking:
        return
    yield Finding(
        rule="launcher.missing",
        severity=Severity.WARNING,
        subject=", ".join(lacking),
        message=f"{count} nodes are meant, and on PATH there is no {' and no '.join(lacking)}",
        why="The deepspeed launcher starts the ranks of other nodes with pdsh over ssh unless told otherwise.",
        fix="install pdsh and an ssh client, or start the ranks with srun or torchrun, or with --no_ssh on every node",
        source="deepspeed/launcher/multinode_runner.py, PDSHRunner; deepspeedai/DeepSpeedExamples#150",
    )


CHECK = Check(
    name="launcher",
    title="pdsh and ssh are there where several nodes are meant",
    look=look,
)
