"""why-not: what is against a combination, and the nearest valid ones, held to a search of everything there is."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild import facts
from envbuild.errors import InputError
from envbuild.matrix import check, load
from envbuild.matrix import nearest as module
from envbuild.matrix.answer import Answer, Want, shown
from envbuild.matrix.asking import gpus, understand
from envbuild.matrix.nearest import judges, nearest
from envbuild.matrix.releases import deepspeed_releases
from envbuild.matrix.space import FIELDS, Space
from envbuild.matrix.verdicts import Verdicts
from envbuild.model import Environment, Finding, Severity

FACTS = facts.load()
MATRIX = load(Path(__file__).parents[2] / "matrix.yaml")
ROWS = tuple(MATRIX.environments.values())

# A world that is small enough to look at all of it, with every kind of contradiction in it.
SMALL: dict[str, list[Any]] = {
    "gpu": [("v100",), ("h100",), ("b200",)],
    "cuda": ["11.8", "12.6", "12.8", "13.0"],
    "torch": [("2.1.2", "cu118"), ("2.7.1", "cu126"), ("2.10.0", "cu128"), ("2.11.0", "cu130")],
    "deepspeed": ["0.11.1", "0.15.3", "0.19.8"],
    "gcc": ["11.4", "14.1"],
    "python": ["3.8", "3.11"],
    "base": ["centos7", "bookworm"],
    "nccl": [None],
    "driver": [None],
}
SAID: dict[str, list[Any]] = {**SMALL, "nccl": ["2.18", "2.26.2"], "driver": ["450.80.02"]}


# Fewer fields with more values: the nearest is not the first that is met.
LONG: dict[str, list[Any]] = {
    **SMALL,
    "gpu": [("v100",), ("a100",), ("rtx3090",), ("rtx4090",), ("h100",), ("b200",), ("rtx5090",)],
    "cuda": ["11.3", "11.7", "11.8", "12.1", "12.4", "12.6", "12.8"],
    "torch": [(v, "cu126") for v in ("2.1.2", "2.2.0", "2.3.1", "2.4.1", "2.5.1", "2.6.0", "2.7.1")],
    "gcc": ["11.4"], "python": ["3.11"], "base": ["bookworm"],
}  # fmt: skip


def small(world: dict[str, list[Any]] = SMALL) -> Space:
    space = Space(FACTS, (), None, "cuda")
    space.__dict__["domain"] = {field: list(values) for field, values in world.items()}
    return space


def broken(row: Environment) -> bool:
    return any(finding.severity is Severity.ERROR for finding in check(row, FACTS))


@functools.cache
def valid(nccl: str | None, driver: str | None) -> tuple[dict[str, Any], ...]:
    """Every combination that breaks no rule, each of them judged as a whole."""
    space = small()
    worlds = itertools.product(*(SMALL[field] for field in FIELDS[:-2]), [nccl], [driver])
    found = (dict(zip(FIELDS, values, strict=True)) for values in worlds)
    return tuple(values for values in found if not broken(space.row(values)))


def by_hand(
    worlds: Iterable[dict[str, Any]],
    wants: dict[str, Want],
    keep: frozenset[str],
    most: int,
    there: dict[str, list[Any]] = SMALL,
) -> set[tuple[tuple[str, Any], ...]]:
    """The best combination for every smallest set of changed fields, found by looking at all valid ones."""

    def places(field: str) -> list[Any]:
        first = [value[0] if field == "torch" else value for value in there[field]]
        return list(dict.fromkeys(first))

    def distance(field: str, value: Any) -> int:
        if field in ("nccl", "driver"):
            return 1
        # The GPUs of this world all differ in their compute capability, the bases in their glibc.
        where = [places(field).index(each[0] if field == "torch" else each) for each in wants[field].values]
        return min(abs(places(field).index(value[0] if field == "torch" else value) - each) for each in where)

    best: dict[frozenset[str], tuple[Any, Any]] = {}
    for values in worlds:
        changed = frozenset(field for field, want in wants.items() if values[field] not in want.values)
        if len(changed) > most or changed & keep or any(values[f] for f in ("nccl", "driver") if f in changed):
            continue
        newest = [-there[field].index(values[field]) for field in FIELDS if field in changed]
        key = (sum(distance(field, values[field]) for field in changed), *newest)
        told = tuple((field, values[field]) for field in FIELDS if field in changed)
        if changed not in best or key < best[changed][0]:
            best[changed] = key, told
    return {told for changed, (_, told) in best.items() if not any(other < changed for other in best)}


def found(answer: Answer) -> set[tuple[tuple[str, Any], ...]]:
    return {tuple((c.field, each.values[c.field]) for c in each.changes) for each in answer.alternatives}


ASKS = st.fixed_dictionaries({}, optional={field: st.sampled_from(SAID[field]) for field in FIELDS}).filter(bool)


@settings(max_examples=60, deadline=None)
@given(said=ASKS, keep=st.frozensets(st.sampled_from(FIELDS), max_size=2), most=st.sampled_from([1, 2, 3, 4]))
def test_nothing_nearer_is_missed_and_nothing_else_is_told(
    said: dict[str, Any], keep: frozenset[str], most: int
) -> None:
    wants = {field: Want(text=shown(field, said[field]), values=(said[field],)) for field in FIELDS if field in said}
    answer = nearest(small(), wants, keep=keep, most=most)
    pairs = itertools.product(*({None, *(wants[f].values if f in wants else ())} for f in ("nccl", "driver")))
    expected = by_hand(itertools.chain.from_iterable(valid(*pair) for pair in pairs), wants, keep, most)
    if expected == {()}:
        assert answer.valid and answer.alternatives == () and not broken(answer.row)
        return
    assert not answer.valid and broken(answer.row)
    assert found(answer) == expected
    counts = [(len(each.changes), each.distance) for each in answer.alternatives]
    assert counts == sorted(counts)
    assert not any(broken(each.row) for each in answer.alternatives)


READ: dict[str, Callable[[Environment], Any]] = {
    "gpu": lambda row: row.gpus,
    "cuda": lambda row: row.cuda and row.cuda.version,
    "torch": lambda row: (row.torch.version, row.torch.build),
    "deepspeed": lambda row: row.deepspeed.version,
    "gcc": lambda row: row.gcc.version,
    "python": lambda row: row.python,
}


class Decree:
    """A rule without reason: it forbids some combinations of a few fields."""

    def __init__(self, random: Random, strict: float, there: dict[str, list[Any]]) -> None:
        self.fields = random.sample(sorted(READ), random.choice([2, 2, 3, 3, 4]))
        worlds = itertools.product(*(there[field] for field in self.fields))
        self.forbidden = {values for values in worlds if random.random() < strict}

    def forbids(self, values: dict[str, Any]) -> bool:
        return tuple(values[field] for field in self.fields) in self.forbidden

    def __call__(self, row: Environment) -> int:
        return int(tuple(READ[field](row) for field in self.fields) in self.forbidden)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), strict=st.sampled_from([0.4, 0.6, 0.8]), number=st.integers(2, 8))
def test_nothing_nearer_is_missed_whatever_the_rules_are(
    seed: int, strict: float, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    there = random.choice([SMALL, LONG])
    decrees = [Decree(random, strict, there) for _ in range(number)]
    monkeypatch.setattr(module, "judges", lambda facts: decrees)
    bad = Finding(rule="X", severity=Severity.ERROR, subject="", message="")
    monkeypatch.setattr(module, "check", lambda row, facts: [bad for decree in decrees if decree(row)])
    said = {field: random.choice(there[field]) for field in READ if random.random() < 0.8} or {"gpu": there["gpu"][0]}
    wants = {field: Want(text="", values=(said[field],)) for field in FIELDS if field in said}
    if random.random() < 0.3:
        # A series.
        wants["torch"] = Want(text="", values=tuple(random.sample(there["torch"], 2)))
    most = random.randint(1, 4)
    worlds = itertools.product(*(there[field] for field in READ))
    all_of_them = ({**dict.fromkeys(FIELDS), **dict(zip(READ, values, strict=True))} for values in worlds)
    expected = by_hand(
        (values for values in all_of_them if not any(decree.forbids(values) for decree in decrees)),
        wants, frozenset(), most, there,
    )  # fmt: skip
    answer = nearest(small(there), wants, most=most)
    if expected == {()}:
        assert answer.valid
        return
    assert found(answer) == expected
    # No other filling of the free fields breaks fewer rules.
    worlds = itertools.product(*(wants[field].values if field in wants else there[field] for field in READ))
    asked = [dict(zip(READ, values, strict=True)) for values in worlds]
    fewest = min(sum(decree.forbids(values) for decree in decrees) for values in asked)
    assert len(answer.findings) == fewest


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_rule_says_of_a_part_what_it_says_of_the_whole(data: st.DataObject) -> None:
    space = Space(FACTS, ROWS, None, data.draw(st.sampled_from(["cuda", "cpu"])))
    rules = judges(FACTS)
    verdicts = Verdicts(space, rules)
    values = {field: data.draw(st.sampled_from(space.domain[field])) for field in FIELDS}
    part = {field: values[field] for field in data.draw(st.sets(st.sampled_from(FIELDS)))}
    row = space.row(values)
    for number, judge in enumerate(rules):
        early, stands_on = verdicts.ask(number, part)
        assert early is None or set(stands_on) <= part.keys()
        assert verdicts.ask(number, values)[0] == judge(row)
        assert early in (None, judge(row)), "what is still open cannot change what was said"


def ask(said: dict[str, str], **given: Any) -> Answer:
    space, wants = understand(FACTS, ROWS, said, **given)
    return nearest(space, wants)


def test_a_v100_and_cuda_13() -> None:
    answer = ask({"gpu": "v100", "cuda": "13.0", "torch": "2.12"})
    assert not answer.valid and answer.row.torch_version == "2.12.1+cu130"
    assert "R09" in {finding.rule for finding in answer.findings}
    assert all(finding.source for finding in answer.findings if finding.severity is Severity.ERROR)
    changes = [{change.field: change.new for change in each.changes} for each in answer.alternatives]
    assert set(changes[0]) == {"gpu"}
    assert changes[1] == {"cuda": "12.9", "torch": "2.10.0+cu128"}, "the last toolkit and the last wheels for Volta"
    assert {"cuda": "12.6", "torch": "2.7.1+cu126"} in changes, "that is a row of the matrix"
    assert all(not broken(each.row) for each in answer.alternatives)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_shipped_row_is_valid_as_it_is(row: Environment) -> None:
    answer = ask({}, start=row)
    assert answer.valid and answer.alternatives == ()
    assert answer.row.torch == row.torch and answer.row.base == row.base and answer.row.pins == row.pins
    assert [f.message for f in answer.findings] == [f.message for f in check(row, FACTS)]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_row_with_another_torch_brings_what_belongs_to_it(row: Environment) -> None:
    torch = "2.13" if row.accelerator == "cpu" else "2.7.1"
    answer = ask({"torch": torch}, start=row)
    known = FACTS.versions[answer.row.torch.version]
    assert answer.row.torch.version.startswith(torch)
    if row.accelerator == "cuda":
        assert answer.row.nccl == known.builds[answer.row.torch.build].nccl
        assert answer.row.torch.torchvision == (known.torchvision.version if known.torchvision else None)
        assert "numpy<2" not in answer.row.pins


def test_what_the_facts_do_not_know_is_said_and_the_search_goes_on() -> None:
    answer = ask({"gpu": "a100", "torch": "2.99"})
    assert answer.unknown == ("torch",) and not answer.valid
    assert answer.alternatives and all(each.changes[0].field == "torch" for each in answer.alternatives)
    assert ask({"cuda": "11.5", "gpu": "a100"}).unknown == ("cuda",)
    assert ask({"deepspeed": "99", "gpu": "a100"}).unknown == ("deepspeed",)
    assert ask({"torch": "2.12+cu118"}).unknown == ("torch",)


def test_rows_are_near_whatever_driver_and_nccl_are_asked_for() -> None:
    said = {"gpu": "v100", "cuda": "13.0", "torch": "2.12", "driver": "590"}
    answer = ask(said)
    torches = {each.row.torch.version: each for each in answer.alternatives}
    assert torches["2.7.1"].row.driver == "590", "the driver was no reason to change it"
    changed = [{change.field for change in each.changes} for each in ask({**said, "nccl": "2.1.1"}).alternatives]
    assert {"gpu", "nccl"} in changed


def test_what_is_not_said_is_free() -> None:
    answer = ask({"gpu": "v100"})
    assert answer.valid
    (row,) = [row for row in ROWS if row.name == "v100-cu126"]
    same = ("torch", "cuda", "deepspeed", "gcc", "python", "base")
    assert all(getattr(answer.row, key) == getattr(row, key) for key in same), "the newest row that fits is taken"


@pytest.mark.parametrize(
    ("said", "field", "values"),
    [
        ({"gpu": "NVIDIA RTX-4090, H100"}, "gpu", (("rtx4090", "h100"),)),
        ({"gpu": "Tesla V100"}, "gpu", (("v100",),)),
        ({"cuda": "cu118"}, "cuda", ("11.8",)),
        ({"cuda": "12.6.3"}, "cuda", ("12.6",)),
        ({"cuda": "13"}, "cuda", ("13.4", "13.3", "13.2")),
        ({"torch": "2.1"}, "torch", (("2.1.2", "cu121"), ("2.1.2", "cu118"), ("2.1.0", "cu121"), ("2.1.0", "cu118"))),
        ({"torch": "2.1.2+cu118"}, "torch", (("2.1.2", "cu118"),)),
        ({"gcc": "11"}, "gcc", ("11.4", "11.2")),
        ({"gcc": "13.2.0"}, "gcc", ("13.2",)),
        ({"gcc": "40"}, "gcc", ("40.1",)),
        ({"python": "3.11.7"}, "python", ("3.11",)),
        ({"deepspeed": "0.13.5"}, "deepspeed", ("0.13.5",)),
        ({"deepspeed": "0.4"}, "deepspeed", ("0.4.0",)),
        ({"glibc": "2.36"}, "base", ("bookworm",)),
        ({"family": "ubuntu"}, "base", ("noble", "jammy")),
        ({"base": "ubuntu:22.04", "family": "ubuntu"}, "base", ("jammy",)),
    ],
)
def test_what_people_type_is_understood(said: dict[str, str], field: str, values: tuple[Any, ...]) -> None:
    assert understand(FACTS, ROWS, said)[1][field].values[: len(values)] == values


@pytest.mark.parametrize(
    ("said", "given", "told"),
    [
        ({}, {}, "why not what"),
        ({"gpu": "v10"}, {}, "did you mean 'v100'"),
        ({"gpu": " , "}, {}, "no GPU is named"),
        ({"torch": "two"}, {}, "no version"),
        ({"torch": "2.1+cu1;rm"}, {}, "no version"),
        ({"cuda": "12.6.3.4.5"}, {}, "no version"),
        ({"gcc": "9999"}, {}, "no version"),
        ({"python": "٣.11"}, {}, "no version"),
        ({"base": "jamy"}, {}, "did you mean 'jammy'"),
        ({"family": "windows"}, {}, "nothing is known of the family"),
        ({"base": "jammy", "family": "debian"}, {}, "is not of the family"),
        ({"glibc": "2.99"}, {}, "no release is known to have glibc"),
        ({"gpu": "v100"}, {"accelerator": "cpu"}, "no meaning with the accelerator cpu"),
        ({"gpu": "v100"}, {"accelerator": "tpu"}, "is not known"),
        ({}, {"start": MATRIX.get("cpu"), "accelerator": "cuda"}, "is for cpu"),
        ({"cuda": "12.6"}, {"start": MATRIX.get("cpu")}, "no meaning"),
    ],
)
def test_what_cannot_be_meant_is_refused(said: dict[str, str], given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        understand(FACTS, ROWS, said, **given)


@settings(max_examples=200, deadline=None)
@given(said=st.dictionaries(st.sampled_from([*FIELDS, "family", "glibc"]), st.text(max_size=12), max_size=4))
def test_whatever_is_typed_there_is_an_answer_or_an_error_in_words(said: dict[str, str]) -> None:
    try:
        space, wants = understand(FACTS, ROWS, said)
    except InputError as error:
        assert error.message
        return
    nearest(space, wants, most=1)


def test_a_gpu_is_found_by_any_of_its_names() -> None:
    assert gpus(FACTS, "a100,A100") == ("a100",)


def test_releases_at_which_something_changes() -> None:
    found = deepspeed_releases(FACTS)
    assert {"0.11.1", "0.15.0", "0.19.7", FACTS.deepspeed.newest.version} <= set(found)
    assert not {"2.1", "2.12", "13.0"} & set(found), "those are torch's and CUDA's"
