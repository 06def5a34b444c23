"""Python packages against one another: what each asks of the others, and what is known of the releases of DeepSpeed and
torch beyond that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from envbuild.doctor.checks.imports import reason
from envbuild.doctor.collection import Package
from envbuild.doctor.found import as_row, deepspeed_version, matters, on_gpu, sources
from envbuild.doctor.pip import install
from envbuild.doctor.requirements import Unmet, unmet
from envbuild.doctor.view import Check, View, normalised
from envbuild.doctor.words import shell_path
from envbuild.facts import Facts
from envbuild.matrix.rules.deepspeed import (
    checkpoints_can_be_loaded,
    deepspeed_on_cpu,
    import_without_gpu,
    limits_for_old_torch,
    pydantic_for_deepspeed,
)
from envbuild.matrix.rules.problem import Problem, either
from envbuild.matrix.rules.wheels import companions_of_torch, torches_of
from envbuild.model import Environment, Finding, Severity

# Beyond that many nobody reads on.
_MOST = 20
_TRAINS = ("torch", "deepspeed")
# Who says more about a package that is not there.
_ROOTS = {"torch": "imports.nothing", "deepspeed": "imports.nothing", "ninja": "ninja.missing"}
Judge = Callable[[Environment, Facts], Iterable[Problem]]


def look(view: View) -> Iterator[Finding]:
    """What the rules know, then every broken requirement among the packages that matter."""
    row, interpreter = as_row(view), view.collection.interpreter
    told: set[str] = set()
    for finding in _known(view, row) if row is not None else ():
        told.add(finding.rule)
        yield finding
    if interpreter is not None:
        yield from _requirements(view, told)
        yield from _twice(view, interpreter.packages)


# What the rules know. A rule is asked about the machine as a row; what it objects to is said in the machine's words.


def _known(view: View, row: Environment) -> Iterator[Finding]:
    if deepspeed_version(view) is not None:
        yield from _pydantic(view, row)
        yield from _checkpoints(view, row)
        yield from _on_cpu(view, row)
        yield from _triton(view, row)
    yield from _old_torch(view, row)
    yield from _companions(view, row)


def _objections(judge: Judge, row: Environment, view: View) -> Iterator[Problem]:
    """What a rule has against it. What the facts do not know is no fault of a machine: no fact stands behind that."""
    return (each for each in judge(row, view.facts) if each.facts and each.severity is not Severity.INFO)


def _pydantic(view: View, row: Environment) -> Iterator[Finding]:
    here = view.package("pydantic")
    if here is None:
        return
    for problem in _objections(pydantic_for_deepspeed, row, view):
        version = row.deepspeed.version
        span = next(e for e in view.facts.deepspeed.pydantic if e in problem.facts)
        other = f"newer than {span.through}" if span.through else f"older than {span.since}"
        yield _finding(
            problem, "pydantic", "pydantic",
            f"DeepSpeed {version} works with pydantic{span.specifier}, and pydantic {here} is installed",
            f"install 'pydantic{span.specifier}' beside it, or a DeepSpeed {other}",
            "DeepSpeed reads its whole config with it: importing it, or deepspeed.initialize, ends there.",
            install(view, f"pydantic{span.specifier}"),
        )  # fmt: skip


def _checkpoints(view: View, row: Environment) -> Iterator[Finding]:
    for problem in _objections(checkpoints_can_be_loaded, row, view):
        why = "Training runs, and what it saved cannot be loaded to continue."
        yield _finding(problem, "checkpoints", "deepspeed", problem.message, problem.fix, why)


def _on_cpu(view: View, row: Environment) -> Iterator[Finding]:
    if row.accelerator != "cpu" or (view.row is not None and view.row.accelerator != "cpu"):
        return
    numactl = view.facts.deepspeed.cpu_numactl
    for problem in _objections(
        deepspeed_on_cpu, row.model_copy(update={"packages": tuple(_numactl(view, numactl.package))}), view
    ):
        fix = problem.fix
        if numactl in problem.facts:
            fix = either(
                f"install {numactl.package}",
                f"set {numactl.variable} to the number of ranks of a node",
                f"DeepSpeed {numactl.before} or newer",
            )
        why = "DeepSpeed ends when it starts its ranks."
        yield _finding(problem, "cpu", "deepspeed", problem.message, fix, why)


def _numactl(view: View, name: str) -> Iterator[str]:
    """numactl by its package's name, where the system has it."""
    if name in view.collection.system.packages or any(t.name == name and t.path for t in view.collection.tools):
        yield name


def _triton(view: View, row: Environment) -> Iterator[Finding]:
    torch, deepspeed = view.collection.torch, view.collection.deepspeed
    sees_gpu = on_gpu(view) and torch is not None and torch.available
    # Where it was imported nothing stands in the way, as long as nothing changes.
    if not sees_gpu and deepspeed is not None and not deepspeed.ok:
        for problem in _objections(import_without_gpu, row, view):
            why = "import deepspeed ends there."
            yield _finding(problem, "triton", "deepspeed", problem.message, problem.fix, why)


def _old_torch(view: View, row: Environment) -> Iterator[Finding]:
    for limit in (view.facts.numpy, view.facts.setuptools):
        name = limit.specifier.partition("<")[0]
        here = view.package(name)
        for problem in _objections(limits_for_old_torch, row, view):
            if limit in problem.facts and here is not None:
                blamed = _is_blamed(view, name)
                yield _finding(
                    dataclasses.replace(problem, severity=Severity.ERROR) if blamed else problem, "old-torch", "torch",
                    f"torch {row.torch_version} works with {limit.specifier}, and {name} {here} is installed",
                    f"install {limit.specifier!r} beside it, or torch {limit.torch_below} or newer",
                    "torch's own modules, and DeepSpeed's, use what the newer release took away.",
                    install(view, limit.specifier),
                )  # fmt: skip


