"""Which image gets which name. The engine is a stand-in: it keeps images and names, and never runs anything."""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild import evidence
from envbuild.engines import EngineInfo, ImageInfo
from envbuild.errors import EnvbuildError, GateError, InputError
from envbuild.events import Event, Note
from envbuild.evidence import keys
from envbuild.judge.suite import suite_hash
from envbuild.model import Finding, Level, Severity
from envbuild.pipeline import build as pipeline
from envbuild.pipeline import prove as proving_module
from envbuild.pipeline import report
from envbuild.pipeline.build import BuildOptions, build, locate, promote, smoke, up_to_date
from envbuild.pipeline.gpus import fault_of
from envbuild.pipeline.image import LABEL_ENV, LABEL_TARGET
from envbuild.pipeline.names import names
from envbuild.pipeline.prepare import FindingsError, Target, prepare
from envbuild.pipeline.proof import Proof, Wish, claims
from envbuild.pipeline.workbench import Workbench

REPOSITORY = Path(__file__).parents[2]
CONFIG = "c" * 64


class FakeEngine:
    """Images by id, ids by name, and everything that was asked to change."""

    local, kind, endpoint, gpu_obstacle = True, "docker", "unix:///fake", ""

    def __init__(self) -> None:
        self.ids: dict[str, ImageInfo] = {}
        self.names: dict[str, str] = {}
        self.changes: list[tuple[str, str]] = []

    def add(self, id: str, *tags: str, content: str = "", **labels: str) -> ImageInfo:
        layer = hashlib.sha256((content or id).encode()).hexdigest()
        info = ImageInfo(
            id=f"sha256:{id}", diff_ids=(f"sha256:{layer}",), env=(), architecture="amd64", os="linux", size=1,
            labels=tuple((LABELS[key], value) for key, value in labels.items()), created="", repo_tags=tags,
            repo_digests=(),
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
        return tuple(info for info in self.ids.values() if info.repo_tags)

    def tag(self, ref: str, new: str) -> None:
        assert ref in self.ids
        self.names[new] = ref
        self.changes.append(("tag", new))

    def containers(self, label: str) -> tuple[()]:
        return ()

    def untag(self, ref: str) -> None:
        del self.names[ref]
        self.changes.append(("untag", ref))


LABELS = {"env": LABEL_ENV, "target": LABEL_TARGET}


class Bench(Workbench):
    """A workbench on the shipped rows, in a project of the test's own."""

    fake: FakeEngine

    def target(self, row: str) -> Target:
        return prepare(self, row)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    root = tmp_path / "project"
    for row in ("cpu", "h200-cu130"):
        (root / "images" / row).mkdir(parents=True)
        shutil.copy(REPOSITORY / "images" / row / "lock.json", root / "images" / row)
    shutil.copy(REPOSITORY / "matrix.yaml", root)
    made = Bench(project_folder=root, environ={"HOME": str(tmp_path)})
    made.fake = FakeEngine()
    made.__dict__["engine"] = made.fake
    return made


def prove_as(bench: Bench, row: str, id: str, level: Level, *, suite: str = "", config: str = CONFIG,
             gpus: tuple[str, ...] = (), driver: str | None = None) -> Path:  # fmt: skip
    """Evidence as a run leaves it: of the layers that the engine has, and of what the row claims now."""
    now = datetime.datetime(2026, 11, 1, tzinfo=datetime.timezone.utc)
    record = evidence.Evidence(
        schema="envbuild.evidence/1", environment=row, target_id=None, level=level, suite=suite or suite_hash(),
        envbuild="0", platform="linux/amd64", size_bytes=1, base={}, claims=claims(bench.matrix.get(row)), content={},
        portability={}, smoke={}, findings=(), started=now, finished=now, seconds={},
        image=evidence.Identity(config_digest=f"sha256:{config}", diff_ids=bench.fake.ids[f"sha256:{id}"].diff_ids),
        host=evidence.Host(system="s", machine="m", cpu="c", cpus=1, memory_bytes=1, engine="e",
                           gpus=tuple({"name": name} for name in gpus), driver=driver),
    )  # fmt: skip
    return evidence.save(record, f"sha256:{id}")


def built(bench: Bench, row: str, id: str, level: Level | None, *, named: str = "candidate") -> Target:
    """An image that a build of the row as it is now gave, with evidence of a level."""
    target = bench.target(row)
    wanted = names(target.env, target.rendering.id8, None)
    tag = {"candidate": target.candidate, "proven": wanted.proven}.get(named) or wanted.below(Level(named))
    info = bench.fake.add(id, tag, env=row, target=target.rendering.target_id)
    evidence.remember_built(target.rendering.target_id, info.id)
    if level is not None:
        prove_as(bench, row, id, level)
    return target


def derived(bench: Bench, id: str, *tags: str, row: str = "cpu") -> ImageInfo:
    """A proven image that was built FROM the row's: it has the labels of its parent, and bytes of its own."""
    info = bench.fake.add(id, *tags, env=row, target=bench.target(row).rendering.target_id)
    prove_as(bench, row, id, Level.CPU, config="d" * 64)
    return info


# --- up to date -------------------------------------------------------------------------------------------------------


def test_up_to_date_is_a_proven_name_with_evidence_of_this_suite(bench: Bench) -> None:
    target = built(bench, "cpu", "1", Level.CPU, named="proven")
    result = up_to_date(bench, target)
    assert result is not None
    assert (result.status, result.level, result.target_id) == ("up to date", Level.CPU, target.rendering.target_id)
    assert result.tags == (f"envbuild/cpu:2.13.0-cpu-{target.rendering.id8}", "envbuild/cpu:validated")
    assert bench.fake.names["envbuild/cpu:validated"] == "sha256:1", "the moving name was put back"
    bench.fake.changes.clear()
    assert build(bench, "cpu", BuildOptions()).status == "up to date"
    assert bench.fake.changes == [], "nothing to put right, nothing touched"


def test_looking_moves_no_name(bench: Bench) -> None:
    target = built(bench, "cpu", "1", Level.CPU, named="proven")
    assert up_to_date(bench, target, touch=False) is not None
    assert bench.fake.changes == []


@pytest.mark.parametrize("case", ["no image", "only a candidate", "no evidence", "old suite", "weaker", "other target"])
def test_not_up_to_date(bench: Bench, case: str) -> None:
    target = bench.target("cpu")
    if case == "only a candidate":
        built(bench, "cpu", "1", Level.CPU)
    elif case == "old suite":
        built(bench, "cpu", "1", None, named="proven")
        prove_as(bench, "cpu", "1", Level.CPU, suite="0" * 64)
    elif case == "other target":
        # Somebody gave the name to another image, a proven one too.
        bench.fake.add("1", names(target.env, target.rendering.id8, None).proven, env="cpu", target="f" * 64)
        evidence.remember_built("f" * 64, "sha256:1")
        prove_as(bench, "cpu", "1", Level.CPU)
    elif case != "no image":
        built(bench, "cpu", "1", Level.BUILT if case == "weaker" else None, named="proven")
    assert up_to_date(bench, target) is None
    assert bench.fake.changes == []


def test_evidence_that_the_sites_key_has_not_signed_is_not_up_to_date(bench: Bench, tmp_path: Path) -> None:
    target = built(bench, "cpu", "1", Level.CPU, named="proven")
    for name in ("own.pem", "other.pem"):
        keys.make(tmp_path / name)
    own, other = (keys.load_signing(tmp_path / name) for name in ("own.pem", "other.pem"))
    assert up_to_date(bench, target) is not None, "without a key nothing has to be signed"
    for key, signer, current in ((own, None, False), (own, own, True), (other, own, False)):
        bench.__dict__["signing_key"] = key
        record = evidence.read(evidence.records("sha256:1")[0])
        path = evidence.save(record, "sha256:1", key=signer)
        assert (up_to_date(bench, target) is not None) is current
    evidence.envelope_of(path).write_bytes(b"")
    bench.__dict__["signing_key"] = own
    assert up_to_date(bench, target) is None


# --- promote: levels and names ----------------------------------------------------------------------------------------


def test_enough_evidence_gives_both_names_and_the_moving_one_last(bench: Bench) -> None:
    target = built(bench, "cpu", "1", Level.CPU)
    bench.fake.add("0", "envbuild/cpu:validated")
    result = promote(bench, "cpu", row=None)
    proven = f"envbuild/cpu:2.13.0-cpu-{target.rendering.id8}"
    assert result.tags == (proven, "envbuild/cpu:validated")
    assert bench.fake.changes == [("tag", proven), ("tag", "envbuild/cpu:validated")]
    assert bench.fake.names["envbuild/cpu:validated"] == "sha256:1"


@pytest.mark.parametrize(
    ("has", "allowed", "suffix"),
    [
        (Level.BUILT, None, None),
        (Level.CPU, None, None),
        (Level.BUILT, Level.CPU, None),
        (Level.BUILT, Level.BUILT, "-built"),
        (Level.CPU, Level.CPU, "-cpu"),
        (Level.CPU, Level.BUILT, "-cpu"),
        (Level.CPU, Level.GPU_MIG, None),
        (Level.GPU_MIG, None, None),
        (Level.GPU_MIG, Level.GPU_MIG, "-gpu-mig"),
        (Level.GPU_MIG, Level.CPU, "-gpu-mig"),
        (Level.GPU, None, ""),
        (Level.GPU, Level.BUILT, ""),
    ],
)
def test_a_cuda_row_is_named_by_its_level(bench: Bench, has: Level, allowed: Level | None, suffix: str | None) -> None:
    target = built(bench, "h200-cu130", "1", has)
    if suffix is None:
        with pytest.raises(GateError) as caught:
            promote(bench, "h200-cu130", row=None, allow_level=allowed)
        assert caught.value.exit_code == 5
        assert f"level {has.value}" in caught.value.message and "requires gpu" in caught.value.message
        assert f"--allow-level {has.value}" in caught.value.hint and "smoke" in caught.value.hint
        assert bench.fake.changes == []
        return
    result = promote(bench, "h200-cu130", row=None, allow_level=allowed)
    tag = f"envbuild/h200-cu130:2.11.0-cu130-{target.rendering.id8}{suffix}"
    moving = ("envbuild/h200-cu130:validated",) if has is Level.GPU else ()
    assert result.tags == (tag, *moving)
    assert result.level is has


def test_an_image_that_was_tagged_below_its_level_is_found_and_promoted_later(bench: Bench) -> None:
    target = built(bench, "h200-cu130", "1", Level.CPU, named="cpu")
    assert locate(bench, "h200-cu130", None)[0].endswith("-cpu")
    prove_as(bench, "h200-cu130", "1", Level.GPU)
    for reference in ("h200-cu130", f"envbuild/h200-cu130:2.11.0-cu130-{target.rendering.id8}-cpu"):
        result = promote(bench, reference, row=None)
        assert result.target_id == target.rendering.target_id
        assert result.tags[0] == f"envbuild/h200-cu130:2.11.0-cu130-{target.rendering.id8}"


def test_evidence_of_another_hosts_gpu_keeps_an_image_up_to_date(bench: Bench) -> None:
    target = built(bench, "h200-cu130", "1", None, named="proven")
    prove_as(bench, "h200-cu130", "1", Level.CPU)
    assert up_to_date(bench, target) is None
    prove_as(bench, "h200-cu130", "1", Level.GPU, gpus=("NVIDIA H200",), driver="580.95.05")
    for path in evidence.records("sha256:1"):
        assert path.name.endswith(("-cpu.json", "-gpu-nvidia-h200-580.95.05.json"))
    result = build(bench, "h200-cu130", BuildOptions())
    assert (result.status, result.level) == ("up to date", Level.GPU)
    assert "on NVIDIA H200 (driver 580.95.05)" in result.reason and "--force" in result.reason


def test_an_image_below_its_level_names_what_is_missing_and_how_to_finish(bench: Bench, proving: Proving) -> None:
    missing = Finding(rule="gate.gpu", severity=Severity.WARNING, subject="h200-cu130", message="no GPU here")
    asked = proving(Level.CPU, missing)
    bench.sink = lambda event: asked.append(getattr(event, "message", ""))
    with pytest.raises(FindingsError) as caught:
        build(bench, "h200-cu130", BuildOptions())
    assert caught.value.exit_code == 5 and caught.value.findings == (missing,)
    assert asked.index("[gate.gpu] this host has no NVIDIA GPU") < asked.index("build"), "told before the long build"
    assert "envbuild smoke h200-cu130, then envbuild promote h200-cu130" in caught.value.hint
    assert bench.fake.changes == [], "nothing tagged, and the candidate's name is kept"
    assert bench.fake.names[bench.target("h200-cu130").candidate] == "sha256:new"
    with pytest.raises(FindingsError, match="requires gpu"):
        smoke(bench, "h200-cu130", row=None, wish=Wish())
    assert smoke(bench, "h200-cu130", row=None, wish=Wish(allow_level=Level.CPU))[0].level is Level.CPU


def test_force_proves_again_what_is_up_to_date(bench: Bench, proving: Proving) -> None:
    asked = proving(Level.CPU)
    built(bench, "cpu", "1", Level.CPU, named="proven")
    assert build(bench, "cpu", BuildOptions(force=True)).status == "proven"
    assert [each.split(" ")[0] for each in asked] == ["prove"]


@pytest.mark.parametrize("named", ["candidate", "proven"])
def test_without_evidence_no_name(bench: Bench, named: str) -> None:
    built(bench, "cpu", "1", None, named=named)
    with pytest.raises(GateError, match=r"no evidence as cpu, .* from the current suite") as caught:
        promote(bench, "cpu", row=None, allow_level=Level.BUILT)
    assert "envbuild smoke cpu" in caught.value.hint
    assert bench.fake.changes == []


def test_an_id_tag_is_never_given_to_other_bytes(bench: Bench) -> None:
    target = built(bench, "cpu", "1", Level.CPU)
    proven = names(target.env, target.rendering.id8, None).proven
    other = bench.fake.add("2", "my/other:1", env="cpu", target=target.rendering.target_id)
    bench.fake.names[proven] = other.id
    prove_as(bench, "cpu", "2", Level.CPU, config="d" * 64)
    # The row's name finds the image that has the proven name; the candidate is asked for by its own.
    with pytest.raises(GateError, match="already names another image") as caught:
        promote(bench, target.candidate, row=None)
    assert f"docker rmi {proven}" in caught.value.hint
    assert bench.fake.names[proven] == other.id
    assert bench.fake.changes == [], "the moving name stays where it was, too"


def test_one_image_under_two_engine_ids_is_one_image(bench: Bench) -> None:
    target = built(bench, "cpu", "1", Level.CPU)
    again = bench.fake.add("2", names(target.env, target.rendering.id8, None).proven, content="1")
    prove_as(bench, "cpu", again.id.removeprefix("sha256:"), Level.CPU)
    assert promote(bench, target.candidate, row=None).tags[1] == "envbuild/cpu:validated"


def test_evidence_as_one_row_is_none_as_another(bench: Bench) -> None:
    target = built(bench, "cpu", "1", Level.CPU)
    with pytest.raises(GateError, match="no evidence as a100-cu118") as caught:
        promote(bench, target.candidate, row="a100-cu118", allow_level=Level.BUILT)
    assert f"envbuild smoke {target.candidate} --row a100-cu118" in caught.value.hint
    assert bench.fake.changes == []


@pytest.mark.parametrize("content", ["", "{"])
def test_a_corrupt_record_names_nothing(bench: Bench, content: str) -> None:
    built(bench, "cpu", "1", None)
    prove_as(bench, "cpu", "1", Level.CPU).write_text(content)
    with pytest.raises(GateError, match="no evidence as cpu") as caught:
        promote(bench, "cpu", row=None)
    assert "envbuild smoke cpu" in caught.value.hint
    assert bench.fake.changes == []


@pytest.mark.parametrize("of", ["the row's own", "derived"])
def test_a_row_that_claims_something_else_since_has_no_evidence(bench: Bench, of: str) -> None:
    reference = built(bench, "cpu", "1", Level.CPU).candidate
    if of == "derived":
        derived(bench, "2", reference := "team/train:7")
    text = bench.project.matrix.read_text()
    assert 'version: "0.19.8"' in text
    bench.project.matrix.write_text(text.replace('version: "0.19.8"', 'version: "0.19.7"'))
    del bench.__dict__["matrix"]
    with pytest.raises(GateError, match="no evidence as cpu, as the row is today"):
        promote(bench, reference, row=None, allow_level=Level.BUILT)
    assert bench.fake.changes == []


def test_a_derived_image_gets_names_of_its_own(bench: Bench) -> None:
    target = built(bench, "cpu", "1", Level.CPU, named="proven")
    # FROM keeps the labels of the parent: they say which row it is, not that it is the row's own image.
    info = derived(bench, "2", "team/train:7", "my-envbuild/cpu:1")
    assert dict(info.labels)[LABEL_TARGET] == target.rendering.target_id
    for repository, tag in (("team/train", "7"), ("my-envbuild/cpu", "1")):
        result = promote(bench, f"{repository}:{tag}", row=None)
        assert result.tags == (f"{repository}:2.13.0-cpu-dddddddd", f"{repository}:validated")
        assert result.target_id is None


@pytest.mark.parametrize(
    "reference",
    ["envbuild/cpu:mine", "envbuild/h200-cu130:mine", "registry.example:5000/team/envbuild/cpu:mine",
     f"envbuild/cpu:mine@sha256:{'d' * 64}"],
)  # fmt: skip
def test_a_derived_image_gets_no_name_of_a_rows_own(bench: Bench, reference: str) -> None:
    built(bench, "cpu", "1", Level.CPU, named="proven")
    derived(bench, "2", reference)
    with pytest.raises(GateError, match=r"is not what the row .* builds") as caught:
        promote(bench, reference, row=None)
    assert f"docker tag {reference} my-team/" in caught.value.hint
    assert bench.fake.changes == []


def test_a_rows_image_is_not_another_rows(bench: Bench) -> None:
    target = built(bench, "cpu", "1", Level.CPU)
    prove_as(bench, "a100-cu118", "1", Level.GPU)
    with pytest.raises(GateError, match="is not what the row cpu builds"):
        promote(bench, target.candidate, row="a100-cu118")
    assert bench.fake.changes == []


@pytest.mark.parametrize("named", ["candidate", "proven", "cpu"])
def test_a_derived_image_under_the_rows_name_is_not_the_rows(bench: Bench, named: str) -> None:
    target = built(bench, "cpu", "1", Level.CPU, named=named)
    [taken] = bench.fake.names
    derived(bench, "2", taken)
    assert up_to_date(bench, target) is None
    with pytest.raises(GateError, match="is not what the row cpu builds"):
        promote(bench, "cpu", row=None)
    assert bench.fake.changes == []


@pytest.mark.parametrize("reference", ["sha256:2abc", "2abc"])
def test_a_derived_image_is_not_promoted_by_its_id(bench: Bench, reference: str) -> None:
    bench.fake.add("2abc", env="cpu")
    bench.fake.names["2abc"] = "sha256:2abc"
    prove_as(bench, "cpu", "2abc", Level.CPU)
    with pytest.raises(InputError, match="is an id"):
        promote(bench, reference, row=None)
    assert bench.fake.changes == []


# --- locate -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "row", "kind", "said"),
    [
        ("cpu", None, GateError, "Build it: envbuild build cpu"),
        ("a100-cu118", None, FindingsError, "envbuild lock a100-cu118"),
        ("cup", None, GateError, "Did you mean 'cpu'?"),
        ("not a name", None, InputError, "Rows: cpu, v100-cu113, a100-cu117, "),
        ("other:1", None, InputError, "--row ENV"),
        ("other:1", "cup", InputError, "Did you mean 'cpu'?"),
        ("labelled:1", None, InputError, "Environments: cpu"),
    ],
)
def test_what_is_not_there(bench: Bench, reference: str, row: str | None, kind: type[EnvbuildError], said: str) -> None:
    bench.fake.add("1", "other:1")
    bench.fake.add("2", "labelled:1", env="gone")
    with pytest.raises(kind) as caught:
        locate(bench, reference, row)
    assert said in caught.value.hint


