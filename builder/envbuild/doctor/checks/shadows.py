"""What Python imports is the environment's own: neither PYTHONPATH nor the user's packages stand in front of it."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator

from envbuild.doctor.checks.imports import FAILURES
from envbuild.doctor.collection import Import
from envbuild.doctor.remedies import variable
from envbuild.doctor.view import Check, View, normalised
from envbuild.model import Finding, Severity

_BOLD = ("torch", "deepspeed", "numpy", "pydantic", "triton")
_SOURCE = "Python documentation, PYTHONPATH and site"
# Where an exception came from: the module that it blames, and the frames above it.
_BLAMED, _FRAME = re.compile(r"\((/[^()]+\.(?:py|so))\)"), re.compile(r'^\s*File "(/[^"]+)", line')
PYTHONPATH, USER = "PYTHONPATH", "the user's site-packages"


def look(view: View) -> Iterator[Finding]:
    """A module in front of the one that is meant, as the root of a failed import; else packages from elsewhere."""
    interpreter = view.collection.interpreter
    if interpreter is None:
        return
    # sys.path has them without a slash at the end.
    path = [posixpath.normpath(entry) for entry in view.collection.environment.get(PYTHONPATH, "").split(":") if entry]
    user = [interpreter.user_site] if interpreter.user_site and interpreter.kind != "system" else []
    for name, folders in ((PYTHONPATH, path), (USER, user)):
        culprit = _culprit(view, folders)
        if culprit is not None:
            yield _module(view, name, *culprit)
            continue
        found = [each for each in interpreter.packages if each.name.lower() in _BOLD and each.location in folders]
        held, places = sorted({each.name for each in found}), sorted({each.location or "" for each in found})
        if held:
            yield Finding(
                rule="shadows.outside",
                severity=Severity.WARNING,
                subject=name,
                message=f"{', '.join(held)} {'come' if len(held) > 1 else 'comes'} from {', '.join(places)}, not from "
                "the environment's own packages",
                why="What pip installs into the environment is then not what is loaded.",
                fix=f"take {', '.join(places)} out of PYTHONPATH"
                if name == PYTHONPATH
                else "set PYTHONNOUSERSITE=1, or remove them there",
                command=_command(view, name, places),
                source=_SOURCE,
            )


def _culprit(view: View, folders: list[str]) -> tuple[str, str, str] | None:
    """The folder, the file and the module that stand in front of another of that name; None where no import fails."""
    imports = [seen for seen in (view.collection.torch, view.collection.deepspeed) if seen is not None]
    if all(seen.ok and seen.version for seen in imports):
        return None
    for path in (path for seen in imports for path in _files(seen)):
        for folder in folders:
            if path.startswith(f"{folder.rstrip('/')}/"):
                module = path[len(folder.rstrip("/")) + 1 :].partition("/")[0].partition(".")[0]
                if module in sys.stdlib_module_names or _is_on_record(view, module, folders):
                    return folder, path, module
    return None


def _files(seen: Import) -> Iterator[str]:
    """The files that an import ended in, the likeliest first."""
    if seen.ok:
        yield from (seen.file,) if seen.file else ()
        return
    yield from _BLAMED.findall(seen.error or "")
    frames = [found[1] for line in seen.trace if (found := _FRAME.match(line))]
    yield from reversed(frames[-3:])


def _is_on_record(view: View, module: str, folders: list[str]) -> bool:
    """Whether the environment has a package of that name of its own."""
    interpreter = view.collection.interpreter
    return any(
        normalised(each.name) == normalised(module) and each.location not in folders
        for each in (interpreter.packages if interpreter else ())
    )


def _module(view: View, name: str, folder: str, path: str, module: str) -> Finding:
    whose = "Python's own" if module in sys.stdlib_module_names else "the environment's own"
    away = f"take {folder} out of PYTHONPATH" if name == PYTHONPATH else "set PYTHONNOUSERSITE=1"
    return Finding(
        rule="shadows.module",
        severity=Severity.ERROR,
        subject=name,
        message=f"{path} stands in front of {whose} {module}, because {folder} comes first on sys.path ({name})",
        why="Whatever imports that name gets the wrong module: torch and DeepSpeed end in an error that has nothing "
        "to do with them.",
        fix=f"{away}; or give {path} another name" if name == PYTHONPATH else f"{away}, or remove it there",
        command=_command(view, name, [folder]),
        evidence=(f"PYTHONPATH={view.collection.environment.get(PYTHONPATH, '')}",)
        if name == PYTHONPATH
        else (folder,),
        source=_SOURCE,
    )


def _command(view: View, name: str, places: list[str]) -> str:
    if name == USER:
        return "export PYTHONNOUSERSITE=1"
    entries = view.collection.environment.get(PYTHONPATH, "").split(":")
    return variable(PYTHONPATH, [entry for entry in entries if entry and posixpath.normpath(entry) not in places])


CHECK = Check(
    name="shadows",
    title="what Python imports is the environment's own: nothing stands in front of it",
    look=look,
    explains=FAILURES,
)
