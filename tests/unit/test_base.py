"""Where a base comes from, and that a bootstrap leaves nothing of the site in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from envbuild.base import BaseUsed, Declared, bootstrap, choose
from envbuild.engines import DockerEngine
from envbuild.engines.types import ImageInfo, RemoteAnswer
from envbuild.errors import EngineError, EnvbuildError, InputError
from envbuild.events import Event, Note
from envbuild.model import Bootstrap
from envbuild.registry import reference
from envbuild.site.apt import AptSettings
from envbuild.site.sections import BaseSection, SiteConfig

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
PLAN = Bootstrap(suite="bookworm", components=("main", "contrib"), packages=("ca-certificates",))
APT = AptSettings(
    suite="bookworm",
    components=("main",),
    family="debian",
    mirror="http://user:mirror-secret@mirror.corp/debian",
    http_proxy="http://user:proxy-secret@proxy.corp:3128",
    no_proxy="localhost",
)


def declared(digest: str | None = None, plan: Bootstrap | None = None) -> Declared:
    return Declared(
        image="docker.io/library/debian:bookworm-slim", digest=digest, bootstrap=plan, platform="linux/amd64"
    )


class FakeEngine:
    """Images by name, and registries that know some references."""

    kind = "docker"

    def __init__(self, local: dict[str, ImageInfo] | None = None, remote: dict[str, str] | None = None) -> None:
        self.local = dict(local or {})
        self.remote = remote or {}
        self.asked: list[str] = []
        self.pulled: list[str] = []

    def image(self, ref: str) -> ImageInfo | None:
        return self.local.get(ref) or next((each for each in self.local.values() if each.id == ref), None)

    def ask_registry(self, ref: str) -> RemoteAnswer:
        self.asked.append(ref)
        digest = self.remote.get(ref)
        return RemoteAnswer(digest=digest, reason="" if digest else "dial tcp: lookup x: no such host")

    def pull(self, ref: str, sink: Callable[[Event], None]) -> None:
        self.pulled.append(ref)
        self.local[ref] = image("sha256:pulled", repo_digests=(ref,))

    def tag(self, ref: str, new: str) -> None:
        found = self.image(ref)
        assert found is not None
        self.local[new] = found


def image(identity: str, *, repo_digests: tuple[str, ...] = (), labels: tuple[tuple[str, str], ...] = ()) -> ImageInfo:
    return ImageInfo(
        id=identity,
        diff_ids=("sha256:layer",),
        labels=labels,
        env=(),
        architecture="amd64",
        os="linux",
        size=1,
        created="",
        repo_tags=(),
        repo_digests=repo_digests,
    )


@pytest.fixture
def bootstrapped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that would have been bootstrapped."""
    names: list[str] = []

    def fake(engine: Any, plan: Bootstrap, name: str, **rest: Any) -> None:
        names.append(name)
        engine.local[name] = image("sha256:made", labels=((bootstrap.LABEL, bootstrap.describe(plan)),))

    monkeypatch.setattr(choose, "bootstrap", fake)
    return names


def run(
    engine: FakeEngine, base: Declared, *, site: SiteConfig | None = None, no_cache: bool = False
) -> tuple[BaseUsed, list[str]]:
    notes: list[str] = []

    def sink(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.message)

    used = choose.ensure_declared(cast(DockerEngine, engine), base, site or SiteConfig(), APT, sink, no_cache)
    assert used.reference == base.local_name
    return used, notes


def site(policy: str = "auto", **mirrors: str) -> SiteConfig:
    named = {"docker.io": mirrors["hub"]} if mirrors else {}
    return SiteConfig(base=BaseSection.model_validate({"bootstrap": policy, "mirrors": named}))


def test_a_registry_that_answers_is_pulled_by_digest(bootstrapped: list[str]) -> None:
    engine = FakeEngine(remote={"docker.io/library/debian:bookworm-slim": DIGEST})
    used, _ = run(engine, declared(plan=PLAN))
    assert (used.how, used.digest) == ("pulled", DIGEST)
    assert engine.pulled == [f"docker.io/library/debian@{DIGEST}"]
    assert bootstrapped == []


def test_through_a_mirror_no_name_of_the_mirror_is_used_or_told(bootstrapped: list[str]) -> None:
    wanted = f"mirror.corp:5000/hub/library/debian@{DIGEST}"
    engine = FakeEngine(remote={wanted: DIGEST})
    used, notes = run(engine, declared(DIGEST, PLAN), site=site(hub="mirror.corp:5000/hub"))
    assert engine.asked == [wanted]
    assert "mirror.corp" not in str(used.as_dict()) + "".join(notes)
    assert used.reference.startswith("envbuild/base:")


def test_what_is_there_is_used_without_asking_anyone(bootstrapped: list[str]) -> None:
    engine = FakeEngine(remote={"docker.io/library/debian:bookworm-slim": DIGEST})
    first, _ = run(engine, declared())
    engine.asked.clear()
    again, _ = run(engine, declared())
    assert engine.asked == []
    assert again == first, "the second run says the same of the base as the first"


