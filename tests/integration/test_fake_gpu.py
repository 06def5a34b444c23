"""The GPU path, down to the exact request, on a fake GPU runtime: no GPU trains here.

Real are the command, the engine (a dockerd of its own), the containers and the judge. Fake, and so named, are the
driver's library (``nvml.c``), the engine's GPU hook (``hook.py``) and an image whose ``python`` prints a canned
document (``python.c``); the content of that image is not looked at (``inspected.py``).
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envbuild import evidence
from envbuild.engines import DockerEngine, connect
from envbuild.errors import EngineError
from envbuild.judge import smoke
from envbuild.pipeline.names import names
from envbuild.pipeline.prepare import Target, prepare
from envbuild.pipeline.workbench import Workbench

pytestmark = pytest.mark.integration

HERE, REPOSITORY = Path(__file__).parent / "fake_gpu", Path(__file__).parents[2]
GOOD = json.loads((REPOSITORY / "tests/unit/data/judge/zero3.json").read_text())
ROW, REGISTRY = "h200-cu130", "fake-gpu.test"
DRIVER = "driver 580.95.05\ncuda 13000\n"
H200 = "gpu GPU-{0}{0}{0}{0}-0000|NVIDIA H200|9.0|143771|14|0\n"
SLICES = (
    "gpu GPU-1111-0000|NVIDIA H200|9.0|143771|14|1\n"
    "mig MIG-aaaa-0001|NVIDIA H200 MIG 1g.18gb|18144\nmig MIG-bbbb-0002|NVIDIA H200 MIG 1g.35gb|35840\n"
)


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def rules(self) -> list[str]:
        return [finding["rule"] for finding in json.loads(self.out)["findings"]]


@dataclass
class Daemon:
    """A dockerd with folders of its own, on whose PATH the fake hook is."""

    folder: Path
    tools: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"unix://{self.folder}/d.sock"

    def start(self) -> DockerEngine:
        env = {**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}", "FAKE_GPU_DIR": str(self.folder)}
        # In a network of its own: a dockerd without a bridge removes docker0, which is another engine's.
        argv = ["unshare", "--net", "dockerd", "--host", self.host, "--data-root", f"{self.folder}/data", "--exec-root",
                f"{self.folder}/exec", "--pidfile", f"{self.folder}/pid", "--bridge", "none", "--iptables=false",
                "--ip6tables=false"]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(EngineError):
                return connect(self.host)
            time.sleep(0.1)
        pytest.fail(f"the second dockerd did not start:\n{(self.folder / 'log').read_text()[-2000:]}")

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None
        if number == signal.SIGKILL:
            # What a killed engine leaves behind keeps the next one from starting.
            for path in (self.folder / "pid", self.folder / "exec/containerd/containerd.pid"):
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """End it, and what one that was killed left behind: its shims, by their number, and its mount."""
        self.end()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if f"-address\0{self.folder}/" in path.read_text():
                    os.kill(int(path.parent.name), signal.SIGKILL)
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", f"{self.folder}/data"], check=True, timeout=30, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fakes, compiled."""
    folder = tmp_path_factory.mktemp("tools")
    for argv in (
        ["gcc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", HERE / "nvml.c"],
        ["gcc", "-Wall", "-Werror", "-static", "-Os", "-o", "fake-python", HERE / "python.c"],
    ):
        subprocess.run(argv, cwd=folder, check=True, timeout=120)
    hook = folder / "nvidia-container-runtime-hook"
    hook.write_text(f'#!/bin/sh\nexec {sys.executable} -I {HERE / "hook.py"} "$@"\n')
    hook.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def daemon(tools: Path) -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="eb-gpu-"))  # short: the socket's path has 108 bytes
    made = Daemon(folder, tools)
    try:
        made.start()
        yield made
    finally:
        made.remove()


SEED = GOOD["arguments"]["seed"]


