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
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild import evidence
from envbuild.engines import ImageInfo
from envbuild.errors import EnvbuildError, GateError
from envbuild.evidence import keys
from envbuild.model import Level, Severity
from envbuild.net import NetworkError
from envbuild.pipeline import attached, listing, pruning
from envbuild.pipeline import pull as pulling
from envbuild.pipeline import push as pushing
from envbuild.pipeline.build import up_to_date
from envbuild.pipeline.prepare import FindingsError
from envbuild.pipeline.prove import claims
from envbuild.pipeline.remote import blobs, repository
from envbuild.pipeline.wanted import Wanted, parse_age
from envbuild.pipeline.workbench import Workbench
from envbuild.registry import Blobs, parse
from registries import Exchange
from worlds import REPOSITORY, World

MIB = 1 << 20
LAYERS = r"^GET .*/blobs/"


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
    found, _ = pulling.pull(world.bench(), "cpu", pulling.Wish(wanted=Wanted(), candidate=True, verify=False))
    told = {each.rule: each.severity for each in found.findings}
    assert told["verify.key"] is Severity.WARNING and Severity.ERROR not in told.values()
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


ROUNDS = int(os.environ.get("ENVBUILD_KILL_ROUNDS", "4"))
SEED = int(os.environ.get("ENVBUILD_KILL_SEED", "7"))
# Where `bench/soak.py kills` reads what was killed where, and what the rerun found.
REPORT = os.environ.get("ENVBUILD_KILL_REPORT")
STEPS = (
    ("tag", r"^PUT .*/manifests/(?!sha256)"),
    ("list of what refers to it", r"^PUT .*/manifests/sha256-"),
    ("manifest", r"^PUT .*/manifests/sha256:"),
    ("upload", r"^(POST|PATCH|PUT) .*/blobs/"),
    ("layer or evidence", r"^GET .*/blobs/"),
    ("question", ""),
)


def _killed(world: World, home: str, *arguments: str, rolled: random.Random) -> dict[str, object]:
    """Run the command and kill -9 it: at a byte, at a request, or a while after one; and what it was about then."""
    process = world.start(home, *arguments)
    done = threading.Event()
    found: dict[str, object] = {"command": arguments[0]}
    kind, timers = rolled.choice(("byte", "byte", "request", "while after a request")), list[threading.Timer]()
    # A pull asks some 20 times, a push some 60 times.
    requests = 60 if arguments[0] == "push" else 20
    point = rolled.randrange(50_000, 5 * MIB) if kind == "byte" else rolled.randrange(1, requests)
    delay = rolled.uniform(0.0, 1.0)

    def kill() -> None:
        if not done.is_set():
            done.set()
            last = world.front.asked[-1]
            step = next(name for name, pattern in STEPS if re.search(pattern, f"{last.method} {last.path}"))
            found.update(step=step, bytes=sum(each.sent + each.given for each in list(world.front.asked)))
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    def heard(count: int) -> None:
        if count == point and kind == "while after a request":
            timers.append(threading.Timer(delay, kill))
            timers[0].start()
        elif count == point:
            kill()

    if kind == "byte":
        world.front.watch = lambda count: kill() if count >= point else None
    else:
        world.front.heard = heard
    _, err = process.communicate(timeout=120)
    for each in timers:
        each.cancel()
    done.set()
    world.front.watch = world.front.heard = lambda count: None
    assert process.returncode in (0, -signal.SIGKILL), err
    return {**found, "at": f"{kind} {point}", "killed": process.returncode != 0}


def _report(found: dict[str, object]) -> None:
    if REPORT:
        with Path(REPORT).open("a") as file:
            file.write(json.dumps(found) + "\n")


def _rerun(world: World, home: str, *arguments: str) -> dict[str, Any]:
    world.front.asked.clear()
    final = world.start(home, *arguments, "--json")
    out, err = final.communicate(timeout=120)
    assert final.returncode == 0, err
    image: dict[str, Any] = json.loads(out)["images"][0]
    return image


def _evidence(world: World) -> int:
    """How many things refer to what the registry has under the moving name."""
    subject = world.there.resolve("validated")
    assert subject is not None
    found = world.there.referrers(subject.digest)
    assert len({each.digest for each in found}) == len(found)
    return len(found)


def test_a_push_that_is_killed_leaves_no_name_and_goes_on(world: World) -> None:
    """Each round anew: a registry that has nothing, a kill, and the same command again."""
    info = world.image(2 * MIB, 3 * MIB)
    world.prove(info)
    rolled = random.Random(SEED)
    key = ("--key", str(world.folder / "farm.pem"))
    own = world.names.proven.rpartition(":")[2]
    for _ in range(ROUNDS):
        world.move(f"{world.front.address}/{secrets.token_hex(3)}", info)
        world.front.asked.clear()
        found = _killed(world, "pusher", "push", "cpu", *key, rolled=rolled)
        # The names come last: the one that never moves, then the one that does. Each only with all that belongs to it.
        names_left = world.remote
        assert names_left in (set(), {own}, {own, "validated"}), names_left
        if found["killed"] and found.get("step") not in ("tag", "question", "list of what refers to it"):
            assert names_left == set(), found
        if names_left:
            assert world.there.manifest(own).config.digest == info.id  # type: ignore[union-attr]
        again = _rerun(world, "pusher", "push", "cpu", *key)
        assert again["signed"] and world.remote == {own, "validated"} and again["config_digest"] == info.id
        assert _evidence(world) == 4, "evidence, binding, lock, SBOM"
        _report({**found, "names_left": sorted(names_left), "rerun_moved": again["moved_bytes"]})
    world.forget()
    world.home("puller")
    assert world.pull().id == info.id


def test_a_pull_that_is_killed_leaves_no_name_and_goes_on(world: World) -> None:
    """Each round anew: an engine and a store that have nothing, a kill, and the same command again."""
    info = world.image(2 * MIB, 3 * MIB)
    world.prove(info)
    world.push()
    rolled = random.Random(SEED + 1)
    key = ("--key", str(world.folder / "farm.pub"))
    tags = {world.names.proven.rpartition(":")[2], "validated"}
    for number in range(ROUNDS):
        world.forget()
        world.front.asked.clear()
        home = f"puller-{number}"
        found = _killed(world, home, "pull", "cpu", *key, rolled=rolled)
        names_left = world.local
        assert names_left <= tags
        for name in names_left:
            assert world.engine.image(f"{world.names.repository}:{name}").id == info.id  # type: ignore[union-attr]
        world.home(home)
        if not names_left:
            assert up_to_date(world.bench(), world.target) is None
        again = _rerun(world, home, "pull", "cpu", *key)
        assert again["image"] == info.id and world.local == tags
        assert up_to_date(world.bench(), world.target) is not None
        assert not list((world.folder / home / "cache/blobs/sha256").glob("*.part"))
        _report({**found, "names_left": sorted(names_left), "rerun_moved": world.front.given})


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
