"""What `verify` answers: every reason not to believe in an image, each with its id and a way out."""

from __future__ import annotations

import dataclasses
import datetime
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from envbuild import evidence
from envbuild.errors import InputError
from envbuild.evidence import keys, statement
from envbuild.judge.suite import suite_hash
from envbuild.matrix import load
from envbuild.model import Environment, ImageIdentity, Level, Severity
from envbuild.pipeline.objections import Subject
from envbuild.pipeline.prove import claims
from envbuild.pipeline.verify import Verified, answer, as_dict, lines
from envbuild.pipeline.wanted import Wanted, duration, parse_age, parse_level, parse_sm

REPOSITORY = Path(__file__).parents[2]
CONFIG, OTHER, LAYER = (f"sha256:{letter * 64}" for letter in "abc")
SEEN = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.timezone.utc)
NOW = SEEN + datetime.timedelta(days=3, hours=1)
CUBINS = ["8.0", "9.0"]


@pytest.fixture(scope="module")
def rows() -> dict[str, Environment]:
    return dict(load(REPOSITORY / "matrix.yaml").environments)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> evidence.SigningKey:
    path = tmp_path_factory.mktemp("own") / "own.pem"
    keys.make(path)
    return keys.load_signing(path)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> evidence.SigningKey:
    path = tmp_path_factory.mktemp("stranger") / "stranger.pem"
    keys.make(path)
    return keys.load_signing(path)


@dataclasses.dataclass
class Case:
    """An image as the row `cpu`, and one who asks."""

    rows: dict[str, Environment]
    own: evidence.SigningKey

    def record(self, *, row: str = "cpu", **changes: Any) -> evidence.Evidence:
        fields = {
            "environment": row, "target_id": None, "level": Level.CPU, "suite": suite_hash(), "envbuild": "0.1.0",
            "image": {"config_digest": CONFIG, "diff_ids": [LAYER]}, "platform": "linux/amd64", "size_bytes": 1,
            "base": {}, "claims": claims(self.rows[row]), "smoke": {}, "findings": [],
            "content": {}, "portability": {"cubins": CUBINS},
            "host": {"system": "s", "machine": "m", "cpu": "c", "cpus": 2, "memory_bytes": 1, "engine": "e"},
            "started": SEEN, "finished": SEEN, "seconds": {},
        }  # fmt: skip
        return evidence.Evidence.model_validate({**fields, **changes})

    def save(self, *, key: evidence.SigningKey | None = None, **changes: Any) -> Path:
        return evidence.save(self.record(**changes), "sha256:x", key=key or self.own)

    def ask(self, *, row: str = "cpu", wanted: Wanted | None = None, **changes: Any) -> Verified:
        subject = Subject(
            ref="team/train:1", env=self.rows[row], wanted=wanted or Wanted(), keys=(self.own.public,),
            identity=ImageIdentity(config_digest=CONFIG, diff_ids=(LAYER,)), suite=suite_hash(), now=NOW,
        )  # fmt: skip
        return answer(dataclasses.replace(subject, **changes))


@pytest.fixture
def case(rows: dict[str, Environment], own: evidence.SigningKey) -> Case:
    return Case(rows, own)


def rules(found: Verified) -> list[str]:
    assert all(each.subject == "team/train:1" and each.message and each.fix for each in found.findings)
    assert found.good is not any(each.severity is Severity.ERROR for each in found.findings)
    return [each.rule for each in found.findings]


def test_good_evidence(case: Case) -> None:
    path = case.save()
    found = case.ask(wanted=Wanted(level=Level.CPU, sm=(9, 0), max_age=datetime.timedelta(days=4)))
    assert (rules(found), found.good, found.record, found.path) == ([], True, case.record(), path)
    assert (found.key, found.age) == (case.own.public, NOW - SEEN)
    said = dict(lines(found))
    assert said["level"] == "cpu (cpu required)" and said["age"].startswith("3 days") and said["GPU"] == "none"
    assert said["signed by"] == case.own.public.id
    assert as_dict(found)["verified"] is True and as_dict(found)["signed_by"] == case.own.public.id
    json.dumps(as_dict(found))


