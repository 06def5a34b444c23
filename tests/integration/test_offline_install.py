"""A bundle that is installed, proven, repaired, interrupted and undone, on hosts without a network.

The bundle lies on a read-only medium, in a folder with blanks in its name; /tmp of the hosts runs no programs.
"""

from __future__ import annotations

import contextlib
import io
import json
import secrets
import shutil
import tarfile
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
from offline_made import Rpm, build_rpms, finish, index, lock, seal, settings, sign, wheel
from proving import REGISTRY
from rpm_world import Key, key, need_tools

STICK = "/media/usb stick"
PLACE = f"{STICK}/world"
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
# Where a model trains in a real bundle; this one tells in which surroundings it would.
STANDIN_PROBE = """\
import json, os, socket, sys
import deepspeed
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), timeout=5)
interfaces = [name for _, name in socket.if_nameindex()]
print(json.dumps({"argv": sys.argv[1:], "interfaces": interfaces, "env": dict(os.environ)}))
"""
Hosts = Callable[..., AbstractContextManager[Host]]


@dataclass(frozen=True)
class World:
    """The keys, and the medium with the bundle."""

    maker: Key
    packager: Key
    stick: Path

    @property
    def install(self) -> str:
        return self.command("world")

    def command(self, name: str) -> str:
        """How a bundle on the medium is installed."""
        return f"sh '{STICK}/{name}/install.sh' --fingerprint {self.maker.fingerprint}"

    def variant(self, name: str, change: Callable[[Path], object] | None = None, *, sealed: bool = True) -> str:
        """The bundle again under another name, changed, and signed again where the change is the maker's."""
        folder = Path(shutil.copytree(self.stick / "world", self.stick / name))
        if change is not None:
            change(folder)
        if sealed:
            seal(folder, self.maker)
        return self.command(name)


