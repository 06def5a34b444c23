"""Python.h of the interpreter that trains."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.found import minor, pending
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity


def look(view: View) -> Iterator[Finding]:
    """Its absence, where an op has to be compiled."""
    interpreter, ops = view.collection.interpreter, pending(view)
    if interpreter is None or interpreter.header is not False or not ops:
        return
    version = minor(interpreter.version) or "3"
    rpm = view.collection.system.manager == "rpm"
    package = f"python{version}-devel" if rpm else f"python{version}-dev"
    yield Finding(
        rule="python-headers.missing",
        severity=Severity.ERROR,
        subject=interpreter.include or interpreter.executable,
        message=f"there is no Python.h for {interpreter.executable} (Python {version}) in "
        f"{interpreter.include or 'its include folder'}, and {', '.join(ops)} is not compiled yet",
        why="ds_report says OKAY all the same; the compiler ends with 'Python.h: No such file or directory', and "
        "DeepSpeed with a missing ds_opt_adam.",
        fix="this conda environment is not whole: install its python again"
        if interpreter.kind == "conda"
        else f"install the headers of just this Python: {package}",
        source="sysconfig.get_path('include'); deepspeedai/DeepSpeed#1846",
    )


CHECK = Check(
    name="python-headers",
    title="Python.h of this interpreter is there where an op is compiled",
    look=look,
)
