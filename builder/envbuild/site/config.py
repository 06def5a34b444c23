"""``envbuild.toml``, the ``ENVBUILD_*`` variables and the flags, as one frozen value.

Two files may speak: the user's own (in the platform's configuration folder) and the one beside the matrix, which
replaces the user's section by section. Variables and flags then replace single keys.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import ValidationError

from envbuild.errors import InputError
from envbuild.site import sources, urls
from envbuild.site.section import Section
from envbuild.site.sections import SECTIONS, SiteConfig
from envbuild.site.sources import Given, Problems

__all__ = ["FILE", "SECTIONS", "SiteConfig", "load", "user_file"]

FILE = "envbuild.toml"
_PREFIX = "ENVBUILD_"
_HOME_VARIABLES = frozenset({"ENVBUILD_HOME"})


_LISTS = {
    ("pip", "extra_index"),
    ("pip", "find_links"),
    ("pip", "trusted_hosts"),
    ("rpm", "gpgkey"),
    ("trust", "keys"),
}
_TABLES = {("base", "mirrors"), ("rpm", "repositories")}
# What has to be there already. Keys and the cache are looked at by whoever uses them.
_FILES = {("pip", "cert"), ("network", "ca"), ("rpm", "repo_file"), ("rpm", "client_cert"), ("rpm", "client_key")}
# What a flag is called, where not as its key.
_FLAGS = {
    ("registry", "name"): "registry",
    ("trust", "keys"): "key",
    ("engine", "kind"): "engine",
    ("executor", "kind"): "executor",
}
_PATHS = _FILES | {
    ("pip", "find_links"),
    ("paths", "cache"),
    ("rpm", "gpgkey"),
    ("trust", "keys"),
    ("signing", "key"),
    ("engine", "client"),
    ("executor", "folder"),
    ("executor", "home"),
    ("executor", "envbuild"),
}
# A program: a path, or a name that is looked for on PATH.
_PROGRAMS = {("engine", "client"), ("executor", "envbuild")}
_NUMBERS = {("pip", "timeout"), ("executor", "at_once")}


def load(
    project_root: Path | None, environ: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> SiteConfig:
    """The site's settings.

    Args:
        project_root: Folder that may hold an ``envbuild.toml``.
        environ: Environment variables: ``ENVBUILD_<SECTION>_<KEY>``, lists separated by commas
            (``ENVBUILD_BASE_MIRRORS`` as ``registry=prefix``, ``ENVBUILD_RPM_REPOSITORIES`` as ``id=address``), and the
            usual proxy variables as a default.
        flags: Values of command-line flags by ``section.key``; None values are ignored.

    Raises:
        InputError: A file or a variable cannot be used. It lists every problem with its place.
    """
    problems = Problems()
    given: dict[str, dict[str, Given]] = {}
    origin: dict[str, list[str]] = {}
    in_file: set[str] = set()

    for path in _candidates(project_root, environ):
        for section, values in sources.from_file(path, SECTIONS, problems).items():
            given[section] = values
            origin[section] = [str(path)]
            in_file.add(section)
    for section, values in _from_environment(environ, problems).items():
        given.setdefault(section, {}).update(values)
        origin.setdefault(section, []).append("environment")
    for name, value in (flags or {}).items():
        if value is not None:
            section, key = name.split(".")
            flag = _FLAGS.get((section, key), key)
            given.setdefault(section, {})[key] = Given(value=value, place=f"--{flag}", folder=Path.cwd())
            origin.setdefault(section, []).append("flags")

    _proxies_from_environment(environ, given, origin)
    if "pip" not in in_file:
        origin["pip"] = ["pip's own configuration", *origin.get("pip", ())]
    plain = {section: _plain(section, values, problems) for section, values in given.items()}
    sections: dict[str, Any] = {name: _section(name, plain.get(name), given, problems) for name in SECTIONS}
    if problems:
        raise InputError(str(problems), hint="every key is described in the envbuild.toml that `envbuild init` writes")
    origins = {section: " and ".join(dict.fromkeys(names)) for section, names in origin.items()}
    return SiteConfig.model_construct(**sections, origin=origins, in_file=frozenset(in_file))


def _section(
    name: str, values: Mapping[str, object] | None, given: Mapping[str, Mapping[str, Given]], problems: Problems
) -> Section:
    """One section, validated where something was said: a validator costs a millisecond, and most are not needed."""
    kind = SECTIONS[name]
    if values:
        try:
            return kind.model_validate(values)
        except ValidationError as error:
            problems.add_validation(error, name, given[name])
    return kind.model_construct()


def user_file(environ: Mapping[str, str]) -> Path:
    """The user's own site file; it need not exist."""
    if sys.platform == "linux":
        # As platformdirs does, but from the given environment, so that the result is a function of the arguments.
        base = environ.get("XDG_CONFIG_HOME", "").strip()
        return (Path(base) if base else Path(environ.get("HOME") or Path.home(), ".config")) / "envbuild" / FILE
    return Path(platformdirs.user_config_dir("envbuild"), FILE)


