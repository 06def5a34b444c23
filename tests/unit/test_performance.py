"""No regression against a baseline before `validated`: every answer, and every way to that name.

Engine and launches are stand-ins; what judges, what is written, what is signed and what is named is the product's own.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild import evidence
from envbuild.engines import EngineInfo, ImageInfo
from envbuild.errors import EnvbuildError, GateError
from envbuild.evidence import keys
from envbuild.judge.suite import suite_hash
from envbuild.matrix import MatrixError
from envbuild.model import ImageIdentity, Level, Severity
from envbuild.pipeline import build as building
from envbuild.pipeline import check, diffing, performance, profiling, pull, push, report, sets, versus
from envbuild.pipeline.build import BuildOptions, build, promote, smoke
from envbuild.pipeline.names import names
from envbuild.pipeline.objections import Subject
from envbuild.pipeline.prepare import Target, errors, prepare
from envbuild.pipeline.proof import Wish, claims
from envbuild.pipeline.sides import side
from envbuild.pipeline.verify import Verified, answer, lines
from envbuild.pipeline.wanted import Wanted
from envbuild.pipeline.workbench import Workbench
from envbuild.plan import LABEL_ENV, LABEL_TARGET
from envbuild.profile import baselines, files
from envbuild.profile.document import Measurement, Parity
from measured import launch, measurement

REPOSITORY = Path(__file__).parents[2]
NOW = datetime.datetime(2026, 11, 1, tzinfo=datetime.timezone.utc)
OLD, NEW = "a" * 64, "b" * 64
# Median steps of ten launches of either side, as a quiet host gives them, and a loud one.
QUIET = [1.0, 1.004, 0.998, 1.002, 0.997, 1.003, 0.999, 1.001, 1.0, 0.996]
LOUD = [0.7, 1.5, 0.9, 1.6, 0.6, 1.3, 0.8, 1.7, 1.1, 0.5]


class FakeEngine:
    """Images by id, ids by name."""

    local, kind, endpoint, gpu_obstacle = True, "docker", "unix:///fake", ""

    def __init__(self) -> None:
        self.ids: dict[str, ImageInfo] = {}
        self.names: dict[str, str] = {}

    def add(self, letter: str, target: str, *tags: str) -> ImageInfo:
        layer = hashlib.sha256(letter.encode()).hexdigest()
        info = ImageInfo(
            id=f"sha256:{letter * 64}", diff_ids=(f"sha256:{layer}",), env=(), architecture="amd64", os="linux", size=1,
            labels=((LABEL_ENV, "cpu"), (LABEL_TARGET, target)), created="", repo_tags=tags, repo_digests=(),
        )  # fmt: skip
        self.ids[info.id] = info
        self.names.update(dict.fromkeys(tags, info.id))
        return info

    def info(self) -> EngineInfo:
        return EngineInfo(
            kind="docker", version="", endpoint=self.endpoint, storage_driver="", cgroup="", cpus=4,
            memory_bytes=16 << 30, runtimes=(),
        )  # fmt: skip

    def image(self, ref: str) -> ImageInfo | None:
        return self.ids.get(self.names.get(ref, ref))

    def images(self, reference: str) -> tuple[ImageInfo, ...]:
        return ()

    def every_image(self) -> tuple[ImageInfo, ...]:
        return tuple(self.ids.values())

    def tag(self, ref: str, new: str) -> None:
        self.names[new] = ref

    def untag(self, ref: str) -> None:
        del self.names[ref]

    def containers(self, label: str) -> tuple[()]:
        return ()


class Bench(Workbench):
    """The row `cpu` with its requirement, an older image that is the baseline's, and a new one that is proven."""

    fake: FakeEngine
    target: Target
    old: ImageInfo
    new: ImageInfo
    launched: list[str]
    wishes: list[Any]
    # Of the new image: how its steps compare with the old one's, and what its key says otherwise.
    factors: list[float]
    key: dict[str, Any]

    @property
    def moving(self) -> str | None:
        return self.fake.names.get("envbuild/cpu:validated")


def measured(bench: Bench, info: ImageInfo, seconds: float, **key: Any) -> Measurement:
    subject = SimpleNamespace(decision=SimpleNamespace(gpus=(), driver=None))
    hardware = profiling.hardware_of(bench, subject, None).model_dump(mode="json")  # type: ignore[arg-type]
    made = {"image": "envbuild/cpu:old", "ds_config": {"train_micro_batch_size_per_gpu": 2}}
    more = {"image": info.id, "hardware": hardware, **key}
    whole = measurement(launch([seconds] * 8, warmup=1, seed=1), origin={"kind": "probe", "made": made})
    return whole.model_copy(update={"key": type(whole.key).model_validate({**whole.key.model_dump(), **more})})