def test_a_row_is_held_to_its_own_claims_only(bench: Bench) -> None:
    built(bench, "cpu", "1", Level.CPU)
    assert locate(bench, "cpu", "cpu")[2].name == "cpu"
    with pytest.raises(InputError, match="cpu is a row, and --row says a100-cu118"):
        locate(bench, "cpu", "a100-cu118")


def test_a_proven_image_is_preferred_to_a_candidate(bench: Bench) -> None:
    target = built(bench, "cpu", "1", None)
    built(bench, "cpu", "2", Level.CPU, named="proven")
    assert locate(bench, "cpu", None)[1].id == "sha256:2"
    assert locate(bench, target.candidate, None)[1].id == "sha256:1"


# --- build ------------------------------------------------------------------------------------------------------------

Proving = Callable[..., list[str]]


@pytest.fixture
def proving(monkeypatch: pytest.MonkeyPatch) -> Proving:
    """Stand-ins for building and proving: what a proof would say, and what was asked for."""

    def make(outcome: Level | BaseException, *missing: Finding) -> list[str]:
        asked: list[str] = []

        def prove(bench: Bench, run: Any, env: Any, ref: str, **rest: Any) -> Proof:
            asked.append(f"prove {ref}")
            if isinstance(outcome, BaseException):
                raise outcome
            info = bench.engine.image(ref)
            assert info is not None
            path = prove_as(bench, env.name, info.id.removeprefix("sha256:"), outcome)
            return Proof(engine_id=info.id, level=outcome, path=path, record=evidence.read(path), missing=missing)

        def build_image(bench: Bench, run: Any, target: Target, **rest: Any) -> None:
            asked.append("build")
            bench.fake.add("new", target.candidate, env=target.env.name, target=target.rendering.target_id)

        monkeypatch.setattr(proving_module, "read_gpus", lambda: fault_of(12, "", hardware=False))
        monkeypatch.setattr(pipeline, "prove", prove)
        monkeypatch.setattr(pipeline, "build_image", build_image)
        return asked

    return make


