"""Families: real names, absolute paths, and nothing that a distribution does not have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from envbuild import facts, matrix, plan, project
from envbuild.errors import InputError
from envbuild.facts import Facts
from envbuild.matrix.rules import check
from envbuild.model import Environment, Lock
from envbuild.plan.families import FAMILIES, compiler
from envbuild.render import render
from envbuild.site import apt, rpm

FACTS = facts.load()
OWN = project.find(None, Path("/"))
ROWS = matrix.load(OWN.matrix)
IMAGES = {
    "bookworm": ("debian", "debian:bookworm", "gcc-12"),
    "trixie": ("debian", "debian:trixie", "gcc-14"),
    "focal": ("ubuntu", "ubuntu:20.04", "gcc-9"),
    "jammy": ("ubuntu", "ubuntu:22.04", "gcc-11"),
    "noble": ("ubuntu", "ubuntu:24.04", "gcc-13"),
    "el8": ("rocky8", "a-mirror.example/anything:1", "gcc-toolset-11-gcc"),
    "el9": ("rhel9", "registry.access.redhat.com/ubi9/ubi:9.4", "gcc-toolset-12-gcc"),
    "centos7": ("centos7", "docker.io/library/centos:7", "devtoolset-9-gcc"),
}


def locked(env: Environment) -> Lock:
    """A lock with one package a group."""
    names = {"pip": "tools", "torch": "torch", "numpy": "deps", "deepspeed": "ops", "cuda-toolkit": "toolkit"}
    document = {
        "environment": env.name, "platform": "linux/amd64", "python": env.python, "resolver": "uv 1",
        "inputs": f"sha256:{'a' * 64}",
        "packages": [
            {"name": name, "version": "1.0", "group": group, "hashes": [f"sha256:{'c' * 64}"]}
            for name, group in names.items()
        ],
    }  # fmt: skip
    return Lock.model_validate(document)


def made(env: Environment, known: Facts = FACTS) -> plan.Plan:
    return plan.make(env, locked(env), known)


def row(family: str, image: str, gcc: str, python: str, **changes: Any) -> Environment:
    document = ROWS.get("a100-cu118").model_dump(mode="json") | {
        "family": family,
        "base": {"image": image, "toolkit_image": "docker.io/nvidia/cuda:11.8.0-devel-rockylinux8"},
        "gcc": {"version": "11.2", "package": gcc},
        "python": python,
    }
    return Environment.model_validate({**document, **changes})


@pytest.mark.parametrize("name", list(ROWS.environments))
def test_shipped_rows_ask_for_packages_that_their_distribution_really_has(name: str) -> None:
    env = ROWS.get(name)
    wanted = made(env)
    suite = env.base.bootstrap.suite if env.base.bootstrap else None
    known = FACTS.packages_of(env.family, env.base.image, suite)
    assert known, "the facts know the release of every shipped row"
    asked = {*wanted.packages, *wanted.op_packages, *wanted.key_packages} - set(env.packages)
    assert asked <= known.names(), sorted(asked - known.names())


@pytest.mark.parametrize("release", IMAGES)
def test_so_does_every_release_with_every_python_it_has(release: str) -> None:
    known = FACTS.packages[release]
    for python in known.pythons:
        wanted = made(row(*IMAGES[release], python, fabric="verbs"))
        asked = {*wanted.packages, *wanted.op_packages, *wanted.key_packages}
        assert asked <= known.names(), sorted(asked - known.names())
        assert any("libaio" in package for package in wanted.op_packages), "an op with packages is part of the row"
        assert wanted.python_program.endswith(f"/python{python}")
    assert set(FACTS.packages) == set(IMAGES) == set(FACTS.releases)


@pytest.mark.parametrize(
    ("family", "gcc", "cxx_package", "folder", "cxx"),
    [
        ("debian", "gcc-12", "g++-12", "/usr/bin", "g++-12"),
        ("rocky8", "gcc", "gcc-c++", "/usr/bin", "g++"),
        ("rhel8", "gcc-toolset-11-gcc", "gcc-toolset-11-gcc-c++", "/opt/rh/gcc-toolset-11/root/usr/bin", "g++"),
        ("rhel9", "gcc-toolset-13-gcc", "gcc-toolset-13-gcc-c++", "/opt/rh/gcc-toolset-13/root/usr/bin", "g++"),
        ("centos7", "devtoolset-9-gcc", "devtoolset-9-gcc-c++", "/opt/rh/devtoolset-9/root/usr/bin", "g++"),
    ],
)
def test_compilers_are_used_by_their_path(family: str, gcc: str, cxx_package: str, folder: str, cxx: str) -> None:
    python = {"debian": "3.11", "centos7": "3.8"}.get(family, "3.9")
    env = row(family, "debian:bookworm" if family == "debian" else "any", gcc, python)
    found, wanted = compiler(env), made(env)
    assert found.packages == (gcc, cxx_package) and set(found.packages) <= set(wanted.packages)
    assert (wanted.cc, wanted.cxx) == (f"{folder}/{cxx.replace('g++', 'gcc')}", f"{folder}/{cxx}")
    variables, ops = dict(wanted.env), dict(wanted.ops_env)
    own = folder if folder.startswith("/opt/rh") else None
    assert variables.get("COMPILER_PATH") == ops.get("COMPILER_PATH") == own, "as and ld of the toolset"
    assert (variables["CC"], variables["CXX"], variables["CUDAHOSTCXX"]) == (wanted.cc, wanted.cxx, wanted.cxx)
    assert "/opt/rh" not in variables["PATH"] and "LD_LIBRARY_PATH" not in variables, "enabled for nobody else"
    text = render(wanted, OWN.templates).files["Dockerfile"].decode()
    assert not re.search(r"scl enable|scl_source|/etc/profile", text)


@pytest.mark.parametrize(
    ("family", "gcc", "said"),
    [("rocky8", "gcc-12", "gcc-toolset-N-gcc or gcc"), ("centos7", "gcc-toolset-11-gcc", "devtoolset-N-gcc or gcc"),
     ("debian", "devtoolset-9-gcc", "gcc-12")],
)  # fmt: skip
def test_a_compiler_of_another_family_is_refused(family: str, gcc: str, said: str) -> None:
    with pytest.raises(InputError, match=f"the family {family} has no '{gcc}'") as caught:
        made(row(family, "any", gcc, "3.8"))
    assert said in caught.value.hint


@pytest.mark.parametrize(
    ("release", "python", "has"),
    [
        ("el8", "3.10", "3.8, 3.9, 3.11, 3.12"),
        ("centos7", "3.11", "3.8"),
        ("jammy", "3.11", "3.10"),
        ("bookworm", "3.12", "3.11"),
    ],
)
def test_a_python_that_the_distribution_lacks_is_told_before_any_build(release: str, python: str, has: str) -> None:
    env = row(*IMAGES[release], python)
    with pytest.raises(InputError, match=f"has no Python {python}") as caught:
        made(env)
    assert f"It has {has};" in caught.value.hint
    findings = [finding for finding in check(env, FACTS) if finding.rule == "PKG"]
    assert [finding.severity.value for finding in findings] == ["error"]
    assert has.replace(", ", " or ") in findings[0].fix


def test_the_pkg_rule_is_content_with_what_is_there_and_says_what_it_cannot_know() -> None:
    assert [f for env in ROWS.environments.values() for f in check(env, FACTS) if f.rule == "PKG"] == []
    unknown = [f for f in check(row("debian", "debian:sid", "gcc-12", "3.11"), FACTS) if f.rule == "PKG"]
    assert [finding.severity.value for finding in unknown] == ["warning"]
    assert made(row("debian", "debian:sid", "gcc-12", "3.11")).python_program == "/usr/bin/python3.11"


def test_renamed_packages_are_asked_for_by_their_new_name() -> None:
    trixie = made(row(*IMAGES["trixie"], "3.13", fabric="verbs")).packages
    assert {"libaio1t64", "librdmacm1t64"} <= set(trixie) and not {"libaio1", "librdmacm1"} & set(trixie)
    own = row(*IMAGES["trixie"], "3.13", packages=["libaio1"])
    assert "libaio1" in made(own).packages, "a row's own packages are taken as they are"


def test_centos_7_has_its_repositories_and_keys_and_a_library_to_tell_the_loader_of() -> None:
    wanted = made(ROWS.get("v100-cu113"))
    text = render(wanted, OWN.templates).files["Dockerfile"].decode()
    assert "gpgcheck=0" not in text and text.count("gpgcheck=1 gpgkey=file:///etc/pki/rpm-gpg/") == 8
    assert {repository.gpgkey for repository in wanted.repositories} == set(rpm.FAMILIES["centos7"])
    assert wanted.library_folders == ("/opt/rh/rh-python38/root/usr/lib64",)
    assert made(row(*IMAGES["el8"], "3.11")).repositories == ()


def test_evidence_is_no_part_of_what_is_built() -> None:
    """Another note or date beside a package's name rebuilds nothing."""
    env = ROWS.get("v100-cu113")
    centos7 = FACTS.packages["centos7"]
    base = centos7.repositories["base"].model_copy(update={"note": "seen", "mark": "verified"})
    python = centos7.pythons["3.8"].model_copy(update={"note": "seen"})
    seen = centos7.model_copy(
        update={"repositories": {**centos7.repositories, "base": base}, "pythons": {"3.8": python}}
    )
    known = FACTS.model_copy(update={"packages": {**FACTS.packages, "centos7": seen}})
    assert made(env, known).canonical() == made(env).canonical()


def test_the_site_knows_every_family() -> None:
    by_naming = {
        kind: {name for name, family in FAMILIES.items() if family.naming == kind} for kind in ("debian", "rhel")
    }
    assert by_naming == {"debian": set(apt.FAMILIES), "rhel": set(rpm.FAMILIES)}
    assert set(FAMILIES) == {family for release in FACTS.releases.values() for family in release.families}
