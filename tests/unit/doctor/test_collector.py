"""What the collector reads, from machines that are folders with /proc, /sys and /etc as they are written there."""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from envbuild.collector import (
    choose,
    collect,
    disks,
    environment,
    gpu,
    gpucode,
    hardware,
    installed,
    interpreter,
    libaio,
    machine,
    nvme,
    ops,
    system,
    toolkits,
    tools,
)
from envbuild.collector.common import Host, Parts, opened
from envbuild.elf.gpucode import read_gpu_code

GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path) -> Any:
    """A machine of the given files, with the given variables; a Path in place of a text is a link's target."""

    def make(files: dict[str, str | Path] | None = None, **environ: str) -> Host:
        for name, content in (files or {}).items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                path.symlink_to(content)
            else:
                path.write_text(content)
        return Host(environ, str(tmp_path))

    return make


def test_a_part_that_never_ends_is_left_behind() -> None:
    gate, parts = threading.Event(), Parts()
    work = collect.Work(parts, seconds=0.05)
    work.start("hangs", gate.wait)
    work.start("breaks", lambda: 1 // 0)
    assert work.now("works", lambda: sum(work.map(abs, [-1, -2]))) == 3
    assert work.wait("hangs", "nothing") == work.wait("breaks", "nothing") == "nothing"
    assert sorted(each["part"] for each in parts.errors) == ["breaks", "hangs"]
    gate.set()
    work.end()


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe that nobody writes to, where a text, a library, a toolkit's version and a package's metadata belong."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for name in ("version.json", "build.ninja", "libaio.so.1", "x-1.dist-info/METADATA"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(pipe)
    with pytest.raises(OSError, match="no regular file"):
        opened(str(pipe))
    assert Host({}, str(tmp_path)).text("/pipe") is None
    assert ops.ninja(str(tmp_path / "build.ninja")) == {} and ops.contents(str(pipe)) == {"undefined": [], "sm": []}
    assert toolkits.version(str(tmp_path), []) is None and interpreter.packages([str(tmp_path)]) == []
    assert libaio.libaio(Host({"LD_LIBRARY_PATH": str(tmp_path)}))["provides"] == []


MEMINFO = "MemTotal:       263856144 kB\nMemFree:  1 kB\nMemAvailable:   250000000 kB\nSwapTotal:             0 kB\n"


def test_memory_of_a_container_with_cgroup_2(host: Any) -> None:
    found = hardware.memory(
        host(
            {
                "/proc/meminfo": MEMINFO,
                "/proc/self/cgroup": "0::/kubepods/pod1/ctr",
                "/sys/fs/cgroup/cgroup.controllers": "cpu memory",
                # The pod's limit is smaller than the container's: that is the one that holds.
                "/sys/fs/cgroup/kubepods/pod1/ctr/memory.max": str(64 * GIB),
                "/sys/fs/cgroup/kubepods/pod1/ctr/memory.events": "low 0\noom 3\noom_kill 2\n",
                "/sys/fs/cgroup/kubepods/pod1/memory.max": str(32 * GIB),
                "/sys/fs/cgroup/kubepods/pod1/memory.current": str(20 * GIB),
                "/sys/fs/cgroup/kubepods/pod1/memory.stat": f"anon 1\ninactive_file {15 * GIB}\n",
                "/sys/fs/cgroup/kubepods/memory.max": "max",
            }
        )
    )
    assert found["total"] == 263856144 * 1024 and found["available"] == 250000000 * 1024 and found["swap"] == 0
    assert (found["limit"], found["used"], found["oom_kills"]) == (32 * GIB, 5 * GIB, 2)


def test_memory_of_a_container_with_cgroup_1_whose_path_is_the_hosts(host: Any) -> None:
    files = {
        "/proc/self/cgroup": "9:memory:/docker/0123abcd\n3:cpu,cpuacct:/docker/0123abcd\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(8 * GIB),
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
        "/sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    found = hardware.memory(host(files))
    assert (found["limit"], found["used"], found["oom_kills"]) == (8 * GIB, GIB, 1)
    assert hardware.usable(host()) == 1
    unlimited = hardware.memory(host({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}))
    assert unlimited["limit"] is None


def test_the_levels_of_x86_64_are_what_their_flags_say() -> None:
    v2 = ["cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"]
    v3 = [*v2, "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"]
    v4 = [*v3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]
    assert [hardware.level(flags) for flags in ([], v2, v3, v4, v4[1:])] == [
        "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64",
    ]  # fmt: skip


def test_numa_nodes_and_lists_of_cpus(host: Any) -> None:
    files = {
        "/sys/devices/system/node/node0/cpulist": "0-15,32-47",
        "/sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:  1024 kB\nNode 0 MemFree: 512 kB\n",
        "/sys/devices/system/node/node10/cpulist": "",
        "/sys/devices/system/node/possible": "0,10",
    }
    assert hardware.numa(host(files)) == [
        {"node": 0, "cpus": 32, "total": 1 << 20, "free": 1 << 19},
        {"node": 10, "cpus": 0, "total": None, "free": None},
    ]


@pytest.mark.parametrize(
    ("files", "environ", "kind"),
    [
        ({}, {}, None),
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"/run/.containerenv": ""}, {"container": "podman"}, "podman"),
        ({"/.singularity.d/env": ""}, {}, "apptainer"),
        ({"/proc/1/cgroup": "0::/system.slice/docker-0123.scope"}, {}, "docker"),
        ({"/proc/1/cgroup": "0::/init.scope"}, {}, None),
        ({"/proc/1/environ": "TERM=linux\0container=lxc\0"}, {}, "lxc"),
    ],
)
def test_what_holds_the_process(host: Any, files: dict[str, str], environ: dict[str, str], kind: str | None) -> None:
    assert machine.container(host(files, **environ)) == kind


