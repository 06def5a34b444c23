"""Ranks on several nodes: what they print becomes one measurement, on the clock of the first node."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envbuild import process
from envbuild.errors import GateError
from envbuild.events import Event, PhaseDone, PhaseStarted
from envbuild.pipeline import collective, spread_run
from envbuild.pipeline.gathered import _clocks, gather
from envbuild.pipeline.measured import About, measurement_of
from envbuild.pipeline.measured_text import summary
from envbuild.pipeline.prepare import FindingsError
from envbuild.pipeline.spread import Spread
from envbuild.profile import files
from envbuild.profile.document import Hardware, Made
from envbuild.project import find
from envbuild.report import judged, steps

# n2's clock is a quarter of a second ahead, and 4 ms more when the training ends.
AHEAD = {"n1": 0.0, "n2": 0.25}
DRIFT = 0.004
ABOUT = About(
    accelerator="cuda", hardware=Hardware(), probe="p", envbuild="1", tokens=64, micro_batch=2, accumulation=1
)  # fmt: skip


def collectives(began: float, world: int, seed: int) -> list[list[list[float]]]:
    """When each rank went in and came out of twenty, in true time: late ones in, and replies that take their time."""
    chance = random.Random(seed)
    found: list[list[list[float]]] = [[] for _ in range(world)]
    at = [began + chance.uniform(0, 0.05) for _ in range(world)]
    for _ in range(20):
        entered = [each + chance.uniform(0, 0.0003) for each in at]
        at = [max(entered) + chance.uniform(0.0002, 0.004) for _ in range(world)]
        for rank in range(world):
            found[rank].append([entered[rank], at[rank]])
    return found


def ranks(*, clocks: bool = True) -> dict[int, list[dict[str, Any]]]:
    """Four ranks on two nodes, as each one's program prints them; their steps begin at the same moments."""
    begin, over = collectives(50.0, 4, 1), collectives(190.0, 4, 2)
    said = {}
    for rank in range(4):
        node, local = ("n1", "n2")[rank // 2], rank % 2
        ahead = AHEAD[node]
        later = ahead + (DRIFT if node == "n2" else 0.0)
        lines: list[dict[str, Any]] = [
            {"kind": "launch", "schema": "envbuild.probe.profile/1", "node": node, "started": 1.0,
             "surroundings": {"nvidia_driver": "570.86"}},
            {"kind": "rank", "rank": rank, "local_rank": local, "backend": "nccl", "device": {"name": "H100"},
             "versions": {"torch": "2.6", "deepspeed": "0.16"}, "seconds": {},
             "gpu": {"index": local, "uuids": [], "pci": f"00000000:{1 - local:02x}:00"}},
        ]  # fmt: skip
        if clocks:
            lines.append({"kind": "clock", "rank": rank, "rounds": [[e + ahead, x + ahead] for e, x in begin[rank]]})
        lines += [
            {"kind": "step", "pass": "timing", "rank": rank, "number": number, "at": 100.0 + number + ahead,
             "seconds": 1.0, "parts": {"forward": 0.5}, "inside": {}, "loss": 1.0, "gradient_norm": None}
            for number in range(3)
        ]  # fmt: skip
        row = {"op": "all_gather", "count": 3, "bytes": 300, "message_bytes": 100, "group_size": 4, "seconds": None}
        lines.append({"kind": "pass", "pass": "timing", "rank": rank, "started": 99.0 + ahead, "collectives": [row],
                      "steps": 3, "warmup": 0, "config": {"stage": 3}})  # fmt: skip
        if clocks:
            lines.append({"kind": "clock", "rank": rank, "rounds": [[e + later, x + later] for e, x in over[rank]]})
        # Only a node's first program looks at the node; each has a beat of its own.
        # A third GPU is somebody else's, and CUDA_VISIBLE_DEVICES has given the two to the ranks the other way round.
        gpus = [{"gpu_percent": 10.0 * rank + index, "uuid": None, "pci": f"00000000:{index:02x}:00", "split": False}
                for index in range(3)] if local == 0 else []  # fmt: skip
        lines += [
            {"kind": "sample", "at": 100.0 + 0.5 * number + 0.07 * rank + ahead,
             "host_memory_bytes": 5 if gpus else None, "cpu_percent": 40.0 + rank if gpus else None,
             "disks": {}, "networks": {}, "gpus": gpus,
             "ranks": [{"rank": rank, "process_cpu_percent": 90.0 + rank, "process_memory_bytes": 7}]}
            for number in range(4)
        ]  # fmt: skip
        ended = {"rank": rank, "exit_code": 0}
        lines.append({"kind": "end", "error": None, "timed_out": False, "ranks": [ended],
                      "transports": [f"NET/{node}"], "gpus": None})  # fmt: skip
        said[rank] = lines
    return said


def test_steps_that_began_together_do_so_whatever_the_clocks_say() -> None:
    gathered = gather(ranks())
    first, second = gathered.nodes
    assert (first.name, first.clock_ahead, first.clock_error) == ("n1", 0.0, 0.0)
    assert second.name == "n2" and second.clock_ahead is not None and second.clock_error is not None
    # Bounds, not guesses: the truth is within them, and the drift is in the error.
    assert abs(second.clock_ahead - 0.25) <= second.clock_error
    assert DRIFT * 0.5 < second.clock_error < 2 * DRIFT
    measured = measurement_of(gathered.lines, ABOUT)
    assert measured.launches[0].nodes == () and measured.key.nodes == 1, "who has measured says on which nodes"
    (launch,) = measured.launches
    for rank in launch.ranks:
        at = rank.steps.at[0]
        assert at is not None and abs(at - launch.ranks[0].steps.at[0]) <= second.clock_error  # type: ignore[operator]
    assert "up to 25" in gathered.notes[0] and "ms apart" in gathered.notes[0]


def test_one_measurement_with_the_nodes_of_its_ranks() -> None:
    import dataclasses

    gathered = gather(ranks())
    measured = measurement_of(gathered.lines, dataclasses.replace(ABOUT, nodes=gathered.nodes))
    assert files.measurement(files.document(measured), "it") == measured
    (launch,) = measured.launches
    assert (measured.key.nodes, measured.key.world_size, launch.tokens_per_step) == (2, 4, 512)
    assert [(rank.rank, rank.local_rank, rank.node) for rank in launch.ranks] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 0, 1),
        (3, 1, 1),
    ]
    assert [node.name for node in launch.nodes] == ["n1", "n2"]
    assert launch.structure.collectives[0].count == 12 and launch.communication.transports == ("NET/n1", "NET/n2")
    series = {(each.kind, each.rank, each.node, each.device): each.values for each in launch.samples.series}
    assert len(launch.samples.at) == 4, "the first one's beats are the axis"
    # The first GPU of the second node is rank 3's, and only ranks' GPUs are there: both nodes have the same addresses.
    assert (
        series[("gpu_percent", 3, 1, "cuda:1")] == (20.0,) * 4 and series[("gpu_percent", 0, 0, "cuda:0")] == (1.0,) * 4
    )
    assert len([key for key in series if key[0] == "gpu_percent"]) == 4
    assert series[("cpu_percent", None, 1, None)] == (42.0,) * 4
    assert [series[("process_cpu_percent", rank, rank // 2, None)] for rank in range(4)] == [
        (90.0 + rank,) * 4 for rank in range(4)
    ]


def test_people_read_which_node_a_rank_was_on() -> None:
    import dataclasses

    gathered = gather(ranks())
    several = measurement_of(gathered.lines, dataclasses.replace(ABOUT, nodes=gathered.nodes))
    one = measurement_of(gathered.lines, ABOUT)
    assert [line.split()[-1] for line in list(summary(several))[1:6]] == ["node", "n1", "n1", "n2", "n2"]
    assert not any("n2" in line for line in summary(one))
    (table,) = [each for each in steps.breakdown(several, "m").tables if each.id == "m-ranks"]
    assert table.columns[-1].name == "node" and [row[-1] for row in table.rows] == ["n1", "n1", "n2", "n2"]
    rows = {row[0]: row[1] for row in judged.key(several, None, "m").tables[0].rows}
    assert rows["nodes"] == "2: n1, n2"


def test_the_error_of_a_clock_holds_every_bound_of_it() -> None:
    said = {
        rank: [{"kind": "clock", "rounds": [[1.0, 1.0001]]}, {"kind": "clock", "rounds": [[9.0, 9.01]]}]
        for rank in range(2)
    }  # fmt: skip
    _, second = _clocks(said, {0: "a", 1: "b"}, ["a", "b"])
    assert (second.clock_ahead, second.clock_error) == (0.0, 0.01)


def test_clocks_that_nobody_compared_are_not_taken_for_equal() -> None:
    gathered = gather(ranks(clocks=False))
    assert [node.clock_ahead for node in gathered.nodes] == [0.0, None]
    assert gathered.notes == ("the clocks of the nodes could not be compared: each node's times are on its own axis",)


# --- what the first node does -----------------------------------------------------------------------------------------

SPREAD = Spread(
    image="reg/e/h100:1", row="h100-cu124", container="pyxis", accelerator="cuda", world=4, nodes=2, seed=76,
    patience=60, timeout=90, check=("srun", "rank.sh"), train=("srun", "train.sh"), passes=("timing",),
    made=Made(model="tiny"), micro_batch=2, accumulation=1,
)  # fmt: skip


class Bench:
    """As much of a workbench as is asked."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.sink = self.told.append
        self.project = find(None, Path(__file__))


def started(
    monkeypatch: pytest.MonkeyPatch, codes: Mapping[str, int], said: Mapping[int, Any], *, right: bool = True
) -> None:
    """srun, as it leaves what the ranks print."""
    values, total = collective.answer(collective.Expected(world=4, nodes=2, seed=76))
    sums = {"schema": "envbuild.probe.allreduce/1", "world": 4, "total": total if right else 0.0, "values": values}

    def stream(argv: Any, *, on_line: Any, cwd: Path, timeout: float) -> int:
        if argv[1] == "rank.sh":
            for rank in range(4):
                text = json.dumps({**sums, "rank": rank, "node": ("n1", "n2")[rank // 2]})
                (cwd / "ranks" / f"{rank}.json").write_text(text)
        else:
            for rank, lines in said.items():
                (cwd / "said" / f"{rank}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
                (cwd / "said" / f"{rank}.txt").write_text(
                    "envbuild: timing 1 3\nslurmstepd: error: *** STEP\nno space\n"
                )
        return codes.get(argv[1], 0)

    monkeypatch.setattr(process, "stream", stream)


def test_a_training_follows_an_all_reduce_that_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, {}, ranks())
    bench: Any = Bench()
    measured = spread_run.carry_out(bench, SPREAD, tmp_path)
    assert measured.key.nodes == 2 and measured.key.row == "h100-cu124" and measured.key.image is None
    assert measured.key.hardware.gpus == ("H100",) and measured.key.hardware.driver == "570.86"
    assert [each.name for each in measured.launches[0].nodes] == ["n1", "n2"] and "time axis" in measured.notes[0]
    phases = [each.phase for each in bench.told if isinstance(each, (PhaseStarted, PhaseDone))]
    assert phases == ["all-reduce", "all-reduce", "profile", "profile"]


def test_nodes_that_add_wrong_train_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, {}, ranks(), right=False)
    with pytest.raises(FindingsError, match="nothing was measured") as caught:
        spread_run.carry_out(Bench(), SPREAD, tmp_path)  # type: ignore[arg-type]
    assert caught.value.exit_code == 5 and {each.rule for each in caught.value.findings} == {"gate.collective"}
    assert not (tmp_path / "said").exists()


def dies(said: dict[int, list[dict[str, Any]]]) -> None:
    said[3][-1:] = [{"kind": "error", "rank": 3, "error": "RuntimeError: out of memory"}]


def says_nothing(said: dict[int, list[dict[str, Any]]]) -> None:
    said.update({rank: [] for rank in said})


def is_not_seen(said: dict[int, list[dict[str, Any]]]) -> None:
    del said[2][-1]


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [(dies, 1, "rank 3: RuntimeError: out of memory"), (says_nothing, 125, "exit code 125\n  no space"),
     (is_not_seen, 0, "no figures of rank 2: not every node sees")],
)  # fmt: skip
def test_ranks_that_do_not_come_to_their_end_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any, code: int, words: str
) -> None:
    monkeypatch.setattr(spread_run, "_PATIENCE", 0.0)
    said = ranks()
    spoil(said)
    started(monkeypatch, {"train.sh": code}, said)
    with pytest.raises(GateError) as caught:
        spread_run.carry_out(Bench(), SPREAD, tmp_path)  # type: ignore[arg-type]
    assert words in caught.value.message
