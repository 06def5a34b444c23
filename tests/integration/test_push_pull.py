"""push and pull against a real engine and a real registry, with a front between them that breaks, lies and counts.

The image is small, and its evidence is made up and signed here: what is tested is the way, not the proof.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import registries
from envbuild import evidence
from envbuild.engines import BuildRequest, Engine, ImageInfo
from envbuild.errors import EnvbuildError, GateError
from envbuild.evidence import keys
from envbuild.judge import archive
from envbuild.judge.suite import suite_hash
from envbuild.model import Level
from envbuild.net import NetworkError
from envbuild.pipeline import attached, listing, pruning
from envbuild.pipeline import pull as pulling
from envbuild.pipeline import push as pushing
from envbuild.pipeline.build import up_to_date
from envbuild.pipeline.names import names
from envbuild.pipeline.prepare import FindingsError, prepare
from envbuild.pipeline.prove import claims
from envbuild.pipeline.remote import blobs, repository
from envbuild.pipeline.wanted import Wanted, parse_age
from envbuild.pipeline.workbench import Workbench
from envbuild.plan import LABEL_ENV, LABEL_TARGET
from envbuild.registry import Blobs, Repository, parse
from registries import Exchange, Front

REPOSITORY = Path(__file__).parents[2]
MIB = 1 << 20
LAYERS = r"^GET .*/blobs/"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    binary = registries.program(tmp_path_factory.mktemp("deb"))
    with registries.running(binary, tmp_path_factory.mktemp("registry")) as address:
        yield address


@dataclass
class World:
    """A front before the registry, a pusher's store and a puller's, one key, and the row's image."""

    engine: Engine
    front: Front
    folder: Path
    prefix: str
    patch: pytest.MonkeyPatch
    layer: str = ""

    def __post_init__(self) -> None:
        keys.make(self.folder / "farm.pem")
        self.key = keys.load_signing(self.folder / "farm.pem")
        self.home("pusher")
        bench = self.bench()
        self.env = bench.matrix.get("cpu")
        self.target = prepare(bench, "cpu", checked=False)
        self.names = names(self.env, self.target.rendering.id8, self.prefix)

    def home(self, name: str) -> Path:
        """Be somebody else: with a store, and so a cache, of their own."""
        path = self.folder / name
        self.patch.setenv("ENVBUILD_HOME", str(path))
        return path

    def bench(self, *, trusts: bool = True, signs: bool = True) -> Workbench:
        settings = {
            "registry.name": self.prefix,
            "engine.kind": self.engine.kind,
            "trust.keys": [str(self.folder / "farm.pub")] if trusts else None,
            "signing.key": str(self.folder / "farm.pem") if signs else None,
        }
        return Workbench(project_folder=REPOSITORY, settings={k: v for k, v in settings.items() if v})

    def image(self, *sizes: int, base: str | None = None, target: str | None = None) -> ImageInfo:
        """An image of layers that nobody has, the row's by its labels; named as a build would name it."""
        context = self.folder / secrets.token_hex(4)
        context.mkdir()
        lines = ["FROM scratch" if base is None else f"FROM {base}"]
        for number, size in enumerate(sizes):
            (context / f"file{number}").write_bytes(os.urandom(size))
            lines.append(f"COPY file{number} /{secrets.token_hex(4)}")
        (context / "Dockerfile").write_text("\n".join(lines) + "\n")
        target = target or self.target.rendering.target_id
        self.engine.build(
            BuildRequest(
                context=context, dockerfile=context / "Dockerfile", tag=self.names.proven, platform="linux/amd64",
                labels=((LABEL_ENV, "cpu"), (LABEL_TARGET, target)),
            ),
            log=context / "log",
        )  # fmt: skip
        info = self.engine.image(self.names.proven)
        assert info is not None
        return info

    def record(self, info: ImageInfo, **changes: Any) -> evidence.Evidence:
        with self.engine.save(info.id) as stream:
            identity = archive.read(stream, lambda path: False).identity
        now = datetime.datetime.now(datetime.timezone.utc)
        made = evidence.Evidence(
            schema="envbuild.evidence/1", environment="cpu", target_id=self.target.rendering.target_id,
            level=Level.CPU, suite=suite_hash(), envbuild="0", image=evidence.Identity.of(identity),
            platform="linux/amd64", size_bytes=5, base={}, claims=claims(self.env), content={}, portability={},
            smoke={}, findings=(), started=now, finished=now, seconds={},
            host=evidence.Host(system="s", machine="m", cpu="c", cpus=1, memory_bytes=1, engine="e"),
        )  # fmt: skip
        return made.model_copy(update=changes)

    def prove(self, info: ImageInfo, *, key: evidence.SigningKey | str | None = "own", **changes: Any) -> None:
        signer = self.key if key == "own" else key
        assert not isinstance(signer, str)
        evidence.save(self.record(info, **changes), info.id, key=signer)
        evidence.remember_built(self.target.rendering.target_id, info.id)

    def push(self, **wish: Any) -> pushing.Pushed:
        bench = self.bench()
        return pushing.push(bench, pushing.plan(bench, "cpu", row=None, wish=pushing.Wish(**wish)))

    def pull(self, *, trusts: bool = True, wanted: Wanted | None = None, **wish: Any) -> ImageInfo:
        wished = pulling.Wish(wanted=wanted or Wanted(), **wish)
        _, info = pulling.pull(self.bench(trusts=trusts), "cpu", wished)
        assert info is not None
        return info

    def forget(self, *names: str) -> None:
        """Take the image away from the engine, every name of it, and what a build cache keeps of its layers."""
        forgotten = self.engine.images(f"{self.names.repository}:*")
        for tag in names or [tag for info in forgotten for tag in info.repo_tags]:
            self.engine.untag(tag)
        for info in self.engine.every_image():
            if not info.repo_tags and any(set(info.diff_ids) & set(each.diff_ids) for each in forgotten):
                self.engine.remove_unnamed(info.id)

    @property
    def local(self) -> set[str]:
        """The tags that the engine has of this repository."""
        found = self.engine.images(f"{self.names.repository}:*")
        return {tag.rpartition(":")[2] for info in found for tag in info.repo_tags}

    @property
    def there(self) -> Repository:
        """The row's repository in the registry."""
        return repository(self.bench(), parse(self.names.proven), lambda event: None)

    @property
    def remote(self) -> set[str]:
        """The tags that the registry has, without the lists of what refers to an image."""
        return {tag for tag in self.there.tags() if not tag.startswith("sha256-")}

    def start(self, home: str, *arguments: str) -> subprocess.Popen[bytes]:
        """The command in a process of its own."""
        env = {**os.environ, "ENVBUILD_HOME": str(self.folder / home), "ENVBUILD_REGISTRY_NAME": self.prefix}
        argv = [sys.executable, "-m", "envbuild", *arguments, "--project", str(REPOSITORY)]
        argv += ["--engine", self.engine.kind]
        return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def world(engine: Engine, real: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with registries.fronting(real) as front:
        made = World(engine, front, tmp_path, f"{front.address}/{secrets.token_hex(3)}", monkeypatch)
        yield made
        made.forget()


def test_what_was_pushed_comes_back_and_counts_as_proven(world: World) -> None:
    info = world.image(MIB, 2 * MIB)
    world.prove(info)
    pushed = world.push()
    assert world.remote == {world.names.proven.rpartition(":")[2], "validated"} and pushed.signed
    assert 3 * MIB < world.front.sent < 4 * MIB
    # Again: it is all there, and nothing is written twice.
    sent, written = world.front.sent, len(world.front.of("^(PUT|POST|PATCH)"))
    assert world.push().digest == pushed.digest and world.front.sent == sent
    assert len(world.front.of("^(PUT|POST|PATCH)")) == written
    world.forget()
    world.home("puller")
    assert up_to_date(world.bench(), world.target) is None
    pulled = world.pull()
    assert (pulled.id, pulled.diff_ids) == (info.id, info.diff_ids)
    assert world.local == {world.names.proven.rpartition(":")[2], "validated"}
    # What somebody trusted has proven is proven here: a build has nothing to do.
    current = up_to_date(world.bench(), world.target)
    assert current is not None and current.level is Level.CPU
    assert not list((world.folder / "puller/cache/blobs/sha256").glob("*.part"))


def test_what_it_is_made_of_lies_beside_it(world: World) -> None:
    info = world.image(MIB)
    world.prove(info)
    pushed = world.push()
    there = world.there
    subject = there.resolve("validated")
    assert subject is not None
    (found,) = attached.attached(there, subject, ("application/vnd.cyclonedx+json",), blobs(world.bench()))
    data = attached.file_of(found, "application/vnd.cyclonedx+json")
    assert data is not None and json.loads(data)["metadata"]["component"]["version"] == pushed.config == info.id


def test_only_layers_that_are_missing_move(world: World) -> None:
    first = world.image(2 * MIB)
    world.engine.tag(first.id, f"{world.names.repository}:base")
    second = world.image(MIB // 2, base=f"{world.names.repository}:base")
    assert second.diff_ids[:-1] == first.diff_ids
    world.prove(second)
    world.push()
    world.forget(world.names.proven)
    world.home("puller")
    world.front.asked.clear()
    world.pull()
    assert MIB // 2 < sum(each.given for each in world.front.of(LAYERS)) < MIB
    # And back: layers that the registry has are not packed again, nor sent.
    sent = world.front.sent
    third = world.image(MIB // 4, base=f"{world.names.repository}:base", target=world.target.rendering.target_id)
    world.prove(third)
    with pytest.raises(GateError, match="is never overwritten"):
        world.push()
    assert world.front.sent == sent and world.push(candidate=True).moved < MIB // 2


REFUSALS: list[tuple[str, Callable[[World, ImageInfo], dict[str, Any]], set[str]]] = [
    ("nobody signed it", lambda world, info: world.prove(info, key=None) or {}, {"verify.unsigned"}),
    ("no key is trusted", lambda world, info: world.prove(info) or {"trusts": False}, {"verify.key"}),
    ("it is too old", lambda world, info: world.prove(
        info, finished=datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    ) or {"wanted": Wanted(max_age=parse_age("30d"))}, {"verify.age"}),
    ("its level is too low", lambda world, info: world.prove(info) or {"wanted": Wanted(level=Level.GPU)},
     {"verify.level"}),
    ("it has no code for the GPU", lambda world, info: world.prove(info) or {"wanted": Wanted(sm=(9, 0))},
     {"verify.sm"}),
    ("the row says something else", lambda world, info: world.prove(
        info, claims={**claims(world.env), "torch": "1.0"}
    ) or {}, {"verify.claims"}),
    ("it is for another CPU", lambda world, info: world.prove(info, platform="linux/arm64") or {}, {"host.platform"}),
]  # fmt: skip


@pytest.mark.parametrize(("prepared", "rules"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS])
def test_evidence_is_judged_before_a_layer_moves(
    world: World, prepared: Callable[[World, ImageInfo], dict[str, Any]], rules: set[str]
) -> None:
    info = world.image(MIB)
    asked = prepared(world, info)
    # What is pushed is what the pusher has, whatever it is worth elsewhere.
    world.push(candidate=True)
    world.forget()
    world.home("puller")
    world.front.asked.clear()
    with pytest.raises(FindingsError) as refused:
        world.pull(candidate=True, **asked)
    assert rules <= {each.rule for each in refused.value.findings} and refused.value.exit_code == 5
    assert sum(each.given for each in world.front.of(LAYERS)) < 64 << 10, "no layer"
    assert world.local == set()


def test_evidence_and_bindings_of_others_prove_nothing(world: World) -> None:
    """A stranger who may write to the registry: their own key, another image's evidence, another manifest."""
    good = world.image(MIB)
    world.prove(good)
    world.push()
    other = world.image(MIB, base=world.names.proven)
    record = world.record(good)
    # Evidence of the good image beside another one, in a store that lies about which image it is of.
    path = evidence.save(record.model_copy(update={"image": world.record(other).image}), other.id, key=None)
    path.write_text(json.dumps(record.model_dump(mode="json", by_alias=True)))
    keys.make(world.folder / "stranger.pem")
    stranger = keys.load_signing(world.folder / "stranger.pem")
    world.prove(other, key=stranger)
    bench = dataclasses.replace(world.bench(), settings={
        **world.bench().settings, "signing.key": str(world.folder / "stranger.pem")
    })  # fmt: skip
    pushing.push(bench, pushing.plan(bench, "cpu", row=None, wish=pushing.Wish(candidate=True)))
    world.forget()
    world.home("puller")
    with pytest.raises(FindingsError) as refused:
        world.pull(candidate=True)
    assert {"verify.key", "verify.binding"} <= {each.rule for each in refused.value.findings}
    assert world.local == set()
    # Who insists gets it, under a name that says what is known of it.
    world.pull(candidate=True, verify=False)
    assert [tag[:11] for tag in world.local] == ["unverified-"]
    assert up_to_date(world.bench(), world.target) is None


def test_a_tag_that_moves_meanwhile_changes_nothing(world: World) -> None:
    info = world.image(MIB)
    world.prove(info)
    world.push()
    world.forget()
    other = world.image(MIB)
    world.prove(other)
    world.push(candidate=True)

    def move(exchange: Exchange) -> None:
        exchange.relay()
        there = repository(world.bench(), parse(world.names.proven.replace(world.front.address, world.front.upstream)),
                           lambda event: None)  # fmt: skip
        found = there.manifest(f"candidate-{world.target.rendering.id8}")
        there.put_manifest(found.raw, found.descriptor.media_type, "validated")

    world.forget()
    world.home("puller")
    world.front.on("^GET .*/manifests/validated", move, 1)
    assert world.pull().id == info.id


@pytest.mark.parametrize("always", [False, True])
def test_a_damaged_layer_is_fetched_again_or_refused(world: World, always: bool) -> None:
    info = world.image(3 * MIB)
    world.prove(info)
    world.push()
    world.forget()
    world.home("puller")

    def flip(exchange: Exchange) -> None:
        exchange.relay(flip=MIB)

    world.front.on(LAYERS, flip, *(() if always else (2, 3, 4, 5)))
    if not always:
        assert world.pull().id == info.id
        return
    with pytest.raises(NetworkError, match="twice"):
        world.pull()
    assert world.local == set()
    world.front.reset()
    assert world.pull().id == info.id, "the rerun ends well"


ROUNDS = int(os.environ.get("ENVBUILD_KILL_ROUNDS", "5"))


def _killed(world: World, home: str, *arguments: str, after: int) -> int | None:
    """Run the command and kill -9 it when so many bytes have gone over the line; None where it was done before."""
    process = world.start(home, *arguments)
    done = threading.Event()

    def watch(count: int) -> None:
        if count >= after and not done.is_set():
            done.set()
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    world.front.watch = watch
    process.communicate(timeout=120)
    world.front.watch = lambda count: None
    return None if process.returncode == 0 else process.returncode


def test_a_push_that_is_killed_leaves_no_name_and_goes_on(world: World) -> None:
    info = world.image(2 * MIB, 3 * MIB)
    world.prove(info)
    rolled = random.Random(7)
    key = ("--key", str(world.folder / "farm.pem"))
    for _ in range(ROUNDS):
        world.front.asked.clear()
        code = _killed(world, "pusher", "push", "cpu", *key, after=rolled.randrange(100_000, 6 * MIB))
        if code is not None:
            assert world.remote == set(), "the names come last"
    final = world.start("pusher", "push", "cpu", *key, "--json")
    out, err = final.communicate(timeout=120)
    assert final.returncode == 0, err
    assert json.loads(out)["images"][0]["signed"] and "validated" in world.remote
    world.forget()
    world.home("puller")
    assert world.pull().id == info.id


def test_a_pull_that_is_killed_leaves_no_name_and_goes_on(world: World) -> None:
    info = world.image(2 * MIB, 3 * MIB)
    world.prove(info)
    world.push()
    rolled = random.Random(8)
    key = ("--key", str(world.folder / "farm.pub"))
    for _ in range(ROUNDS):
        world.forget()
        world.front.asked.clear()
        code = _killed(world, "puller", "pull", "cpu", *key, after=rolled.randrange(100_000, 6 * MIB))
        assert code is None or world.local == set() or world.engine.image(world.names.proven).id == info.id
    world.forget()
    final = world.start("puller", "pull", "cpu", *key, "--json")
    out, err = final.communicate(timeout=120)
    assert final.returncode == 0, err
    assert json.loads(out)["images"][0]["image"] == info.id
    assert world.local == {world.names.proven.rpartition(":")[2], "validated"}


def test_two_pulls_at_once_move_the_layers_once(world: World) -> None:
    info = world.image(4 * MIB)
    world.prove(info)
    world.push()
    world.forget()
    world.front.asked.clear()
    both = [world.start("puller", "pull", "cpu", "--key", str(world.folder / "farm.pub")) for _ in range(2)]
    for each in both:
        _, err = each.communicate(timeout=120)
        assert each.returncode == 0, err
    assert sum(each.given for each in world.front.of(LAYERS)) < 6 * MIB
    assert world.engine.image(world.names.moving).id == info.id  # type: ignore[union-attr]


def test_what_is_missing_is_said(world: World) -> None:
    with pytest.raises(GateError, match="it has no image of that row") as missing:
        world.pull()
    assert "envbuild push cpu" in missing.value.hint
    bare = Workbench(project_folder=REPOSITORY, settings={})
    with pytest.raises(EnvbuildError, match="no registry is configured"):
        pulling.pull(bare, "cpu", pulling.Wish(wanted=Wanted()))


def test_images_tells_what_is_where_and_prune_takes_only_what_nothing_speaks_of(world: World) -> None:
    info = world.image(MIB)
    world.prove(info)
    world.push()
    bench = world.bench()
    here = next(each for each in listing.local(bench, ["cpu"]) if each.repository == world.names.repository)
    there = listing.remote(bench, world.prefix, ["cpu", "h200-cu130"])
    assert (here.level, here.current, here.image, here.standing) == (Level.CPU, True, info.id, "cpu")
    assert [(each.environment, each.level, each.tags) for each in there] == [
        ("cpu", Level.CPU, (world.names.proven.rpartition(":")[2], "validated"))
    ]
    assert MIB < there[0].size_bytes < 2 * MIB and there[0].standing == "cpu, unchecked"
    # Another one takes the name: the first has evidence, and stays; one that has neither goes.
    unproven = world.image(MIB)
    assert world.image(2 * MIB).id not in (info.id, unproven.id)
    leftovers = world.folder / "pusher/cache/blobs/sha256"
    old, fresh, held = (leftovers / f"{letter * 64}.part" for letter in "abc")
    for path in (old, fresh, held):
        path.write_bytes(b"x")
    for path in (old, held):
        os.utime(path, (0, 0))
    with Blobs(leftovers.parent).alone(f"sha256:{'c' * 64}"):
        planned = pruning.plan(bench, candidates=False)
        mine = [each for each in planned if each.what in (info.id, unproven.id) or str(world.folder) in each.what]
        assert {each.what for each in mine} >= {unproven.id, str(old)}
        assert not {info.id, str(fresh), str(held)} & {each.what for each in planned}
        pruning.carry_out(bench, mine)
    assert world.engine.image(unproven.id) is None and world.engine.image(info.id) is not None
    assert not old.exists() and fresh.exists() and held.exists()
    world.engine.remove_unnamed(info.id)


def test_a_candidate_is_proven_elsewhere_and_pushed_from_there(world: World) -> None:
    info = world.image(MIB)
    world.prove(info, level=Level.BUILT)
    with pytest.raises(GateError, match="requires cpu"):
        world.push()
    world.push(candidate=True)
    candidate = f"candidate-{world.target.rendering.id8}"
    assert world.remote == {candidate}
    world.forget()
    world.home("prover")
    with pytest.raises(GateError, match=f"it has {candidate}"):
        world.pull()
    world.pull(candidate=True)
    assert world.local == {candidate}
    # Here it is proven; it is the row's own image, as if it had been built here.
    evidence.save(world.record(info), info.id, key=world.key)
    pushed = world.push()
    assert world.remote == {candidate, world.names.proven.rpartition(":")[2], "validated"}
    assert pushed.moved < MIB // 2, "its layers are there"
    world.forget()
    world.home("puller")
    assert world.pull().id == info.id


@pytest.mark.parametrize("command", ["push", "pull"])
def test_an_interrupt_ends_a_slow_transfer_at_once(world: World, command: str) -> None:
    info = world.image(4 * MIB)
    world.prove(info)
    if command == "pull":
        world.push()
        world.forget()
        world.home("puller")
        world.layer = world.there.manifest("validated").layers[0].digest  # type: ignore[union-attr]
    begun = threading.Event()

    def slowly(exchange: Exchange) -> None:
        begun.set()
        if command == "push":
            for _ in exchange.body():
                time.sleep(0.3)
        exchange.begin(200, {"Content-Length": str(4 * MIB)})
        for _ in range(200):
            exchange.give(b"x" * (1 << 12))
            time.sleep(0.3)

    world.front.on(r"^PATCH " if command == "push" else f"^GET .*/blobs/{world.layer}", slowly, 1)
    key = world.folder / ("farm.pem" if command == "push" else "farm.pub")
    process = world.start("pusher" if command == "push" else "puller", command, "cpu", "--key", str(key))
    assert begun.wait(60)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and b"Traceback" not in err, err
    assert (world.remote if command == "push" else world.local) == set()


def test_a_name_that_is_taken_is_looked_at_before_a_layer_moves(world: World) -> None:
    info = world.image(MIB)
    world.prove(info)
    world.push()
    world.image(MIB)  # somebody else's image takes the name here
    world.home("puller")
    world.front.asked.clear()
    with pytest.raises(GateError, match="never overwritten"):
        world.pull()
    assert sum(each.given for each in world.front.of(LAYERS)) < 64 << 10


def test_any_image_can_be_pulled_by_its_name(world: World) -> None:
    info = world.image(MIB)
    world.prove(info)
    world.push()
    world.forget()
    world.home("puller")
    digest = world.there.resolve("validated").digest  # type: ignore[union-attr]
    process = world.start("puller", "pull", "--image-only", f"{world.names.repository}:validated", "--json")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert (json.loads(out)["images"][0]["digest"], json.loads(out)["images"][0]["image"]) == (digest, info.id)
    assert world.local == {"validated"}
    # It was asked for by name: nothing is known of it.
    assert up_to_date(world.bench(), world.target) is None
    process = world.start("puller", "pull", "--image-only", f"{world.names.repository}:nothing")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 5 and b"there is no" in err


def test_who_pushes_evidence_that_nobody_signed_is_told_that_nobody_can_pull_it(world: World) -> None:
    world.prove(world.image(MIB), key=None)
    for told in (True, False):
        process = world.start("pusher", "push", "cpu", "--key", str(world.folder / "farm.pem"))
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0 and (b"none of the evidence is signed" in err) is told, err
        info = world.engine.image(world.names.proven)
        assert info is not None
        world.prove(info)
