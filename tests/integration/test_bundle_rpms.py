"""RPM packages from a mirror into a bundle and from there into a root with no network: the whole way, and every way in
which it may go wrong. The packages and their signatures are real; the bundle's installation is dnf's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard

from envbuild.bundle import rpms
from envbuild.bundle.rpms import EMPTY, Check, Plan, Proof, Request, Source, System, Target, Written, solve
from envbuild.bundle.rpms.fetching import size
from envbuild.errors import BundleError, EngineError, EnvbuildError, InputError
from envbuild.events import Event, Note, StepLine
from envbuild.model import Finding
from envbuild.net import NetworkError
from envbuild.site.sections import NetworkSection
from registries import Authority
from rpm_mirrors import Mirror, mirrored
from rpm_repositories import DEFAULT, Dnf, build, collected, index, need_tools, node, p, sign
from rpm_world import Key, key, run

EL8, EL9 = System(distro="rocky", major=8), System(distro="rocky", major=9)
FIPS = System(distro="rocky", major=8, fips=True)
# What an installer gives dnf for a bundle: nothing but its repository, and every signature looked at.
CREATED = 1_700_000_000


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    need_tools()


@pytest.fixture(scope="module")
def ours() -> Iterator[Key]:
    with key("ours") as made:
        yield made


@pytest.fixture(scope="module")
def stranger() -> Iterator[Key]:
    with key("stranger") as made:
        yield made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, ours: Key) -> Path:
    """Packages that are signed by ours: one with its needs, a large one, and one that nobody asks for."""
    folder = tmp_path_factory.mktemp("site")
    content = "0123456789abcdef" * 4096
    build(
        folder,
        [p("app", "1:1-1", "Requires: lib >= 2", "Requires: /usr/share/lib/data", files={"/usr/bin/app": "x"}),
         p("lib", "2-1", files={"/usr/share/lib/data": "x", "/etc/lib/conf": content}), p("lib", "1-1"), p("unasked")],
        ours, macros={"_binary_payload": "w0.gzdio"},
    )  # fmt: skip
    return index(folder)


def source(place: Path | str, *keys: Key, **changes: Any) -> Source:
    url = place if isinstance(place, str) else f"{place.as_uri()}/"
    return Source(id="site", baseurls=(url,), keys=tuple(f"file://{each.public}" for each in keys), **changes)


def request(*sources: Source, roots: tuple[str, ...] = ("app",), **changes: Any) -> Request:
    return Request(roots=roots, sources=sources, **{"system": EL8, **changes})


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits between attempts."""
    from envbuild.bundle.rpms import planning, transport

    monkeypatch.setattr(
        planning, "Way", lambda *args, **rest: transport.Way(*args, timeout=5, pause=lambda wait: None, **rest)
    )


@dataclasses.dataclass(frozen=True)
class Made:
    plan: Plan
    checked: Check
    written: Written
    proof: Proof


def made(asked: Request, cache: Path, folder: Path, network: NetworkSection | None = None) -> Made:
    """A bundle's packages, the whole way."""
    plan = rpms.plan(asked, network or NetworkSection(), cache=cache)
    assert plan.good, plan.findings
    checked = rpms.check(plan, rpms.fetch(plan, cache=cache))
    written = rpms.write(plan, checked, folder, created=CREATED)
    return Made(plan=plan, checked=checked, written=written, proof=rpms.prove(plan, written, checked.streams))


