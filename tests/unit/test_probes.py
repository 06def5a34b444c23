"""The probes run in images that this project did not make: old Pythons, no envbuild, NaN, ranks that die."""

from __future__ import annotations

import ast
import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envbuild.judge.suite import probes_folder
from envbuild.probes import common, content, surroundings, zero3, zero3_watch

FILES = sorted(probes_folder().glob("*.py"))
# Imported inside functions, when the image's turn has come.
UNDER_TEST = {"deepspeed", "torch"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_probe_is_old_python_and_imports_nothing_of_its_own(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 7))
    newer = (ast.NamedExpr, ast.Match)
    for node in ast.walk(tree):
        assert not isinstance(node, newer), f"line {node.lineno}"
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: python -I knows no package here"
            names = [node.module or ""]
        else:
            continue
        for name in names:
            root = name.partition(".")[0]
            assert root in sys.stdlib_module_names | UNDER_TEST, f"line {node.lineno}: {name}"


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "content_modules.py"], ids=lambda p: p.name)
def test_only_functions_import_what_is_probed(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        assert not UNDER_TEST & set(names)


def test_a_document_is_legal_json_whatever_the_figures_are(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    figures = {
        "nan": math.nan,
        "inf": [math.inf, -math.inf],
        1: (True, None, 2, 0.5, "é"),
        "other": {Path("/x")},
    }
    common.emit(os.open(path, os.O_CREAT | os.O_WRONLY), figures)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(path.read_text(), parse_constant=refuse) == {
        "nan": "nan",
        "inf": ["inf", "-inf"],
        "1": [True, None, 2, 0.5, "é"],
        "other": ["/x"],
    }


def test_what_imported_modules_print_does_not_reach_the_document(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Under capture sys.stdout is no view of descriptor 1, as it is in a probe.
    monkeypatch.setattr(sys, "stdout", open(1, "w", closefd=False))  # noqa: SIM115
    kept = os.dup(1)
    try:
        claimed = common.claim_stdout()
        sys.stdout.write("a log line from Python\n")
        os.write(1, b"and one from a native library\n")
        sys.stdout.flush()
        common.emit(claimed, {"schema": "x"})
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    out, err = capfd.readouterr()
    assert json.loads(out) == {"schema": "x"}
    assert "from Python" in err and "native library" in err


def test_a_figure_that_cannot_be_read_is_null_with_its_reason() -> None:
    figures: dict[str, Any] = {}
    common.attempt(figures, "a", lambda: 1)
    common.attempt(figures, "b", lambda: {}["x"])
    assert figures == {"a": 1, "b": None, "errors": {"b": "KeyError: 'x'"}}


def test_the_tail_of_a_log_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 10_000 + b"\xff\n" + b"\n".join(b"line %d" % number for number in range(100_000)))
    tail = common.tail(str(log), 40)
    assert len(tail) == 40 and tail[-1] == "line 99999"
    assert common.tail(str(tmp_path / "none"), 40) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, 8),
        ({"/sys/fs/cgroup/cpu.max": "150000 100000"}, 2),
        ({"/sys/fs/cgroup/cpu.max": "10000 100000"}, 1),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_ranks_share_the_cpus_that_the_container_may_use(
    files: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "_read", files.get)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert surroundings.usable_cpus() == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {"limit_bytes": None, "oom_kills": None}),
        (
            {"/sys/fs/cgroup/memory.max": "max", "/sys/fs/cgroup/memory.events": "oom 1\noom_kill 2\n"},
            {"limit_bytes": None, "oom_kills": 2},
        ),
        (
            {
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "1024",
                "/sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 0",
            },
            {"limit_bytes": 1024, "oom_kills": 0},
        ),
    ],
)
def test_memory_is_read_in_either_cgroup_version(
    files: dict[str, str], expected: dict[str, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "_read", files.get)
    assert surroundings.memory() == expected


class Child:
    """Stands in for a process: ends with ``code`` after some polls, and on SIGKILL."""

    pid = 2**22 + 1  # above what Linux gives out

    def __init__(self, code: int | None, polls: int = 0) -> None:
        self.returncode: int | None = None
        self._code, self._polls = code, polls

    def poll(self) -> int | None:
        if self.returncode is None and self._code is not None:
            if self._polls == 0:
                self.returncode = self._code
            self._polls -= 1
        return self.returncode

    def wait(self) -> int:
        self.returncode = -signal.SIGKILL if self.returncode is None else self.returncode
        return self.returncode


def _ranks(scratch: Path, *children: Child) -> list[zero3.Rank]:
    ranks = []
    for number, child in enumerate(children):
        rank = zero3.Rank(number, str(scratch))
        rank.process = child
        Path(rank.report_path).write_text('{"figures": 1}')
        Path(rank.phase_path).write_text(f"{number + 7} phase {number}")
        Path(rank.log_path).write_text("last words\n")
        ranks.append(rank)
    return ranks


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """No waiting, and no signal leaves this process; the list has those that would have been sent."""
    sent: list[int] = []
    for name in ("_POLL_SECONDS", "_PEER_GRACE_SECONDS", "_DUMP_SECONDS"):
        monkeypatch.setattr(zero3, name, 0.001)
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append(number))
    return sent


