"""The network interfaces that NCCL would take. A hint: whether the nodes reach one another only they can say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envbuild.doctor.checks.launcher import nodes
from envbuild.doctor.collection import Interface
from envbuild.doctor.found import on_gpu, without_p2p
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity

_CONTAINERS = ("eth", "net", "ib")
_SOURCE = "NCCL user guide, NCCL_SOCKET_IFNAME; deepspeedai/DeepSpeedExamples#845"


def look(view: View) -> Iterator[Finding]:
    """A variable that names no interface, and virtual ones that would be taken where several nodes are meant."""
    links, said = view.collection.machine.interfaces, view.collection.environment
    for name, counts in (("NCCL_SOCKET_IFNAME", on_gpu(view)), ("GLOO_SOCKET_IFNAME", True)):
        value = said.get(name, "")
        found = _chosen(value, links) if name.startswith("NCCL") else _of_gloo(value, links)
        if value and links and not found:
            yield Finding(
                rule="network.unknown",
                severity=Severity.ERROR if counts else Severity.WARNING,
                subject=name,
                message=f"{name}={value[:80]!r} names no interface that is up here",
                why="Ranks do not find one another: starting the process group ends or hangs.",
                fix=f"name one that is there ({', '.join(link.name for link in links if link.up)[:120]}), or unset it",
                command=f"unset {name}",
                source=_SOURCE,
            )
    if without_p2p(view) and "NCCL_P2P_DISABLE" not in said:
        yield Finding(
            rule="network.p2p",
            severity=Severity.INFO,
            subject=view.collection.gpu.devices[0].name or "GPU",
            message="several GPUs of a kind without direct copies between them",
            why="NCCL is reported to hang in its first collective on some such machines, and not on others.",
            fix="if it hangs there, try NCCL_P2P_DISABLE=1",
            source="deepspeedai/DeepSpeed#4433",
        )
    if nodes(view) < 2 or said.get("NCCL_SOCKET_IFNAME"):
        return
    first = _order(links)
    # In a container even the right one is virtual.
    container = view.collection.machine.container is not None
    odd = [link.name for link in first if link.virtual and not (container and link.name.startswith(_CONTAINERS))]
    if odd:
        real = [link.name for link in first if link.name not in odd]
        yield Finding(
            rule="network.virtual",
            severity=Severity.INFO if real else Severity.WARNING,
            subject=", ".join(odd[:6]),
            message=f"NCCL may take {', '.join(odd[:6])}, which other nodes do not reach",
            why="It hangs at the first collective, or says that a remote process exited.",
            fix=f"name the real one on every node: NCCL_SOCKET_IFNAME={real[0] if real else 'eth0'}; NCCL_DEBUG=INFO "
            "says which was taken (Bootstrap : Using)",
            command=f"export NCCL_SOCKET_IFNAME={real[0]}" if len(real) == 1 and real[0].isalnum() else "",
            source=_SOURCE,
        )


def _order(links: Sequence[Interface]) -> list[Interface]:
    """What NCCL would look at: up, with an address, neither loopback nor docker's, which it takes last."""
    able = (link for link in links if link.up and not link.loopback and not link.part)
    return [link for link in able if not link.name.startswith("docker")]


def _of_gloo(value: str, links: Sequence[Interface]) -> list[str]:
    """The interfaces that a value means to gloo: prefixes, each of which has to fit; = and ^ stand for themselves.

    As torch 2.13.0 takes them when it is run. An address may have a label (eth0:1), which is no interface.
    """
    able = [link.name for link in links if link.up]
    found = [[name for name in able if name.startswith(part.partition(":")[0])] for part in value.split(",")]
    return found[0] if all(found) else []


def _chosen(value: str, links: Sequence[Interface]) -> list[str]:
    """The interfaces that a value means to NCCL: prefixes; ``=`` whole names; ``^`` all others; ``:`` a port."""
    other, text = value.startswith("^"), value.lstrip("^")
    whole, text = text.startswith("="), text.lstrip("=")
    named = [part.strip().partition(":")[0] for part in text.split(",") if part.strip()]
    means = [any(link.name == name if whole else link.name.startswith(name) for name in named) for link in links]
    return [link.name for link, meant in zip(links, means, strict=True) if link.up and meant != other]


CHECK = Check(
    name="network",
    title="NCCL has an interface that other nodes reach",
    look=look,
)