def offline(root: Path, folder: Path, *words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """dnf with nothing but a bundle, in a network namespace without any interface."""
    for key_file in sorted((folder / "keys").iterdir()):
        run("rpm", "--root", root, "--dbpath", Dnf(root, {}).dbpath, "--import", key_file)
    dnf = Dnf(
        root, {"bundle": (folder / "rpms").as_uri()}, ("--setopt=bundle.gpgcheck=1", "--setopt=gpgcheck=1", *options)
    )
    for place in (root, Path(f"{root}.log")):
        place.mkdir(parents=True, exist_ok=True)
    return subprocess.run(("unshare", "--net", *dnf.argv(*words)), capture_output=True, text=True, timeout=120)


def verified(root: Path) -> str:
    """What rpm finds changed of everything that is installed."""
    done = subprocess.run(
        ("rpm", "--root", str(root), "--dbpath", Dnf(root, {}).dbpath, "-Va"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout


# --- the whole way ----------------------------------------------------------------------------------------------------


def test_from_an_entitled_mirror_to_a_root_without_a_network(tmp_path: Path, site: Path, ours: Key) -> None:
    """TLS of a private CA, a client certificate, a password; a bundle in a folder with blanks in its name."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certificate, authority.key)
    context.load_verify_locations(authority.bundle)
    context.verify_mode = ssl.CERT_REQUIRED
    pair = (authority.certificate, authority.key)
    folder, root = tmp_path / "my bundle, 100%", tmp_path / "root"
    mirror = Mirror(site, account=b64encode(b"ada:pass word").decode())
    with mirrored(mirror, context):
        entitled = source(mirror.url, ours, certificate=pair, account=("ada", "pass word"))
        network = NetworkSection(ca=authority.bundle)
        with pytest.raises(NetworkError, match="does not answer"):
            rpms.plan(request(dataclasses.replace(entitled, certificate=None)), network, cache=tmp_path / "none")
        with pytest.raises(NetworkError, match="no access") as refused:
            rpms.plan(request(dataclasses.replace(entitled, account=None)), network, cache=tmp_path / "none")
        assert "repository site" in refused.value.message
        done = made(request(entitled), tmp_path / "cache", folder, network)
        before = len(mirror.asked)
        again = rpms.plan(request(entitled), network, cache=tmp_path / "cache")
        rpms.fetch(again, cache=tmp_path / "cache")
        assert [path for path, _ in mirror.asked[before:]] == ["/repodata/repomd.xml", "/repodata/repomd.xml.asc"]
    assert done.proof.good and not done.checked.findings and not done.proof.spare
    assert [str(each.nevra) for each in done.plan.packages] == ["app-1:1-1.noarch", "lib-2-1.noarch"]
    assert {each.path.partition("/")[0] for each in done.written.files} == {"rpms", "keys"}
    assert done.checked.packages[0].signature is not None
    assert done.checked.packages[0].signature.key_id == ours.fingerprint[-16:]
    assert [each.fingerprint for each in done.checked.keys] == [ours.fingerprint]
    assert (done.plan.packages[0].licence, done.plan.packages[0].source_rpm) == ("MIT and BSD", "world-1-1.src.rpm")
    installed = offline(root, folder, "install", "app")
    assert installed.returncode == 0, installed.stderr
    assert Dnf(root, {}).has() == {"app-1-1.noarch", "lib-2-1.noarch"}
    assert verified(root) == ""


def test_a_mirror_that_a_list_leads_to_is_not_shown_who_asks(tmp_path: Path, site: Path, ours: Key) -> None:
    """Nor is it told the password: both are for the hosts of the configuration."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certificate, authority.key)
    context.load_verify_locations(authority.bundle)
    context.verify_mode = ssl.CERT_OPTIONAL
    with mirrored(Mirror(tmp_path), context) as lists, mirrored(Mirror(site), context) as other:
        (tmp_path / "list").write_text(f"{other.url}\n")
        listed = Source(
            id="site", listing=("mirrorlist", f"{lists.url}list"), keys=(f"file://{ours.public}",),
            certificate=(authority.certificate, authority.key), account=("ada", "secret"),
        )  # fmt: skip
        plan = rpms.plan(request(listed), NetworkSection(ca=authority.bundle), cache=tmp_path / "cache")
        rpms.fetch(plan, cache=tmp_path / "cache")
    assert lists.shown == [True] and other.asked and not any(other.shown)
    assert lists.told == ["Basic " + b64encode(b"ada:secret").decode()] and not any(other.told)


def test_the_same_inputs_are_the_same_bytes_and_nothing_old_stays(tmp_path: Path, site: Path, ours: Key) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    made(request(source(site, ours)), tmp_path / "cache1", one)
    # Another cache, and a folder in which an earlier export had more packages.
    made(request(source(site, ours), roots=("app", "unasked")), tmp_path / "cache2", two)
    last = made(request(source(site, ours)), tmp_path / "cache2", two)

    def content(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert content(one) == content(two)
    assert sorted(content(two)) == [each.path for each in last.written.files]


@pytest.mark.parametrize("form", ["gz", "xz", "bz2", "zstd"])
def test_metadata_of_every_packing_is_written_as_gzip(tmp_path: Path, site: Path, ours: Key, form: str) -> None:
    folder = tmp_path / "repository"
    shutil.copytree(site, folder, ignore=shutil.ignore_patterns("repodata"))
    if form == "zstd":
        # Newer ones than this machine's write it, and since 1.0 unless they are told otherwise.
        index(folder)
        for kind in ("primary", "filelists", "other"):
            repack(folder, bytes, kind, zstandard.ZstdCompressor().compress)
    else:
        index(folder, f"--general-compress-type={form}")
        assert any(path.name.endswith(f".{form}") for path in (folder / "repodata").iterdir())
    done = made(request(source(folder, ours)), tmp_path / "cache", tmp_path / "bundle")
    assert done.proof.good
    written = {path.suffix for path in (tmp_path / "bundle/rpms/repodata").iterdir()}
    assert written == {".gz", ".xml"}


def test_what_is_written_says_of_each_package_what_the_repository_said(tmp_path: Path, site: Path, ours: Key) -> None:
    """dnf reads both: dependencies, files, sizes, changelogs."""
    made(request(source(site, ours)), tmp_path / "cache", tmp_path / "bundle")
    form = (
        "%{name} %{evr} %{size} %{downloadsize} %{license} %{buildtime} %{sourcerpm} %{requires} %{provides} %{files}"
    )
    said = [
        Dnf(tmp_path / name, {"r": place}).run("repoquery", "--queryformat", form, "app", "lib-2").stdout
        for name, place in (("a", site), ("b", tmp_path / "bundle/rpms"))
    ]
    assert said[0] == said[1] and "/usr/share/lib/data" in said[0]


def test_a_bundle_for_a_pinned_sibling_installs_where_one_for_an_empty_system_does_not(
    tmp_path: Path, ours: Key
) -> None:
    folder = tmp_path / "repository"
    build(
        folder,
        [p("lib", "1-1"), p("lib", "2-1"), p("lib-devel", "1-1", "Requires: lib = 1-1"),
         p("lib-devel", "2-1", "Requires: lib = 2-1"), p("app", "1-1", "Requires: lib >= 2")],
        ours,
    )  # fmt: skip
    index(folder)
    root = tmp_path / "root"
    assert Dnf(root, {"r": folder}).run("install", "lib-1-1", "lib-devel-1-1").returncode == 0
    host = collected(Dnf(root, {}))
    made(request(source(folder, ours)), tmp_path / "cache", tmp_path / "empty")
    done = made(request(source(folder, ours), targets=(EMPTY, host)), tmp_path / "cache", tmp_path / "both")
    assert offline(root, tmp_path / "empty", "install", "app").returncode != 0
    assert offline(root, tmp_path / "both", "install", "app").returncode == 0
    assert Dnf(root, {}).has() == {"app-1-1.noarch", "lib-2-1.noarch", "lib-devel-2-1.noarch"}
    assert [str(each.nevra) for each in done.proof.closures[1].installs] == [
        "app-1-1.noarch", "lib-2-1.noarch", "lib-devel-2-1.noarch"
    ]  # fmt: skip


def test_names_that_a_medium_takes_for_one_lie_apart(tmp_path: Path, ours: Key) -> None:
    folder = tmp_path / "repository"
    build(folder, [p("Tool"), p("tool"), p("plain")], ours)
    index(folder)
    asked = request(source(folder, ours), roots=("Tool", "tool", "plain"))
    done = made(asked, tmp_path / "cache", tmp_path / "bundle")
    paths = sorted(done.written.packages.values())
    assert [path.rpartition("/")[2] for path in paths].count("plain-1-1.noarch.rpm") == 1
    assert len({path.lower() for path in paths}) == 3 and "rpms/Packages/plain-1-1.noarch.rpm" in paths
    assert offline(tmp_path / "root", tmp_path / "bundle", "install", "Tool", "tool", "plain").returncode == 0
    # And they go when they are no longer asked for.
    made(dataclasses.replace(asked, roots=("plain",)), tmp_path / "cache", tmp_path / "bundle")
    assert [path.name for path in (tmp_path / "bundle/rpms/Packages").iterdir()] == ["plain-1-1.noarch.rpm"]


def test_what_is_missing_from_a_written_bundle_is_seen(tmp_path: Path, site: Path, ours: Key) -> None:
    plan = rpms.plan(request(source(site, ours)), NetworkSection(), cache=tmp_path / "cache")
    less = dataclasses.replace(plan, packages=plan.packages[:1])
    checked = rpms.check(less, rpms.fetch(less, cache=tmp_path / "cache"))
    written = rpms.write(less, checked, tmp_path / "bundle", created=CREATED)
    proof = rpms.prove(plan, written, checked.streams)
    assert not proof.good and proof.findings[0].rule == "rpm.unsolvable"
    assert "lib >= 2" in " ".join(proof.findings[0].evidence)


# --- modules ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def modular(tmp_path_factory: pytest.TempPathFactory, ours: Key) -> Path:
    folder = tmp_path_factory.mktemp("modular")
    packages = [p("node", f"{stream}-1", f"ModularityLabel: node:{stream}:1:c0ffee") for stream in (10, 12)]
    build(folder, [*packages, p("node", "20-1"), p("app", "1-1", "Requires: node")], ours)
    modules = node("10", "node-0:10-1.noarch") + node("12", "node-0:12-1.noarch") + DEFAULT
    return index(folder, modules=modules)


def test_an_enabled_stream_installs_from_the_bundle_and_is_there_for_updates(
    tmp_path: Path, modular: Path, ours: Key
) -> None:
    """Without its documents dnf says: no available modular metadata."""
    done = made(request(source(modular, ours), streams={"node": "12"}), tmp_path / "cache", tmp_path / "bundle")
    assert [(each.name, each.stream, each.how) for each in done.checked.streams] == [("node", "12", "enable")]
    assert done.proof.good
    root = tmp_path / "root"
    enabled = offline(root, tmp_path / "bundle", "module", "enable", "node:12")
    assert enabled.returncode == 0, enabled.stderr
    installed = offline(root, tmp_path / "bundle", "install", "app")
    assert installed.returncode == 0, installed.stderr
    assert Dnf(root, {}).has() == {"app-1-1.noarch", "node-12-1.noarch"}


def test_modular_packages_that_nothing_describes_are_for_a_hotfix_repository(
    tmp_path: Path, modular: Path, ours: Key
) -> None:
    """A mirror that dropped the modules' metadata."""
    folder = tmp_path / "repository"
    shutil.copytree(modular, folder, ignore=shutil.ignore_patterns("repodata", "modules.yaml"))
    (folder / "node-20-1.noarch.rpm").unlink()
    index(folder)
    done = made(request(source(folder, ours)), tmp_path / "cache", tmp_path / "bundle")
    assert [(each.name, each.stream, each.how) for each in done.checked.streams] == [("node", "12", "hotfixes")]
    root = tmp_path / "root"
    assert offline(root, tmp_path / "bundle", "install", "app").returncode != 0, "dnf takes it without hotfixes"
    installed = offline(root, tmp_path / "bundle", "install", "app", options=("--setopt=bundle.module_hotfixes=1",))
    assert installed.returncode == 0, installed.stderr


# --- signatures and digests -------------------------------------------------------------------------------------------


def found(folder: Path, cache: Path, *keys: Key, system: System = EL8, root: str = "app") -> list[Finding]:
    """What is wrong with the packages of a folder; nothing that is an error is written."""
    plan = rpms.plan(request(source(folder, *keys), roots=(root,), system=system), NetworkSection(), cache=cache)
    checked = rpms.check(plan, rpms.fetch(plan, cache=cache))
    if any(each.severity.value == "error" for each in checked.findings):
        with pytest.raises(BundleError, match="findings of severity error"):
            rpms.write(plan, checked, cache / "bundle", created=CREATED)
        assert not (cache / "bundle").exists()
    return list(checked.findings)


def rules(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(each.rule, each.severity.value) for each in findings]


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A folder with one package, not signed."""
    build(tmp_path / "one", [p("app", files={"/usr/bin/app": "0123456789" * 500})])
    return tmp_path / "one"


def test_an_unsigned_package_is_refused(tmp_path: Path, one: Path, ours: Key) -> None:
    index(one)
    (finding,) = found(one, tmp_path / "cache", ours)
    assert rules([finding]) == [("rpm.unsigned", "error")] and "app-1-1.noarch, from site" in finding.message


def test_a_package_of_a_stranger_is_refused(tmp_path: Path, one: Path, ours: Key, stranger: Key) -> None:
    sign(list(one.glob("*.rpm")), stranger)
    index(one)
    (finding,) = found(one, tmp_path / "cache", ours)
    assert rules([finding]) == [("rpm.key", "error")] and stranger.fingerprint[-16:] in finding.message
    (finding,) = found(one, tmp_path / "cache")
    assert rules([finding]) == [("rpm.key", "error")] and "no key is named" in finding.message
    # One of two keys will do; only that one goes into the bundle.
    assert found(one, tmp_path / "cache", ours, stranger) == []


@pytest.mark.parametrize("place", ["payload", "header"])
def test_a_package_that_was_changed_after_it_was_signed_is_refused(
    tmp_path: Path, one: Path, ours: Key, place: str
) -> None:
    """With metadata that was made anew for it: the repository itself is hostile."""
    (path,) = one.glob("*.rpm")
    sign([path], ours)
    data = bytearray(path.read_bytes())
    at = len(data) - 100 if place == "payload" else data.rindex(b"MIT and BSD")
    data[at] ^= 1
    path.write_bytes(data)
    index(one)
    findings = found(one, tmp_path / "cache", ours)
    assert ("rpm.tampered", "error") in rules(findings)


def test_sha1_is_enough_for_8_and_not_for_9(tmp_path: Path, one: Path, ours: Key) -> None:
    sign(list(one.glob("*.rpm")), ours, "sha1")
    index(one)
    assert rules(found(one, tmp_path / "cache", ours)) == [("rpm.sha1", "warning")]
    assert rules(found(one, tmp_path / "cache", ours, system=EL9)) == [("rpm.sha1", "error")]
    assert rules(found(one, tmp_path / "cache", ours, system=FIPS)) == [("rpm.sha1", "error")]


def test_md5_digests_are_refused_for_fips_alone(tmp_path: Path, ours: Key) -> None:
    folder = tmp_path / "md5"
    files = {"/usr/bin/app": "x"}
    build(folder, [p("app", files=files)], ours, macros={"_binary_filedigest_algorithm": "1"})
    index(folder)
    assert found(folder, tmp_path / "cache", ours) == []
    assert rules(found(folder, tmp_path / "cache", ours, system=FIPS)) == [("rpm.md5", "error")]


def test_a_key_that_only_sha1_certifies_is_refused_for_9(tmp_path: Path, one: Path) -> None:
    with key("old") as old:
        gpg = ("gpg", "--homedir", old.home, "--batch", "--yes")
        options = ("--cert-digest-algo", "SHA1", "--allow-weak-key-signatures", "--digest-algo", "SHA1")
        # A new self-signature, by the old algorithm, and the first one taken away.
        run(*gpg, *options, "--quick-set-expire", old.fingerprint, "2030-01-01")
        run(*gpg, "--export-options", "export-minimal", "--armor", "--output", old.public, "--export")
        sign(list(one.glob("*.rpm")), old)
        index(one)
        assert found(one, tmp_path / "cache", old) == []
        assert rules(found(one, tmp_path / "cache", old, system=EL9)) == [("rpm.key-sha1", "error")]


def test_a_key_that_its_owner_revoked_signs_nothing(tmp_path: Path, one: Path) -> None:
    """rpm 4.18 takes the package, and gpgv ends well."""
    with key("gone") as gone:
        sign(list(one.glob("*.rpm")), gone)
        index(one)
        repomd = one / "repodata/repomd.xml"
        gpg = ("gpg", "--homedir", gone.home, "--batch", "--yes")
        run(*gpg, "--armor", "--detach-sign", "--output", f"{repomd}.asc", repomd)
        assert found(one, tmp_path / "cache", gone) == []
        certificate = (gone.home / "openpgp-revocs.d" / f"{gone.fingerprint}.rev").read_text()
        (tmp_path / "revoke.asc").write_text(certificate.replace(":-----BEGIN", "-----BEGIN"))
        run(*gpg, "--import", tmp_path / "revoke.asc")
        run(*gpg, "--armor", "--output", gone.public, "--export", gone.fingerprint)
        with pytest.raises(BundleError, match=r"signature of repodata/repomd\.xml"):
            found(one, tmp_path / "cache", gone)
        Path(f"{repomd}.asc").unlink()
        (finding,) = found(one, tmp_path / "cache", gone)
        assert rules([finding]) == [("rpm.key-revoked", "error")] and gone.fingerprint in finding.message


def test_a_file_that_is_another_package_is_refused(tmp_path: Path, one: Path, ours: Key) -> None:
    """Metadata that calls an old, signed package by a new one's name."""
    sign(list(one.glob("*.rpm")), ours)
    index(one, "--compress-type=gz")
    repack(one, lambda text: text.replace(b'ver="1" rel="1"', b'ver="9" rel="1"'))
    (finding,) = found(one, tmp_path / "cache", ours)
    assert rules([finding]) == [("rpm.other", "error")] and "app-0:1-1.noarch" in finding.message


@pytest.mark.parametrize("damage", ["empty", "junk", "cut", "huge"])
def test_a_file_that_is_no_package_is_refused(tmp_path: Path, one: Path, ours: Key, damage: str) -> None:
    (path,) = one.glob("*.rpm")
    sign([path], ours)
    index(one)
    plan = rpms.plan(request(source(one, ours)), NetworkSection(), cache=tmp_path / "cache")
    copy = tmp_path / "copy.rpm"
    huge = path.read_bytes()[:96] + path.read_bytes()[96:104] + b"\xff" * 8 + path.read_bytes()[112:]
    copy.write_bytes({"empty": b"", "junk": os.urandom(5000), "cut": path.read_bytes()[:1000], "huge": huge}[damage])
    checked = rpms.check(plan, {str(plan.packages[0].nevra): copy})
    assert rules(list(checked.findings)) == [("rpm.damaged", "error")]


def test_signed_metadata_is_looked_at_wherever_it_is_and_wanted_where_that_is_said(
    tmp_path: Path, site: Path, ours: Key, stranger: Key
) -> None:
    folder = tmp_path / "repository"
    shutil.copytree(site, folder)
    repomd, signature = folder / "repodata/repomd.xml", folder / "repodata/repomd.xml.asc"

    def planned(**changes: Any) -> Plan:
        return rpms.plan(request(source(folder, ours, **changes)), NetworkSection(), cache=tmp_path / "cache")

    def signed(by: Key) -> None:
        run("gpg", "--homedir", by.home, "--batch", "--yes", "--armor", "--detach-sign", "--output", signature, repomd)

    assert planned().repositories[0].key == ""
    with pytest.raises(BundleError, match=r"repository site: .*has to be signed \(repo_gpgcheck\)"):
        planned(signed=True)
    signed(stranger)
    assert planned().repositories[0].key == "", "the packages have another key than the metadata: dnf does not look"
    with pytest.raises(BundleError, match="not one of its keys"):
        planned(signed=True)
    signed(ours)
    assert planned(signed=True).repositories[0].key == ours.fingerprint
    repomd.write_bytes(repomd.read_bytes() + b"\n")
    with pytest.raises(BundleError, match="not one of its keys"):
        planned()
    with pytest.raises(BundleError, match="no key is named"):
        rpms.plan(request(source(folder, signed=True)), NetworkSection(), cache=tmp_path / "cache")


# --- transport --------------------------------------------------------------------------------------------------------


def test_a_transfer_that_breaks_off_goes_on_where_it_was(
    tmp_path: Path, site: Path, ours: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    mirror = Mirror(site, breaks={"lib-2-1.noarch.rpm": [20_000, 30_000]})
    with mirrored(mirror):
        plan = rpms.plan(request(source(mirror.url, ours)), NetworkSection(), cache=tmp_path / "cache")
        paths = rpms.fetch(plan, cache=tmp_path / "cache")
    asked = [range_ for path, range_ in mirror.asked if path.endswith("lib-2-1.noarch.rpm")]
    assert asked == ["", "bytes=20000-", "bytes=50000-"]
    assert mirror.sent["/lib-2-1.noarch.rpm"] == (site / "lib-2-1.noarch.rpm").stat().st_size
    assert not rpms.check(plan, paths).findings


def test_a_server_without_parts_and_a_rotten_part_end_well(
    tmp_path: Path, site: Path, ours: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    mirror = Mirror(site, breaks={"lib-2-1.noarch.rpm": [20_000]}, ranges=False)
    with mirrored(mirror):
        plan = rpms.plan(request(source(mirror.url, ours)), NetworkSection(), cache=tmp_path / "cache")
        (lib,) = (each for each in plan.packages if each.nevra.name == "lib")
        whole = rpms.fetch(plan, cache=tmp_path / "cache")[str(lib.nevra)]
        # Bit-rot in the cache, and a part of something else.
        data = bytearray(whole.read_bytes())
        data[5000] ^= 1
        whole.write_bytes(data)
        mirror.ranges = True
        assert not rpms.check(plan, rpms.fetch(plan, cache=tmp_path / "cache")).findings
        whole.rename(whole.with_name(f"{whole.name}.part")).write_bytes(os.urandom(9000))
        with pytest.raises(BundleError, match="is not what the repository says"):
            rpms.fetch(plan, cache=tmp_path / "cache")
        assert not rpms.check(plan, rpms.fetch(plan, cache=tmp_path / "cache")).findings


def test_a_killed_run_leaves_a_part_that_the_next_one_takes_up(tmp_path: Path, site: Path, ours: Key) -> None:
    """kill -9 while half of a package is there."""
    half, go_on = threading.Event(), threading.Event()

    mirror = Mirror(site)
    with mirrored(mirror):
        asked = request(source(mirror.url, ours))
        plan = rpms.plan(asked, NetworkSection(), cache=tmp_path / "cache")
        mirror.breaks["lib-2-1.noarch.rpm"] = [30_000]
        mirror.hold = (half, go_on)
        program = (
            "import sys, pathlib\n"
            "from envbuild.bundle import rpms\nfrom envbuild.site.sections import NetworkSection\n"
            f"source = rpms.Source(id='site', baseurls=({mirror.url!r},), keys=('file://{ours.public}',))\n"
            "asked = rpms.Request(roots=('app',), sources=(source,), system=rpms.System(distro='rocky', major=8))\n"
            f"cache = pathlib.Path({str(tmp_path / 'cache')!r})\n"
            "rpms.fetch(rpms.plan(asked, NetworkSection(), cache=cache), cache=cache)\n"
        )
        with subprocess.Popen(
            (sys.executable, "-c", program), env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ) as child:
            assert half.wait(60)
            (lib,) = (each.checksum[1] for each in plan.packages if each.nevra.name == "lib")
            part = tmp_path / "cache/packages" / lib[:2] / f"sha256-{lib}.rpm.part"
            while not (part.is_file() and part.stat().st_size):
                assert child.poll() is None
            child.send_signal(signal.SIGKILL)
            child.wait(10)
        go_on.set()
        mirror.hold = None
        before = len(mirror.asked)
        paths = rpms.fetch(plan, cache=tmp_path / "cache")
        ranges = [each for path, each in mirror.asked[before:] if path.endswith("lib-2-1.noarch.rpm")]
    assert len(ranges) == 1 and ranges[0].startswith("bytes=")
    assert not rpms.check(plan, paths).findings


def test_another_mirror_has_what_the_first_one_has_not(
    tmp_path: Path, site: Path, ours: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of three: one that is gone, one whose package is damaged, a good one. Each is said aloud."""
    quick(monkeypatch)
    events: list[Event] = []
    damaged = Mirror(
        site,
        change=lambda path, data: (
            data[:-9] + bytes(each ^ 1 for each in data[-9:]) if path.endswith("lib-2-1.noarch.rpm") else data
        ),
    )
    with mirrored(damaged), mirrored(Mirror(site)) as good, mirrored(Mirror(tmp_path)) as lists:
        (tmp_path / "list").write_text(f"http://127.0.0.1:9/\n{damaged.url}\n{good.url}\n")
        listed = Source(id="site", listing=("mirrorlist", f"{lists.url}list"), keys=(f"file://{ours.public}",))
        plan = rpms.plan(request(listed), NetworkSection(), cache=tmp_path / "cache", sink=events.append)
        assert plan.repositories[0].url == damaged.url
        paths = rpms.fetch(plan, cache=tmp_path / "cache", sink=events.append)
        assert not rpms.check(plan, paths).findings
    notes = [each.message for each in events if isinstance(each, Note)]
    assert any("127.0.0.1:9" in each for each in notes) and "/lib-2-1.noarch.rpm" in [path for path, _ in good.asked]


def test_a_metalink_passes_by_a_mirror_that_is_behind(tmp_path: Path, site: Path, ours: Key) -> None:
    stale = Mirror(site, change=lambda path, data: data.replace(b"<revision>", b"<revision>0"))
    repomd = (site / "repodata/repomd.xml").read_bytes()
    with mirrored(stale), mirrored(Mirror(site)) as good, mirrored(Mirror(tmp_path)) as links:
        urls = "".join(
            f'<url preference="{9 - n}">{each}repodata/repomd.xml</url>' for n, each in enumerate((stale.url, good.url))
        )
        (tmp_path / "link").write_text(
            f'<metalink xmlns="http://www.metalinker.org/"><files><file name="repomd.xml"><verification>'
            f'<hash type="sha256">{hashlib.sha256(repomd).hexdigest()}</hash></verification>'
            f"<resources>{urls}</resources></file></files></metalink>"
        )
        listed = Source(id="site", listing=("metalink", f"{links.url}link"), keys=(f"file://{ours.public}",))
        plan = rpms.plan(request(listed), NetworkSection(), cache=tmp_path / "cache")
        assert plan.repositories[0].url == good.url


def test_progress_is_told_of_the_whole(tmp_path: Path, site: Path, ours: Key) -> None:
    events: list[Event] = []
    with mirrored(Mirror(site)) as mirror:
        plan = rpms.plan(request(source(mirror.url, ours)), NetworkSection(), cache=tmp_path / "cache")
        rpms.fetch(plan, cache=tmp_path / "cache", sink=events.append)
    lines = [each.text for each in events if isinstance(each, StepLine)]
    assert any(line.endswith(f"of {size(plan.bytes)}") for line in lines), lines


def test_a_full_disk_is_seen_before_anything_is_fetched(
    tmp_path: Path, site: Path, ours: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is a fake: nobody fills a real one."""
    with mirrored(Mirror(site)) as mirror:
        plan = rpms.plan(request(source(mirror.url, ours)), NetworkSection(), cache=tmp_path / "cache")
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=1 << 20))
        before = len(mirror.asked)
        with pytest.raises(EngineError, match=r"are needed for the packages, and 1\.0 MB are free"):
            rpms.fetch(plan, cache=tmp_path / "cache")
        assert len(mirror.asked) == before


# --- hostile repositories ---------------------------------------------------------------------------------------------


def repack(
    folder: Path,
    change: Callable[[bytes], bytes],
    kind: str = "primary",
    pack: Callable[[bytes], bytes] = gzip.compress,
) -> None:
    """Change a repository's metadata, with sums that fit."""
    repomd = folder / "repodata/repomd.xml"
    (path,) = (folder / "repodata").glob(f"*-{kind}.*.gz")
    plain = change(gzip.decompress(path.read_bytes()))
    packed = pack(plain)
    path.write_bytes(packed)
    text = repomd.read_text()
    entry = re.search(rf'<data type="{kind}">.*?</data>', text, re.DOTALL)
    assert entry is not None
    new = entry[0]
    sums = (hashlib.sha256(data).hexdigest() for data in (packed, plain))
    for name, value in (*zip(("checksum", "open-checksum"), sums, strict=True),
                        ("size", str(len(packed))), ("open-size", str(len(plain)))):  # fmt: skip
        new = re.sub(rf"(<{name}[^>]*>)[^<]*(</{name}>)", rf"\g<1>{value}\g<2>", new)
    repomd.write_text(text.replace(entry[0], new))


HOSTILE: Mapping[str, tuple[bytes, bytes, str]] = {
    "out of the repository": (b'href="lib', b'href="../../../../etc/passwd-lib', "not below it"),
    "an absolute path": (b'href="lib', b'href="/etc/passwd-lib', "not below it"),
    "a local base": (b'<location href="lib', b'<location xml:base="file:///etc" href="lib', "leads to file:"),
    "an entity bomb": (
        b"<metadata", b'<!DOCTYPE m [<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;">]><metadata', "document type",
    ),
    "a weak checksum of a package": (
        rb'type="sha256" pkgid="YES">(.{32}).{32}', rb'type="md5" pkgid="YES">\1', "states no SHA-256",
    ),
    "a name with a path": (b"<name>lib</name>", b"<name>../lib</name>", "cannot be a part of a file's name"),
    "XML that ends": (b"</metadata>", b"", "its metadata cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("trick", HOSTILE)
def test_hostile_metadata_is_refused(tmp_path: Path, site: Path, ours: Key, trick: str) -> None:
    before, after, said = HOSTILE[trick]
    folder = tmp_path / "repository"
    shutil.copytree(site, folder)

    def change(text: bytes) -> bytes:
        changed = re.sub(before, after, text)
        assert changed != text
        return changed

    repack(folder, change)
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(mirrored(Mirror(folder))).url
        try:
            plan = rpms.plan(request(source(place, ours), roots=("lib",)), NetworkSection(), cache=tmp_path / "cache")
            if plan.good:
                rpms.fetch(plan, cache=tmp_path / "cache")
            messages = [each.message for each in plan.findings]
        except EnvbuildError as error:
            messages = [error.message]
    assert any(said in each for each in messages), messages
    assert "site" in " ".join(messages) or trick == "a name with a path", "nobody says which repository it is"


def test_a_package_that_is_a_pipe_or_a_link_to_something_else_is_refused(tmp_path: Path, site: Path, ours: Key) -> None:
    folder = tmp_path / "repository"
    shutil.copytree(site, folder)
    plan = rpms.plan(request(source(folder, ours)), NetworkSection(), cache=tmp_path / "cache")
    (folder / "lib-2-1.noarch.rpm").unlink()
    os.mkfifo(folder / "lib-2-1.noarch.rpm")
    with pytest.raises(InputError, match="not a file"):
        rpms.fetch(plan, cache=tmp_path / "cache")
    (folder / "lib-2-1.noarch.rpm").unlink()
    (folder / "lib-2-1.noarch.rpm").symlink_to("/etc/passwd")
    with pytest.raises(BundleError, match="is not what the repository says"):
        rpms.fetch(plan, cache=tmp_path / "cache")


def test_a_link_in_the_bundles_folder_is_replaced_and_not_followed(tmp_path: Path, site: Path, ours: Key) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    packages = tmp_path / "bundle/rpms/Packages"
    packages.mkdir(parents=True)
    (packages / "lib-2-1.noarch.rpm").symlink_to(victim)
    (packages / "old").symlink_to(tmp_path)
    made(request(source(site, ours)), tmp_path / "cache", tmp_path / "bundle")
    assert victim.read_text() == "mine" and not (packages / "lib-2-1.noarch.rpm").is_symlink()
    shutil.move(packages, tmp_path / "elsewhere")
    packages.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="rpms/Packages is a link"):
        made(request(source(site, ours), roots=("unasked",)), tmp_path / "cache", tmp_path / "bundle")
    assert not (tmp_path / "elsewhere/unasked-1-1.noarch.rpm").exists()


# --- the solver -------------------------------------------------------------------------------------------------------


def question(site: Path, cache: Path, **changes: Any) -> solve.Question:
    plan = rpms.plan(request(source(site)), NetworkSection(), cache=cache)
    repository = solve.Loaded(id="site", primary=plan.metadata[0].primary)
    machines = (solve.Machine(name="empty"),)
    return solve.Question(arch="x86_64", roots=("lib",), repositories=(repository,), machines=machines, **changes)


def test_a_crash_of_the_solver_ends_nothing_else(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one: libsolv 0.7.39 crashes where something is selected by what it provides before that was worked out."""
    asked = question(site, tmp_path / "cache")
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import solv\npool = solv.Pool()\npool.setarch('x86_64')\nsolvable = pool.add_repo('a').add_solvable()\n"
        "solvable.name, solvable.evr, solvable.arch = 'a', '1-1', 'noarch'\n"
        "pool.select('a', solv.Selection.SELECTION_PROVIDES)\n"
    )
    monkeypatch.setattr(solve, "_WORKER", worker)
    with pytest.raises(solve.SolverError, match=r"the solver crashed \(SIG(SEGV|ABRT)\)") as failed:
        solve.solve(asked)
    assert failed.value.exit_code == 6


def test_memory_and_time_of_the_solver_are_bounded(tmp_path: Path) -> None:
    """More packages than the memory is for; and less time than the solver takes to start."""
    entry = '<package type="rpm"><name>{0}</name><arch>noarch</arch><version epoch="0" ver="1" rel="1"/></package>\n'
    text = "".join(entry.format(f"package-{number}-{'x' * 300}") for number in range(100_000))
    primary = tmp_path / "primary.xml"
    primary.write_text(f'<metadata xmlns="http://linux.duke.edu/metadata/common" packages="1">{text}</metadata>')
    asked = solve.Question(
        arch="x86_64", roots=("lib",), repositories=(solve.Loaded(id="site", primary=primary),),
        machines=(solve.Machine(name="empty"),), memory=32 << 20,
    )  # fmt: skip
    with pytest.raises(solve.SolverError, match="wants more than 32 MiB of memory"):
        solve.solve(asked)
    with pytest.raises(solve.SolverError, match="no answer within 0 seconds"):
        solve.solve(dataclasses.replace(asked, seconds=0.001))


def test_another_kind_of_machine_is_an_error(tmp_path: Path, site: Path) -> None:
    host = Target(name="login", source="0" * 64, system=System(distro="rhel", major=8, releasever="8.6"))
    asked = request(source(site), targets=(host,), system=System(distro="rhel", major=8, releasever="8.8"))
    plan = rpms.plan(asked, NetworkSection(), cache=tmp_path / "cache")
    assert rules(list(plan.findings)) == [("rpm.target", "error")]
    assert "for release 8.8, and this machine has 8.6" in plan.findings[0].message
    assert "--releasever 8.6" in plan.findings[0].fix
    strict = dataclasses.replace(host, system=dataclasses.replace(host.system, releasever="8.8", fips=True))
    plan = rpms.plan(dataclasses.replace(asked, targets=(strict,)), NetworkSection(), cache=tmp_path / "cache")
    assert [(each.rule, each.fix) for each in plan.findings] == [("rpm.target", "--fips")]
