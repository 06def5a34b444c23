"""The command that pins what a row stands for: lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from envbuild.cli import options as opt
from envbuild.cli import output
from envbuild.errors import EnvbuildError

if TYPE_CHECKING:
    from envbuild.model import Finding, Lock
    from envbuild.pipeline.workbench import Workbench


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("lock", epilog="Example: envbuild lock cpu   (all rows: envbuild lock --all)")(lock)


def lock(
    envs: opt.SomeRows = None,
    every: opt.AllOption = False,
    project: opt.ProjectOption = None,
    json: opt.JsonOption = False,
    verbose: opt.VerboseOption = False,
    quiet: opt.QuietOption = False,
    dry_run: opt.DryRunOption = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 when a lock (all without ENV) has to be made anew.")
    ] = False,
    allow_unresolved: Annotated[
        bool,
        typer.Option("--allow-unresolved", help="Where wheels cannot be had, write a lock that says what is missing."),
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", callback=opt.seconds, help="Limit of the resolution of a row, in seconds.")
    ] = 300,
) -> None:
    """Resolve rows' wheels for their Python and platform, and their images, and write them down with hashes."""
    with opt.narrated(project, None, verbose=verbose, quiet=quiet) as bench:
        names = opt.chosen(bench, envs, every or (check and not envs), "lock")
        if dry_run:
            _dry_run(bench, names, json=json)
            return
        if check:
            _check_locks(bench, names, json=json, timeout=timeout)
            return
        made = [_lock(bench, name, timeout, allow_unresolved, alone=len(names) == 1) for name in names]
    if json:
        output.document("lock", locks=made)
    else:
        for each in made:
            _print_lock(each)
        if len(made) > 1 and not quiet:
            states = [each["status"] for each in made]
            counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
            output.narrate(f"{len(made)} rows: {counts}")
    codes = [each["error"]["exit_code"] for each in made if each["error"]]
    if codes:
        raise typer.Exit(max(codes))


def _dry_run(bench: Workbench, names: list[str], *, json: bool) -> None:
    from envbuild.lock import requirements

    wanted = {name: list(requirements(bench.matrix.get(name))) for name in names}
    if json:
        output.document("lock", plan=[{"environment": name, "requirements": wanted[name]} for name in names])
        return
    for name in names:
        if len(names) > 1:
            output.text(f"# {name}")
        for requirement in wanted[name]:
            output.text(requirement)


def _lock(bench: Workbench, name: str, timeout: float, allow_unresolved: bool, *, alone: bool) -> dict[str, Any]:
    """Lock one row; a failure of one of several is told, and stops none of the others."""
    import time

    from envbuild.events import PhaseDone, PhaseStarted
    from envbuild.lock import document_of
    from envbuild.pipeline.findings import FindingsError
    from envbuild.pipeline.locks import find_lock, make_lock
    from envbuild.pipeline.prepare import require_clean

    row = bench.matrix.get(name)
    began = time.monotonic()
    bench.sink(PhaseStarted(phase="lock", detail=name))
    try:
        require_clean(bench, row)
        try:
            before = find_lock(bench, row)
        except FindingsError:
            before = None
        path, made = make_lock(bench, row, timeout=timeout, allow_unresolved=allow_unresolved)
    except EnvbuildError as error:
        if alone:
            raise
        output.narrate(f"error: {error.message}")
        if error.hint:
            output.narrate(f"hint: {error.hint}")
        told = {"code": error.code, "exit_code": error.exit_code, "message": error.message, "hint": error.hint}
        return {"environment": name, "status": "failed", "path": None, "lock": None, "changes": [], "error": told}
    bench.sink(PhaseDone(phase="lock", seconds=time.monotonic() - began, detail=name))
    return {
        "environment": name,
        "status": made.status,
        "path": str(path),
        "lock": document_of(made),
        "changes": _lock_changes(before[1] if before else None, made),
        "error": None,
    }


def _print_lock(said: dict[str, Any]) -> None:
    made = said["lock"]
    if made is None:
        output.text(f"{said['environment']}: failed")
        return
    for line in said["changes"]:
        output.text(line)
    if said["status"] == "unresolved":
        output.text(f"{said['path']}: unresolved")
        for line in made["missing"]:
            output.text(f"  {line}")
        return
    output.text(f"{said['path']}: {len(made['packages'])} packages ({made['inputs'][:19]})")


def _check_locks(bench: Workbench, names: list[str], *, json: bool, timeout: float) -> None:
    from envbuild.model import Finding, Severity
    from envbuild.pipeline.locks import judge_lock, would_resolve

    found: list[Finding] = []
    for name in names:
        row = bench.matrix.get(name)
        made, said = judge_lock(bench, row)
        fix = f"envbuild lock {name}"
        if made is None and said is not None and said.severity is Severity.INFO:
            said = Finding(
                rule="lock", severity=Severity.ERROR, subject=name, message="there is no lock",
                fix=f"{fix} (where its wheels cannot be had: --allow-unresolved)",
            )  # fmt: skip
        elif made is not None and not made.resolved and would_resolve(bench, row, timeout=timeout):
            message = "the lock is unresolved, and what it misses can be had here"
            said = Finding(rule="lock", severity=Severity.ERROR, subject=name, message=message, fix=fix)
        found += [said] if said else []
    if output.report("lock", found, f"{len(names)} lock(s)", as_json=json):
        raise typer.Exit(1)


def _lock_changes(before: Lock | None, after: Lock) -> list[str]:
    if before is None or not before.packages:
        return []
    old = {package.name: package.version for package in before.packages}
    new = {package.name: package.version for package in after.packages}
    for held, lock in ((old, before), (new, after)):
        if lock.base is not None:
            held[lock.base.image] = str(lock.base.digest or "by its tag")
            if lock.base.toolkit_image:
                held[lock.base.toolkit_image] = str(lock.base.toolkit_digest or "by its tag")
    return [
        f"{name}: {old.get(name, '(new)')} -> {new.get(name, '(gone)')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
