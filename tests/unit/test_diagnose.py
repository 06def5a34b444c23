"""The engine of diagnose: what it finds, where, what it makes of it, and that no input is too strange."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild import project
from envbuild.diagnose import Diagnosis, diagnose, diagnose_text, library, load, search
from envbuild.diagnose.signature import loose
from envbuild.errors import InputError
from envbuild.project import Project
from noise import noisy

REPOSITORY = Path(__file__).parents[2]
ERROR = (
    "ImportError: /opt/conda/lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by "
    "/root/.cache/torch_extensions/py310_cu121/cpu_adam/cpu_adam.so)"
)
KIND = "libstdcxx-symbol-missing"
SIGNATURES = """
- kind: library-too-old
  title: a library is too old
  patterns:
    - regex: "lib: version [`'](?P<version>\\\\w+_[0-9.]+)' not found(?: \\\\(required by (?P<asker>[^)]+)\\\\))?"
      anchors: ["lib: version `"]
  explains: [left-over]
  derive: [gcc_of_symbol]
  answers: [{cause: "{asker} wants {version} of GCC {gcc}.", fix: ["Compile {asker} again."], command: "rm {asker}"},
            {cause: "Something wants {version}.", fix: ["Look closer."]}]
  source: test
  examples: {positive: ["lib: version `GLIBCXX_3.4.30' not found"], negative: ["lib: version found"]}
- kind: bad-table
  title: a table of two lines
  patterns: [{regex: "table:\\\\n +rank: (?P<rank>\\\\d+)\\\\n +code: (?P<code>\\\\d+)", anchors: ["table:"], lines: 3}]
  certainty: likely
  answers: [{cause: "Rank {rank} ended with {code}.", fix: ["Look there."]}]
  source: test
  examples: {positive: ["table:\\n  rank: 1\\n  code: 2"], negative: ["table:"]}
- kind: silence
  title: nothing more comes
  patterns: [{regex: "waiting for the lock", anchors: ["waiting for the lock"], last: true, until: ["lock is mine"]}]
  certainty: likely
  answers: [{cause: "It waits.", fix: ["Delete the lock."]}]
  source: test
  examples: {positive: ["waiting for the lock"], negative: ["waiting"]}
- kind: left-over
  title: what a broken import leaves behind
  role: echo
  patterns: [{regex: "no attribute 'adam'", anchors: ["no attribute 'adam'"]}]
  source: test
  examples: {positive: ["no attribute 'adam'"], negative: ["attribute"]}
- kind: dead
  title: the process was ended
  certainty: weak
  patterns: [{regex: "^Killed$", anchors: ["Killed"]}]
  answers: [{cause: "Something ended it.", fix: ["Look at dmesg."]}]
  source: test
  examples: {positive: ["Killed"], negative: ["Killed 3 of 4"]}
"""
OLD = "E lib: version `GLIBCXX_3.4.30' not found (required by /data/op.so)"
PLACE = "step 1 loss 2.0\n"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with signatures of the tests' own, and nothing else's."""
    root = tmp_path_factory.mktemp("project")
    (root / "matrix.yaml").write_text((REPOSITORY / "matrix.yaml").read_text())
    (root / "signatures").mkdir()
    (root / "signatures" / "own.yaml").write_text(SIGNATURES)
    # Without the shipped ones, which know more and more of such lines.
    return replace(project.find(root, root), signatures=(root / "signatures",))


@pytest.fixture(scope="module")
def shipped() -> Project:
    return project.find(REPOSITORY, REPOSITORY)


def kinds(found: Diagnosis) -> list[str]:
    return [cause.kind for cause in found.causes]


