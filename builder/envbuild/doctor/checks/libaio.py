"""libaio, which async_io needs to swap to NVMe: there, with its header and its link name, and new enough."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.found import SWAPPING, between, deepspeed_version, pending, sources, wanted
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity

_WHY = "Offload to NVMe swaps through async_io; DeepSpeed then says that it is not compatible, whatever the reason."


def look(view: View) -> Iterator[Finding]:
    """What of libaio is missing, where async_io is wanted and has to be compiled."""
    if SWAPPING not in wanted(view) or SWAPPING not in pending(view):
        return
    found, rpm = view.collection.libaio, view.collection.system.manager == "rpm"
    package = "libaio-devel" if rpm else "libaio-dev"
    if found is None:
        # An older collector: the package manager's word is all there is.
        if view.collection.system.manager and package not in view.collection.system.packages:
            yield _missing(package, "the package is not installed", Severity.WARNING)
        return
    if not found.header or not found.link:
        lacking = " and ".join(
            filter(None, ("libaio.h" if not found.header else "", "libaio.so" if not found.link else ""))
        )
        yield _missing(package, f"there is no {lacking}", Severity.ERROR)
        return
    fact = view.facts.deepspeed.io_pgetevents
    version = deepspeed_version(view)
    if between(version, fact.since, fact.through) and found.provides and fact.symbol_version not in found.provides:
        yield Finding(
            rule="libaio.old",
            severity=Severity.ERROR,
            subject=found.path or found.link,
            message=f"libaio is there, and too old: {found.path or found.link} has no io_pgetevents "
            f"({fact.symbol_version}; it has {', '.join(found.provides)}), which DeepSpeed {version} calls",
            why=f"{_WHY} From 0.15.0 on it says OKAY all the same, and the op then does not compile.",
            fix=f"a libaio of {fact.libaio} or later: a newer system in the image, or conda-forge's libaio with CFLAGS "
            f"and LDFLAGS naming its folders; installing {package} again changes nothing, nor does a newer DeepSpeed",
            source=sources((fact,)),
        )


def _missing(package: str, what: str, severity: Severity) -> Finding:
    return Finding(
        rule="libaio.missing",
        severity=severity,
        subject="libaio",
        message=f"{what}, and async_io has to be compiled",
        why=_WHY,
        fix=f"install {package}; a libaio elsewhere can be named in CFLAGS (-I) and LDFLAGS (-L)",
        source="DeepSpeed op_builder/async_io.py",
    )


CHECK = Check(
    name="libaio",
    title="libaio is there and new enough where async_io is compiled for NVMe offload",
    look=look,
)
