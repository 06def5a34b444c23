"""Logs of runs and builds that failed on purpose, and of a healthy one: the kind in the file's name comes first.

Each was written by the real program on two ranks (torch 2.13, DeepSpeed 0.19.8, gloo, BuildKit), with the paths of the
script made neutral, torch's C++ frames left out and the longest lines cut.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild import project
from envbuild.diagnose import Diagnosis, diagnose_text

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "data" / "logs"
KINDS = {
    "apt-package-missing",
    "ds-config-auto-unresolved",
    "ds-config-batch-mismatch",
    "ds-config-nvme-path",
    "ds-config-offload-optimizer",
    "ds-config-precision-conflict",
    "ds-config-unknown-key",
    "ds-config-wrong-type",
    "host-ram-oom",
    "master-unresolved",
    "network-unreachable",
    "port-in-use",
    "rendezvous-timeout",
    "shm-too-small",
    "unknown-argument",
}
LOGS = sorted(path for path in FOLDER.glob("*.log") if path.name.partition(".")[0] in KINDS)


def _diagnosed(text: bytes) -> Diagnosis:
    return diagnose_text(text, project.find(ROOT, ROOT))


def _forms(text: bytes) -> tuple[bytes, ...]:
    """As it is, behind the log of a healthy start, with time stamps, and as a terminal of 80 columns wraps it."""
    lines = text.splitlines()
    stamped = b"".join(b"2026-01-05T10:%02d:%02d.5Z %s\n" % (at // 60, at % 60, line) for at, line in enumerate(lines))
    wrapped = b"".join(line[at : at + 80] + b"\n" for line in lines for at in range(0, max(len(line), 1), 80))
    start = (FOLDER / "healthy.torchrun-cpu.log").read_bytes().partition(b"step 0")[0]
    return text, start + text, stamped, wrapped


def test_every_kind_has_a_log() -> None:
    assert {path.name.partition(".")[0] for path in LOGS} == KINDS


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_kind_comes_first(path: Path) -> None:
    kind = path.name.partition(".")[0]
    for form in _forms(path.read_bytes()):
        causes = _diagnosed(form).causes
        assert [cause.kind for cause in causes][:1] == [kind]
        assert causes[0].fix and "{" not in causes[0].cause


def test_captured_values_make_the_answer() -> None:
    def cause(name: str) -> str:
        return _diagnosed((FOLDER / f"{name}.log").read_bytes()).causes[0].cause

    assert "a factor of 4 is missing" in cause("ds-config-batch-mismatch.product")
    assert "top level" in cause("ds-config-unknown-key.aio")
    assert "reduce_bucket_size is 1000.5" in cause("ds-config-wrong-type.fraction")
    assert "torch.optim.adamw.AdamW" in cause("ds-config-offload-optimizer.client")
    assert "/mnt/none" in cause("ds-config-nvme-path.read-only")
    assert "Port 29511" in cause("port-in-use.torchrun")
    assert "node99" in cause("master-unresolved.name")
    assert "1 of 2" in cause("rendezvous-timeout.absent")
    assert "--zero-offload" in cause("unknown-argument.zero-offload")


def test_what_a_dead_rank_leaves_behind_is_its_echo() -> None:
    (cause,) = _diagnosed((FOLDER / "host-ram-oom.torchrun.log").read_bytes()).causes
    assert {"launcher-exit", "peer-lost", "siblings-terminated"} <= {echo.kind for echo in cause.explains}
