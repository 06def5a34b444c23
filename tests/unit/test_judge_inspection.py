"""Inspection as a whole, on small images of several layers: what was changed after the installation, what leaks."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.judge import inspection, secrets
from envbuild.judge.standards import Standards
from envbuild.model import Environment, Finding

SITE = "opt/venv/lib/python3.11/site-packages"
VARIABLES = {"PATH": "/opt/venv/bin:/usr/bin", "PYTHONNOUSERSITE": "1"}
LABELS = {"io.envbuild.environment": "cpu", "io.envbuild.target": "0" * 64}
ENV = Environment.model_validate(
    {
        "name": "cpu",
        "summary": "test",
        "accelerator": "cpu",
        "family": "debian",
        "base": {"image": "docker.io/library/debian:bookworm-slim"},
        "python": "3.11",
        "gcc": {"version": "12.2", "package": "gcc-12"},
        "torch": {"version": "2.13.0", "build": "cpu"},
        "deepspeed": {"version": "0.19.8", "ops": []},
        "requires": "cpu",
        "env": {"DEMO_API_KEY": "not-a-secret-at-all"},
        "sources": {},
    }
)
# The parts that are looked at here; what the modules say of themselves is the business of other tests.
OWN = {"content.record", "content.bytecode", "content.stray", "content.pip", "content.hooks", "content.labels",
       "content.secret", "content.usersite", "content.mode"}  # fmt: skip
INSIDE = {"environment": {"PYTHONNOUSERSITE": "1"}}
Files = Mapping[str, bytes]


def hash_of(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def package(name: str, version: str, files: Files, needs: Sequence[str] = ()) -> dict[str, bytes]:
    """An installed package as pip leaves it: its files, METADATA and RECORD."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {need}\n" for need in needs)
    recorded = {**files, f"{info}/METADATA": metadata.encode()}
    lines = [f"{path},{hash_of(data)},{len(data)}" for path, data in recorded.items()]
    lines += [f"{info}/RECORD,,", f"{name}/__pycache__/__init__.cpython-311.pyc,,"]
    return {f"{SITE}/{path}": data for path, data in {**recorded, f"{info}/RECORD": "\n".join(lines).encode()}.items()}


GOOD: dict[str, bytes] = {
    **package("torch", "2.13.0+cpu", {"torch/__init__.py": b"a = 1\n"}, ["sympy>=1.13.3", "triton; extra == 'x'"]),
    **package("sympy", "1.14.0", {"sympy/__init__.py": b"", "../../../bin/isympy": b"#!/bin/sh"}),
    f"{SITE}/torch/__pycache__/__init__.cpython-311.pyc": b"compiled",
    "opt/venv/bin/python": b"",
    "etc/hostname": b"box",
}
# The environment's folder is what paths outside of the packages' folder are relative to.
GOOD["opt/venv/bin/isympy"] = GOOD.pop(f"{SITE}/../../../bin/isympy")