def test_nothing_was_ever_seen(case: Case) -> None:
    found = case.ask()
    assert rules(found) == ["verify.none"] and "envbuild smoke team/train:1" in found.findings[0].fix
    assert rules(case.ask(keys=())) == ["verify.none", "verify.key"]
    assert len(lines(found)) == 3 and as_dict(found)["level"] is None
    case.save(row="h200-cu130", level=Level.GPU)
    assert "there is as h200-cu130" in case.ask().findings[0].message


@pytest.mark.parametrize(
    ("changes", "rule", "said"),
    [
        ({"level": Level.BUILT}, "verify.level", "level built; cpu is required"),
        ({"suite": "5" * 64}, "verify.suite", "of suite '555555555555'"),
        ({"claims": {"torch": "2.12.0+cpu"}}, "verify.claims", "torch '2.12.0+cpu', now '2.13.0+cpu'"),
        ({"finished": NOW + datetime.timedelta(hours=1)}, "verify.age", "from the future"),
        ({"finished": NOW - datetime.timedelta(days=31)}, "verify.age", "31 days old; 30 days are allowed"),
        ({"portability": {}}, "verify.sm", "no code for any GPU"),
        ({"portability": {"cubins": ["8.0", "9.1", "10.0"]}}, "verify.sm", "runs on 9.0: torch and its ops have code"),
        ({"portability": {"cubins": [1, None, "x"]}}, "verify.sm", "no code for any GPU"),
    ],
)  # fmt: skip
def test_each_thing_that_can_be_wrong(changes: dict[str, Any], rule: str, said: str, case: Case) -> None:
    case.save(**changes)
    found = case.ask(wanted=Wanted(sm=(9, 0), max_age=datetime.timedelta(days=30)))
    assert rules(found) == [rule]
    assert said in found.findings[0].message


def test_everything_that_is_wrong_is_told_at_once(case: Case) -> None:
    case.save(level=Level.BUILT, suite="5" * 64, claims={}, portability={})
    path = evidence.stored(CONFIG)[0]
    evidence.envelope_of(path).unlink()
    found = case.ask(wanted=Wanted(level=Level.GPU, sm=(9, 0), max_age=datetime.timedelta(days=1)))
    assert rules(found) == [f"verify.{each}" for each in ("unsigned", "level", "suite", "claims", "age", "sm")]
    assert "On a machine with a GPU" in found.findings[1].fix


def test_whose_signature_it_is(case: Case, stranger: evidence.SigningKey) -> None:
    path = case.save(key=stranger)
    found = case.ask()
    assert rules(found) == ["verify.key"] and found.key is None
    assert stranger.public.id[:12] in found.findings[0].message and case.own.public.id[:12] in found.findings[0].fix
    assert dict(lines(found))["signed by"] == "nobody who is trusted"
    assert rules(case.ask(keys=())) == ["verify.key"], "one reason, told once"
    assert rules(case.ask(keys=(case.own.public, stranger.public))) == []
    evidence.envelope_of(path).unlink()
    assert rules(case.ask()) == ["verify.unsigned"]
    assert rules(case.ask(keys=())) == ["verify.key", "verify.unsigned"]


def test_evidence_of_another_image_in_this_ones_folder(case: Case) -> None:
    other = case.save(image={"config_digest": OTHER, "diff_ids": [LAYER]})
    shutil.copytree(other.parent, other.parent.with_name(CONFIG.removeprefix("sha256:")))
    found = case.ask()
    assert rules(found) == ["verify.digest"] and OTHER[:19] in found.findings[0].message
    case.save(image={"config_digest": CONFIG, "diff_ids": [LAYER, OTHER]})
    assert rules(case.ask()) == ["verify.digest"], "other layers under the same config"


def test_tampered(case: Case) -> None:
    path = case.save(level=Level.BUILT)
    path.write_text(path.read_text().replace('"level": "built"', '"level": "cpu"'))
    assert rules(case.ask()) == ["verify.tampered"]
    case.save()
    found = case.ask()
    assert found.good and rules(found) == ["verify.tampered"], "a warning where another record is good"
    for each in evidence.stored(CONFIG):
        each.write_text(json.dumps({**json.loads(each.read_bytes()), "\x1b[31m": 1}))
    found = case.ask()
    assert not any("\x1b" in finding.message for finding in found.findings)
    assert "verify.tampered" in rules(found) and not found.good and found.record is None
    assert rules(case.ask(row="h200-cu130")) == ["verify.none"], "of another row, as its name says"


