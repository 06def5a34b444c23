"""A wheel out of an image: from an export that the tests make up, of what pip leaves when it installs one."""

from __future__ import annotations

import base64
import hashlib
import struct
import zipfile
from pathlib import Path
from typing import Any, cast

import pytest

import bundles
from bundles import exported, tarred
from envbuild.bundle import rebuilt
from envbuild.engines import Engine, ImageInfo
from envbuild.errors import BundleError, InputError
from envbuild.facts import load
from envbuild.pipeline import shipping
from native_made import EXTRA, VERNEED, made

SITE = "opt/venv/lib/python3.11/site-packages"
SCRIPT = b"#!/opt/venv/bin/python3.11\nimport ds\n"


def native(*versions: str) -> bytes:
    """A library that asks for symbol versions."""
    strings = b"\0libc.so.6\0" + b"".join(version.encode() + b"\0" for version in versions)
    needs = b"".join(
        struct.pack("<IHHII", 0, 0, 2, strings.index(version.encode()), 0 if version == versions[-1] else 16)
        for version in versions
    )
    return made((VERNEED, EXTRA), strings=strings, extra=struct.pack("<HHIII", 1, len(versions), 1, 16, 0) + needs)


def installed() -> dict[str, bytes]:
    """Files of an image in which pip has installed deepspeed 1.0."""
    own = {
        f"{SITE}/deepspeed/__init__.py": b"x = 1\n",
        f"{SITE}/deepspeed/ops/op.so": native("GLIBC_2.34", "GLIBC_2.2.5", "GLIBCXX_3.4.21"),
        f"{SITE}/deepspeed-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: deepspeed\nVersion: 1.0\n",
        f"{SITE}/deepspeed-1.0.dist-info/WHEEL": b"Root-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n",
        f"{SITE}/deepspeed-1.0.dist-info/entry_points.txt": b"[console_scripts]\nds-made = deepspeed:main\n",
        f"{SITE}/deepspeed-1.0.dist-info/INSTALLER": b"pip\n",
        "opt/venv/bin/ds": SCRIPT,
        "opt/venv/bin/ds_ssh": b"#!/bin/bash\necho\n",
        "opt/venv/bin/ds-made": SCRIPT,
        "opt/venv/share/ds/hosts": b"h\n",
    }
    lines = []
    for path, data in own.items():
        name = path.removeprefix(f"{SITE}/") if path.startswith(SITE) else path.replace("opt/venv/", "../../../")
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    lines += ["deepspeed/__pycache__/__init__.cpython-311.pyc,,", "deepspeed-1.0.dist-info/RECORD,,"]
    return {
        **own,
        f"{SITE}/deepspeed-1.0.dist-info/RECORD": "\n".join([*lines, ""]).encode(),
        f"{SITE}/deepspeed/__pycache__/__init__.cpython-311.pyc": b"bytecode",
        f"{SITE}/other/__init__.py": b"",
        "opt/envbuild/ops.sha256": f"{'7' * 64}  deepspeed-1.0-cp311-cp311-linux_x86_64.whl\n".encode(),
    }


def rebuild(tmp_path: Path, name: str, *layers: dict[str, bytes]) -> rebuilt.Rebuilt:
    folder = tmp_path / name
    folder.mkdir()
    return rebuilt.rebuild(exported(*map(tarred, layers)), "deepspeed", folder)