def tar(members: Files, modes: Mapping[str, int] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), (modes or {}).get(name, 0o644)
            out.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def saved(layers: Sequence[Files], config: Mapping[str, Any], modes: Mapping[str, int] | None = None) -> io.BytesIO:
    packed = [tar(layer, modes) for layer in layers]
    rootfs = {"diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in packed]}
    names = [f"{number}/layer.tar" for number in range(len(packed))]
    members = dict(zip(names, packed, strict=True))
    members["config.json"] = json.dumps({**config, "rootfs": rootfs, "architecture": "amd64"}).encode()
    members["manifest.json"] = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    return io.BytesIO(tar(members))


def findings(
    *layers: Files,
    variables: Mapping[str, str] = VARIABLES,
    labels: Mapping[str, str] = LABELS,
    history: Sequence[str] = ("RUN true",),
    inside: Mapping[str, Any] = INSIDE,
    modes: Mapping[str, int] | None = None,
) -> list[Finding]:
    config = {
        "config": {"Env": [f"{name}={value}" for name, value in variables.items()], "Labels": dict(labels)},
        "history": [{"created_by": step} for step in history],
    }
    with tempfile.TemporaryDirectory() as scratch:
        looked = inspection.look(saved([GOOD, *layers], config, modes), ENV, Path(scratch))
        assert list(Path(scratch).iterdir()) == []
    json.dumps(looked.as_dict())
    return [finding for finding in inspection.judge(ENV, looked, inside, Standards()) if finding.rule in OWN]


def test_an_image_as_it_was_installed_has_nothing_to_tell() -> None:
    assert findings() == []
    assert findings({"etc/motd": b"hello"}, package("extra", "1.0", {"extra/__init__.py": b"x"})) == []


TORCH = f"{SITE}/torch/__init__.py"
INFO = f"{SITE}/torch-2.13.0+cpu.dist-info"
CHANGES: dict[str, tuple[Files, str, str]] = {
    "a file was edited": ({TORCH: b"a = 2\n"}, "content.record", TORCH),
    "a script was edited": ({"opt/venv/bin/isympy": b"#!/bin/bash"}, "content.record", "bin/isympy"),
    "a file was deleted": ({f"{SITE}/torch/.wh.__init__.py": b""}, "content.record", TORCH),
    "RECORD was deleted": ({f"{INFO}/.wh.RECORD": b""}, "content.record", "torch-2.13.0+cpu.dist-info"),
    "RECORD without hashes": ({f"{INFO}/RECORD": b"torch/__init__.py,,\n"}, "content.record", "no hash"),
    "RECORD with a weak hash": ({f"{INFO}/RECORD": b"torch/__init__.py,md5=x,6\n"}, "content.record", "SHA-256"),
    "compiled code was exchanged": (
        {f"{SITE}/torch/__pycache__/__init__.cpython-311.pyc": b"other"},
        "content.bytecode",
        "__init__.cpython-311.pyc",
    ),
    "a module that shadows": ({f"{SITE}/deepspeed.py": b"import os"}, "content.stray", "deepspeed.py"),
    "compiled code without a source": ({f"{SITE}/torch/nothing.pyc": b"x"}, "content.stray", "nothing.pyc"),
    "a hook at every start": ({f"{SITE}/sitecustomize.py": b"x"}, "content.hooks", "sitecustomize.py"),
    "a need of an older version": (
        {**package("sympy", "1.12", {"sympy/__init__.py": b""}), f"{SITE}/.wh.sympy-1.14.0.dist-info": b""},
        "content.pip",
        "sympy>=1.13.3, installed is 1.12",
    ),
    "a need that is not there": (package("extra", "1", {}, ["nothing>2"]), "content.pip", "nothing"),
    "a need that is none": (package("extra", "1", {}, ["a b c"]), "content.pip", "a b c"),
}


@pytest.mark.parametrize(("layer", "rule", "named"), CHANGES.values(), ids=CHANGES)
def test_what_a_later_layer_changes_is_named(layer: Files, rule: str, named: str) -> None:
    found = [finding for finding in findings(layer) if finding.rule == rule]
    assert found and all(finding.fix for finding in found)
    assert any(named in finding.message for finding in found)


def test_a_need_of_another_platform_or_extra_is_none() -> None:
    needs = ["nothing; sys_platform == 'win32'", "nothing; extra == 'gpu'", "nothing; python_version < '3.11'"]
    assert findings(package("extra", "1", {}, needs)) == []


def test_many_changed_files_make_few_findings() -> None:
    files = {f"many/{number}.py": b"x" for number in range(60)}
    original = package("many", "1", files)
    changed = {path: b"y" for path in original if path.endswith(".py")}
    found = findings(original, changed)
    assert len(found) == 6 and "55 more" in found[-1].message


TOKEN = "ghp_" + "a1B2" * 9
LEAKS: dict[str, tuple[dict[str, Any], str]] = {
    "in a variable": ({"variables": {**VARIABLES, "GITHUB": TOKEN}}, "GITHUB"),
    "in a variable by its name": ({"variables": {**VARIABLES, "HF_TOKEN": "abcdefgh"}}, "HF_TOKEN"),
    "in a label": ({"labels": {**LABELS, "source": f"https://u:{TOKEN}@git.example/x"}}, "source"),
    "in a build argument": ({"history": ["|1 PASSWORD=correct-horse /bin/sh -c make"]}, "step 1"),
    "in a command": ({"history": ["RUN true", "RUN pip install -i https://me:hunter22@index.example/"]}, "step 2"),
}


@pytest.mark.parametrize(("config", "place"), LEAKS.values(), ids=LEAKS)
def test_a_secret_in_the_config_is_found_and_not_repeated(config: dict[str, Any], place: str) -> None:
    found = findings(**config)
    assert [finding.rule for finding in found] == ["content.secret"]
    assert place in found[0].message
    assert not any(word in found[0].message for word in (TOKEN, "abcdefgh", "correct-horse", "hunter22"))


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("root/.netrc", b"machine index.example login me password hunter22"),
        ("etc/pip.conf", b"[global]\nindex-url = https://me:hunter22@index.example/simple\n"),
        ("workspace/key.pem", b"-----BEGIN OPENSSH PRIVATE KEY-----\nx"),
        ("workspace/notes.txt", b"token: " + TOKEN.encode()),
        ("root/.docker/config.json", b'{"auths": {"r.example": {"auth": "eDp5"}}}'),
        ("run/secrets/pip", b"[global]"),
        # Where files are looked at for other reasons too.
        ("usr/local/app/settings.ini", b"token: " + TOKEN.encode()),
        ("opt/venv/.netrc", b"machine index.example login me password hunter22"),
        ("usr/lib/.git-credentials", b"https://me:hunter22@git.example"),
        # What an RPM system keeps them in.
        ("etc/yum.repos.d/site.repo", b"[site]\nbaseurl=https://me:hunter22@rpm.example/8\n"),
        ("etc/yum.repos.d/site.repo", b"[site]\nusername = me\npassword = hunter22\n"),
        ("etc/dnf/dnf.conf", b"[main]\nproxy_password=hunter22\n"),
        ("etc/dnf/vars/sitepassword", b"hunter22\n"),
        ("etc/rhsm/rhsm.conf", b"proxy_password = hunter22\n"),
        ("etc/pki/entitlement/123-key.pem", b"-----BEGIN RSA PRIVATE KEY-----"),
        ("etc/pki/entitlement/123.pem", b"-----BEGIN CERTIFICATE-----"),
        ("var/lib/dnf/history.sqlite", b"SQLite format 3\0\0" + b"install --setopt=proxy_password=hunter22 gcc"),
        ("var/lib/yum/history/history-1.sqlite", b"SQLite format 3\0\0" + bytes(1 << 19) + b"https://me:hunter22@a.b/"),
        ("var/cache/dnf/site-123/mirrorlist", b"https://me:hunter22@rpm.example/8/\n"),
    ],
)
def test_a_secret_in_a_layer_is_found_even_when_it_was_deleted_later(path: str, data: bytes) -> None:
    folder, _, name = path.rpartition("/")
    for layers in ([{path: data}], [{path: data}, {f"{folder}/.wh.{name}": b""}]):
        found = findings(*layers)
        assert [finding.rule for finding in found] == ["content.secret"]
        assert path in found[0].message and "hunter22" not in found[0].message


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("etc/pip.conf", b"[global]\nindex-url = https://index.example/simple\n"),
        ("root/.npmrc", b"registry=https://npm.example/\n"),
        ("root/.docker/config.json", b"{}"),
        ("run/secrets/pip", b""),
        ("usr/share/doc/examples/key.pem", b"-----BEGIN PRIVATE KEY-----"),
        ("workspace/data.bin", b"\0\0" + TOKEN.encode()),
        ("etc/ssh/sshd_config", b"PermitRootLogin no"),
        ("etc/yum.repos.d/site.repo", b"[site]\nbaseurl=https://rpm.example/$releasever\n#password=example\n"),
        ("etc/yum.repos.d/site.repo", b"[site]\nusername=$user\npassword=$password\n"),
        ("etc/rhsm/rhsm.conf", b"proxy_user =\nproxy_password =\nca = %(ca_dir)s/x\n"),
        ("var/lib/dnf/history.sqlite", b"SQLite format 3\0\0install gcc-toolset-11-gcc"),
    ],
)
def test_what_only_looks_like_one_is_left_alone(path: str, data: bytes) -> None:
    assert findings({path: data}) == []