def test_no_cache_asks_again(bootstrapped: list[str]) -> None:
    engine = FakeEngine(remote={"docker.io/library/debian:bookworm-slim": DIGEST})
    run(engine, declared())
    run(engine, declared(), no_cache=True)
    assert len(engine.pulled) == 2


def test_a_silent_registry_means_a_bootstrap_that_is_said_aloud(bootstrapped: list[str]) -> None:
    base = declared(plan=PLAN)
    used, notes = run(FakeEngine(), base)
    assert bootstrapped == [base.local_name]
    assert (used.how, used.digest) == ("bootstrapped", None)
    assert used.declared == "bootstrap bookworm main contrib +ca-certificates"
    assert notes == [
        "docker.io gives no base image (no such host): bootstrapping bookworm main contrib +ca-certificates"
    ]


@pytest.mark.parametrize(("plan", "policy"), [(None, "auto"), (None, "always"), (PLAN, "never")])
def test_where_no_bootstrap_is_allowed_a_silent_registry_is_an_error(
    plan: Bootstrap | None, policy: str, bootstrapped: list[str]
) -> None:
    with pytest.raises(EngineError, match="no such host") as caught:
        run(FakeEngine(), declared(plan=plan), site=site(policy))
    assert "mirror" in caught.value.hint
    assert bootstrapped == []


def test_a_site_that_always_bootstraps_asks_no_registry(bootstrapped: list[str]) -> None:
    engine = FakeEngine(
        {"docker.io/library/debian:bookworm-slim": image("sha256:x")},
        {"docker.io/library/debian:bookworm-slim": DIGEST},
    )
    used, _ = run(engine, declared(plan=PLAN), site=site("always"))
    assert used.how == "bootstrapped"
    assert engine.asked == []


def test_an_air_gapped_hosts_own_image_is_used(bootstrapped: list[str]) -> None:
    engine = FakeEngine({"docker.io/library/debian:bookworm-slim": image("sha256:loaded")})
    used, notes = run(engine, declared(plan=PLAN))
    assert (used.how, used.image_id, notes) == ("local", "sha256:loaded", [])
    assert engine.asked == []
    used, notes = run(engine, declared(DIGEST))
    assert used.how == "local"
    assert "cannot be seen" in notes[0], "a digest that cannot be checked is not claimed"


def test_a_local_image_known_to_be_another_one_is_not_used(bootstrapped: list[str]) -> None:
    other = image("sha256:x", repo_digests=(f"debian@{OTHER}",))
    engine = FakeEngine({"docker.io/library/debian:bookworm-slim": other})
    used, _ = run(engine, declared(DIGEST, PLAN))
    assert used.how == "bootstrapped"
    exact = f"docker.io/library/debian@{DIGEST}"
    engine = FakeEngine({exact: image("sha256:y", repo_digests=(f"debian@{OTHER}", f"debian@{DIGEST}"))})
    used, _ = run(engine, declared(DIGEST))
    assert (used.image_id, used.digest) == ("sha256:y", DIGEST)


def test_the_local_name_follows_the_declaration() -> None:
    names = {
        declared().local_name,
        declared(DIGEST).local_name,
        declared(plan=PLAN).local_name,
        declared(plan=Bootstrap(suite="trixie", packages=())).local_name,
    }
    assert len(names) == 4
    assert all(len(name.rpartition(":")[2]) == 12 for name in names)
    assert declared(DIGEST).local_name == declared(DIGEST).local_name


@pytest.mark.parametrize(
    ("ref", "full", "tag"),
    [
        ("debian", "docker.io/library/debian", "latest"),
        ("docker.io/debian:12", "docker.io/library/debian", "12"),
        ("nvidia/cuda:11.8.0-devel", "docker.io/nvidia/cuda", "11.8.0-devel"),
        ("localhost/a/b:1@sha256:0", "localhost/a/b", "1"),
        ("reg.corp:5000/a", "reg.corp:5000/a", "latest"),
    ],
)
def test_references_have_one_full_form(ref: str, full: str, tag: str) -> None:
    assert (reference.repository(ref), reference.tag(ref)) == (full, tag)


def test_the_longest_mirror_prefix_wins_and_ends_at_a_slash() -> None:
    mirrors = {"docker.io": "m.corp/hub", "docker.io/nvidia": "m.corp/nv/"}
    assert reference.mirrored("docker.io/library/debian", mirrors) == "m.corp/hub/library/debian"
    assert reference.mirrored("docker.io/nvidia/cuda", mirrors) == "m.corp/nv/cuda"
    assert reference.mirrored("docker.io.evil/x", mirrors) == "docker.io.evil/x"


def argv(**changes: Any) -> list[str]:
    given: dict[str, Any] = {
        "platform": "linux/amd64",
        "mode": "root",
        "tar": Path("/t/root.tar"),
        "sources": Path("/t/sources.list"),
        "defaults": "deb http://deb.debian.org/debian bookworm main\ndeb http://x bookworm-security main\n",
        "ca": None,
    }
    return bootstrap.argv(PLAN, **{**given, **changes})


