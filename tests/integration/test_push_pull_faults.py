"""What goes wrong around push and pull: a real disk that is full, others that push, pull and prune at the same time,
images of kinds that are not ours, and a build that asks whether it is needed.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import registries
from envbuild.errors import EnvbuildError, GateError
from envbuild.events import Event, Note
from envbuild.pipeline import build as building
from envbuild.pipeline import offering, pruning
from envbuild.pipeline import pull as pulling
from envbuild.pipeline.listing import remote
from envbuild.pipeline.offering import offer
from envbuild.pipeline.plain import pull_plain
from envbuild.pipeline.prepare import FindingsError
from envbuild.pipeline.remote import repository
from envbuild.registry import Blobs, Descriptor, Manifest, Repository, parse, push_blob
from envbuild.registry.manifests import OCI_INDEX, OCI_LAYER, OCI_MANIFEST, digest_of, dump
from registries import Exchange
from worlds import REPOSITORY, World

MIB = 1 << 20
LAYERS = r"^GET .*/blobs/"


def straight(world: World) -> Repository:
    """The row's repository, past the front."""
    return repository(
        world.bench(), parse(world.names.proven.replace(world.front.address, world.front.upstream)), lambda event: None
    )


# --- a full disk ------------------------------------------------------------------------------------------------------

# In a mount namespace of its own: a file system of that size, what is to be there, the command, more room, and again.
SMALL = """
disk=$1; size=$2; from=$3; shift 3
mount -t tmpfs -o "$size" none "$disk" || exit 90
[ "$from" = none ] || cp -a "$from/." "$disk/" || exit 91
"$@" > /dev/null; echo $?
read -r go
mount -o remount,size=256m,nr_inodes=100000 "$disk" || exit 92
"$@" > /dev/null; echo $?
"""


def on_a_small_disk(
    world: World, size: str, origin: Path | None, *arguments: str, between: Callable[[bool], None], fills: str = ""
) -> bool:
    """Run a command with its store on a real file system of that size, and again with room; whether it was too small.

    Args:
        between: Called after the first run, with whether it ended well.
        fills: At the first request of this kind somebody else fills the disk; it is free again for the second run.
    """
    disk = world.folder / f"disk-{secrets.token_hex(3)}"
    disk.mkdir()
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    argv = [
        "unshare", "--mount", *own, "sh", "-c", SMALL, "small", str(disk), size, str(origin or "none"),
        sys.executable, "-m", "envbuild", *arguments, "--project", str(REPOSITORY),
    ]  # fmt: skip
    env = {**os.environ, "ENVBUILD_HOME": str(disk), "ENVBUILD_REGISTRY_NAME": world.prefix}
    log = world.folder / f"{disk.name}.log"
    with log.open("w+") as said:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": said, "text": True}
        with subprocess.Popen(argv, env=env, **pipes) as run:
            assert run.stdin is not None and run.stdout is not None
            rest = Path(f"/proc/{run.pid}/root{disk}/rest")

            def fill(exchange: Exchange) -> None:
                with contextlib.suppress(OSError), rest.open("wb", buffering=0) as file:
                    while file.write(bytes(4096)):
                        pass
                exchange.relay()

            if fills:
                world.front.on(fills, fill, 1)
            first = run.stdout.readline().strip()
            text = log.read_text()
            assert first in ("0", "3") and "Traceback" not in text, (size, first, text, world.local, world.names.proven)
            if first == "3":
                # What is full is named, and what can be done.
                assert "rror:" in text and ("ENVBUILD_HOME" in text or "[paths] cache" in text), (size, text)
            between(first == "0")
            rest.unlink(missing_ok=True)
            run.stdin.write("\n")
            run.stdin.close()
            assert run.stdout.readline().strip() == "0", (size, log.read_text())
    return first == "3"


# Of a store that takes some 5 MiB: what there is room for, in bytes and in files.
SIZES = ("size=16k", "size=400k", "size=5m")
FILES = tuple(f"size=256m,nr_inodes={count}" for count in (2, 8, 16, 32))