def document(accelerator: str, ranks: int, name: str = "NVIDIA H200") -> dict[str, Any]:
    """The recorded report of a good run, as the row's image would have printed it on such a device."""
    row = Workbench(project_folder=REPOSITORY).matrix.get(ROW)
    told = copy.deepcopy(GOOD)
    told["arguments"] |= {"accelerator": accelerator, "ranks": ranks}
    told |= {"ranks_started": ranks, "ranks": told["ranks"][:ranks]}
    for number, rank in enumerate(told["ranks"]):
        report = rank["report"]
        report["versions"] |= {"torch": row.torch_version, "torch_cuda": "13.0", "deepspeed": row.deepspeed.version}
        answer = ranks * (ranks + 1) / 2
        report["collective"] |= {"expected": answer, "smallest": answer, "largest": answer}
        for each in report["passes"].values():
            if ranks == 1:
                alone(each)
        if accelerator == "cuda":
            uuid = f"{number + 1}{number + 1}{number + 1}{number + 1}-0000"
            device = {"name": name, "uuid": uuid, "capability": [9, 0], "memory_bytes": 1 << 37, "driver_cuda": 13000,
                      "nccl": "2.28.9"}  # fmt: skip
            report |= {"backend": "nccl", "device": device}
    # A cuda image that trains on the CPU compiles its ops.
    told["arguments"]["jit"] = accelerator == "cpu"
    expected = smoke.Expected.of(row, seed=SEED, accelerator=accelerator, nvme=True)
    assert smoke.judge(expected, told) == [], "the fake is not good enough"
    return told


def alone(figures: dict[str, Any]) -> None:
    """One pass as a single rank reports it: it holds everything, and has the whole batch, as plain torch had."""
    figures["losses"] = figures["reference_losses"]
    if "shards" in figures:
        whole = sum(figures["numels"])
        figures["shards"]["elements"] = figures["optimizer"]["master_elements"] = whole
        figures["optimizer"]["state_elements"] = {"exp_avg": whole, "exp_avg_sq": whole}


def canned(accelerator: str, ranks: int, name: str = "NVIDIA H200") -> str:
    """The document as the fake python has it, with a place for the seed."""
    return json.dumps(document(accelerator, ranks, name)).replace(f": {SEED}", ': "@SEED@"') + "\n"


class Fake:
    """One fake image of the row on the second engine, one fake driver, one store; and the command."""

    def __init__(self, daemon: Daemon, home: Path, *, hang: bool = False) -> None:
        self.daemon, self.home, self.hang = daemon, home, hang
        self.engine = connect(daemon.host)
        self.nvml = home / "nvml.conf"
        self.target = self._target()
        self.names = names(self.target.env, self.target.rendering.id8, REGISTRY)
        for left in ("asked.jsonl", "fail"):
            (daemon.folder / left).unlink(missing_ok=True)
        self.id = self._image()

    def _target(self) -> Target:
        return prepare(Workbench(project_folder=REPOSITORY), ROW)

    def _image(self) -> str:
        """A root of one program and its documents; other bytes each time, so that no evidence is left of it."""
        root = self.home / "root"
        (root / "canned").mkdir(parents=True)
        (root / "opt/venv/bin").mkdir(parents=True)
        shutil.copy(self.daemon.tools / "fake-python", root / "opt/venv/bin/python")
        for accelerator, ranks in (("cpu", 2), ("cuda", 1), ("cuda", 2)):
            (root / f"canned/{accelerator}-{ranks}.json").write_text(canned(accelerator, ranks))
        if self.hang:
            (root / "canned/hang").touch()
        (root / "canned/unique").write_text(str(self.home))
        with tarfile.open(self.home / "root.tar", "w") as tar:
            tar.add(root, "/")
        labels = f'LABEL io.envbuild.environment={ROW} io.envbuild.target="{self.target.rendering.target_id}"'
        made = self.engine.import_root(self.home / "root.tar", self.target.candidate, (labels,))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ENVBUILD_HOME", str(self.home / "store"))
            evidence.remember_built(self.target.rendering.target_id, made)
        return made

    def environment(self) -> dict[str, str]:
        return {
            **os.environ, "ENVBUILD_HOME": str(self.home / "store"), "ENVBUILD_REGISTRY_NAME": REGISTRY,
            "NO_COLOR": "1", "DOCKER_HOST": self.daemon.host, "FAKE_NVML": str(self.nvml),
            "LD_LIBRARY_PATH": str(self.daemon.tools),
        }  # fmt: skip

    def argv(self, *arguments: str) -> list[str]:
        return [sys.executable, str(HERE / "inspected.py"), *arguments]

    def __call__(self, *arguments: str, nvml: str, **env: str) -> Done:
        self.nvml.write_text(nvml)
        done = subprocess.run(self.argv(*arguments), cwd=REPOSITORY, env={**self.environment(), **env},
                              capture_output=True, text=True, timeout=120)  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    @property
    def asked(self) -> list[dict[str, Any]]:
        """What the engine asked of the GPU runtime."""
        path = self.daemon.folder / "asked.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def tags(self) -> set[str]:
        info = self.engine.image(self.id)
        assert info is not None
        return {tag.replace(self.target.rendering.id8, "ID") for tag in info.repo_tags}

    def remove(self) -> None:
        info = self.engine.image(self.id)
        for tag in info.repo_tags if info else ():
            self.engine.untag(tag)


