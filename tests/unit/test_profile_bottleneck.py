"""The bottleneck: each injected cause is named first, what it is not is said aloud, and no figure means no word."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.profile import summary
from envbuild.profile.bottleneck import RULES, diagnose
from envbuild.profile.document import Measurement
from envbuild.profile.experiments import change_of
from measured import key, measurement

STEPS = 10
RANKS = 64


def cluster(*, step: float, reduce: float, level: float, uneven: float, wait: float = 0.02) -> Measurement:
    """64 GPUs: steps, waiting for data, one all-reduce a step, and a utilisation that differs by rank."""
    ranks, series = [], []
    for number in range(RANKS):
        columns = {
            "number": list(range(STEPS)), "seconds": [step] * STEPS,
            "parts": {"data_wait": [wait] * STEPS, "forward": [0.1] * STEPS, "backward": [step - 0.15] * STEPS},
        }  # fmt: skip
        size = 500_000_000
        collective = {
            "op": "all_reduce", "count": STEPS * 4, "bytes": size * STEPS * 4, "seconds": reduce * STEPS * 4,
            "time": "measured", "bus_bandwidth": 2 * size / reduce, "bandwidth": "computed",
        }  # fmt: skip
        ranks.append({"rank": number, "steps": columns, "collectives": [collective]})
        values = [level + uneven * (1 if number % 2 else -1)] * 3
        series.append({"kind": "gpu_percent", "rank": number, "values": values})
    launch = {"ranks": ranks, "tokens_per_step": 1_000_000, "samples": {"at": [0.0, 1.0, 2.0], "series": series}}
    return measurement(launch, key=key(world_size=RANKS, nodes=8, accelerator="cuda"))


def test_every_proposed_command_is_one_that_profile_takes() -> None:
    import shlex

    import typer

    from envbuild.cli import application

    group: Any = typer.main.get_command(application(["profile"]))
    before, after = (
        cluster(step=0.4, reduce=0.018, level=92, uneven=1),
        cluster(step=0.6, reduce=0.045, level=65, uneven=9),
    )
    cases = [diagnose(measurement(CASES[rule]), target="IMAGE") for rule in CASES]
    cases.append(diagnose(after, before, target="IMAGE"))
    commands = {each.command: each for found in cases for one in found.found for each in one.proposals}
    assert len(commands) > 10
    for command, proposal in commands.items():
        program, name, *arguments = shlex.split(command)
        assert (program, name) == ("envbuild", "profile")
        context = group.commands["profile"].make_context("profile", arguments)
        assert context.params["image"] == "IMAGE" and not context.args
        assert change_of(proposal.options) is not None, "bottleneck --experiment has to know what it changes"


def test_the_reported_case_is_the_network_or_the_partition_and_not_the_data() -> None:
    """Tokens a second down a third, utilisation 92 to 65 %, all-reduce 18 to 45 ms, data wait the same, variance up."""
    before = cluster(step=0.40, reduce=0.018, level=92, uneven=1)
    after = cluster(step=0.60, reduce=0.045, level=65, uneven=12)
    found = diagnose(after, before, target="envbuild/h100:validated")
    first = found.found[0]
    assert first.rule == "communication" and "partition" in first.title and first.confidence == "high"
    evidence = "\n".join(first.evidence)
    assert "all_reduce takes 45.0 ms each, in the baseline 18.0 ms" in evidence
    assert "from 92 % to 65 %" in evidence and "varies more over the ranks" in evidence
    assert "1,666,667 tokens a second, in the baseline 2,500,000" in evidence
    assert first.share == pytest.approx(4 * 0.027 / 0.6)
    excluded = {each.rule: each.evidence for each in found.cleared}
    assert "unchanged" in excluded["data"], "data loading is excluded, with its figure"
    stages = [command for command in first.commands if "stage=" in command]
    assert stages == [
        "envbuild profile envbuild/h100:validated --executor slurm --nodes 8 --set "
        f"zero_optimization.stage={stage} --pass comms --json"
        for stage in (2, 3)
    ]


def one(ranks: int = 2, step: float = 1.0, **more: Any) -> dict[str, Any]:
    steps = {"number": list(range(STEPS)), "seconds": [step] * STEPS, **more}
    return {"ranks": [{"rank": number, "steps": steps} for number in range(ranks)]}


def straggling() -> dict[str, Any]:
    """Every rank takes as long: three of them wait in collectives for the other, and once for somebody else."""
    launch = one(ranks=4, parts={"forward": [0.5] * STEPS, "backward": [0.5] * STEPS})
    for rank in launch["ranks"]:
        waits = 0.05 if rank["rank"] == 2 else 0.45
        rank["steps"] = {**rank["steps"], "inside": {"communication": [waits] * STEPS}}
    return launch


def pair(*waits: float) -> dict[str, Any]:
    """Two ranks that wait so long in collectives, in a pass that waits for each."""
    launch = {**one(parts={"data_wait": [0.0] * STEPS}), "pass": "comms"}
    for rank, wait in zip(launch["ranks"], waits, strict=True):
        rank["steps"] = {**rank["steps"], "inside": {"communication": [wait] * STEPS}}
    return launch


def test_waiting_for_a_slow_rank_is_no_slow_network() -> None:
    found = diagnose(measurement(pair(0.1, 0.9)))
    assert [each.rule for each in found.found] == ["straggler"] and "rank 0" in found.found[0].title
    assert found.found[0].share == pytest.approx(0.8)
    both = diagnose(measurement(pair(0.6, 0.6)))
    assert [each.rule for each in both.found] == ["communication"]


def test_what_is_sure_comes_before_what_is_large() -> None:
    saving = one(parts={"data_wait": [0.0] * STEPS, "checkpoint": [0.16] * STEPS, "forward": [0.5] * STEPS})
    found = diagnose(measurement(saving, pair(0.5, 0.5))).found
    assert [(each.rule, each.confidence) for each in found] == [("checkpoint", "high"), ("communication", "low")]


def test_figures_of_a_pass_that_disturbs_are_shares_of_its_own_step() -> None:
    timing = {**one(step=0.5, parts={"data_wait": [0.0] * STEPS}), "pass": "timing"}
    found = diagnose(measurement(timing, pair(0.3, 0.3)))
    assert {each.rule: each.evidence for each in found.cleared}["communication"].startswith("collectives take 30%")


def on_nodes(works: list[list[float]]) -> Measurement:
    """Two or more nodes, each with the seconds that its ranks work by themselves of a step of one second."""
    ranks = []
    for node, each in enumerate(works):
        for work in each:
            steps = {"number": list(range(STEPS)), "seconds": [1.0] * STEPS,
                     "inside": {"communication": [1.0 - work] * STEPS}}  # fmt: skip
            ranks.append({"rank": len(ranks), "node": node, "steps": steps})
    launch = {"pass": "comms", "ranks": ranks, "nodes": [{"name": f"n{place}"} for place in range(len(works))]}
    return measurement(launch, key=key(world_size=len(ranks), nodes=len(works)))


@pytest.mark.parametrize(
    ("works", "title"),
    [
        ([[0.3, 0.3], [0.6, 0.58]], "node n1 is slower than the others"),
        ([[0.3, 0.3], [0.3, 0.6]], "rank 3 (node n1) is slower than the others"),
        ([[0.3, 0.3, 0.5], [0.6, 0.6, 0.6], [0.3, 0.3, 0.3]], "rank 3 (node n1) is slower than the others"),
        ([[0.3], [0.6]], "rank 1 (node n1) is slower than the others"),
    ],
)
def test_a_node_is_slow_where_all_of_its_ranks_are_and_no_other(works: list[list[float]], title: str) -> None:
    (found,) = [one for one in diagnose(on_nodes(works), target="IMAGE").found if one.rule == "straggler"]
    assert found.title == title and (title.startswith("node")) == ("--exclude=n1" in found.experiment)
    each = len(works[0])
    asked = f" --ranks-per-node {each}" if each > 1 else ""
    assert found.commands == (
        f"envbuild profile IMAGE --executor slurm --nodes {len(works)}{asked} --pass comms --json",
    )


def test_one_hiccup_makes_no_straggler_but_is_counted_in_the_mean() -> None:
    launch = one(parts={"data_wait": [0.0] * STEPS, "forward": [0.4] * STEPS, "backward": [0.4] * STEPS})
    steps = launch["ranks"][1]["steps"]
    late = {**steps["parts"], "forward": [9.0, *[0.4] * (STEPS - 1)]}
    launch["ranks"][1]["steps"] = {**steps, "seconds": [9.6, *[1.0] * (STEPS - 1)], "parts": late}
    assert not diagnose(measurement(launch)).found


def test_a_rank_that_is_slow_in_one_launch_of_ten_is_no_straggler() -> None:
    launches = []
    for number in range(10):
        launch = one(parts={"data_wait": [0.0] * STEPS, "forward": [0.4] * STEPS, "backward": [0.4] * STEPS})
        if number == 3:
            steps = launch["ranks"][1]["steps"]
            late = {**steps["parts"], "forward": [0.9] * STEPS}
            launch["ranks"][1]["steps"] = {**steps, "seconds": [1.5] * STEPS, "parts": late}
        launches.append(launch)
    assert not diagnose(measurement(*launches)).found


def test_more_and_smaller_collectives_than_in_the_baseline() -> None:
    sides = []
    for count in (1, 8):
        launch = pair(0.1 * count**0.5, 0.1 * count**0.5)
        for rank in launch["ranks"]:
            calls = {
                "op": "reduce_scatter_tensor",
                "count": count * STEPS,
                "bytes": 8000,
                "seconds": 1.0,
                "time": "measured",
            }
            rank["collectives"] = [calls]
        sides.append(measurement(launch))
    first = diagnose(sides[1], sides[0]).found[0]
    assert first.rule == "communication"
    assert "reduce_scatter_tensor is called 8 times a step, in the baseline 1: smaller buckets?" in first.evidence
    assert not first.commands and any("reduce_bucket_size=500000000 in the ds_config" in each for each in first.changes)


def test_passes_are_never_added_up_and_the_times_are_those_of_the_pass_that_took_them() -> None:
    sides = []
    for each in (0.001, 0.002):
        launches = []
        for name, seconds in (("timing", None), ("comms", each * 4 * STEPS)):
            launch = {**one(parts={"data_wait": [0.0] * STEPS}), "pass": name}
            for rank in launch["ranks"]:
                row = {"op": "all_reduce", "count": 4 * STEPS, "bytes": 400, "seconds": seconds}
                rank["collectives"] = [row | ({"time": "measured"} if seconds else {})]
            launches.append(launch)
        sides.append(measurement(*launches))
    before, after = sides
    assert [(each.op, each.pass_, each.sums.count, each.steps) for each in summary.traffic(after)] == [
        ("all_reduce", name, 2 * 4 * STEPS, 2 * STEPS) for name in ("comms", "timing")
    ]
    (found,) = diagnose(after, before).found
    assert found.evidence == ("all_reduce takes 2.0 ms each, in the baseline 1.0 ms",)
    assert found.share == pytest.approx(4 * 0.001)


def adam(
    used: float, *, cpus: int = 8, sharers: int = 2, share: float = 0.5, busy: float = 50.0, threads: int = 1
) -> dict[str, Any]:
    """The optimizer's arithmetic has a share of the step and uses so many CPUs; its ranks share the machine's."""
    launch = one(
        parts={"optimizer": [share + 0.1] * STEPS, "data_wait": [0.0] * STEPS},
        inside={"optimizer_kernel": [share] * STEPS}, cpu={"optimizer_kernel": [share * used] * STEPS},
    )  # fmt: skip
    for rank in launch["ranks"]:
        rank["cores"] = {"threads": threads, "asked": "1", "cpus": cpus, "sharers": sharers}
    launch["structure"] = {"devices": {"optimizer": "cpu", "optimizer_class": "DeepSpeedCPUAdam"}}
    launch["samples"] = {"at": [0.0], "series": [{"kind": "cpu_percent", "values": [busy]}]}
    return launch


def test_an_adam_of_one_thread_is_named_where_its_rank_may_use_more() -> None:
    found = diagnose(measurement(adam(1.02)), target="IMAGE").found[0]
    assert (found.rule, found.title, found.confidence) == ("optimizer", "CPU-Adam runs on one thread", "high")
    # Four CPUs take a quarter of the time at best.
    assert found.share == pytest.approx(0.5 * 0.75)
    assert found.commands == ("envbuild profile IMAGE --env OMP_NUM_THREADS=4 --json",)
    evidence = "\n".join(found.evidence)
    assert "rank 0 uses 1.0 CPUs meanwhile, and may use 4" in evidence
    assert "OpenMP has one thread in it; OMP_NUM_THREADS is 1" in evidence
    assert "--bind_cores_to_rank" in found.experiment and "torchrun sets it to 1" in found.why
    crowded = diagnose(measurement(adam(1.0, busy=97.0))).found[0]
    assert crowded.title == found.title and crowded.confidence == "medium" and "others use them" in crowded.evidence[-1]


@pytest.mark.parametrize(
    ("launch", "found"),
    [
        (adam(3.9, threads=4), ["the optimizer's step on the CPU is slow"]),
        (adam(1.0, threads=4), ["the optimizer's step on the CPU is slow"]),
        (adam(1.0, cpus=2), ["the optimizer's step on the CPU is slow"]),
        (adam(1.0, cpus=8, sharers=8), ["the optimizer's step on the CPU is slow"]),
        (adam(1.0, share=0.1), []),
    ],
    ids=["many threads", "idle threads", "a CPU for each rank", "as many ranks as CPUs", "a small share"],
)
def test_one_thread_is_no_cause_where_there_is_no_more_to_use(launch: dict[str, Any], found: list[str]) -> None:
    assert [each.title for each in diagnose(measurement(launch)).found] == found


def swapping(wait: float, *, kernel: float = 1.0, optimizer: float = 0.7) -> dict[str, Any]:
    """A step of a second waits for a disk that gives 50 MB/s; the kernel has seen a share of what was asked."""
    size = int(25e6 * wait)
    return one(
        inside={"swap": [wait] * STEPS}, parts={"optimizer": [optimizer] * STEPS, "data_wait": [0.0] * STEPS},
        disk={
            "swap_read": [size] * STEPS, "swap_write": [size] * STEPS,
            "process_read": [int(size * kernel)] * STEPS, "process_write": [int(size * kernel)] * STEPS,
        },
    )  # fmt: skip


def test_a_disk_that_is_waited_for_comes_first_with_its_bandwidth_and_two_witnesses() -> None:
    found = diagnose(measurement(swapping(0.6))).found
    # What is left of the optimizer's part without the disk is a tenth of the step.
    assert [(each.rule, each.confidence) for each in found] == [("swap", "high")]
    assert found[0].share == pytest.approx(0.6)
    assert found[0].evidence[:3] == (
        "the training waits 60% of the step for the swapper (600 ms)",
        "a rank reads 14.3 MiB and writes 14.3 MiB a step: 50.0 MB/s of the time that it waits",
        "the kernel accounts 14.3 MiB read and 14.3 MiB written a step to a rank's process",
    )
    (cached,) = diagnose(measurement(swapping(0.6, kernel=0.1))).found
    assert cached.confidence == "medium" and "no disk that was waited for" in cached.evidence[2]


def test_a_disk_that_keeps_up_is_cleared_with_its_bandwidth() -> None:
    found = diagnose(measurement(swapping(0.05, optimizer=0.1)))
    assert not found.found
    (cleared,) = (each for each in found.cleared if each.rule == "swap")
    assert cleared.evidence.startswith("waiting for the offload's disk takes 5.0% of the step; a rank reads 1.2 MiB")
    nothing = diagnose(measurement(one(inside={"swap": [0.0] * STEPS})))
    assert {each.rule: each.evidence for each in nothing.cleared}["swap"].endswith("takes 0.0% of the step")


FULL = {"gpu_reserved_peak_bytes": 79 * 2**30, "gpu_total_bytes": 80 * 2**30, "allocation_retries": 3}
CASES: dict[str, dict[str, Any]] = {
    "data": one(parts={"data_wait": [0.4] * STEPS, "forward": [0.3] * STEPS, "backward": [0.3] * STEPS}),
    "straggler": straggling(),
    "swap": one(inside={"swap": [0.6] * STEPS}, parts={"optimizer": [0.1] * STEPS}),
    "optimizer": one(parts={"optimizer": [0.5] * STEPS, "forward": [0.2] * STEPS}),
    "threads": adam(1.0),
    "checkpoint": one(parts={"checkpoint": [0.0] * 8 + [2.0] * 2, "forward": [0.4] * STEPS}),
    "copies": one(inside={"h2d": [0.3] * STEPS, "d2h": [0.1] * STEPS}, moved={"h2d": [3 * 10**9] * STEPS}),
    "communication": one(inside={"communication": [0.5] * STEPS, "exposed_communication": [0.45] * STEPS}),
    "memory": {"ranks": [{"rank": 0, "steps": {"number": [0], "seconds": [1.0]}, "memory": FULL}]},
    "compute": one(inside={"compute": [0.95] * STEPS}),
}


@pytest.mark.parametrize("rule", CASES)
def test_each_cause_is_named_first_with_an_experiment(rule: str) -> None:
    found = diagnose(measurement(CASES[rule]), target="envbuild/cpu:validated").found
    assert found[0].rule == ("optimizer" if rule == "threads" else rule), [each.rule for each in found]
    assert found[0].evidence and all(each.startswith("envbuild profile envbuild/cpu:") for each in found[0].commands)
    assert found[0].commands and not found[0].changes
    if rule == "straggler":
        assert "rank 2" in found[0].title
    if rule == "copies":
        assert "h2d moves 10.0 GB/s" in found[0].evidence


def test_other_transports_in_another_image_come_first() -> None:
    launches = [
        {**cluster_launch, "communication": {"backend": "nccl", "transports": [transport]}}
        for transport in ("NET/IB", "NET/Socket")
        for cluster_launch in [one(parts={"data_wait": [0.4] * STEPS})]
    ]
    before, after = measurement(launches[0]), measurement(launches[1], side="candidate")
    first = diagnose(after, before).found[0]
    assert first.rule == "transport" and "in this image" in first.title
    assert first.evidence == ("gone: NET/IB", "new: NET/Socket")


def test_without_figures_every_rule_abstains_and_says_what_is_missing() -> None:
    found = diagnose(measurement({"ranks": [{"rank": 0, "steps": {"number": [0], "seconds": [1.0]}}]}))
    assert not found.found and not found.cleared
    assert {each.rule for each in found.abstained} == {name for name, _ in RULES} | {"compute"}
    assert all(each.missing for each in found.abstained)


def test_a_healthy_training_has_no_finding() -> None:
    parts = {"data_wait": [0.01] * STEPS, "forward": [0.4] * STEPS, "backward": [0.45] * STEPS}
    found = diagnose(measurement(one(parts=parts | {"optimizer": [0.1] * STEPS, "checkpoint": [0.0] * STEPS})))
    assert not found.found and {"data", "optimizer", "checkpoint", "straggler"} <= {e.rule for e in found.cleared}


@pytest.mark.parametrize(
    ("config", "changed"),
    [
        ({"train_micro_batch_size_per_gpu": 9}, "train_micro_batch_size_per_gpu=4 in the ds_config"),
        (
            {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}},
            "zero_optimization.offload_param.device=cpu in the ds_config",
        ),
        ({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}, None),
    ],
)
def test_a_full_device_is_given_half_of_its_micro_batch_or_less_to_hold(
    config: dict[str, Any], changed: str | None
) -> None:
    (found,) = [one for one in diagnose(measurement(CASES["memory"], config=config)).found if one.rule == "memory"]
    *first, last = found.changes
    assert first == ([changed] if changed else []) and "expandable_segments" in last
    assert ("Halve" in found.experiment) == (config["train_micro_batch_size_per_gpu"] > 1)


def test_what_is_proposed_is_more_than_there_is() -> None:
    found = diagnose(measurement(CASES["optimizer"], config={"gradient_accumulation_steps": 16})).found[0]
    assert "gradient_accumulation_steps=64 in the ds_config" in found.changes
