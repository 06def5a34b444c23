"""The checks over what is really collected: nothing against the proven image, and every fault that a container has."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from envbuild import facts
from envbuild.doctor.archive import archive
from envbuild.doctor.checks import CHECKS
from envbuild.doctor.collection import Collection
from envbuild.doctor.view import View
from envbuild.engines import DockerEngine
from envbuild.model import Finding, Severity
from envbuild.pipeline.examine import Extent, examine_image, image_spec
from envbuild.pipeline.runs import running
from envbuild.pipeline.workbench import Workbench

Examine = Callable[..., list[Finding]]
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def said(collection: Collection, **fields: Any) -> list[Finding]:
    view = View(collection=collection, facts=facts.load(), **fields)
    return [finding for check in CHECKS for finding in check.look(view)]


@pytest.fixture(scope="module")
def examine(proven: dict[str, object], engine: DockerEngine) -> Examine:
    """Run the collector in the proven image, in a container that is not as it should be."""
    bench = Workbench()

    def run(before: str, *, nvme: tuple[str, ...] = (), params: int | None = None, **changes: Any) -> list[Finding]:
        extent = Extent(nvme=nvme)
        with running(bench) as own:
            spec = image_spec(
                str(proven["id"]), own, archive(bench.cache), "python", python=None, extent=extent, gpus=()
            )
            command = f"{before}; exec {shlex.join(spec.argv)}"
            spec = dataclasses.replace(spec, argv=("sh", "-c", command), cap_drop_all=False, **changes)
            result = bench.engine.run(spec, timeout=300)
        assert result.exit_code == 0, result.stderr
        return said(Collection.model_validate_json(result.stdout), params=params)

    return run


def worst(findings: list[Finding]) -> dict[str, Severity]:
    return {each.rule: each.severity for each in findings if each.severity is not INFO}


def test_nothing_is_said_of_the_proven_image(proven: dict[str, object]) -> None:
    findings = said(examine_image(Workbench(), str(proven["id"])))
    assert [each for each in findings if each.severity is not INFO] == []
    assert len(findings) <= 3


def test_variables_memory_and_folders(examine: Examine) -> None:
    findings = examine(
        "mkdir -p /tmp/swap /tmp/sealed /var/tmp/swap && chmod 500 /tmp/sealed",
        env=(("DS_ACCELERATOR", "cuda"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"), ("GLOO_SOCKET_IFNAME", "nowhere0")),
        nvme=("/tmp/swap", "/tmp/none", "/tmp/sealed", "/var/tmp/swap"),
        user="65534:65534", shm_bytes=1 << 26, memory_bytes=2 << 30, memlock=1 << 16, params=int(1e9),
    )  # fmt: skip
    found = worst(findings)
    by_rule = {(each.rule, each.subject): each for each in findings}
    assert found["environment.ds-accelerator"] is ERROR
    assert found["environment.nccl-error-handling"] is WARNING
    assert found["network.unknown"] is ERROR
    assert "lo" in by_rule["network.unknown", "GLOO_SOCKET_IFNAME"].fix
    assert "the cgroup's limit of 2 GiB" in by_rule["memory.need", "host memory"].message
    assert by_rule["memlock.limited", "RLIMIT_MEMLOCK"].message.startswith("64 KiB")
    assert ("nvme.missing", "/tmp/none") in by_rule
    assert ("nvme.unwritable", "/tmp/sealed") in by_rule
    assert ("nvme.layer", "/var/tmp/swap") in by_rule
    assert ("nvme.memory", "/tmp/swap") in by_rule or ("nvme.direct", "/tmp/swap") in by_rule
    assert ("shm.small", "/dev/shm") in by_rule


def test_an_op_that_has_still_to_be_compiled(examine: Examine) -> None:
    """Without its prebuilt ops, and without what it takes to compile them: each is told, by its own check."""
    site = "$(python -c 'import sysconfig; print(sysconfig.get_paths()[\"purelib\"])')"
    gone = f"rm -f {site}/deepspeed/ops/adam/cpu_adam_op*.so {site}/deepspeed/ops/aio/async_io_op*.so"
    gone += "; sed -i \"s/'cpu_adam': 1/'cpu_adam': False/; s/'async_io': 1/'async_io': False/\" "
    gone += (
        f"{site}/deepspeed/git_version_info_installed.py; rm -f $(command -v ninja) /usr/include/python3.11/Python.h"
    )
    nvme = ("/var/tmp",)
    whole = worst(examine(gone, nvme=nvme, user="0"))
    assert whole["ninja.missing"] is whole["python-headers.missing"] is whole["libaio.missing"] is ERROR
    assert "host-compiler.missing" not in whole and "host-compiler.broken" not in whole
    bare = worst(examine(f"{gone}; unset CC CXX", nvme=nvme, user="0"))
    assert bare["host-compiler.missing"] is ERROR
    broken = worst(examine(f"{gone}; rm -f /usr/lib/gcc/x86_64-linux-gnu/12/cc1plus", nvme=nvme, user="0"))
    assert broken["host-compiler.broken"] is ERROR
    pinned = worst(examine(f"rm -rf {site}/pydantic-*.dist-info {site}/hjson*", user="0"))
    assert pinned["packages.requirement"] is ERROR and pinned["imports.module"] is ERROR