@pytest.fixture(scope="module")
def image(engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with offline_host.image(engine, tmp_path_factory.mktemp("image")) as name:
        yield name


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    need_tools()
    stick = tmp_path_factory.mktemp("stick")
    stick.chmod(0o755)
    folder = stick / "world"
    with key("bundle-maker") as maker, key("distribution") as packager:
        build_rpms(folder / "rpms" / "Packages", WORLD, packager)
        index(folder / "rpms", maker)
        (folder / "keys").mkdir()
        shutil.copy(packager.public, folder / "keys" / "RPM-GPG-KEY-distribution.asc")
        wheel(folder / "wheels", "torch", "2.1.0", "__version__ = '2.1.0'")
        wheel(folder / "wheels", "deepspeed", "0.13.1", "import torch", requires=["torch"])
        lock(folder / "wheels")
        archive.write_archive(folder / "doctor.pyz")
        (folder / "probes").mkdir()
        (folder / "probes" / "zero3.py").write_text(STANDIN_PROBE)
        lines = settings(
            "world", "rpms", "wheels", "doctor", root=ROOTS, rpm_count=len(WORLD), rpm_installed_bytes=1000,
            python="3.11", wheels_bytes=10000, accelerator="cpu", deepspeed="image",
            env=f"CC {TOOLSET}/gcc",
        )  # fmt: skip
        finish(folder, maker, lines)
        yield World(maker=maker, packager=packager, stick=stick)


@pytest.fixture
def hosts(engine: DockerEngine, image: str, world: World) -> Hosts:
    """Hosts with the medium."""

    def call(**options: Any) -> AbstractContextManager[Host]:
        options.setdefault("tmpfs", {"/tmp": "rw,noexec,mode=1777"})
        return offline_host.host(engine, image, {world.stick: STICK}, **options)

    return call


def state_of(host: Host) -> str:
    """Everything of a host that an installation could change."""
    places = " -o ".join(f"-path {place}" for place in ("/proc", "/sys", "/dev", "/tmp"))
    return host.good(
        f"find / -xdev \\( {places} \\) -prune -o -type f ! -name rpmdb.sqlite-shm -printf '%p %s %T@\\n' | sort"
    )


def test_a_whole_installation_with_the_network_off(hosts: Hosts, world: World) -> None:
    with hosts(cap_add=["SYS_ADMIN", "NET_ADMIN"], security_opt=["apparmor=unconfined"]) as host:
        # As on Enterprise Linux. The other hosts here have dash.
        host.good("ln -sf bash /bin/sh")
        before = state_of(host)
        said = host.good(f"unshare --net {world.install} --dry-run")
        assert "Install 4 Packages" in said and "nothing was changed on this host" in said, said
        assert state_of(host) == before

        said = host.good(f"unshare --net {world.install} --prove 2>&1")
        assert host.packages() == CLOSURE, said
        assert f"Receipt: {PREFIX}/receipt.json" in said
        assert (
            host.good(f". {PREFIX}/env.sh; python -c 'import deepspeed, os; print(os.environ[\"CC\"])'")
            == f"{TOOLSET}/gcc\n"
        )
        receipt = json.loads(host.good(f"cat {PREFIX}/receipt.json"))
        assert (receipt["schema"], receipt["result"], receipt["exit_code"]) == ("envbuild.receipt/1", "installed", 0)
        assert receipt["bundle"]["signed_by"] == world.maker.fingerprint and receipt["bundle"]["fingerprint_given"]
        changed = receipt["changed"]
        assert {each.rpartition("-0:")[0] for each in changed["packages_installed"]} == CLOSURE
        assert len(changed["keys"]) == 1 and len(changed["history"]) == 1
        assert receipt["proof"]["rpm_verify"] == "clean: 4 packages" and receipt["proof"]["network"] == "off"
        assert (
            sorted(receipt["proof"]["imports"]) == ["deepspeed", "torch"]
            and f"{TOOLSET}/gcc 12" in receipt["proof"]["gcc"]
        )
        assert json.loads(host.good(f"cat {receipt['proof']['doctor']['file']}"))["schema"].startswith("envbuild.")
        smoke = json.loads(host.good(f"cat {receipt['proof']['smoke']['file']}"))
        assert smoke["interfaces"] == ["lo"] and smoke["argv"][:6:2] == ["--ranks", "--steps", "--accelerator"]
        assert smoke["env"]["DS_ACCELERATOR"] == "cpu" and "http_proxy" not in smoke["env"]
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
        assert "changed on this host: packages installed 4, replaced 0; keys 1" in host.good(world.install)
        said = host.good(f"sh '{PLACE}/install.sh' --uninstall")
        assert "nothing of this bundle is left" in said
        assert host.good("rpm -qa; ls /opt/envbuild; ls /etc/yum.repos.d") == "elsewhere.repo\n"
        assert "Removed" in host.good("dnf history list 2> /dev/null"), "not by dnf's own history"


def edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    """A change of a text in a file of the bundle."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def spoil(folder: Path) -> None:
    path = next((folder / "rpms" / "Packages").glob("libaio-1*.rpm"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def traverse(folder: Path) -> None:
    with (folder / "SHA256SUMS").open("a") as file:
        file.write(f"{'0' * 64}  ../../../etc/passwd\n")


@pytest.fixture(scope="module")
def still(engine: DockerEngine, image: str, world: World) -> Iterator[Host]:
    """A host on which nothing may change: every test of it leaves it as it was."""
    options = {
        "cap_add": ["SYS_ADMIN"],
        "security_opt": ["apparmor=unconfined"],
        "tmpfs": {"/tmp": "rw,noexec,mode=1777"},
    }
    with offline_host.host(engine, image, {world.stick: STICK}, **options) as host:
        before = state_of(host)
        yield host
        assert state_of(host) == before


def refused(host: Host, command: str, code: int, *said: str) -> None:
    found, text = host.run(f"{command} 2>&1")
    assert (found, [each for each in said if each not in text]) == (code, []), text
    assert code == 2 or "nothing was changed on this host" in text, text


def test_what_is_not_signed_as_it_should_be_is_refused(still: Host, world: World) -> None:
    other = "0" * 40
    refused(
        still, f"sh '{PLACE}/install.sh'", 10, "nobody has said which key", f"--fingerprint {world.maker.fingerprint}"
    )
    refused(still, f"sh '{PLACE}/install.sh' --fingerprint {other}", 10, "signed with another key than yours")
    refused(still, f"sh '{PLACE}/install.sh' --fingerprint {world.maker.fingerprint[-16:]}", 2, "a whole one has 40")
    refused(
        still,
        world.variant("no-asc", lambda path: (path / "SHA256SUMS.asc").unlink(), sealed=False),
        10,
        "SHA256SUMS.asc is missing",
    )
    changed = world.variant("other-sums", edit("SHA256SUMS", "bundle.conf", "bundle.cong"), sealed=False)
    refused(still, changed, 10, "BAD signature", "somebody changed it")
    world.variant("unsigned", lambda path: (path / "SHA256SUMS.asc").unlink(), sealed=False)
    said = still.good(f"sh '{STICK}/unsigned/install.sh' --insecure-no-signature --dry-run 2>&1")
    assert "nobody knows who made this bundle" in said and "Install 4 Packages" in said

    def forge(folder: Path) -> None:
        with key("somebody-else") as thief:
            shutil.copy(thief.public, folder / "keys" / "bundle.asc")
            seal(folder, thief)

    refused(still, world.variant("forged", forge, sealed=False), 10, "signed with another key than yours")

    def weaken(folder: Path) -> None:
        sign(world.maker, folder / "SHA256SUMS", "--digest-algo", "SHA1")

    refused(still, world.variant("sha1", weaken, sealed=False), 10, "not right")
    gone = "mv /usr/bin/gpgv /usr/bin/gpgv-away; {}; code=$?; mv /usr/bin/gpgv-away /usr/bin/gpgv; exit $code"
    refused(still, gone.format(world.install), 10, "no gpgv on this host", "gnupg2")


def test_what_is_damaged_or_missing_is_named(still: Host, world: World) -> None:
    refused(
        still, world.variant("spoiled", spoil, sealed=False), 11, "rpms/Packages/libaio-1.0-1.el8.x86_64.rpm", "1 of 3"
    )

    def lose(folder: Path) -> None:
        (folder / "wheels" / "torch-2.1.0-py3-none-any.whl").unlink()

    refused(still, world.variant("lost", lose, sealed=False), 12, "wheels/torch-2.1.0-py3-none-any.whl")

    def link(folder: Path) -> None:
        shutil.move(folder / "wheels", folder / "elsewhere")
        (folder / "wheels").symlink_to("elsewhere")

    refused(still, world.variant("linked", link, sealed=False), 11, "links or devices", "./wheels")

    def hostile(folder: Path) -> None:
        traverse(folder)
        sign(world.maker, folder / "SHA256SUMS")

    refused(still, world.variant("hostile", hostile, sealed=False), 11, "../../../etc/passwd")
    # An index that was changed is no longer what the bundle's key signed, whoever computed the sums anew.
    unsigned = world.stick / "unsigned-package"

    def add_unsigned(folder: Path) -> None:
        build_rpms(folder / "rpms" / "Packages", {"nobody": Rpm()}, None)
        index(folder / "rpms", world.maker)

    refused(
        still,
        world.variant(unsigned.name, add_unsigned),
        10,
        "nobody-1.0-1.el8.x86_64.rpm",
        "not signed with a key of the bundle",
    )

    def add_foreign(folder: Path) -> None:
        with key("another-distribution") as foreign:
            build_rpms(folder / "rpms" / "Packages", {"foreign": Rpm()}, foreign)
        index(folder / "rpms", world.maker)

    refused(still, world.variant("foreign-package", add_foreign), 10, "foreign-1.0-1.el8.x86_64.rpm")


def test_a_medium_that_changes_while_it_is_installed_from_runs_nothing_else(hosts: Hosts, world: World) -> None:
    """Others can write to it. A fake sha256sum changes it behind the back of the check that has just ended well."""
    evil = "touch /pwned; exit 0"
    fake = """#!/bin/sh
/usr/bin/sha256sum "$@" || exit
[ "$1" != -c ] || [ -e /var/tmp/once ] || { touch /var/tmp/once; CHANGE; }
"""
    shared = "/srv/shared"
    for change, said in (
        (f"echo '{evil}' > {shared}/lib/host.sh", "lib/host.sh"),
        (f"cat {shared}/keys/bundle.asc > {shared}/keys/RPM-GPG-KEY-distribution.asc", "RPM-GPG-KEY-distribution.asc"),
        (f"echo evil==1 > {shared}/wheels/requirements.lock", "wheels/requirements.lock"),
        (f"echo 'root evil' >> {shared}/bundle.conf", "bundle.conf"),
    ):
        with hosts() as host:
            host.good(f"cp -r '{PLACE}' {shared}")
            host.write("/usr/local/bin/sha256sum", fake.replace("CHANGE", change), executable=True)
            command = f"sh {shared}/install.sh --fingerprint {world.maker.fingerprint}"
            code, text = host.run(f"PATH=/usr/local/bin:$PATH {command} 2>&1")
            assert code == 11 and said in text and "changed after they were verified" in text, text
            assert host.packages() == set() and host.run("ls /pwned /opt/envbuild")[0] != 0


@pytest.mark.parametrize(
    ("name", "old", "new", "code", "said"),
    [
        (
            "major",
            "major 8\nreleasever 8.8",
            "major 9\nreleasever 9.2",
            20,
            "for release 9, and this host has release 8.8",
        ),
        ("minor", "releasever 8.8", "releasever 8.10", 20, "resolved for release 8.10, and this host has 8.8"),
        ("distro", "distro rocky", "distro ubuntu", 20, "for ubuntu 8, and this host is Rocky Linux 8.8"),
        ("arch", "arch x86_64", "arch aarch64", 20, "for aarch64, and this machine is x86_64"),
        (
            "space",
            "rpm_installed_bytes 1000",
            f"rpm_installed_bytes {10**16}",
            21,
            "MB are needed there (packages, wheels)",
        ),
        ("python", "python 3.11", "python 3.4", 0, "for the Python 3.4 of the bundle"),
        ("older", "releasever 8.8", "releasever 8.6", 0, "rpm decides whether they fit"),
        ("relative", "distro rocky", "distro rhel", 0, "looking at this host"),
    ],
)
def test_a_host_that_the_bundle_is_not_for(
    still: Host, world: World, name: str, old: str, new: str, code: int, said: str
) -> None:
    command = world.variant(f"for-{name}", edit("bundle.conf", old, new))
    refused(still, f"{command} --dry-run", code, said)


def test_places_that_cannot_work(still: Host, world: World) -> None:
    refused(still, f"{world.install} --prefix /tmp/here", 22, "/tmp, which is mounted noexec")
    refused(still, f"{world.install} --prefix /etc", 2, "not empty")
    refused(still, f"{world.install} --prefix '/opt/a b'", 2, "only letters")
    refused(still, f"{world.install} --only image", 2, "this bundle has rpms wheels doctor")
    code, said = still.run(f"{world.install} --prefix /srv/x 2>&1", user="4242:4242")
    assert code == 2 and "only be installed by root" in said and "sudo" in said, said


def test_fips_mode_by_a_fake_of_proc(still: Host, world: World) -> None:
    fake = "mount -t tmpfs fake /proc/sys && mkdir /proc/sys/crypto && echo 1 > /proc/sys/crypto/fips_enabled"
    refused(still, f"{fake} && {world.install}; code=$?; umount /proc/sys; exit $code", 22, "FIPS mode", "--fips")
    fit = world.variant("fips", edit("bundle.conf", "fips no", "fips yes"))
    assert "Install 4" in still.good(f"{fake} && {fit} --dry-run; code=$?; umount /proc/sys; exit $code")


def test_fapolicyd_by_a_fake_process(still: Host, world: World) -> None:
    fake = "cp /bin/sleep /dev/shm/fapolicyd && mount -o remount,exec /dev/shm && { /dev/shm/fapolicyd 300 & }; "
    end = "; code=$?; kill $!; rm -rf /dev/shm/fapolicyd /etc/fapolicyd; exit $code"
    refused(still, f"{fake}{world.install}{end}", 22, "fapolicyd runs", f"allow perm=any all : dir={PREFIX}/")
    rules = "/etc/fapolicyd/rules.d"
    rule = f"mkdir -p {rules}; echo 'allow perm=any all : dir={PREFIX}/' > {rules}/31.rules; "
    assert "nothing was changed" in still.good(f"{fake}{rule}{world.install} --dry-run{end}")
    refused(still, f"{fake}{world.install} --only rpms --dry-run{end}", 0)


@pytest.fixture(scope="module")
def lacking(world: World) -> str:
    """The bundle without wheels, whose packages cannot go beside what some hosts have."""
    return world.variant("lacking", packages_of(world, {}, "libaio-devel"))


def packages_of(
    world: World, packages: dict[str, Rpm], *roots: str, modules: str = "", lines: str = ""
) -> Callable[[Path], object]:
    """A bundle of packages alone: those of the world and some more."""

    def change(folder: Path) -> None:
        build_rpms(folder / "rpms" / "Packages", packages, world.packager)
        index(folder / "rpms", world.maker, modules or None)
        shutil.rmtree(folder / "wheels")
        named = settings(
            "world", "rpms", root=list(roots), rpm_count=len(packages) + len(WORLD), rpm_installed_bytes=1000
        )
        (folder / "bundle.conf").write_text("".join(f"{key} {value}\n" for key, value in named) + lines)

    return change


def on_host(world: World, packages: dict[str, Rpm]) -> str:
    """A command that puts packages onto a host, as if they had always been there."""
    folder = world.stick / f"of-host-{'-'.join(packages)}"
    build_rpms(folder, packages, None)
    return f"rpm -i '{STICK}/{folder.name}'/*.rpm"


def test_a_pinned_sibling_makes_rpm_refuse_and_everything_is_taken_back(
    hosts: Hosts, world: World, lacking: str
) -> None:
    """A host holds an older library, with a sibling that wants exactly that one."""
    pinned = on_host(
        world,
        {
            "libaio": Rpm(version="0.9", files={"/usr/lib64/libaio.so.1": "old"}),
            "pinned": Rpm(requires=("libaio = 0.9",)),
        },
    )
    with hosts() as host:
        host.good(pinned)
        before = host.good("rpm -qa | sort")
        code, said = host.run(f"{lacking} --dry-run 2>&1")
        assert code == 30 and "nothing was changed" in said and "pinned" in said, said
        code, said = host.run(f"{lacking} 2>&1")
        assert (
            code == 30
            and "package pinned-1.0-1.el8.x86_64 requires libaio = 0.9" in said
            and "collect-target.sh" in said
        ), said
        assert host.good("rpm -qa | sort") == before, "a key or a package was left"
        receipt = json.loads(host.good(f"cat {PREFIX}/receipt.json"))
        assert (receipt["result"], receipt["exit_code"]) == ("failed", 30) and not any(receipt["changed"].values())
        # What it takes: the host tells what it has, and the export is made for that.
        host.good(f"sh '{PLACE}/collect-target.sh' -o /var/tmp/target.txt")
        seen = target.parse(host.good("cat /var/tmp/target.txt").encode(), "target.txt", "host")
        assert {each.nevra for each in seen.packages} == {"libaio-0.9-1.el8.x86_64", "pinned-1.0-1.el8.x86_64"}
        assert [str(each) for each in seen.packages[1].requires] == ["libaio = 0.9"]
        assert "libaio(x86-64) = 0.9-1.el8" in [str(each) for each in seen.packages[0].provides]
        assert (seen.os_id, seen.os_version, seen.platform, seen.arch) == ("rocky", "8.8", "platform:el8", "x86_64")
        assert "3.11" in seen.pythons[0][0] and host.container.id[:12] not in host.good("cat /var/tmp/target.txt")


def test_a_script_that_fails_is_told_and_a_rerun_goes_on(hosts: Hosts, world: World) -> None:
    lua = "%pre -p <lua>\nif not posix.access('/run/fine') then error('the disk is not there') end"
    command = world.variant("failing", packages_of(world, {"failing": Rpm(scripts=lua)}, "failing", "libaio-devel"))
    with hosts() as host:
        code, said = host.run(f"{command} 2>&1")
        assert code == 31 and "the disk is not there" in said and "installed libaio" in said, said
        host.good("touch /run/fine")
        host.good(command)
        assert host.packages() == {"failing", "libaio", "libaio-devel"}
        receipt = json.loads(host.good(f"cat {PREFIX}/receipt.json"))
        assert len(receipt["changed"]["packages_installed"]) == 3 and len(receipt["changed"]["history"]) == 2
        host.good(f"sh {PREFIX}/envbuild/uninstall.sh")
        assert host.packages() == set()


def test_kills_in_a_transaction_and_in_pip(hosts: Hosts, world: World) -> None:
    lua = "%post -p <lua>\nio.open('/run/begun', 'w'):close(); while not posix.access('/run/go') do posix.sleep(1) end"
    change = packages_of(world, {"slow": Rpm(scripts=lua)}, "slow", "libaio-devel")
    command = world.variant("slow", change)
    shell = f"kill -9 $(readlink {PREFIX}/lock | cut -d' ' -f2)"
    with hosts() as host:
        # The shell alone: dnf goes on by itself, and the next run waits for it.
        host.start(f"{command} > /var/tmp/log 2>&1")
        wait(host, "test -e /run/begun")
        host.good(shell)
        host.start(f"{command} > /var/tmp/log 2>&1; echo $? > /var/tmp/code")
        wait(host, "grep -q 'waiting for the transaction of the killed run' /var/tmp/log")
        host.good("touch /run/go")
        wait(host, "test -s /var/tmp/code")
        assert host.good("cat /var/tmp/code") == "0\n", host.good("cat /var/tmp/log")
        assert host.packages() == {"slow", "libaio", "libaio-devel"}
        changed = json.loads(host.good(f"cat {PREFIX}/receipt.json"))["changed"]
        assert len(changed["packages_installed"]) == 3 and len(changed["history"]) == 1 and len(changed["keys"]) == 1
        host.good(f"sh {PREFIX}/envbuild/uninstall.sh")
    with hosts() as host:
        # Everything, as when the power fails.
        host.start(f"{command} > /var/tmp/log 2>&1")
        wait(host, "test -e /run/begun")
        host.good(f"{shell}; kill -9 $(grep -lz ENVBUILD_INSTALLS /proc/[0-9]*/environ | cut -d/ -f3)")
        host.good(f"touch /run/go; {command}")
        assert host.packages() == {"slow", "libaio", "libaio-devel"}
        assert host.good("rpm -Va; rpm -qa | sort | uniq -d") == ""
        host.good(f"sh {PREFIX}/envbuild/uninstall.sh")
        assert host.good("rpm -qa") == "" and host.run(f"ls {PREFIX}")[0] != 0
        # And in the middle of pip.
        host.start(f"{world.install} > /var/tmp/log 2>&1")
        wait(host, f"test -d {PREFIX}/venv/lib")
        host.good(shell)
        said = host.good(world.install)
        assert "taking over from an installation that was killed" in said
        host.good(f"{PREFIX}/venv/bin/python -c 'import deepspeed'")


def wait(host: Host, condition: str) -> None:
    """Until a command ends well."""
    deadline = time.monotonic() + 120
    while host.run(condition)[0] != 0:
        assert time.monotonic() < deadline, host.run("cat /var/tmp/log")[1]


MODULES = """\
document: modulemd
version: 2
data:
  name: tool
  stream: "2"
  version: 1
  context: c0ffee00
  arch: x86_64
  summary: a stand-in
  description: a stand-in
  license: {module: [MIT]}
  artifacts: {rpms: ["tool-0:2.0-1.el8.x86_64"]}
"""


def test_a_module_stream_is_enabled_or_passed_by_and_reset_again(hosts: Hosts, world: World) -> None:
    packages = {"tool": Rpm(version="2.0", modularity="tool:2:1:c0ffee00")}
    enabled = world.variant(
        "enabled", packages_of(world, packages, "tool", modules=MODULES, lines="module tool:2 enable\n")
    )
    passed = world.variant(
        "passed", packages_of(world, packages, "tool", modules=MODULES, lines="module tool:2 hotfixes\n")
    )
    neither = world.variant("neither", packages_of(world, packages, "tool", modules=MODULES))
    stream = "sed -n 's/^stream *= *//p; s/^state *= *//p' /etc/dnf/modules.d/tool.module"
    with hosts() as host:
        assert host.run(neither)[0] == 30, "without the stream dnf has to hide the package"
        assert "Install 1 Package" in host.good(f"{enabled} --dry-run")
        host.good(enabled)
        assert host.good(stream).split() == ["2", "enabled"] and host.packages() == {"tool"}
        assert json.loads(host.good(f"cat {PREFIX}/receipt.json"))["changed"]["modules"] == ["tool:2"]
        host.good(f"sh {PREFIX}/envbuild/uninstall.sh")
        assert "enabled" not in host.good(stream) and host.packages() == set()
        host.good(passed)
        assert "enabled" not in host.good(stream) and host.packages() == {"tool"}
        host.good(f"sh {PREFIX}/envbuild/uninstall.sh")
        host.write("/etc/dnf/modules.d/tool.module", "[tool]\nname=tool\nstream=1\nprofiles=\nstate=enabled\n")
        refused(host, enabled, 30, "this host has chosen the stream '1' of the module tool, and the bundle needs '2'")


def test_an_undo_leaves_what_others_need_and_says_what_it_cannot(hosts: Hosts, world: World) -> None:
    command = world.variant("undo", packages_of(world, {}, "libaio-devel"))
    user = on_host(world, {"needs-libaio": Rpm(requires=("libaio",))})
    old = on_host(world, {"libaio": Rpm(version="0.8")})
    with hosts() as host:
        host.good(f"{command}; {user}")
        code, said = host.run(f"sh {PREFIX}/envbuild/uninstall.sh 2>&1")
        assert (
            code == 70 and "libaio is needed by (installed) needs-libaio" in said and "nothing was removed" in said
        ), said
        assert host.packages() == {"libaio", "libaio-devel", "needs-libaio"}
        host.good("rpm -e needs-libaio")
        host.good(f"sh {PREFIX}/envbuild/uninstall.sh")
        assert host.packages() == set()
    with hosts() as host:
        host.good(old)
        said = host.good(command)
        assert "Upgrade 1 Package" in said and "libaio " in said, said
        code, said = host.run(f"sh {PREFIX}/envbuild/uninstall.sh 2>&1")
        assert code == 70 and "libaio-0:0.8-1.el8.x86_64" in said and "dnf downgrade" in said, said
        assert host.good("rpm -q libaio libaio-devel || true").splitlines() == [
            "libaio-1.0-1.el8.x86_64", "package libaio-devel is not installed",
        ]  # fmt: skip
        assert host.run(f"ls {PREFIX}")[0] != 0


def test_an_update_brings_all_that_is_newer_and_its_undo_leaves_nothing(hosts: Hosts, world: World) -> None:
    """Also what the host's own settings would leave as it is (Debian's dnf: best=False), and what nothing asks for in a
    newer version: a security update of a library is of that kind."""
    first = world.variant("first", packages_of(world, {"app": Rpm(requires=("lib",)), "lib": Rpm()}, "app"))
    newer = {"app": Rpm(version="1.1", requires=("lib",)), "lib": Rpm(version="1.1")}
    second = world.variant("second", packages_of(world, newer, "app"))
    with hosts() as host:
        host.good(first)
        said = host.good(f"{second} --dry-run")
        assert "Upgrade 1 Package" in said and "update, where what is installed allows it: lib\n" in said, said
        host.good(second)
        assert host.good("rpm -q app lib").split() == ["app-1.1-1.el8.x86_64", "lib-1.1-1.el8.x86_64"]
        # Each run's receipt stays, and says what it did.
        assert len(host.good(f"ls {PREFIX}/log/receipt-*.json").split()) == 2
        assert "all packages are installed" in host.good(second)
        said = host.good(f"sh {PREFIX}/envbuild/uninstall.sh")
        assert "nothing of this bundle is left" in said and host.packages() == set(), said
        # What the host holds back is no reason to refuse the rest, and is said.
        host.good(f"{first}; {on_host(world, {'pinned': Rpm(requires=('lib = 1.0',))})}")
        said = host.good(second)
        assert "holds or has updated them: lib" in said, said
        assert host.good("rpm -q app lib").split() == ["app-1.1-1.el8.x86_64", "lib-1.0-1.el8.x86_64"]
        host.good(f"rpm -e pinned; sh {PREFIX}/envbuild/uninstall.sh")
        assert host.packages() == set()
        # What the site itself has updated since is named and stays.
        host.good(f"{first}; rpm -e app; rpm -U '{STICK}'/second/rpms/Packages/lib-1.1-*.rpm")
        said = host.good(f"sh {PREFIX}/envbuild/uninstall.sh")
        assert "they stay:\n  lib-1.1-1.el8.x86_64\n" in said and host.packages() == {"lib"}, said
        assert "app" not in said


def test_by_the_name_of_yum(hosts: Hosts, world: World) -> None:
    """The way that is taken where there is no dnf. ``yum`` is dnf here: what yum 3 says and does is not seen."""
    with hosts() as host:
        # Of the host's own settings those of dnf count, and none of another section; nor half of one that is left out.
        own = "[main]\nskip_if_unavailable=1\ntsflags=\n  nodocs\n[mysite]\nname=x\nincludepkgs=nothing\n"
        host.write("/etc/dnf/dnf.conf", own)
        host.good("mv /usr/bin/dnf /usr/bin/yum")
        said = host.good(f"{world.install} --only rpms")
        assert "rpm accepts: Install 4 Packages" in said and host.packages() == CLOSURE, said
        assert "nothing of this bundle is left" in host.good(f"sh {PREFIX}/envbuild/uninstall.sh")
        host.good(on_host(world, {"in-the-way": Rpm(conflicts=("libaio",))}))
        assert (
            host.run(f"{world.install} --only rpms")[0] == 30
            and host.good("rpm -qa") == "in-the-way-1.0-1.el8.x86_64\n"
        )


def test_files_that_were_changed_are_found_by_rpm(hosts: Hosts, world: World) -> None:
    with hosts() as host:
        host.good(f"{world.install} --only rpms; echo other > /usr/include/libaio.h")
        code, said = host.run(f"{world.install} --only rpms 2>&1")
        assert code == 60 and "libaio-devel-1.0-1.el8.x86_64: S.5" in said and "/usr/include/libaio.h" in said, said


def test_wheels_alone_for_somebody_without_root_and_without_fitting_hashes(hosts: Hosts, world: World) -> None:
    """With the pip that came along, run out of its wheel; and a wheel that is not what the lock says."""
    import ensurepip

    (pip,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")

    def carry(folder: Path) -> None:
        shutil.copy(pip, folder / "wheels")
        lock(folder / "wheels")

    def swap(folder: Path) -> None:
        wheel(folder / "wheels", "torch", "2.1.0", "__version__ = 'other'")

    def strip(folder: Path) -> None:
        (folder / "wheels" / "requirements.lock").write_text("deepspeed==0.13.1\ntorch==2.1.0\n")

    carried, swapped = world.variant("carried", carry), world.variant("swapped", swap)
    stripped = world.variant("stripped", strip)
    with hosts() as host:
        host.good("mkdir -p /home/somebody && chown 4242:4242 /home/somebody")
        place = "--only wheels --prefix /home/somebody/it"
        code, said = host.run(f"{swapped} {place} 2>&1", user="4242:4242")
        assert code == 40 and "THESE PACKAGES DO NOT MATCH THE HASHES" in said and "torch" in said, said
        code, said = host.run(f"{stripped} {place} 2>&1", user="4242:4242")
        assert code == 40 and "Hashes are required" in said, said
        code, said = host.run(f"{carried} {place} --prove 2>&1", user="4242:4242")
        assert code == 0, said
        assert pip.name.split("-")[1] in host.good("/home/somebody/it/venv/bin/pip --version")
        # An update that fails leaves what ran before, and the right one goes on from there.
        code, said = host.run(f"{swapped} {place} 2>&1", user="4242:4242")
        assert code == 40 and "was put back" in said, said
        assert pip.name.split("-")[1] in host.good("/home/somebody/it/venv/bin/pip --version")
        code, said = host.run(f"{carried} {place} 2>&1", user="4242:4242")
        assert code == 0 and "up to date" in said, said
        code, said = host.run("sh /home/somebody/it/envbuild/uninstall.sh", user="4242:4242")
        assert code == 0 and host.good("ls /home/somebody") == ""


def test_what_is_a_source_archive_is_built_after_torch_is_there(hosts: Hosts, world: World) -> None:
    """Without an image there is no compiled wheel of DeepSpeed, nor of what else a row compiles: both are built beside
    torch, offline too."""

    def source(wheels: Path, name: str) -> None:
        ready = wheel(wheels / "made", name, "0.13.1", "import torch", requires=["torch"])
        backend = (
            "import os, shutil, torch\n"
            "def build_wheel(folder, *_):\n"
            "    assert os.environ['DS_BUILD_OPS'] == '0'\n"
            f"    return shutil.copy({ready.name!r}, folder).rpartition('/')[2]\n"
        )
        # What no index has cannot be fetched for a place of its own.
        needs = 'requires = ["torch", "to-be-had-nowhere"]'
        project = f'[build-system]\n{needs}\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        with tarfile.open(wheels / f"{name}-0.13.1.tar.gz", "w:gz") as archive:
            for member, content in (
                ("backend.py", backend.encode()),
                ("pyproject.toml", project.encode()),
                (ready.name, ready.read_bytes()),
            ):
                entry = tarfile.TarInfo(f"{name}-0.13.1/{member}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        shutil.rmtree(wheels / "made")

    def change(folder: Path) -> None:
        (folder / "wheels" / "deepspeed-0.13.1-py3-none-any.whl").unlink()
        for name in ("deepspeed", "attention"):
            source(folder / "wheels", name)
        lock(folder / "wheels")
        edit("bundle.conf", "deepspeed image", "deepspeed source\nsource attention\nsource deepspeed")(folder)

    command = world.variant("source", change)
    with hosts() as host:
        host.good(f"{command} --only wheels")
        assert host.good(f"{PREFIX}/venv/bin/python -c 'import attention, deepspeed; print(1)'") == "1\n"


def test_selinux_labels_by_fake_programs(hosts: Hosts, world: World) -> None:
    with hosts() as host:
        host.write("/usr/sbin/selinuxenabled", "#!/bin/sh\nexit 0\n", executable=True)
        host.write("/usr/sbin/restorecon", '#!/bin/sh\necho "$@" > /var/tmp/labelled\n', executable=True)
        host.good(f"{world.install} --only doctor")
        assert host.good("cat /var/tmp/labelled") == f"-R {PREFIX}\n"


@pytest.fixture
def archived(engine: DockerEngine, tmp_path: Path) -> Iterator[tuple[str, str, Path]]:
    """A small image by name, the digest of its configuration, and its archive; the engine has it no more."""
    import docker

    name = f"{REGISTRY}/offline-{secrets.token_hex(4)}:1"
    (tmp_path / "file").write_text(name)
    with tarfile.open(tmp_path / "root.tar", "w") as root:
        root.add(tmp_path / "file", "file")
    client = docker.DockerClient(base_url=engine.endpoint, timeout=120)
    try:
        client.api.import_image(src=str(tmp_path / "root.tar"), repository=name.rpartition(":")[0], tag="1")
        made = client.images.get(name)
        with (tmp_path / "it.oci.tar").open("wb") as file:
            file.writelines(made.save(named=True))
        client.images.remove(name)
        yield name, made.id, tmp_path / "it.oci.tar"
    finally:
        with contextlib.suppress(docker.errors.ImageNotFound):
            client.images.remove(name)
        client.close()


def test_an_image_is_loaded_and_its_digest_compared(
    engine: DockerEngine, image: str, world: World, archived: tuple[str, str, Path]
) -> None:
    """Into the engine of the tests, through its socket."""
    name, digest, file = archived

    def holding(config: str) -> Callable[[Path], object]:
        def change(folder: Path) -> None:
            (folder / "images").mkdir()
            shutil.copy(file, folder / "images" / "it.oci.tar")
            lines = settings(
                "world", "image", image_path="images/it.oci.tar", image_ref=name, image_config=config,
                image_manifest=f"sha256:{'1' * 64}",
            )  # fmt: skip
            (folder / "bundle.conf").write_text("".join(f"{key} {value}\n" for key, value in lines))

        return change

    command = world.variant("image", holding(digest))
    wrong = world.variant("image-wrong", holding(f"sha256:{'2' * 64}"))
    client, socket = shutil.which("docker"), engine.endpoint.removeprefix("unix://")
    assert client
    binds = {world.stick: STICK, Path(client).resolve(): "/usr/bin/docker", Path(socket): "/var/run/docker.sock"}
    with offline_host.host(engine, image, binds) as host:
        present = f"docker image inspect --format '{{{{.Id}}}}' {name}"
        assert "would be loaded into docker" in host.good(f"{command} --dry-run") and host.run(present)[0] != 0
        code, said = host.run(f"{wrong} 2>&1")
        assert code == 50 and "another image than the proven one" in said and "do not use it" in said, said
        host.good(f"sh {PREFIX}/envbuild/uninstall.sh")
        assert host.run(present)[0] != 0
        assert "digest compared" in host.good(command)
        assert host.good(present) == f"{digest}\n"
        assert "up to date" in host.good(command)
        assert json.loads(host.good(f"cat {PREFIX}/receipt.json"))["changed"]["images"] == [f"docker {name}"]
        refused(host, f"{wrong} --prefix /srv/other", 50, f"has another image of the name {name} already")
        host.good(f"sh {PREFIX}/envbuild/uninstall.sh")
        assert host.run(present)[0] != 0
        refused(host, f"{command} --engine podman", 50, "no container engine answers on this host (podman)")