def test_selinux_and_os_release(host: Any) -> None:
    release = 'NAME="Red Hat Enterprise Linux"\nVERSION_ID="8.10"\nID="rhel"\nID_LIKE="fedora centos"\n# x\nBROKEN\n'
    assert machine.distribution(host({"/etc/os-release": release})) == {
        "id": "rhel", "version": "8.10", "name": "Red Hat Enterprise Linux", "like": ["fedora", "centos"],
    }  # fmt: skip
    assert machine.selinux(host()) is None
    assert machine.selinux(host({"/etc/selinux/config": "# SELINUX= can be\nSELINUX=enforcing\n"})) == "disabled"
    assert machine.shm(host()) == {"total": 0, "free": 0, "writable": False, "kind": None}, "there is none"
    assert machine.selinux(host({"/.dockerenv": ""})) is None, "its image brought the file"
    assert machine.selinux(host({"/sys/fs/selinux/enforce": "1"})) == "enforcing"


@pytest.mark.parametrize(
    ("capabilities", "users", "locks"),
    [
        ("000001ffffffffff", "         0          0 4294967295", True),
        ("00000000a80425fb", "         0          0 4294967295", False),  # docker's own set
        ("000001ffffffffff", "         0       1000          1\n1 100000 65536", False),  # rootless: capable at home
        ("", "", None),
    ],
)
def test_whether_memory_may_be_locked_beyond_the_limit(
    host: Any, capabilities: str, users: str, locks: bool | None
) -> None:
    files = {"/proc/self/status": f"Name:\tx\nCapEff:\t{capabilities}\n", "/proc/self/uid_map": users}
    assert machine.ipc_lock(host(files)) is locks


