"""The main job on a real engine: build, prove, tag; and everything that must not get a name.

One image is built and proven for the whole run. The store is the run's own and the tags carry a registry
prefix of its own, so that nobody's images are touched; the engine's build cache is whatever it is.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from envbuild import facts
from envbuild import lock as locks
from envbuild.elf.functions import identifier
from envbuild.elf.isa import Dispatch, Guard, Isa, read_isa
from envbuild.engines import BuildRequest, ContainerSpec, DockerEngine
from envbuild.events import Event
from envbuild.evidence import keys
from envbuild.matrix import load
from envbuild.pipeline.build import BuildOptions, build
from envbuild.pipeline.prepare import FindingsError
from envbuild.pipeline.workbench import Workbench
from proving import REGISTRY, REPOSITORY, Cli, tags_of, wait_for

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def own_registry_name() -> Iterator[None]:
    """For the tests that call the pipeline in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVBUILD_REGISTRY_NAME", REGISTRY)
        yield


@pytest.fixture
def own_project(tmp_path: Path) -> Callable[..., Path]:
    """A project whose one row is `cpu` with changes; its lock is the repository's, when the wheels are the same."""

    def make(row: str, changes: dict[str, object], *, locked: bool = True) -> Path:
        document = yaml.safe_load((REPOSITORY / "matrix.yaml").read_text())
        base = document["environments"]["cpu"]
        for key, value in changes.items():
            base[key] = {**base[key], **value} if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        folder = tmp_path / "project"
        folder.mkdir()
        matrix = {**document, "environments": {row: base}}
        (folder / "matrix.yaml").write_text(yaml.safe_dump(matrix))
        if locked:
            env = load(folder / "matrix.yaml").get(row)
            known = locks.read(REPOSITORY / "images/cpu/lock.json")
            # A lock that says what the row says, and an image that does not: the gate has to see it.
            versions = {"torch": env.torch_version}
            made = known.model_copy(
                update={
                    "environment": row,
                    "inputs": locks.inputs_digest(env, known.platform),
                    "packages": tuple(
                        package.model_copy(update={"version": versions.get(package.name, package.version)})
                        for package in known.packages
                    ),
                }
            )
            locks.write(folder / "images" / row / "lock.json", made)
        return folder

    return make


def test_the_image_is_tagged_and_its_evidence_says_why(
    proven: dict[str, object], engine: DockerEngine, cli: Cli
) -> None:
    assert proven["level"] == "cpu"
    tags = proven["tags"]
    assert isinstance(tags, list) and len(tags) == 2
    assert {engine.image(tag).id for tag in tags} == {proven["id"]}  # type: ignore[union-attr]
    record = json.loads(Path(str(proven["evidence"])).read_text())
    assert record["level"] == "cpu" and record["environment"] == "cpu"
    assert record["target_id"] == proven["target_id"]
    ranks = record["smoke"]["zero3"]["ranks"]
    assert len(ranks) == 2
    shown = cli("show", "cpu")
    assert shown.returncode == 0
    assert "level cpu" in shown.stdout and str(proven["evidence"]) in shown.stdout


def test_the_ops_keep_to_the_rows_cpu(proven: dict[str, object], engine: DockerEngine) -> None:
    """Read from the exported image; what deepspeed_shm_comm has for newer CPUs is what upstream guards."""
    known = facts.load().deepspeed.ops["deepspeed_shm_comm"].dispatch("0.19.8")
    assert known is not None
    guards = tuple(Guard(functions=guard.functions, extensions=guard.extensions) for guard in known.guards)
    ops: dict[str, Isa] = {}
    with engine.save(str(proven["id"])) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if not member.name.endswith("layer.tar"):
                continue
            with tarfile.open(fileobj=archive.extractfile(member), mode="r|") as layer:
                for inner in layer:
                    found = re.search(r"deepspeed/ops/\w+/(\w+)_op\.[^/]*so$", inner.name)
                    if found:
                        content = layer.extractfile(inner)
                        isa = read_isa(io.BytesIO(content.read() if content else b""))
                        assert isinstance(isa, Isa)
                        ops[found[1]] = isa
    assert set(ops) >= {"cpu_adam", "deepspeed_shm_comm"}
    assert ops["cpu_adam"].level == "x86-64-v3" and ops["deepspeed_shm_comm"].level == "x86-64-v4"
    for isa in ops.values():
        assert not isa.gaps and not isa.truncated
        assert isa.beyond("x86-64-v3", Dispatch(check=known.check, guards=guards)) == ()
    guarded = {identifier(use.function) for use in ops["deepspeed_shm_comm"].beyond("x86-64-v3")}
    assert guarded == {"reduce_bf16_buffers", "reduce_fp16_buffers"}