def test_what_the_row_itself_sets_is_no_secret() -> None:
    history = ['ENV DEMO_API_KEY="not-a-secret-at-all"', "RUN TOKEN=$TOKEN make", "RUN PASSWORD=/run/secrets/x make"]
    assert findings(variables={**VARIABLES, "DEMO_API_KEY": "not-a-secret-at-all"}, history=history) == []


def test_labels_that_lie() -> None:
    found = findings(labels={**LABELS, "io.envbuild.environment": "h200-cu130"})
    assert [finding.rule for finding in found] == ["content.labels"] and "h200-cu130" in found[0].message
    assert [finding.rule for finding in findings(labels={"io.envbuild.target": "mine"})] == ["content.labels"]
    assert findings(labels={}) == []


def test_a_home_must_not_reach_into_the_image() -> None:
    home = {"root/.local/lib/python3.11/site-packages/torch-2.9.0.dist-info/METADATA": b"Name: torch\n"}
    found = findings(home, variables={"PATH": VARIABLES["PATH"]})
    assert [finding.rule for finding in found] == ["content.usersite"]
    assert findings(home) == []  # it is there, and not heeded
    assert [finding.rule for finding in findings(inside={"environment": {}})] == ["content.usersite"]


def test_only_small_files_that_nobody_else_owns_are_searched() -> None:
    assert secrets.looks_secret("workspace/a", 10)
    assert not secrets.looks_secret("workspace/a", secrets.LARGEST + 1)
    assert not secrets.looks_secret(f"{SITE}/torch/a.py", 10)
    assert secrets.looks_secret(f"{SITE}/.netrc", 10)


STDLIB = "usr/lib/python3.11"
INFO_FOLDER = "var/lib/dpkg/info"


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