def test_interfaces_are_up_virtual_or_loopback(host: Any) -> None:
    devices = "../../devices"
    files: dict[str, str | Path] = {
        "/sys/devices/pci0/net/ib0/flags": "0x1003", "/sys/devices/pci0/net/ib0/operstate": "up",
        "/sys/devices/virtual/net/docker0/flags": "0x1003", "/sys/devices/virtual/net/docker0/operstate": "down",
        "/sys/devices/virtual/net/lo/flags": "0x9", "/sys/devices/virtual/net/lo/type": "772",
        "/sys/devices/virtual/net/lo/operstate": "unknown",
        "/sys/class/net/bonding_masters": "",
        # A bond of a port, and a VLAN on it: other nodes reach both. A bridge of nothing but a virtual port is none.
        "/sys/devices/virtual/net/bond0/flags": "0x1003", "/sys/devices/virtual/net/bond0/operstate": "up",
        "/sys/devices/virtual/net/bond0/lower_eno1": "", "/sys/devices/virtual/net/bond0.7/flags": "0x1003",
        "/sys/devices/virtual/net/bond0.7/operstate": "up", "/sys/devices/virtual/net/bond0.7/lower_bond0": "",
        "/sys/devices/pci0/net/eno1/flags": "0x1803", "/sys/devices/pci0/net/eno1/operstate": "up",
        "/sys/devices/pci0/net/eno1/master": "", "/sys/devices/virtual/net/docker0/lower_veth1": "",
        "/sys/devices/virtual/net/veth1/flags": "0x0", "/sys/class/net/veth1": Path(devices, "virtual/net/veth1"),
        "/sys/class/net/bond0": Path(devices, "virtual/net/bond0"),
        "/sys/class/net/eno1": Path(devices, "pci0/net/eno1"),
        "/sys/class/net/bond0.7": Path(devices, "virtual/net/bond0.7"),
        "/sys/class/net/ib0": Path(devices, "pci0/net/ib0"),
        "/sys/class/net/docker0": Path(devices, "virtual/net/docker0"),
        "/sys/class/net/lo": Path(devices, "virtual/net/lo"),
    }  # fmt: skip
    found = {each["name"]: each for each in machine.interfaces(host(files))}
    assert {name for name, each in found.items() if each["up"]} == {"bond0", "bond0.7", "eno1", "ib0", "lo"}
    assert {name for name, each in found.items() if each["virtual"]} == {"docker0", "veth1"}
    assert {name for name, each in found.items() if each["loopback"]} == {"lo"}
    assert {name for name, each in found.items() if each["part"]} == {"eno1"}


def test_mounts_with_blanks_and_with_optional_fields(host: Any) -> None:
    text = (
        "36 35 98:0 /m /mnt\\040x rw,noatime shared:1 master:2 - ext4 /dev/nvme0n1p1 rw,data=ordered\n"
        "22 1 0:20 / /dev/shm rw,nosuid - tmpfs shm rw,size=65536k\nhalf a line\n"
    )
    assert machine.mounts(host({"/proc/self/mountinfo": text})) == [
        ("98:0", "/mnt x", "ext4", "/dev/nvme0n1p1", ["rw", "noatime", "data=ordered"]),
        ("0:20", "/dev/shm", "tmpfs", "shm", ["rw", "nosuid", "size=65536k"]),
    ]


@pytest.mark.parametrize(
    ("source", "device"),
    [
        ("/dev/nvme0n1p2", "/dev/nvme0n1p2"), ("/dev/mapper/vg0-swap", "/dev/mapper/vg0-swap"), ("tank/x", "tank/x"),
        ("filer.corp:/export/x", "SERVER:/export/x"), ("//filer.corp/share", "SERVER/share"), ("filer:vol0", "SERVER"),
        ("anna@login.corp:data", "SERVER"), ("10.0.0.1@o2ib:/scratch", "SERVER:/scratch"), ("overlay", "overlay"),
        ("admin@0123-4567.cephfs=/x", "SERVER"), ("[fe80::1]:/x", "SERVER:/x"),
    ],
)  # fmt: skip
def test_the_device_of_a_folder_names_no_server(host: Any, source: str, device: str) -> None:
    mounts = f"22 1 259:2 / / rw - xfs {source} rw,addr=10.0.0.1,username=anna\n"
    found = nvme._mount(host({"/proc/self/mountinfo": mounts}), "/")
    assert found["device"] == device and found["options"] == ["rw"]


