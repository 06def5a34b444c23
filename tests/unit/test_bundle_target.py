"""The description of a host: what is read of it, and that no bytes at all make the reader stumble."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.bundle import target
from envbuild.errors import InputError

LINES = [
    "envbuild-target\t1", "name\tlogin", "os_id\trhel", "os_like\tfedora", "os_version\t8.8", "os_name\tRed Hat 8.8",
    "platform\tplatform:el8", "arch\tx86_64", "kernel\t4.18.0", "fips\tyes", "python\t3.6.8\t/usr/bin/python3",
    "key\tfd431d51\t4ae0493b", "module\tpython39\t3.9\tenabled",
    "package\tlibaio\t0\t0.3.112\t1.el8\tx86_64",
    "provides\t8\t0.3.112-1.el8\tlibaio(x86-64)", "provides\t0\t\tlibaio.so.1(LIBAIO_0.4)(64bit)",
    "requires\t16384\t\trtld(GNU_HASH)", "file\t/etc/libaio.conf",
    "package\tbash\t2\t4.4\t1.el8\tx86_64",
    "requires\t16396\t1:2.0\t(glibc >= 2.0 if x)", "conflicts\t2\t3\told", "obsoletes\t10\t1-1\tolder",
]  # fmt: skip


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in [*lines, f"end\t{len(lines)}"]).encode()


def test_everything_a_solver_needs() -> None:
    host = target.parse(text(LINES), "x.txt", "x")
    assert (host.name, host.os_id, host.os_version, host.major, host.arch, host.fips) == (
        "login", "rhel", "8.8", "8", "x86_64", True,
    )  # fmt: skip
    bash, libaio = host.packages
    assert (bash.nevra, libaio.nevra) == ("bash-2:4.4-1.el8.x86_64", "libaio-0.3.112-1.el8.x86_64")
    assert [str(each) for each in libaio.provides] == [
        "libaio(x86-64) = 0.3.112-1.el8",
        "libaio.so.1(LIBAIO_0.4)(64bit)",
    ]
    assert [str(each) for each in (*bash.requires, *bash.conflicts, *bash.obsoletes)] == [
        "(glibc >= 2.0 if x) >= 1:2.0", "old < 3", "older <= 1-1",
    ]  # fmt: skip
    assert libaio.files == ("/etc/libaio.conf",) and bash.files == ()
    assert host.modules == (target.ModuleStream(name="python39", stream="3.9", state="enabled"),)
    assert host.pythons == (("3.6.8", "/usr/bin/python3"),) and host.keys == ("fd431d51",)
    assert len(host.sha256) == 64


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], ":1: no description of a host"),
        ([LINES[0].replace("1", "2"), *LINES[1:]], ":1: no description of a host in form 1"),
        ([*LINES, "package\tx"], ":23: not understood: 'package'"),
        ([*LINES[:3], "file\t/etc/x"], ":4: not understood: 'file'"),
        ([*LINES, "requires\tmany\t1\tx"], ":23: not understood"),
        ([*LINES, "os_id\tother"], ":23: not understood: 'os_id'"),
        ([*LINES, "secret\tx"], ":23: not understood: 'secret'"),
        ([*LINES, "module\t../x\t1\tenabled"], ":23: not understood"),
        ([*LINES, "file\t/" + "x" * 20000], ":23: a line of 20006 characters"),
        ([line for line in LINES if not line.startswith("arch")], "does not say its arch"),
    ],
)
def test_what_is_no_description_is_told_with_its_line(lines: list[str], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as error:
        target.parse(text(lines) if lines else b"", "x.txt", "x")
    assert "collect-target.sh" in error.value.hint


def test_a_copy_that_was_cut_short_is_no_smaller_host() -> None:
    whole = text(LINES)
    for end in range(len(whole) - 1):
        with pytest.raises(InputError):
            target.parse(whole[:end], "x.txt", "x")


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(InputError):
        target.parse(data, "x", "x")


@given(st.lists(st.text(max_size=40).map(lambda each: each.replace("\n", "")), max_size=8))
def test_any_lines_in_the_frame_are_read_or_refused_in_words(lines: list[str]) -> None:
    with contextlib.suppress(InputError):
        target.parse(text([*LINES, *lines]), "x", "x")