def add_baseline(bench: Bench, found: Measurement, reason: str = "first of this machine") -> baselines.Stored:
    known = baselines.fitting(performance.folder_of(bench), found.key)
    made = baselines.promoted(known.baseline if known else None, found, reason=reason, now=NOW)
    return baselines.read(baselines.write(performance.folder_of(bench), made))


def proved(bench: Bench, info: ImageInfo) -> None:
    env = bench.target.env
    record = evidence.Evidence(
        schema="envbuild.evidence/1", environment="cpu", target_id=None, level=Level.CPU, suite=suite_hash(),
        envbuild="0", platform="linux/amd64", size_bytes=1, base={}, claims=claims(env), content={}, portability={},
        smoke={}, findings=(), started=NOW, finished=NOW, seconds={},
        image=evidence.Identity(config_digest=info.id, diff_ids=info.diff_ids),
        host=evidence.Host(system="s", machine="m", cpu="c", cpus=1, memory_bytes=1, engine="e"),
    )  # fmt: skip
    evidence.save(record, info.id, key=bench.signing_key)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> evidence.SigningKey:
    path = tmp_path_factory.mktemp("key") / "own.pem"
    keys.make(path)
    return keys.load_signing(path)


def project(tmp_path: Path, asked: str = "performance: {baseline: required}") -> Path:
    root = tmp_path / "project"
    (root / "images" / "cpu").mkdir(parents=True, exist_ok=True)
    shutil.copy(REPOSITORY / "images" / "cpu" / "lock.json", root / "images" / "cpu")
    text = (REPOSITORY / "matrix.yaml").read_text()
    assert text.count("    requires: cpu\n") == 1
    (root / "matrix.yaml").write_text(text.replace("    requires: cpu\n", f"    requires: cpu\n    {asked}\n"))
    return root


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: evidence.SigningKey) -> Bench:
    made = Bench(project_folder=project(tmp_path), environ={"HOME": str(tmp_path)})
    made.fake = FakeEngine()
    made.__dict__ |= {"engine": made.fake, "signing_key": key, "trusted_keys": (key.public,)}
    made.target = prepare(made, "cpu")
    made.old = made.fake.add("a", "f" * 64, "envbuild/cpu:old", "envbuild/cpu:validated")
    made.new = made.fake.add("b", made.target.rendering.target_id, made.target.candidate)
    evidence.remember_built(made.target.rendering.target_id, made.new.id)
    for info in (made.old, made.new):
        proved(made, info)
    made.launched, made.wishes, made.factors, made.key = [], [], QUIET[::-1], {}

    def profile(bench: Bench, subject: Any, wish: Any) -> Measurement:
        candidate = subject.info.id != made.old.id
        count = made.launched.count(subject.info.id)
        made.launched.append(subject.info.id)
        made.wishes.append(wish)
        seconds = (made.factors if candidate else QUIET)[count % 10]
        return measured(made, subject.info, seconds, **(made.key if candidate else {}))

    monkeypatch.setattr(profiling, "profile_image", profile)
    return made


# --- what it comes to -------------------------------------------------------------------------------------------------

SLOWER = [1.2 * each for each in QUIET]
ANSWERS = {
    "same": (QUIET[::-1], {}),
    "faster": ([0.8 * each for each in QUIET], {}),
    "regressed": (SLOWER, {}),
    "inconclusive": (LOUD, {}),
    "incomparable": (QUIET, {"config": "d" * 64}),
}
PASSES = ("same", "faster")


def given(bench: Bench, state: str) -> None:
    """The surroundings in which the new image comes to an answer."""
    if state != "no baseline":
        add_baseline(bench, measured(bench, bench.old, 1.0))
        bench.factors, bench.key = ANSWERS[state]  # type: ignore[assignment]


def known(bench: Bench) -> list[evidence.Compared]:
    return [each for each, _ in evidence.compared(bench.new.id)]