def test_the_disk_of_a_partition_says_whether_it_rotates(host: Any) -> None:
    files: dict[str, str | Path] = {
        "/sys/devices/pci0/block/sda/queue/rotational": "1\n", "/sys/devices/pci0/block/sda/sda2/partition": "2",
        "/sys/dev/block/8:2": Path("../../devices/pci0/block/sda/sda2"),
        "/sys/devices/virtual/block/dm-0/queue/rotational": "0",
        "/sys/dev/block/253:0": Path("../../devices/virtual/block/dm-0"),
    }  # fmt: skip
    here = host(files)
    assert [nvme._rotational(here, number, "x") for number in ("8:2", "253:0", "0:9")] == [True, False, None]


@pytest.mark.parametrize(
    ("error", "direct", "said"),
    [
        (errno.EINVAL, False, "Invalid argument"),
        (errno.EDQUOT, None, "Disk quota exceeded"),
        (errno.EIO, None, "Input"),
    ],
)
def test_a_full_disk_says_nothing_about_direct_io(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, direct: bool | None, said: str
) -> None:
    def refuse(*args: Any) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(nvme.os, "O_DIRECT", 0)  # whatever this file system can do
    monkeypatch.setattr(nvme.os, "write", refuse)
    found: dict[str, Any] = {}
    nvme._write(found, str(tmp_path), False)
    assert (found["writable"], found.get("direct")) == (True, direct) and said in found["error"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("lines", "version"),
    [
        (["g++ (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0"], "11.4.0"),
        (["g++ (GCC) 4.8.5 20150623 (Red Hat 4.8.5-44)"], "4.8.5"),
        (["x86_64-conda-linux-gnu-c++ (conda-forge gcc 13.2.0-5) 13.2.0"], "13.2.0"),
        (["GNU ld version 2.30-125.el8"], "2.30"),
        (["GNU ld (GNU Binutils for Debian) 2.40"], "2.40"),
        (["clang version 14.0.0-1ubuntu1.1"], "14.0.0"),
        (["icpc (ICC) 2021.10.0 20230609"], "2021.10.0"),
        (["1.11.1.git.kitware.jobserver-1"], "1.11.1"),
        (
            ["nvcc: NVIDIA (R) Cuda compiler driver", "Built on Tue_Feb_27_16:19:38_PST_2024",
             "Cuda compilation tools, release 12.4, V12.4.99", "Build cuda_12.4.r12.4/compiler.33961263_0"],
            "12.4.99",
        ),
        (["OpenSSH_9.2p1 Debian-2+deb12u6, OpenSSL 3.0.17 1 Jul 2025"], "3.0.17"),
        (["c++: error: unrecognized"], None),
        ([], None),
    ],
)  # fmt: skip
def test_versions_of_tools(lines: list[str], version: str | None) -> None:
    assert tools.parsed(lines) == version


