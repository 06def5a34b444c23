"""NUMA: a rank's optimizer should step on memory beside its own cores."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.collection import NumaNode
from envbuild.doctor.found import ranks
from envbuild.doctor.sizes import amount
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity


def look(view: View) -> Iterator[Finding]:
    """How to bind, where there is more than one node; a node that is memory alone is said to be."""
    machine = view.collection.machine
    if view.collection.image is not None:
        return
    # What has neither CPUs nor memory is a place for some: superchips have such for the parts of their GPU.
    nodes = [node for node in machine.numa if node.cpus or node.total != 0]
    bare = [node for node in nodes if node.cpus == 0]
    if len(nodes) - len(bare) < 2:
        return
    numactl = any(tool.name == "numactl" and tool.path for tool in view.collection.tools)
    told = f"{len(nodes) - len(bare)} NUMA nodes with CPUs"
    if bare:
        told += f", and {len(bare)} that {'is' if len(bare) == 1 else 'are'} memory alone"
    if machine.numa_balancing:
        told += "; the kernel moves pages between them while it trains (numa_balancing is on)"
    yield Finding(
        rule="numa.nodes",
        severity=Severity.INFO,
        subject="NUMA",
        message=f"{told}: unbound ranks step on memory of another socket",
        why="The CPU optimizer reads and writes all states of its parameters in each step: it is bound by memory.",
        fix="start with deepspeed --bind_cores_to_rank"
        + ("" if numactl else " (it needs the program numactl)")
        + (", and kernel.numa_balancing=0 while it trains" if machine.numa_balancing else ""),
        evidence=(f"{ranks(view)} rank(s)", *map(_told, nodes[:8])),
        source="DeepSpeed launcher, --bind_cores_to_rank; deepspeed/utils/numa.py",
    )


def _told(node: NumaNode) -> str:
    return f"node {node.node}: {node.cpus} CPUs, {amount(node.total) if node.total is not None else '?'}"


CHECK = Check(
    name="numa",
    title="ranks can be bound to their NUMA node",
    look=look,
)
