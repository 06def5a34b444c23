"""rpm itself is asked what it has in its database and what became of the files; the reader has to say the same.

The packages are built here by rpmbuild, installed into a root of their own, and spoiled there. Berkeley DB files are
made by libdb's own tool from the same headers: today's rpm writes SQLite alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuild import rpmdb
from envbuild.engines import DockerEngine
from envbuild.judge import inspection
from envbuild.judge.standards import Standards
from envbuild.model import Environment, Finding

# Changing the root is root's; elsewhere a namespace lets anybody be it.
AS_ROOT = () if os.geteuid() == 0 else ("unshare", "--map-root-user")
PACKAGES = {
    "alpha": """
Name: alpha
Epoch: 2
Version: 1.5
Release: 3
%install
cd %{buildroot}
mkdir -p usr/lib64/python3.11 usr/bin usr/sbin usr/share/doc/alpha etc/alpha var/log usr/lib/locale
echo library > usr/lib64/libalpha.so.1.5
ln -s libalpha.so.1.5 usr/lib64/libalpha.so.1
echo 'import sys' > usr/lib64/python3.11/argparse.py
for name in tool locked loose shared gone; do echo "#!/bin/sh # $name" > usr/bin/$name; done
echo '#!/bin/sh' > usr/sbin/admin
echo archive > usr/lib/locale/locale-archive
echo setting > etc/alpha/alpha.conf
echo fixed > etc/alpha/fixed
echo maybe > etc/alpha/maybe
echo words > usr/share/doc/alpha/README
%files
%dir /etc/alpha
%config(noreplace) /etc/alpha/alpha.conf
%config(missingok) /etc/alpha/maybe
/etc/alpha/fixed
%attr(0755,root,root) /usr/bin/*
%attr(4755,root,root) /usr/sbin/admin
/usr/lib64/libalpha.so*
/usr/lib64/python3.11/argparse.py
%verify(not md5 size mtime) /usr/lib/locale/locale-archive
%doc /usr/share/doc/alpha/README
%ghost /var/log/alpha.log
""",
    # MD5, as packages had it before Enterprise Linux 6; and a file that another package has, too.
    "gcc-toolset-11-gcc": """
%define _binary_filedigest_algorithm 1
Name: gcc-toolset-11-gcc
Version: 11.2.1
Release: 9.1.el8
%install
mkdir -p %{buildroot}/usr/bin %{buildroot}/opt/rh/gcc-toolset-11/root/usr/bin
echo compiler > %{buildroot}/opt/rh/gcc-toolset-11/root/usr/bin/gcc
echo 'of the other' > %{buildroot}/usr/bin/shared
%files
%attr(0755,root,root) /opt/rh/gcc-toolset-11/root/usr/bin/gcc
%attr(0755,root,root) /usr/bin/shared
""",
    # A header of many pages.
    "glibc": """
Name: glibc
Version: 2.28
Release: 251.el8_10.2
%install
mkdir -p %{buildroot}/usr/share/many
cd %{buildroot}/usr/share/many
for number in $(seq 1500); do
    mkdir -p folder-$((number % 40))
    : > folder-$((number % 40))/a-file-with-a-number-$number
done
%files
/usr/share/many
""",
}  # fmt: skip
COMMON = "Summary: made for a test\nLicense: none\n%description\nNothing.\n%install"


@dataclass(frozen=True)
class Root:
    """A root that rpm installed packages into."""

    folder: Path

    def rpm(self, *arguments: str, check: bool = True) -> str:
        argv = [*AS_ROOT, "rpm", "--root", str(self.folder), "--dbpath", "/var/lib/rpm", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=_env(self.folder.parent))
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    @property
    def database(self) -> Path:
        return self.folder / "var/lib/rpm/rpmdb.sqlite"

    def read(self, scratch: Path) -> rpmdb.Database:
        with self.database.open("rb") as main, self.database.with_name("rpmdb.sqlite-wal").open("rb") as log:
            return rpmdb.read(main, log, scratch)


def _env(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "HOME": str(home), "LC_ALL": "C"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Root:
    folder = tmp_path_factory.mktemp("rpm")
    for name, text in PACKAGES.items():
        (folder / f"{name}.spec").write_text(text.strip().replace("%install", COMMON, 1) + "\n")
        argv = ["rpmbuild", "-bb", "--quiet", "--define", f"_topdir {folder}/top", "--define", f"_dbpath {folder}/db"]
        argv += ["--define", "_build_id_links none", "--target", os.uname().machine, str(folder / f"{name}.spec")]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=_env(folder))
        assert done.returncode == 0, done.stderr
    root = Root(folder / "root")
    (root.folder / "var/lib/rpm").mkdir(parents=True)
    root.rpm("--initdb")
    files = {path.name.rsplit("-", 2)[0]: str(path) for path in folder.glob("top/RPMS/*/*.rpm")}
    for name in PACKAGES:
        root.rpm("-i", "--nodeps", "--excludedocs", "--replacefiles", files[name])
    return root