def test_who_would_call_which_compiler(tmp_path: Path) -> None:
    for name in ("g++", "ccache", "x86_64-conda-linux-gnu-c++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    host = Host({"PATH": str(tmp_path), "CXX": "ccache g++ -pthread", "CC": "nowhere 'unbalanced"})
    wishes = tools.wanted(host, {"CXX": "x86_64-conda-linux-gnu-c++ -pthread"}, None)
    found = {(name, role): path for name, role, path in wishes}
    assert found["CXX", "CXX"] == f"{tmp_path}/g++"
    assert found["CC", "CC"] is None and found["c++", "shell"] is None
    assert found["CXX", "sysconfig"] == f"{tmp_path}/x86_64-conda-linux-gnu-c++"
    known = [{"name": name, "role": role, "path": path} for name, role, path in wishes]
    assert tools.compilers(known) == [f"{tmp_path}/g++", f"{tmp_path}/x86_64-conda-linux-gnu-c++"]


def test_alternatives_and_the_link_that_leads_to_them(host: Any) -> None:
    files: dict[str, str | Path] = {
        "/usr/bin/gcc": Path("/etc/alternatives/gcc"),
        "/etc/alternatives/gcc": Path("/usr/bin/gcc-9"),
        "/etc/alternatives/editor": Path("/bin/nano"),
        "/etc/alternatives/cuda": Path("/usr/local/cuda-12.4"),
        "/usr/local/cuda": Path("/etc/alternatives/cuda"),
    }
    assert tools.alternatives(host(files)) == [
        {"name": "cuda", "link": "/usr/local/cuda", "value": "/usr/local/cuda-12.4"},
        {"name": "gcc", "link": "/usr/bin/gcc", "value": "/usr/bin/gcc-9"},
    ]


class Pool:
    def map(self, function: Any, items: Any) -> list[Any]:
        return [function(item) for item in items]


def test_toolkits_are_found_once_and_the_one_that_torch_takes_is_named(tmp_path: Path) -> None:
    home = tmp_path / "cuda-12.4"
    for name in ("include/cuda_runtime.h", "lib64/libcudart.so", "targets/x86_64-linux/include/curand_kernel.h"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    (home / "version.json").write_text('{"cuda": {"version": "12.4.20240301"}, "cuda_nvcc": {"version": "12.4.99"}}')
    wheel = tmp_path / "site-packages/nvidia/cu13"
    (wheel / "include").mkdir(parents=True)
    (wheel / "include/cuda_runtime.h").touch()
    (wheel / "include/cuda.h").write_text("#define CUDA_VERSION 13000\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    host = Host({"CUDA_HOME": str(home), "CUDA_PATH": str(empty), "PATH": "/nonexistent"}, str(tmp_path / "root"))
    python = {"path": [str(tmp_path / "site-packages")], "prefix": str(tmp_path / "venv"), "kind": "venv"}
    found = {each["path"]: each for each in toolkits.toolkits(host, python, None, Pool())}
    assert found[str(home)]["version"] == "12.4" and found[str(home)]["taken_by_torch"]
    assert set(found[str(home)]["headers"]) == {"cuda_runtime.h", "curand_kernel.h"}
    assert found[str(home)]["libraries"] == ["libcudart.so"] and not found[str(home)]["nvcc"]
    assert (found[str(wheel)]["version"], found[str(wheel)]["found_by"]) == ("13.0", "wheel")
    assert found[str(empty)]["found_by"] == "CUDA_PATH" and found[str(empty)]["version"] is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\nGCC version: 12.2.0", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", "570.86.15"),
        ("", None),
    ],
)  # fmt: skip
def test_the_kernel_module(host: Any, text: str, version: str | None) -> None:
    assert gpu.module(host({"/proc/driver/nvidia/version": text})) == version


def test_every_libcuda_and_what_its_name_tells(host: Any, tmp_path: Path) -> None:
    compat = tmp_path / "elsewhere/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.575.57.08").touch()
    (compat / "libcuda.so.1").symlink_to("libcuda.so.575.57.08")
    found = gpu.libcuda(
        host({"/usr/lib64/libcuda.so.535.104.05": "", "/usr/lib64/libcuda.so.1": Path("libcuda.so.535.104.05")},
             LD_LIBRARY_PATH=f":{compat}:relative"), [None, "/nonexistent"],
    )  # fmt: skip
    assert found == {f"{compat}/libcuda.so.1": "575.57.08", f"{tmp_path}/usr/lib64/libcuda.so.1": "535.104.05"}


def test_devices_on_the_bus(host: Any) -> None:
    base = "/sys/bus/pci/devices/"
    files = {
        f"{base}0/vendor": "0x10de\n", f"{base}0/class": "0x030200\n",
        f"{base}1/vendor": "0x10de", f"{base}1/class": "0x040300",
        f"{base}2/vendor": "0x8086", f"{base}2/class": "0x030000",
    }  # fmt: skip
    assert gpu.pci(Host({}, "/nonexistent")) is None
    assert gpu.pci(host(files)) == 1


