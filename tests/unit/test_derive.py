"""What captures mean, by the facts."""

from __future__ import annotations

import pytest

from envbuild import facts
from envbuild.diagnose import derive

FACTS = facts.load()


@pytest.mark.parametrize(
    ("name", "captures", "said"),
    [
        ("gcc_of_symbol", {"version": "GLIBCXX_3.4.29"}, {"gcc": "11.1"}),
        ("gcc_of_symbol", {"version": "CXXABI_1.3.8"}, {"gcc": "4.9"}),
        (
            "place_of_library",
            {"library": "/data/conda3/lib/python3.9/site-packages/x/../../../libstdc++.so.6"},
            {"conda_prefix": "/data/conda3", "library_place": "the conda environment /data/conda3"},
        ),
        (
            "place_of_library",
            {"asker": "/root/.cache/torch_extensions/py39_cu117/cpu_adam/cpu_adam.so"},
            {"op": "cpu_adam"},
        ),
        (
            "place_of_library",
            {"library": "/usr/lib/x86_64-linux-gnu/libm.so.6"},
            {"library_place": "the operating system"},
        ),
        ("cuda_of_number", {"found": "11040"}, {"found_cuda": "11.4"}),
        ("cuda_of_arch", {"arch": "compute_89"}, {"arch_sm": "8.9", "cuda_since": "11.8"}),
        ("cuda_of_arch", {"arch": "sm_120"}, {"arch_sm": "12.0", "cuda_since": "12.8"}),
        ("cuda_of_torch", {"torch_version": "2.1.0+cu118"}, {"torch_cuda": "11.8", "toolkit_gcc": "11"}),
        ("gcc_limit", {"cuda": "12.1.105"}, {"max_gcc": "12"}),
        ("driver_floor", {"cuda": "12.1"}, {"driver_needed": "525"}),
        ("abi_of_symbol", {"symbol": "_ZN3c105ErrorC2ENS_14SourceLocationESs"}, {"symbol_abi": "old"}),
        ("abi_of_symbol", {"symbol": "_ZN2at1fENSt7__cxx1112basic_stringIcE"}, {"symbol_abi": "new"}),
        ("abi_of_symbol", {"symbol": "ncclCommResume"}, {"symbol_library": "NCCL"}),
        (
            "batch",
            {"train_batch": "64", "micro_batch": "4", "accumulation": "2", "world": "2"},
            {"missing_factor": "4"},
        ),
        ("sizes", {"segment_bytes": "9637888"}, {"segment": "9.2 MiB"}),
        ("signal_of_exit", {"exit_code": "-9"}, {"signal_name": "SIGKILL"}),
        ("signal_of_exit", {"exit_code": "139"}, {"signal_name": "SIGSEGV"}),
    ],
)
def test_what_it_says(name: str, captures: dict[str, str], said: dict[str, str]) -> None:
    made = derive.derived([name], captures, FACTS)
    assert {key: made.get(key) for key in said} == said


@pytest.mark.parametrize("name", derive.FUNCTIONS)
@pytest.mark.parametrize("value", ["", "x" * 5000, "-1", "99999999999999999999", "\x00", "..", "/"])
def test_what_cannot_be_understood_says_nothing_wrong(name: str, value: str) -> None:
    fields = "version library asker found arch torch_build torch_version torch_cuda cuda symbol exit_code signal"
    captures = dict.fromkeys([*fields.split(), "train_batch", "micro_batch", "accumulation", "world", "x_bytes"], value)
    assert all(derive.derived([name], captures, FACTS).values())
