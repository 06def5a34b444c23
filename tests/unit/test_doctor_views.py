"""The answer as people meet it: on a terminal of any width, as a page, a ticket, JSON; from hostile facts too."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.cli.examined import Page, lines
from envbuild.cli.folding import fold
from envbuild.doctor.answers import answers, trouble
from envbuild.doctor.changes import Change
from envbuild.doctor.collection import Collection
from envbuild.doctor.layers import layers
from envbuild.doctor.order import groups
from envbuild.doctor.page import html
from envbuild.doctor.report import Report, Since, report
from envbuild.doctor.sizes import amount
from envbuild.doctor.text import count, line, moment
from envbuild.doctor.ticket import markdown
from envbuild.doctor.view import Check
from envbuild.model import Finding, Severity
from envbuild.pipeline.doctoring import Examined, document
from machines import gpu_machine, machine, view

CHECKS = tuple(
    Check(name=name, title=name, look=lambda view: (), explains=explains)
    for name, explains in (("libstdcxx", ("imports",)), ("imports", ()), ("shm", ()), ("numa", ()))
)
ROOT = Finding(
    rule="libstdcxx.shadowed", severity=Severity.ERROR, subject="cpu_adam.so", message="its C++ library is too old",
    why="cpu_adam is the optimizer of offload.", fix="Bring the C++ library of the environment up to GCC 13.",
    command="conda install -n train 'libstdcxx-ng>=13'", source="symbol versions of both files",
    evidence=tuple(f"/opt/conda/envs/train/lib/python3.11/site-packages/thing{n}.so asks for it" for n in range(8)),
)  # fmt: skip
ECHO = Finding(rule="imports.deepspeed", severity=Severity.ERROR, subject="deepspeed", message="is no import", fix="-")
LITTLE = Finding(rule="shm", severity=Severity.WARNING, subject="/dev/shm", message="64 MiB is little", source="Docker")
NOTE = Finding(rule="numa", severity=Severity.INFO, subject="NUMA", message="there are two nodes")
CHANGES = (
    Change(
        kind="loader", name="libstdc++.so.6", old="/usr/lib/a (1)", new="/opt/conda/lib/b (2)", note="by a variable"
    ),
    *(Change(kind="python package", name=f"package-{n}", old="1.0", new=None) for n in range(20)),
    Change(kind="package transaction", name="dpkg", old=None, new="2026-11-30 upgrade libaio1"),
    Change(kind="import", name="import torch", old="works", new="fails: ImportError"),
)
BOTH = [ECHO, NOTE, LITTLE, ROOT]


def made(
    findings: list[Finding], collection: Collection | None = None, *, changes: tuple[Change, ...] | None = None
) -> Report:
    collection = collection or gpu_machine()
    since = None
    if changes is not None:
        fresh = frozenset({(ROOT.rule, ROOT.subject)})
        since = Since(taken="2026-11-29T08:00:00Z", changes=changes, strangers=("another CPU: a then",), fresh=fresh)
    return report(
        collection, groups(findings, CHECKS), layers=layers(view(collection)), answers=answers(collection), looked=31,
        since=since, unanswered=trouble(collection),
    )  # fmt: skip


def shown(told: Report, width: int = 80, **page: Any) -> str:
    return "\n".join(lines(told, Page(width=width, **page)))


# --- the terminal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_nothing_is_wider_than_the_terminal_but_what_is_there_to_be_copied(width: int, verbose: bool) -> None:
    told = lines(made(BOTH, changes=CHANGES), Page(width=width, verbose=verbose))
    wide = [each for each in told if len(each) > width]
    assert all(each.lstrip().startswith("$ ") for each in wide), wide
    assert any("$ conda install -n train 'libstdcxx-ng>=13'" in each for each in told)


@given(
    st.lists(st.text("ab/", min_size=1, max_size=60), max_size=12), st.integers(20, 60), st.integers(0, 8),
    st.integers(0, 8),
)  # fmt: skip
def test_folded_text_loses_no_letter_and_fits(words: list[str], width: int, first: int, rest: int) -> None:
    told = fold(" ".join(words), width, " " * first, " " * rest)
    assert all(len(each) <= width for each in told)
    assert "".join("".join(told).split()) == "".join(words)


def test_a_path_is_broken_behind_a_slash_and_only_when_no_line_holds_it() -> None:
    assert fold("see /usr/lib/x86_64/libstdc++.so.6", 30) == ["see", "/usr/lib/x86_64/libstdc++.so.6"]
    assert fold("see /opt/venv/lib/python3.11/site-packages/torch", 24) == [
        "see /opt/venv/lib/", "python3.11/", "site-packages/torch",
    ]  # fmt: skip
    # The line is full to its last column when the long word comes.
    assert fold(f"{'a' * 20} {'b' * 25}", 20) == ["a" * 20, "b" * 20, "b" * 5]
    assert fold("", 20, "x ") == ["x"]


def test_the_root_comes_first_with_all_that_is_needed_and_its_echo_is_one_line_under_it() -> None:
    text = shown(made(BOTH), 120)
    assert re.search(r"(?m)^1\. error cpu_adam\.so: its C\+\+ library is too old", text)
    for label, words in (("why", "cpu_adam is"), ("fix", "Bring the"), ("source", "symbol versions of both files [")):
        assert re.search(rf"(?m)^    {label} +{re.escape(words)}", text), label
    assert re.search(r"(?m)^    so also +deepspeed: is no import \[imports\.deepspeed\]$", text)
    assert all(f"thing{n}" in text for n in (0, 2, 5, 7)) and "thing4" not in text and "... 2 more (-v)" in text
    assert text.index("1. error") < text.index("so also") < text.index("2. warning /dev/shm")
    assert "two nodes" not in text and "1 note is not shown (-v)" in text
    sums, first = text.splitlines()[-3], text.splitlines()[-1]
    assert sums == "31 checks: 1 error, 1 warning, 1 note, and 1 finding that should go away with it."
    assert first.startswith("Begin with number 1 (libstdcxx.shadowed): Bring the C++ library")


def test_everything_is_there_for_who_asks_for_it() -> None:
    text = shown(made(BOTH, changes=CHANGES), 100, verbose=True)
    assert "thing7" in text and "there are two nodes" in text and "libcublasLt.so.13" in text and "package-19" in text
    assert "not shown" not in text and "(-v)" not in text


def test_quiet_is_the_findings_alone() -> None:
    text = shown(made(BOTH), quiet=True)
    assert text.startswith("1. error") and "Compilers" not in text and text.splitlines()[-1]


def test_a_healthy_machine_is_told_in_few_words() -> None:
    told = shown(made([]))
    assert told.splitlines()[-1] == "31 checks: no error."
    assert "torch      2.11.0+cu130, built for CUDA 13.0, NCCL 2.28.9, sees a GPU" in told
    assert "GPU        2 x NVIDIA H200 (sm 9.0), driver 580.95.05, up to CUDA 13.0" in told
    assert re.search(r"libnccl\.so\.2 +/opt/venv/\S+\n? +\S*.*2\.28\.9", told)
    assert "RPATH, RUNPATH: folders that are written" in told, "no word without its explanation"
    assert "libcublas" not in told, "what is as it should be is not worth a line"


def test_what_changed_comes_before_the_findings_likeliest_first_and_new_ones_are_marked() -> None:
    text = shown(made(BOTH, changes=CHANGES), 100)
    assert text.index("Since the snapshot of 2026-11-29 08:00 UTC") < text.index("1. new error cpu_adam.so")
    assert "take care: another CPU: a then" in text
    assert text.index("loaded library libstdc++.so.6: /usr/lib/a (1) -> /opt/conda/lib/b (2)") < text.index("package-0")
    assert "package-0: 1.0 -> (gone)" in text and "package-19" not in text and "more changes, less likely (-v)" in text
    assert "and so import torch: works -> fails: ImportError" in text, (
        "the effect is told however many causes there are"
    )


def test_a_terminal_of_ascii_gets_ascii() -> None:
    odd = gpu_machine(interpreter={"executable": "/home/müller/環境/bin/python"})
    told = lines(made(BOTH, odd), Page(width=60, encoding="ascii"))
    assert "".join(told).isascii() and max(map(len, told)) <= 62
    assert "/home/müller/環境/bin/python" in shown(made(BOTH, odd))


def test_a_machine_of_which_nothing_is_known_is_told_all_the_same() -> None:
    nothing = Collection.model_validate({"schema": "envbuild.collection/1", "taken": ""})
    told = made([], nothing)
    text = shown(told)
    assert "torch      unknown" in text and "none was examined" in text and "no interpreter was recorded" in text
    assert text.splitlines()[0] == "this machine" and "none was examined" in markdown(told) + html(told, nothing)


# --- hostile facts ----------------------------------------------------------------------------------------------------

EVIL = (
    "<script>alert(1)</script>\x1b[2J\x1b]0;title\x07\u202e\x9b31m\r\n# heading\n"
    "| a | `b` | [x](http://evil) \" ' & </pre></details>"
)


def hostile() -> tuple[Report, Collection]:
    collection = gpu_machine(
        image=EVIL, taken=EVIL,
        machine={"distribution": {"name": EVIL}, "kernel": EVIL, "cpu": {"model": "x" * 1_000_000}},
        environment={EVIL: EVIL}, errors=[{"part": EVIL, "error": EVIL}], torch={"error": EVIL, "ok": False},
        interpreter={"executable": EVIL},
    )  # fmt: skip
    bad = dataclasses.replace(
        ROOT, subject=EVIL, message=EVIL, why=EVIL, fix=EVIL, command=f"echo {EVIL}", evidence=(EVIL,), source=EVIL
    )
    change = Change(kind="loader", name=EVIL, old=EVIL, new=EVIL, note=EVIL)
    return made([bad, ECHO], collection, changes=(change,)), collection


def test_no_control_character_reaches_a_terminal() -> None:
    told, _ = hostile()
    for verbose in (False, True):
        for each in lines(told, Page(width=80, verbose=verbose)):
            assert all(character.isprintable() for character in each), repr(each)
    assert len(shown(told)) < 50_000, "a string of a million letters is cut"


class Reader(HTMLParser):
    """Holds a page to be well formed, and to nothing but its own elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on") and name not in ("style", "src", "srcdoc"), (tag, name)
            self.links += [value or ""] if name == "href" else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_carries_hostile_facts_as_text() -> None:
    told, collection = hostile()
    for page in (html(told, collection), html(made(BOTH, changes=CHANGES), gpu_machine()), html(made([]), machine())):
        reader = Reader()
        reader.feed(page)
        reader.close()
        assert reader.open == [], "every element is closed"
        assert not reader.tags & {"script", "img", "link", "iframe", "object", "form", "a b"}, reader.tags
        assert all(link.startswith("#") for link in reader.links)
        assert "default-src 'none'" in page and "http://evil" not in "".join(reader.links)
        assert all(each.isprintable() or each == "\n" for each in page)
    reader = Reader()
    reader.feed(html(told, collection))
    assert "<script>alert(1)</script>" in reader.text, "and it can be read"