def test_a_disk_that_is_full_stops_a_pull_and_leaves_no_name(world: World) -> None:
    info = world.image(2 * MIB, 3 * MIB)
    world.prove(info)
    world.push()

    subject = world.there.manifest("validated")
    assert isinstance(subject, Manifest)
    large = f"^GET .*/blobs/{subject.layers[1].digest}"

    def between(well: bool) -> None:
        assert well or world.local == set()

    full = 0
    key = ("--key", str(world.folder / "farm.pub"))
    for size in (*SIZES, *FILES):
        world.forget()
        full += on_a_small_disk(world, size, None, "pull", "cpu", *key, between=between)
        assert world.engine.image(world.names.moving).id == info.id, size  # type: ignore[union-attr]
    assert full >= 5
    # And one that is full all at once, in the middle of a layer, when it was asked already whether there is room.
    world.forget()
    world.front.reset()
    assert on_a_small_disk(world, "size=80m", None, "pull", "cpu", *key, between=between, fills=large)
    assert world.engine.image(world.names.moving).id == info.id  # type: ignore[union-attr]


def test_a_disk_that_is_full_stops_a_push_and_leaves_no_name(world: World) -> None:
    info = world.image(2 * MIB, 3 * MIB)
    world.prove(info)
    pusher = world.folder / "pusher"
    for folder in ("cache", "runs"):
        shutil.rmtree(pusher / folder, ignore_errors=True)
    need = sum(path.stat().st_size for path in pusher.rglob("*") if path.is_file())
    count = sum(1 for _ in pusher.rglob("*"))
    sizes = [f"size={need // 1024 + more}k" for more in (40, 1500, 3000)]
    files = [f"size=64m,nr_inodes={count + more}" for more in (3, 6, 12, 20)]

    def between(well: bool) -> None:
        assert well or world.remote == set()

    full = 0
    for size in (*sizes, *files):
        world.move(f"{world.front.address}/{secrets.token_hex(3)}", info)
        key = ("--key", str(world.folder / "farm.pem"))
        full += on_a_small_disk(world, size, pusher, "push", "cpu", *key, between=between)
        assert world.remote == {world.names.proven.rpartition(":")[2], "validated"}, size
    assert full >= 4


# --- others at the same time ------------------------------------------------------------------------------------------


def test_a_name_that_was_given_meanwhile_is_not_overwritten(world: World) -> None:
    """Another host pushes another image under the same name, while this one sends its layers."""
    other = world.image(MIB)
    world.prove(other)
    world.push(candidate=True)
    world.forget()
    info = world.image(MIB)
    world.prove(info)
    own = world.names.proven.rpartition(":")[2]
    there = straight(world)

    def overtaken(exchange: Exchange) -> None:
        exchange.relay()
        found = there.manifest(f"candidate-{world.target.rendering.id8}")
        there.put_manifest(found.raw, found.descriptor.media_type, own)

    world.front.on(r"^PUT .*/manifests/sha256:", overtaken, 1)
    with pytest.raises(GateError, match="never overwritten"):
        world.push()
    assert there.manifest(own).config.digest == other.id  # type: ignore[union-attr]
    assert "validated" not in world.remote


def test_the_same_image_packed_otherwise_meanwhile_keeps_its_name(world: World) -> None:
    info = world.image(MIB)
    world.prove(info)
    own = world.names.proven.rpartition(":")[2]
    there = straight(world)
    theirs: list[Descriptor] = []

    def overtaken(exchange: Exchange) -> None:
        exchange.relay()
        if not theirs:
            mine = there.manifest(exchange.path.rpartition("/")[2])
            again = json.loads(mine.raw) | {"annotations": {"packed": "elsewhere"}}
            theirs.append(there.put_manifest(dump(again), OCI_MANIFEST, own))

    world.front.on(r"^PUT .*/manifests/sha256:", overtaken, 1)
    pushed = world.push()
    assert pushed.digest == theirs[0].digest
    for tag in (own, "validated"):
        assert there.resolve(tag).digest == theirs[0].digest  # type: ignore[union-attr]
    world.forget()
    world.home("puller")
    assert world.pull().id == info.id, "the binding is of the manifest that has the name"


