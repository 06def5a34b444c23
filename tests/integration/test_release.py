"""promote --set against a real registry and a real engine: all names move, or none."""

from __future__ import annotations

import contextlib
import secrets
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import registries
from envbuild.engines import Engine
from envbuild.errors import EnvbuildError, GateError, InputError
from envbuild.events import discard
from envbuild.net import Route, Wire
from envbuild.pipeline.release import EngineShelf, Entry, RegistryShelf, move, name_of
from envbuild.registry import Descriptor, Repository, Session, parse
from envbuild.registry.manifests import OCI_CONFIG, OCI_MANIFEST, digest_of, dump
from registries import Exchange, Front

ROWS = ("a", "b", "c")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    binary = registries.program(tmp_path_factory.mktemp("deb"))
    with registries.running(binary, tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Remote:
    """Three repositories behind a front, with an image each, and an older one that is ``validated``."""

    def __init__(self, front: Front, prefix: str) -> None:
        self.place = f"{front.address}/{prefix}"
        session = Session(front.address, Wire(Route(agent="t")), lambda path: None, pause=lambda seconds: None)
        self.repositories = {f"{self.place}/{row}": Repository(session, parse(f"{self.place}/{row}:x")) for row in ROWS}
        self.shelf = RegistryShelf(self.repositories)
        self.old = {name: self.image(name, "validated") for name in self.repositories}
        self.entries = [
            Entry(environment=name.rpartition("/")[2], repository=name, image=self.image(name, "id"), own="id")
            for name in self.repositories
        ]

    def image(self, name: str, tag: str) -> str:
        there = self.repositories[name]
        config = secrets.token_hex(8).encode()
        reply = there.session.ask("POST", there.url("blobs/uploads/"), there.writing, ok=frozenset({202}))
        where = f"{reply.headers['location']}&digest={digest_of(config)}"
        there.session.ask("PUT", where, there.writing, data=lambda: config, ok=frozenset({201}))
        described = Descriptor(media_type=OCI_CONFIG, digest=digest_of(config), size=len(config))
        raw = dump({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": described.as_dict(), "layers": []})
        return there.put_manifest(raw, OCI_MANIFEST, tag).digest

    def tags(self, tag: str) -> dict[str, str | None]:
        return {name: self.shelf.holds(name, tag) for name in self.repositories}

    @property
    def new(self) -> dict[str, str]:
        return {each.repository: each.image for each in self.entries}


@pytest.fixture
def remote(real: str) -> Iterator[tuple[Remote, Front]]:
    with registries.fronting(real) as front:
        yield Remote(front, secrets.token_hex(3)), front


def test_all_names_move_and_a_release_is_given_once(remote: tuple[Remote, Front]) -> None:
    there, _ = remote
    given = move(there.shelf, there.place, "2026.12", there.entries, discard)
    assert given[-1].endswith("/c:validated") and len(given) == 6
    assert there.tags("2026.12") == there.tags("validated") == there.new
    # The same again changes nothing; the same name for other images is refused, and nothing moves.
    move(there.shelf, there.place, "2026.12", there.entries, discard)
    other = [Entry(environment="c", repository=each.repository, image=there.image(each.repository, "id2"), own="id2")
             for each in there.entries[2:]]  # fmt: skip
    with pytest.raises(GateError, match="never overwritten"):
        move(there.shelf, there.place, "2026.12", other, discard)
    assert there.tags("validated") == there.new


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_failure_half_way_puts_back_what_had_moved(remote: tuple[Remote, Front], failing: int) -> None:
    there, front = remote

    def refuse(exchange: Exchange) -> None:
        exchange.reply(400, b'{"errors":[{"code":"UNKNOWN","message":"not today"}]}')

    front.on(r"^PUT .*/manifests/validated", refuse, failing)
    with pytest.raises(EnvbuildError, match="not today"):
        move(there.shelf, there.place, "2026.12", there.entries, discard)
    assert there.tags("validated") == there.old, "not one has moved"
    front.reset()
    move(there.shelf, there.place, "2026.12", there.entries, discard)
    assert there.tags("validated") == there.new, "the rerun ends well"


class Killed(BaseException):
    """As kill -9 would: nothing is put back."""


def test_a_run_that_was_killed_is_finished_by_the_next_and_stands_in_the_way_of_others(
    remote: tuple[Remote, Front],
) -> None:
    there, _ = remote

    class Dying(RegistryShelf):
        def point(self, repository: str, tag: str, image: str) -> None:
            if tag == "validated" and repository.endswith("/b"):
                raise Killed
            super().point(repository, tag, image)

    with pytest.raises(Killed):
        move(Dying(there.repositories), there.place, "2026.12", there.entries, discard)
    mixed = there.tags("validated")
    assert mixed != there.old and mixed != there.new
    with pytest.raises(GateError, match="was begun and not finished") as stopped:
        move(there.shelf, there.place, "2027.1", there.entries[:1], discard)
    assert "promote --set 2026.12 --remote a b c" in stopped.value.hint
    move(there.shelf, there.place, "2026.12", there.entries, discard)
    assert there.tags("validated") == there.new
    move(there.shelf, there.place, "2027.1", there.entries[:1], discard)


def test_a_name_that_was_taken_after_a_run_was_killed_is_not_overwritten(remote: tuple[Remote, Front]) -> None:
    there, _ = remote
    last = there.entries[-1].repository

    class Dying(RegistryShelf):
        def point(self, repository: str, tag: str, image: str) -> None:
            if tag == "2026.12" and repository == last:
                raise Killed
            super().point(repository, tag, image)

    with pytest.raises(Killed):
        move(Dying(there.repositories), there.place, "2026.12", there.entries, discard)
    other = there.image(last, "2026.12")
    with pytest.raises(GateError, match="is another image already"):
        move(there.shelf, there.place, "2026.12", there.entries, discard)
    assert there.shelf.holds(last, "2026.12") == other and there.tags("validated") == there.old
    move(there.shelf, there.place, "2027.1", there.entries, discard)


def test_what_somebody_moved_after_a_run_was_killed_moves_with_the_rest(remote: tuple[Remote, Front]) -> None:
    there, _ = remote
    first = there.entries[0]
    there.shelf.point(first.repository, "validated", first.image)

    class Dying(RegistryShelf):
        def point(self, repository: str, tag: str, image: str) -> None:
            if tag == "validated":
                raise Killed
            super().point(repository, tag, image)

    with pytest.raises(Killed):
        move(Dying(there.repositories), there.place, "2026.12", there.entries, discard)
    there.image(first.repository, "validated")
    move(there.shelf, there.place, "2026.12", there.entries, discard)
    assert there.tags("validated") == there.new


class FakeShelf:
    """A shelf in memory whose names can all be taken away again, which a registry of distribution 2.x cannot."""

    def __init__(self, names: dict[tuple[str, str], str]) -> None:
        self.names = dict(names)

    def holds(self, repository: str, tag: str) -> str | None:
        return self.names.get((repository, tag))

    def point(self, repository: str, tag: str, image: str) -> None:
        self.names[repository, tag] = image
        self.names["c", "2026.12"] = "another"  # somebody else, between the first look and this one's turn

    def clear(self, repository: str, tag: str) -> None:
        self.names.pop((repository, tag), None)


def test_a_name_that_others_give_while_the_first_ones_move_is_not_overwritten() -> None:
    entries = [Entry(environment=row, repository=row, image=f"{row}-new", own="id") for row in ROWS]
    before = {(row, "validated"): f"{row}-old" for row in ROWS} | {("a", "id"): "a-new"}
    shelf = FakeShelf(before)
    with pytest.raises(GateError, match="never overwritten"):
        move(shelf, "there", "2026.12", entries, discard)
    assert shelf.names == {**before, ("c", "2026.12"): "another"}, "what was made is gone, theirs is not"


def test_the_same_on_an_engine(engine: Engine, tmp_path: Path) -> None:
    prefix = f"envbuild-test-{secrets.token_hex(3)}"
    entries = []
    for row in ROWS:
        tar = tmp_path / f"{row}.tar"
        with tarfile.open(tar, "w") as archive:
            archive.addfile(tarfile.TarInfo(secrets.token_hex(8)))
        image = engine.import_root(tar, f"{prefix}/{row}:id")
        entries.append(Entry(environment=row, repository=f"{prefix}/{row}", image=image, own="id"))
    try:
        move(EngineShelf(engine), engine.endpoint, "2026.12", entries, discard)
        for each in entries:
            for tag in ("2026.12", "validated"):
                found = engine.image(f"{each.repository}:{tag}")
                assert found is not None and found.id == each.image
        broken = [*entries[:2], Entry(environment="x", repository=f"{prefix}/x", image=f"sha256:{'0' * 64}", own="id")]
        with pytest.raises(EnvbuildError):
            move(EngineShelf(engine), engine.endpoint, "2027.1", broken, discard)
        assert engine.image(f"{prefix}/a:2027.1") is None, "and nothing stands in the way of another"
        move(EngineShelf(engine), engine.endpoint, "2027.1", entries, discard)
    finally:
        for each in entries:
            for tag in ("id", "2026.12", "validated", "2027.1"):
                with contextlib.suppress(EnvbuildError):
                    engine.untag(f"{each.repository}:{tag}")


@pytest.mark.parametrize(
    "text", ["validated", "candidate-1a2b3c4d", "2.13.0-cpu-1a2b3c4d", "a/b", "", "x" * 80, "sha256-1"]
)
def test_names_that_mean_something_else(text: str) -> None:
    with pytest.raises(InputError, match="cannot be the name of a release"):
        name_of(text)