def test_build_tags_last_and_takes_the_candidates_name_away(bench: Bench, proving: Proving) -> None:
    asked = proving(Level.CPU)
    target = bench.target("cpu")
    said: list[Event] = []
    bench.sink = said.append
    result = build(bench, "cpu", BuildOptions())
    proven = names(target.env, target.rendering.id8, None).proven
    assert asked == ["build", f"prove {target.candidate}"]
    assert bench.fake.changes == [
        ("tag", proven), ("tag", "envbuild/cpu:validated"), ("untag", target.candidate),
    ]  # fmt: skip
    assert (result.status, result.image) == ("built", "sha256:new")
    assert any(isinstance(event, Note) and "not signed" in event.message for event in said)


def test_a_candidate_that_is_there_is_proven_and_not_built_again(bench: Bench, proving: Proving) -> None:
    asked = proving(Level.CPU)
    target = built(bench, "cpu", "1", None)
    assert build(bench, "cpu", BuildOptions()).status == "proven"
    assert asked == [f"prove {target.candidate}"]


def test_an_image_whose_record_was_emptied_is_proven_again(bench: Bench, proving: Proving) -> None:
    asked = proving(Level.CPU)
    target = built(bench, "cpu", "1", None, named="proven")
    path = prove_as(bench, "cpu", "1", Level.CPU)
    path.write_text("")
    result = build(bench, "cpu", BuildOptions())
    assert asked == [f"prove {names(target.env, target.rendering.id8, None).proven}"]
    assert (result.status, result.evidence) == ("proven", path)
    assert evidence.read(path).level is Level.CPU, "the record is whole again"


