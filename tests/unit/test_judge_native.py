"""What is said of native code: each fault of a process, an op or a GPU's code is named, and the envelope is right.

That the loader's choices are the real loader's, and that faults in real images are found, is the business of the
integration tests and of the sabotages.
"""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.elf.gpucode import GpuCode, Kernels
from envbuild.elf.isa import Dispatch, Gap, Guard, Isa, NotLookedAt, Use
from envbuild.errors import EngineError
from envbuild.judge import native_rules
from envbuild.judge.files import Examiner
from envbuild.judge.native import Library, NativeReport
from envbuild.judge.standards import Standards
from envbuild.model import Environment

SITE = "/opt/venv/lib/python3.11/site-packages"
ADAM = f"{SITE}/deepspeed/ops/adam/cpu_adam_op.cpython-311-x86_64-linux-gnu.so"
COMM = f"{SITE}/deepspeed/ops/comm/deepspeed_shm_comm_op.cpython-311-x86_64-linux-gnu.so"
DEBIAN = ("GCC: (Debian 12.2.0-14+deb12u1) 12.2.0",)
ROW = {
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
CPU = Environment.model_validate(ROW)
H200 = CPU.model_copy(update={"name": "h200", "accelerator": "cuda"})


def library(path: str, why: str = "runpath", **changes: Any) -> Library:
    fields: dict[str, Any] = {"compilers": (), "cxx11_abi": None, "requires": {}, "provides": {}}
    return Library(path=path, why=why, **{**fields, **changes})


def use(extension: str, function: str = "step") -> Use:
    return Use(function=function, address=16, example="vaddps zmm0, zmm0, zmm1", extension=extension, count=3)


def isa(*uses: Use, tests: tuple[str, ...] = (), gaps: tuple[Gap, ...] = (), truncated: bool = False) -> Isa:
    return Isa(uses=uses, gaps=gaps, tests_cpu=tests, code_bytes=100, truncated=truncated)


# As it was measured in the cpu image, less what does not matter here.
GOOD = NativeReport(
    libraries={
        "libc.so.6": library("/lib/x86_64-linux-gnu/libc.so.6", "cache", provides={"GLIBC": "GLIBC_2.36"}),
        "libstdc++.so.6": library(
            "/lib/x86_64-linux-gnu/libstdc++.so.6", "cache", provides={"GLIBCXX": "GLIBCXX_3.4.30"}
        ),
        "libtorch_python.so": library(
            f"{SITE}/torch/lib/libtorch_python.so", cxx11_abi=True, requires={"GLIBCXX": "GLIBCXX_3.4.22"}
        ),
        ADAM: library(
            ADAM,
            "dlopen",
            compilers=DEBIAN,
            cxx11_abi=True,
            requires={"GLIBC": "GLIBC_2.34", "GLIBCXX": "GLIBCXX_3.4.9"},
        ),
        COMM: library(COMM, "dlopen", compilers=DEBIAN, cxx11_abi=True),
    },
    ops={"cpu_adam": ADAM, "deepspeed_shm_comm": COMM},
    isa={
        "cpu_adam": isa(use("AVX")),
        "deepspeed_shm_comm": isa(use("AVX512BW", "reduce_bf16_buffers"), tests=("vector_kernel_level",)),
    },
)
DISPATCH = Dispatch(
    check="vector_kernel_level", guards=(Guard(functions=("reduce_bf16_buffers",), extensions=("AVX512BW",)),)
)
STANDARDS = Standards(dispatch={"deepspeed_shm_comm": DISPATCH})


def rules(report: NativeReport, env: Environment = CPU, standards: Standards = STANDARDS) -> list[tuple[str, str]]:
    found = native_rules.findings(env, report, standards)
    assert all(finding.message and finding.fix for finding in found)
    return [(finding.rule, finding.message) for finding in found]


def test_a_good_image_has_nothing_to_tell_and_its_envelope_is_what_it_needs() -> None:
    assert rules(GOOD) == []
    envelope = native_rules.portability(GOOD, STANDARDS)
    assert envelope.cpu == "x86-64-v3" and envelope.cubins == envelope.ptx == () and envelope.driver is None
    assert envelope.requires == {"GLIBC": "GLIBC_2.34", "GLIBCXX": "GLIBCXX_3.4.22"}  # 3.4.9 is older than 3.4.22
    assert envelope.provides == {"GLIBC": "GLIBC_2.36", "GLIBCXX": "GLIBCXX_3.4.30"}
    json.dumps(GOOD.as_dict())


def with_library(name: str, **changes: Any) -> dict[str, Any]:
    return {"libraries": {**GOOD.libraries, name: dataclasses.replace(GOOD.libraries[name], **changes)}}


def with_isa(op: str, found: Isa | NotLookedAt | None) -> dict[str, Any]:
    return {"isa": {**GOOD.isa, op: found}}


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a library is not found": (
        {"unresolved": ((ADAM, "libaio.so.1", "libaio.so.1 is not found"),)},
        "content.library",
        "libaio.so.1",
    ),
    "a symbol version is not there": (
        {"missing": ((ADAM, "GLIBCXX_3.4.32", "/lib/libstdc++.so.6", "GLIBCXX_3.4.30"),)},
        "content.symbols",
        "GLIBCXX_3.4.30 at most",
    ),
    "another copy in front": (
        {"shadowed": (("libstdc++.so.6", "/opt/old/libstdc++.so.6", "/lib/libstdc++.so.6"),)},
        "content.shadow",
        "/opt/old",
    ),
    "the driver's library in the image": (
        {"libraries": {**GOOD.libraries, "libcuda.so.1": library("/usr/lib/libcuda.so.1", "cache")}},
        "content.shadow",
        "libcuda.so.1",
    ),
    "two NCCLs": ({"copies": {"libnccl.so.2": (f"{SITE}/a", f"{SITE}/b")}}, "content.copies", "2 times"),
    "two NCCLs, and the system's is loaded": (
        {
            "copies": {"libnccl.so.2": (f"{SITE}/a", "/usr/lib/b")},
            "libraries": {**GOOD.libraries, "libnccl.so.2": library("/usr/lib/b", "cache")},
        },
        "content.shadow",
        "/usr/lib/b is loaded",
    ),
    "an op of the old ABI": (with_library(ADAM, cxx11_abi=False), "content.abi", "cpu_adam uses the old"),
    "no ABI to compare with": (with_library("libtorch_python.so", cxx11_abi=None), "content.abi", "torch's C++ ABI"),
    "an op by another compiler": (
        with_library(ADAM, compilers=("GCC: (Debian 12.20.0-1) 12.20.0",)),
        "content.compiler",
        "12.20.0",
    ),
    "an op by nobody": (with_library(ADAM, compilers=()), "content.compiler", "nobody"),
    "an op by clang": (with_library(ADAM, compilers=("clang version 12.2.0",)), "content.compiler", "clang"),
    "an op for newer CPUs": (with_isa("cpu_adam", isa(use("AVX512F"))), "content.isa", "AVX512F beyond x86-64-v3"),
    "an op with what no level has": (with_isa("cpu_adam", isa(use("AMX-TILE"))), "content.isa", "AMX-TILE"),
    "a guard that is not in the code": (
        with_isa("deepspeed_shm_comm", isa(use("AVX512BW", "reduce_bf16_buffers"))),
        "content.isa",
        "unguarded",
    ),
    "code that cannot be decoded": (
        with_isa("cpu_adam", isa(gaps=(Gap(function="step", address=1, count=2),))),
        "content.isa",
        "step",
    ),
    "more code than is looked at": (with_isa("cpu_adam", isa(truncated=True)), "content.isa", "not all code"),
    "an op that could not be read": (with_isa("cpu_adam", None), "content.isa", "could not be read"),
    "a damaged library": ({"unreadable": ((f"{SITE}/a.so", "it ends"),)}, "content.native", f"{SITE}/a.so: it ends"),
    "no process at all": ({"problems": ("there is no python",)}, "content.native", "no python"),
}


