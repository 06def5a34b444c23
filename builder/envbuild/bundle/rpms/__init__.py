"""RPM packages for an offline bundle: planned, fetched, checked, written, and resolved again from what was written.

    found = sources(site, family, system, given={"baseos": "https://..."})
    planned = plan(Request(roots=..., sources=found, system=system, targets=(EMPTY, ...)), site.network, cache=...)
    paths = fetch(planned, cache=...)
    checked = check(planned, paths)
    written = write(planned, checked, folder, created=planned.timestamp)
    proof = prove(planned, written, checked.streams)

Findings are values: of ``planned``, ``checked`` and ``proof``; one of severity error ends the way there.
"""

from envbuild.bundle.rpms.checking import check
from envbuild.bundle.rpms.configured import sources
from envbuild.bundle.rpms.fetching import fetch
from envbuild.bundle.rpms.hosts import target
from envbuild.bundle.rpms.planning import Plan, plan
from envbuild.bundle.rpms.proving import Proof, prove
from envbuild.bundle.rpms.results import Check, Checked, PublicKey, Signed, Written, WrittenFile
from envbuild.bundle.rpms.solve import SolverError
from envbuild.bundle.rpms.types import (
    ARCHES,
    EMPTY,
    Closure,
    Installed,
    Nevra,
    Package,
    RepositorySeen,
    Request,
    Source,
    Stream,
    System,
    Target,
)
from envbuild.bundle.rpms.writing import write

__all__ = [
    "ARCHES",
    "EMPTY",
    "Check",
    "Checked",
    "Closure",
    "Installed",
    "Nevra",
    "Package",
    "Plan",
    "Proof",
    "PublicKey",
    "RepositorySeen",
    "Request",
    "Signed",
    "SolverError",
    "Source",
    "Stream",
    "System",
    "Target",
    "Written",
    "WrittenFile",
    "check",
    "fetch",
    "plan",
    "prove",
    "sources",
    "target",
    "write",
]
