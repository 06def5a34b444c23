"""ninja, as torch looks for it: a program on PATH. That the Python package is installed does not make it one."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.found import by_loader, pending
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity


def look(view: View) -> Iterator[Finding]:
    """No ninja that runs, where an op is loaded through torch's JIT, which asks for it even when all is compiled."""
    ops, interpreter = pending(view), view.collection.interpreter
    tool = next((tool for tool in view.collection.tools if tool.name == "ninja"), None)
    if not ops or (tool is not None and tool.path and not tool.error):
        return
    package = view.package("ninja")
    broken = tool is not None and tool.path is not None and by_loader(tool.error)
    folder = f"{interpreter.prefix}/bin" if interpreter and interpreter.prefix and package and not broken else ""
    if tool is not None and tool.path:
        what = f"{tool.path} does not run: {tool.error}"
    elif package:
        what = f"the Python package ninja {package} is installed, and its program is not on PATH"
    else:
        what = "there is no ninja on PATH"
    yield Finding(
        rule="ninja.runtime" if broken else "ninja.missing",
        severity=Severity.ERROR,
        subject=(tool.path if tool else None) or "ninja",
        message=f"{what}; {', '.join(ops)} is loaded through it",
        why="torch ends with 'Ninja is required to load C++ extensions'. ds_report looks for the package alone and "
        "says OKAY. Ranks that a launcher starts over ssh may have another PATH than this shell.",
        fix="see what is said of the libraries: ninja itself is not at fault"
        if broken
        else f"put {folder} on PATH, also for what the launcher starts (activate the environment)"
        if folder
        else "install ninja into the environment that trains: pip install ninja",
        command=f'export PATH="{folder}:$PATH"' if folder and '"' not in folder and "$" not in folder else "",
        source="torch.utils.cpp_extension, is_ninja_available; deepspeedai/DeepSpeed#1687",
    )


CHECK = Check(
    name="ninja",
    title="ninja can be run through PATH where an op is compiled or looked up in the JIT cache",
    look=look,
)
