"""Whole bundles with the programs that make and check them: gpg, gpgv, sha256sum; and package indexes that answer."""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import bundles
from bundles import Recipe, changed, contents, noise
from envbuild.bundle import signing, sums, volumes, wheels
from envbuild.bundle.finishing import Seals
from envbuild.bundle.inspect import inspect
from envbuild.bundle.verify import Verified, Wanted, verify
from envbuild.errors import BundleError, InputError
from envbuild.lock import parse
from envbuild.model import Lock, Severity
from envbuild.registry.manifests import digest_of
from envbuild.site.pip import PipSettings, pip_settings
from envbuild.site.sections import SiteConfig


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key to sign with."""
    path = tmp_path_factory.mktemp("key") / "bundle.asc"
    signing.make(path, "Tests of bundles <tests@example.com>")
    return path


def recipe(folder: Path) -> Recipe:
    image = bundles.source(folder / "blobs", noise(400_000, "one"))
    return Recipe(cache=folder / "cache", image=image)


def rules(found: Verified) -> dict[str, tuple[str, str]]:
    return {each.rule.removeprefix("bundle."): (each.severity.value, each.message) for each in found.findings}


def test_a_signed_bundle_is_the_same_bytes_each_time_and_gpgv_and_sha256sum_agree(key: Path, tmp_path: Path) -> None:
    with signing.signer(str(key)) as signer:
        recipe(tmp_path).write(tmp_path / "one/b", Seals(openpgp=signer))
        fingerprint = signer.key.fingerprint
    second = int(time.time())
    while int(time.time()) == second:  # another second: a signature that had the clock's time would differ
        tmp_path.stat()
    with signing.signer(str(key)) as signer:
        recipe(tmp_path).write(tmp_path / "two/b", Seals(openpgp=signer))
    assert contents(tmp_path / "one/b") == contents(tmp_path / "two/b")

    folder = tmp_path / "one/b"
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=folder, check=True, timeout=60)
    text = ["gpg", "--show-keys", "--with-colons", "keys/bundle.asc"]
    assert f":{fingerprint}:" in subprocess.run(text, cwd=folder, check=True, capture_output=True, text=True).stdout
    ring = tmp_path / "ring.gpg"
    subprocess.run(["gpg", "--dearmor", "-o", str(ring), "keys/bundle.asc"], cwd=folder, check=True, timeout=60)
    line = ["gpgv", "--status-fd", "1", "--keyring", str(ring), "SHA256SUMS.asc", "SHA256SUMS"]
    said = subprocess.run(line, cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout
    words = next(each.split() for each in said.splitlines() if " VALIDSIG " in each)
    assert (words[8], words[9], words[-1]) == ("1", "10", fingerprint)  # RSA, SHA-512

    found = verify(folder, Wanted(fingerprint=fingerprint))
    assert (found.findings, found.signer) == ((), fingerprint) and inspect(folder).signed
    # With nobody to compare the key with it is whole, and no more than that.
    told = verify(folder, Wanted())
    assert told.good and rules(told)["origin"][0] == "warning" and fingerprint in rules(told)["origin"][1]
    for place in volumes.write(folder, 700_000):
        assert verify(place, Wanted(fingerprint=fingerprint)).findings == ()


HANGS = """
import signal, sys
sys.path.insert(0, {tests!r})
import bundles, envbuild.bundle.writing as writing
from pathlib import Path
def told(count):
    print("writing", flush=True)
    signal.pause()
