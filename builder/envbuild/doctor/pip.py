"""Lines for the shell that repair the Python packages of the examined interpreter."""

from __future__ import annotations

import shlex

from envbuild.doctor.view import View
from envbuild.doctor.words import shell_path


def install(view: View, *wanted: str, options: str = "") -> str:
    """The line that installs requirements into the examined interpreter; empty where it should not be pasted.

    That is where it has no pip of its own, or is the distribution's: PEP 668 closes that one to pip.
    """
    interpreter = view.collection.interpreter
    if interpreter is None or interpreter.prefix in (None, "/usr") or view.package("pip") is None:
        return ""
    words = " ".join(filter(None, ("-m pip install", options, *map(shlex.quote, wanted))))
    return f"{shell_path(interpreter.executable)} {words}"
