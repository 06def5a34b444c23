"""What torch's wheel says of itself, even where torch cannot be imported: its CUDA, and the NCCL that it pins."""

from __future__ import annotations

import re

from envbuild.doctor.found import torch_version
from envbuild.doctor.view import View, normalised

_IN_WHEELS = re.compile(r"/(?:site|dist)-packages/nvidia/")
_PIN = re.compile(r"nvidia[-_.]([a-z0-9]+?)(?:[-_.]cu(\d+))?\s*\(?==\s*([\d.]+)")


def in_wheels(path: str) -> bool:
    """Whether a file is of NVIDIA's wheels."""
    return _IN_WHEELS.search(path) is not None


def wheel_files(view: View) -> dict[str, str]:
    """File name -> path of every recorded library of NVIDIA's wheels."""
    paths = (path for path in sorted(view.collection.libraries.paths) if in_wheels(path))
    return {name: path for path in paths if ".so" in (name := path.rpartition("/")[2])}


def torch_build(view: View) -> str | None:
    """The build variant: cu130, cpu; None where it cannot be told."""
    local = (torch_version(view) or "").partition("+")[2]
    if re.fullmatch(r"cpu|cu\d{2,3}", local):
        return local
    torch = view.collection.torch
    if torch is not None and torch.cuda:
        return f"cu{torch.cuda.replace('.', '')}"
    if torch is not None and torch.ok:
        return "cpu"
    version = (torch_version(view) or "").partition("+")[0]
    known = view.facts.versions.get(version)
    return known.pypi.build if known is not None and known.pypi is not None else None


def cuda_major(view: View) -> str | None:
    """The CUDA major that torch is built for; None for a CPU build, or where it cannot be told."""
    build = torch_build(view) or ""
    if re.fullmatch(r"cu\d{2,3}", build):
        return build[2:-1]
    majors = {major for name, major, _ in _pins(view) if major and name == "nccl"}
    return majors.pop() if len(majors) == 1 else None


def nccl_wanted(view: View) -> tuple[str, str] | None:
    """The NCCL that this torch was built with, and who says so: the wheel's own METADATA, else the facts."""
    for name, _, version in _pins(view):
        if name == "nccl":
            return version, f"METADATA of torch {torch_version(view)}"
    version, build = (torch_version(view) or "").partition("+")[0], torch_build(view)
    known = view.facts.torch_build(version, build) if build else None
    return (known.nccl, known.source) if known is not None and known.nccl else None


def _pins(view: View) -> list[tuple[str, str | None, str]]:
    """The NVIDIA wheels that torch asks for on this kind of machine, as name, CUDA major and version."""
    interpreter = view.collection.interpreter
    torch = [each for each in (interpreter.packages if interpreter else ()) if normalised(each.name) == "torch"]
    found = [_PIN.match(requirement) for each in torch for requirement in each.requires]
    return [(match[1], match[2], match[3]) for match in found if match]