def test_a_derived_image_under_the_candidates_name_is_built_over(bench: Bench, proving: Proving) -> None:
    asked = proving(Level.CPU)
    target = bench.target("cpu")
    derived(bench, "2", target.candidate)
    result = build(bench, "cpu", BuildOptions())
    assert (result.status, result.image) == ("built", "sha256:new")
    assert asked == ["build", f"prove {target.candidate}"]
    assert bench.fake.names["envbuild/cpu:validated"] == "sha256:new"
    assert build(bench, "cpu", BuildOptions()).status == "up to date", "the build's own image is known again"


def test_a_derived_image_under_the_id_tag_is_neither_taken_for_the_rows_nor_overwritten(
    bench: Bench, proving: Proving
) -> None:
    asked = proving(Level.CPU)
    target = bench.target("cpu")
    proven = names(target.env, target.rendering.id8, None).proven
    derived(bench, "2", proven)
    with pytest.raises(GateError, match="no build of this store made") as caught:
        build(bench, "cpu", BuildOptions())
    assert f"docker rmi {proven}" in caught.value.hint
    assert asked == [], "it is known before anything is built"
    assert bench.fake.names[proven] == "sha256:2"
    assert bench.fake.changes == []
    bench.fake.untag(proven)
    assert build(bench, "cpu", BuildOptions()).image == "sha256:new", "once the name is free"
    assert asked.count("build") == 1


