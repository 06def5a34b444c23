"""``images/<env>/``: what is reviewed in a pull request, held against the rows as they are now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from envbuild import plan as plans
from envbuild import render, store
from envbuild.errors import EnvbuildError, InputError
from envbuild.events import Note
from envbuild.model import Environment, Finding, Lock, Severity
from envbuild.pipeline.locks import judge_lock
from envbuild.pipeline.workbench import Workbench
from envbuild.render import Rendering

RULE = "render"
_SHOWN = 100
# Bytes; far more than any Dockerfile has.
_LONGEST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """As much of a row as can be rendered whatever has become of its lock.

    Attributes:
        lock: Its lock, where that is one of the row as it is now, resolved or not.
        said: What is to say of the lock; None where it is resolved and fits.
        rendering: The whole build context with its target id, which only a resolved lock gives.
    """

    env: Environment
    dockerfile: bytes
    lock: Lock | None
    said: Finding | None
    rendering: Rendering | None


def draft(bench: Workbench, env: Environment, *, committed: bool = False) -> Draft:
    """Render a row: the Dockerfile in any case, and all of it where its lock is resolved and fits.

    Args:
        bench: The surroundings.
        env: The row.
        committed: With the lock in ``images/``, whatever lock of their own a user has.

    Raises:
        InputError: The row cannot be rendered, or a template is wrong.
    """
    lock, said = judge_lock(bench, env, committed=committed)
    plan = plans.make(env, lock, bench.facts)
    templates = bench.project.templates
    if lock is not None and lock.resolved:
        rendering = render.render(plan, templates)
        return Draft(env=env, dockerfile=rendering.files["Dockerfile"], lock=lock, said=said, rendering=rendering)
    return Draft(env=env, dockerfile=render.dockerfile(plan, templates), lock=lock, said=said, rendering=None)


def check_images(bench: Workbench, names: Iterable[str], *, everything: bool) -> list[Finding]:
    """What of ``images/`` has fallen behind: Dockerfiles, locks and records of the named rows.

    Args:
        bench: The surroundings.
        names: The rows.
        everything: Whether these are all of the matrix, so that a folder of no row is a finding too.
    """
    found: list[Finding] = []
    for name in names:
        found += _check(bench, bench.matrix.get(name))
    folder = bench.project.images
    if everything and folder.is_dir():
        with contextlib.suppress(OSError):
            found += [
                _finding(each.name, f"{each} is of no row of the matrix", "remove the folder")
                for each in sorted(folder.iterdir())
                if each.is_dir() and each.name not in bench.matrix.environments
            ]
    return found


def write_images(bench: Workbench, names: Iterable[str]) -> tuple[list[Path], list[Finding]]:
    """Write the Dockerfile of each row; returns the files that changed, and what cannot be rendered.

    Raises:
        InputError: The project is the packaged one, or cannot be written.
        EngineError: The disk is full.
    """
    if not bench.project.writable:
        raise InputError(
            f"--write writes into the project, and {bench.project.root} is read-only",
            hint="Make a project of your own: envbuild init",
        )
    changed: list[Path] = []
    failed: list[Finding] = []
    for name in names:
        path = dockerfile_path(bench, name)
        try:
            made = draft(bench, bench.matrix.get(name), committed=True)
        except InputError as error:
            failed.append(_finding(name, error.message, error.hint))
            continue
        if made.said is not None:
            bench.sink(Note(message=f"{name}: {made.said.message}"))
        if _read(path) != made.dockerfile:
            store.write_atomic(path, made.dockerfile)
            changed.append(path)
    return changed, failed


def dockerfile_path(bench: Workbench, name: str) -> Path:
    """Where a row's Dockerfile is reviewed."""
    return bench.project.images / name / "Dockerfile"


def _check(bench: Workbench, env: Environment) -> list[Finding]:
    try:
        made = draft(bench, env, committed=True)
    except InputError as error:
        return [_finding(env.name, error.message, error.hint)]
    found = [made.said] if made.said else []
    if made.lock is None and made.said and made.said.severity is Severity.INFO:
        fix = f"envbuild lock {env.name} (where its wheels cannot be had: --allow-unresolved)"
        found = [Finding(rule="lock", severity=Severity.ERROR, subject=env.name, message="there is no lock", fix=fix)]
    path = dockerfile_path(bench, env.name)
    fix = f"envbuild render {env.name} --write"
    there = _read(path)
    if there is None:
        return [*found, _finding(env.name, f"{path} is not there", fix)]
    if there != made.dockerfile:
        number, text = _first_difference(there, made.dockerfile)
        message = f"{path} is not what the row renders now; the first line that differs is {number}: {text}"
        found.append(_finding(env.name, message, fix, file=str(path), line=number))
    if made.rendering is not None:
        found += _check_record(path.with_name("record.json"), env.name, made.rendering.target_id)
    return found


def _read(path: Path) -> bytes | None:
    """A committed file's content, up to a bound; None where there is no such file, or what is there is none."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(_LONGEST)
    except OSError:
        return None


def _check_record(path: Path, name: str, target_id: str) -> list[Finding]:
    """A proof of other inputs is no proof; it takes a build to renew it, so this is no error."""
    if not path.is_file():
        return []
    try:
        document = store.read_json(path)
    except EnvbuildError as error:
        return [_finding(name, error.message, f"envbuild build {name} --record")]
    of = document.get("target_id") if isinstance(document, dict) else None
    if of == target_id:
        return []
    message = f"{path} proves other inputs (target {str(of)[:8]}) than the row has now ({target_id[:8]})"
    fix = f"envbuild build {name} --record"
    return [Finding(rule=RULE, severity=Severity.WARNING, subject=name, message=message, fix=fix)]


def _first_difference(there: bytes, wanted: bytes) -> tuple[int, str]:
    """Number and text of the first line that differs: as it should be, or that it should not be there."""
    pairs = zip_longest(there.splitlines(keepends=True), wanted.splitlines(keepends=True))
    for number, (old, new) in enumerate(pairs, 1):
        if old != new:
            if new is None:
                return number, "there is more than there should be"
            # A committed file may hold anything; the rendered line is known to be clean.
            return number, f"it should be {new.decode().strip()[:_SHOWN]!r}"
    raise AssertionError("the files are the same")


def _finding(name: str, message: str, fix: str, *, file: str | None = None, line: int | None = None) -> Finding:
    return Finding(
        rule=RULE, severity=Severity.ERROR, subject=name, message=message, fix=fix, source="images/", file=file,
        line=line, column=1 if line else None,
    )  # fmt: skip