# --- what a line is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        OLD, f"[rank0]: {OLD}", f"[default0]:{OLD}", f" 0: {OLD}", f"[1,0]<stderr>:{OLD}", f"node3: {OLD}",
        f"worker-0: {OLD}", f"(main pid=123, ip=10.0.0.1) {OLD}", f"Nov 30 10:00:00 host unit[12]: {OLD}",
        f"2026-11-30T10:00:00.123456789Z stderr F {OLD}", f"#8 12.34 {OLD}", f"\x1b[31m{OLD}\x1b[0m",
        f"\x1b]0;title\x07{OLD}", f"E1130 10:00:00.123 77 file.py:12] {OLD}", OLD.replace("`", "'"),
        OLD.replace("`", "‘").replace("'", "’"), json.dumps({"log": OLD + "\n", "stream": "stderr"}),
        json.dumps({"exc": f"Traceback\n  {OLD}\nend"}), repr(f"it's\n{OLD}\n"), f" 10%|# | 1/9\r 20%|## | 2/9\r{OLD}",
        OLD.replace(" lib:", "\0 lib:"),
            OLD.replace("lib: ", "\x1b[01;31m\x1b[Klib: \x1b[m\x1b[K"), "x" * 5_000_000 + OLD + "y" * 5_000_000,
    ],
)  # fmt: skip
def test_a_line_is_found_in_every_dress(line: str, own: Project) -> None:
    found = diagnose_text(f"before\n\n{line}\nafter\n", own)
    assert kinds(found) == ["library-too-old"]
    (cause,) = found.causes
    assert cause.captures["version"] == "GLIBCXX_3.4.30"
    assert cause.evidence[0].line == 3
    assert all(each.text.isprintable() and len(each.text) <= 400 for each in cause.evidence)


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_a_wrapped_line_is_put_together_between_other_ranks_lines(width: int, prefix: str, own: Project) -> None:
    text = "some words before it, " + OLD
    parts = [prefix + text[at : at + width] for at in range(0, len(text), width)]
    between = "\n[rank0]: step\n" if prefix else "\n"
    found = diagnose_text("start\n" * 3 + between.join(parts) + "\nend\n", own)
    assert kinds(found) == ["library-too-old"]
    assert found.causes[0].captures["asker"] == "/data/op.so"


def test_lines_of_one_rank_are_neighbours(own: Project) -> None:
    text = "[rank0]: table:\n[rank1]: x\n[rank0]:   rank: 3\n[rank2]: table\n[rank0]:   code: 9\n"
    assert diagnose_text(text, own).causes[0].cause == "Rank 3 ended with 9."


def test_quotes_of_a_regex_stand_for_all_of_them() -> None:
    assert loose("[`'\"]a'b[^']") == "[" + "`'\"‘’“”" * 3 + "]a[`'\"‘’“”]b[^']"
    assert loose(r"\"x\\") == r"[`'" + '"‘’“”]x' + r"\\"


# --- what is a cause --------------------------------------------------------------------------------------------------


def test_the_answer_is_filled_in_and_the_echo_explained(own: Project) -> None:
    (cause,) = diagnose_text(f"{OLD}\nAttributeError: no attribute 'adam'\nKilled\n", own).causes
    assert cause.cause == "/data/op.so wants GLIBCXX_3.4.30 of GCC 12.1."
    assert (cause.fix, cause.command) == (("Compile /data/op.so again.",), "rm /data/op.so")
    assert [(echo.kind, echo.first.line) for echo in cause.explains] == [("dead", 3), ("left-over", 2)]


def test_a_command_quotes_what_a_log_says(own: Project) -> None:
    (cause,) = diagnose_text(OLD.replace("/data/op.so", "/data/$HOME; op.so"), own).causes
    assert cause.command == "rm '/data/$HOME; op.so'"


@pytest.mark.parametrize(
    "text",
    [
        f"[2026-11-30 10:00:00,123] [WARNING] [op.py:12:load] {OLD}\n",
        f"{OLD}\nfalling back to the slow one\n",
        f"{OLD}\n" + "".join(f"step {at} loss 2.0\n" for at in range(1, 9)),
        PLACE * 3 + f"{OLD}\nTraining completed.\n",
        f"waiting for the lock\nlock is mine\n{PLACE}",
        f"waiting for the lock\n{PLACE}",
    ],
)
def test_what_went_well_has_no_cause(text: str, own: Project) -> None:
    assert diagnose_text(text, own).causes == ()


@pytest.mark.parametrize("end", ["exceeded error retry count after 35 attempts", "transport retry counter exceeded"])
def test_the_end_of_all_retries_is_no_comfort(end: str, own: Project) -> None:
    assert kinds(diagnose_text(f"{OLD}, {end}\n", own)) == ["library-too-old"]
    assert kinds(diagnose_text(f"{OLD}, retrying (3/34)\n", own)) == []


def test_silence_counts_where_nothing_follows_but_noise(own: Project) -> None:
    assert kinds(diagnose_text("waiting for the lock\nnoise\n" * 3, own)) == ["silence"]
    assert kinds(diagnose_text(f"waiting for the lock\n{OLD}\n", own)) == ["library-too-old"]