def test_smoking_as_another_row_leaves_the_rows_evidence(bench: Bench, proving: Proving) -> None:
    proving(Level.CPU)
    target = built(bench, "cpu", "1", Level.CPU)
    proof, _ = smoke(bench, target.candidate, row="a100-cu118", wish=Wish(allow_level=Level.CPU))
    assert proof.record.environment == "a100-cu118"
    assert promote(bench, "cpu", row=None).target_id == target.rendering.target_id


def test_a_candidate_of_other_inputs_is_built_again(bench: Bench, proving: Proving) -> None:
    asked = proving(Level.CPU)
    bench.fake.add("1", bench.target("cpu").candidate, env="cpu", target="f" * 64)
    assert build(bench, "cpu", BuildOptions()).status == "built"
    assert asked[0] == "build"


def test_an_image_that_does_not_pass_gets_no_name(bench: Bench, proving: Proving) -> None:
    finding = Finding(rule="smoke.grad", severity=Severity.ERROR, subject="rank 0", message="doubled")
    proving(FindingsError("does not pass", (finding,), exit_code=5))
    with pytest.raises(FindingsError) as caught:
        build(bench, "cpu", BuildOptions(allow_level=Level.BUILT))
    assert (caught.value.exit_code, caught.value.code) == (5, "gate")
    assert bench.fake.changes == []
    assert list(bench.fake.names) == [bench.target("cpu").candidate]


