"""What checking a large matrix costs: reading it and holding every row against every rule, next to parsing its YAML."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from figures import Ratio

from envbuild import facts
from envbuild.matrix import check
from envbuild.matrix.load import parse

ROOT = Path(__file__).resolve().parent.parent
FEW, MANY = 100, 1000
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TURNS = 3


def rules(rounds: int) -> list[Ratio]:
    """Two measures: many rows against the parsing of their YAML, and against few rows, each by the same number."""
    known = facts.load()
    many, few = synthetic(MANY), synthetic(FEW)

    def whole(text: str) -> int:
        matrix = parse(text.encode(), "bench.yaml")
        return sum(len(check(env, known, matrix)) for env in matrix.environments.values())

    whole(few)
    said = whole(many)
    matrix = parse(many.encode(), "bench.yaml")
    ours, small, yaml_time, load_time, check_time = [], [], [], [], []
    for _ in range(rounds):
        ours.append(_seconds(lambda: whole(many)))
        # As many rows as in the large one, in small files: what differs is only that they are not in one.
        small.append(_seconds(lambda: [whole(few) for _ in range(MANY // FEW)]))
        yaml_time.append(_seconds(lambda: yaml.load(many, Loader=_LOADER)))
        load_time.append(_seconds(lambda: parse(many.encode(), "bench.yaml")))
        check_time.append(_seconds(lambda: [check(env, known, matrix) for env in matrix.environments.values()]))
    ratio = statistics.median(check_time) / statistics.median(load_time)
    return [
        Ratio(
            name=f"check of {MANY:,} rows",
            ours=tuple(ours),
            reference=tuple(yaml_time),
            against="parsing their YAML with PyYAML's CSafeLoader and nothing else",
            limit=3.0,
            note=f"Reading and all rules, {said:,} findings; the rules alone take {ratio:.2f} of the reading.",
        ),
        Ratio(
            name=f"{MANY:,} rows in one file",
            ours=tuple(ours),
            reference=tuple(small),
            against=f"the same number of rows in files of {FEW}: linear growth is 1",
            limit=1.3,
        ),
    ]


def synthetic(count: int) -> str:
    """A matrix of that many rows, made from the shipped ones; every fourth breaks some rules."""
    document = yaml.load((ROOT / "matrix.yaml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    shipped = document["environments"]
    whole = [row for row in shipped.values() if "extends" not in row]
    rows: dict[str, Any] = {}
    for number in range(count):
        row = {**whole[number % len(whole)], "summary": f"Synthetic row {number}"}
        if number % 4 == 0:
            row |= {"gcc": {"version": "99.1", "package": "gcc-99"}, "python": "3.99"}
        rows[f"row-{number}"] = row
    document["environments"] = rows
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, width=120)


class _Plain(yaml.SafeDumper):
    """Without aliases: rows that share a part are written out, as people write them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _seconds(work: Callable[[], object]) -> float:
    """The median of some runs; what earlier ones left behind is collected before, not meanwhile."""
    values = []
    for _ in range(_TURNS):
        gc.collect()
        began = time.process_time()
        work()
        values.append(time.process_time() - began)
    return statistics.median(values)