@pytest.mark.parametrize(("changes", "rule", "named"), FAULTS.values(), ids=FAULTS)
def test_each_fault_is_named(changes: dict[str, Any], rule: str, named: str) -> None:
    found = rules(dataclasses.replace(GOOD, **changes))
    assert [each for each, _ in found] == [rule]
    assert named in found[0][1]


def test_a_toolsets_op_carries_the_marks_of_two_compilers() -> None:
    marks = ("GCC: (GNU) 8.5.0 20210514 (Red Hat 8.5.0-28)", "GCC: (GNU) 11.2.1 20220127 (Red Hat 11.2.1-9)")
    row = CPU.model_copy(update={"gcc": CPU.gcc.model_copy(update={"version": "11.2"})})
    report = dataclasses.replace(
        GOOD, libraries={**GOOD.libraries, ADAM: library(ADAM, compilers=marks, cxx11_abi=True)}
    )
    assert [rule for rule, message in rules(report, row) if "cpu_adam" in message] == []


def test_nothing_is_claimed_of_code_that_was_not_looked_at() -> None:
    arm = CPU.model_copy(update={"cpu_baseline": "armv8-a"})
    report = dataclasses.replace(GOOD, isa={name: NotLookedAt(machine="aarch64") for name in GOOD.isa})
    assert rules(report, arm) == []
    assert native_rules.portability(report, STANDARDS).cpu is None
    gap = dataclasses.replace(GOOD, **with_isa("cpu_adam", isa(gaps=(Gap(function="f", address=1, count=1),))))
    assert native_rules.portability(gap, STANDARDS).cpu is None