def _candidates(project_root: Path | None, environ: Mapping[str, str]) -> list[Path]:
    paths = [user_file(environ)]
    if project_root is not None:
        paths.append(project_root / FILE)
    return [path for path in paths if path.is_file()]


def _from_environment(environ: Mapping[str, str], problems: Problems) -> dict[str, dict[str, Given]]:
    found: dict[str, dict[str, Given]] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(_PREFIX) or variable in _HOME_VARIABLES or not text:
            continue
        section, _, key = variable.removeprefix(_PREFIX).lower().partition("_")
        # Other ENVBUILD_* variables belong to other rooms (or to the user's own scripts).
        if section not in SECTIONS or not key:
            continue
        if key not in SECTIONS[section].model_fields:
            known = [f"{_PREFIX}{section}_{name}".upper() for name in SECTIONS[section].model_fields]
            problems.add(variable, f"unknown variable{sources.suggestion(variable, known)}")
            continue
        value: object = text
        if (section, key) in _LISTS:
            value = [item.strip() for item in text.split(",") if item.strip()]
        elif (section, key) in _TABLES:
            value = dict(item.strip().partition("=")[::2] for item in text.split(",") if item.strip())
        elif (section, key) in _NUMBERS and text.strip().isdigit():
            value = int(text)
        found.setdefault(section, {})[key] = Given(value=value, place=variable, folder=Path.cwd())
    return found


def _proxies_from_environment(
    environ: Mapping[str, str], given: dict[str, dict[str, Given]], origin: dict[str, list[str]]
) -> None:
    network = given.get("network", {})
    if any(key.endswith("_proxy") for key in network):
        return
    for key in ("http_proxy", "https_proxy", "no_proxy"):
        for variable in (key, key.upper()):
            if environ.get(variable):
                network[key] = Given(value=environ[variable], place=variable, folder=Path.cwd())
                origin.setdefault("network", []).append("environment")
                break
    if network:
        given["network"] = network


def _plain(section: str, values: Mapping[str, Given], problems: Problems) -> dict[str, object]:
    """The values alone, with paths made absolute and looked at."""
    plain: dict[str, object] = {}
    for key, item in values.items():
        value = item.value
        if (section, key) in _PATHS:
            if isinstance(value, list | tuple):
                value = [sources.absolute(entry, item.folder) for entry in value]
            elif (section, key) not in _PROGRAMS or "/" in str(value):
                value = sources.absolute(value, item.folder)
        if (section, key) in _FILES and isinstance(value, str) and not Path(value).is_file():
            problems.add(item.place, f"{section}.{key}: {value} is not a file")
        if (section, key) == ("pip", "find_links") and isinstance(value, list):
            for entry in value:
                path = urls.local_path(entry) if isinstance(entry, str) else None
                if path is not None and not path.exists():
                    problems.add(item.place, f"pip.find_links: {path} does not exist")
        plain[key] = value
    return plain
