"""Distribution families: how their packages are named, where compilers lie, and which template lays them out.

What a release really has, and its interpreters, are facts (``facts/packages.yaml``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from envbuild.errors import InputError
from envbuild.facts import Facts, Packages, Python
from envbuild.model import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerNames:
    """One way in which a family names and places a compiler. Texts may use the groups of ``package``.

    Attributes:
        package: Pattern of the C compiler's package.
        cxx_package: Package of the C++ compiler that goes with it.
        cc: Path of the C compiler.
        cxx: Path of the C++ compiler.
        tools: Folder of the assembler and linker that go with it, where those are not the system's.
        example: The package, as messages write it.
    """

    package: str
    cxx_package: str
    cc: str
    cxx: str
    tools: str | None = None
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """The row's compiler: its packages, absolute paths, and the folder of its own assembler and linker."""

    packages: tuple[str, str]
    cc: str
    cxx: str
    tools: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of distributions.

    Attributes:
        template: File under ``templates/`` that says how packages are installed.
        naming: Key of ``build_packages`` and ``run_packages`` in the facts: whose package names it uses.
        always: Packages every image has.
        verbs: User-space RDMA libraries; without them NCCL falls back to sockets and says nothing.
        compilers: How its compilers are named, the first that fits counts.
        compiler_cache: Package of ccache; empty where the family's own repositories have none (Enterprise Linux: EPEL).
        python: Package name patterns of an interpreter with headers and venv in a release that the facts do not know;
            ``{v}`` is major.minor. Empty where there is nothing to go by.
    """

    template: str
    naming: str
    always: tuple[str, ...]
    verbs: tuple[str, ...]
    compilers: tuple[CompilerNames, ...]
    compiler_cache: tuple[str, ...] = ()
    python: tuple[str, ...] = ()


_APT = Family(
    template="apt.j2",
    naming="debian",
    always=("ca-certificates",),
    verbs=("ibverbs-providers", "libibverbs1", "librdmacm1"),
    compilers=(
        CompilerNames(
            package=r"gcc(?P<version>.*)", cxx_package="g++{version}",
            cc="/usr/bin/gcc{version}", cxx="/usr/bin/g++{version}", example="gcc-12",
        ),
    ),
    compiler_cache=("ccache",),
    python=("python{v}", "python{v}-venv", "python{v}-dev"),
)  # fmt: skip


def _rpm(template: str, toolset: str) -> Family:
    return Family(
        template=template,
        naming="rhel",
        # torch 1.12 to 2.1 run `which` on the compiler (torch/utils/cpp_extension.py), and small images lack it.
        always=("ca-certificates", "which"),
        # The drivers of InfiniBand adapters are in libibverbs itself (redhat/rdma-core.spec).
        verbs=("libibverbs", "librdmacm"),
        compilers=(
            # A toolset is used by its path and is enabled for nobody else. Its gcc looks for an assembler on PATH, and
            # finds the system's older one or none; it comes with binutils of its own (gcc.spec), so those are named.
            CompilerNames(
                package=rf"(?P<toolset>{toolset}-[0-9]+)-gcc", cxx_package="{toolset}-gcc-c++",
                cc="/opt/rh/{toolset}/root/usr/bin/gcc", cxx="/opt/rh/{toolset}/root/usr/bin/g++",
                tools="/opt/rh/{toolset}/root/usr/bin", example=f"{toolset}-N-gcc",
            ),
            CompilerNames(
                package="gcc", cxx_package="gcc-c++", cc="/usr/bin/gcc", cxx="/usr/bin/g++", example="gcc"
            ),
        ),
    )  # fmt: skip


_DNF, _YUM = _rpm("dnf.j2", "gcc-toolset"), _rpm("yum.j2", "devtoolset")

FAMILIES: dict[str, Family] = {
    "debian": _APT,
    "ubuntu": _APT,
    "rhel8": _DNF,
    "rocky8": _DNF,
    "rhel9": _DNF,
    "centos7": _YUM,
}


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


def compiler(env: Environment) -> Compiler:
    """The row's compilers.

    Raises:
        InputError: The family has no compiler of such a name.
    """
    names = family(env).compilers
    for name in names:
        match = re.fullmatch(name.package, env.gcc.package)
        if match:
            groups = match.groupdict()
            return Compiler(
                packages=(env.gcc.package, name.cxx_package.format(**groups)),
                cc=name.cc.format(**groups),
                cxx=name.cxx.format(**groups),
                tools=name.tools.format(**groups) if name.tools else None,
            )
    raise InputError(
        f"{env.name}: gcc.package: the family {env.family} has no '{env.gcc.package}'",
        hint=f"Its compilers are called {' or '.join(name.example for name in names)}.",
    )


def compilers(env: Environment) -> tuple[str, str]:
    """Absolute paths of the row's C and C++ compilers, such as ``/usr/bin/gcc-12`` and ``/usr/bin/g++-12``."""
    found = compiler(env)
    return found.cc, found.cxx


def cxx_package(env: Environment) -> str:
    """Package of the C++ compiler that goes with the row's C compiler."""
    return compiler(env).packages[1]


def packages(env: Environment, facts: Facts) -> Packages | None:
    """What the row's release calls its packages; None where the facts do not know the release."""
    suite = env.base.bootstrap.suite if env.base.bootstrap else None
    return facts.packages_of(env.family, env.base.image, suite)


def python(env: Environment, facts: Facts) -> tuple[tuple[str, ...], str, str | None]:
    """Packages of the row's interpreter, its absolute path, and the folder of its library where it needs one named.

    Raises:
        InputError: The row's release has no such Python.
    """
    known = packages(env, facts)
    if known is not None:
        entry: Python | None = known.pythons.get(env.python)
        if entry is None:
            has = ", ".join(sorted(known.pythons, key=lambda text: tuple(map(int, text.split(".")))))
            raise InputError(
                f"{env.name}: python: the distribution of {env.base.image} has no Python {env.python}",
                hint=f"It has {has}; another one would have to come from a download that nobody pins.",
            )
        return entry.packages, entry.program, entry.libraries
    patterns = family(env).python
    if not patterns:
        raise InputError(f"{env.name}: python: the facts do not know the Pythons of {env.family}")
    return tuple(pattern.format(v=env.python) for pattern in patterns), f"/usr/bin/python{env.python}", None