def test_the_first_in_time_is_first(own: Project) -> None:
    table = "2026-11-30 10:00:{}1 table:\n  rank: 1\n  code: 2\n"
    assert kinds(diagnose_text(table.format(1) + f"2026-11-30 10:00:05 {OLD}\n", own)) == [
        "library-too-old",
        "bad-table",
    ]


def test_without_a_cause_the_telling_lines_are_shown(own: Project) -> None:
    text = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: odd\nbye\n'
    found = diagnose_text(text, own)
    assert found.causes == () and next((each.line, each.text) for each in found.telling) == (1, "ValueError: odd")


def test_secrets_are_masked(own: Project) -> None:
    found = diagnose_text(f"{OLD} token=abcdef123456 https://me:hunter22@host/\n", own)
    shown = found.causes[0].evidence[0].text
    assert "abcdef" not in shown and "hunter22" not in shown and "host/" in shown


# --- any bytes --------------------------------------------------------------------------------------------------------


def _cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
    yield data[at:]


@settings(max_examples=60, deadline=None)
@given(
    junk=st.lists(st.one_of(st.binary(max_size=300), st.just(b"table:\n"), st.just(b"Killed\n")), max_size=30),
    place=st.integers(0, 30),
    sizes=st.lists(st.integers(0, 5000), max_size=8),
    piece=st.sampled_from([1, 1000, 1 << 16]),
)
def test_any_bytes_cut_anywhere_have_one_answer(
    junk: list[bytes], place: int, sizes: list[int], piece: int, own: Project
) -> None:
    data = b"\n".join([*junk[:place], OLD.encode(), *junk[place:]])
    whole = diagnose_text(data, own)
    assert KIND not in kinds(whole)
    cut = diagnose_text(_cut(data, sizes), own, piece=piece)
    assert [(each.kind, each.evidence) for each in cut.causes] == [(each.kind, each.evidence) for each in whole.causes]


