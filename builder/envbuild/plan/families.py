"""Distribution families: what their packages are called and which template lays them out."""

from __future__ import annotations

from dataclasses import dataclass

from envbuild.errors import InputError
from envbuild.model import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of distributions.

    Attributes:
        template: File under ``templates/`` that says how packages are installed.
        naming: Key of ``build_packages`` and ``run_packages`` in the facts: whose package names it uses.
        python: Package name patterns for an interpreter with headers and venv; ``{v}`` is major.minor.
        always: Packages every image has.
        verbs: User-space RDMA libraries; without them NCCL falls back to sockets and says nothing.
        bin: Folder of compilers and interpreters.
    """

    template: str
    naming: str
    python: tuple[str, ...]
    always: tuple[str, ...]
    verbs: tuple[str, ...]
    bin: str = "/usr/bin"


_APT = Family(
    template="apt.j2",
    naming="debian",
    python=("python{v}", "python{v}-venv", "python{v}-dev"),
    always=("ca-certificates",),
    verbs=("ibverbs-providers", "libibverbs1", "librdmacm1"),
)

FAMILIES: dict[str, Family] = {"debian": _APT, "ubuntu": _APT}


def family(env: Environment) -> Family:
    """The family of a row.

    Raises:
        InputError: No such family.
    """
    try:
        return FAMILIES[env.family]
    except KeyError:
        raise InputError(
            f"{env.name}: family: '{env.family}' is not known", hint=f"Known families: {', '.join(sorted(FAMILIES))}."
        ) from None


def compilers(env: Environment) -> tuple[str, str]:
    """Absolute paths of the row's C and C++ compilers, such as ``/usr/bin/gcc-12`` and ``/usr/bin/g++-12``."""
    folder = family(env).bin
    return f"{folder}/{env.gcc.package}", f"{folder}/{cxx_package(env)}"


def cxx_package(env: Environment) -> str:
    """Package of the C++ compiler that goes with the row's C compiler."""
    return env.gcc.package.replace("gcc", "g++", 1)
