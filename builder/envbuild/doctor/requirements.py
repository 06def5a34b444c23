"""What installed Python packages ask of one another, as the examined interpreter would understand it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envbuild.doctor.collection import Package
from envbuild.doctor.found import deepspeed_version, matters, release, torch_version
from envbuild.doctor.view import View, normalised

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """A requirement that is not met.

    Attributes:
        package: The package that asks.
        name: What it asks for, and ``specifier`` in which versions: "" for any.
        there: The version that is installed; None where there is none.
        location: The folder that holds it.
    """

    package: Package
    name: str
    specifier: str
    there: str | None = None
    location: str | None = None

    @property
    def wanted(self) -> str:
        """As pip takes it: ``pydantic>=2``."""
        return f"{self.name}{self.specifier}"


def unmet(view: View) -> Iterator[Unmet]:
    """Every requirement that is not met, of the packages that matter and of what they load in turn."""
    interpreter = view.collection.interpreter
    installed: dict[str, Package] = {}
    for package in interpreter.packages if interpreter is not None else ():
        installed.setdefault(normalised(package.name), package)
    # What can be imported is there, whether or not it has metadata: a torch that was built from source has none.
    imported = {"torch": torch_version(view), "deepspeed": deepspeed_version(view)}
    for name in sorted(_loaded(installed)):
        package = installed[name]
        for wanted in _parsed(view, package):
            other = installed.get(normalised(wanted.name))
            version = other.version if other else imported.get(normalised(wanted.name))
            optional = "extra ==" in str(wanted.marker or "") or _is_program(view, wanted.name)
            if (version is None and optional) or (version is not None and _fits(wanted, version)):
                continue
            yield Unmet(
                package=package,
                name=wanted.name,
                specifier=str(wanted.specifier),
                there=version,
                location=other.location if other else None,
            )


def _loaded(installed: dict[str, Package]) -> set[str]:
    """The packages that matter, and everything that they ask for in turn."""
    todo = [name for name in installed if matters(name)]
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name in found or name not in installed:
            continue
        found.add(name)
        todo += [wanted for text in installed[name].requires if (wanted := _name(text)) and ";" not in text]
    return found


def _is_program(view: View, name: str) -> bool:
    """Whether it is a program that works without its Python package, as conda has ninja."""
    return normalised(name) == "ninja" and any(tool.name == "ninja" and tool.path for tool in view.collection.tools)


def _fits(wanted: Requirement, version: str) -> bool:
    """Whether a version does; one that cannot be read is no reason to object."""
    from packaging.version import InvalidVersion

    try:
        return not wanted.specifier or wanted.specifier.contains(version[:100], prereleases=True)
    except (InvalidVersion, ValueError):
        return True


def _parsed(view: View, package: Package) -> Iterator[Requirement]:
    """Its requirements that hold here. DeepSpeed counts where only an extra names it: that is how it is checked for."""
    from packaging.markers import UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement

    surroundings = _surroundings(view)
    for text in package.requires[:500]:
        try:
            wanted = Requirement(text[:500])
            extra = "deepspeed" if normalised(wanted.name) == "deepspeed" else ""
            if wanted.marker is None or wanted.marker.evaluate({**surroundings, "extra": extra}):
                yield wanted
        except (InvalidRequirement, UndefinedEnvironmentName, ValueError):  # noqa: PERF203
            continue


def _surroundings(view: View) -> dict[str, str]:
    """The examined interpreter, as markers ask for it: not the one that envbuild runs in."""
    interpreter = view.collection.interpreter
    full = release(interpreter.version if interpreter else None) or "3.11.0"
    machine = view.collection.machine.cpu.machine or "x86_64"
    return {
        "python_version": ".".join(full.split(".")[:2]), "python_full_version": full, "implementation_version": full,
        "implementation_name": "cpython", "platform_python_implementation": "CPython", "os_name": "posix",
        "sys_platform": "linux", "platform_system": "Linux", "platform_machine": machine,
        "platform_release": view.collection.machine.kernel or "", "platform_version": "",
    }  # fmt: skip


def _name(text: str) -> str:
    return (
        normalised("".join(letter if letter.isalnum() or letter in "._-" else " " for letter in text[:200]).split()[0])
        if text.strip() and text.strip()[0].isalnum()
        else ""
    )