@pytest.fixture
def root(built: Root, tmp_path: Path) -> Root:
    """A copy that may be spoiled."""
    shutil.copytree(built.folder, tmp_path / "root", symlinks=True)
    return Root(tmp_path / "root")


def test_the_reader_says_what_rpm_says(built: Root, tmp_path: Path) -> None:
    database = built.read(tmp_path)
    assert database.problems == () and list(tmp_path.iterdir()) == []
    packages = {package.name: package for package in database.packages}
    fields = (
        "%{NAME}|%{EPOCH}|%{VERSION}|%{RELEASE}|%{ARCH}|%{SIZE}|%{FILEDIGESTALGO}|%{LICENSE}|%{SOURCERPM}|%{VENDOR}"
    )
    said = [line.split("|") for line in built.rpm("-qa", "--qf", fields + "\n").splitlines()]
    assert len(said) == len(packages) == len(PACKAGES)
    for name, epoch, version, release, arch, size, algorithm, *origin in said:
        mine = packages[name]
        assert (str(mine.epoch) if mine.epoch is not None else "(none)") == epoch
        assert (mine.version, mine.release, mine.arch, str(mine.size)) == (version, release, arch, size)
        assert [each or "(none)" for each in (mine.licence, mine.source, mine.vendor)] == origin
        assert mine.algorithm == {"8": "sha256", "(none)": "md5", "1": "md5"}[algorithm]
        columns = "[%{FILENAMES}|%{FILEMODES}|%{FILESIZES}|%{FILEDIGESTS}|%{FILEFLAGS}|%{FILEUSERNAME}|%{FILESTATES}\n]"
        theirs = [line.split("|") for line in built.rpm("-q", name, "--qf", columns).splitlines()]
        assert len(theirs) == len(mine.files) > 1
        for file, (path, mode, bytes_, digest, flags, user, state) in zip(mine.files, theirs, strict=True):
            assert (file.path, file.digest.hex(), file.user) == (path, digest, user)
            assert (file.mode, file.size) == (int(mode), int(bytes_))
            bits = int(flags)
            assert (file.config, file.doc, file.ghost) == (bool(bits & 1), bool(bits & 2), bool(bits & 64))
            assert file.optional == bool(bits & 8) and file.installed == (state in ("0", "normal"))
    states = {file.path: file.installed for file in packages["alpha"].files}
    assert not states["/usr/share/doc/alpha/README"] and not states["/usr/bin/shared"] and states["/usr/bin/tool"]


def spoil(folder: Path) -> None:
    """Everything that may become of an installed file."""
    (folder / "usr/lib64/libalpha.so.1.5").write_text("other!\n")
    (folder / "usr/lib64/python3.11/argparse.py").write_text("import os\n")
    (folder / "usr/bin/gone").unlink()
    (folder / "usr/bin/locked").chmod(0o700)
    (folder / "usr/bin/loose").chmod(0o757)
    (folder / "usr/sbin/admin").chmod(0o755)
    (folder / "etc/alpha/alpha.conf").write_text("changed, as configuration is\n")
    (folder / "etc/alpha/fixed").write_text("never to be changed\n")
    (folder / "etc/alpha/maybe").unlink()
    (folder / "usr/lib/locale/locale-archive").write_text("built again\n")
    (folder / "usr/lib64/libalpha.so.1").unlink()
    (folder / "usr/lib64/libalpha.so.1").symlink_to("libother.so")
    (folder / "opt/rh/gcc-toolset-11/root/usr/bin/gcc").write_text("another\n")


def _differs(root: Root, package: rpmdb.Package) -> set[tuple[str, str]]:
    """Path and letter, as ``rpm -V`` has them, of everything in which the files are not as the reader says."""
    found = set()
    for file in package.files:
        place = root.folder / file.path.lstrip("/")
        if not file.installed or (file.ghost and not place.exists()):
            continue
        try:
            mode = place.lstat().st_mode
        except FileNotFoundError:
            if not file.optional:
                found.add((file.path, "missing"))
            continue
        if "mode" in file.verify and mode != file.mode and not file.ghost:
            found.add((file.path, "M"))
        compared = stat.S_ISREG(file.mode) and "digest" in file.verify and not file.ghost
        if compared and hashlib.new(package.algorithm, place.read_bytes()).digest() != file.digest:
            found.add((file.path, "5"))
        if stat.S_ISLNK(file.mode) and "link" in file.verify and str(place.readlink()) != file.link:
            found.add((file.path, "L"))
    return found


def test_what_became_of_the_files_is_what_rpm_finds(root: Root, tmp_path: Path) -> None:
    packages = root.read(tmp_path).packages
    assert [_differs(root, package) for package in packages] == [set()] * len(packages)
    spoil(root.folder)
    for package in packages:
        theirs = set()
        for line in root.rpm("-V", "--nodeps", package.name, check=False).splitlines():
            word, path = line.split()[0], line.split()[-1]
            theirs |= {(path, letter) for letter in (["missing"] if word == "missing" else set(word) & set("M5L"))}
        assert _differs(root, package) == theirs
    assert sum(len(_differs(root, package)) for package in packages) >= 10