@pytest.mark.parametrize("homes", [("pusher", "pusher"), ("pusher", "other")])
def test_two_pushes_at_once_end_as_one(world: World, homes: tuple[str, str]) -> None:
    info = world.image(2 * MIB, MIB)
    world.prove(info)
    shutil.copytree(world.folder / "pusher", world.folder / "other")
    key = str(world.folder / "farm.pem")
    both = [world.start(home, "push", "cpu", "--key", key, "--json") for home in homes]
    digests = set()
    for each in both:
        out, err = each.communicate(timeout=120)
        assert each.returncode == 0, err
        digests.add(json.loads(out)["images"][0]["digest"])
    assert digests == {world.there.resolve("validated").digest}  # type: ignore[union-attr]
    listed = world.there.referrers(digests.pop())
    kinds = [each.artifact_type for each in listed]
    assert len(listed) == len({each.digest for each in listed}) and len(set(kinds)) == 4, kinds
    world.forget()
    world.home("puller")
    assert world.pull().id == info.id


def test_layers_that_another_run_takes_away_are_fetched_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another row's pull ends, and takes the layers that both share from the cache, before this one has read them."""
    info = world.image(MIB, MIB)
    world.prove(info)
    world.push()
    world.forget()
    world.home("puller")
    fetch, taken = Blobs.fetch, set[str]()

    def fetched(self: Blobs, there: Repository, blob: Descriptor, **given: Any) -> Path:
        path = fetch(self, there, blob, **given)
        if blob.digest not in taken:
            taken.add(blob.digest)
            path.unlink()
        return path

    monkeypatch.setattr(Blobs, "fetch", fetched)
    assert world.pull().id == info.id and len(taken) >= 2


def test_two_pulls_of_several_layers_at_once(world: World) -> None:
    info = world.image(*[MIB] * 6)
    world.prove(info)
    world.push()
    for _ in range(3):
        world.forget()
        key = str(world.folder / "farm.pub")
        runs = [world.start("puller", "pull", "cpu", "--key", key) for _ in range(3)]
        for each in runs:
            _, err = each.communicate(timeout=120)
            assert each.returncode == 0, err
        assert world.engine.image(world.names.moving).id == info.id  # type: ignore[union-attr]


