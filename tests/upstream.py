"""Packages as upstream publishes them, self-made and small: wheels, source archives, index pages."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

X86 = "manylinux_2_28_x86_64"
BUILDER = b"""
DEFAULT_COMPUTE_CAPABILITIES = "6.0;6.1;7.0"
cuda_minor_mismatch_ok = {
    11: ["11.0", "11.1", "11.2", "11.3", "11.4", "11.5", "11.6", "11.7", "11.8"],
    12: ["12.0", "12.1", "12.2", "12.3", "12.4", "12.5", "12.6", "12.8", "12.9"],
}
"""


def metadata(name: str, version: str, *needs: str, more: str = "") -> bytes:
    """Core metadata."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {n}" for n in needs)]
    return ("\n".join(lines) + f"\n{more}\n").encode()


def wheel(
    folder: Path,
    name: str,
    version: str,
    *needs: str,
    tag: str = "py3-none-any",
    members: Mapping[str, bytes] | None = None,
    said: bytes | None = None,
) -> Path:
    """A wheel; ``said`` replaces its METADATA."""
    path = folder / f"{name}-{version}-{tag}.whl"
    content = {f"{name}-{version}.dist-info/METADATA": metadata(name, version, *needs) if said is None else said}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in {**(members or {}), **content}.items():
            archive.writestr(member, data)
    return path


def torch(
    folder: Path,
    version: str,
    build: str = "13.0",
    nccl: str = "2.28.9",
    flags: bytes = b"sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
    pythons: tuple[str, ...] = ("cp310", "cp314"),
    local: str = "",
) -> None:
    """The wheels of a torch release, with what facts are read from."""
    needs = (
        f'nvidia-nccl-cu{build.split(".")[0]}=={nccl}; platform_system == "Linux"',
        'triton==3.6.0; platform_system == "Linux"',
        'cuda-toolkit[cublas]==13.0.2; platform_system == "Linux"',
    )
    members = {
        "torch/version.py": f"__version__ = '{version}'\ncuda: Optional[str] = '{build}'\nhip = None\n".encode(),
        "torch/lib/libtorch_python.so": b"\0junk\0" + flags + b"\0" + bytes(3_000_000),
    }
    for python in pythons:
        wheel(folder, "torch", version + local, *needs, tag=f"{python}-{python}-{X86}", members=members)


def sdist(folder: Path, name: str, version: str, files: Mapping[str, bytes]) -> Path:
    """A source archive whose members stand in the order given."""
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for member, data in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{member}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def deepspeed(folder: Path, version: str, builder: bytes = BUILDER, pydantic: str = "pydantic>=2.0.0") -> Path:
    """A source archive of DeepSpeed, as far as facts are read from it."""
    more = "".join(f"Classifier: Programming Language :: Python :: 3.{minor}\n" for minor in (8, 12, 9))
    files = {
        "PKG-INFO": metadata("deepspeed", version, more=more),
        "op_builder/builder.py": builder,
        "requirements/requirements.txt": f"hjson\n{pydantic}\ntorch\n".encode(),
    }
    return sdist(folder, "deepspeed", version, files)


def page(*paths: Path, link: str = "../../files/{}", attributes: str = "") -> str:
    """An index page with links to files, hashes included."""
    links = []
    for path in paths:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        links.append(f'<a href="{link.format(path.name)}#sha256={digest}"{attributes}>{path.name}</a>')
    return "<!DOCTYPE html><html><body>\n" + "<br/>\n".join(links) + "\n</body></html>\n"