def _is_blamed(view: View, name: str) -> bool:
    """Whether an import failed, and its own words are known to speak of this package."""
    imports = (view.collection.torch, view.collection.deepspeed)
    return any(seen is not None and not seen.ok and reason(seen) == name for seen in imports)


def _companions(view: View, row: Environment) -> Iterator[Finding]:
    known = view.facts.versions.get(row.torch.version)
    for problem in _objections(companions_of_torch, row, view):
        name = str(problem.key[-1])
        pair, here = getattr(known, name), getattr(row.torch, name)
        others = torches_of(view.facts, name, here)
        yield _finding(
            problem, "companions", "torch",
            f"{name} {pair.version} belongs to torch {row.torch.version}, and installed is {here}",
            either(f"install {name} {pair.version}", f"torch {' or '.join(others)}" if others else ""),
            "Its compiled part is linked against another torch: importing it ends with an undefined symbol.",
        )  # fmt: skip


def _finding(problem: Problem, rule: str, subject: str, message: str, fix: str, why: str, command: str = "") -> Finding:
    return Finding(
        rule=f"packages.{rule}", severity=problem.severity, subject=subject, message=message, fix=fix, why=why,
        command=command, source=sources(problem.facts),
    )  # fmt: skip


# What packages ask of one another.


def _requirements(view: View, told: set[str]) -> Iterator[Finding]:
    known = {"packages.pydantic": ("deepspeed", "pydantic")}
    said = {pair for rule, pair in known.items() if rule in told}
    count = 0
    for each in unmet(view):
        if (normalised(each.package.name), normalised(each.name)) in said:
            continue
        count += 1
        if count <= _MOST:
            yield _requirement(view, each)
    if count > _MOST:
        yield Finding(
            rule="packages.more",
            severity=Severity.INFO,
            subject="packages",
            message=f"{count - _MOST} more requirements among the packages are not met",
            fix="pip check lists them all",
            source="Requires-Dist of the installed packages",
        )


def _requirement(view: View, each: Unmet) -> Finding:
    package, name = each.package, normalised(each.name)
    stops = normalised(package.name) in ("transformers", "accelerate") and name == "deepspeed"
    broken = any(seen is not None and not seen.ok for seen in (view.collection.torch, view.collection.deepspeed))
    missing = each.there is None and normalised(package.name) in _TRAINS
    fix = f"install {each.wanted!r}"
    if each.there is not None:
        fix += f", or a {package.name} that goes with {each.name} {each.there}"
    # Which build of torch, and which DeepSpeed, is no question of one requirement: `imports` says how they come.
    command = install(view, each.wanted) if name not in _TRAINS else ""
    return Finding(
        rule="packages.requirement",
        severity=Severity.ERROR if stops or (missing and broken) or _is_blamed(view, name) else Severity.WARNING,
        subject=f"{each.name} {each.there}" if each.there else each.name,
        message=f"{package.name} {package.version} wants {each.wanted}, and "
        + (f"{each.there} is installed" if each.there else "it is not installed"),
        why="It refuses to start with DeepSpeed otherwise." if stops else "",
        fix=fix,
        command=command,
        evidence=tuple(dict.fromkeys(filter(None, (package.location, each.location)))),
        source=f"Requires-Dist in the METADATA of {package.name} {package.version}",
        explained_by=_ROOTS.get(name, "") if each.there is None else "",
    )


# A package that is there twice.


def _twice(view: View, packages: tuple[Package, ...]) -> Iterator[Finding]:
    """In two folders: the first on sys.path is the one that is loaded. In one: an update did not end."""
    places: dict[str, list[Package]] = {}
    for package in packages:
        if matters(package.name):
            places.setdefault(normalised(package.name), []).append(package)
    for name, found in places.items():
        first = found[0]
        second = next((each for each in found if each.version != first.version), None)
        if second is None:
            continue
        yield (
            _records(view, name, first, second)
            if first.location == second.location
            else Finding(
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
        )


def _records(view: View, name: str, first: Package, second: Package) -> Finding:
    """Two versions on record in one folder, which can hold the files of one only."""
    seen = {"torch": view.collection.torch, "deepspeed": view.collection.deepspeed}.get(name)
    version = seen.version if seen is not None and seen.ok else None
    stale = [each for each in (first, second) if version and each.version != version and each.info]
    folder = f"{stale[0].location}/{stale[0].info}" if len(stale) == 1 else ""
    loaded = f", and {version} is what is loaded" if version else ""
    return Finding(
        rule="packages.records",
        severity=Severity.WARNING,
        subject=name,
        message=f"{name} is on record twice in {first.location or '?'}: {first.version} and {second.version}{loaded}",
        why="An update that did not end leaves that behind. The files may be a mixture, and packages that ask for its "
        "version get the wrong one.",
        fix=f"remove what is left of the other's record, {folder}" if folder else f"install {name} again",
        command=f"rm -r {shell_path(folder)}" if folder else "",
        evidence=tuple(f"{each.location}/{each.info}" for each in (first, second) if each.info),
        source="PyPA, Recording installed projects",
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