def test_packages_are_read_as_files_and_twice_is_twice(tmp_path: Path) -> None:
    first, second = tmp_path / "user", tmp_path / "site"
    for folder, version in ((first, "1.26.4"), (second, "2.1.0")):
        info = folder / f"numpy-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: numpy\nVersion: {version}\nRequires-Dist: a (>=1)\n"
            "Requires-Dist: b; extra == 'dev'\nRequires-Dist: deepspeed>=0.9; extra == 'deepspeed'\n\n"
            "Version: 9\nRequires-Dist: in-the-description\n"
        )
    (first / "old.egg-info").write_bytes(b"Name: old\r\nVersion: 0.1\r\nSummary: \xff\r\n")
    (first / "broken.dist-info").mkdir()
    found = interpreter.packages([str(first), "/nonexistent", str(second), str(first), ""])
    assert [(each["name"], each["version"], each["location"]) for each in found] == [
        ("numpy", "1.26.4", str(first)), ("old", "0.1", str(first)), ("numpy", "2.1.0", str(second)),
    ]  # fmt: skip
    assert found[0]["requires"] == ["a (>=1)", "deepspeed>=0.9; extra == 'deepspeed'"]
    # A home that is a link: the packages are where sys.path says that they are, once.
    (tmp_path / "home").symlink_to(tmp_path / "user")
    again = interpreter.packages([str(tmp_path / "home"), str(first)])
    assert {each["location"] for each in again} == {str(tmp_path / "home")} and len(again) == 2


NINJA = """ninja_required_version = 1.3
cxx = /usr/bin/g++-11
nvcc = /usr/local/cuda/bin/nvcc

cflags = -DTORCH_EXTENSION_NAME=cpu_adam -DTORCH_API_INCLUDE_EXTENSION_H -I/x/csrc/includes -isystem $
    /x -isystem /opt/my$ env/lib/python3.9/site-packages/torch/include -isystem /y/torch/include/TH $
    -D_GLIBCXX_USE_CXX11_ABI=0 -fPIC -std=c++17
post_cflags = -O3 -march=native -fopenmp -D__AVX512__
cuda_cflags = -std=c++17 -gencode=arch=compute_80,code=sm_80
"""


def test_the_cache_of_extensions(host: Any, tmp_path: Path) -> None:
    cache = tmp_path / "root-home/.cache/torch_extensions"
    for name in ("py39_cu117/cpu_adam", "py39_cu117/empty", "fused_adam"):
        (cache / name).mkdir(parents=True)
    (cache / "py39_cu117/cpu_adam/build.ninja").write_text(NINJA)
    (cache / "py39_cu117/cpu_adam/cpu_adam_v1.so").write_bytes(b"\x7fELF")
    (cache / "fused_adam/lock").touch()
    os.utime(cache / "fused_adam/lock", (0, 0))
    adam, fused = ops.cached(host(HOME=str(tmp_path / "root-home")))
    assert (adam["name"], adam["key"], adam["lock"]) == ("cpu_adam", "py39_cu117", None)
    assert str(adam["file"]).endswith("cpu_adam_v1.so") and adam["compiler"] == "/usr/bin/g++-11"
    assert adam["built_against"] == "/opt/my env/lib/python3.9/site-packages/torch/include"
    assert set(adam["flags"]) >= {
        "-D_GLIBCXX_USE_CXX11_ABI=0", "-std=c++17", "-march=native", "-D__AVX512__",
        "-gencode=arch=compute_80,code=sm_80",
    }  # fmt: skip
    assert (fused["name"], fused["key"], fused["file"]) == ("fused_adam", None, None) and fused["lock"] > 1e9
    assert ops.foreign(adam, "3.11.2") and not ops.foreign(adam, "3.9.18") and ops.foreign(adam, "3.90.1")
    # With the variable there is no part for Python and CUDA.
    said = host(TORCH_EXTENSIONS_DIR=str(cache / "py39_cu117"))
    assert [op["name"] for op in ops.cached(said)] == ["cpu_adam"]


