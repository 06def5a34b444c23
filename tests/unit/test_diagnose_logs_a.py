"""Logs of failures that were made on purpose, and of healthy runs: the kind that the file is named after comes first.

Each was written by the real program (GCC 12, nvcc 13.0, torch 2.13, DeepSpeed 0.19, pip), with its paths made neutral
and its longest lines shortened.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild import project
from envbuild.diagnose import Diagnosis, diagnose_text

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "data" / "logs"
# Other tests may keep their logs beside these.
KINDS = {
    "build-oom",
    "cpu-isa-mismatch",
    "cxx-standard-mismatch",
    "extension-abi-mismatch",
    "externally-managed-environment",
    "host-gcc-too-new",
    "host-gcc-too-old",
    "libstdcxx-symbol-missing",
    "missing-cuda-dev-lib",
    "missing-host-compiler",
    "missing-ninja",
    "missing-python-headers",
    "mpi4py-missing",
    "numpy2-abi",
    "nvcc-unsupported-arch",
    "pydantic-v2-break",
    "torch-api-removed",
    "torch-missing-at-ds-install",
    "weights-only-load",
}
LOGS = sorted(path for path in FOLDER.glob("*.log") if path.name.partition(".")[0] in KINDS)
# What a failure leaves in the log behind it, in the words of a launcher and of other ranks.
AFTER = b"""
[2026-01-05 10:00:09,101] [INFO] [launch.py:253:sigkill_handler] Killing subprocess 4711
[2026-01-05 10:00:09,102] [ERROR] [launch.py:259:sigkill_handler] ['python', 'train.py'] exits with return code = 1
"""
# What healthy starts say too.
BEFORE = b"""[2026-01-05 10:00:01,100] [INFO] [real_accelerator.py:250:get_accelerator] Setting ds_accelerator to cuda
 [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.
/usr/bin/ld: cannot find -laio: No such file or directory
collect2: error: ld returned 1 exit status
Installed CUDA version 12.2 does not match the version torch was compiled with 12.1 but since the APIs are compatible, \
accepting this combination
No CUDA runtime is found, using CUDA_HOME='/usr/local/cuda'
node1:41:41 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or \
directory No plugin found (libnccl-net.so), using internal implementation
UserWarning: pkg_resources is deprecated as an API.
"""


def _diagnosed(text: bytes) -> Diagnosis:
    return diagnose_text(text, project.find(ROOT, ROOT))


def test_every_kind_has_a_log() -> None:
    assert {path.name.partition(".")[0] for path in LOGS} == KINDS


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_kind_comes_first(path: Path) -> None:
    kind = path.name.partition(".")[0]
    text = path.read_bytes()
    for form in (text, BEFORE + text + AFTER, b"".join(b"[rank1]: " + line for line in text.splitlines(keepends=True))):
        causes = _diagnosed(form).causes
        assert [cause.kind for cause in causes][:1] == [kind]
        assert causes[0].fix and "{" not in causes[0].cause


@pytest.mark.parametrize("path", sorted(FOLDER.glob("healthy.*.log")), ids=lambda path: path.stem)
def test_healthy_logs_have_no_cause(path: Path) -> None:
    assert not _diagnosed(path.read_bytes()).causes


def test_noise_of_healthy_starts_is_no_cause() -> None:
    started = b"[2026-01-05 10:00:02,500] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.14.4\n"
    assert not _diagnosed(BEFORE + started).causes


def test_captured_values_make_the_answer() -> None:
    cause = _diagnosed((FOLDER / "libstdcxx-symbol-missing.import.log").read_bytes()).causes[0]
    assert "GCC 11.1" in cause.cause and "/data/older/lib/libstdc++.so.6" in cause.cause
    cause = _diagnosed((FOLDER / "nvcc-unsupported-arch.nvcc.log").read_bytes()).causes[0]
    assert "7.0" in cause.cause and "12.9" in cause.cause
    cause = _diagnosed((FOLDER / "host-gcc-too-new.nvcc.log").read_bytes()).causes[0]
    assert "GCC up to 15" in cause.cause and any("g++-15" in step for step in cause.fix)
    cause = _diagnosed((FOLDER / "extension-abi-mismatch.import.log").read_bytes()).causes[0]
    assert any("/data/cache/torch_extensions/py311_cpu/cpu_adam" in step for step in cause.fix)


def test_echoes_are_explained() -> None:
    cause = _diagnosed((FOLDER / "missing-python-headers.jit.log").read_bytes() + AFTER).causes[0]
    assert {"ninja-failed", "extension-build-failed"} <= {echo.kind for echo in cause.explains}