@pytest.fixture
def fake(daemon: Daemon, tmp_path: Path) -> Iterator[Fake]:
    made = Fake(daemon, tmp_path)
    yield made
    made.remove()


CANDIDATE = f"envbuild/{ROW}:candidate-ID"
PROVEN, MOVING = f"{REGISTRY}/envbuild/{ROW}:2.11.0-cu130-ID", f"{REGISTRY}/envbuild/{ROW}:validated"


@pytest.mark.parametrize("count", [1, 2])
def test_every_gpu_of_the_row_is_asked_for_by_uuid_and_the_image_gets_its_names(fake: Fake, count: int) -> None:
    foreign = "gpu GPU-9999-0000|NVIDIA A100-SXM4-80GB|8.0|81920|14|0\n"
    done = fake("build", ROW, "--json", nvml=DRIVER + foreign + "".join(H200.format(n + 1) for n in range(count)))
    assert done.code == 0, done.err
    image = json.loads(done.out)["images"][0]
    assert image["level"] == "gpu" and fake.tags == {PROVEN, MOVING}
    asked = fake.asked[-1]
    assert asked["devices"] == ",".join(f"GPU-{n + 1}{n + 1}{n + 1}{n + 1}-0000" for n in range(count))
    assert asked["arguments"] == ["prestart"] and asked["read_only"] is True
    assert (asked["user"]["uid"], asked["user"]["gid"]) == (65532, 65532)
    assert asked["program"][asked["program"].index("--ranks") + 1] == str(count)
    record = evidence.read(Path(image["evidence"]))
    assert Path(image["evidence"]).name.endswith("-gpu-nvidia-h200-580.95.05.json")
    assert (record.host.driver, record.host.cuda) == ("580.95.05", "13.0")
    assert [gpu["name"] for gpu in record.host.gpus] == ["NVIDIA H200"] * count
    assert "GPU-1111" not in record.host.model_dump_json(), "no serial of a host is kept"


def test_a_slice_proves_less_than_a_gpu_and_the_name_says_so(fake: Fake) -> None:
    done = fake("build", ROW, "--json", nvml=DRIVER + SLICES)
    assert done.code == 5 and done.rules == ["gate.gpu"]
    assert fake.asked[-1]["devices"] == "MIG-bbbb-0002", "the largest, by its UUID"
    assert fake.tags == {CANDIDATE}
    hint = json.loads(done.out)["hint"]
    assert f"envbuild smoke {ROW}, then envbuild promote {ROW}" in hint and "--allow-level gpu-mig" in hint
    assert fake("promote", ROW, nvml="").code == 5
    assert fake("promote", ROW, "--allow-level", "gpu-mig", nvml="").code == 0
    assert fake.tags == {CANDIDATE, f"{PROVEN}-gpu-mig"}
    # The same image, finished on a host with a whole GPU.
    assert fake("smoke", ROW, nvml=DRIVER + H200.format(1)).code == 0
    assert fake("promote", ROW, nvml="").code == 0
    assert fake.tags == {CANDIDATE, f"{PROVEN}-gpu-mig", PROVEN, MOVING}


