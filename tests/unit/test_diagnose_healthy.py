"""Logs in which nothing failed, and failures that came after others that were handled."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild import project
from envbuild.diagnose import diagnose_text
from envbuild.project import Project

REPOSITORY = Path(__file__).parents[2]
LIBRARY = "libdemo.so.1: cannot open shared object file: No such file or directory"
HANDLED = [
    # A library of Python's warns.
    f"/opt/venv/lib/python3.11/site-packages/demo/io.py:7: UserWarning: Failed to load its extension: '{LIBRARY}'",
    f"[n1:77] mca_base_component_repository_open: unable to open mca_btl_demo: {LIBRARY} (ignored)",
    f"n1:7:7 [0] NCCL INFO NET/Plugin : dlerror={LIBRARY} No plugin found, using internal implementation",
    f"ImportError: {LIBRARY}\nYou can safely ignore this if you do not read images.",
    f"ImportError: {LIBRARY}\ntrying sox instead",
    "ssh: connect to host n7 port 22: Connection refused\nn7 is not up yet, sleeping 5",
    f"tests/test_loader.py::test_absent[{LIBRARY}] PASSED",
    f"ImportError: {LIBRARY}\n======== 41 passed, 2 skipped, 1 warning in 3.21s ========",
    f"ImportError: {LIBRARY}\n" + "".join(f" iteration  {step:7}/  900 | lm loss: 2.1E+00 |\n" for step in range(1, 8)),
    "WARNING: Retrying (Retry(total=3)) after connection broken by 'NewConnectionError('<x>: Failed to establish a new "
    "connection: [Errno 101] Network is unreachable')': /simple/demo/\nSuccessfully installed demo-1.0",
    "Using /home/me/.cache/torch_extensions/py311_cu124 as PyTorch extensions root...\nninja: no work to do.\n"
    "Loading extension module cpu_adam...\nTime to load cpu_adam op: 2.1 seconds",
    "conftest.c:9:10: fatal error: libaio.h: No such file or directory\nchecking for libaio.h... no",
    "Warning  FailedScheduling  0/3 nodes are available: 3 Insufficient nvidia.com/gpu.\n"
    "Normal   Scheduled         Successfully assigned team/train-0 to n7",
    # The texts of a program, as they stand in its file.
    "\x7fELF\0\0\0Copyright %s\0\0memory exhausted\0\0standard input\0\0",
]  # fmt: skip
ROOT = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB (GPU 0; 39.59 GiB total capacity)"


@pytest.fixture(scope="module")
def shipped() -> Project:
    return project.find(REPOSITORY, REPOSITORY)


@pytest.mark.parametrize("text", HANDLED, ids=range(len(HANDLED)))
def test_what_was_handled_is_no_cause(text: str, shipped: Project) -> None:
    assert [each.kind for each in diagnose_text(f"starting\n{text}\nbye\n", shipped).causes] == []


def test_the_root_stands_alone_behind_failures_that_were_handled(shipped: Project) -> None:
    before = "\n".join(text for text in HANDLED if "passed" not in text and "iteration" not in text)
    found = diagnose_text(f"{before}\nTraceback (most recent call last):\n{ROOT}\n", shipped).causes
    assert [each.kind for each in found] == ["gpu-out-of-memory"]


def test_a_failed_test_run_has_not_ended_well(shipped: Project) -> None:
    text = f"ImportError: {LIBRARY}\n==== 1 failed, 41 passed in 3.21s ====\n"
    assert [each.kind for each in diagnose_text(text, shipped).causes] == ["shared-library-missing"]