def test_a_smoke_with_a_key_signs_what_it_saw(proven: dict[str, object], cli: Cli, tmp_path: Path) -> None:
    """The evidence of the build is not signed, so it is seen again: a signature is for what its owner's machine saw."""
    keys.make(tmp_path / "farm.pem")
    image = proven["tags"][0]  # type: ignore[index]
    public = str(tmp_path / "farm.pub")
    before = json.loads(cli("verify", image, "--key", public, "--json").stdout)
    assert [each["rule"] for each in before["findings"]] == ["verify.unsigned"]
    done = cli("smoke", image, "--key", str(tmp_path / "farm.pem"))
    assert done.returncode == 0 and "is not signed: no" not in done.stderr, done.stderr
    after = cli("verify", image, "--key", public, "--require", "cpu", "--max-age", "1h")
    assert after.returncode == 0, after.stdout


def test_identity_is_what_an_independent_reader_finds(proven: dict[str, object], engine: DockerEngine) -> None:
    """The recorded identity is the exported config's, read here with nothing of ours."""
    import hashlib

    record = json.loads(Path(str(proven["evidence"])).read_text())
    with engine.save(str(proven["id"])) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        small = {
            member.name: tar.extractfile(member).read() for member in tar if member.isfile() and member.size < 1 << 20
        }  # type: ignore[union-attr]
    config = small[json.loads(small["manifest.json"])[0]["Config"]]
    assert record["image"]["config_digest"] == "sha256:" + hashlib.sha256(config).hexdigest()
    assert record["image"]["diff_ids"] == json.loads(config)["rootfs"]["diff_ids"]


def test_a_second_build_is_up_to_date_and_starts_no_build(
    proven: dict[str, object], cli: Cli, store_home: Path
) -> None:
    logs = sorted((store_home / "cache").rglob("*.log"))
    again = cli("build", "cpu", "--json")
    assert again.returncode == 0, again.stderr
    image = json.loads(again.stdout)["images"][0]
    assert image["status"] == "up to date"
    assert image["id"] == proven["id"]
    assert sorted((store_home / "cache").rglob("*.log")) == logs


def test_the_ops_are_vectorised(proven: dict[str, object]) -> None:
    """CPUAdam of an x86-64-v3 row uses AVX and FMA: a baseline that held everything back would pass inspection too."""
    isa = json.loads(Path(str(proven["evidence"])).read_text())["content"]["native"]["isa"]
    assert isa["cpu_adam"]["level"] == "x86-64-v3"
    assert isa["cpu_adam"]["extensions"]["FMA"] > 100 and isa["cpu_adam"]["extensions"]["AVX"] > 1000


def test_a_uid_that_nobody_knows_has_a_home_a_name_and_a_working_deepspeed(
    proven: dict[str, object], engine: DockerEngine
) -> None:
    script = (
        "import getpass, pathlib, deepspeed; (pathlib.Path.home() / 'x').write_text('x'); "
        "from deepspeed.ops.adam import DeepSpeedCPUAdam; print(getpass.getuser(), pathlib.Path.home())"
    )
    spec = ContainerSpec(image=str(proven["id"]), argv=("python", "-c", script), user="12345:54321", network="none")
    result = engine.run(spec, timeout=60)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "envbuild /home/envbuild"


def test_run_mounts_the_folder_and_a_later_install_cannot_swap_torch(
    proven: dict[str, object], cli: Cli, tmp_path: Path
) -> None:
    ran = cli("run", str(proven["tags"][0]), "--", "python", "-c",  # type: ignore[index]
              "import os, torch, getpass; print(os.getcwd(), torch.__version__, getpass.getuser())",
              cwd=tmp_path)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[:2] == [str(tmp_path), "2.13.0+cpu"]
    swapped = cli("run", str(proven["tags"][0]), "--", "python", "-m", "pip", "install", "--no-index", "torch==2.12.1")  # type: ignore[index]
    assert swapped.returncode != 0
    assert "constraint" in (swapped.stdout + swapped.stderr).lower()