def test_gpu_code_of_an_op_whatever_its_bytes(tmp_path: Path) -> None:
    # The same as the judge's own reader, which is held to NVIDIA's cuobjdump.
    for path in sorted((Path(__file__).parents[1] / "data/gpucode").glob("*.so")):
        with path.open("rb") as stream:
            code = read_gpu_code(stream)
            names = {f"sm_{each.replace('.', '')}" for each in code.cubins}
            assert set(gpucode.gpus(stream)) == names | {f"compute_{each.replace('.', '')}" for each in code.ptx}
    entry = struct.pack("<HHIQ12xI8xQ", 2, 1, 64, 0, 90, 1 << 20) + b"\0" * 16
    ptx = struct.pack("<HHIQ12xI8xQ", 1, 1, 64, 0, 80, 0) + b"\0" * 16
    fatbin = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 128) + entry + ptx
    for content, names in (
        (fatbin + b"\0" * 8 + fatbin, {"sm_90a", "compute_80"}),
        (b"\0" * 9999, set()),
        (b"x" * 99, set()),
    ):
        path = tmp_path / "code"
        path.write_bytes(content)
        found: set[Any] = set()
        with path.open("rb") as stream:
            gpucode._fatbins(stream, type("Section", (), {"offset": 0, "size": len(content)}), found)
        assert {name for _, _, name in found} == names


def test_packages_of_the_system(host: Any) -> None:
    status = (
        "Package: libstdc++6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 12.2.0-14\n\n"
        "Package: libaio1\nStatus: deinstall ok config-files\nVersion: 0.3.113-4\n\n"
        "Package: libstdc++6\nStatus: install ok installed\nArchitecture: i386\nVersion: 12.2.0-14\n\n"
        "Package: nano\nStatus: install ok installed\nVersion: 7\n\ngarbage\n\nPackage: \n"
    )
    log = (
        "2026-11-28 10:00:01 startup archives unpack\n2026-11-28 10:00:01 upgrade libaio1:amd64 0.3.113-4 0.3.113-5\n"
        "2026-11-28 10:00:02 status installed libaio1:amd64 0.3.113-5\n"
        "2026-11-28 10:00:02 install nano:amd64 <none> 7\n"
        "2026-11-29 10:00:02 install nvidia-utils:amd64 <none> 535.1\n"
    )
    found = system.system(host({"/var/lib/dpkg/status": status, "/var/log/dpkg.log": log}), {})
    assert found["manager"] == "dpkg"
    assert found["packages"] == {"libstdc++6": "12.2.0-14", "libstdc++6:i386": "12.2.0-14"}
    assert found["transactions"] == [
        "2026-11-28 10:00:01 upgrade libaio1 0.3.113-4 -> 0.3.113-5", "2026-11-29 10:00:02 install nvidia-utils 535.1",
    ]  # fmt: skip
    lines = [
        "1700000000 libstdc++ 0:8.5.0-22.el8 x86_64", "1600000000 libaio 0:0.3.112-1.el8 x86_64", "1 bash 0:5-1 x86_64",
        "1700000001 gcc-c++ 1:8.5.0-22.el8 x86_64", "not a line",
    ]  # fmt: skip
    packages, transactions = system.parsed(lines)
    assert packages == {"libstdc++": "8.5.0-22.el8", "libaio": "0.3.112-1.el8", "gcc-c++": "1:8.5.0-22.el8"}
    assert transactions[0] == "2020-09-13 12:26:40 install libaio 0.3.112-1.el8"


def test_of_the_environment_only_what_matters_and_no_more_than_fits() -> None:
    environ = {"LD_LIBRARY_PATH": "/x", "NVCCFLAGS": "-x", "AWS_SECRET_ACCESS_KEY": "s", "MY_DATA": "d", "CXX": "g++",
               "CUDA_X": "x" * 100_000, "LDFLAGS": "-L", "SSH_CONNECTION": "1.2.3.4", "LS_COLORS": "c"}  # fmt: skip
    found = environment.environment(environ)
    assert set(found) == {"LD_LIBRARY_PATH", "NVCCFLAGS", "CXX", "CUDA_X", "LDFLAGS"}
    assert len(found["CUDA_X"]) < 33_000 and "100000 characters" in found["CUDA_X"]


