"""An image of an RPM system, small and made up: its files and versions against its own database."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from envbuild.judge import inspection
from envbuild.judge.claims import claims
from envbuild.judge.inspection import Looked
from envbuild.judge.standards import Standards
from envbuild.model import Environment
from rpm_made import package, sqlite_file

PYTHON = "/opt/rh/rh-python38/root/usr/bin/python3.8"
STDLIB = "opt/rh/rh-python38/root/usr/lib64/python3.8"
GCC = "/opt/rh/gcc-toolset-11/root/usr/bin/gcc"
DATABASE = "var/lib/rpm/rpmdb.sqlite"
ENV = Environment.model_validate(
    {
        "name": "el8", "summary": "test", "accelerator": "cpu", "family": "debian", "python": "3.8",
        "base": {"image": "docker.io/library/none:1"}, "gcc": {"version": "11.2", "package": "gcc-toolset-11-gcc"},
        "torch": {"version": "2.13.0", "build": "cpu"}, "deepspeed": {"version": "0.19.8", "ops": []},
        "requires": "cpu", "sources": {},
    }
)  # fmt: skip
Files = Mapping[str, bytes | str]
# As glibc and Python lie on Enterprise Linux: /lib64 is a link, and packages say /lib64 of what is in /usr/lib64.
LIBC = {"/lib64/libc-2.28.so": b"c", "/lib64/libc.so.6": "libc-2.28.so", "/usr/share/doc/glibc/NEWS": b"news"}
MADE = {"/usr/bin/made": b"made again"}
OTHER = {
    "/lib/libc-2.28.so": b"c32",
    "/usr/bin/tool": b"tool",
    "/etc/tool.conf": b"setting",
    "/etc/tool.fixed": b"fixed",
}
SCL = {PYTHON: b"python", f"/{STDLIB}/argparse.py": b"import sys", f"/{STDLIB}/__pycache__/argparse.pyc": b"compiled"}
HEADERS = (
    package("glibc", "2.28", files=LIBC, change={1037: [0, 0, 2]}),
    package("glibc", "2.27", files={"/lib/libc-2.28.so": b"c32"}, arch="i686"),
    package("tool", "7", files={k: v for k, v in OTHER.items() if k != "/lib/libc-2.28.so"}, change={1037: [0, 1, 0]}),
    package("rh-python38-python", "3.8.18", files=SCL),
    package("gcc-toolset-11-gcc", "11.2.1", files={GCC: b"gcc"}),
    package("gpg-pubkey", "1"),
    # Left out at the installation, replaced by another package's, and verified in nothing but its presence.
    package(
        "parts",
        files={"/usr/bin/left-out": b"", "/usr/bin/tool": b"other", "/usr/bin/made": b"first"},
        change={1029: [2, 1, 0], 1045: [~1 & 0xFFFFFFFF] * 3},
    ),
)


def image(*layers: Files) -> io.BytesIO:
    """What an engine saves; a text is a symbolic link, and a file without a leading slash is taken as it is."""

    def tar(members: Files) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as out:
            for name, data in members.items():
                info = tarfile.TarInfo(name.lstrip("/"))
                info.mode = 0o600 if name.startswith("//") else 0o644
                if isinstance(data, str):
                    info.type, info.linkname, data = tarfile.SYMTYPE, data, b""
                info.size = len(data)
                out.addfile(info, io.BytesIO(data))
        return buffer.getvalue()

    packed = [tar(layer) for layer in layers]
    names = [f"{number}/layer.tar" for number in range(len(packed))]
    config = {"rootfs": {"diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in packed]},
              "architecture": "amd64", "config": {"Env": ["PATH=/opt/venv/bin"]}}  # fmt: skip
    manifest = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    members = dict(zip(names, packed, strict=True))
    return io.BytesIO(tar({**members, "config.json": json.dumps(config).encode(), "manifest.json": manifest}))


@pytest.fixture
def root(tmp_path: Path) -> dict[str, bytes | str]:
    """The files of a system that is as it was installed."""
    files = {
        f"usr{path}" if path.startswith("/lib") else path: data
        for path, data in {**LIBC, **OTHER, **SCL, **MADE}.items()
    }
    del files["/usr/share/doc/glibc/NEWS"]
    return {
        "lib": "usr/lib", "lib64": "usr/lib64", **files, GCC: b"gcc", "/opt/venv/bin/python": PYTHON,
        DATABASE: sqlite_file(tmp_path, HEADERS), f"{DATABASE}-wal": b"",
    }  # fmt: skip


def look(scratch: Path, *layers: Files) -> Looked:
    looked = inspection.look(image(*layers), ENV, scratch)
    assert list(scratch.iterdir()) == []
    json.dumps(looked.as_dict())
    return looked


def told(looked: Looked) -> list[tuple[str, str]]:
    found = inspection.judge(ENV, looked, None, Standards())
    rules = ("content.system", "content.hooks", "content.files", "content.bytecode")
    return [(finding.rule, finding.message) for finding in found if finding.rule in rules]


def test_a_system_as_it_was_installed_has_nothing_to_tell(root: Files, tmp_path: Path) -> None:
    looked = look(tmp_path, root)
    assert told(looked) == [] and looked.system.known and looked.system.files == 10
    assert looked.outside.system == {"gcc-toolset-11-gcc": "11.2.1", "glibc": "2.28"}
    assert looked.outside.interpreter == PYTHON.lstrip("/")


@pytest.mark.parametrize(
    ("change", "rule", "message"),
    [
        ({"usr/lib64/libc-2.28.so": b"x"}, "content.system", "/usr/lib64/libc-2.28.so is not the file that its package "
         "glibc-2.28-1.el8.x86_64 brought"),
        ({"usr/lib/libc-2.28.so": b"x"}, "content.system", "glibc-2.27-1.el8.i686 brought"),
        ({"usr/lib64/libc.so.6": "libown.so"}, "content.system", "it leads to libown.so, not to libc-2.28.so"),
        ({"usr/lib64/libc.so.6": b"c"}, "content.system", "it is a file, not a symlink"),
        ({"usr/lib64/.wh.libc.so.6": b""}, "content.system", "/usr/lib64/libc.so.6 is gone; its package glibc-2.28"),
        ({"usr/bin/.wh.tool": b""}, "content.system", "/usr/bin/tool is gone"),
        ({"//usr/bin/tool": b"tool"}, "content.system", "its mode is 0600, not 0644"),
        ({"etc/tool.fixed": b"x"}, "content.system", "/etc/tool.fixed is not the file that its package tool-7"),
        ({f"{STDLIB}/argparse.py": b"import os"}, "content.system", f"/{STDLIB}/argparse.py is not the file"),
        ({f"{STDLIB}/shadow.py": b""}, "content.system", f"/{STDLIB}/shadow.py belongs to no package"),
        ({"opt/rh/x/root/usr/lib64/libwide.so": b""}, "content.system", "libwide.so belongs to no package"),
        ({f"{STDLIB}/sitecustomize.py": b""}, "content.hooks", "sitecustomize.py belongs to no package"),
        ({"/opt/venv/bin/python": "/opt/rh/own/root/usr/bin/python3.8", "opt/rh/own/root/usr/bin/python3.8": b"x"},
         "content.system", "/opt/rh/own/root/usr/bin/python3.8 belongs to no package"),
        ({GCC: b"x"}, "content.system", "its package gcc-toolset-11-gcc-11.2.1-1.el8.x86_64 brought"),
    ],
)  # fmt: skip
def test_what_a_later_layer_changes_is_named(
    root: Files, tmp_path: Path, change: Files, rule: str, message: str
) -> None:
    found = told(look(tmp_path, root, change))
    assert [each[0] for each in found] == [rule] and message in found[0][1]


@pytest.mark.parametrize(
    "change",
    [
        {"etc/tool.conf": b"changed, as configuration is"},
        {"etc/.wh.tool.conf": b""},
        {"etc/.wh.tool.fixed": b""},  # bases leave out what nothing loads
        {f"{STDLIB}/__pycache__/.wh.argparse.pyc": b""},
        {"usr/share/doc/glibc/NEWS": b"news"},
        {"usr/local/lib64/libown.so": b"x", "etc/new": b"x"},
    ],
)
def test_what_may_become_of_a_file_is_not_told(root: Files, tmp_path: Path, change: Files) -> None:
    assert told(look(tmp_path, root, change)) == []


def test_the_last_layers_database_counts(root: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envbuild.judge.files._IN_MEMORY", 4)  # each of them in a file of its own
    newer = (*HEADERS, package("more", files={"/usr/lib64/libmore.so": b"more"}))
    looked = look(tmp_path, root, {DATABASE: sqlite_file(tmp_path, newer), "usr/lib64/libmore.so": b"more"})
    assert told(looked) == [] and looked.system.files == 11


def test_berkeley_db_is_read_where_it_lies(root: dict[str, bytes | str], tmp_path: Path) -> None:
    data = (Path(__file__).parent / "data/rpmdb/Packages-little").read_bytes()
    del root[DATABASE], root["usr/lib64/libc.so.6"]
    root |= {"var/lib/rpm/Packages": data, "usr/lib64/libsmall.so": "libsmall.so.2", "usr/lib64/libsmall.so.2": b"x"}
    (changed,) = look(tmp_path, root).system.changed
    assert (changed.path, changed.package) == ("usr/lib64/libsmall.so.2", "small-2.0-7.el8.x86_64")


@pytest.mark.parametrize(
    ("path", "data", "why"),
    [
        (DATABASE, b"SQLite format 3\0" + bytes(99), "/var/lib/rpm/rpmdb.sqlite: SQLite cannot read it"),
        (DATABASE, b"", "it is empty"),
        ("usr/lib/sysimage/rpm/Packages.db", b"RpmP" + bytes(99), "ndb, as on SUSE"),
        ("var/lib/rpm/Packages", b"?" * 99, "neither an SQLite nor a Berkeley DB file"),
    ],
)
def test_a_database_that_cannot_be_read_is_said(
    root: dict[str, bytes | str], tmp_path: Path, path: str, data: bytes, why: str
) -> None:
    del root[DATABASE]
    looked = look(tmp_path, root, {path: data})
    ((rule, message),) = told(looked)
    assert rule == "content.files" and why in message and not looked.system.known


def test_two_databases_are_one_too_many(root: Files, tmp_path: Path) -> None:
    other = {"usr/lib/sysimage/rpm/rpmdb.sqlite": sqlite_file(tmp_path, HEADERS)}
    ((rule, message),) = told(look(tmp_path, root, other))
    assert rule == "content.files" and "there are 2 RPM databases" in message


def test_an_empty_database_says_nothing_and_versions_then_have_no_source(
    root: dict[str, bytes | str], tmp_path: Path
) -> None:
    root[DATABASE] = sqlite_file(tmp_path, [])
    looked = look(tmp_path, root)
    assert told(looked) == [] and not looked.system.known
    messages = [each.message for claim in claims(ENV, looked.outside, {}) for each in claim.findings("el8")]
    for name in ("gcc-toolset-11-gcc", "glibc"):
        assert any(f"could not be read from the packages of the system (dpkg, RPM) ({name})" in m for m in messages)


def test_digests_of_a_kind_that_is_not_compared_are_said(root: dict[str, bytes | str], tmp_path: Path) -> None:
    strong = package("tool", files={"/usr/bin/tool": b"tool"}, change={5011: [10]})
    root[DATABASE] = sqlite_file(tmp_path, [strong])
    found = told(look(tmp_path, root))
    assert ("content.files", "digests are not compared: sha512") in found