SYSTEM: dict[str, bytes] = {
    f"{STDLIB}/argparse.py": b"import sys\n",
    f"{STDLIB}/__pycache__/argparse.cpython-311.pyc": b"compiled",
    "etc/python3.11/sitecustomize.py": b"# install the apport exception handler if available\n",
    "usr/lib/x86_64-linux-gnu/libz.so.1.2.13": b"\x7fELF not quite",
    "usr/bin/tool": b"#!/bin/sh",
    f"{INFO_FOLDER}/libpython.md5sums": f"{md5(b'import sys' + chr(10).encode())}  {STDLIB}/argparse.py\n".encode(),
    # As it was before /lib became a part of /usr; and a manual page that a slim image leaves out.
    f"{INFO_FOLDER}/zlib1g:amd64.md5sums": (
        f"{md5(bytes([0x7F]) + b'ELF not quite')}  usr/lib/x86_64-linux-gnu/libz.so.1.2.13\n"
        f"{'0' * 32}  usr/share/man/man3/zlib.3.gz\n"
    ).encode(),
    f"{INFO_FOLDER}/zlib1g:amd64.list": b"/.\n/lib/x86_64-linux-gnu/libz.so.1.2.13\n",
    f"{INFO_FOLDER}/libpython.list": f"/{STDLIB}/argparse.py\n/{STDLIB}/sitecustomize.py\n".encode(),
    "var/lib/dpkg/status": (
        "Package: libpython\nStatus: install ok installed\nConffiles:\n /etc/python3.11/sitecustomize.py "
        + md5(b"# install the apport exception handler if available\n")
        + "\n /etc/motd "
        + "0" * 32
        + "\n\n"
    ).encode(),
    "etc/motd": b"changed, as configuration is",
}
SYSTEM_RULES = {"content.system", "content.hooks", "content.bytecode"}


def system_findings(*layers: Files) -> list[Finding]:
    config = {"config": {"Env": [f"{name}={value}" for name, value in VARIABLES.items()], "Labels": dict(LABELS)}}
    with tempfile.TemporaryDirectory() as scratch:
        looked = inspection.look(saved([GOOD, SYSTEM, *layers], config), ENV, Path(scratch))
    assert looked.system.known and looked.system.files == 3 and looked.system.problems == ()
    found = inspection.judge(ENV, looked, INSIDE, Standards())
    return [finding for finding in found if finding.rule in SYSTEM_RULES]


def test_a_system_as_it_was_installed_has_nothing_to_tell() -> None:
    assert system_findings() == []
    assert system_findings({f"{STDLIB}/__pycache__/new.cpython-311.pyc": b"x", "usr/local/lib/libown.so": b"x"}) == []


@pytest.mark.parametrize(
    ("layer", "rule", "named"),
    [
        ({f"{STDLIB}/argparse.py": b"import sys\nimport os\n"}, "content.system", "argparse.py is not the file"),
        ({f"{STDLIB}/shadow.py": b""}, "content.system", "shadow.py belongs to no package"),
        ({"usr/lib/x86_64-linux-gnu/libz.so.1.2.13": b"\x7fELF other"}, "content.system", "libz.so.1.2.13"),
        ({"usr/lib/x86_64-linux-gnu/libwide.so": b""}, "content.system", "libwide.so belongs to no package"),
        ({"etc/python3.11/sitecustomize.py": b"import os\n"}, "content.hooks", "python3.11/sitecustomize.py"),
        ({f"{STDLIB}/usercustomize.py": b"import os\n"}, "content.hooks", "usercustomize.py"),
        ({f"{STDLIB}/__pycache__/argparse.cpython-311.pyc": b"other"}, "content.bytecode", "argparse"),
    ],
)
def test_what_is_changed_in_the_system_is_named(layer: Files, rule: str, named: str) -> None:
    found = system_findings(layer)
    assert [finding.rule for finding in found] == [rule] and named in found[0].message


def test_a_start_up_file_that_runs_code_is_named_whoever_owns_it() -> None:
    for text, rules in ((b"import os; os.x\n", ["content.hooks"]), (b"# a folder\n../lib\n", [])):
        found = findings(package("deepspeed", "0.19.8", {"speed.pth": text}))
        assert [finding.rule for finding in found] == rules
        assert all("speed.pth" in finding.message for finding in found)
    assert findings(package("setuptools", "84", {"distutils-precedence.pth": b"import os; var = 1\n"})) == []


def test_what_an_ordinary_user_cannot_read_is_named() -> None:
    found = findings({TORCH: b"a = 1\n"}, modes={TORCH: 0o600})
    assert [finding.rule for finding in found] == ["content.mode"] and TORCH in found[0].message