def code(*kernels: Kernels, problems: tuple[str, ...] = ()) -> GpuCode:
    cubins = tuple(sorted({name for each in kernels for name in each.cubins}))
    ptx = tuple(sorted({name for each in kernels for name in each.ptx}))
    return GpuCode(cubins=cubins, ptx=ptx, entries=9, relocatable=0, kernels=kernels, problems=problems)


def kernels(*cubins: str, ptx: tuple[str, ...] = (), count: int = 1) -> Kernels:
    return Kernels(cubins=cubins, ptx=ptx, count=count)


TORCH = f"{SITE}/torch/lib/libtorch_cuda.so"
FOR_H200 = Standards(sms=("9.0",), driver="580", dispatch=STANDARDS.dispatch)


@pytest.mark.parametrize(
    ("gpu", "named"),
    [
        ({}, "no library of torch"),
        ({TORCH: code(kernels("8.0", "12.0"))}, "no machine code for compute capability 9.0"),
        ({TORCH: code(kernels("9.0")), ADAM: code(kernels("9.0"), kernels("8.0", ptx=("8.0",)))}, "in 1 of 2 parts"),
        ({TORCH: code(kernels("9.0"), problems=("a container that ends early",))}, "ends early"),
    ],
)
def test_gpu_code_has_to_serve_the_rows_gpus(gpu: dict[str, GpuCode], named: str) -> None:
    found = rules(dataclasses.replace(GOOD, gpu=gpu), H200, FOR_H200)
    assert [rule for rule, _ in found] == ["content.sm"] and named in found[0][1]
    assert rules(dataclasses.replace(GOOD, gpu=gpu)) == []  # of a cpu row nobody asks it


def test_the_envelope_of_an_image_with_gpu_code_is_what_torch_and_every_op_share() -> None:
    gpu = {
        TORCH: code(kernels("8.0", "9.0", ptx=("9.0",)), kernels("12.0", "10.0")),
        f"{SITE}/torch/lib/libtorch_cuda_linalg.so": code(kernels("7.5")),
        ADAM: code(kernels("8.0", "9.0", "10.0", ptx=("9.0",))),
    }
    report = dataclasses.replace(GOOD, gpu=gpu)
    assert rules(report, H200, FOR_H200) == []
    envelope = native_rules.portability(report, FOR_H200)
    assert envelope.driver == "580"
    assert envelope.cubins == ("8.0", "9.0", "10.0") and envelope.ptx == ("9.0",)  # by number: 10.0 comes last


def test_a_full_scratch_folder_is_told_and_is_not_taken_for_a_damaged_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envbuild.judge.files._IN_MEMORY", 4)
    with pytest.raises(EngineError, match="no scratch file"):
        Examiner(tmp_path / "gone")("usr/lib/libbig.so", 8, io.BytesIO(b"\x7fELF....."))
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: full)
        with pytest.raises(EngineError, match="No space left"):
            Examiner(tmp_path)("usr/lib/libbig.so", 8, io.BytesIO(b"\x7fELF....."))