def test_the_wheel_holds_what_was_installed_and_nothing_of_the_installer(tmp_path: Path) -> None:
    files = installed()
    made = rebuild(tmp_path, "one", files)
    assert made.wheel.filename == "deepspeed-1.0-cp311-cp311-linux_x86_64.whl"
    assert made.original == "7" * 64 and "7" * 64 in made.note("it")
    assert made.needs == ("GLIBCXX_3.4.21", "GLIBC_2.34")
    assert made.beyond({"GLIBC": "2.28", "GLIBCXX": "3.4.25"}) == ("GLIBC_2.34",)
    assert made.beyond({"GLIBC": "2.34"}) == ()
    with zipfile.ZipFile(made.wheel.path) as wheel:
        held = {name: wheel.read(name) for name in wheel.namelist()}
        modes = {each.filename: each.external_attr >> 16 & 0o777 for each in wheel.infolist()}
    record = held.pop("deepspeed-1.0.dist-info/RECORD").decode().splitlines()
    assert held == {
        "deepspeed/__init__.py": b"x = 1\n",
        "deepspeed/ops/op.so": files[f"{SITE}/deepspeed/ops/op.so"],
        "deepspeed-1.0.data/scripts/ds": b"#!python\nimport ds\n",
        "deepspeed-1.0.data/scripts/ds_ssh": b"#!/bin/bash\necho\n",
        "deepspeed-1.0.data/data/share/ds/hosts": b"h\n",
        **{f"deepspeed-1.0.dist-info/{name}": files[f"{SITE}/deepspeed-1.0.dist-info/{name}"]
           for name in ("METADATA", "WHEEL", "entry_points.txt")},
    }  # fmt: skip
    assert modes["deepspeed-1.0.data/scripts/ds"] == 0o755 and modes["deepspeed/__init__.py"] == 0o644
    assert record[-1] == "deepspeed-1.0.dist-info/RECORD,," and len(record) == len(held) + 1
    # The files of an image of other layers, that are the same in the end, are the same bytes.
    hidden = {f"{SITE}/deepspeed/__init__.py": b"of a lower layer"}
    assert rebuild(tmp_path, "two", hidden, files).wheel.sha256 == made.wheel.sha256


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({f"{SITE}/deepspeed/__init__.py": b"import evil\n"}, "__init__.py was changed"),
        ({"opt/venv/bin/ds": b"#!/bin/sh\n"}, "bin/ds was changed"),
        ({f"{SITE}/deepspeed/.wh.__init__.py": b""}, "__init__.py is not there"),
        ({f"{SITE}/deepspeed-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\n"}, "WHEEL was changed"),
        ({f"{SITE}/deepspeed-1.0.dist-info/RECORD": b"../../../../../etc/passwd,sha256=AAAA,1\n"}, "/etc/passwd"),
        ({f"{SITE}/.wh.deepspeed-1.0.dist-info": b""}, "deepspeed 0 times"),
        ({f"{SITE}/deepspeed-2.0.dist-info/RECORD": b""}, "deepspeed 2 times"),
    ],
)
def test_what_was_changed_after_the_build_is_not_shipped(tmp_path: Path, change: dict[str, bytes], said: str) -> None:
    with pytest.raises(BundleError, match=said):
        rebuild(tmp_path, "x", installed(), change)


class EngineWithOneImage:
    """Stands for an engine: all that is asked of it is the export."""

    def __init__(self, *layers: dict[str, bytes]) -> None:
        self._export = exported(*map(tarred, layers))

    def save(self, ref: str) -> Any:
        return self._export()


def test_what_the_image_compiled_is_shipped_only_where_it_runs(tmp_path: Path) -> None:
    asked = bundles.lock({"deepspeed": ("1.0", "ops", [native_file(tmp_path)])}, python="3.11")
    facts = load()
    info = ImageInfo(
        id="sha256:it", diff_ids=(), labels=(), env=(), architecture="amd64", os="linux", size=1, created="",
        repo_tags=(), repo_digests=(),
    )  # fmt: skip
    engine = cast(Engine, EngineWithOneImage(installed()))
    for release, runs in (("el8", False), ("el9", True)):
        (tmp_path / release).mkdir()
        limits = shipping.limits_of(facts, release)
        own, note = shipping.own_wheels(engine, info, asked, limits, tmp_path / release)
        assert set(own) == ({"deepspeed"} if runs else set())
        assert ("put together again" if runs else "needs GLIBC_2.34, newer than the target") in note
    with pytest.raises(InputError, match="solaris"):
        shipping.limits_of(facts, "solaris")


def native_file(folder: Path) -> Path:
    path = folder / "archive"
    path.write_bytes(b"sources")
    return path