def test_all_ranks_done(tmp_path: Path, quick: list[int]) -> None:
    ranks = _ranks(tmp_path, Child(0), Child(0, polls=3))
    assert zero3._watch(ranks, time.monotonic(), 60.0, 60.0) == (False, None)
    assert quick == []
    document = ranks[1].document()
    assert (document["exit_code"], document["signal"], document["report"]) == (0, None, {"figures": 1})
    assert (document["phase"], document["phases_entered"]) == ("phase 1", 8) and document["log_tail"] == []


def test_a_dead_rank_ends_the_others(tmp_path: Path, quick: list[int]) -> None:
    ranks = _ranks(tmp_path, Child(None), Child(-signal.SIGSEGV))
    since = time.monotonic()
    assert zero3._watch(ranks, since, 60.0, 60.0) == (False, None)
    zero3._end(ranks, since)
    assert signal.SIGUSR1 in quick and signal.SIGKILL in quick
    waiting, dead = (rank.document() for rank in ranks)
    assert (waiting["ended_by_launcher"], waiting["signal_name"]) == (True, "SIGKILL")
    assert (dead["ended_by_launcher"], dead["signal_name"]) == (False, "SIGSEGV")
    assert dead["log_tail"] == ["last words"]


def test_a_rank_that_ends_well_without_a_report_is_dead_too(tmp_path: Path, quick: list[int]) -> None:
    ranks = _ranks(tmp_path, Child(0), Child(None))
    Path(ranks[0].report_path).unlink()
    assert zero3._watch(ranks, time.monotonic(), 60.0, 60.0) == (False, None)
    assert [rank.ended_by_launcher for rank in ranks] == [False, True]


def test_time_runs_out(tmp_path: Path, quick: list[int]) -> None:
    ranks = _ranks(tmp_path, Child(None), Child(0))
    assert zero3._watch(ranks, time.monotonic(), 0.01, 60.0) == (True, None)
    assert [rank.ended_by_launcher for rank in ranks] == [True, False]


def test_a_collective_that_takes_too_long_names_who_was_there(tmp_path: Path, quick: list[int]) -> None:
    ranks = _ranks(tmp_path, Child(None), Child(None))
    Path(ranks[1].phase_path).write_text("4 collective all-reduce")
    timed_out, stuck = zero3._watch(ranks, time.monotonic(), 60.0, 0.01)
    assert not timed_out and stuck is not None and stuck["inside"] == [1]
    assert signal.SIGUSR1 in quick, "each rank is asked where it stands"


# --- what watches a rank ----------------------------------------------------------------------------------------------


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[zero3_watch.Phases, Any]:
    """Phases, and what a rank's audit hook would hear; a real hook could never be taken out again."""
    hooks: list[Any] = []
    monkeypatch.setattr(sys, "addaudithook", hooks.append)
    phases = zero3_watch.Phases(str(tmp_path / "phase"))
    programs = zero3_watch.Programs(phases)
    return phases, lambda *event: (hooks[0](*event), programs.figures())[1]