@pytest.mark.parametrize("state", ANSWERS)
def test_each_answer_is_written_signed_and_told_with_its_figures(bench: Bench, state: str) -> None:
    given(bench, state)
    told: list[str] = []
    bench.sink = lambda event: told.append(getattr(event, "message", ""))
    if state in PASSES:
        assert build(bench, "cpu", BuildOptions()).tags[1:] == ("envbuild/cpu:validated",)
    else:
        with pytest.raises(GateError) as caught:
            build(bench, "cpu", BuildOptions())
        assert caught.value.exit_code == 5 and "requires no regression" in caught.value.message
        assert state in caught.value.message and "cpu-tiny-2x-" in caught.value.message
        assert "envbuild promote cpu" in caught.value.hint
        (measured_at,) = set(re.findall(r"\S+/candidate\.json", caught.value.hint))
        assert Path(measured_at).is_file(), "the commands name what was measured"
    # A B, B A, ...: ten rounds, of both images.
    assert bench.launched[:4] == [bench.old.id, bench.new.id, bench.new.id, bench.old.id]
    assert len(bench.launched) == 20
    (record,) = known(bench)
    (stored,) = performance.baselines_of(bench, "cpu")
    assert (record.verdict, record.delta, record.rounds, record.attempt) == (state, 0.05, 10, 1)
    assert record.baseline == stored.baseline.name and record.base_image == bench.old.id
    assert record.measurement == baselines.digest_of(stored.baseline.measurement)
    assert record.key["config"] == "c" * 64 and "image" not in record.key
    assert record.ratio and record.detectable is not None
    assert any(state in each and record.baseline in each for each in told)
    # Signed in a statement of its own: the evidence is as it was.
    (path,) = evidence.compared_paths(bench.new.id)
    assert evidence.compared_by(path, bench.trusted_keys)[0] == record
    assert evidence.signed_by(evidence.records(bench.new.id)[0], bench.trusted_keys).signed
    assert bench.moving == (bench.new.id if state in PASSES else bench.old.id)
    # The name of its content it has in any case, and it is found by that.
    wanted = names(bench.target.env, bench.target.rendering.id8, None)
    assert bench.fake.names[wanted.proven] == bench.new.id and bench.target.candidate not in bench.fake.names


def test_what_came_of_it_stands_until_it_is_forced_or_the_baseline_or_the_row_changes(bench: Bench) -> None:
    given(bench, "inconclusive")
    for _ in range(2):
        with pytest.raises(GateError, match="inconclusive against"):
            smoke(bench, "cpu", row=None, wish=Wish())
    assert len(bench.launched) == 20, "repeating until it passes would make any image pass"
    bench.factors = QUIET
    (standing,) = performance.known(bench, "cpu", _asked(bench), bench.new).standings
    assert standing.record is not None and not standing.passed
    # Another baseline of the same key: what was said of the old one answers nothing.
    add_baseline(bench, measured(bench, bench.old, 1.01), "measured again")
    proof, _ = smoke(bench, "cpu", row=None, wish=Wish())
    assert len(bench.launched) == 40 and [each.verdict for each in proof.compared] == ["same"]
    # A row that asks for less is satisfied by what was seen, one that asks for more is not.
    for asked, good in (
        ({"delta": "10%"}, True),
        ({"rounds": 5}, True),
        ({"delta": "2%"}, False),
        ({"rounds": 11}, False),
    ):
        changed = _asked(bench).model_copy(update=asked)
        assert performance.known(bench, "cpu", changed, bench.new).good is good, asked


def test_force_compares_again_and_counts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    given(bench, "regressed")
    reused = building.prove

    def prove(*args: Any, wish: Wish, **more: Any) -> Any:
        return reused(*args, wish=Wish(), **more)  # nothing is smoked here

    monkeypatch.setattr(building, "prove", prove)
    with pytest.raises(GateError):
        smoke(bench, "cpu", row=None, wish=Wish())
    bench.factors = QUIET
    assert [each.attempt for each in smoke(bench, "cpu", row=None, wish=Wish(force=True))[0].compared] == [2]
    assert known(bench)[0].verdict == "same" and "attempt 2" in performance.told(known(bench)[0])


@pytest.mark.parametrize(
    ("made", "steps", "warmup", "timeout"),
    [
        ({"steps": 1, "warmup": 0, "timeout": 100.0}, 40, 5, 4500.0),
        ({"steps": 80, "warmup": 20, "timeout": 7200.0}, 80, 20, 7200.0),
        ({}, 40, 5, 1800.0 * 45 / 25),
    ],
)
def test_a_launch_has_enough_steps_whatever_the_baseline_had(
    bench: Bench, made: dict[str, Any], steps: int, warmup: int, timeout: float
) -> None:
    found = measured(bench, bench.old, 1.0)
    assert found.origin.made is not None
    origin = found.origin.model_copy(update={"made": found.origin.made.model_copy(update=made)})
    add_baseline(bench, found.model_copy(update={"origin": origin}))
    assert by_build(bench)
    assert {(each.steps, each.warmup, round(each.timeout, 6)) for each in bench.wishes} == {(steps, warmup, timeout)}


