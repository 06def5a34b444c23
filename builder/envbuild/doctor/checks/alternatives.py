"""update-alternatives against the compiler that is meant. The links are the whole system's: they are looked at, and
never the way to repair anything."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.doctor.found import is_gcc, minor
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity

_COMPILERS = ("cc", "gcc", "c++", "g++")


def look(view: View) -> Iterator[Finding]:
    """gcc and g++ of two versions, and links to another compiler than the row's where nothing else names one."""
    said = view.collection.environment
    links = {each.name: each.value for each in view.collection.alternatives if each.name in _COMPILERS}
    shell = {tool.name: tool for tool in view.collection.tools if tool.role == "shell" and tool.path}
    majors = {
        name: major
        for name in _COMPILERS
        if name in shell and is_gcc(shell[name]) and (major := (minor(shell[name].version) or "").split(".")[0])
    }
    if not links:
        return
    evidence = tuple(f"{name} -> {value}" for name, value in sorted(links.items()))
    pairs = (("gcc", "g++"), ("cc", "c++"))
    split = next(
        (
            (c, cxx)
            for c, cxx in pairs
            if c in majors and cxx in majors and majors[c] != majors[cxx] and {c, cxx} & set(links)
        ),
        None,
    )
    free = not said.get("CC") or not said.get("CXX")
    if split and free:
        c, cxx = split
        yield Finding(
            rule="alternatives.split",
            severity=Severity.WARNING,
            subject=f"/etc/alternatives/{cxx}",
            message=f"{c} is GCC {majors[c]} and {cxx} is GCC {majors[cxx]}",
            why="nvcc is given the one, and the op is linked by the other, with another libstdc++.",
            fix=f"let CC and CXX name one pair for this shell: CC=gcc-{majors[cxx]} CXX=g++-{majors[cxx]}",
            evidence=evidence,
            source="torch.utils.cpp_extension (CC, CXX)",
        )
    row = view.row if view.said is None or "gcc" in view.said else None
    if row is None or not free:
        return
    wanted = row.gcc.version.split(".")[0]
    other = next((name for name in ("c++", "g++", "gcc") if name in links and majors.get(name, wanted) != wanted), None)
    if other:
        there = [tool.path for tool in view.collection.tools if re.search(rf"g\+\+-{wanted}$", tool.path or "")]
        yield Finding(
            rule="alternatives.other",
            severity=Severity.WARNING,
            subject=f"/etc/alternatives/{other}",
            message=f"{other} is GCC {majors[other]} through {links[other]}, and {row.name} means GCC {wanted}",
            fix=f"let CC=gcc-{wanted} and CXX={there[0] if there else f'g++-{wanted}'} say it for this shell; the "
            "system's links stay as they are",
            command=f"export CC=gcc-{wanted} CXX=g++-{wanted}" if there else "",
            evidence=evidence,
            why="Ops would be compiled by another compiler than the row was checked with.",
            source="torch.utils.cpp_extension (CC, CXX)",
        )


CHECK = Check(
    name="alternatives",
    title="the system's compiler links agree with one another and with the compiler that is meant",
    look=look,
)
