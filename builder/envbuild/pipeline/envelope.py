"""How far an image carries, in a few lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuild.judge.outcome import dig
from envbuild.pipeline.sizes import format_size

# In this order: what a bare host's C library and C++ library would have to be.
_FAMILIES = ("GLIBC", "GLIBCXX", "CXXABI")


def envelope(portability: Mapping[str, Any], content: Mapping[str, Any]) -> list[str]:
    """The portability envelope and the sizes of a record of evidence."""
    out = []
    driver = portability.get("driver")
    if driver is not None:
        cubins, ptx = (_names(portability.get(key)) for key in ("cubins", "ptx"))
        out.append(f"  GPUs     driver {driver} or newer; machine code for {cubins}; PTX for {ptx}")
    needs = ", ".join(_symbols(portability.get("requires")))
    has = ", ".join(_symbols(portability.get("provides")))
    out.append(f"  CPU      {portability.get('cpu') or 'not known'} (the ops, by disassembly)")
    out.append(f"  symbols  needs {needs or 'none'}; has {has or 'none'}")
    sizes = dig(content, "config", "sizes")
    if isinstance(sizes, Mapping):
        out.append("  sizes    " + ", ".join(f"{name} {format_size(float(size))}" for name, size in sizes.items()))
    return out


def _names(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) and value else "none"


def _symbols(versions: Any) -> list[str]:
    if not isinstance(versions, Mapping):
        return []
    return [str(versions[family]) for family in _FAMILIES if family in versions]
