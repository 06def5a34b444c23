"""GPUs by the names that people, nvidia-smi and shops give them."""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """A GPU's name without what it is sold as: ``NVIDIA GeForce RTX 4090`` is rtx4090."""
    plain = re.sub(r"[^a-z0-9]", "", text[:80].lower())
    return re.sub(r"^(nvidia|tesla|geforce)+", "", plain)


def plain_card(text: str) -> str:
    """The same, without the socket and the kind of memory: ``NVIDIA A100-SXM4-80GB`` is a10080gb."""
    words = re.findall(r"[a-z0-9]+", text[:80].lower())
    kept = [word for word in words if not re.fullmatch(r"sxm[0-9]?|pcie|hbm[0-9]e?", word)]
    return re.sub(r"gib$", "gb", plain(" ".join(kept)))
