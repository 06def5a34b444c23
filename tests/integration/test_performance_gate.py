"""A row that requires no regression against a baseline, on real images: from its first one to a slower one.

The slower image is the proven one with a busy wait in DeepSpeed's forward pass. Its content is not looked at again: its
evidence is the proven one's, made out to it. Each launch trains 45 steps on one rank, whatever the baseline had. The
baseline's have a wait of their own, so that what the host does meanwhile is little beside it.
"""

from __future__ import annotations

import datetime
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envbuild import evidence
from envbuild.engines import BuildRequest, DockerEngine, ImageInfo
from envbuild.pipeline.build import up_to_date
from envbuild.pipeline.prepare import FindingsError
from envbuild.profile import baselines
from measured import launch, measurement
from proving import ENVBUILD, REGISTRY, REPOSITORY, Cli, surroundings, tags_of
from worlds import World

PLACE = f"{REGISTRY}/gate"
# Appended to deepspeed/runtime/engine.py.
BUSY = """
def _busy(self, *inputs, __forward=DeepSpeedEngine.forward, **named):
    import time
    end = time.monotonic() + 0.15
    while time.monotonic() < end:
        pass
    return __forward(self, *inputs, **named)
DeepSpeedEngine.forward = _busy
"""


def demanding(folder: Path, more: str = "") -> Path:
    """A project with the repository's row, which requires no regression against a baseline, and nothing else."""
    root = folder / "project"
    (root / "images" / "cpu").mkdir(parents=True)
    shutil.copy(REPOSITORY / "images" / "cpu" / "lock.json", root / "images" / "cpu")
    text = (REPOSITORY / "matrix.yaml").read_text()
    asked = f"    requires: cpu\n    performance: {{baseline: required{more}}}\n"
    (root / "matrix.yaml").write_text(text.replace("    requires: cpu\n", asked))
    return root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return demanding(tmp_path, ", delta: 50%, rounds: 5")


@pytest.fixture
def call(
    proven: dict[str, object], engine: DockerEngine, store_home: Path, tmp_path: Path, project: Path
) -> Iterator[Cli]:
    """The command with a copy of the session's store, and names of its own for the proven image."""
    home = tmp_path / "home"
    for name in ("evidence", "built"):
        shutil.copytree(store_home / name, home / name)
    (own,) = (tag for tag in proven["tags"] if not str(tag).endswith(":validated"))  # type: ignore[attr-defined]
    engine.tag(str(proven["id"]), str(own).replace(REGISTRY, PLACE, 1))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**surroundings(home), "ENVBUILD_REGISTRY_NAME": PLACE}
        argv = [ENVBUILD, *arguments]
        if arguments[0] not in ("baseline",):
            argv += ["--project", str(project)]
        else:
            argv += ["--baselines", str(project / "baselines")]
        return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVBUILD_HOME", str(home))
        yield run
    for tag in tags_of(engine, f"{PLACE}/envbuild/cpu"):
        engine.untag(tag)


def slowed(engine: DockerEngine, proven: dict[str, object], tag: str, folder: Path) -> ImageInfo:
    """The proven image with a busy wait; named, noted and proven as if a build of the row had made it."""
    first = engine.image(str(proven["id"]))
    assert first is not None
    context = folder / "context"
    context.mkdir()
    (context / "busy.py").write_text(BUSY)
    (context / "Dockerfile").write_text(
        f"FROM {tag}\nUSER root\nCOPY busy.py /tmp/\nRUN cat /tmp/busy.py >> "
        "$(echo /opt/venv/lib/python3*/site-packages/deepspeed/runtime/engine.py) && rm /tmp/busy.py "
        "/opt/venv/lib/python3*/site-packages/deepspeed/runtime/__pycache__/engine.*\n"
    )
    engine.build(
        BuildRequest(context=context, dockerfile=context / "Dockerfile", tag=f"{tag}-slow", platform="linux/amd64"),
        log=folder / "log",
    )
    info = engine.image(f"{tag}-slow")
    assert info is not None
    engine.tag(info.id, tag)
    engine.untag(f"{tag}-slow")
    identity = evidence.Identity(config_digest=info.id, diff_ids=info.diff_ids)
    for record, _ in evidence.every(first.id, first.diff_ids):
        evidence.save(record.model_copy(update={"image": identity}), info.id)
    evidence.remember_built(str(proven["target_id"]), info.id)
    return info