def test_without_a_gpu_the_cpu_pass_is_kept_and_the_gate_stays_shut(fake: Fake) -> None:
    done = fake("build", ROW, "--json", nvml=DRIVER + "gpu GPU-1|NVIDIA A100-SXM4-80GB|8.0|81920|14|0\n")
    assert done.code == 5 and done.rules == ["gate.gpu"]
    assert "NVIDIA A100-SXM4-80GB" in done.out and "level cpu" in json.loads(done.out)["message"]
    assert fake.asked == [] and fake.tags == {CANDIDATE}
    again = fake("build", ROW, "--allow-level", "cpu", nvml=DRIVER)
    assert again.code == 0 and "not run again (--force runs it)" in again.err
    assert fake.tags == {f"{PROVEN}-cpu"}


@pytest.mark.parametrize(
    ("nvml", "said"),
    [
        ("init 18\n", "different versions"),
        ("init 4\n", "no permission"),
        ("init 15\n", "fallen off the bus"),
        (
            f"driver 570.86.10\ncuda 12080\n{H200.format(1)}",
            "the driver is 570.86.10; CUDA 13.0 on NVIDIA H200 needs 580",
        ),
    ],
)
def test_a_driver_that_cannot_do_it_is_told_before_anything_starts(fake: Fake, nvml: str, said: str) -> None:
    done = fake("smoke", ROW, "--json", nvml=nvml)
    assert done.code == 5 and done.rules == ["gate.driver"] and said in done.out
    assert fake.asked == [] and fake.tags == {CANDIDATE}
    assert "[smoke]" not in done.err
    # Only a driver that a cuda-compat library could make up for lets the image be looked into.
    assert ("[inspect]" in done.err) is ("driver" in nvml)
    assert not (fake.home / "store/evidence").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nvidia-container-cli: initialization error: nvml error: driver/library version mismatch\n",
         "different versions"),
        ("Auto-detected mode as 'legacy'\nnvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, "
         "please update your driver to a newer version, or use an earlier cuda container\n", "NVIDIA_REQUIRE_CUDA"),
        ("nvidia-container-cli: device error: GPU-1111-0000: unknown device\n", "does not know the GPU"),
    ],
)  # fmt: skip
def test_a_gpu_runtime_that_fails_is_told_as_that_and_not_as_the_images_fault(
    fake: Fake, words: str, said: str
) -> None:
    (fake.daemon.folder / "fail").write_text(words)
    done = fake("build", ROW, "--json", nvml=DRIVER + H200.format(1))
    assert done.code == 5 and done.rules == ["gate.runtime"] and said in done.out
    assert fake.asked and fake.tags == {CANDIDATE}
    assert not list((fake.home / "store/evidence").rglob("*.json"))
    (fake.daemon.folder / "fail").unlink()


def test_an_engine_without_a_gpu_runtime_says_how_to_install_one(engine: DockerEngine, fake: Fake) -> None:
    tag = f"{REGISTRY}/no-runtime:1"
    engine.import_root(fake.home / "root.tar", tag, (f"LABEL io.envbuild.environment={ROW}",))
    try:
        done = fake("smoke", tag, "--json", nvml=DRIVER + H200.format(1), DOCKER_HOST=engine.endpoint)
    finally:
        engine.untag(tag)
    assert done.code == 5 and done.rules == ["gate.runtime"]
    assert "nvidia-ctk runtime configure" in done.out


