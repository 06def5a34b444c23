"""A content report recorded inside a real image, and a small image with the same files: every difference is named."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.judge import archive, content, dpkg
from envbuild.judge.content import OutsideReport
from envbuild.judge.versions import capability, cuda_of, matches, upstream
from envbuild.model import Environment

Report = dict[str, Any]
INSIDE: Report = json.loads((Path(__file__).parent / "data" / "judge" / "content.json").read_text())
SITE = "opt/venv/lib/python3.11/site-packages"
OP = "cpython-311-x86_64-linux-gnu.so"

CPU = {
    "name": "cpu",
    "summary": "test",
    "accelerator": "cpu",
    "family": "debian",
    "base": {"image": "docker.io/library/debian:bookworm-slim"},
    "python": "3.11",
    "gcc": {"version": "12.2", "package": "gcc-12"},
    "torch": {"version": "2.13.0", "build": "cpu"},
    "deepspeed": {"version": "0.19.8", "ops": ["cpu_adam", "deepspeed_shm_comm"]},
    "requires": "cpu",
    "sources": {},
}
ENV = Environment.model_validate(CPU)

LINK = b"-> "
FILES: dict[str, bytes] = {
    "opt/venv/bin/python": LINK + b"python3.11",
    "opt/venv/bin/python3.11": LINK + b"/usr/bin/python3.11",
    "usr/bin/python3.11": b"ELF",
    f"{SITE}/distutils-precedence.pth": b"import os",
    f"{SITE}/setuptools-84.dist-info/RECORD": b"distutils-precedence.pth,sha256=x,9\nsetuptools/__init__.py,,\n",
    f"{SITE}/setuptools-84.dist-info/METADATA": b"Name: setuptools\nVersion: 84\n",
    "opt/venv/pyvenv.cfg": b"home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.2\n",
    f"{SITE}/torch/version.py": (
        b"from typing import Optional\n__all__ = ['__version__']\n__version__ = '2.13.0+cpu'\n"
        b"debug = False\ncuda: Optional[str] = None\ngit_version = str('x')\n"
    ),
    f"{SITE}/torch-2.13.0+cpu.dist-info/METADATA": b"Name: torch\nVersion: 2.13.0+cpu\nRequires-Dist: filelock\n",
    f"{SITE}/deepspeed-0.19.8.dist-info/METADATA": b"Name: deepspeed\nVersion: 0.19.8\n\nVersion: no header\n",
    f"{SITE}/numpy-2.4.6.dist-info/METADATA": b"Name: numpy\nVersion: 2.4.6\n",
    f"{SITE}/pydantic-2.14.4.dist-info/METADATA": b"Name: pydantic\nVersion: 2.14.4\n",
    # What setuptools vendors is not installed.
    f"{SITE}/setuptools/_vendor/numpy-1.0.dist-info/METADATA": b"Name: numpy\nVersion: 1.0\n",
    f"{SITE}/deepspeed/git_version_info_installed.py": (
        b"version='0.19.8'\ngit_hash='unknown'\naccelerator_name='cpu'\n"
        b"installed_ops={'async_io': False, 'cpu_adam': 1, 'deepspeed_shm_comm': 1}\n"
    ),
    f"{SITE}/deepspeed/ops/adam/cpu_adam_op.{OP}": b"ELF",
    f"{SITE}/deepspeed/ops/comm/deepspeed_shm_comm_op.{OP}": b"ELF",
    "opt/envbuild/constraints.txt": b"torch==2.13.0+cpu\ndeepspeed==0.19.8\nnumpy==2.4.6\n",
    "var/lib/dpkg/status": (
        b"Package: gcc-12\nStatus: install ok installed\nVersion: 12.2.0-14+deb12u1\n\n"
        b"Package: g++-12\nStatus: install ok installed\nVersion: 12.2.0-14+deb12u1\nDescription: x\n more: y\n\n"
        b"Package: libc6\nStatus: install ok installed\nVersion: 2.36-9+deb12u10\n\n"
        b"Package: libc6\nStatus: deinstall ok config-files\nArchitecture: i386\nVersion: 2.31-13\n"
    ),
}
VARIABLES = {
    "PATH": "/opt/venv/bin:/usr/bin",
    "CC": "/usr/bin/gcc-12",
    "CXX": "/usr/bin/g++-12",
    "DS_ACCELERATOR": "cpu",
    "PIP_CONSTRAINT": "/opt/envbuild/constraints.txt",
    "UV_CONSTRAINT": "/opt/envbuild/constraints.txt",
    "PYTHONNOUSERSITE": "1",
    "TOKEN": "not to be kept",
}


def image(files: Mapping[str, bytes | None], variables: Mapping[str, str] = VARIABLES) -> archive.ImageArchive:
    """An image of one layer with these files; None leaves one out."""

    def tar(members: Mapping[str, bytes]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as out:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                if data.startswith(LINK):
                    info.type, info.linkname, data = tarfile.SYMTYPE, data.removeprefix(LINK).decode(), b""
                info.size = len(data)
                out.addfile(info, io.BytesIO(data))
        return buffer.getvalue()

    layer = tar({name: data for name, data in files.items() if data is not None})
    env = [f"{name}={value}" for name, value in variables.items()]
    rootfs = {"diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    config = json.dumps({"config": {"Env": env}, "rootfs": rootfs}).encode()
    manifest = json.dumps([{"Config": "config.json", "Layers": ["layer.tar"]}]).encode()
    saved = tar({"layer.tar": layer, "config.json": config, "manifest.json": manifest})
    return archive.read(io.BytesIO(saved), content.WANTED)


def seen(built: archive.ImageArchive, env: Environment = ENV) -> OutsideReport:
    return content.outside(built, env, dpkg.installed(built))


def outside_of(changes: Mapping[str, bytes | None], env: Environment = ENV) -> OutsideReport:
    return seen(image({**FILES, **changes}), env)


OUTSIDE = outside_of({})


def rules(outside: OutsideReport, inside: Report, env: Environment = ENV, **more: Any) -> list[str]:
    findings = content.inspect(env, outside, inside, **more)
    assert all(finding.message and finding.fix for finding in findings)
    return [finding.rule for finding in findings]


def inside_with(path: str, value: Any) -> Report:
    report = copy.deepcopy(INSIDE)
    place: Any = report
    *keys, last = path.split("/")
    for key in keys:
        place = place[key]
    place[last] = value
    return report


def test_the_recorded_image_is_what_its_row_says() -> None:
    assert OUTSIDE.problems == ()
    assert rules(OUTSIDE, INSIDE) == []
    kept = json.dumps(dataclasses.asdict(OUTSIDE))
    assert "not to be kept" not in kept


FROM_OUTSIDE: dict[str, tuple[Mapping[str, bytes | None], list[str]]] = {
    "another torch": (
        {f"{SITE}/torch/version.py": b"__version__ = '2.12.1+cpu'\ncuda = None\n"},
        ["content.torch", "content.torch"],  # against the row, and against the inside
    ),
    "torch's package was replaced": (
        {f"{SITE}/torch-2.13.0+cpu.dist-info/METADATA": b"Name: torch\nVersion: 2.13.1+cpu\n"},
        ["content.torch", "content.constraints"],
    ),
    "a torch that could be of any build": (
        {f"{SITE}/torch-2.13.0+cpu.dist-info/METADATA": b"Name: torch\nVersion: 2.13.0\n"},
        ["content.torch", "content.constraints"],
    ),
    "a CUDA build": (
        {f"{SITE}/torch/version.py": b"__version__ = '2.13.0+cpu'\ncuda = '13.0'\n"},
        ["content.cuda", "content.cuda"],
    ),
    "no torch": (
        {f"{SITE}/torch/version.py": None},
        ["content.torch", "content.cuda"],
    ),
    "torch says something that is no literal": (
        {f"{SITE}/torch/version.py": b"__version__ = open('x').read()\ncuda = None\n"},
        ["content.torch", "content.cuda"],
    ),
    "an NCCL that a cpu row has no use for": (
        {f"{SITE}/nvidia_nccl_cu13-2.28.9.dist-info/METADATA": b"Name: nvidia-nccl-cu13\nVersion: 2.28.9\n"},
        ["content.nccl", "content.nccl"],
    ),
    "another DeepSpeed": (
        {f"{SITE}/deepspeed-0.19.8.dist-info/METADATA": b"Name: deepspeed\nVersion: 0.19.7\n"},
        ["content.deepspeed", "content.deepspeed", "content.deepspeed", "content.constraints"],
    ),
    "ops for another accelerator": (
        {
            f"{SITE}/deepspeed/git_version_info_installed.py": (
                b"version='0.19.8'\naccelerator_name='cuda'\ninstalled_ops={'cpu_adam': 1, 'deepspeed_shm_comm': 1}\n"
            )
        },
        ["content.deepspeed"],
    ),
    "another Python": ({"opt/venv/pyvenv.cfg": b"version = 3.12.1\n"}, ["content.python", "content.python"]),
    "no Python": ({"opt/venv/pyvenv.cfg": None}, ["content.python"]),
    "a Python that somebody compiled": (
        {"opt/venv/bin/python": LINK + b"/usr/local/bin/python3.11", "usr/local/bin/python3.11": b"ELF"},
        ["content.python"],
    ),
    "another Python of the distribution": (
        {
            "opt/venv/bin/python": LINK + b"/opt/rh/rh-python38/root/usr/bin/python3.8",
            "opt/rh/rh-python38/root/usr/bin/python3.8": b"ELF",
        },
        ["content.python"],
    ),
    "a program in Python's place": ({"opt/venv/bin/python": b"#!/bin/sh\n"}, ["content.python"]),
    "a hook at every start": ({f"{SITE}/sitecustomize.py": b"import torch"}, ["content.hooks"]),
    "a start-up file that nobody owns": ({f"{SITE}/patch.pth": b"import patch"}, ["content.hooks"]),
    "another GCC": (
        {"var/lib/dpkg/status": FILES["var/lib/dpkg/status"].replace(b"12.2.0-14", b"12.3.0-1")},
        ["content.gcc"] * 4,  # gcc and g++, each against the row and against the inside
    ),
    "a GCC of a similar name": (
        {"var/lib/dpkg/status": FILES["var/lib/dpkg/status"].replace(b"12.2.0-14", b"12.20.0-1")},
        ["content.gcc"] * 4,
    ),
    "no package database": ({"var/lib/dpkg/status": None}, ["content.gcc", "content.gcc", "content.glibc"]),
    "another glibc": (
        {"var/lib/dpkg/status": FILES["var/lib/dpkg/status"].replace(b"2.36-9", b"2.31-13")},
        ["content.glibc"],
    ),
    "an op is not there": (
        {f"{SITE}/deepspeed/ops/adam/cpu_adam_op.{OP}": None},
        ["content.op.missing", "content.op.jit"],
    ),
    "an empty op": ({f"{SITE}/deepspeed/ops/adam/cpu_adam_op.{OP}": b""}, ["content.op.missing", "content.op.jit"]),
    "two numpys": (
        {f"{SITE}/numpy-1.26.0.dist-info/METADATA": b"Name: NumPy\nVersion: 2.4.6\n"},
        ["content.packages"],
    ),
    "no constraints": ({"opt/envbuild/constraints.txt": None}, ["content.constraints"]),
    "constraints that let torch go": (
        {"opt/envbuild/constraints.txt": b"deepspeed==0.19.8\nnumpy==2.4.6\n"},
        ["content.constraints", "content.constraints"],  # and what the container sees is another file
    ),
    "constraints that name another build": (
        {"opt/envbuild/constraints.txt": b"torch==2.13.0\ndeepspeed==0.19.8\nnumpy==2.4.6\n"},
        ["content.constraints", "content.constraints"],
    ),
    "a toolkit left behind": ({"usr/local/cuda-13.0/bin/nvcc": b"ELF"}, ["content.residue"]),
    "a file that is no Python": (
        {f"{SITE}/deepspeed/git_version_info_installed.py": b"version = (\n"},
        ["content.deepspeed", "content.files", "content.deepspeed", "content.op.missing", "content.op.missing"],
    ),
}


@pytest.mark.parametrize(("changes", "expected"), FROM_OUTSIDE.values(), ids=FROM_OUTSIDE)
def test_each_difference_in_the_files_is_named(changes: Mapping[str, bytes | None], expected: list[str]) -> None:
    assert rules(outside_of(changes), INSIDE) == expected


_OPS = "modules/report/ops/cpu_adam"
FROM_INSIDE: dict[str, tuple[str, Any, list[str]]] = {
    "another torch": ("modules/report/imported/torch/version", "2.12.1+cpu", ["content.torch"] * 2),
    "no torch": ("modules/report/imported/torch/version", None, ["content.torch"]),
    "a CUDA build": ("modules/report/torch/cuda", "13.0", ["content.cuda"] * 2),
    "torch could not be asked": ("modules/report/torch", None, ["content.cuda", "content.nccl"]),
    "an NCCL": ("modules/report/torch/nccl", "2.28.9", ["content.nccl"] * 2),
    "another DeepSpeed": ("modules/report/imported/deepspeed/version", "0.19.7", ["content.deepspeed"] * 2),
    "another accelerator": ("modules/report/deepspeed/accelerator", "cuda", ["content.deepspeed"]),
    "another Python": ("python/version", "3.12.1", ["content.python"] * 2),
    "another patch release of Python": ("python/version", "3.11.9", ["content.python"]),
    "another C++ compiler": ("compilers/CXX/version", "13.1.0", ["content.gcc"] * 2),
    "no compiler": ("compilers/CC", None, ["content.gcc"]),
    "another glibc": ("glibc", "glibc 2.31", ["content.glibc"]),
    "no glibc": ("glibc", None, ["content.glibc"]),
    "an op does not load": (_OPS, {"loaded": False, "jit": False, "error": "ImportError: x"}, ["content.op.load"]),
    "an op was not tried": (_OPS, None, ["content.op.load"]),
    "an op wants a compiler": (_OPS, {"loaded": False, "jit": True, "error": "no ninja"}, ["content.op.jit"]),
    "an op from elsewhere": (f"{_OPS}/file", "/tmp/torch_extensions/cpu_adam.so", ["content.op.jit"]),
    "an op that compiled something": (f"{_OPS}/extension_files", 3, ["content.op.jit"]),
    "files in the extension folder": ("modules/extension_files", 3, ["content.op.jit"]),
    "an op that DeepSpeed does not know of": (
        "modules/report/deepspeed/installed_ops/cpu_adam",
        False,
        ["content.op.missing"],
    ),
    "another numpy": ("modules/report/imported/numpy/version", "1.26.0", ["content.packages"]),
    "a torch from a home": (
        "modules/report/imported/torch/file",
        "/home/me/.local/lib/python3.11/site-packages/torch/__init__.py",
        ["content.packages"],
    ),
    "constraints that pip does not see": ("constraints/path", None, ["content.constraints"]),
    "constraints changed at start": ("constraints/text", "torch==2.14.1", ["content.constraints"]),
    "a variable changed at start": ("environment/UV_CONSTRAINT", "", ["content.env"]),
    "another path": ("environment/PATH", "/usr/bin", ["content.env"]),
    "a toolkit": ("toolkit/nvcc", ["/usr/local/cuda/bin/nvcc"], ["content.residue"]),
    "an import crashed": ("modules/error", "ended with signal 11", ["content.probe"]),
    "another schema": ("schema", "x", ["content.probe"]),
}


@pytest.mark.parametrize(("path", "value", "expected"), FROM_INSIDE.values(), ids=FROM_INSIDE)
def test_each_difference_in_the_modules_is_named(path: str, value: Any, expected: list[str]) -> None:
    assert rules(OUTSIDE, inside_with(path, value)) == expected


def test_an_op_that_was_never_compiled_is_told_once() -> None:
    changes = {
        f"{SITE}/deepspeed/ops/adam/cpu_adam_op.{OP}": None,
        f"{SITE}/deepspeed/git_version_info_installed.py": FILES[
            f"{SITE}/deepspeed/git_version_info_installed.py"
        ].replace(b"'cpu_adam': 1", b"'cpu_adam': False"),
    }
    inside = inside_with(_OPS, {"loaded": False, "jit": True, "error": "RuntimeError: no ninja", "extension_files": 0})
    inside["modules"]["report"]["deepspeed"]["installed_ops"]["cpu_adam"] = False
    findings = content.inspect(ENV, outside_of(changes), inside)
    assert [finding.rule for finding in findings] == ["content.op.missing"]
    assert "cpu_adam" in findings[0].message and "no ninja" in findings[0].message


@pytest.mark.parametrize("name", sorted(set(VARIABLES) - {"TOKEN", "PYTHONNOUSERSITE"}))
def test_each_variable_of_the_image_is_looked_at(name: str) -> None:
    variables = {key: value for key, value in VARIABLES.items() if key != name}
    assert "content.env" in rules(seen(image(FILES, variables)), INSIDE)


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONUSERBASE"])
def test_what_the_probes_do_not_heed_must_not_be_set(name: str) -> None:
    assert rules(seen(image(FILES, {**VARIABLES, name: "/shadow"})), INSIDE) == ["content.env"]


def test_the_interpreter_of_a_software_collection_is_the_distributions() -> None:
    python = "opt/rh/rh-python311/root/usr/bin/python3.11"
    assert rules(outside_of({"opt/venv/bin/python": LINK + f"/{python}".encode(), python: b"ELF"}), INSIDE) == []


def test_an_empty_report_passes_nothing() -> None:
    found = set(rules(OUTSIDE, {}))
    assert {"content.probe", "content.torch", "content.python", "content.op.missing", "content.env"} <= found
    nothing = set(rules(seen(image({"a": b""}, {})), INSIDE))
    assert {"content.torch", "content.deepspeed", "content.op.missing", "content.constraints"} <= nothing


def _gpu() -> tuple[Environment, OutsideReport, Report]:
    """As PyPI's wheel of torch 2.11 for CUDA 13 looks; not recorded, since no such image was run."""
    row = {
        **CPU,
        "name": "h200-cu130",
        "accelerator": "cuda",
        "torch": {"version": "2.11.0", "build": "cu130", "index": "pypi"},
        "cuda": {"version": "13.0", "toolkit": "wheels"},
        "nccl": "2.28.9",
        "deepspeed": {"version": "0.19.8", "ops": ["cpu_adam"]},
        "requires": "gpu",
    }
    env = Environment.model_validate(row)
    nccl = b"Requires-Dist: nvidia-nccl-cu13==2.28.9; platform_system == 'Linux'\n"
    installed = FILES[f"{SITE}/deepspeed/git_version_info_installed.py"].replace(b"name='cpu'", b"name='cuda'")
    files = {
        **FILES,
        f"{SITE}/torch/version.py": b"__version__ = '2.11.0+cu130'\ncuda = '13.0'\n",
        f"{SITE}/torch-2.13.0+cpu.dist-info/METADATA": b"Name: torch\nVersion: 2.11.0\n" + nccl,
        f"{SITE}/nvidia_nccl_cu13-2.28.9.dist-info/METADATA": b"Name: nvidia-nccl-cu13\nVersion: 2.28.9\n",
        f"{SITE}/deepspeed/git_version_info_installed.py": installed,
        "opt/envbuild/constraints.txt": b"torch==2.11.0\ndeepspeed==0.19.8\n",
    }
    gpu = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    variables = {**VARIABLES, **gpu, "CUDAHOSTCXX": "/usr/bin/g++-12"}
    inside = copy.deepcopy(INSIDE)
    inside["environment"].update(gpu, CUDAHOSTCXX="/usr/bin/g++-12")
    inside["compilers"]["CUDAHOSTCXX"] = inside["compilers"]["CXX"]
    inside["constraints"]["text"] = "torch==2.11.0\ndeepspeed==0.19.8"
    modules = inside["modules"]["report"]
    modules["imported"]["torch"]["version"] = "2.11.0+cu130"
    modules["torch"].update(cuda="13.0", nccl="2.28.9", arch_list=["sm_75", "sm_80", "sm_90", "sm_120", "compute_100"])
    modules["deepspeed"].update(accelerator="cuda", built_for="cuda")
    return env, seen(image(files, variables), env), inside