def test_run_prints_the_docker_line(proven: dict[str, object], cli: Cli, tmp_path: Path) -> None:
    said = cli("run", "--dry-run", "cpu", "--", "python", "x.py", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "--shm-size" in said.stdout and "python x.py" in said.stdout
    # An engine that may not raise the limit gets a line without it, and the user is told.
    assert ("--ulimit memlock=-1:-1" in said.stdout) != ("locked-memory" in said.stderr)


def test_a_derived_image_has_no_proof_until_it_was_seen(
    proven: dict[str, object], engine: DockerEngine, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {proven['tags'][0]}\nENV TEAM=mine\n")  # type: ignore[index]
    derived = f"{REGISTRY}/team/train:1"
    wanted = BuildRequest(context=tmp_path, dockerfile=tmp_path / "Dockerfile", tag=derived, platform="linux/amd64")
    engine.build(wanted, log=tmp_path / "log")
    early = cli("promote", derived)
    assert early.returncode == 5 and "no evidence" in early.stderr
    smoked = cli("smoke", derived, "--json")
    assert smoked.returncode == 0, smoked.stderr
    promoted = cli("promote", derived, "--json")
    assert promoted.returncode == 0, promoted.stderr
    tags = json.loads(promoted.stdout)["images"][0]["tags"]
    assert all(tag.startswith(f"{REGISTRY}/team/train:") for tag in tags)
    # The row's own names did not move.
    assert engine.image(str(proven["tags"][0])).id == proven["id"]  # type: ignore[union-attr, index]
    for tag in (*tags, derived):
        engine.untag(tag)


class Ready:
    """The real engine, whose every build gives the proven image under another row's labels, in a second."""

    def __init__(self, engine: DockerEngine, parent: str, folder: Path) -> None:
        self._engine, self._parent, self._folder = engine, parent, folder

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def build(self, request: BuildRequest, *, sink: Callable[[Event], None], log: Path, timeout: float | None) -> None:
        (self._folder / "Dockerfile").write_text(f"FROM {self._parent}\n")
        self._engine.build(
            BuildRequest(context=self._folder, dockerfile=self._folder / "Dockerfile", tag=request.tag,
                         platform=request.platform, labels=request.labels),
            sink=sink, log=log, timeout=timeout,
        )  # fmt: skip


# What an image can be spoiled with is the business of tests/sabotage; here, that a build then gives it no name.
REFUSED = {
    "inspection": ({"torch": {"version": "2.12.1"}}, "content.torch"),
    "training": ({"shm_size": "1MiB"}, "smoke.shm"),
}


@pytest.mark.parametrize("by", REFUSED)
def test_an_image_that_is_refused_gets_no_name(
    by: str, proven: dict[str, object], engine: DockerEngine, own_project: Callable[..., Path], tmp_path: Path
) -> None:
    changes, rule = REFUSED[by]
    row = "refused"
    folder = own_project(row, changes)
    bench = Workbench(project_folder=folder)
    bench.__dict__["engine"] = Ready(engine, str(proven["tags"][0]), tmp_path)  # type: ignore[index]
    with pytest.raises(FindingsError) as caught:
        build(bench, row, BuildOptions())
    assert caught.value.exit_code == 5
    assert rule in {finding.rule for finding in caught.value.findings if finding.severity.value == "error"}
    tags = tags_of(engine, f"{REGISTRY}/envbuild/{row}") | tags_of(engine, f"envbuild/{row}")
    assert all("candidate-" in tag for tag in tags), tags
    for tag in tags:
        engine.untag(tag)


def test_a_smoke_that_runs_out_of_time_says_where_it_was(proven: dict[str, object], cli: Cli) -> None:
    done = cli("smoke", str(proven["tags"][0]), "--timeout", "3", "--json", "--force")  # type: ignore[index]
    assert done.returncode == 5
    error = json.loads(done.stdout)
    assert [finding["rule"] for finding in error["findings"]] == ["smoke.timeout"]


@pytest.mark.parametrize("hung_up", [False, True], ids=["SIGTERM", "SIGHUP"])
def test_a_terminated_build_leaves_no_tag_and_says_so(
    proven: dict[str, object], engine: DockerEngine, own_project: Callable[..., Path],
    start: Callable[..., subprocess.Popen[str]], store_home: Path, hung_up: bool,
) -> None:  # fmt: skip
    folder = own_project("interrupted", {"env": {"ANSWER": "42"}})
    process = start("build", "interrupted", "-v", "--project", str(folder))
    wait_for(process, "[build]")
    if hung_up:
        # Whoever listened has gone before the signal comes.
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        process.wait(timeout=60)
    else:
        process.send_signal(signal.SIGTERM)
        _, narration = process.communicate(timeout=60)
        assert "nothing was tagged" in narration
    assert process.returncode == 130
    assert tags_of(engine, f"{REGISTRY}/envbuild/interrupted") == set()
    assert list((store_home / "cache" / "contexts").iterdir()) == []
    with contextlib.suppress(StopIteration):
        engine.untag(next(iter(tags_of(engine, "envbuild/interrupted"))))


def test_a_failing_step_is_named_with_its_log(
    proven: dict[str, object], cli: Cli, own_project: Callable[..., Path], engine: DockerEngine
) -> None:
    folder = own_project("failing", {"packages": ["no-such-package-anywhere"]})
    done = cli("build", "failing", "--project", str(folder))
    assert done.returncode == 4, done.stderr
    assert "no-such-package-anywhere" in done.stderr
    log = next(word for word in done.stderr.split() if word.endswith((".log", ".log)"))).strip("()")
    assert "no-such-package-anywhere" in Path(log).read_text()
    assert tags_of(engine, f"{REGISTRY}/envbuild/failing") | tags_of(engine, "envbuild/failing") == set()