def test_a_later_version_is_not_understood(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(statement, "PREDICATE_TYPE", f"{statement.PREDICATE_FAMILY}v2")
        case.save()
    found = case.ask()
    assert rules(found) == ["verify.unknown"] and found.findings[0].fix.startswith("Update envbuild")


def test_the_best_record_answers(case: Case, stranger: evidence.SigningKey) -> None:
    case.save(suite="4" * 64, level=Level.GPU)
    case.save(level=Level.BUILT)
    good = case.save()
    assert (case.ask().path, case.ask().findings) == (good, ())
    stronger = case.save(level=Level.GPU)
    assert case.ask().path == stronger
    case.save(level=Level.GPU, key=stranger)
    assert case.ask().path == good, "weaker, and of somebody who is trusted"
    assert rules(case.ask(wanted=Wanted(level=Level.GPU))) == ["verify.key"], "the one that misses least"


def test_a_gpu_row_wants_a_gpu(case: Case) -> None:
    case.save(row="h200-cu130")
    found = case.ask(row="h200-cu130")
    assert rules(found) == ["verify.level"] and "gpu is required" in found.findings[0].message
    assert case.ask(row="h200-cu130", wanted=Wanted(level=Level.CPU)).good
    case.save(row="h200-cu130", level=Level.GPU_MIG)
    assert rules(case.ask(row="h200-cu130")) == ["verify.level"], "a slice of a GPU is none"
    host = {**case.record().host.model_dump(), "gpus": ({"name": "A100\x1b[31m", "sm": "8.0"},), "driver": "580.95.05"}
    case.save(row="h200-cu130", level=Level.GPU, host=host)
    found = case.ask(row="h200-cu130", wanted=Wanted(sm=(9, 0)))
    assert found.good and rules(found) == ["verify.sm"] and "8.0" in found.findings[0].message
    assert dict(lines(found))["GPU"] == "A100?[31m" and dict(lines(found))["driver"] == "580.95.05"


@pytest.mark.parametrize(
    ("wanted", "covered"), [((8, 0), True), ((8, 9), True), ((9, 0), True), ((7, 5), False), ((10, 0), False)]
)
def test_code_of_one_major_version_runs_on_its_later_minors(wanted: tuple[int, int], covered: bool, case: Case) -> None:
    case.save()
    assert case.ask(wanted=Wanted(sm=wanted)).good is covered


def test_hostile_times_are_no_traceback(case: Case) -> None:
    for finished in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        case.save(finished=finished)
        found = case.ask(wanted=Wanted(max_age=datetime.timedelta(days=1)))
        assert rules(found) == ["verify.age"] and lines(found) and as_dict(found)


# --- as it is said on the command line --------------------------------------------------------------------------------


def test_wanted_in_words() -> None:
    assert [parse_sm(text) for text in ("90", "9.0", "sm_90", "120", None)] == [(9, 0)] * 3 + [(12, 0), None]
    assert parse_age("30") == parse_age("30d") == datetime.timedelta(days=30)
    assert parse_age("12h") == datetime.timedelta(hours=12) and parse_age(None) is None
    assert (parse_level("gpu-mig"), parse_level(None)) == (Level.GPU_MIG, None)
    for parse, texts in (
        (parse_sm, ["", "9", "x", "٩٠", "9" * 5000]),
        (parse_age, ["", "0", "-1", "1w", "1.5d", "999999", "٣"]),
        (parse_level, ["", "GPU", "declared", "derived"]),
    ):
        for text in texts:
            with pytest.raises(InputError, match="--"):
                parse(text)  # type: ignore[operator]
    ages = [(0, "0 minutes"), (60, "1 minute"), (7200, "2 hours"), (86400 * 2 + 5, "2 days")]
    assert [duration(datetime.timedelta(seconds=count)) for count, _ in ages] == [text for _, text in ages]
