"""Python packages against one another: what each asks of the others, and what is known of the releases of DeepSpeed and
torch beyond that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from envbuild.doctor.collection import Package
from envbuild.doctor.found import as_row, deepspeed_version, matters, on_gpu, release, sources
from envbuild.doctor.view import Check, View, normalised
from envbuild.facts import Facts
from envbuild.matrix.rules.deepspeed import (
    checkpoints_can_be_loaded,
    deepspeed_on_cpu,
    import_without_gpu,
    limits_for_old_torch,
    pydantic_for_deepspeed,
)
from envbuild.matrix.rules.problem import Problem
from envbuild.matrix.rules.wheels import companions_of_torch
from envbuild.model import Environment, Finding, Severity

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Beyond that many nobody reads on.
_MOST = 20
_SOURCE = "Requires-Dist in the METADATA of {name} {version}"
Judge = Callable[[Environment, Facts], Iterable[Problem]]


def look(view: View) -> Iterator[Finding]:
    """What the rules know, then every broken requirement among the packages that matter."""
    row, interpreter = as_row(view), view.collection.interpreter
    told: set[str] = set()
    if row is not None:
        for finding in _by_rules(view, row):
            told.add(finding.rule)
            yield finding
    if interpreter is not None:
        yield from _requirements(view, interpreter.packages, told)
        yield from _twice(interpreter.packages)


# What the rules know.


def _by_rules(view: View, row: Environment) -> Iterator[Finding]:
    deepspeed = deepspeed_version(view)
    if deepspeed is not None:
        if any(pin.startswith("pydantic==") for pin in row.pins):
            yield from _said(view, row, pydantic_for_deepspeed, "pydantic", "pydantic")
        yield from _said(view, row, checkpoints_can_be_loaded, "checkpoints", "deepspeed")
        if row.accelerator == "cpu" and (view.row is None or view.row.accelerator == "cpu"):
            found = row.model_copy(update={"packages": tuple(_numactl(view))})
            yield from _said(view, found, deepspeed_on_cpu, "cpu", "deepspeed")
        if not on_gpu(view) or view.collection.torch is None or not view.collection.torch.available:
            yield from _said(view, row, import_without_gpu, "triton", "deepspeed")
    yield from _said(view, row, limits_for_old_torch, "old-torch", "torch")
    yield from _said(view, row, companions_of_torch, "companions", "torch")


def _said(view: View, row: Environment, judge: Judge, rule: str, subject: str) -> Iterator[Finding]:
    names = {pin.partition("==")[0]: pin for pin in row.pins}
    for problem in judge(row, view.facts):
        if problem.severity is Severity.INFO or "unknown to the facts" in problem.message:
            # What is not known is no fault of a machine.
            continue
        severity, message, fix = problem.severity, problem.message, problem.fix
        for name, pin in names.items():
            if f"the pin {pin}" in message:
                limit = next((fact for fact in problem.facts if hasattr(fact, "specifier")), None)
                wants = str(getattr(limit, "specifier", ""))
                wants = wants if wants.startswith(name) else name + wants
                message = f"{subject.replace('pydantic', 'DeepSpeed')} {_version(row, rule)} works with {wants}, and "
                message += f"{pin.replace('==', ' ')} is installed"
                fix = f"install {wants!r} beside it, or {_newer(rule)}"
        if rule == "triton" and not _failed(view):
            # It was imported: nothing stands in the way as long as nothing changes.
            continue
        message = message.replace(", the row has ", ", and installed is ")
        # As rows have it: torchvision: "0.28.0".
        fix = re.sub(r'^(torch\w+): "([^"]+)"', r"install \1 \2", fix)
        yield Finding(
            rule=f"packages.{rule}",
            severity=severity,
            subject=subject,
            message=message,
            why=_WHY.get(rule, ""),
            fix=fix.replace("packages: [numactl]", "install numactl").replace(
                "set LOCAL_SIZE in env", "set LOCAL_SIZE"
            ),
            source=sources(problem.facts),
        )


_WHY = {
    "pydantic": "DeepSpeed reads its whole config with it: importing it, or deepspeed.initialize, ends there.",
    "checkpoints": "Training runs, and what it saved cannot be loaded to continue.",
    "cpu": "DeepSpeed ends when it starts its ranks.",
    "triton": "import deepspeed ends there.",
    "old-torch": "torch's own modules, and DeepSpeed's, use what the newer release took away.",
    "companions": "Its compiled part is linked against another torch: importing it ends with an undefined symbol.",
}


def _version(row: Environment, rule: str) -> str:
    return row.torch_version if rule == "old-torch" else row.deepspeed.version


def _newer(rule: str) -> str:
    return "a newer torch" if rule == "old-torch" else "a DeepSpeed of the other side of that change"


def _numactl(view: View) -> Iterator[str]:
    """numactl by its package's name, where the system has it."""
    name = view.facts.deepspeed.cpu_numactl.package
    if name in view.collection.system.packages or any(t.name == name and t.path for t in view.collection.tools):
        yield name


