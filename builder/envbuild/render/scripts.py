"""The Plan without Docker: a script for a bare host, and a definition for Apptainer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from envbuild.errors import InputError
from envbuild.lock import requirements_txt
from envbuild.plan import Plan
from envbuild.render import needs
from envbuild.render.templates import file, text

# Raised whenever a step of provision.sh changes what it makes: what older scripts made is then made anew.
_FORMAT = 1
# A prefix has variables of its own user, and no container runtime reads these.
_NOT_IN_A_PREFIX = frozenset({"HOME", "USER", "PATH", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"})
_NOT_IN_APPTAINER = frozenset({"HOME", "USER"})
# GiB that making it takes at its fullest, rounded up. Measured: the cpu row's prefix; images of h200-cu130 have 5.5 GB
# without and 7.3 GB with the toolkit, and pip keeps what it downloads until the end.
_GIGABYTES = {"cpu": 4, "cuda": 16}
_GIGABYTES_OF_TOOLKIT = 4
_MARKS = re.compile(r"^ENVBUILD_[A-Z_]+$", re.MULTILINE)
_SECTIONS = frozenset({"%setup", "%files from toolkit", "%post", "%environment", "%labels", "%test", "%help"})


def provision(plan: Plan, templates: Path, *, glibc: str = "") -> bytes:
    """A POSIX shell script that makes the environment in a folder, without root.

    Args:
        plan: What to make.
        templates: Folder with the templates.
        glibc: The oldest C library that torch's wheels run on; empty where nobody knows.

    Raises:
        InputError: There are no locked packages, or a template is missing or wrong.
    """
    values = _values(plan, templates)
    titles = ["host", "Python environment and build tools", "torch wheels", "other wheels",
              *(["CUDA toolkit"] if plan.toolkit == "wheels" else []),
              f"compile {' '.join(plan.ops or ['DeepSpeed'])}",
              f"install {' '.join(each.partition('==')[0] for each in plan.built)}",
              "environment files", "check"]  # fmt: skip
    requirements, compiler = values["requirements"], values["compiler"]
    assert isinstance(requirements, dict)
    environment = tuple((name, _mapped(plan, name, value)) for name, value in plan.env if name not in _NOT_IN_A_PREFIX)
    digests = {group: _digest(content) for group, content in requirements.items()}
    digests["compile"] = _digest(
        requirements["ops"], compiler, values["cuda_home"], plan.cpu_baseline, dict(plan.ops_env)
    )
    digests["files"] = _digest(plan.constraints, environment)
    values |= {
        "environment": environment,
        "titles": titles,
        "digests": digests,
        "counts": {group: len(plan.group(group)) for group in ("tools", "torch", "deps", "toolkit")},
        "installed": tuple(package for package in plan.wheels if package.group != "toolkit"),
        "gcc": dict(plan.claims)["gcc"].split(".")[0],
        "glibc": glibc,
        "machine": needs.MACHINES[plan.platform],
        "cpu_flags": needs.CPU_FLAGS.get(plan.cpu_baseline, ()),
        "python_packages": needs.python_packages(plan),
        "compiler_packages": needs.compiler_packages(plan),
        "headers": needs.headers(plan),
        "others": needs.others(plan),
        "gigabytes": _GIGABYTES[plan.accelerator] + (_GIGABYTES_OF_TOOLKIT if plan.toolkit == "wheels" else 0),
        "format": _FORMAT,
    }
    return text(templates, "provision.sh.j2", values, {"tcl": _tcl}).encode()


def apptainer(plan: Plan, templates: Path) -> bytes:
    """An Apptainer definition file.

    Raises:
        InputError: There are no locked packages, or a template is missing or wrong, or a value cannot be said in one.
    """
    values = _values(plan, templates)
    values |= {
        "environment": tuple((name, value) for name, value in plan.env if name not in _NOT_IN_APPTAINER),
        "op_packages": tuple(name for name in plan.op_packages if name not in plan.packages),
        "cuda": dict(plan.claims).get("cuda", ""),
    }
    made = text(templates, "apptainer.def.j2", values)
    # Apptainer takes a line that begins with % for the next section, and what is between double braces for an argument.
    for number, line in enumerate(made.split("\n"), 1):
        if (line.lstrip().startswith("%") and line not in _SECTIONS) or "{{" in line:
            raise InputError(
                f"{plan.environment}: line {number} of apptainer.def would not be read as text: {line.strip()}"
            )
    return made.encode()


def _values(plan: Plan, templates: Path) -> dict[str, object]:
    if not plan.wheels:
        raise InputError(
            f"{plan.environment}: its lock holds no packages, so there is nothing to install",
            hint=f"Resolve it where its wheels can be reached: envbuild lock {plan.environment}",
        )
    groups = ("tools", "torch", "deps", "ops", *(["toolkit"] if plan.toolkit == "wheels" else []))
    helpers = templates / "files"
    values: dict[str, object] = {
        "plan": plan,
        "claims": {"cuda": "", **dict(plan.claims)},
        "manager": needs.manager(plan),
        "requirements": {group: requirements_txt(plan.wheels, group) for group in groups},  # type: ignore[arg-type]
        "constraints": "".join(f"{line}\n" for line in plan.constraints),
        "compiler": _embedded(helpers / "compiler"),
        "cuda_home": _embedded(helpers / "cuda-home") if plan.toolkit == "wheels" else "",
    }
    return values


def _embedded(path: Path) -> str:
    """A file that is carried inside a here-document, whose end it must not hold."""
    try:
        content = file(path).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text: {error.reason} at byte {error.start}") from error
    if _MARKS.search(content):
        raise InputError(f"{path}: a line of it looks like the end of a here-document")
    return content if content.endswith("\n") else f"{content}\n"


def _mapped(plan: Plan, name: str, value: str) -> str:
    """A variable's value with the script's own variables in place of the image's paths; a value holds no $ itself."""
    own: Mapping[str, str] = {plan.cc: "$cc", plan.cxx: "$cxx"} if name in ("CC", "CXX", "CUDAHOSTCXX") else {}
    if value in own:
        return own[value]
    return value.replace(plan.prefix, "$venv").replace(plan.home, "$state")


def _tcl(value: str) -> str:
    """For a Tcl string in double quotes, where brackets run commands; the model lets no quote, $ or \\ through."""
    return value.replace("[", r"\[").replace("]", r"\]")


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=list).encode()).hexdigest()