def test_phases_are_numbered_and_measured(watched: tuple[zero3_watch.Phases, Any], tmp_path: Path) -> None:
    phases, _ = watched
    for name, detail in (("import", ""), ("steps", 1), ("steps", 2), ("close", "")):
        phases.enter(name, detail)
    assert (tmp_path / "phase").read_text() == "4 close"
    assert list(phases.figures) == ["import", "steps"]
    assert all(each["seconds"] >= 0 and each["rss_bytes"] > 0 for each in phases.figures.values())


@pytest.mark.parametrize(
    ("event", "arguments", "argv"),
    [
        ("subprocess.Popen", ("/usr/bin/g++", ["g++", b"-c", Path("x.cpp")], None, None), ["g++", "-c", "x.cpp"]),
        ("subprocess.Popen", ("sh", "ninja -v", None, None), ["ninja -v"]),
        ("os.posix_spawn", (b"/bin/ld", (b"ld",), {}), ["ld"]),
        ("os.exec", ("gcc", ["gcc"], None), ["gcc"]),
        ("os.system", (b"make",), ["make"]),
    ],
)
def test_every_way_to_start_a_program_is_noted(
    event: str, arguments: Any, argv: list[str], watched: tuple[zero3_watch.Phases, Any]
) -> None:
    phases, hear = watched
    phases.enter("engine")
    figures = hear(event, arguments)
    assert figures["count"] == 1 and figures["started"][0]["argv"] == argv
    assert figures["started"][0]["phase"] == "engine"


def test_a_hook_never_stops_a_program(watched: tuple[zero3_watch.Phases, Any]) -> None:
    _, hear = watched
    assert hear("subprocess.Popen", ())["started"] == []
    assert hear("open", ("x", "r", 0))["count"] == 0
    for _ in range(500):
        figures = hear("os.system", ("x" * 10_000,))
    assert figures["count"] == 500 and len(figures["started"]) == 200
    assert max(len(item["argv"][0]) for item in figures["started"]) == 200


def test_a_folder_that_cannot_be_swapped_to_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **named: Any) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "open", refuse)
    figures = surroundings.disk(str(tmp_path))
    assert figures["direct"] is False and "Invalid argument" in figures["error"]
    assert figures["free_bytes"] > 0 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("folder", "kind"), [("/run/x/nvme", "ext4"), ("/run/x", "tmpfs"), ("/runner", "overlay")])
def test_the_last_mount_that_covers_a_folder_counts(folder: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = "\n".join(
        f"1 2 0:1 / {place} rw - {kind} none rw"
        for place, kind in (("/", "overlay"), ("/run", "tmpfs"), ("/run/x/nvme", "ext4"))
    )
    monkeypatch.setattr(surroundings, "_read", {"/proc/self/mountinfo": mounts}.get)
    monkeypatch.setattr(os.path, "realpath", lambda path: path)
    assert surroundings._mount_kind(folder) == kind


def test_what_a_module_runs_when_it_is_imported_is_there_and_no_compiler_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed 0.14 asks df for the file system of its caches while it is imported."""
    harmless = ["df", "ldconfig", "c++filt", "make-ssl-cert", "asciidoc", "catchsegv", "uname"]
    builders = [
        *("cc", "c++", "gcc", "gcc-12", "x86_64-linux-gnu-g++-12", "clang++-19", "nvcc", "cicc", "ptxas", "as", "ld"),
        *("ld.bfd", "ninja", "make", "cmake", "c99-gcc", "cpp-12"),
    ]
    (tmp_path / "bin").mkdir()
    for name in (*harmless, *builders):
        (tmp_path / "bin" / name).touch(mode=0o755)
    (tmp_path / "bin" / "innocent").symlink_to("gcc-12")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "df").touch(mode=0o755)
    (tmp_path / "seen").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'first'}:{tmp_path / 'nowhere'}:{tmp_path / 'bin'}")
    content._without_compilers(str(tmp_path / "seen"))
    assert sorted(path.name for path in (tmp_path / "seen").iterdir()) == sorted(harmless)
    assert (tmp_path / "seen" / "df").readlink() == tmp_path / "first" / "df"