@pytest.mark.parametrize("order", [1234, 4321], ids=["little", "big"])
@pytest.mark.parametrize("page", [512, 4096, 65536])
def test_berkeley_db_gives_the_same_headers(built: Root, tmp_path: Path, order: int, page: int) -> None:
    with contextlib.closing(sqlite3.connect(f"file:{built.database}?immutable=1", uri=True)) as connection:
        rows = connection.execute("SELECT hnum, blob FROM Packages").fetchall()
    assert max(len(blob) for _, blob in rows) > 65536  # on overflow pages, whatever the size of a page
    lines = ["VERSION=3", "format=bytevalue", "type=hash", f"db_pagesize={page}", f"db_lorder={order}", "HEADER=END"]
    lines += [" 00000000", " 04000000"]  # rpm's own counter
    for number, blob in rows:
        lines += [" " + number.to_bytes(4, "little").hex(), " " + blob.hex()]
    file = tmp_path / "Packages"
    text = "\n".join([*lines, "DATA=END", ""])
    subprocess.run(["db5.3_load", str(file)], input=text.encode(), check=True, timeout=60)
    with file.open("rb") as stream:
        assert rpmdb.read(stream, None, tmp_path) == built.read(tmp_path)


ENV = Environment.model_validate(
    {
        "name": "el8", "summary": "test", "accelerator": "cpu", "family": "debian", "python": "3.11",
        "base": {"image": "docker.io/library/none:1"}, "gcc": {"version": "11.2", "package": "gcc-toolset-11-gcc"},
        "torch": {"version": "2.13.0", "build": "cpu"}, "deepspeed": {"version": "0.19.8", "ops": []},
        "requires": "cpu", "sources": {},
    }
)  # fmt: skip


Inspect = Callable[[Root], tuple[inspection.Looked, list[Finding]]]


@pytest.fixture
def inspect(
    engine: DockerEngine, tag: str, tmp_path: Path
) -> Callable[[Root], tuple[inspection.Looked, list[Finding]]]:
    """The findings of the system in a root, once it went through a real engine."""

    def call(root: Root) -> tuple[inspection.Looked, list[Finding]]:
        with tarfile.open(tmp_path / "root.tar", "w") as tar:
            tar.add(root.folder, ".")
        engine.import_root(tmp_path / "root.tar", tag, ())
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        with engine.save(tag) as stream:
            looked = inspection.look(stream, ENV, scratch)
        engine.untag(tag)  # the next one takes the name, and nothing is left without one
        assert list(scratch.iterdir()) == []
        json.dumps(looked.as_dict())
        found = inspection.judge(ENV, looked, None, Standards())
        return looked, [each for each in found if each.rule in ("content.system", "content.hooks", "content.files")]

    return call


def test_an_image_of_an_rpm_system_is_held_to_its_packages(root: Root, inspect: Inspect) -> None:
    looked, found = inspect(root)
    assert found == [] and looked.system.known and looked.system.files > 10
    assert looked.outside.system == {"gcc-toolset-11-gcc": "11.2.1", "glibc": "2.28"}
    assert set(looked.outside.system_places.values()) == {"/var/lib/rpm/rpmdb.sqlite"}
    spoil(root.folder)
    (root.folder / "usr/lib64/libstray.so").write_text("x")
    (root.folder / "usr/lib64/python3.11/sitecustomize.py").write_text("x")
    looked, found = inspect(root)
    alpha = f"its package alpha-1.5-3.{os.uname().machine} brought"
    gcc = f"its package gcc-toolset-11-gcc-11.2.1-9.1.el8.{os.uname().machine} brought"
    report = looked.system
    named = {each.path: each.how for each in report.changed}
    assert named == {
        "etc/alpha/fixed": "", "opt/rh/gcc-toolset-11/root/usr/bin/gcc": "",
        "usr/bin/locked": "its mode is 0700, not 0755", "usr/bin/loose": "its mode is 0757, not 0755",
        "usr/lib64/libalpha.so.1": "it leads to libother.so, not to libalpha.so.1.5",
        "usr/lib64/libalpha.so.1.5": "", "usr/lib64/python3.11/argparse.py": "",
    }  # fmt: skip
    assert [each.path for each in report.missing] == ["usr/bin/gone"]
    assert report.stray == ("usr/lib64/libstray.so", "usr/lib64/python3.11/sitecustomize.py")
    told = [finding.message for finding in found]
    assert f"/etc/alpha/fixed is not the file that {alpha}" in told
    assert f"/opt/rh/gcc-toolset-11/root/usr/bin/gcc is not the file that {gcc}" in told
    assert f"/usr/bin/gone is gone; {alpha} it" in told
    assert "content.hooks" in {finding.rule for finding in found} and all(finding.fix for finding in found)


def test_a_damaged_database_is_said(root: Root, inspect: Inspect) -> None:
    data = bytearray(root.database.read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    root.database.write_bytes(bytes(data))
    looked, found = inspect(root)
    assert not looked.system.known
    assert [finding.rule for finding in found] == ["content.files"]
    assert re.search(r"cannot be read from /var/lib/rpm/rpmdb\.sqlite: ", found[0].message)