def test_killed_before_it_was_written_down_nothing_is_launched_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(bench, "inconclusive")
    save = evidence.save_compared
    monkeypatch.setattr(evidence, "save_compared", killed)
    with pytest.raises(KeyboardInterrupt):
        smoke(bench, "cpu", row=None, wish=Wish())
    assert len(bench.launched) == 20 and not known(bench)
    monkeypatch.setattr(evidence, "save_compared", save)
    with pytest.raises(GateError, match="inconclusive against"):
        smoke(bench, "cpu", row=None, wish=Wish())
    assert len(bench.launched) == 20 and [each.attempt for each in known(bench)] == [1], "it was seen, and counts"


def test_killed_behind_that_a_new_attempt_launches_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    given(bench, "inconclusive")
    with monkeypatch.context() as patch:
        patch.setattr(versus.sessions, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            smoke(bench, "cpu", row=None, wish=Wish())
    (record,) = known(bench)
    with pytest.raises(GateError):
        versus.hold(bench, bench.target.env, bench.new, "new", again="cpu", force=True)
    (again,) = known(bench)
    assert len(bench.launched) == 40 and again.attempt == 2 and again.session != record.session


def killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def _asked(bench: Bench) -> Any:
    asked = bench.target.env.performance
    assert asked is not None
    return asked


# --- every way to the name --------------------------------------------------------------------------------------------

Way = Callable[[Bench], bool]


def _is_new(bench: Bench) -> bool:
    return bench.moving == bench.new.id


def by_build(bench: Bench) -> bool:
    build(bench, "cpu", BuildOptions())
    return _is_new(bench)


def by_a_build_that_is_up_to_date(bench: Bench) -> bool:
    wanted = names(bench.target.env, bench.target.rendering.id8, None)
    bench.fake.tag(bench.new.id, wanted.proven)
    done = building.up_to_date(bench, bench.target)
    assert (done is not None) is _is_new(bench)
    return _is_new(bench)


def by_smoke_and_promote(bench: Bench) -> bool:
    smoke(bench, "cpu", row=None, wish=Wish())
    promote(bench, "cpu", row=None)
    return _is_new(bench)


def by_promote(bench: Bench) -> bool:
    promote(bench, "cpu", row=None)
    return _is_new(bench)


def by_promote_of_a_derived_image(bench: Bench) -> bool:
    bench.fake.tag(bench.new.id, "team/train:7")
    evidence.remember_built(bench.target.rendering.target_id, bench.old.id)
    return "team/train:validated" in promote(bench, "team/train:7", row=None).tags


def by_a_release(bench: Bench) -> bool:
    sets.carry_out(bench, sets.plan(bench, "2026.12", ["cpu"], remote=False))
    return _is_new(bench)


def by_push(bench: Bench) -> bool:
    site = bench.site.model_copy(update={"registry": bench.site.registry.model_copy(update={"name": "r.example:5000"})})
    bench.__dict__["site"] = site
    planned = push.plan(bench, "cpu", row=None, wish=push.Wish())
    assert planned.compared, "what was seen travels with it"
    return "validated" in planned.tags


def by_a_release_in_the_registry(bench: Bench) -> bool:
    found = _remote(bench, Wanted())
    site = bench.site.model_copy(update={"registry": bench.site.registry.model_copy(update={"name": "r.example:5000"})})
    bench.__dict__["site"] = site
    there = SimpleNamespace(there=None, manifest=SimpleNamespace(descriptor=SimpleNamespace(digest="sha256:m")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sets, "resolve", lambda *_: SimpleNamespace(image=there, verified=found))
        return bool(sets.plan(bench, "2026.12", ["cpu"], remote=True).tags)


def by_pull(bench: Bench) -> bool:
    found = _remote(bench, Wanted())
    return not errors(found.findings) and "envbuild/cpu:validated" in _pulled(bench, found)


def by_pull_of_what_is_locked(bench: Bench) -> bool:
    found = _remote(bench, Wanted(performance=False))
    assert not errors(found.findings), "by its content it may come all the same"
    return "envbuild/cpu:validated" in _pulled(bench, found)


def _remote(bench: Bench, wanted: Wanted) -> Verified:
    """What another machine believes of the new image: by what lies beside it in a registry."""
    subject = Subject(
        ref="r/envbuild/cpu:validated", env=bench.target.env, wanted=wanted, keys=bench.trusted_keys, remote=True,
        identity=ImageIdentity(config_digest=bench.new.id, diff_ids=bench.new.diff_ids), suite=suite_hash(), now=NOW,
    )  # fmt: skip
    return answer(subject, evidence.stored(bench.new.id), evidence.compared_paths(bench.new.id))


def _pulled(bench: Bench, found: Verified) -> tuple[str, ...]:
    wanted = names(bench.target.env, bench.target.rendering.id8, None)
    manifest = SimpleNamespace(config=SimpleNamespace(digest=bench.new.id))
    wish = pull.Wish(wanted=Wanted())
    return pull._tags(bench.target.env, wanted, wish, found, manifest)  # type: ignore[arg-type]


WAYS: dict[str, Way] = {name: way for name, way in globals().items() if name.startswith("by_")}


@pytest.mark.parametrize("state", ["no baseline", *ANSWERS])
@pytest.mark.parametrize("way", WAYS)
def test_no_way_leads_to_the_name_without_it(bench: Bench, way: str, state: str) -> None:
    given(bench, state)
    try:
        smoke(bench, "cpu", row=None, wish=Wish())
    except GateError as error:
        assert state not in PASSES and error.exit_code == 5
    launched = len(bench.launched)
    try:
        given_to = WAYS[way](bench)
    except EnvbuildError as error:
        assert error.exit_code == 5
        given_to = False
    assert given_to is (state in PASSES)
    assert len(bench.launched) == launched, "what was compared once is not launched again"


def test_a_way_that_is_not_tried_above_would_be_told_of() -> None:
    """Whoever gives, or reads, the moving name."""
    said = {
        path.stem
        for path in (REPOSITORY / "builder" / "envbuild" / "pipeline").glob("*.py")
        if re.search(r"\.moving\b(?! import)|\"validated\"|:validated\"", path.read_text())
    }
    # offering asks a registry for it, listing puts it first in a table, names has the word.
    assert said - {"offering", "listing", "names"} == {"build", "current", "pull", "push", "release", "sets"} - {
        "build"
    }


# --- the first one, and the deliberate one ----------------------------------------------------------------------------


def test_the_first_image_of_a_row_becomes_its_baseline_and_is_promoted_without_a_launch(bench: Bench) -> None:
    with pytest.raises(GateError, match="there is no baseline of cpu in") as caught:
        build(bench, "cpu", BuildOptions())
    for command in ("envbuild profile cpu", "envbuild baseline add baseline.json --reason", "envbuild promote cpu"):
        assert command in caught.value.hint
    add_baseline(bench, measured(bench, bench.new, 1.0))
    assert promote(bench, "cpu", row=None).tags[1:] == ("envbuild/cpu:validated",) and not bench.launched
    (record,) = known(bench)
    assert (record.verdict, record.reason) == ("baseline", "first of this machine")
    assert by_pull(bench) and build(bench, "cpu", BuildOptions()).status == "up to date"


def test_that_there_is_none_is_said_before_the_long_build(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.fake.untag(bench.target.candidate)
    told: list[str] = []
    bench.sink = lambda event: told.append(getattr(event, "message", ""))

    def build_image(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "build_image", build_image)
    with pytest.raises(KeyboardInterrupt):
        build(bench, "cpu", BuildOptions())
    assert any("no baseline of cpu" in each and "will not be called validated" in each for each in told)


def test_a_slower_image_may_be_taken_as_the_baseline_with_a_reason_that_is_signed(bench: Bench) -> None:
    given(bench, "regressed")
    with pytest.raises(GateError):
        build(bench, "cpu", BuildOptions())
    add_baseline(bench, measured(bench, bench.new, 1.2), "slower by choice: activation checkpoints")
    promote(bench, "cpu", row=None)
    assert _is_new(bench) and known(bench)[0].reason == "slower by choice: activation checkpoints"
    # The one before is no longer what counts, and may not come back by itself.
    bench.fake.tag(bench.old.id, "team/train:6")
    with pytest.raises(GateError, match="not compared"):
        promote(bench, "team/train:6", row="cpu")


@pytest.mark.parametrize(
    ("what", "said", "todo"),
    [
        ("another machine", "hardware.cpus 64, here 4", "envbuild baseline add"),
        ("image gone", "is not on this engine", "envbuild pull --image-only envbuild/cpu:old"),
        ("read from a log", "no baseline of cpu in", "envbuild baseline add"),
        ("a hidden variable", "that can be launched again", "envbuild baseline add"),
    ],
)
def test_a_baseline_that_cannot_be_launched_here_is_no_pass(bench: Bench, what: str, said: str, todo: str) -> None:
    found = measured(bench, bench.old, 1.0)
    if what == "another machine":
        hardware = found.key.hardware.model_copy(update={"cpus": 64})
        found = found.model_copy(update={"key": found.key.model_copy(update={"hardware": hardware})})
    elif what == "image gone":
        del bench.fake.ids[bench.old.id]
    else:
        made = found.origin.made
        hidden = made.model_copy(update={"env": ("HF_TOKEN=***",)}) if made and what == "a hidden variable" else None
        found = found.model_copy(update={"origin": found.origin.model_copy(update={"made": hidden})})
    add_baseline(bench, found)
    told: list[str] = []
    bench.sink = lambda event: told.append(getattr(event, "message", ""))
    with pytest.raises(GateError) as caught:
        build(bench, "cpu", BuildOptions())
    assert said in caught.value.message and todo in caught.value.hint and "promote cpu" in caught.value.hint
    lacking = [each for each in told if "cannot be launched again: it was measured with HF_TOKEN" in each]
    assert len(lacking) == (what == "a hidden variable")
    assert bench.launched == ([bench.new.id] if what == "image gone" else []), "alone, for its exact figures"
    assert not known(bench) and not _is_new(bench)


def test_exact_figures_need_no_second_image(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    add_baseline(bench, with_checkpoint(measured(bench, bench.old, 1.0), 1000))
    del bench.fake.ids[bench.old.id]
    monkeypatch.setattr(profiling, "profile_image", lambda *_: with_checkpoint(measured(bench, bench.new, 1.0), 2000))
    with pytest.raises(GateError, match=r"regressed against cpu-tiny-2x-.*exact figures are worse"):
        build(bench, "cpu", BuildOptions())
    (record,) = known(bench)
    assert record.verdict == "regressed" and record.session is None and not _is_new(bench)


def with_checkpoint(found: Measurement, size: int) -> Measurement:
    (one,) = found.launches
    structure = one.structure.model_copy(update={"parameters": 10, "checkpoint_bytes": size})
    return found.model_copy(update={"launches": (one.model_copy(update={"structure": structure}),)})


def test_all_baselines_of_a_machine_count_and_those_of_another_do_not_stand_in_the_way(bench: Bench) -> None:
    given(bench, "same")
    far = measured(bench, bench.old, 1.0)
    hardware = far.key.hardware.model_copy(update={"cpus": 64})
    there = add_baseline(bench, far.model_copy(update={"key": far.key.model_copy(update={"hardware": hardware})}))
    assert by_build(bench) and len(bench.launched) == 20
    # Unless it was seen to be slower there.
    (record,) = known(bench)
    slower = {"baseline": there.baseline.name, "measurement": baselines.digest_of(there.baseline.measurement)}
    path = evidence.save_compared(record.model_copy(update={**slower, "verdict": "regressed"}), key=bench.signing_key)
    with pytest.raises(GateError, match="regressed against"):
        promote(bench, "cpu", row=None)
    path.unlink()
    # A second training of this machine, of which the image has shown nothing yet.
    add_baseline(bench, measured(bench, bench.old, 1.0, model="small"))
    bench.fake.names["envbuild/cpu:validated"] = bench.old.id
    with pytest.raises(GateError, match="not compared with cpu-small-2x-"):
        promote(bench, "cpu", row=None)


@pytest.mark.parametrize(
    "other",
    [
        {"accelerator": "cuda"},
        {"model": "small"},
        {"hardware": {"label": "ours"}},
        {"hardware": {"memory_bytes": (16 << 30) - 5 * 4096}},
        {"hardware": {"gpus": ["H100"], "driver": "550"}},
    ],
    ids=str,
)
def test_a_baseline_of_the_image_itself_opens_nothing_beside_one_of_this_machine(
    bench: Bench, other: dict[str, Any]
) -> None:
    """Such as a measurement of the new image on fewer of the devices, with another model, or behind another kernel."""
    found = measured(bench, bench.new, 1.0)
    hardware = found.key.hardware.model_dump(mode="json") | other.get("hardware", {})
    add_baseline(bench, measured(bench, bench.old, 1.0, config="e" * 64))
    add_baseline(bench, measured(bench, bench.new, 1.0, **{**other, "hardware": hardware}))
    with pytest.raises(GateError, match="not compared with cpu-tiny-2x-"):
        promote(bench, "cpu", row=None)
    assert not _is_new(bench)


def test_a_baseline_over_two_nodes_cannot_be_launched_again_here(bench: Bench) -> None:
    add_baseline(bench, measured(bench, bench.old, 1.0, nodes=2, world_size=4))
    with pytest.raises(GateError, match="that can be launched again"):
        build(bench, "cpu", BuildOptions())
    assert not bench.launched
    # Nor does the new image pass by being it.
    add_baseline(bench, measured(bench, bench.new, 1.0, nodes=2, world_size=4), "next")
    with pytest.raises(GateError, match="there is no baseline of cpu"):
        promote(bench, "cpu", row=None)


def test_behind_an_update_of_envbuild_the_gate_goes_on_and_so_does_the_history(bench: Bench) -> None:
    stored = add_baseline(bench, measured(bench, bench.old, 1.0, probe="0"))
    bench.factors = SLOWER
    with pytest.raises(GateError, match="regressed against") as caught:
        build(bench, "cpu", BuildOptions())
    (path,) = set(re.findall(r"\S+/candidate\.json", caught.value.hint))
    update = files.read(Path(path))
    assert update.key.probe == "1"
    again = add_baseline(bench, update, "slower by choice")
    assert again.path == stored.path and [each.reason for each in again.baseline.history][1:] == ["slower by choice"]
    promote(bench, "cpu", row=None)
    assert _is_new(bench)


def test_what_is_no_baseline_is_told_and_one_of_the_row_that_cannot_be_read_stands_in_the_way(bench: Bench) -> None:
    given(bench, "same")
    folder = performance.folder_of(bench)
    (folder / "package.json").write_text("{}")
    (folder / "h100-cu124-tiny-8x-00000000.json").write_text("<<<<<<< HEAD")
    told: list[str] = []
    bench.sink = lambda event: told.append(getattr(event, "message", ""))
    assert by_build(bench)
    assert sum("package.json" in each for each in told) == 1 and any("h100-cu124-tiny-8x" in each for each in told)
    bench.fake.names["envbuild/cpu:validated"] = bench.old.id
    (folder / "cpu-small-2x-00000000.json").write_text("<<<<<<< HEAD")
    for way in (by_promote, by_push):
        with pytest.raises(EnvbuildError, match=r"cpu-small-2x-00000000\.json: not valid JSON"):
            way(bench)
    # Where nothing is given a name it is told.
    (finding,) = (each for each in check.check_rows(bench, ["cpu"]) if each.rule == "BASELINE")
    assert "cpu-small-2x-00000000.json: not valid JSON" in finding.message and "move it away" in finding.fix
    (state,) = performance.state(bench, bench.target.env, bench.new)
    assert "cpu-small-2x-00000000.json: not valid JSON" in state
    assert not _is_new(bench)


def test_a_step_that_is_wrong_on_both_sides_is_told_as_that(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    add_baseline(bench, measured(bench, bench.old, 1.0))

    def wrong(place: Bench, subject: Any, wish: Any) -> Measurement:
        found = measured(place, subject.info, 1.0)
        parity = (Parity(precision="fp32", passed=False),)
        (one,) = found.launches
        one = one.model_copy(update={"structure": one.structure.model_copy(update={"parity": parity})})
        return found.model_copy(update={"launches": (one,)})

    monkeypatch.setattr(profiling, "profile_image", wrong)
    with pytest.raises(GateError, match=r"parity\.fp32 failed on both sides") as caught:
        build(bench, "cpu", BuildOptions())
    assert "whose parity passes" in caught.value.hint and "remove" not in caught.value.hint
    assert [each.verdict for each in known(bench)] == ["incomparable"] and not _is_new(bench)


def test_a_row_that_requires_nothing_launches_nothing_and_has_the_same_target(bench: Bench, tmp_path: Path) -> None:
    target_id = bench.target.rendering.target_id
    shutil.copy(REPOSITORY / "matrix.yaml", bench.project.root)
    del bench.__dict__["matrix"]
    plain = prepare(bench, "cpu")
    assert plain.rendering.target_id == target_id and plain.env.performance is None
    assert claims(plain.env) == claims(bench.target.env), "its evidence counts all the same"
    assert by_build(bench) and not bench.launched and not known(bench)


# --- what others are told ---------------------------------------------------------------------------------------------


def test_verify_tells_what_was_compared_and_what_is_missing(bench: Bench, key: evidence.SigningKey) -> None:
    given(bench, "same")
    (finding,) = _remote(bench, Wanted()).findings
    assert (finding.rule, finding.severity) == ("verify.performance", Severity.ERROR) and "nobody" in finding.message
    assert "envbuild smoke cpu && envbuild push cpu" in finding.fix
    smoke(bench, "cpu", row=None, wish=Wish())
    found = _remote(bench, Wanted())
    assert found.good and any(name == "performance" and "minimum detectable" in text for name, text in lines(found))
    # Whoever changes a word of it has nothing that is signed; nor has who takes the key away.
    (path,) = evidence.compared_paths(bench.new.id)
    whole = path.read_text()
    path.write_text(whole.replace('"verdict": "same"', '"verdict": "faster"'))
    assert [each.rule for each in _remote(bench, Wanted()).findings] == ["verify.performance"]
    assert not performance.known(bench, "cpu", _asked(bench), bench.new).good
    path.write_text(whole)
    # What the same key has signed of something else.
    evidence.envelope_of(path).write_bytes(evidence.envelope_of(evidence.records(bench.new.id)[0]).read_bytes())
    assert "is no comparison" in _remote(bench, Wanted()).findings[0].message
    evidence.envelope_of(path).unlink()
    assert "nobody has signed" in _remote(bench, Wanted()).findings[0].message


def test_a_comparison_of_another_image_is_none_of_this_one(bench: Bench) -> None:
    given(bench, "same")
    smoke(bench, "cpu", row=None, wish=Wish())
    (record,) = known(bench)
    (path,) = evidence.compared_paths(bench.new.id)
    other = bench.fake.add("c", bench.target.rendering.target_id, "team/other:1")
    proved(bench, other)
    there = evidence.compared_paths(other.id)
    assert there == []
    folder = path.parents[2] / other.id.removeprefix("sha256:") / "performance"
    shutil.copytree(path.parent, folder)
    assert evidence.compared(other.id) == [] and record.image.config_digest == bench.new.id
    with pytest.raises(GateError, match="not compared"):
        promote(bench, "team/other:1", row="cpu")


def test_show_check_and_diff_speak_of_it(bench: Bench, tmp_path: Path) -> None:
    (finding,) = (each for each in check.check_rows(bench, ["cpu"]) if each.rule == "BASELINE")
    assert finding.severity is Severity.WARNING and finding.file and finding.line and "baseline add" in finding.fix
    given(bench, "same")
    assert not [each for each in check.check_rows(bench, ["cpu"]) if each.rule == "BASELINE"]
    assert "not compared with cpu-tiny-2x-" in report.details(bench, bench.target.env)["state"]["performance"]
    smoke(bench, "cpu", row=None, wish=Wish())
    said = report.details(bench, bench.target.env)["state"]["performance"]
    assert "delta 5%, 10 rounds" in said and "same against cpu-tiny-2x-" in said
    with side(bench, str(REPOSITORY)) as before, side(bench, None) as after:
        (row,) = (each for each in diffing.compare(before, after) if each.name == "cpu")
        (back,) = (each for each in diffing.compare(after, before) if each.name == "cpu")
    assert {change.path for change in row.fields} == {"performance.baseline", "performance.delta", "performance.rounds"}
    assert (row.effect, row.causes, row.old_id) == (diffing.PROVE, ("performance",), row.new_id)
    assert (back.effect, back.causes) == (diffing.NOTHING, ())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("performance: {baseline: optional}", "'optional' is not required"),
        ("performance: {baseline: required, delta: 0%}", "'0%' is not a share, such as 5%"),
        ("performance: {baseline: required, delta: 0.05}", "'0.05' is not a share, such as 5%"),
        ("performance: {baseline: required, rounds: 4}", "'4' is too few: at least 5"),
        ("performance: {baseline: required, rounds: many}", "must be a whole number, not 'many'"),
        ("performance: {baseline: required, round: 5}", "is not a known key; did you mean 'rounds'?"),
        ("performance: {}", "baseline: is required"),
    ],
)
def test_what_is_no_requirement_is_told_with_its_place(tmp_path: Path, asked: str, said: str) -> None:
    bench = Workbench(project_folder=project(tmp_path, asked), environ={})
    with pytest.raises(MatrixError) as caught:
        _ = bench.matrix
    assert said in caught.value.message and re.search(
        r"matrix.yaml:\d+:\d+: environments.cpu.performance", str(caught.value)
    )
