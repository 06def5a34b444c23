"""From a row to a host without a network, as two administrators type it: export on one side, the scripts on the other.

The row is real, and its lock and packages are stand-ins: an RPM package of every name that the row asks for, wheels of
one module. DeepSpeed is a source archive, as where no image is proven.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import offline_host
import registries
from bundles import contents, noise
from envbuild import facts, plan
from envbuild.bundle.manifest import Manifest
from envbuild.bundle.verify import Wanted, verify
from envbuild.engines import DockerEngine
from envbuild.lock import inputs_digest, write
from envbuild.matrix.load import load as load_matrix
from envbuild.model import Environment, Level, Lock, Severity
from envbuild.pipeline import export as exporting
from envbuild.pipeline.exported import Wish
from envbuild.pipeline.exported_rpms import roots_of
from envbuild.pipeline.findings import FindingsError
from offline_made import Rpm, build_rpms, digest, sh, tree, wheel
from proving import ENVBUILD, REPOSITORY, Cli, surroundings
from rpm_mirrors import Mirror, mirrored
from rpm_repositories import index, need_tools
from rpm_world import key
from worlds import World

ROW = "rhel8-cu118"
TOOLSET = "/opt/rh/gcc-toolset-11/root/usr/bin"
MEDIUM = "/media/usb stick"
# In front of pip's: it wants torch to build, and nothing that could be fetched.
BACKEND = """\
import shutil, torch
def build_wheel(folder, *_):
    return shutil.copy('deepspeed-0.13.1-py3-none-any.whl', folder).rpartition('/')[2]
"""
PYPROJECT = '[build-system]\nrequires = ["torch"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@dataclass
class Site:
    """The connected side: its project, its mirror, the key for bundles."""

    folder: Path
    mirror: Mirror
    packager: Path
    home: Path
    roots: set[str]
    fingerprint: str = ""

    @property
    def key(self) -> Path:
        return self.folder / "bundle-key.asc"

    @property
    def project(self) -> Path:
        return self.folder / "project"

    def argv(self, out: Path, *more: str, signed: bool = True) -> list[str]:
        """An export, as somebody types it."""
        keys = ["--gpg-key", str(self.key)] if signed else []
        return [
            ENVBUILD, "export", ROW, "-o", str(out), "--project", str(self.project), *keys,
            "--repo", f"baseos={self.mirror.url}", "--repo-key", str(self.packager), *more,
        ]  # fmt: skip

    def environ(self, home: Path) -> dict[str, str]:
        """Variables of a machine without an engine and without a registry."""
        own = {name: value for name, value in surroundings(home).items() if name != "ENVBUILD_REGISTRY_NAME"}
        return {**own, "DOCKER_HOST": "unix:///nonexistent"}

    def run(self, *argv: str | Path, home: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A command, away from every project."""
        env = self.environ(home or self.home)
        return subprocess.run([*map(str, argv)], capture_output=True, text=True, timeout=280, env=env, cwd=self.folder)

    def export(self, out: Path, *more: str, **options: Any) -> dict[str, Any]:
        """An export that has to end well, as its JSON says it."""
        done = self.run(*self.argv(out, "--json", *more, **options))
        assert done.returncode == 0, done.stdout + done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said


def row() -> Environment:
    return load_matrix(REPOSITORY / "matrix.yaml").get(ROW)


def payloads(roots: tuple[str, ...]) -> dict[str, Rpm]:
    """A package of every name; some of them bring what the real ones bring, or ask for what nobody names."""
    world = {name: Rpm(files={f"/usr/share/stand-in/{name}": name}) for name in roots}
    assert {"gcc-toolset-11-gcc", "libaio-devel", "python3.11"} <= set(world)
    world["gcc-toolset-11-gcc"] = Rpm(requires=("gcc-toolset-11-runtime",), links={f"{TOOLSET}/gcc": "/usr/bin/gcc-12"})
    world["gcc-toolset-11-runtime"] = Rpm(files={"/etc/scl/toolset": "x"})
    world["nobody-asks-for-it"] = Rpm(files={"/usr/share/spare": "x"})
    return world


