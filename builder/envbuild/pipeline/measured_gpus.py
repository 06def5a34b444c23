"""Which of the GPUs that NVML sees on a node is whose: by what each rank says of its own. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Name = tuple[str | None, str | None]
_NO_WORD = "the rank does not say which GPU it has"
_UNSEEN = "NVML sees no GPU on its node with the UUID or the PCI address that the rank says"
_SPLIT = "its GPU is split (MIG), and the driver does not say which part is the rank's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Whose the GPUs are.

    Attributes:
        ranks: Of each GPU, by node and by its name there.
        places: By what number each rank counts its GPU, as torch does.
        unknown: Of each rank whose GPU is not known, why.
    """

    ranks: dict[tuple[int, Name], list[int]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    unknown: dict[int, str] = field(default_factory=dict)

    def of(self, sample: Mapping[str, Any], gpu: Mapping[str, Any]) -> list[int]:
        """The ranks that have a GPU; none where it is somebody else's."""
        return self.ranks.get((sample.get("node", 0), name_of(gpu)), [])


def name_of(gpu: Mapping[str, Any]) -> Name:
    """What tells a GPU, or a part of one, apart from the others of its node."""
    return gpu.get("uuid"), gpu.get("pci")


def owners(samples: Sequence[Mapping[str, Any]], ranks: Mapping[int, Mapping[str, Any]], reason: str | None) -> Owners:
    """Find the GPU of each rank.

    Args:
        samples: Each holds all GPUs of its node.
        ranks: What each rank said of itself, by its number.
        reason: Why NVML could not be asked, where it could not.
    """
    seen: dict[int, dict[Name, Mapping[str, Any]]] = defaultdict(dict)
    for sample in samples:
        for gpu in sample["gpus"]:
            seen[sample.get("node", 0)].setdefault(name_of(gpu), gpu)
    found = Owners()
    for number, rank in sorted(ranks.items()):
        node = rank.get("node", 0)
        own = rank.get("gpu")
        if not seen.get(node):
            found.unknown[number] = reason or "NVML gave no figures"
        elif not own:
            found.unknown[number] = _NO_WORD
        else:
            gpu = _own(own, list(seen[node].values()))
            if gpu is None or gpu.get("split") is not False:
                found.unknown[number] = _UNSEEN if gpu is None else _SPLIT
            else:
                found.ranks.setdefault((node, name_of(gpu)), []).append(number)
                found.places[number] = int(own["index"])
    return found


def _own(own: Mapping[str, Any], seen: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The part or the GPU with one of its UUIDs; else the GPU at its address."""
    uuids = own.get("uuids") or ()
    for uuid in uuids:
        for gpu in seen:
            if gpu.get("uuid") == uuid:
                return gpu
    address = own.get("pci")
    return next((gpu for gpu in seen if address and gpu.get("pci") == address), None)