def test_the_interpreter_with_torch_comes_before_the_first(tmp_path: Path) -> None:
    for name in ("bare", "full"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin/python").touch(0o755)
    environ = {"VIRTUAL_ENV": str(tmp_path / "bare"), "PATH": str(tmp_path / "full/bin")}
    assert choose.guess(Host(environ)) == str(tmp_path / "bare/bin/python")
    package = tmp_path / "full/lib/python3.11/site-packages/torch/__init__.py"
    package.parent.mkdir(parents=True)
    package.touch()
    assert choose.guess(Host(environ)) == str(tmp_path / "full/bin/python")
    # A virtual environment that sees the packages of its base has that one's torch.
    (tmp_path / "bare/pyvenv.cfg").write_text(
        f"home = {tmp_path}/full/bin\ninclude-system-site-packages = true\nversion = 3.11.2\n"
    )
    assert choose.guess(Host(environ)) == str(tmp_path / "bare/bin/python")
    (tmp_path / "bare/pyvenv.cfg").write_text(f"home = {tmp_path}/full/bin\ninclude-system-site-packages = false\n")
    assert choose.guess(Host(environ)) == str(tmp_path / "full/bin/python")
    assert choose.candidates(Host({"PATH": "/nonexistent"}))[0] == sys.executable


def test_packages_that_are_not_whole(tmp_path: Path) -> None:
    def wheel(name: str, record: str | None, installer: str | None = "pip", **files: bytes) -> dict[str, Any]:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        if record is not None:
            (info / "RECORD").write_text(record)
        if installer is not None:
            (info / "INSTALLER").write_text(installer + "\n")
        (tmp_path / name).mkdir()
        for file, data in files.items():
            (tmp_path / name / file.replace("_dot_", ".")).write_bytes(data)
        return {"name": name, "version": "1.0", "location": str(tmp_path), "info": info.name}

    elf = bytearray(Path("/proc/self/exe").read_bytes()[:64])  # its table of sections is far behind that
    whole = bytes(elf[:0x28]) + bytes(24)  # and this one has none: what strip leaves is smaller, and whole
    packages = [
        wheel("torch", "torch/a.py,,\ntorch/gone.py,,9\ntorch/b.so,sha256=x,900\ntorch/c.so,,90\nd.h,,1\ntorch/e.py,,5",
              a_dot_py=b"", b_dot_so=bytes(elf), c_dot_so=whole, e_dot_py=b""),
        wheel("numpy", None),
        wheel("pydantic", None, installer="conda"),
        wheel("triton", "\x00,\"\n"),
        wheel("deepspeed", "deepspeed/a.py,,3\n", a_dot_py=b"x=1"),
        wheel("other", None),
    ]  # fmt: skip
    found = installed.damaged([*packages, {"name": "accelerate", "version": "1", "location": "/nowhere"}])
    assert [(each["name"], each["record"], each["count"]) for each in found] == [
        ("torch", True, 3), ("numpy", False, 0),
    ]  # fmt: skip
    assert found[0]["missing"] == [
        f"{tmp_path}/torch/gone.py", f"{tmp_path}/torch/b.so: 64 of 900 bytes", f"{tmp_path}/torch/e.py: 0 of 5 bytes"
    ]  # fmt: skip


def test_folders_that_are_written_to_are_known_by_their_nearest_parent(host: Any, tmp_path: Path) -> None:
    seen = host({"/etc/docker/daemon.json": '{"data-root": "/big/docker"}', "/big/file": "x"}, HOME="/root", TMPDIR="t")
    found = {each["use"]: each for each in disks.disks(seen)}
    assert found["images"]["path"] == "/big/docker" and found["images"]["writable"] and found["images"]["free"] > 0
    assert found["cache"]["path"] == "/root/.cache/torch_extensions" and "temporary" not in found
    blocked = host({"/etc/docker/daemon.json": "[", "/home/u/.cache": "a file"}, HOME="/home/u")
    found = {each["use"]: each for each in disks.disks(blocked)}
    assert not found["cache"]["writable"] and found["images"]["path"] == "/var/lib/docker"