def lock_of(env: Environment, files: list[Path]) -> Lock:
    """A lock of the row, of these files."""
    names = [path.name.removesuffix(".tar.gz").split("-")[:2] for path in files]
    return Lock.model_validate({
        "environment": env.name, "platform": env.platforms[0], "python": env.python, "resolver": "tests",
        "inputs": inputs_digest(env, env.platforms[0]),
        "packages": [
            {"name": name, "version": version, "group": "ops" if name == "deepspeed" else "deps",
             "hashes": [f"sha256:{digest(path)}"]}
            for (name, version), path in zip(names, files, strict=True)
        ],
    })  # fmt: skip


def source_archive(folder: Path) -> Path:
    """DeepSpeed, which builds itself without a network."""
    ready = wheel(folder / "made", "deepspeed", "0.13.1", "import torch", requires=["torch"])
    path = folder / "deepspeed-0.13.1.tar.gz"
    members = {"backend.py": BACKEND.encode(), "pyproject.toml": PYPROJECT.encode(), ready.name: ready.read_bytes()}
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(f"deepspeed-0.13.1/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    shutil.rmtree(folder / "made")
    return path


def locked(site: Path, *more: Path) -> None:
    """Write the row's lock: torch and its kin, DeepSpeed, and some more."""
    found, env = site / "wheelhouse", row()
    torch = [found / f"{name}-py3-none-any.whl" for name in
             ("torch-2.1.0+cu118", "torchvision-0.16.0+cu118", "torchaudio-2.1.0+cu118", "numpy-1.26.4")]  # fmt: skip
    files = [*torch, found / "deepspeed-0.13.1.tar.gz", *more]
    write(site / "project" / "images" / ROW / "lock.json", lock_of(env, files))


@pytest.fixture(scope="module")
def site(store_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    need_tools()
    folder = tmp_path_factory.mktemp("connected")
    project, found = folder / "project", folder / "wheelhouse"
    (project / "images" / ROW).mkdir(parents=True)
    shutil.copy(REPOSITORY / "matrix.yaml", project / "matrix.yaml")
    (folder / "simple").mkdir()
    pip = f'[pip]\nindex = "file://{folder}/simple"\nfind_links = ["{found}"]\n'
    (project / "envbuild.toml").write_text(pip)
    for name, version in (("torch", "2.1.0+cu118"), ("torchvision", "0.16.0+cu118"), ("torchaudio", "2.1.0+cu118"),
                          ("small", "1"), ("small", "2")):  # fmt: skip
        wheel(found, name, version, f"__version__ = '{version}'")
    # Larger than a volume of the tests.
    wheel(found, "numpy", "1.26.4", f"noise = '{noise(700_000, 'numpy').hex()}'")
    source_archive(found)
    locked(folder, found / "small-1-py3-none-any.whl")
    roots = roots_of(plan.make(row(), None, facts.load()))
    with key("distribution") as packager:
        build_rpms(folder / "baseos", payloads(roots), packager)
        index(folder / "baseos")
        with mirrored(Mirror(folder / "baseos")) as mirror:
            made = Site(folder=folder, mirror=mirror, packager=packager.public, home=store_home, roots=set(roots))
            name = "Tests of exports <tests@example.com>"
            done = made.run(ENVBUILD, "key", "new", "--openpgp", name, "-o", made.key, "--json")
            assert done.returncode == 0, done.stderr
            made.fingerprint = json.loads(done.stdout)["keys"][0]["fingerprint"]
            assert made.key.stat().st_mode & 0o777 == 0o600
            yield made


@pytest.fixture(scope="module")
def bundle(site: Site) -> Path:
    """The bundle that most tests look at."""
    said = site.export(site.folder / "out/a bundle", "--volume-size", "1MB")
    assert said["bundle"]["fingerprint"] == site.fingerprint
    assert {each["rule"] for each in said["findings"]} == {"export.image", "export.ops"}
    return site.folder / "out/a bundle"


def test_a_dry_run_says_what_it_would_be_and_writes_nothing(site: Site) -> None:
    done = site.run(*site.argv(site.folder / "never/bundle", "--dry-run", signed=False))
    assert done.returncode == 0, done.stderr
    assert not (site.folder / "never").exists()
    # Also what an export says only when all is done.
    assert "export.unsigned" in done.stdout
    for text in (
        "gcc-toolset-11-runtime-1.0-1.el8.x86_64",
        "an empty system: ",
        "deepspeed-0.13.1.tar.gz",
        "rocky 8 on",
    ):
        assert text in done.stdout, done.stdout
    assert "nobody-asks-for-it" not in done.stdout
    # What cannot be solved ends with 6, and says what is missing.
    done = site.run(*site.argv(site.folder / "never/bundle", "--root", "libaio", "--root", "no-such-package"))
    assert done.returncode == 6 and "no repository has no-such-package" in done.stderr, done.stderr
    assert not (site.folder / "never").exists()
    argv = (ENVBUILD, "export", ROW, "-o", "never/bundle", "--project", site.project, "--what")
    done = site.run(*argv, "image")
    assert done.returncode in (3, 5) and not (site.folder / "never").exists(), done.stderr


def test_what_was_exported_is_verified_and_the_same_bytes_each_time(site: Site, bundle: Path, tmp_path: Path) -> None:
    done = site.run(ENVBUILD, "verify", bundle, "--fingerprint", site.fingerprint)
    assert done.returncode == 0 and "verified" in done.stdout, done.stdout + done.stderr
    assert site.fingerprint in done.stdout
    for shell in ("dash", "bash"):
        said = sh(bundle / "verify.sh", "--fingerprint", site.fingerprint, shell=shell)
        assert said.returncode == 0, said.stdout + said.stderr
    # The packager of the target asks for the index's own signature where there is one.
    assert (bundle / "rpms/repodata/repomd.xml.asc").is_file()
    inspected = json.loads(site.run(ENVBUILD, "bundle", "inspect", bundle, "--json").stdout)["bundle"]
    manifest = inspected["manifest"]
    listed = site.run(ENVBUILD, "bundle", "inspect", bundle, "--list").stdout
    assert "gcc-toolset-11-runtime-1.0-1.el8.x86_64" in listed and "deepspeed-0.13.1.tar.gz" in listed, listed
    differs = json.loads(site.run(ENVBUILD, "bundle", "diff", bundle, bundle, "--json").stdout)
    assert (differs["changes"], differs["fresh_bytes"]) == ([], 0)
    assert (manifest["row"], manifest["parts"]) == (ROW, ["rpms", "wheels", "doctor"])
    assert manifest["wheels"]["deepspeed"] == "source" and manifest["wheels"]["program"] == "/usr/bin/python3.11"
    installs = {each.rpartition("-1.0-")[0] for each in manifest["rpms"]["targets"][0]["installs"]}
    assert installs == site.roots | {"gcc-toolset-11-runtime"}
    names = {part["name"] for part in json.loads((bundle / "sbom.cdx.json").read_bytes())["components"]}
    assert {"gcc-toolset-11-runtime", "torch", "deepspeed"} <= names

    # Another store, so nothing is out of a cache.
    again = tmp_path / "again"
    done = site.run(*site.argv(again), home=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert contents(again) == contents(bundle)

    # One bit, and everybody sees it.
    package = next((again / "rpms/Packages").glob("gcc-toolset-11-gcc-1*"))
    data = bytearray(package.read_bytes())
    data[-1] ^= 1
    package.write_bytes(data)
    done = site.run(ENVBUILD, "verify", again, "--fingerprint", site.fingerprint)
    assert done.returncode == 6 and package.name in done.stdout, done.stdout + done.stderr
    assert sh(again / "verify.sh", "--fingerprint", site.fingerprint).returncode == 11
    done = site.run(ENVBUILD, "verify", bundle, "--fingerprint", "0" * 40)
    assert done.returncode == 6 and "not signed by" in done.stdout


def test_nobody_signs_it_and_everybody_is_told(site: Site) -> None:
    done = site.run(ENVBUILD, "export", ROW, "-o", "unsigned", "--project", site.project, "--what", "doctor")
    assert done.returncode == 0, done.stderr
    assert "export.unsigned" in done.stdout and "NOT SIGNED" in done.stderr
    assert sh(site.folder / "unsigned/install.sh", "--dry-run").returncode == 10
    done = site.run(ENVBUILD, "verify", site.folder / "unsigned")
    assert done.returncode == 6 and "it is not signed" in done.stdout


def test_volumes_in_any_order_are_the_bundle_again(bundle: Path, site: Site, tmp_path: Path) -> None:
    volumes = sorted(bundle.parent.glob("a bundle.vol*"))
    assert len(volumes) > 1
    for volume in volumes:
        shutil.copytree(volume, tmp_path / volume.name)
    last, *others = sorted(tmp_path.glob("a bundle.vol*"), reverse=True)
    lacking = sh(last / "assemble.sh", "-o", tmp_path / "srv", last)
    assert lacking.returncode == 12, lacking.stdout + lacking.stderr
    assert any((volume / "chunks").is_dir() for volume in volumes)
    whole = sh(last / "assemble.sh", "-o", tmp_path / "srv", *others)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert tree(tmp_path / "srv") == tree(bundle)
    assert site.run(ENVBUILD, "verify", last, "--fingerprint", site.fingerprint).returncode == 0


def test_an_export_that_was_killed_goes_on(site: Site, bundle: Path, tmp_path: Path) -> None:
    site.mirror.hold = (threading.Event(), threading.Event())
    site.mirror.breaks["gcc-toolset-11-gcc-1.0-1.el8.x86_64.rpm"] = [1000]
    env = site.environ(tmp_path / "home")
    running = subprocess.Popen(
        site.argv(tmp_path / "bundle"), env=env, cwd=site.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert site.mirror.hold[0].wait(120), "nobody asked for the package"
        running.kill()
        running.wait(60)
    finally:
        site.mirror.hold[1].set()
        site.mirror.hold = None
        running.kill()
    assert not (tmp_path / "bundle").exists()
    before = len(site.mirror.asked)
    done = site.run(*site.argv(tmp_path / "bundle"), home=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "bundle") == contents(bundle)
    asked = {path for path, _ in site.mirror.asked[before:]}
    assert any("gcc-toolset-11-gcc-1.0" in path for path in asked)
    # A second run of the same has everything, and leaves nothing beside the bundle.
    assert site.run(*site.argv(tmp_path / "bundle"), home=tmp_path / "home").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "home"]


def test_a_differential_bundle_carries_the_one_wheel_that_is_new(site: Site, bundle: Path, tmp_path: Path) -> None:
    found = site.folder / "wheelhouse"
    locked(site.folder, found / "small-2-py3-none-any.whl")
    try:
        said = site.export(tmp_path / "new", "--base", str(bundle))
    finally:
        locked(site.folder, found / "small-1-py3-none-any.whl")
    manifest = json.loads((tmp_path / "new/manifest.json").read_bytes())
    parts = {file["path"]: file["part"] for file in manifest["files"]}
    carried = [path for path in manifest["carried"] if parts[path] != "common"]
    assert [path for path in carried if not path.startswith("rpms/repodata/")] == [
        "wheels/requirements.lock", "wheels/small-2-py3-none-any.whl",
    ]  # fmt: skip
    assert said["bundle"]["bytes"] < sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    done = sh(tmp_path / "new/assemble.sh", "-o", tmp_path / "whole", "--base", bundle, tmp_path / "new")
    assert done.returncode == 0, done.stdout + done.stderr
    done = site.run(ENVBUILD, "verify", tmp_path / "whole", "--fingerprint", site.fingerprint)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "whole/wheels/small-2-py3-none-any.whl").is_file()
    assert not (tmp_path / "whole/wheels/small-1-py3-none-any.whl").exists()


def test_it_is_installed_on_a_described_host_without_a_network(
    engine: DockerEngine, site: Site, bundle: Path, tmp_path: Path
) -> None:
    stick = tmp_path / "stick"
    shutil.copytree(bundle, stick / "first")
    with (
        offline_host.image(engine, tmp_path) as image,
        offline_host.host(
            engine, image, {stick: MEDIUM}, cap_add=["SYS_ADMIN", "NET_ADMIN"],
            security_opt=["apparmor=unconfined"], tmpfs={"/tmp": "rw,noexec,mode=1777"},
        ) as host,
    ):  # fmt: skip
        # The host describes itself, and gets a bundle that fits it.
        host.good(f"sh '{MEDIUM}/first/collect-target.sh' -o /var/tmp/web1.txt")
        (tmp_path / "web1.txt").write_text(host.good("cat /var/tmp/web1.txt"))
        said = site.export(stick / "second", "--target-manifest", str(tmp_path / "web1.txt"), "--releasever", "8.8")
        assert said["bundle"]["fingerprint"] == site.fingerprint
        manifest = json.loads((stick / "second/manifest.json").read_bytes())
        sums = [each["source"] for each in manifest["rpms"]["targets"]]
        assert sums == ["empty", hashlib.sha256((tmp_path / "web1.txt").read_bytes()).hexdigest()]

        install = f"sh '{MEDIUM}/second/install.sh' --fingerprint {site.fingerprint}"
        told = host.good(f"{install} --dry-run 2>&1")
        assert "nothing was changed on this host" in told, told
        assert host.packages() == set()
        told = host.good(f"unshare --net {install} 2>&1")
        assert host.packages() == site.roots | {"gcc-toolset-11-runtime"}, told
        receipt = json.loads(host.good(f"cat /opt/envbuild/{ROW}/receipt.json"))
        assert (receipt["result"], receipt["exit_code"]) == ("installed", 0)
        assert receipt["bundle"]["signed_by"] == site.fingerprint
        assert sorted(receipt["proof"]["imports"]) == ["deepspeed", "torch"] and TOOLSET in receipt["proof"]["gcc"]
        told = host.good(f". /opt/envbuild/{ROW}/env.sh; python -c 'import deepspeed, os; print(os.environ[\"CC\"])'")
        assert told == f"{TOOLSET}/gcc\n"
        host.good(f"sh /opt/envbuild/{ROW}/envbuild/uninstall.sh")
        assert host.packages() == set()


def test_a_proven_image_goes_with_its_evidence(
    cli: Cli, proven: dict[str, Any], engine: DockerEngine, tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    done = cli("export", "cpu", "-o", str(out), "--what", "image,doctor", "--json")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((out / "manifest.json").read_bytes())
    info = engine.image(str(proven["id"]))
    assert info is not None
    assert manifest["image"]["diff_ids"] == list(info.diff_ids) and manifest["image"]["level"] == "cpu"
    assert manifest["image"]["evidence"] and manifest["target"]["distro"] == "debian"
    assert {"images/cpu.cdx.json", "images/cpu.oci.tar"} <= {file["path"] for file in manifest["files"]}
    done = cli("verify", f"{out}/")
    # Nobody has signed it, and that is all.
    assert done.returncode == 6 and done.stdout.count("error [") == 1 and "it is not signed" in done.stdout, done.stdout


@pytest.fixture
def world(engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A registry with nothing in it, and a small image that made-up evidence says to be the row `cpu`."""
    for name in ("deb", "registry"):
        (tmp_path / name).mkdir()
    with (
        registries.running(registries.program(tmp_path / "deb"), tmp_path / "registry") as address,
        registries.fronting(address) as front,
    ):
        made = World(engine, front, tmp_path, f"{front.address}/export", monkeypatch)
        yield made
        made.forget()


def test_an_image_of_a_registry_is_exported_as_the_registry_has_it(world: World, tmp_path: Path) -> None:
    info = world.image(1 << 20)
    world.prove(info)
    pushed = world.push()

    def export(name: str) -> tuple[Manifest, set[str]]:
        bench = world.bench()
        planned = exporting.plan(bench, "cpu", Wish(parts=("image",)))
        made = exporting.export(bench, planned, tmp_path / name, None).manifest
        found = verify(tmp_path / name, Wanted(keys=bench.trusted_keys))
        return made, {each.rule for each in found.findings if each.severity is Severity.ERROR}

    own, wrong = export("own")
    assert own.image is not None and wrong <= {"bundle.signature"}
    world.forget()
    world.home("exporter")
    there, wrong = export("there")
    assert there.image is not None and wrong <= {"bundle.signature"}
    assert (there.image.manifest_digest, there.image.config_digest) == (pushed.digest, info.id)
    assert there.image.level is own.image.level is Level.CPU and there.image.evidence
    assert there.image.reference == own.image.reference and there.image.diff_ids == info.diff_ids
    # One that nobody trusted has signed is no proven image, and is never taken in silence.
    world.home("stranger")
    bench = world.bench()
    bench.__dict__["trusted_keys"] = ()
    with pytest.raises(FindingsError):
        exporting.plan(bench, "cpu", Wish(parts=("image",)))