def _failed(view: View) -> bool:
    deepspeed = view.collection.deepspeed
    return deepspeed is not None and not deepspeed.ok


# What packages ask of one another.


def _requirements(view: View, packages: tuple[Package, ...], told: set[str]) -> Iterator[Finding]:
    installed: dict[str, Package] = {}
    for package in packages:
        installed.setdefault(normalised(package.name), package)
    count = 0
    for name in sorted(_loaded(installed)):
        package = installed[name]
        for wanted in _parsed(view, package):
            finding = _judged(view, package, wanted, installed.get(normalised(wanted.name)))
            if finding is None or (normalised(wanted.name) == "pydantic" and "packages.pydantic" in told):
                continue
            count += 1
            if count <= _MOST:
                yield finding
    if count > _MOST:
        yield Finding(
            rule="packages.more",
            severity=Severity.INFO,
            subject="packages",
            message=f"{count - _MOST} more requirements among the packages are not met",
            fix="pip check lists them all",
            source="Requires-Dist of the installed packages",
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


def _judged(view: View, package: Package, wanted: Requirement, there: Package | None) -> Finding | None:
    optional = "extra ==" in str(wanted.marker or "")
    version = there.version if there else None
    if there is None and (optional or _by_path(view, wanted.name)):
        return None
    if there is not None and _fits(wanted, there.version):
        return None
    asks = f"{package.name} {package.version} wants {wanted.name}{wanted.specifier}"
    stops = normalised(package.name) in ("transformers", "accelerate") and normalised(wanted.name) == "deepspeed"
    broken = next((each for each in (view.collection.torch, view.collection.deepspeed) if each and not each.ok), None)
    missing = there is None and normalised(package.name) in ("torch", "deepspeed")
    return Finding(
        rule="packages.requirement",
        severity=Severity.ERROR if stops or (missing and broken) else Severity.WARNING,
        subject=f"{wanted.name} {version}" if version else wanted.name,
        message=f"{asks}, and " + (f"{version} is installed" if version else "it is not installed"),
        why="It refuses to start with DeepSpeed otherwise." if stops else "",
        fix=f"install {f'{wanted.name}{wanted.specifier}'!r}, or a {package.name} that goes with "
        f"{f'{wanted.name} {version}' if version else 'what is there'}",
        evidence=tuple(filter(None, (package.location, there.location if there else None))),
        source=_SOURCE.format(name=package.name, version=package.version),
    )


def _by_path(view: View, name: str) -> bool:
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


def _twice(packages: tuple[Package, ...]) -> Iterator[Finding]:
    """A package that is there twice: the first on sys.path is the one that is loaded."""
    places: dict[str, list[Package]] = {}
    for package in packages:
        if matters(package.name):
            places.setdefault(normalised(package.name), []).append(package)
    for name, found in places.items():
        if len({(each.location, each.version) for each in found}) > 1 and len({each.version for each in found}) > 1:
            first, second = found[0], found[1]
            yield Finding(
                rule="packages.twice",
                severity=Severity.WARNING,
                subject=name,
                message=f"{name} {first.version} in {first.location or '?'} hides {second.version} in "
                f"{second.location or '?'}",
                why="The one that was installed last need not be the one that is loaded.",
                fix="remove the copy that is not meant, with the pip of the folder it lies in; PYTHONPATH and "
                "~/.local come before an environment's own packages: see which is meant",
                source="sys.path",
            )


CHECK = Check(
    name="packages",
    title="the Python packages go with one another: DeepSpeed, torch, pydantic, numpy, transformers, triton and theirs",
    look=look,
    explains=(
        "imports.pydantic",
        "imports.numpy",
        "imports.setuptools",
        "imports.triton",
        "imports.transformers",
        "imports.module",
    ),
)