def test_a_hit_at_every_place_of_a_piece_is_found_once_with_its_line(own: Project) -> None:
    for before in range(32_700, 33_800, 61):
        data = b"x" * 60 + b"\n"
        data = data * (before // 61) + OLD.encode() + b"\n" + data * 1200
        (cause,) = diagnose_text(data, own, piece=1000).causes
        assert (cause.count, cause.evidence[0].line) == (1, before // 61 + 1)


def test_a_flood_is_counted_and_its_ends_are_kept(own: Project) -> None:
    flood = b"lib: version `GLIBCXX_3.4.29' not found\n" * 200_000
    (cause,) = diagnose_text(flood + OLD.encode() + b"\n", own).causes
    assert cause.count > 20_000
    assert cause.captures["asker"] == "/data/op.so", "the last one says more"


def test_without_hyperscan_the_answer_is_the_same(own: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(literals: Any) -> Any:
        raise ImportError

    fast = diagnose_text(noisy(OLD, 3), own)
    monkeypatch.setattr(search, "_hyperscan", none)
    slow = library.Library(load(own.signatures).signatures)
    monkeypatch.setattr(library, "_load", lambda folders: slow)
    assert diagnose_text(noisy(OLD, 3), own) == fast and fast.causes


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pack",
    [
        bytes, gzip.compress, bz2.compress, lzma.compress, zstandard.compress,
        lambda data: data.decode().encode("utf-16"), lambda data: data.decode().encode("utf-16-le"),
        lambda data: gzip.compress(data[:300]) + gzip.compress(data[300:]),
    ],
)  # fmt: skip
def test_packed_logs_are_known_by_their_bytes(pack: Any, own: Project, tmp_path: Path) -> None:
    path = tmp_path / "some-log"
    path.write_bytes(pack(("line\n" * 99 + OLD + "\n").encode()))
    found = diagnose([str(path)], own)
    assert found.causes[0].evidence[0].line == 100 and found.unread == ()


def test_a_cut_archive_is_read_as_far_as_it_goes(own: Project, tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    noise = noisy("", 1, around=5000)
    path.write_bytes(gzip.compress(OLD.encode() + b"\n" + noise)[:-20_000])
    found = diagnose([str(path)], own)
    assert kinds(found) == ["library-too-old"]
    assert found.unread[0][0] == str(path) and "only the first" in found.unread[0][1]


def test_folders_files_and_what_cannot_be_read(own: Project, tmp_path: Path) -> None:
    for rank in range(3):
        folder = tmp_path / "logs" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text("fine\n" if rank != 1 else f"fine\n{OLD}\n")
    (tmp_path / "logs" / "core.bin").write_bytes(OLD.encode())
    found = diagnose([str(tmp_path / "logs"), str(tmp_path / "none")], own)
    assert found.causes[0].evidence[0].file.endswith("attempt_0/1/stderr.log") and found.causes[0].count == 1
    assert found.unread == ((str(tmp_path / "none"), "No such file or directory"),)
    with pytest.raises(InputError, match="none: No such file"):
        diagnose([str(tmp_path / "none")], own)


# --- signatures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- kind: [", "own.yaml: while parsing"),
        ("kind: x", "own.yaml: must be a list"),
        ("- kind: x\n  title: t", r"entry 1 \(x\): patterns: Field required"),
        (
            SIGNATURES.replace("gcc_of_symbol", "gcc_of_moon"),
            r"entry 1 \(library-too-old\): derive: no function gcc_of_moon",
        ),
        (SIGNATURES + SIGNATURES, "library-too-old is in own.yaml too"),
        (SIGNATURES.replace("^Killed$", "(Killed"), r"own.yaml:33: entry 5 \(dead\): patterns.0.regex: .*no regular"),
    ],
)
def test_a_wrong_signature_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(InputError, match=said):
        load([tmp_path])


def test_a_projects_own_signature_replaces_the_shipped_one(own: Project, shipped: Project) -> None:
    assert {"library-too-old", KIND} <= set(load((*own.signatures, *shipped.signatures)).by_kind)
    assert kinds(diagnose_text(ERROR, shipped)) == [KIND]


CAUSES = [each for each in load([REPOSITORY / "signatures"]).signatures if each.role == "cause"]


@pytest.mark.parametrize("signature", CAUSES, ids=lambda each: each.kind)
def test_every_example_is_found_first_in_noise(signature: Any, shipped: Project) -> None:
    # A hang, and what says little, is none where training makes its steps.
    weak = [each for each in signature.patterns if (each.certainty or signature.certainty) == "weak"]
    silent = bool(weak) or any(each.last for each in signature.patterns)
    for number, text in enumerate(signature.examples.positive):
        alone = any(each.compiled.search(text) for each in weak)
        for seed in (number, 1000 + number):
            # What is weak gives way to any word of another thing: it is held to what it says alone.
            log = text.encode() if alone else noisy(text, seed, training=not silent)
            found = kinds(diagnose_text(log, shipped))
            assert found[:1] == [signature.kind], (seed, text, found)


def test_noise_alone_has_no_cause(shipped: Project) -> None:
    for seed in range(40):
        assert kinds(diagnose_text(noisy("", seed), shipped)) == [], seed


def test_one_line_is_one_line_though_two_patterns_find_two_places_in_it(shipped: Project) -> None:
    line = (
        "ImportError: /usr/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found "
        "(required by /venv/lib/python3.12/site-packages/deepspeed/ops/adam/cpu_adam_op.so)\n"
    )
    cause = diagnose_text(f"begin\n{line}", shipped).causes[0]
    assert (cause.count, len(cause.evidence)) == (1, 1)
    assert diagnose_text(f"begin\n{line}and\n{line}", shipped).causes[0].count == 2
    # An op that came with DeepSpeed lies in no cache: its folder is not to be deleted.
    assert "elete" not in " ".join(cause.fix) and "DS_BUILD_" in " ".join(cause.fix)


def test_a_line_with_a_time_of_its_own_is_not_the_rest_of_another(shipped: Project) -> None:
    told = (
        "W ./tensorflow/core/common_runtime/gpu/gpu_host_allocator.h:44] could not allocate pinned host memory of size"
    )
    log = "".join(
        f"2024-02-03 13:19:24.{part}: {told}: {size}\n2024-02-03 13:19:25.{part}: E tensorflow/stream_executor/cuda/"
        f"cuda_driver.cc:893] failed to alloc {size} bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
        for part, size in ((277832, 415990272), (444327, 374391296), (605206, 336952320))
    )
    texts = [each.text for cause in diagnose_text(log, shipped).causes for each in cause.evidence]
    assert texts and not any("2722024-" in text or "2962024-" in text for text in texts), texts
