"""What changed since yesterday: the likeliest cause first, and nothing that moves by itself."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.doctor.changes import Change, elapsed, since_lines
from envbuild.doctor.since import ORDER, since, strangers
from machines import CACHE, CPU_ADAM, LIB, gpu_machine, gpu_packages, machine, op, op_file, stdcxx

LATER = "2026-12-01T10:00:00Z"
CONDA = "/opt/conda/lib/libstdc++.so.6.0.29"


def kinds(changes: tuple[Change, ...]) -> list[str]:
    return [each.kind for each in changes]


def test_nothing_has_changed_where_only_time_has_passed() -> None:
    later = gpu_machine(
        taken=LATER, seconds={"torch": 2.0},
        machine={"memory": {"available": 1 << 30, "used": 5, "total": 273_804_165_120}, "shm": {"free": 1}},
    )  # fmt: skip
    before = gpu_machine(machine={"memory": {"total": 273_804_000_000}})
    assert since(before, later) == ()
    assert strangers(before, later) == ()


def test_another_file_for_the_same_name_comes_first_and_says_which_variable_moved_it() -> None:
    with_conda = {"files": {CONDA: stdcxx(29, 13)}, "links": {"/opt/conda/lib/libstdc++.so.6": CONDA}}
    before = machine(**with_conda)
    after = machine(
        **with_conda, taken=LATER, environment={"LD_LIBRARY_PATH": "/opt/conda/lib", "OMP_NUM_THREADS": "4"},
        machine={"kernel": "6.1.0-99-amd64"}, deepspeed={"ok": False, "error": "ImportError: GLIBCXX_3.4.30"},
    )  # fmt: skip
    changes = since(before, after)
    assert kinds(changes) == ["loader", "loading variable", "variable", "kernel", "import"]
    first = changes[0]
    assert (first.name, first.old) == ("libstdc++.so.6", f"{LIB}/libstdc++.so.6.0.30 (GLIBCXX_3.4.30)")
    assert first.new == f"{CONDA} (GLIBCXX_3.4.29)"
    assert "now by LD_LIBRARY_PATH" in first.note and "LD_LIBRARY_PATH has changed" in first.note
    assert changes[-1].effect and changes[-1].old == "works" and "GLIBCXX_3.4.30" in str(changes[-1].new)


def test_the_same_file_with_other_content_is_a_change_of_the_loaders_answer() -> None:
    path = f"{LIB}/libstdc++.so.6.0.30"
    after = machine(files={path: stdcxx(28, 12)}, taken=LATER)
    first = since(machine(), after)[0]
    assert first.kind == "loader" and first.old != first.new and "other content" in first.note


def test_a_wheel_that_was_swapped_is_told_as_the_library_that_it_changes() -> None:
    after = gpu_machine(interpreter={"packages": gpu_packages(nvidia_nccl_cu13="2.27.3")}, taken=LATER)
    changes = since(gpu_machine(), after)
    assert [(each.kind, each.name) for each in changes] == [
        ("loader", "libnccl.so.2"), ("core package", "nvidia-nccl-cu13"),
    ]  # fmt: skip
    assert "2.28.9" in str(changes[0].old) and "2.27.3" in str(changes[0].new)


@pytest.mark.parametrize(
    ("change", "kind", "name"),
    [
        ({"interpreter": {"packages": gpu_packages(pydantic="1.10.2")}}, "core package", "pydantic"),
        ({"interpreter": {"packages": gpu_packages(tqdm="1.0")}}, "python package", "tqdm"),
        ({"gpu": {"module": "570.124.06"}}, "driver", "kernel module"),
        ({"gpu": {"devices": []}}, "driver", "GPUs"),
        ({"machine": {"memlock": [65536, 65536]}}, "limit", "memlock"),
        ({"machine": {"shm": {"total": 64 << 20}}}, "limit", "/dev/shm"),
        ({"machine": {"memory": {"limit": 8 << 30}}}, "limit", "memory of the cgroup"),
        ({"environment": {"PYTHONPATH": "/home/me/src"}}, "loading variable", "PYTHONPATH"),
        ({"environment": {"NCCL_DEBUG": "INFO"}}, "variable", "NCCL_DEBUG"),
        ({"machine": {"kernel": "6.8.0"}}, "kernel", "kernel"),
        ({"toolkits": []}, "toolkit", None),
        ({"tools": []}, "compiler", None),
        ({"system": {"packages": {"libstdc++6": "13.2.0-1"}}}, "core system package", "libstdc++6"),
        ({"system": {"packages": {"vim": "9"}}}, "system package", "vim"),
        ({"alternatives": [{"name": "gcc", "link": "/usr/bin/gcc", "value": "/usr/bin/gcc-13"}]}, "compiler", None),
        ({"torch": {"available": False}}, "import", "torch sees a GPU"),
    ],
)
def test_each_kind_of_change_is_seen(change: dict[str, Any], kind: str, name: str | None) -> None:
    changes = since(gpu_machine(), gpu_machine(**change, taken=LATER))
    assert set(kinds(changes)) == {kind}, changes
    assert name is None or name in [each.name for each in changes]


def test_an_op_that_was_compiled_again_is_a_change_and_one_that_only_aged_is_not() -> None:
    path = f"{CACHE}/cpu_adam/cpu_adam.so"
    old = gpu_machine(ops=[op(path, "cached", age=3600.0)], files={path: op_file()})
    aged = gpu_machine(ops=[op(path, "cached", age=90_000.0)], files={path: op_file()}, taken=LATER)
    again = gpu_machine(ops=[op(path, "cached", age=60.0)], files={path: op_file()}, taken=LATER)
    locked = gpu_machine(ops=[op(path, "cached", age=90_000.0, lock=5.0)], files={path: op_file()}, taken=LATER)
    assert since(old, aged) == ()
    assert [(each.kind, each.note) for each in since(old, again)] == [("op", "compiled again since")]
    assert "locked" in str(since(old, locked)[0].new)
    # One of a package that was installed anew under the same version.
    other = gpu_machine(ops=[op(CPU_ADAM, age=60.0)], taken=LATER)
    before = gpu_machine(ops=[op(CPU_ADAM, age=3600.0)])
    assert [(each.kind, each.note) for each in since(before, other)] == [("op", "written again since")]
    gone = since(old, gpu_machine(ops=[], taken=LATER))
    assert [(each.kind, each.new) for each in gone] == [("op", None)]


def test_package_transactions_are_told_from_where_the_snapshot_ends() -> None:
    assert since_lines(("a", "b"), ("a", "b", "c", "d")) == ("c", "d")
    # The log was cut at its beginning, and the last line that is known is gone: by date, as they begin with it.
    assert since_lines(("2026-11-01 x",), ("2026-11-02 y", "2026-11-03 z")) == ("2026-11-02 y", "2026-11-03 z")
    assert since_lines(("2026-11-03 x",), ("2026-11-02 y",)) == ()
    assert since_lines((), ("2026-11-02 y",)) == (), "nobody knows what was before"
    system = {"manager": "dpkg", "transactions": ["2026-11-01 install a"]}
    before = machine(system=system)
    after = machine(
        system={**system, "transactions": ["2026-11-01 install a", "2026-11-30 upgrade libc6"]}, taken=LATER
    )
    assert [each.new for each in since(before, after)] == ["2026-11-30 upgrade libc6"]


def test_what_one_side_could_not_collect_is_no_change() -> None:
    whole = gpu_machine()
    blind = gpu_machine(torch=None, deepspeed=None, interpreter=None, libraries=None, taken=LATER)
    assert not {"loader", "core package", "python package", "import"} & set(kinds(since(whole, blind)))
    unseen = {"memlock": None, "nofile": None, "shm": None, "uid": None, "cpu": None, "memory": None, "selinux": None}
    enforcing = gpu_machine(machine={"selinux": "enforcing", "memory": {"limit": 8 << 30}})
    assert since(enforcing, gpu_machine(machine=unseen, taken=LATER)) == ()
    free = since(enforcing, gpu_machine(machine={"selinux": "permissive"}, taken=LATER))
    assert [(each.name, each.old, each.new) for each in free] == [
        ("SELinux", "enforcing", "permissive"), ("memory of the cgroup", "8 GiB", "none"),
    ]  # fmt: skip


def test_another_image_machine_or_day_is_said() -> None:
    here = gpu_machine()
    for change, word in (
        ({"image": "team/train:2"}, "another image: none then, team/train:2 now"),
        ({"interpreter": {"executable": "/opt/other/bin/python"}}, "another interpreter"),
        ({"machine": {"cpu": {"model": "AMD EPYC"}}}, "another CPU"),
        ({"gpu": {"devices": [{"index": 0, "name": "NVIDIA A100"}]}}, "another set of GPUs"),
        ({"taken": "2020-01-01T00:00:00Z"}, "the snapshot is the newer one"),
    ):
        told = strangers(here, gpu_machine(**{"taken": LATER, **change}))
        assert any(word in each for each in told), (word, told)


def test_the_order_has_every_kind_once_and_libraries_before_kernels() -> None:
    assert len(set(ORDER)) == len(ORDER)
    assert ORDER.index("loader") < ORDER.index("core package") < ORDER.index("kernel") < ORDER.index("import")
    assert ORDER[-1] == "import", "it is the effect"


def test_times_that_are_none_give_no_distance() -> None:
    assert elapsed("2026-11-30T10:00:00Z", "2026-11-30T10:00:30+00:00") == 30
    assert elapsed("yesterday", LATER) is None
    assert since(machine(taken="yesterday"), machine(taken="\x00")) == ()