def test_an_interruption_leaves_no_name_and_no_lock(bench: Bench, proving: Proving) -> None:
    proving(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        build(bench, "cpu", BuildOptions())
    assert bench.fake.changes == []
    proving(Level.CPU)
    assert build(bench, "cpu", BuildOptions()).status == "proven", "the next run does not wait for the dead one"


def test_too_little_evidence_keeps_the_candidate_for_another_machine(bench: Bench, proving: Proving) -> None:
    proving(Level.CPU)
    with pytest.raises(GateError, match="requires gpu"):
        build(bench, "h200-cu130", BuildOptions())
    assert bench.fake.changes == []
    assert promote(bench, "h200-cu130", row=None, allow_level=Level.CPU).tags[0].endswith("-cpu")


def test_an_allowed_level_is_not_built_twice(bench: Bench, proving: Proving) -> None:
    asked = proving(Level.CPU)
    options = BuildOptions(allow_level=Level.CPU)
    first = build(bench, "h200-cu130", options)
    again = build(bench, "h200-cu130", options)
    assert first.tags == again.tags and len(first.tags) == 1
    assert asked.count("build") == 1, "other bytes could never get the name"


def test_no_cache_refuses_before_it_builds_what_could_not_be_named(bench: Bench, proving: Proving) -> None:
    asked = proving(Level.CPU)
    built(bench, "cpu", "1", Level.CPU, named="proven")
    with pytest.raises(GateError, match="never overwritten"):
        build(bench, "cpu", BuildOptions(no_cache=True))
    assert asked == []


def test_a_broken_rule_stops_before_the_engine_is_asked(bench: Bench) -> None:
    del bench.__dict__["engine"]
    bench.host = "unix:///nowhere"
    text = bench.project.matrix.read_text()
    bench.project.matrix.write_text(text.replace('version: "0.19.8"', 'version: "0.0.1"'))
    with pytest.raises(FindingsError, match="broken") as caught:
        build(bench, "cpu", BuildOptions())
    assert caught.value.exit_code == 1


def test_a_stale_lock_stops_before_the_engine_is_asked(bench: Bench) -> None:
    del bench.__dict__["engine"]
    bench.host = "unix:///nowhere"
    text = bench.project.matrix.read_text()
    bench.project.matrix.write_text(text.replace('version: "0.19.8"', 'version: "0.19.7"'))
    with pytest.raises(FindingsError, match="stale") as caught:
        build(bench, "cpu", BuildOptions())
    assert caught.value.exit_code == 1
    assert "envbuild lock cpu" in caught.value.hint


# --- what list and show say -------------------------------------------------------------------------------------------


def test_standing(bench: Bench) -> None:
    env = bench.matrix.get("cpu")
    assert report.standing(bench, env).as_dict() | {"target_id": None} == {
        "level": "derived", "standing": "never built", "image": None, "target_id": None, "broken": [],
        "recorded": None, "note": "no image of the current inputs on this engine",
    }  # fmt: skip
    target = built(bench, "cpu", "1", None)
    unproven = report.standing(bench, env)
    assert (unproven.level, unproven.image) == ("unproven", target.candidate)
    built(bench, "cpu", "2", Level.CPU, named="proven")
    assert report.standing(bench, env).level == "cpu"
    assert report.standing(bench, bench.matrix.get("a100-cu118")).note == "a100-cu118 has no lock"


def test_standing_without_an_engine(bench: Bench) -> None:
    del bench.__dict__["engine"]
    bench.host = "unix:///nowhere/docker.sock"
    standing = report.standing(bench, bench.matrix.get("cpu"))
    assert standing.level == "derived" and standing.target_id == bench.target("cpu").rendering.target_id
    assert "no Docker Engine answers" in (standing.note or "")


def test_details_are_one_json_document(bench: Bench) -> None:
    built(bench, "cpu", "1", Level.CPU, named="proven")
    said = json.loads(json.dumps(report.details(bench, bench.matrix.get("cpu"))))
    assert said["evidence"]["level"] == said["state"]["level"] == "cpu"
    lock = bench.target("cpu").lock
    assert said["state"]["lock"].endswith(f"{len(lock.packages)} packages, by {lock.resolver}")
    values = {fact["name"]: fact["value"] for fact in said["facts"]}
    assert values["deepspeed.ops"] == "cpu_adam, deepspeed_shm_comm, async_io"
    cuda = {fact["name"]: fact["value"] for fact in report.details(bench, bench.matrix.get("a100-cu118"))["facts"]}
    assert cuda["pins"] == "numpy<2, setuptools<82"