def test_prune_leaves_alone_what_a_pull_has_in_its_hands(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has the image, and it has neither name nor evidence yet; another run prunes."""
    info = world.image(MIB)
    world.prove(info)
    world.push()
    world.forget()
    world.home("puller")
    bench, said = world.bench(), list[Event]()
    bench.sink = said.append
    same = pulling._same

    def pruned(*given: Any) -> None:
        mine = [item for item in pruning.plan(bench, candidates=True) if item.what == info.id]
        assert len(mine) == 1 and pruning.carry_out(bench, mine) == []
        same(*given)

    monkeypatch.setattr(pulling, "_same", pruned)
    assert world.pull().id == info.id
    assert any(isinstance(event, Note) and "is in use" in event.message for event in said)
    # A layer that is of use again is not old any more, however long it lies there.
    blob = Descriptor(media_type=OCI_LAYER, digest=digest_of(b"x"), size=1)
    cache = Blobs(world.folder / "puller/cache/blobs")
    path = cache.add(b"x", blob.digest)
    os.utime(path, (0, 0))
    assert str(path) in {item.what for item in pruning.plan(bench, candidates=False)}
    cache.fetch(world.there, blob)
    assert str(path) not in {item.what for item in pruning.plan(bench, candidates=False)}


@pytest.mark.parametrize(
    ("ahead", "refused"), [(datetime.timedelta(minutes=2), False), (datetime.timedelta(days=2), True)]
)
def test_clocks_that_differ(world: World, ahead: datetime.timedelta, refused: bool) -> None:
    """The host that proved it is ahead of this one: by little is fine, by much nothing is known of its age."""
    info = world.image(MIB)
    world.prove(info, finished=datetime.datetime.now(datetime.timezone.utc) + ahead)
    world.push()
    world.forget()
    world.home("puller")
    with pytest.raises(FindingsError) if refused else contextlib.nullcontext() as caught:
        world.pull()
    if refused:
        assert "verify.age" in {each.rule for each in caught.value.findings}  # type: ignore[union-attr]


# --- images of other kinds --------------------------------------------------------------------------------------------


def listed(world: World, info_tag: str, *entries: dict[str, Any]) -> str:
    """Push an index of some entries; returns its reference."""
    there = straight(world)
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(entries)}
    there.put_manifest(dump(index), OCI_INDEX, info_tag)
    return f"{world.names.repository}:{info_tag}"


def test_indexes_are_read_as_the_specification_says(world: World) -> None:
    info = world.image(MIB)
    world.prove(info)
    world.push()
    there = straight(world)
    own = there.resolve("validated")
    assert own is not None
    world.forget()
    world.home("puller")

    def entry(architecture: str, digest: str = own.digest, variant: str | None = None) -> dict[str, Any]:
        platform = {"os": "linux", "architecture": architecture, **({"variant": variant} if variant else {})}
        return {"mediaType": OCI_MANIFEST, "digest": digest, "size": own.size, "platform": platform}

    attestation = entry("unknown") | {"platform": {"os": "unknown", "architecture": "unknown"}}
    none = f"sha256:{'0' * 64}"
    # Distribution looks whether an index's manifests are there; the front does not.
    for entries in (
        (entry("arm64"), attestation, entry("amd64")),
        (entry("amd64"), entry("amd64", none), entry("amd64", none, "v3")),
    ):
        raw = dump({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(entries)})
        world.front.reset()
        world.front.on("^GET .*/manifests/many", lambda exchange, raw=raw: exchange.reply(
            200, raw, {"Content-Type": OCI_INDEX}))  # fmt: skip
        _, pulled = pull_plain(world.bench(), f"{world.names.repository}:many")
        assert pulled is not None and pulled.id == info.id
        world.forget()
    nested = listed(world, "inner", entry("amd64"))
    inner = there.resolve("inner")
    assert inner is not None and nested
    for entries, expected in (
        ((entry("s390x"), attestation), "is for linux/s390x, unknown/unknown, and not for linux/"),
        ((), "none that is named"),
        ((entry("amd64", inner.digest),), "is no image"),
    ):
        raw = dump({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(entries)})
        world.front.reset()
        world.front.on("^GET .*/manifests/many", lambda exchange, raw=raw: exchange.reply(
            200, raw, {"Content-Type": OCI_INDEX}))  # fmt: skip
        with pytest.raises(GateError, match=expected):
            pull_plain(world.bench(), f"{world.names.repository}:many")
    assert world.local == set()


def test_layers_that_lie_elsewhere_are_not_fetched_from_there(world: World) -> None:
    """A foreign layer's ``urls`` lead anywhere: nothing of this host asks them."""
    info = world.image(MIB)
    world.prove(info)
    world.push()
    there, own = straight(world), Blobs(world.folder / "own")
    found = there.manifest("validated")
    assert isinstance(found, Manifest)
    with registries.fronting(world.front.upstream) as elsewhere:
        document = json.loads(found.raw)
        document["layers"][0] |= {
            "mediaType": "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
            "urls": [f"http://{elsewhere.address}/v2/x"],
            "digest": f"sha256:{'1' * 64}",
        }
        raw = dump(document)
        world.front.on("^GET .*/manifests/foreign", lambda exchange: exchange.reply(
            200, raw, {"Content-Type": OCI_MANIFEST}))  # fmt: skip
        world.forget()
        world.home("puller")
        with pytest.raises(EnvbuildError, match=r"not there \(404\)"):
            pull_plain(world.bench(), f"{world.names.repository}:foreign")
        assert elsewhere.asked == []
    assert world.local == set() and own


@pytest.mark.parametrize("zstd", [True, False])
def test_layers_that_are_packed_otherwise(world: World, zstd: bool) -> None:
    """zstd is taken where the engine takes it, plain tar always; either way the image is the one that was asked for."""
    import gzip

    import zstandard

    info = world.image(MIB)
    world.prove(info)
    world.push()
    there, own = straight(world), Blobs(world.folder / "own")
    found = there.manifest("validated")
    assert isinstance(found, Manifest)
    plain = gzip.decompress(own.read(there, found.layers[0]))
    data = zstandard.ZstdCompressor().compress(plain) if zstd else plain
    kind = f"application/vnd.oci.image.layer.v1.tar{'+zstd' if zstd else ''}"
    blob = Descriptor(media_type=kind, digest=digest_of(data), size=len(data))
    own.add(data, blob.digest)
    push_blob(there, blob, own)
    document = json.loads(found.raw) | {"layers": [blob.as_dict()]}
    there.put_manifest(dump(document), OCI_MANIFEST, "packed")
    world.forget()
    world.home("puller")
    try:
        _, pulled = pull_plain(world.bench(), f"{world.names.repository}:packed")
    except EnvbuildError as error:
        assert zstd and "zstd" in f"{error.message}{error.hint}", error
        assert world.local == set()
    else:
        assert pulled is not None and pulled.diff_ids == info.diff_ids


def test_one_odd_tag_hides_no_other_from_the_list(world: World) -> None:
    info = world.image(MIB)
    world.prove(info)
    world.push()
    there = straight(world)
    odd = there.put_manifest(
        dump(json.loads(there.manifest("validated").raw) | {"annotations": {"a": "b"}}), OCI_MANIFEST, "odd"
    )
    world.front.on(f"^GET .*/manifests/{odd.digest}", lambda exchange: exchange.reply(200, b'{"schemaVersion": 1}'))
    assert [each.tags for each in remote(world.bench(), world.prefix, ["cpu"])] == [
        (world.names.proven.rpartition(":")[2], "validated")
    ]


# --- a build that need not be -----------------------------------------------------------------------------------------


def test_a_build_says_what_can_be_pulled_and_one_with_nothing_to_do_asks_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = world.image(MIB)
    world.prove(info)
    bench = world.bench()
    world.push()
    world.front.asked.clear()
    result = building.build(world.bench(), "cpu", building.BuildOptions())
    assert (result.status, world.front.asked) == ("up to date", [])
    world.forget()
    world.home("builder")

    class Enough(Exception):
        pass

    def enough(*given: Any, **more: Any) -> None:
        raise Enough

    monkeypatch.setattr(building, "build_image", enough)
    for options, told in (({}, True), ({"no_cache": True}, False)):
        said: list[Event] = []
        bench = world.bench()
        bench.sink = said.append
        with pytest.raises(Enough):
            building.build(bench, "cpu", building.BuildOptions(**options))
        notes = [event.message for event in said if isinstance(event, Note)]
        assert any(note.endswith("envbuild pull cpu") for note in notes) is told, notes


def test_a_registry_is_in_no_builds_way(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = world.image(MIB)
    world.prove(info)
    world.push()
    bench = world.bench()
    assert offer(bench, world.env, world.names).endswith("envbuild pull cpu")
    there = straight(world)
    there.put_manifest(
        dump(json.loads(there.manifest("validated").raw) | {"annotations": {"a": "b"}}), OCI_MANIFEST, "validated"
    )
    assert offer(bench, world.env, world.names).endswith("envbuild pull cpu --locked")
    monkeypatch.setattr(offering, "SECONDS", 0.5)
    hang = tmp_path / "docker-credential-hangs"
    hang.write_text("#!/bin/sh\nsleep 100\n")
    hang.chmod(0o755)
    (tmp_path / "config.json").write_text('{"credsStore": "hangs"}')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    ended = time.monotonic() + 60
    faults: list[Callable[[Exchange], None]] = [
        lambda exchange: exchange.reply(500),
        lambda exchange: exchange.reply(429, b"", {"Retry-After": "50"}),
        lambda exchange: exchange.reply(200, b"<html>"),
        lambda exchange: exchange.reply(401, b"", {"WWW-Authenticate": "Basic realm=x"}),
        Exchange.cut,
        lambda exchange: time.sleep(2),
    ]
    for fault in faults:
        world.front.reset()
        world.front.on("/manifests/", fault)
        assert offer(world.bench(), world.env, world.names) == ""
        assert len(world.front.asked) <= 6
    assert time.monotonic() < ended, "nobody waits for it"
    bare = world.bench()
    bare.settings = {}
    world.front.reset()
    assert offer(bare, world.env, world.names) == "" and world.front.asked == []