def test_evidence_is_reused_for_the_same_gpu_and_driver_only(fake: Fake) -> None:
    one = DRIVER + H200.format(1)
    assert fake("smoke", ROW, nvml=one).code == 0
    runs = len(fake.asked)
    again = fake("smoke", ROW, nvml=one)
    assert again.code == 0 and "for this image, suite, level gpu, GPU (NVIDIA H200) and driver" in again.err
    assert len(fake.asked) == runs, "no container was started"
    other = fake("smoke", ROW, nvml=one.replace("580.95.05", "590.11"))
    assert other.code == 0 and "the driver changed from 580.95.05 to 590.11" in other.err
    forced = fake("smoke", ROW, "--force", nvml=one)
    assert forced.code == 0 and "--force" in forced.err and len(fake.asked) > runs + 1
    # An image that was proven on another host's GPU is as good here, where there is none.
    assert fake("promote", ROW, nvml="init 9\n").code == 0
    current = fake("build", ROW, nvml="init 9\n")
    assert current.code == 0 and "up to date" in current.err and "not run again (--force runs it)" in current.err


def test_gpus_of_ones_choice(fake: Fake) -> None:
    two = DRIVER + H200.format(1) + H200.format(2)
    assert fake("smoke", ROW, "--gpus", "0", nvml=two).code == 0
    assert fake.asked[-1]["devices"] == "GPU-1111-0000"
    # The fake image always trains on the first one, so this is another one than was asked for.
    other = fake("smoke", ROW, "--gpus", "GPU-2222-0000", "--force", "--json", nvml=two)
    assert fake.asked[-1]["devices"] == "GPU-2222-0000" and other.rules == ["smoke.device"]
    missing = fake("smoke", ROW, "--gpus", "GPU-7777", "--json", nvml=two)
    assert missing.code == 5 and missing.rules == ["gate.gpu"]
    assert fake("smoke", ROW, "--gpus", "first", nvml=two).code == 2


def test_a_runtime_that_gives_another_gpu_is_caught(fake: Fake, tmp_path: Path) -> None:
    (fake.home / "root/canned/cuda-1.json").write_text(canned("cuda", 1, "NVIDIA A100-SXM4-80GB"))
    with tarfile.open(fake.home / "root.tar", "w") as tar:
        tar.add(fake.home / "root", "/")
    fake.engine.import_root(fake.home / "root.tar", "other:1", (f"LABEL io.envbuild.environment={ROW}",))
    done = fake("smoke", "other:1", "--json", nvml=DRIVER + H200.format(1))
    fake.engine.untag("other:1")
    assert done.code == 5 and done.rules == ["smoke.device"] and "A100" in done.out


# --- an engine that dies, a store that is full or closed --------------------------------------------------------------


def test_an_engine_that_is_killed_in_the_middle_tags_nothing(daemon: Daemon, tmp_path: Path) -> None:
    fake = Fake(daemon, tmp_path, hang=True)
    fake.nvml.write_text(DRIVER + H200.format(1))
    process = subprocess.Popen(fake.argv("build", ROW), cwd=REPOSITORY, env=fake.environment(), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not fake.asked and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert fake.asked, "the smoke container was started"
        daemon.end(signal.SIGKILL)
        out, err = process.communicate(timeout=90)
    finally:
        process.kill()
        if daemon.process is None:
            daemon.start()
    assert process.returncode == 3, out + err
    assert "Traceback" not in err and "is not reachable" in err
    assert fake.tags == {CANDIDATE}
    assert not list((tmp_path / "store/evidence").rglob("*")), "and nothing was written"
    later = fake("smoke", ROW, nvml="init 18\n")
    assert later.code == 5 and "removed a leftover of a run that ended" in later.err
    fake.remove()


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_store_that_takes_no_evidence_tags_nothing(fake: Fake, how: str) -> None:
    # The record of the fake run is larger than what is left of this disk.
    store = fake.home / "store/evidence"
    store.mkdir(parents=True)
    options = "size=8k" if how == "full" else "ro,size=8k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", store], check=True, timeout=30)
    try:
        done = fake("build", ROW, nvml=DRIVER + H200.format(1))
        left = [path for path in store.rglob("*") if path.is_file()]
    finally:
        subprocess.run(["umount", store], check=True, timeout=30)
    assert done.code == 3, done.err
    assert str(store) in done.err and "ENVBUILD_HOME" in done.err
    assert left == [] and fake.tags == {CANDIDATE}