def test_the_exact_mmdebstrap_command_line() -> None:
    *options, hook, suite, tar, sources = argv(ca=Path("/t/ca.crt"), mode="unshare", platform="linux/arm64")
    assert options == [
        "mmdebstrap",
        "--variant=minbase",
        "--mode=unshare",
        "--format=tar",
        "--architectures=arm64",
        "--components=main,contrib",
        "--include=ca-certificates",
        '--aptopt=Acquire::https::CAInfo "/t/ca.crt"',
        "--aptopt=Acquire::Retries 3",
        *(f"--dpkgopt={option}" for option in bootstrap.DPKG_OPTIONS),
    ]
    assert (suite, tar, sources) == ("bookworm", "/t/root.tar", "/t/sources.list")
    assert hook.startswith(
        "--customize-hook=set -eu; printf '%s\\n' 'deb http://deb.debian.org/debian bookworm main' "
        "'deb http://x bookworm-security main' > \"$1/etc/apt/sources.list\"; "
    )
    for trace in ("99mmdebstrap", "sources.list.d", "/etc/hostname", "/etc/resolv.conf", "/var/log"):
        assert trace in hook
    assert not any("CAInfo" in each for each in argv())


def test_credentials_are_in_no_argument_and_proxies_in_the_environment_only() -> None:
    assert bootstrap.environment(APT) == {
        "SOURCE_DATE_EPOCH": "315532800",
        "http_proxy": "http://user:proxy-secret@proxy.corp:3128",
        "no_proxy": "localhost",
    }
    assert "secret" not in " ".join(argv())


class Importer:
    """Stands in for the engine; sees what mmdebstrap was given before it is deleted."""

    def __init__(self) -> None:
        self.changes: tuple[str, ...] = ()

    def import_root(self, tar: Path, ref: str, changes: tuple[str, ...]) -> str:
        assert tar.read_bytes() == b"root"
        self.changes = changes
        return "sha256:1"


def make(
    monkeypatch: pytest.MonkeyPatch, *, code: int = 0, ca: Path | None = None
) -> tuple[list[Event], Importer, dict[str, Any]]:
    seen: dict[str, Any] = {}

    def stream(argv: list[str], *, on_line: Callable[[str], None], env: dict[str, str], timeout: float) -> int:
        sources = Path(argv[-1])
        seen.update(argv=argv, sources=sources.read_text(), mode=sources.stat().st_mode & 0o777)
        Path(argv[-2]).write_bytes(b"root")
        on_line("I: running apt-get update...")
        on_line("E: cannot fetch http://user:mirror-secret@mirror.corp/debian")
        return code

    monkeypatch.setattr("envbuild.process.which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr("envbuild.process.stream", stream)
    events: list[Event] = []
    importer = Importer()
    bootstrap.bootstrap(
        cast(DockerEngine, importer), PLAN, "n:1", platform="linux/amd64", apt=APT, ca=ca, sink=events.append
    )
    return events, importer, seen


def test_the_mirror_goes_into_a_closed_file_with_the_rows_own_components(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ca = tmp_path / "private" / "ca.crt"
    ca.parent.mkdir(mode=0o700)
    ca.write_text("CERT")
    events, importer, seen = make(monkeypatch, ca=ca)
    assert "mirror-secret@mirror.corp/debian bookworm main contrib\n" in seen["sources"]
    assert seen["mode"] == 0o600
    assert str(ca) not in " ".join(seen["argv"]), "apt's own user cannot read a private folder: a copy is used"
    assert not Path(seen["argv"][-1]).exists()
    assert 'LABEL "io.envbuild.bootstrap"="bookworm main contrib +ca-certificates"' in importer.changes
    assert "secret" not in str(events)


def test_a_failed_bootstrap_shows_its_last_lines_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError) as caught:
        make(monkeypatch, code=25)
    assert caught.value.message.splitlines()[0] == "the base could not be bootstrapped (mmdebstrap ended with 25):"
    assert "mirror.corp" in caught.value.message
    assert "secret" not in caught.value.message


def test_without_mmdebstrap_the_hint_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envbuild.process.which", lambda program: None)
    engine = cast(DockerEngine, Importer())
    with pytest.raises(EngineError) as caught:
        bootstrap.bootstrap(engine, PLAN, "n:1", platform="linux/amd64", apt=APT, ca=None, sink=lambda event: None)
    assert "apt-get install mmdebstrap" in caught.value.hint


def test_a_family_without_apt_cannot_be_bootstrapped() -> None:
    apt = AptSettings(suite="9", components=("main",), family="rocky")
    with pytest.raises(InputError, match="rocky") as caught:
        bootstrap.bootstrap(
            cast(DockerEngine, Importer()), PLAN, "n:1", platform="linux/amd64", apt=apt, ca=None, sink=print
        )
    assert isinstance(caught.value, EnvbuildError)
