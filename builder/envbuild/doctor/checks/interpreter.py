"""The interpreter starts, and the user may read what it would load. Without that nothing else of it can be seen."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.doctor.view import Check, View
from envbuild.doctor.words import listed
from envbuild.model import Finding, Severity

_PART = "interpreter"
# Variables that decide what Python finds before it runs a line.
_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "LD_PRELOAD", "LD_LIBRARY_PATH")


def look(view: View) -> Iterator[Finding]:
    """An interpreter that did not say what it is, or only in an empty environment; folders that are closed to it."""
    interpreter = view.collection.interpreter
    if interpreter is None:
        return
    said = [re.sub(r"^\w+Error: ", "", failure.error) for failure in view.collection.errors if failure.part == _PART]
    if said:
        alone = interpreter.version is not None
        named = [name for name in _VARIABLES if view.collection.environment.get(name)]
        yield Finding(
            rule="interpreter.dead",
            severity=Severity.ERROR,
            subject=interpreter.executable,
            message="this Python does not start"
            + (" in this environment, and does so in an empty one" if alone else ""),
            why="Nothing can be trained with it, and nothing was seen of what it holds.",
            fix=f"take back what {listed(named) if named else 'the environment variables'} say: without them it starts"
            if alone
            else "start it by hand and read its own words; a file *.pth or sitecustomize.py that cannot be read, or a "
            "wrapper that ends, stops it before its first line. Or name another: envbuild doctor --python PATH",
            evidence=(*said[:3], *(f"{name}={view.collection.environment[name]}" for name in named if alone)),
            source="its own exit code and words",
        )
    if interpreter.closed:
        yield Finding(
            rule="interpreter.closed",
            severity=Severity.ERROR,
            subject=interpreter.executable,
            message=f"this user may not read {listed(interpreter.closed)}, where this Python looks for its packages",
            why="What lies there cannot be imported: Python goes on as if it were not installed.",
            fix="let its owner open it: chmod -R a+rX on the folder; or train as the user whom it belongs to",
            evidence=(f"user id {view.collection.machine.uid}",) if view.collection.machine.uid is not None else (),
            source="sys.path; the folder's permissions",
        )


CHECK = Check(
    name="interpreter",
    title="the interpreter starts, and this user may read what it would load",
    look=look,
    explains=("imports", "packages", "installation"),
)