real = writing.drafting
writing.drafting = lambda target, created, base: real(target, created, base=base, told=told)
folder = Path({folder!r})
image = bundles.source(folder / "blobs", bundles.noise(400_000, "one"))
bundles.Recipe(cache=folder / "cache", image=image).write(folder / "b")
"""


def test_after_kill_9_the_next_export_is_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path / "home"))
    program = HANGS.format(tests=str(Path(bundles.__file__).parent), folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"writing\n"
        child.kill()
    assert (tmp_path / ".b.part").is_dir() and not (tmp_path / "b").exists()
    recipe(tmp_path).write(tmp_path / "b")
    recipe(tmp_path).write(tmp_path / "other")
    assert contents(tmp_path / "b") == contents(tmp_path / "other") and not (tmp_path / ".b.part").exists()


def test_a_bundle_of_somebody_else_is_refused_however_it_is_made_up(key: Path, tmp_path: Path) -> None:
    signing.make(tmp_path / "mallory.asc", "Tests of bundles <tests@example.com>")
    with signing.signer(str(key)) as signer:
        recipe(tmp_path).write(tmp_path / "b", Seals(openpgp=signer))
        ours = signer.key.fingerprint
    with signing.signer(str(tmp_path / "mallory.asc")) as signer:
        recipe(tmp_path).write(tmp_path / "hers", Seals(openpgp=signer))
    recipe(tmp_path).write(tmp_path / "unsigned")
    wanted = Wanted(fingerprint=ours)
    assert "signed by" in rules(verify(tmp_path / "hers", wanted))["signature"][1]
    assert "it is not signed" in rules(verify(tmp_path / "unsigned", wanted))["signature"][1]
    assert not verify(tmp_path / "unsigned", Wanted()).good

    folder = tmp_path / "b"
    known = sums.parse((folder / "SHA256SUMS").read_bytes(), "it")
    other = sums.dump({**known, "install.sh": "0" * 64})
    asc, hers = folder / "SHA256SUMS.asc", tmp_path / "hers"
    for path, data, said in (
        (folder / "SHA256SUMS", other, "does not fit"),
        (asc, (hers / "SHA256SUMS.asc").read_bytes(), "another key"),
        (asc, b"-----BEGIN PGP SIGNATURE-----\n\n-----END PGP SIGNATURE-----\n", "no signature"),
        (asc, asc.read_bytes() + (hers / "SHA256SUMS.asc").read_bytes(), ""),
        (folder / "keys/bundle.asc", b"\x00" * 1000, "no public key"),
        (folder / "keys/bundle.asc", key.read_bytes(), "no public key"),
        (folder / "keys/bundle.asc", (hers / "keys/bundle.asc").read_bytes(), "another key"),
    ):
        with changed(path, data):
            severity, message = rules(verify(folder, wanted))["signature"]
            assert severity == "error" and said in message, (path, message)
    assert verify(folder, wanted).findings == ()
    asc.unlink()
    assert "it is not signed" in rules(verify(folder, wanted))["signature"][1]


def test_only_keys_that_every_target_can_check_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    quiet = ["gpg", "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
    try:
        for name, kind in (
            ("curve@x", "ed25519"),
            ("short@x", "rsa2048"),
            ("good@x", "rsa3072"),
            ("good@x", "rsa4096"),
        ):
            line = [*quiet, "--yes", "--quick-generate-key", f"{kind} <{name}>", kind, "sign", "never"]
            subprocess.run(line, check=True, capture_output=True, timeout=120)
        for name in ("curve@x", "short@x"):
            with pytest.raises(InputError, match="not RSA of 3072 bits"), signing.signer(name):
                pass
        with pytest.raises(InputError, match="means 2 keys"), signing.signer("good@x"):
            pass
        for name in ("nobody@x", "--help"):
            with pytest.raises(InputError), signing.signer(name):
                pass
        with signing.signer("rsa4096 <good@x>") as signer:
            made = signer.sign(b"data", bundles.CREATED)
            assert signing.check(b"data", made, signer.key.public).fingerprint == signer.key.fingerprint
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], capture_output=True, timeout=60)


def test_a_passphrase_is_asked_of_nobody(tmp_path: Path) -> None:
    made = signing.make(tmp_path / "k.asc", "With a passphrase <p@example.com>", "secret")
    assert (tmp_path / "k.asc").stat().st_mode & 0o077 == 0
    with signing.signer(str(tmp_path / "k.asc"), "secret") as signer:
        assert signing.check(b"x", signer.sign(b"x", bundles.CREATED), made.public).fingerprint == made.fingerprint
    with pytest.raises(BundleError, match="cannot sign"), signing.signer(str(tmp_path / "k.asc"), "wrong") as signer:
        signer.sign(b"x", bundles.CREATED)
    with pytest.raises(InputError, match="never overwritten"):
        signing.make(tmp_path / "k.asc", "x")
    (tmp_path / "junk").write_bytes(noise(5000, "junk"))
    with pytest.raises(InputError, match="not an OpenPGP secret key"), signing.signer(str(tmp_path / "junk")):
        pass


# --- wheels -----------------------------------------------------------------------------------------------------------


def locked(requirements: list[str], python: str, platform: str, folder: Path) -> Lock:
    """What uv resolves for another Python and machine than this one."""
    machine = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}[platform]
    pip = pip_settings(SiteConfig(), os.environ)
    line = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "-", "--no-header", "--quiet",
            "--annotation-style", "split", "--generate-hashes", "--python-version", python, "--only-binary", ":all:",
            "--python-platform", f"{machine}-manylinux_2_28", *pip.uv_arguments()]  # fmt: skip
    done = subprocess.run(
        line, input="\n".join(requirements), env={**os.environ, **pip.uv_environment()}, cwd=folder, text=True,
        capture_output=True, check=True, timeout=200,
    )  # fmt: skip
    return Lock.model_validate({
        "environment": "test", "platform": platform, "python": python, "inputs": digest_of(b""), "resolver": "uv",
        "packages": [{"name": each.name, "version": each.version, "group": "deps", "hashes": each.hashes}
                     for each in parse.parse(done.stdout)],
    })  # fmt: skip


@pytest.mark.parametrize(
    ("python", "platform"), [("3.9", "linux/amd64"), ("3.9", "linux/arm64"), ("3.12", "linux/arm64")]
)
def test_the_wheels_for_another_python_and_machine_are_those_that_pip_takes(
    python: str, platform: str, tmp_path: Path
) -> None:
    """importlib-metadata is needed below 3.10 only: pip, asked for another Python, leaves it out (pip #4304)."""
    wanted = ["click", "markupsafe", "pyyaml", "importlib-metadata; python_version<'3.10'", "regex"]
    asked = locked(wanted, python, platform, tmp_path)
    assert ("importlib-metadata" in {each.name for each in asked.packages}) == (python == "3.9")
    pip = pip_settings(SiteConfig(), os.environ)
    wish = wheels.Wish(lock=asked, glibc=(2, 28), own={})
    choices = wheels.choose(wish, bundles.upstream(pip, tmp_path), tmp_path)
    with bundles.writing.drafting(tmp_path / "b", bundles.CREATED) as draft:
        made = wheels.write(draft, wish, choices, bundles.fetcher(pip, tmp_path))
    # The oracle: pip itself, told every tag of the target, and no needs, so that it looks at no marker.
    tags = [word for each in dict.fromkeys(tag.platform for tag in wheels.tags(python, platform, (2, 28)))
            if each != "any" for word in ("--platform", each)]  # fmt: skip
    line = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "--only-binary", ":all:",
            "--python-version", python, "--implementation", "cp", *tags, "-r", str(tmp_path / f"b/{made.requirements}"),
            "-d", str(tmp_path / "theirs")]  # fmt: skip
    subprocess.run(line, check=True, timeout=250)
    ours = {path.name for path in (tmp_path / "b/wheels").glob("*.whl")}
    assert ours == {path.name for path in (tmp_path / "theirs").iterdir()} and len(ours) == len(asked.packages)
    machine = "x86_64" if platform == "linux/amd64" else "aarch64"
    native = [name for name in ours if not name.endswith("-any.whl")]
    assert len(native) == 3 and all(machine in name and f"cp{python.replace('.', '')}" in name for name in native)