GPU, GPU_OUTSIDE, GPU_INSIDE = _gpu()


@pytest.mark.parametrize(
    ("sms", "expected"),
    [
        (("9.0",), []),
        (("8.0", "8.6"), []),  # a cubin for 8.0 runs on 8.6
        (("12.1",), []),
        (("7.0",), ["content.arch"]),  # 7.5 does not run on 7.0
        (("10.0",), ["content.arch"]),  # there is PTX for it, which the driver would have to compile
        ((), ["content.arch"]),
    ],
)
def test_torch_must_hold_code_for_the_gpus(sms: tuple[str, ...], expected: list[str]) -> None:
    assert rules(GPU_OUTSIDE, GPU_INSIDE, GPU, sms=sms) == expected


def _gpu_rules(change: Callable[[Report], None]) -> list[str]:
    inside = copy.deepcopy(GPU_INSIDE)
    change(inside["modules"]["report"]["torch"])
    return rules(GPU_OUTSIDE, inside, GPU, sms=("9.0",))


def test_a_cuda_row_names_its_nccl_and_architectures() -> None:
    assert _gpu_rules(lambda torch: torch.update(nccl="2.27.5")) == ["content.nccl"] * 3  # row, package, torch's pin
    assert set(_gpu_rules(lambda torch: torch.update(nccl=None))) == {"content.nccl"}
    assert _gpu_rules(lambda torch: torch.update(arch_list=None)) == ["content.arch"]
    swapped = dataclasses.replace(GPU_OUTSIDE, packages={**GPU_OUTSIDE.packages, "nvidia-nccl-cu13": "2.27.5"})
    assert rules(swapped, GPU_INSIDE, GPU, sms=("9.0",)) == ["content.nccl", "content.nccl"]
    static = dataclasses.replace(GPU_OUTSIDE, nccl_pin=None, packages={
        name: version for name, version in GPU_OUTSIDE.packages.items() if not name.startswith("nvidia")
    })  # fmt: skip
    assert rules(static, GPU_INSIDE, GPU, sms=("9.0",)) == []
    unnamed = GPU.model_copy(update={"nccl": None})
    assert "content.nccl" in rules(GPU_OUTSIDE, GPU_INSIDE, unnamed, sms=("9.0",))


def test_versions_are_compared_by_their_parts() -> None:
    assert matches("12.2", "12.2.0") and matches("2.18", "2.18") and not matches("12.2", "12.20.0")
    assert [cuda_of(build) for build in ("cpu", "cu118", "cu130", "cu92")] == [None, "11.8", "13.0", "9.2"]
    assert [capability(text) for text in ("9.0", "sm_90a", "sm_120", "75", "x")] == [
        (9, 0),
        (9, 0),
        (12, 0),
        (7, 5),
        None,
    ]
    assert [upstream(text) for text in ("1:12.2.0-14+b1", "2.36-9", "1.0")] == ["12.2.0", "2.36", "1.0"]


_JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.lists(st.integers(), max_size=2)


def _paths(value: Any, prefix: str = "") -> list[str]:
    found = []
    for key, item in value.items():
        found += [prefix + key, *(_paths(item, f"{prefix}{key}/") if isinstance(item, dict) else [])]
    return found


@given(path=st.sampled_from([path for path in _paths(INSIDE) if ".so" not in path]), value=_JSON)
@settings(max_examples=200, deadline=None)
def test_nothing_in_a_report_raises(path: str, value: Any) -> None:
    content.inspect(ENV, OUTSIDE, inside_with(path, value))
