"""Every check red by the smallest change to a healthy machine, and no word above an info about a healthy one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from envbuild import facts
from envbuild.doctor.checks import CHECKS
from envbuild.doctor.intended import intended
from envbuild.doctor.order import groups
from envbuild.doctor.view import Check, View
from envbuild.errors import InputError
from envbuild.matrix import load
from envbuild.model import Environment, Finding, Severity
from faults import ALSO, GIB, JIT, LOOSE, RED, Case, nvme
from machines import SITE, TORCH, gpu_machine, machine, packages, view

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
# Those about native code have tests of their own.
NATIVE = {"abi", "compilers", "cuda-libraries", "glibc", "isa", "jit", "libcuda", "libstdcxx", "loader", "nccl", "ops",
          "unfit"}  # fmt: skip
OWN = [check for check in CHECKS if check.name not in NATIVE]
FACTS = facts.load()
MEMORY = next(check for check in CHECKS if check.name == "memory")
ROWS = load(Path(__file__).parents[3] / "matrix.yaml").environments


def said(seen: View, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """What all checks have to say."""
    return [finding for check in checks for finding in check.look(seen)]


def made(base: str, changes: Mapping[str, Any]) -> Any:
    return (gpu_machine if base == "gpu" else machine)(**changes)


@pytest.mark.parametrize("case", RED, ids=[f"{n}-{case[0]}-{case[1]}" for n, case in enumerate(RED)])
def test_red(case: Case) -> None:
    base, rule, severity, changes, words = case
    findings = said(view(made(base, changes)))
    found = [each for each in findings if each.rule == rule]
    assert [each.severity for each in found] == [severity] * len(found)
    assert found, [each.rule for each in findings]
    assert any(words in each.message + each.fix for each in found), found
    for each in found:
        assert each.subject and each.fix and each.source
        assert each.why or severity is INFO or rule.startswith(("packages", "row", "imports.nothing", "environment"))
    if rule not in LOOSE:
        beside = {each.rule for each in findings if each.severity is not INFO} - {rule}
        assert not {
            each for each in beside if each.split(".")[0] not in ALSO.get(rule, ()) and each not in ALSO.get(rule, ())
        }


# Good ways to be otherwise than the two healthy machines.
FINE: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("cpu", nvme(rotational=True, device="/dev/vda1")),
    ("cpu", {**nvme(rotational=True, device="/dev/mapper/rhel-root"), "machine": {"cpu": {"flags": ["hypervisor"]}}}),
    ("cpu", {"deepspeed": {"torch_info": None}, "tools": []}),
    ("cpu", {"deepspeed": {"built_for": "cuda", "torch_info": {"version": "2.9"}}}),
    ("cpu", {"deepspeed": {"torch_info": {"version": "0.0", "cuda_version": "0.0"}}}),
    ("cpu", {"interpreter": {"packages": packages(ninja=None)}}),
    ("cpu", {"machine": {"memlock": [8 << 20, 8 << 20], "selinux": "permissive"}}),
    ("cpu", {"environment": {"PYTHONPATH": "/code:", "OMP_NUM_THREADS": "8", "CUDA_VISIBLE_DEVICES": ""}}),
    ("cpu", {"torch": {"version": "2.13.0+rocm6.4"}, "environment": {"DS_ACCELERATOR": "cuda"}}),
    ("gpu", {"environment": {"CUDA_VISIBLE_DEVICES": "GPU-5c2e,MIG-77", "NCCL_IB_DISABLE": "1"}}),
    # A folk name, which NCCL does not know; a level that only a network's card is concerned by.
    ("gpu", {"environment": {"NCCL_NET_GDR_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL", "NCCL_NET_GDR_LEVEL": "LOC"}}),
    (
        "cpu",
        {
            "environment": {"CC": None, "CXX": None},
            "alternatives": [{"name": "cc", "link": "/usr/bin/cc", "value": "/usr/bin/clang"}],
            "tools": [
                {
                    "name": "cc",
                    "role": "shell",
                    "path": "/usr/bin/cc",
                    "version": "14.0.6",
                    "says": "clang version 14.0.6",
                },
                {"name": "c++", "role": "shell", "path": "/usr/bin/c++", "version": "12.2.0", "says": "g++ 12.2.0"},
            ],
        },
    ),
    ("gpu", {"environment": {"TORCH_CUDA_ARCH_LIST": "Hopper", "NCCL_SOCKET_IFNAME": "^docker,lo"}}),
    ("gpu", {"gpu": {"module": "580.126.01", "nvml": "580.126.01", "cuda": "13.1"}}),
    ("gpu", {"torch": {"architectures": ["sm_80", "sm_90a", "compute_90"]}}),
    ("gpu", {"machine": {"infiniband": ["mlx5_0"]}, "environment": {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}}),
    ("gpu", {"machine": {"memlock": [8 << 20, 8 << 20], "ipc_lock": True, "infiniband": ["mlx5_0"]}}),
    ("gpu", {"environment": {"GLOO_SOCKET_IFNAME": "en", "NCCL_SOCKET_IFNAME": "=eno1:1"}}),
    (
        "gpu",
        {
            "environment": {"NCCL_P2P_DISABLE": "1"},
            "torch": {"architectures": ["sm_89"]},
            "gpu": {"devices": [{"index": n, "name": "NVIDIA GeForce RTX 4090", "sm": "8.9"} for n in range(2)]},
        },
    ),
    ("gpu", {"toolkits": [], "environment": {"CUDA_HOME": None}}),
)


@pytest.mark.parametrize("case", FINE, ids=range(len(FINE)))
def test_what_is_merely_otherwise_is_no_fault(case: tuple[str, Mapping[str, Any]]) -> None:
    assert [each for each in said(view(made(*case)), OWN) if each.severity is not INFO] == []


@pytest.mark.parametrize("base", ["cpu", "gpu"])
def test_a_healthy_machine_has_few_words(base: str) -> None:
    findings = said(view(made(base, {})))
    assert {each.severity for each in findings} <= {INFO}
    assert len(findings) <= 3
    # Its own row has nothing against it, either; the toolkit for containers was not part of the machine.
    row = ROWS["h200-cu130" if base == "gpu" else "cpu"]
    against = said(view(made(base, {"gpu": {"runtimes": ["nvidia-ctk"]}} if base == "gpu" else {}), row=row))
    assert [each.rule for each in against if each.severity is not INFO and each.rule != "libaio.missing"] == []


def test_every_check_of_the_list_is_red_somewhere() -> None:
    assert {check.name for check in OWN} == ({rule.split(".")[0] for _, rule, *_ in RED} | {"row"}) - NATIVE


@pytest.mark.parametrize(
    ("params", "memory", "severity", "words"),
    [
        (int(6e9), {}, INFO, "112 GiB (bf16) to 134 GiB (fp32)"),
        (int(9e9), {}, WARNING, "rounding may go beyond"),
        (int(7e9), {"available": 100 * GIB}, WARNING, "100 GiB of 256 GiB is free now"),
        (int(20e9), {}, ERROR, "373 GiB (bf16)"),
        (int(7e9), {"limit": 64 * GIB, "used": GIB}, ERROR, "the cgroup's limit of 64 GiB (the host has 256 GiB)"),
    ],
)
def test_memory_of_a_model(params: int, memory: dict[str, int], severity: Severity, words: str) -> None:
    found = [f for f in said(view(machine(machine={"memory": memory}), params=params)) if f.rule.startswith("memory")]
    assert [(f.rule, f.severity) for f in found] == [("memory.need", severity)]
    assert words in found[0].message


def test_nodes_share_a_model_and_a_disk_takes_the_optimizer() -> None:
    two = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
    for changes in ({"environment": two}, nvme()):
        found = [f for f in said(view(machine(**changes), params=int(20e9))) if f.rule == "memory.need"]
        assert [f.severity for f in found] == [WARNING]
    assert (
        "10.0B parameters (one part in 2 of the model)"
        in said(view(machine(environment=two), params=int(20e9)), [MEMORY])[0].message
    )


def test_who_trains_on_the_cpu_may_hide_the_gpus() -> None:
    hidden = gpu_machine(environment={"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"})
    assert [f.rule for f in said(view(hidden), OWN) if f.severity is not INFO] == ["environment.ds-accelerator"]


def test_nodes_without_cpus_are_no_place_to_bind_to() -> None:
    # One socket with memory on a card, and a superchip: its CPUs, its GPU's memory, and room for seven instances of it.
    for more in (
        [{"node": 1, "cpus": 0, "total": 64 * GIB}],
        [{"node": n, "cpus": 0, "total": 0} for n in range(2, 9)],
    ):
        assert not [
            f for f in said(view(machine(machine={"numa": [{"node": 0, "cpus": 72}, *more]}))) if f.rule[:4] == "numa"
        ]
    sockets = [{"node": 0, "cpus": 32}, {"node": 1, "cpus": 32}, {"node": 2, "cpus": 0, "total": 0}]
    (found,) = [f for f in said(view(machine(machine={"numa": sockets}))) if f.rule == "numa.nodes"]
    assert found.message.startswith("2 NUMA nodes with CPUs: unbound") and len(found.evidence) == 3


def test_a_model_needs_room_on_the_disk() -> None:
    found = [f for f in said(view(machine(**nvme(free=50 * GIB)), params=int(7e9))) if f.rule == "nvme.space"]
    assert [f.severity for f in found] == [ERROR]
    assert "104 GiB" in found[0].message


Against = tuple[str, dict[str, Any], str, dict[str, Any], set[tuple[str, Severity]]]
AGAINST: tuple[Against, ...] = (
    ("cpu", {}, "h200-cu130", {}, {("row.gpu", ERROR), ("row.torch", WARNING), ("row.cuda", WARNING)}),
    ("cpu", {"machine": {"cpu": {"level": "x86-64-v2"}}}, "cpu", {}, {("row.cpu", ERROR)}),
    ("cpu", {"machine": {"cpu": {"machine": "aarch64"}}}, "cpu", {}, {("row.cpu", ERROR)}),
    ("cpu", {"machine": {"glibc": "2.17"}}, "cpu", {}, {("row.glibc", ERROR)}),
    ("gpu", {"machine": {"glibc": "2.17"}}, "h200-cu130", {}, {("row.glibc", WARNING)}),
    ("gpu", {"gpu": {"module": "535.104.05", "nvml": "535.104.05"}}, "h200-cu130", {}, {("row.driver", ERROR)}),
    ("gpu", {"gpu": {"devices": [{"index": 0, "name": "Tesla V100-SXM2-32GB", "sm": "7.0"}]}}, "h200-cu130", {},
     {("row.gpu", ERROR)}),
    ("gpu", {"gpu": {"devices": [{"index": 0, "name": "NVIDIA A100-SXM4-40GB", "sm": "8.0"}]}}, "h200-cu130", {},
     {("row.gpu", WARNING)}),
    ("gpu", {"torch": {"nccl": "2.27.5"}}, "h200-cu130", {}, {("row.nccl", WARNING)}),
    ("cpu", {}, "cpu", {"torch": {"version": "2.12.1"}}, {("row.torch", WARNING)}),
    ("cpu", {}, "cpu", {"python": "3.12"}, {("row.python", WARNING), ("row.PKG", ERROR)}),
)  # fmt: skip


@pytest.mark.parametrize("case", AGAINST, ids=[f"{n}-{case[0]}-{case[2]}" for n, case in enumerate(AGAINST)])
def test_a_machine_against_a_row(case: Against) -> None:
    base, changes, name, row_changes, expected = case
    row = ROWS[name]
    fields = {
        key: getattr(row, key).model_copy(update=new) if isinstance(new, dict) else new
        for key, new in row_changes.items()
    }
    found = said(view(made(base, changes), row=row.model_copy(update=fields)))
    assert {(f.rule, f.severity) for f in found if f.rule.startswith("row.")} == expected


NO_TORCH = {"ok": False, "error": "ModuleNotFoundError: No module named 'torch'", "version": None}
LOST = {"name": "torch", "version": "2.13.0+cpu", "missing": [f"{SITE}/torch/lib/libtorch_cpu.so"], "count": 1}


@pytest.mark.parametrize(
    ("changes", "roots"),
    [
        # Without a torch nobody finds its libraries, and its absence is said once.
        (
            {"interpreter": {"packages": packages(torch=None)}, "torch": NO_TORCH, "deepspeed": NO_TORCH,
             "gone": [f"{TORCH}/{name}" for name in ("libc10.so", "libtorch_cpu.so", "libtorch_python.so")]},
            ["imports.nothing"],
        ),
        # That DeepSpeed is missing is not the fault of a torch that is not whole.
        (
            {"torch": {"ok": False, "error": "ImportError: libtorch_cpu.so: cannot open"}, "damaged": [LOST],
             "deepspeed": None, "interpreter": {"packages": packages(deepspeed=None)}},
            ["installation.damaged", "imports.nothing"],
        ),
        (
            {"interpreter": {"version": None, "packages": []}, "torch": None, "deepspeed": None,
             "errors": [{"part": "interpreter", "error": "ended by signal 6 (SIGABRT)"}]},
            ["interpreter.dead"],
        ),
        ({"interpreter": {"packages": packages(numpy=None)},
          "deepspeed": {"ok": False, "error": "ModuleNotFoundError: No module named 'numpy'"}},
         ["packages.requirement"]),
        (
            {"torch": {"ok": False, "version": None, "error": "ImportError: numpy.core.multiarray failed to import"},
             "deepspeed": {"torch_info": None},
             "interpreter": {"packages": packages(torch="2.1.2+cpu", setuptools="69.0.0")}},
            ["packages.old-torch"],
        ),
        ({**JIT, "compiles": [{"compiler": "/usr/bin/g++-12", "works": False, "error": "No space left on device"}],
          "machine": {"disks": [{"use": "temporary", "path": "/tmp", "free": 0}]}}, ["disk.full"]),
    ],
)  # fmt: skip
def test_the_root_is_first_and_alone(changes: dict[str, Any], roots: list[str]) -> None:
    found = groups(said(view(machine(**changes))), CHECKS)
    assert [each.root.rule for each in found if each.root.severity is ERROR] == roots


def test_lines_that_install_are_for_this_pip_and_change_no_torch() -> None:
    absent = {"deepspeed": None, "interpreter": {"packages": packages(deepspeed=None, setuptools=None, pip="25.0")}}
    (found,) = [each for each in said(view(machine(**absent))) if each.rule == "imports.nothing"]
    python = "/opt/venv/bin/python -m pip install"
    assert found.command.splitlines() == [
        f"{python} setuptools wheel", f"{python} --no-build-isolation deepspeed torch==2.13.0+cpu"
    ]  # fmt: skip
    # Not of a Python that has no pip, and not of the distribution's own.
    for changes in ({"packages": packages(deepspeed=None)}, {**absent["interpreter"], "prefix": "/usr"}):  # type: ignore[dict-item]
        seen = view(machine(deepspeed=None, interpreter=changes))
        assert [each.command for each in said(seen) if each.rule == "imports.nothing"] == [""]


def test_a_row_wants_an_engine_and_room_for_its_image() -> None:
    engines = [{"name": name, "role": "shell", "path": None} for name in ("docker", "podman")]
    disks = [{"use": "images", "path": "/var/lib/docker", "free": 5 * GIB, "writable": False}]
    poor = {"tools": engines, "machine": {"disks": disks, "container": None}}
    for name, expected in (("cpu", {"row.engine"}), ("h200-cu130", {"row.engine", "disk.image"})):
        found = said(view(gpu_machine(**poor), row=ROWS[name]))
        assert {each.rule for each in found if each.rule in ("row.engine", "disk.image")} == expected
    # Without a row nobody wants an image; inside of a container nobody starts one.
    assert not {each.rule for each in said(view(gpu_machine(**poor)))} & {"row.engine", "disk.image"}
    inside = gpu_machine(**{**poor, "machine": {"disks": disks, "container": "docker"}})
    assert not {each.rule for each in said(view(inside, row=ROWS["h200-cu130"]))} & {"row.engine", "disk.image"}


@pytest.mark.parametrize(
    ("options", "changes", "expected"),
    [
        ({"torch": "2.1", "cuda": "11.8"}, {}, {("row.torch", WARNING)}),
        ({"torch": "2.11", "cuda": "13.0", "deepspeed": "0.19.8"}, {}, set()),
        ({"torch": "2.11.0+cu130"}, {"gpu": {"module": "570.133.20"}}, {("row.driver", ERROR)}),
        ({"torch": "2.11"}, {"gpu": {"devices": [{"index": 0, "name": "P100", "sm": "6.0"}]}}, {("row.gpu", ERROR)}),
        ({"torch": "2.11", "gpu": "b200"}, {}, {("row.gpu", WARNING)}),
        ({"torch": "2.13", "cuda": "11.8"}, {}, {("row.R06", ERROR), ("row.torch", WARNING)}),
    ],
)
def test_a_machine_against_versions_that_were_said(
    options: dict[str, str], changes: dict[str, Any], expected: set[tuple[str, Severity]]
) -> None:
    meant = intended(FACTS, tuple(ROWS.values()), options)
    found = said(view(gpu_machine(**changes), row=meant.row, said=meant.said))
    assert {(f.rule, f.severity) for f in found if f.rule.startswith("row.")} >= expected
    assert expected or [f for f in found if f.rule.startswith("row.")] == []
    assert not any(re.search(r"\basked (?!for)", f.message + f.subject) for f in found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "which environment"),
        ({"torch": "9.9"}, "nearest that they know: 2.15.0"),
        ({"torch": "2.1.0+cu999"}, "only cu121, cu118"),
        ({"torch": "newest"}, "is no version"),
        ({"gpu": "h10"}, "did you mean 'h100'"),
        ({"torch": "2.1.0", "shell": "zsh"}, "--shell"),
    ],
)
def test_what_nobody_knows_is_no_environment(options: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        intended(FACTS, tuple(ROWS.values()), options)


def test_a_row_that_contradicts_itself_is_told() -> None:
    row = ROWS["h200-cu130"]
    broken: Environment = row.model_copy(update={"deepspeed": row.deepspeed.model_copy(update={"version": "0.18.9"})})
    found = [f for f in said(view(gpu_machine(), row=broken)) if f.rule.startswith("row.R")]
    assert "row.R05" in {f.rule for f in found}
    assert all("why-not" in f.why for f in found)


def test_nothing_collected_is_nothing_said_and_nothing_broken() -> None:
    from envbuild.doctor.collection import Collection

    empty = Collection.model_validate({"schema": "envbuild.collection/1", "taken": ""})
    assert said(view(empty)) == []
    assert {f.rule for f in said(view(empty, row=ROWS["h200-cu130"]))} == {"row.gpu"}


HOSTILE = ("", "\x00", "999999999999999999999.1", "nan", "2.1.0+cu", "a" * 5000, "-1", "²", "1" * 400)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_any_text_is_an_answer(text: str) -> None:
    changes = {
        "torch": {"version": text, "cuda": text, "nccl": text, "architectures": [text],
                  "unavailable": f"found version {text}"},
        "deepspeed": {"version": text, "installed_ops": []}, "ops": [],
        "gpu": {"module": text, "nvml": text, "cuda": text, "devices": [{"index": 0, "name": text, "sm": text}]},
        "toolkits": [{"path": text, "version": text, "nvcc": True, "taken_by_torch": True}],
        "tools": [{"name": "c++", "role": "shell", "path": "/c++", "version": text}],
        "environment": dict.fromkeys(("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TORCH_CUDA_ARCH_LIST", "SLURM_NNODES",
                                      "NCCL_SOCKET_IFNAME", "DS_ACCELERATOR", "PYTHONPATH"), text)
        | {"CXX": None, "CC": None},
        "interpreter": {"version": text, "packages": [{"name": text, "version": text, "requires": [text]},
                                                      {"name": "torch", "version": text, "requires": [f"x=={text}"]},
                                                      {"name": "pydantic", "version": text}]},
    }  # fmt: skip
    for base in ("gpu", "cpu"):
        said(view(made(base, changes)), OWN)
        said(view(made(base, changes), row=ROWS["h200-cu130"]), OWN)
