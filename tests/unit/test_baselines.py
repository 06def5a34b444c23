"""Baselines in a folder that a team keeps: which one is whose, what lies beside them, and two who write at once."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from envbuild import store
from envbuild.cli import measures
from envbuild.errors import EnvbuildError, InputError
from envbuild.profile import baselines, files
from envbuild.profile.comparing import Asked, compare
from measured import key, launch, measurement

NOW = datetime.datetime(2026, 3, 4, tzinfo=datetime.timezone.utc)
DAY = datetime.timedelta(days=1)
PAGE, GIB = 4096, 1 << 30


def measured(side: str = "base", **more: Any) -> Any:
    return measurement(launch([1.0] * 5), side=side, key=key(side, **more))


def of(memory: int, cpus: int = 8, **more: Any) -> Any:
    return measured(hardware={"cpu": "EPYC", "cpus": cpus, "memory_bytes": memory}, **more)


def test_the_successor_of_a_baseline_may_come_from_another_probe(tmp_path: Path) -> None:
    """Each envbuild has another one; its name and its history go on."""
    path = baselines.write(tmp_path, baselines.promoted(None, measured(), reason="first", now=NOW))
    update = measured("candidate", probe="2")
    found = baselines.fitting(tmp_path, update.key)
    assert found is not None and found.path == path
    made = baselines.promoted(found.baseline, update, reason="the next envbuild", now=NOW + DAY)
    assert made.name == path.stem and [each.reason for each in made.history] == ["first", "the next envbuild"]
    # What two probes have measured is no comparison until somebody says so.
    assert compare(measured(), update, Asked()).verdict == "incomparable"
    with pytest.raises(InputError, match=r"no successor of 'x': torch: 2.13.0 -> 2.14.0|accelerator"):
        baselines.promoted(made.model_copy(update={"name": "x"}), measured(accelerator="cuda"), reason="r", now=NOW)


def test_a_baseline_is_found_behind_another_kernel_and_under_the_name_of_an_older_version(tmp_path: Path) -> None:
    kept = baselines.promoted(None, of(16 * GIB), reason="first", now=NOW).model_copy(
        update={"name": "cpu-tiny-2x-old"}
    )
    path = baselines.write(tmp_path, kept)
    for memory in (16 * GIB, 16 * GIB - 5 * PAGE, int(16 * GIB * 0.985)):
        found = baselines.fitting(tmp_path, of(memory).key)
        assert found is not None and found.path == path, memory
    assert baselines.promoted(kept, of(16 * GIB - PAGE), reason="again", now=NOW).name == "cpu-tiny-2x-old"
    for other in (of(32 * GIB), of(16 * GIB, cpus=16), of(16 * GIB, model="7b"), of(16 * GIB, nodes=2)):
        assert baselines.fitting(tmp_path, other.key) is None
    assert baselines.fitting(tmp_path, measured().key) is None, "what nobody knows is no memory of that size"
    # Of two that fit the nearest one.
    nearer = baselines.promoted(None, of(int(16 * GIB * 0.985)), reason="x", now=NOW)
    baselines.write(tmp_path, nearer)
    found = baselines.fitting(tmp_path, of(int(16 * GIB * 0.986)).key)
    assert found is not None and found.baseline.name == nearer.name


def test_machines_with_one_name_are_one_machine() -> None:
    """Or the baseline of one would be written over that of the other."""
    named: dict[str, list[Any]] = {}
    for step in range(400):
        one = of(int(8 * GIB * 1.003**step)).key
        named.setdefault(baselines.name_of(one), []).append(one)
    assert len(named) > 50
    assert all(baselines.fits(one, other) for those in named.values() for one in those for other in those)


def beside(folder: Path) -> dict[str, Path]:
    """What else may lie in the folder."""
    odd = {name: folder / f"{name}.json" for name in ("folder", "fifo", "foreign", "broken", "nowhere", "measurement")}
    odd["folder"].mkdir()
    os.mkfifo(odd["fifo"])
    odd["foreign"].write_text('{"name": "a-package", "version": "1.0.0"}')
    odd["broken"].write_text("<<<<<<< HEAD\n{}")
    odd["nowhere"].symlink_to(folder / "gone")
    store.write_json(odd["measurement"], files.document(measured()))
    return odd


def test_what_is_no_baseline_does_not_hide_the_others(tmp_path: Path) -> None:
    path = baselines.write(tmp_path, baselines.promoted(None, measured(), reason="first", now=NOW))
    odd = beside(tmp_path)
    shelf = baselines.every(tmp_path)
    assert [each.path for each in shelf.stored] == [path]
    assert {each.path for each in shelf.broken} == set(odd.values())
    assert all(str(each.path) in each.error.message for each in shelf.broken)
    assert baselines.find(tmp_path, "cpu-tiny").path == path
    found = baselines.fitting(tmp_path, measured("candidate").key)
    assert found is not None and found.path == path
    # The one that is meant is an error.
    for name, said in (("broken", "not valid JSON"), ("fif", "is no file"), ("foreign", "not a baseline: history")):
        with pytest.raises(InputError, match=said):
            baselines.find(tmp_path, name)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(InputError, match=r"cpu-tiny-2x-\w+\.json: not valid JSON"):
        baselines.fitting(tmp_path, measured("candidate").key)
    baselines.write(tmp_path, baselines.promoted(None, of(GIB), reason="x", now=NOW), over=path)
    with pytest.raises(InputError, match="of another key than its name says"):
        baselines.fitting(tmp_path, measured("candidate").key)


@pytest.mark.parametrize("first", [True, False], ids=["add", "promote"])
def test_of_two_at_once_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool) -> None:
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path / "home"))
    folder, m = tmp_path / "baselines", tmp_path / "m.json"
    store.write_json(m, files.document(measured("candidate")))
    if not first:
        baselines.write(folder, baselines.promoted(None, measured(), reason="first", now=NOW))
    meeting, real = threading.Barrier(2), baselines.fitting

    def fitting(*wanted: Any) -> Any:
        found = real(*wanted)
        # Both have read before either writes, unless one of them has to wait.
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)
        return found

    monkeypatch.setattr(baselines, "fitting", fitting)
    refused: list[str] = []

    def keep(reason: str) -> None:
        try:
            measures._keep(m, reason, folder, first=first, dry_run=False, json=False)
        except EnvbuildError as error:
            refused.append(error.message)

    threads = [threading.Thread(target=keep, args=(reason,)) for reason in ("one", "two")]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    (path,) = folder.iterdir()
    reasons = {each.reason for each in baselines.read(path).baseline.history}
    if first:
        assert len(reasons) == 1 and len(refused) == 1 and "there is a baseline of this key" in refused[0]
    else:
        assert reasons == {"first", "one", "two"} and not refused


def test_a_plan_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path / "home"))
    store.write_json(tmp_path / "m.json", files.document(measured()))
    measures._keep(tmp_path / "m.json", "r", tmp_path / "b", first=True, dry_run=True, json=True)
    assert [each.name for each in tmp_path.iterdir()] == ["m.json"]


def test_a_measurement_finds_its_baseline_for_the_report(tmp_path: Path) -> None:
    from envbuild.report.history import Given, history

    kept = baselines.promoted(None, of(16 * GIB), reason="first", now=NOW).model_copy(update={"name": "old-name"})
    found = history([Given(name="new.json", measurement=of(16 * GIB - PAGE, probe="2"))], [kept])
    (table,) = found.tables
    assert table.caption == "old-name" and [row[1] for row in table.rows] == ["promoted", "measured"]


def test_a_baseline_that_was_kept_before_knows_no_timeout(tmp_path: Path) -> None:
    body = files.document(measurement(launch([1.0]), origin={"kind": "probe", "made": {"image": "a:1"}}))
    assert "timeout" not in json.dumps(body)
    made = files.measurement(body, "m").origin.made
    assert made is not None and made.timeout is None