def test_a_page_has_everything_and_the_raw_facts_folded() -> None:
    page = html(made(BOTH, changes=CHANGES), gpu_machine())
    for words in (
        "Begin with number 1",
        "thing7",
        "two nodes",
        "package-19",
        "libcublasLt.so.13",
        "take care",
        "GLIBCXX",
    ):
        assert words.lower() in page.lower(), words
    assert page.count("<details") > 8 and "prefers-color-scheme: dark" in page and "@media print" in page
    assert "&#34;nvidia-cudnn-cu13&#34;" in page, "a package that no finding names is among the facts"
    assert "<details open" not in page


def test_a_ticket_is_held_together_whatever_the_facts_say() -> None:
    told, _ = hostile()
    text = markdown(told)
    # A command stands in a block of code, as it is.
    prose = "\n".join(each for each in text.splitlines() if not each.startswith("    "))
    assert "<script" not in prose.replace("\\<", "") and "    echo <script>" in text
    assert all(each.isprintable() for each in text.replace("\n", ""))
    headings = [each for each in prose.splitlines() if each.startswith("#") and not each.startswith("###")]
    assert [re.split(r":| \d| <| \\", each)[0] for each in headings] == [
        "# envbuild doctor", "## What changed since", "## Findings", "## Compilers", "## Libraries",
        "## Could not be looked at",
    ]  # fmt: skip
    assert "\\[x\\](http" in text and not re.search(r"(?<!\\)\[x\]", prose)