class _Index(http.server.SimpleHTTPRequestHandler):
    """A folder of packages as an index, with ranges or without; some answers break off."""

    ranges = True
    broken: ClassVar[list[int]]
    asked: ClassVar[list[str]]

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if path.is_dir():
            super().do_GET()
            return
        data = path.read_bytes()
        said = re.fullmatch(r"bytes=([0-9]+)-([0-9]+)", self.headers.get("Range", "")) if self.ranges else None
        self.asked.append(self.headers.get("Range", "whole"))
        first, last = (int(said[1]), min(int(said[2]), len(data) - 1)) if said else (0, len(data) - 1)
        self.send_response(206 if said else 200)
        if said:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        body = data[first : last + 1]
        self.wfile.write(body[: self.broken.pop()] if self.broken else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[Path, str, type[_Index]]]:
    folder = tmp_path / "served"
    folder.mkdir()

    class Own(_Index):
        broken: ClassVar[list[int]] = []
        asked: ClassVar[list[str]] = []

    handler = functools.partial(Own, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}", Own
        server.shutdown()


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_goes_on_where_it_broke_off_and_is_made_once(
    index: tuple[Path, str, type[_Index]], ranges: bool, tmp_path: Path
) -> None:
    folder, url, handler = index
    handler.ranges = ranges
    path = bundles.wheel(folder / "thing", "thing", "1.0", "py3-none-any", padding=20 << 20)
    whole = digest_of(path.read_bytes())
    (folder / "thing/index.html").write_text(f'<a href="{path.name}#{whole.replace(":", "=")}">{path.name}</a>')
    pip = PipSettings(index=url)
    asked = bundles.lock({"thing": ("1.0", "deps", [path])})
    wish = wheels.Wish(lock=asked, glibc=(2, 28), own={})
    (choice,) = wheels.choose(wish, bundles.upstream(pip, tmp_path), tmp_path)
    assert choice.file is not None
    handler.broken += [5 << 20, 1000]
    fetcher = bundles.fetcher(pip, tmp_path / "cache")
    got, sha256 = fetcher.get(choice.file, [whole])
    assert f"sha256:{sha256}" == whole == digest_of(got.read_bytes())
    count = len(handler.asked)
    assert fetcher.get(choice.file, [whole]) == (got, sha256) and len(handler.asked) == count
    # What a killed run has left is gone on with; where it was damaged, everything is fetched anew.
    content = got.read_bytes()
    got.unlink()
    part = got.with_name(f"{got.name}.part")
    part.write_bytes(content[: 9 << 20])
    handler.asked.clear()
    assert fetcher.get(choice.file, [whole]) == (got, sha256)
    assert not ranges or handler.asked[0] == f"bytes={9 << 20}-{(17 << 20) - 1}"
    got.unlink()
    part.write_bytes(noise(9 << 20, "damaged"))
    assert fetcher.get(choice.file, [whole]) == (got, sha256)
    # Damaged in the cache: found out, and fetched again.
    got.write_bytes(content[:-1] + b"x")
    assert fetcher.get(choice.file, [whole]) == (got, sha256) and got.read_bytes() == content
    # The index serves another file than it says.
    other = bundles.wheel(folder / "thing", "thing", "1.0", "py3-none-any", padding=100)
    assert other == path
    got.unlink()
    with pytest.raises(BundleError, match="not in the lock"):
        fetcher.get(replace(choice.file, size=None), [whole])
    assert not got.exists() and not part.exists()


def test_severities_are_as_the_command_needs_them(tmp_path: Path) -> None:
    recipe(tmp_path).write(tmp_path / "b")
    found = verify(tmp_path / "b", Wanted())
    assert [each.severity for each in found.findings] == [Severity.ERROR] and not found.good
