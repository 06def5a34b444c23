"""The versions a row claims, each with where it is read outside and inside of the image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envbuild.judge.compare import Claim, Reading
from envbuild.judge.outcome import dig
from envbuild.judge.outside import C_LIBRARIES, OutsideReport
from envbuild.judge.versions import cuda_of, matches
from envbuild.model import Environment
from envbuild.plan import PREFIX
from envbuild.plan.families import cxx_package

_REBUILD = "Build the image again; if the image is right, correct the row."
_NONE = "none"
_VERSION_PY = "torch/version.py"
_NOWHERE = "the packages of the system (dpkg, RPM)"


def module(inside: Mapping[str, Any], *keys: str) -> Any:
    """A figure of the part of the content probe that imports."""
    return dig(inside, "modules", "report", *keys)


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _or_none(value: Any, *, known: bool) -> str | None:
    """Text for a figure whose absence is an answer, once it is known that it was looked for."""
    return _string(value) or (_NONE if known and value is None else None)


def _package(outside: OutsideReport, name: str) -> Reading:
    return Reading(outside.system.get(name), f"{outside.system_places.get(name, _NOWHERE)} ({name})")


def claims(env: Environment, outside: OutsideReport, inside: Mapping[str, Any]) -> Iterator[Claim]:
    """Every version claim of a row, with its readings."""
    torch_known = isinstance(module(inside, "torch"), Mapping)
    yield Claim(
        rule="content.torch",
        what="torch",
        expected=env.torch_version,
        accepts=env.torch_version.__eq__,
        readings=(
            Reading(outside.torch, _VERSION_PY),
            Reading(_string(module(inside, "imported", "torch", "version")), "torch.__version__"),
        ),
        fix=_REBUILD,
    )
    # PyPI's own wheel of a CUDA build says 2.11.0 in its METADATA, and 2.11.0+cu130 once imported.
    public = env.torch.version if env.torch.index == "pypi" else env.torch_version
    yield Claim(
        rule="content.torch",
        what="torch's package",
        expected=env.torch_version,
        accepts=lambda version: version in (env.torch_version, public),
        readings=(Reading(outside.packages.get("torch"), "torch's METADATA"),),
        fix=_REBUILD,
    )
    cuda = cuda_of(env.torch.build) or _NONE
    yield Claim(
        rule="content.cuda",
        what="CUDA of torch",
        expected=cuda,
        accepts=cuda.__eq__,
        readings=(
            Reading(_or_none(outside.torch_cuda, known=outside.torch is not None), _VERSION_PY),
            Reading(_or_none(module(inside, "torch", "cuda"), known=torch_known), "torch.version.cuda"),
        ),
        fix=_REBUILD,
    )
    yield _nccl(env, outside, inside, torch_known=torch_known)
    yield Claim(
        rule="content.deepspeed",
        what="DeepSpeed",
        expected=env.deepspeed.version,
        accepts=env.deepspeed.version.__eq__,
        readings=(
            Reading(outside.packages.get("deepspeed"), "DeepSpeed's METADATA"),
            Reading(outside.deepspeed, "git_version_info_installed.py"),
            Reading(_string(module(inside, "imported", "deepspeed", "version")), "deepspeed.__version__"),
        ),
        fix=_REBUILD,
    )
    yield Claim(
        rule="content.python",
        what="Python",
        expected=env.python,
        accepts=lambda version: matches(env.python, version),
        readings=(
            Reading(outside.python, f"{PREFIX}/pyvenv.cfg"),
            Reading(_string(dig(inside, "python", "version")), "sys.version_info"),
        ),
        fix=_REBUILD,
    )
    yield Claim(
        rule="content.python",
        what="Python's packages folder",
        expected=env.python,
        accepts=env.python.__eq__,
        readings=(Reading(outside.python_folder, f"{PREFIX}/lib"),),
        fix=_REBUILD,
    )
    yield from _compilers(env, outside, inside)
    glibc = _string(dig(inside, "glibc"))
    yield Claim(
        rule="content.glibc",
        what="glibc",
        expected=None,
        accepts=lambda version: True,
        readings=(
            _package(outside, next((name for name in C_LIBRARIES if name in outside.system), "glibc")),
            Reading(glibc.removeprefix("glibc ") if glibc else None, "os.confstr"),
        ),
        fix=_REBUILD,
    )


def _nccl(env: Environment, outside: OutsideReport, inside: Mapping[str, Any], *, torch_known: bool) -> Claim:
    installed = next((v for name, v in outside.packages.items() if name.startswith("nvidia-nccl-cu")), None)
    readings = [Reading(_or_none(module(inside, "torch", "nccl"), known=torch_known), "torch.cuda.nccl.version()")]
    if env.accelerator == "cpu" or installed is not None or outside.nccl_pin is not None:
        # Without a pin and a package NCCL is linked into torch, and only the library itself can tell.
        known = env.accelerator == "cpu"
        readings.append(Reading(_or_none(installed, known=known), "the nvidia-nccl package"))
    if outside.nccl_pin is not None:
        readings.append(Reading(outside.nccl_pin, "torch's METADATA"))
    expected = _NONE if env.accelerator == "cpu" else env.nccl or "an NCCL that the row must name"
    return Claim(
        rule="content.nccl",
        what="NCCL",
        expected=expected,
        accepts=lambda version: version == expected if expected == _NONE else matches(expected, version),
        readings=tuple(readings),
        fix="NCCL must be what this torch build carries: name that one in the row, and let nothing install another.",
    )


def _compilers(env: Environment, outside: OutsideReport, inside: Mapping[str, Any]) -> Iterator[Claim]:
    pairs = [("CC", env.gcc.package), ("CXX", cxx_package(env))]
    if env.accelerator == "cuda":
        pairs.append(("CUDAHOSTCXX", cxx_package(env)))
    for variable, package in pairs:
        yield Claim(
            rule="content.gcc",
            what=f"GCC ({package})",
            expected=env.gcc.version,
            accepts=lambda version: matches(env.gcc.version, version),
            readings=(
                _package(outside, package),
                Reading(_string(dig(inside, "compilers", variable, "version")), f"${variable} -dumpfullversion"),
            ),
            fix=_REBUILD,
        )
