"""What a bare host has to have of a Plan, and what that is called where packages are installed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envbuild.errors import InputError
from envbuild.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """A package manager, as the commands of an administrator and of a build.

    Attributes:
        name: The family's template without its ending.
        words: Whose it is, for messages.
        systems: Words of /etc/os-release that tell its systems, as an extended regular expression.
        install, remove: Commands; the packages follow.
        clean: Removes what installing leaves behind.
        query: Succeeds when ``$package`` is installed.
    """

    name: str
    words: str
    systems: str
    install: str
    remove: str
    clean: str
    query: str


_RPM = 'rpm -q "$package" > /dev/null 2>&1'
_RED_HAT = "rhel|fedora|centos|rocky|almalinux"
MANAGERS = {
    manager.name: manager
    for manager in (
        Manager(
            name="apt", words="Debian and Ubuntu", systems="debian|ubuntu",
            install="apt-get update && apt-get install -y --no-install-recommends", remove="apt-get purge -y",
            clean="rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb /var/log/dpkg.log",
            query="""dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null | grep -qx installed""",
        ),
        Manager(name="dnf", words="Red Hat's family", systems=_RED_HAT, install="dnf install -y",
                remove="dnf remove -y", clean="dnf clean all", query=_RPM),
        Manager(name="yum", words="Red Hat's family", systems=_RED_HAT, install="yum install -y",
                remove="yum remove -y", clean="yum clean all", query=_RPM),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A header and a library that the compiler has to find, and the packages that bring them."""

    file: str
    library: str
    packages: tuple[str, ...]


# By the name of a development package without its ending: what the ops include and link.
# Source: DeepSpeed sdist 0.19.8, op_builder/async_io.py and op_builder/cpu/async_io.py (libaio.h, -laio).
_HEADERS = {"libaio": ("libaio.h", "aio")}
_DEVELOPMENT = re.compile(r"-dev(?:el)?$")
_COMPILER = re.compile(r"^(?:gcc|g\+\+|devtoolset-\d+|gcc-toolset-\d+)")
_PYTHON = re.compile(r"^(?:rh-)?python\d")

# Flags of /proc/cpuinfo that x86-64's levels add to one another (x86-64 psABI, table 3.1; abm is LZCNT).
_V2 = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe")
_V4 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
CPU_FLAGS = {"x86-64-v2": _V2, "x86-64-v3": (*_V2, *_V3), "x86-64-v4": (*_V2, *_V3, *_V4)}
MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


def manager(plan: Plan) -> Manager:
    """The package manager of the Plan's family.

    Raises:
        InputError: Nobody knows one that goes by the template's name.
    """
    name = plan.template.removesuffix(".j2")
    try:
        return MANAGERS[name]
    except KeyError:
        raise InputError(
            f"{plan.environment}: no package manager is known for the template {plan.template}",
            hint=f"Known are: {', '.join(sorted(MANAGERS))}.",
        ) from None


def python_packages(plan: Plan) -> tuple[str, ...]:
    """Packages that bring the interpreter, its headers and venv."""
    return tuple(name for name in plan.packages if _PYTHON.match(name))


def compiler_packages(plan: Plan) -> tuple[str, ...]:
    """Packages that bring the compilers."""
    return tuple(name for name in plan.packages if _COMPILER.match(name))


def headers(plan: Plan) -> tuple[Header, ...]:
    """Headers of the ops that can be looked for by compiling, whoever brought them."""
    found = []
    for name in plan.op_packages:
        stem = _DEVELOPMENT.sub("", name)
        if stem in _HEADERS:
            file, library = _HEADERS[stem]
            found.append(Header(file=file, library=library, packages=(name,)))
    return tuple(found)


def others(plan: Plan) -> tuple[str, ...]:
    """Packages that no use of them can be tried for: looked up by name, and only told."""
    known = {
        *python_packages(plan),
        *compiler_packages(plan),
        *(name for each in headers(plan) for name in each.packages),
    }
    return tuple(name for name in dict.fromkeys((*plan.packages, *plan.op_packages)) if name not in known)
