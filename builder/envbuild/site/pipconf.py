"""pip's own configuration: which files, in which order, and what they say.

Files, order and sections are pip's documented ones (https://pip.pypa.io/en/stable/topics/configuration/), compared with
``pip config debug`` of pip 23.2 and 26.3.
"""

from __future__ import annotations

import configparser
import locale
import os
from collections.abc import Mapping
from pathlib import Path

from envbuild.errors import InputError

# Apart from $XDG_CONFIG_DIRS, pip always reads this one.
SYSTEM_FILE = Path("/etc/pip.conf")
# `download` and `install` both look for packages; what install says wins, as it is what the build runs.
_SECTIONS = ("global", "download", "install", ":env:")
_ALIASES = {"default-timeout": "timeout", "pypi-url": "index-url"}
_HONOURED = frozenset(
    {"index-url", "extra-index-url", "find-links", "cert", "proxy", "trusted-host", "timeout", "no-index"}
)
# Keys that change how pip talks or where it caches, never what it installs: not worth a line.
_SILENT = frozenset(
    (
        "break-system-packages",
        "cache-dir",
        "compile",
        "config-file",
        "debug",
        "disable-pip-version-check",
        "exists-action",
        "log",
        "no-cache-dir",
        "no-color",
        "no-compile",
        "no-input",
        "no-python-version-warning",
        "no-warn-script-location",
        "progress-bar",
        "quiet",
        "retries",
        "root-user-action",
        "verbose",
    )
)


def files(environ: Mapping[str, str], prefix: Path) -> list[Path]:
    """pip's configuration files, the one that wins last."""
    own = environ.get("PIP_CONFIG_FILE")
    if own == os.devnull:
        return []
    user_home = Path(environ.get("HOME") or Path.home())
    shared = environ.get("XDG_CONFIG_DIRS", "").strip() or "/etc/xdg"
    found = [Path(folder, "pip", "pip.conf") for folder in shared.split(os.pathsep) if folder]
    found.append(SYSTEM_FILE)
    if not (own and Path(own).exists()):
        config_home = environ.get("XDG_CONFIG_HOME", "").strip() or user_home / ".config"
        found += [user_home / ".pip" / "pip.conf", Path(config_home, "pip", "pip.conf")]
    found.append(prefix / "pip.conf")
    if own:
        found.append(Path(own))
    return found


def read(environ: Mapping[str, str], prefix: Path) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """What pip's files and variables say: honoured keys with value and place, and the others as ``key (place)``.

    Args:
        environ: Environment variables.
        prefix: Folder of pip's "site" file: the virtual environment's.

    Raises:
        InputError: A file is not a pip configuration file; pip stops there too.
    """
    # pip merges by (section, key) first: a higher file's [global] replaces a lower file's [global], and only then does
    # any [install] replace [global]. An empty value removes what lower files said.
    merged: dict[tuple[str, str], tuple[str, str]] = {}
    for path in files(environ, prefix):
        for section, key, value in _read(path):
            merged[section, key] = (value, str(path))
    for variable, value in environ.items():
        if variable.startswith("PIP_") and variable not in ("PIP_VERSION", "PIP_HELP"):
            merged[":env:", _normal(variable.removeprefix("PIP_"))] = (value, variable)

    chosen: dict[str, tuple[str, str]] = {}
    ignored: list[str] = []
    for wanted in _SECTIONS:
        for (section, key), (value, place) in merged.items():
            if section == wanted and value:
                if key in _HONOURED:
                    chosen[key] = (value, place)
                elif key not in _SILENT:
                    ignored.append(f"{key} ({place})")
    return chosen, ignored


def _normal(name: str) -> str:
    key = name.lower().replace("_", "-").removeprefix("--")
    return _ALIASES.get(key, key)


def _read(path: Path) -> list[tuple[str, str, str]]:
    parser = configparser.RawConfigParser()
    try:
        # In the locale's encoding, as pip reads it.
        text = path.read_text(encoding=locale.getpreferredencoding(False)) if path.exists() else ""
        parser.read_string(text, source=str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in this locale's encoding", hint="pip cannot read it either") from error
    except configparser.Error as error:
        # The parser's message repeats the line, which may hold a password.
        number = getattr(error, "lineno", None) or next((line for line, _ in getattr(error, "errors", ())), None)
        place = f"{path}:{number}" if number else str(path)
        raise InputError(f"{place}: not a pip configuration file", hint="pip cannot read it either") from error
    except OSError:
        # A file that cannot be opened is no file to pip.
        return []
    return [(section, _normal(key), value) for section in parser.sections() for key, value in parser.items(section)]