def test_a_ticket_says_what_the_terminal_says() -> None:
    text = markdown(made(BOTH, changes=CHANGES))
    assert text.index("## What changed since") < text.index("### 1. New. Error: cpu_adam.so") < text.index("### 2.")
    assert "    conda install -n train 'libstdcxx-ng>=13'" in text
    assert "Should go away with it:\n\n- deepspeed: is no import (imports.deepspeed)" in text
    assert "GLIBCXX_3.4.30" in text, "an underscore inside of a word needs no escape"


# --- JSON and words ---------------------------------------------------------------------------------------------------


def test_the_document_has_findings_in_reading_order_and_no_raw_facts() -> None:
    told = made(BOTH, changes=CHANGES)
    payload = json.loads(json.dumps(document(Examined(collection=gpu_machine(), report=told))))
    assert [each["rule"] for each in payload["findings"]] == ["libstdcxx.shadowed", "imports.deepspeed", "shm", "numa"]
    assert payload["findings"][1]["explained_by"] == "libstdcxx.shadowed"
    assert [each["new"] for each in payload["findings"]] == [True, False, False, False]
    assert payload["machine"]["torch"].startswith("2.11.0+cu130")
    assert payload["changes"][0]["kind"] == "loader" and payload["since"]["strangers"]
    assert {each["name"] for each in payload["layers"]} >= {"compiler", "torch", "op", "runtime"}
    assert '"files"' not in json.dumps(payload) and len(json.dumps(payload)) < 50_000
    assert "changes" not in document(Examined(collection=gpu_machine(), report=made([])))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("a\n b\tc", "a b c"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("x\u202ey\x00", "x?y?"),
        ("é 環", "é 環"),
        ("a" * 9, "aaaaa..."),
    ],
)
def test_a_line_is_one_line(given: str, text: str) -> None:
    assert line(given, 8) == text


def test_amounts_and_times_are_words() -> None:
    assert [amount(each) for each in (0, 1023, 64 << 20, 3 << 29, 1 << 40)] == [
        "0 B",
        "1023 B",
        "64 MiB",
        "1.5 GiB",
        "1 TiB",
    ]
    assert (
        count(1, "error") == "1 error"
        and count(2, "error") == "2 errors"
        and count(0, "note is", "notes are")[0] == "0"
    )
    assert moment("2026-11-30T10:00:00Z") == moment("2026-11-30T10:00:00.123+00:00") == "2026-11-30 10:00 UTC"
    assert moment("\x1b[2Jnow") == "now"