def test_from_the_first_baseline_to_a_slower_image(
    call: Callable[..., subprocess.CompletedProcess[str]], engine: DockerEngine, proven: dict[str, object],
    tmp_path: Path, project: Path,
) -> None:  # fmt: skip
    moving = f"{PLACE}/envbuild/cpu:validated"
    (own,) = tags_of(engine, f"{PLACE}/envbuild/cpu")
    # The requirement is no input: the proven image is the row's, and nothing is built or smoked.
    done = call("build", "cpu")
    assert done.returncode == 5 and "there is no baseline of cpu in" in done.stderr, done.stderr
    assert "envbuild baseline add" in done.stderr and engine.image(moving) is None
    done = call(
        "profile", "cpu", "--ranks", "1", "--steps", "1", "--warmup", "1", "--straggle", "30", "--pass", "timing",
        "--set", "gradient_accumulation_steps=1", "-o", "base.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert call("baseline", "add", "base.json", "--reason", "first of this machine").returncode == 0
    done = call("promote", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    assert moving in json.loads(done.stdout)["images"][0]["tags"]
    assert call("build", "cpu", "--json").stdout.count('"up to date"') == 1

    slow = slowed(engine, proven, own, tmp_path)
    done = call("build", "cpu")
    assert done.returncode == 5 and re.search(r"regressed against cpu-tiny-\S+: ratio [1-9]", done.stderr), done.stderr
    assert (info := engine.image(moving)) is not None and info.id == proven["id"], "validated has not moved"
    (record,) = (each for each, _ in evidence.compared(evidence.digest_of(slow.id) or ""))
    assert (record.verdict, record.rounds, record.delta) == ("regressed", 5, 0.5)
    # Said again it is told again; no way around it but a baseline with a reason.
    again = call("promote", "cpu")
    assert again.returncode == 5 and "regressed against" in again.stderr
    (measured,) = set(re.findall(r"\S+/candidate\.json", done.stderr))
    done = call("baseline", "promote", measured, "--reason", "slower by choice")
    assert done.returncode == 0, done.stderr
    assert call("promote", "cpu").returncode == 0
    assert (info := engine.image(moving)) is not None and info.id == slow.id
    told = json.loads(call("show", "cpu", "--json").stdout)["environment"]["state"]["performance"]
    assert "it is the baseline cpu-tiny-" in told and "slower by choice" in told
    (stored,) = (project / "baselines").iterdir()
    assert stored.name == f"{record.baseline}.json", "one baseline, with its history"


def test_a_row_that_requires_a_baseline_is_believed_by_a_signed_comparison_only(world: World, tmp_path: Path) -> None:
    own = {world.names.proven.rpartition(":")[2]}
    info = world.image(1 << 20)
    world.prove(info)
    world.push()
    # From here on the row asks for it: what was pushed before has no comparison beside it.
    world.project = demanding(tmp_path)
    world.forget()
    world.home("puller")
    with pytest.raises(FindingsError) as refused:
        world.pull()
    assert [each.rule for each in refused.value.findings] == ["verify.performance"] and world.local == set()
    info = world.pull(locked=True)
    assert world.local == own, "by its content it may come, and is not called validated"
    # Where it was proven it becomes the baseline, and that travels with it, signed.
    world.home("pusher")
    key = {"image": evidence.digest_of(info.id), "row": "cpu"}
    origin = {"kind": "probe", "made": {"image": world.names.proven}}
    found = measurement(launch([1.0] * 8), key=key, origin=origin)
    made = baselines.promoted(None, found, reason="first", now=datetime.datetime.now(datetime.timezone.utc))
    baselines.write(world.project / "baselines", made)
    world.push()
    world.forget()
    world.home("puller")
    info = world.pull()
    assert world.local == {*own, "validated"}
    ((record, path),) = evidence.compared(evidence.digest_of(info.id) or "")
    assert record.verdict == "baseline" and evidence.compared_by(path, [world.key.public])[0].reason == "first"
    done = up_to_date(world.bench(), world.target)
    assert done is not None and done.status == "up to date"
