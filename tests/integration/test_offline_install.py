"""A bundle that is installed, proven, repaired, interrupted and undone, on hosts without a network.

The bundle lies on a read-only medium, in a folder with blanks in its name; /tmp of the hosts runs no programs.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import offline_host
from envbuild.bundle import target
from envbuild.doctor import archive
from envbuild.engines import DockerEngine
from offline_host import Host
from offline_made import Rpm, build_rpms, finish, index, lock, seal, settings, wheel
from rpm_world import Key, key, need_tools

PLACE = "/media/usb stick/world"
PREFIX = "/opt/envbuild/world"
TOOLSET = "/opt/rh/gcc-toolset-11/root/usr/bin"
ROOTS = ["gcc-toolset-11-gcc", "libaio-devel"]
CLOSURE = {"gcc-toolset-11-gcc", "gcc-toolset-11-runtime", "libaio-devel", "libaio"}
WORLD = {
    "gcc-toolset-11-gcc": Rpm(requires=("gcc-toolset-11-runtime",), links={f"{TOOLSET}/gcc": "/usr/bin/gcc-12"}),
    "gcc-toolset-11-runtime": Rpm(files={"/etc/scl/toolset": "enabled"}, config=("/etc/scl/toolset",)),
    "libaio-devel": Rpm(requires=("libaio = 1.0",), files={"/usr/include/libaio.h": "int io;"}),
    "libaio": Rpm(files={"/usr/lib64/libaio.so.1": "elf"}),
    "in-the-bundle-for-another-host": Rpm(files={"/usr/share/other": "x"}),
}
Hosts = Callable[..., AbstractContextManager[Host]]


@dataclass(frozen=True)
class World:
    """The keys, the bundle, and the beginning of every command line."""

    maker: Key
    packager: Key
    folder: Path

    @property
    def install(self) -> str:
        return f"sh '{PLACE}/install.sh' --fingerprint {self.maker.fingerprint}"

    def copy(self, place: Path) -> Path:
        """The bundle again, to be changed."""
        return Path(shutil.copytree(self.folder, place / "world"))

    def sealed(self, folder: Path) -> Path:
        """A copy that was changed, signed again."""
        seal(folder, self.maker)
        return folder


@pytest.fixture(scope="module")
def image(engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with offline_host.image(engine, tmp_path_factory.mktemp("image")) as name:
        yield name


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    need_tools()
    folder = tmp_path_factory.mktemp("bundles") / "world"
    with key("bundle-maker") as maker, key("distribution") as packager:
        build_rpms(folder / "rpms" / "Packages", WORLD, packager)
        index(folder / "rpms", maker)
        (folder / "keys").mkdir()
        shutil.copy(packager.public, folder / "keys" / "RPM-GPG-KEY-distribution.asc")
        wheel(folder / "wheels", "torch", "2.1.0", "__version__ = '2.1.0'")
        wheel(folder / "wheels", "deepspeed", "0.13.1", "import torch", requires=["torch"])
        lock(folder / "wheels")
        archive.write_archive(folder / "doctor.pyz")
        lines = settings(
            "world", "rpms", "wheels", "doctor", root=ROOTS, rpm_count=len(WORLD), rpm_installed_bytes=1000,
            python="3.11", wheels_bytes=10000, accelerator="cpu", deepspeed="image",
            env=f"CC {TOOLSET}/gcc",
        )  # fmt: skip
        yield World(maker=maker, packager=packager, folder=finish(folder, maker, lines))


@pytest.fixture
def hosts(engine: DockerEngine, image: str, world: World) -> Hosts:
    """Hosts that see a bundle; by default the whole one."""

    def call(folder: Path | None = None, **options: Any) -> AbstractContextManager[Host]:
        options.setdefault("tmpfs", {"/tmp": "rw,noexec,mode=1777"})
        return offline_host.host(engine, image, {folder or world.folder: PLACE}, **options)

    return call


def state_of(host: Host) -> str:
    """Everything of a host that an installation could change."""
    places = " -o ".join(f"-path {place}" for place in ("/proc", "/sys", "/dev", "/tmp"))
    return host.good(f"find / -xdev \\( {places} \\) -prune -o -type f ! -name rpmdb.sqlite-shm -printf '%p %s %T@\\n' | sort")


def test_a_whole_installation_with_the_network_off(hosts: Hosts, world: World) -> None:
    with hosts(cap_add=["SYS_ADMIN", "NET_ADMIN"], security_opt=["apparmor=unconfined"]) as host:
        before = state_of(host)
        said = host.good(f"unshare --net {world.install} --dry-run")
        assert "Install 4 Packages" in said and "nothing was changed on this host" in said, said
        assert state_of(host) == before

        said = host.good(f"unshare --net {world.install} --prove 2>&1")
        assert host.packages() == CLOSURE, said
        assert f"Receipt: {PREFIX}/receipt.json" in said
        assert host.good(f". {PREFIX}/env.sh; python -c 'import deepspeed, os; print(os.environ[\"CC\"])'") == f"{TOOLSET}/gcc\n"
        receipt = json.loads(host.good(f"cat {PREFIX}/receipt.json"))
        assert (receipt["schema"], receipt["result"], receipt["exit_code"]) == ("envbuild.receipt/1", "installed", 0)
        assert receipt["bundle"]["signed_by"] == world.maker.fingerprint and receipt["bundle"]["fingerprint_given"]
        changed = receipt["changed"]
        assert {each.rpartition("-0:")[0] for each in changed["packages_installed"]} == CLOSURE
        assert len(changed["keys"]) == 1 and len(changed["history"]) == 1
        assert receipt["proof"]["rpm_verify"] == "clean: 4 packages" and receipt["proof"]["network"] == "off"
        assert sorted(receipt["proof"]["imports"]) == ["deepspeed", "torch"] and f"{TOOLSET}/gcc 12" in receipt["proof"]["gcc"]
        assert json.loads(host.good(f"cat {receipt['proof']['doctor']['file']}"))["schema"].startswith("envbuild.")
        assert host.good("rpm -Va") == ""

        # Again: nothing to do, and nothing done.
        settled = host.good("rpm -qa --queryformat '%{NAME} %{INSTALLTIME}\\n' | sort")
        said = host.good(world.install)
        assert "all packages are installed" in said and "up to date" in said
        assert host.good("rpm -qa --queryformat '%{NAME} %{INSTALLTIME}\\n' | sort") == settled

        # What was changed since is repaired, and a setting of the administrator's is no damage.
        host.good(f"{PREFIX}/venv/bin/python -m pip uninstall -qy deepspeed; echo off > /etc/scl/toolset")
        said = host.good(world.install)
        assert "deepspeed is gone, not 0.13.1" in said
        host.good(f"{PREFIX}/venv/bin/python -c 'import deepspeed'")

        said = host.good(f"sh {PREFIX}/envbuild/uninstall.sh --dry-run")
        assert "remove package libaio-0:1.0-1.el8.x86_64" in said and host.packages() == CLOSURE
        said = host.good(f"sh '{PLACE}/install.sh' --uninstall")
        assert "nothing of this bundle is left" in said
        assert host.good("rpm -qa; ls /opt/envbuild; ls /etc/yum.repos.d") == "elsewhere.repo\n"
        assert host.good("dnf history list 2> /dev/null | grep -c undo") == "1\n"
