"""Where distributions put the Python that an environment is made with, and its library."""

from __future__ import annotations

import re

# Debian's and Enterprise Linux's, and a Software Collection of CentOS 7 (rh-python38).
_PROGRAM = r"((?:opt/rh/[^/]+/root/)?usr)/bin/python{}"
# An interpreter is found by its links: /usr/bin/python3.11 of all of them is a file.
EXAMPLES = "/usr/bin/python{0} or /opt/rh/*/root/usr/bin/python{0}"


def is_distributions(program: str | None, version: str) -> bool:
    """Whether a path (no leading slash, no links) is one where a distribution puts that Python, such as 3.11."""
    return re.fullmatch(_PROGRAM.format(re.escape(version)), program or "") is not None


def library_folders(program: str | None, version: str) -> tuple[str, ...]:
    """Folders of the standard library that a distribution's interpreter has, without a leading slash.

    On Enterprise Linux modules in Python lie beside native ones in lib64, and those of other packages in lib too.
    """
    found = re.fullmatch(_PROGRAM.format(re.escape(version)), program or "")
    return tuple(f"{found[1] if found else 'usr'}/{lib}/python{version}" for lib in ("lib", "lib64"))
