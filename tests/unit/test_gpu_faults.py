"""The words of a GPU runtime or a driver are known as what they are, with the fix. Texts as reports quote them."""

from __future__ import annotations

import pytest
from docker.errors import APIError
from requests import Response

from envbuild.engines import GpuStartError, known_fault
from envbuild.engines.faults import plain
from envbuild.errors import EngineError

_RUNC = (
    "OCI runtime create failed: container_linux.go:380: starting container process caused: process_linux.go:545: "
    "container init caused: Running hook #0:: error running hook: exit status 1, stdout: , stderr: "
)
_NEW = (
    "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: error running prestart hook #0: exit status 1, "
    "stdout: , stderr: Auto-detected mode as 'legacy'\n"
)
START = [
    ('could not select device driver "" with capabilities: [[gpu]]', "runtime", "nvidia-ctk runtime configure"),
    ('could not select device driver "nvidia" with capabilities: [[gpu]]', "runtime", "nvidia-ctk runtime configure"),
    (f"{_RUNC}nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown",
     "driver", "Reboot"),
    (f"{_RUNC}nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown.",
     "driver", "modprobe"),
    (f"{_RUNC}nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared "
     "object file: no such file or directory: unknown.", "driver", "Install the NVIDIA driver"),
    (f"{_NEW}nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to "
     "a newer version, or use an earlier cuda container", "driver", "newer NVIDIA driver"),
    ('container init caused \\"process_linux.go:432: running prestart hook 1 caused \\\\\\"error running hook: exit '
     'status 1, stdout: , stderr: nvidia-container-cli: initialization error: driver error: failed to process '
     'request\\\\\\\\n\\\\\\"\\"": unknown.', "driver", "nvidia-container-cli info"),
    (f"{_RUNC}Auto-detected mode as 'legacy'\nnvidia-container-cli: device error: GPU-1: unknown device: unknown.",
     "runtime", "nvidia-smi -L"),
    ("setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", "runtime", "nvidia-ctk cdi generate"),
    (f"{_RUNC}nvidia-container-cli: something quite new: unknown", "runtime", "nvidia-container-cli info"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "where", "fix"), START)
def test_a_start_that_fails_for_the_gpus_is_a_fault_of_its_own(said: str, where: str, fix: str) -> None:
    response = Response()
    response.status_code = 500
    with pytest.raises(GpuStartError) as caught, plain("run a container of i", "unix:///s"):
        raise APIError("500", response=response, explanation=said)
    fault = caught.value.fault
    assert fault.where == where and fix in caught.value.hint and fault.source
    assert "container_linux.go" not in caught.value.said, "not the chain of callers"
    assert not caught.value.said.endswith(("unknown", ".", '"')) and caught.value.said
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update", "newer"),
        ("RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version", "newer"),
        ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "fabricmanager"),
        ("Error 803: system has unsupported display driver / cuda driver combination", "cuda-compat"),
    ],
)
def test_what_torch_says_of_a_driver_is_known_too(said: str, fix: str) -> None:
    fault = known_fault(f"rank 0 ended\n{said}\nmore")
    assert fault is not None and fault.where == "driver" and fix in fault.fix


def test_other_failures_are_not_taken_for_a_gpus() -> None:
    response = Response()
    response.status_code = 500
    for said in (
        "OCI runtime create failed: runc create failed: unable to start container process: error setting rlimit type 8",
        "no space left on device",
        'could not select a driver with capabilities: [["network"]]',
        "smoke.crash: rank 0 ended with SIGSEGV in libtorch_cuda.so",
    ):
        with pytest.raises(EngineError) as caught, plain("do it", "unix:///s"):
            raise APIError("500", response=response, explanation=said)
        assert type(caught.value) is EngineError
