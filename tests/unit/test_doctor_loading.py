"""The collector's search and doctor's answer where no real loader gets to: hostile files, limits, made-up machines.

Whether the answers are right is asked of the real loader in integration.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.collector import libraries as collector
from envbuild.collector.libraries import libraries
from envbuild.collector.links import Links
from envbuild.doctor.collection import SCHEMA, Collection, Libraries
from envbuild.doctor.loading import Answers, answers
from envbuild.doctor.root import RecordedRoot
from native_made import NEEDED, RPATH, RUNPATH, cache_of, made


def _library(folder: Path, name: str, *needed: str, rpath: str = "", runpath: str = "") -> str:
    strings = b"\0"
    tags = []
    for tag, text in [*((NEEDED, each) for each in needed), (RPATH, rpath), (RUNPATH, runpath)]:
        if text:
            tags.append((tag, len(strings)))
            strings += text.encode() + b"\0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(made(*tags, strings=strings))
    return str(folder / name)


def _collection(found: object, **environment: str) -> Collection:
    document = {"schema": SCHEMA, "taken": "2026-01-01T00:00:00Z", "environment": environment, "libraries": found}
    return Collection.model_validate_json(json.dumps(document))


def _collect(*seeds: str, **environment: str) -> tuple[Libraries, Answers]:
    found = libraries({"executable": sys.executable}, seeds, environment)
    collection = _collection(found, **environment)
    return collection.libraries, answers(collection)


_NAMES = ("a", "b", "liba.so", "..", ".", "")
_PATHS = st.lists(st.sampled_from(_NAMES), min_size=1, max_size=7).map("/".join)


@settings(deadline=None, max_examples=150)
@given(
    entries=st.lists(st.tuples(_PATHS, st.sampled_from(["file", "folder", "link", "root link"]), _PATHS), max_size=9),
    asked=st.lists(_PATHS, min_size=1, max_size=12),
)
def test_paths_lead_where_the_kernel_says(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, str, str]], asked: list[str]
) -> None:
    base = os.path.realpath(tmp_path_factory.mktemp("paths"))
    for path, kind, target in entries:
        place = f"{base}/{path}"
        # Nothing is made outside of the folder, whatever way up a path finds.
        if not f"{os.path.realpath(os.path.dirname(place))}/".startswith(f"{base}/"):  # noqa: PTH120
            continue
        try:
            if kind == "file":
                Path(place).write_bytes(b"x")
            elif kind == "folder":
                Path(place).mkdir()
            else:
                Path(place).symlink_to(target or "." if kind == "link" else f"{base}/{target}")
        except OSError:
            continue  # no such folder, or something is there
    links = Links()
    real = {path: links.file(path) for path in (f"{base}/{each}" for each in asked)}
    recorded = RecordedRoot(Libraries(broken=dict.fromkeys(filter(None, real.values()), "not ELF"), paths=links.paths))
    for path, found in real.items():
        kernel = os.path.realpath(path) if os.path.isfile(path) else None  # noqa: PTH113
        assert found == kernel, path
        assert recorded.resolve(path) == kernel, path


def test_what_is_no_library_is_neither_opened_nor_believed(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    seed = _library(
        tmp_path, "seed.so", "libpipe.so", "libfolder.so", "libzero.so", "libloop.so", "libtext.so", "libcut.so"
    )
    (lib / "libfolder.so").mkdir(parents=True)
    os.mkfifo(lib / "libpipe.so")  # opening it would wait for a writer
    (lib / "libzero.so").symlink_to("/dev/zero")
    (lib / "libloop.so").symlink_to("libloop.so")
    (lib / "libtext.so").write_text("INPUT(libc.so.6)")
    (lib / "libcut.so").write_bytes(made()[:90])

    recorded, answer = _collect(seed, LD_LIBRARY_PATH=str(lib))

    assert recorded.broken == {
        str(lib / "libtext.so"): "not ELF",
        str(lib / "libcut.so"): "it ends inside its program headers",
        str(lib / "libpipe.so"): "not ELF: no regular file",
        str(lib / "libfolder.so"): "not ELF: a folder",
        "/dev/zero": "not ELF: no regular file",
    }
    assert {choice.name: choice.problem.partition("/")[0] for choice in answer.unresolved} == {
        "libpipe.so": "", "libfolder.so": "", "libzero.so": "", "libtext.so": "", "libcut.so": "",
        "libloop.so": "libloop.so is not found",
    }  # fmt: skip
    assert answer.knows(f"{lib}/../lib")
    assert not answer.knows(f"{lib}/libfolder.so")
    assert not answer.knows("/nowhere")


def test_the_loaders_cache_is_looked_into_and_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = _library(tmp_path / "listed", "libq.so.1", "libr.so")
    _library(tmp_path / "beside", "libr.so")
    (tmp_path / "cache").write_bytes(cache_of(("libq.so.1", listed, 0x303, 0)))
    monkeypatch.setattr(collector, "_CACHE", str(tmp_path / "cache"))
    seed = _library(tmp_path, "seed.so", "libq.so.1", rpath=f"/{'nowhere/' * 30}:{tmp_path}/beside")

    _, answer = _collect(seed)

    assert (answer.why("libq.so.1"), answer.why("libr.so")) == ("ld.so.cache", f"RPATH of {seed}")
    assert answer.bringer("libr.so") == seed
    assert [choice.name for choice in answer.unresolved] == []
    # Damaged on its way, it is none.
    for cache in ("", "AAAA", "x", "eJw="):
        damaged = answers(_collection({**answer_document(seed), "cache": cache}))
        assert [choice.name for choice in damaged.unresolved] == ["libq.so.1"]


def answer_document(seed: str) -> dict[str, object]:
    """What the collector says of one seed."""
    found: dict[str, object] = libraries({"executable": sys.executable}, [seed], {})
    return found


def test_the_search_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each asks for the next, which only its own folder has; and all name more folders than anybody has.
    many = ":".join(f"/{number}" for number in range(9000))
    for number in range(60):
        _library(
            tmp_path / str(number), f"lib{number}.so", f"lib{number + 1}.so", runpath=f"{many}:$ORIGIN/../{number + 1}"
        )
    seed = str(tmp_path / "0/lib0.so")
    recorded, answer = _collect(seed)
    assert not recorded.errors
    assert str(tmp_path / "59/lib59.so") in recorded.files
    assert len(answer.unresolved) == 1

    for limit, value, said in (
        ("_MAX_FILES", 20, "more than 20 files"),
        ("_MAX_FOLDERS", 20, "more than 20 folders"),
        ("_MAX_NAMES", 20, "more than 20 libraries"),
        ("_MAX_KEPT", 10_000, "more than 10000 characters"),
        ("_MAX_SECONDS", -1.0, "it took more than"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(collector, limit, value)
            recorded, answer = _collect(seed)
        assert any(said in error for error in recorded.errors), (limit, recorded.errors)
        assert len(recorded.files) < 60


def test_a_search_that_asks_too_much_is_told_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envbuild.elf.search._MAX_PLACES", 20_000)
    greedy = _library(
        tmp_path, "greedy.so", *(f"libx{n}.so" for n in range(99)), rpath=":".join(f"/{n}" for n in range(999))
    )
    plain = _library(tmp_path, "plain.so", "libc.so.6")
    _, answer = _collect(greedy, plain)
    assert "20000 places" in answer.unresolved[0].problem
    assert answer.problem == ""
    assert not answer.loadings[greedy].works


_PYTHON = {"machine": "x86_64", "bits": 64, "kind": "executable", "interp": "/lib64/ld.so", "needed": ["libc.so.6"]}
_SHARED = {"machine": "x86_64", "bits": 64, "kind": "shared"}
_LOADER = {
    "path": "/lib64/ld.so",
    "machine": "x86_64",
    "folders": ["/lib64"],
    "lib": "lib64",
    "hwcaps": True,
    "legacy": False,
}


def _made_up(files: dict[str, dict[str, object]], *seeds: str) -> dict[str, object]:
    """A machine: the keys of ``files`` are real paths."""
    base = {"/bin/python": _PYTHON, "/lib64/ld.so": _SHARED, "/lib64/libc.so.6": {**_SHARED, "soname": "libc.so.6"}}
    return {
        "loader": _LOADER, "seeds": ["/bin/python", *seeds], "paths": {path: path for path in files},
        "files": {**base, **{path: {**_SHARED, **says} for path, says in files.items()}},
    }  # fmt: skip


def test_a_cuda_library_that_only_its_wheel_has_is_loaded_before_as_torch_does() -> None:
    wheel = "/v/site-packages/nvidia/cublas/lib/libcublas.so.12"
    files: dict[str, dict[str, object]] = {
        "/v/torch/lib/libtorch_global_deps.so": {"needed": ["libcublas.so.12", "libcudart.so.12"]},
        wheel: {"soname": "libcublas.so.12", "needed": ["libcublasLt.so.12"], "runpath": ["$ORIGIN"]},
        "/v/site-packages/nvidia/cublas/lib/libcublasLt.so.12": {"soname": "libcublasLt.so.12"},
        "/v/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12": {"soname": "libcudart.so.12"},
    }
    answer = answers(_collection(_made_up(files, "/v/torch/lib/libtorch_global_deps.so")))
    assert not answer.unresolved
    assert answer.bringer("libcublasLt.so.12") == wheel
    assert answer.why("libcublas.so.12") == "loaded by its path"
    assert {loaded.real for loaded in answer.loaded} >= set(files)


def test_a_library_that_failed_is_not_taken_for_the_one_that_serves() -> None:
    files: dict[str, dict[str, object]] = {
        "/a/op.so": {"needed": ["libs.so", "libgone.so"], "runpath": ["/old"]},
        "/b/op.so": {"needed": ["libs.so"], "runpath": ["/new"]},
        "/old/libs.so": {"soname": "libs.so"}, "/new/libs.so": {"soname": "libs.so"},
        "/c/op.so": {"needed": ["libonly.so", "libgone.so"], "runpath": ["/old"]}, "/old/libonly.so": {},
    }  # fmt: skip
    answer = answers(_collection(_made_up(files, "/a/op.so", "/b/op.so", "/c/op.so")))
    assert answer.why("libs.so") == "RUNPATH of /b/op.so"
    assert answer.bringer("libs.so") == "/b/op.so"
    # Nobody has it in the end: what the one that failed met is told.
    only = answer.provider("libonly.so")
    assert only is not None
    assert only.path == "/old/libonly.so"
    assert answer.find("libonly.so") is None
    assert answer.find("libs.so") is answer.provider("libs.so")


_TEXT = st.text(st.sampled_from("/.ab$\0é"), max_size=12)


@settings(deadline=None)
@given(
    paths=st.dictionaries(_TEXT, _TEXT, max_size=6),
    entries=st.lists(_TEXT, max_size=4),
    seeds=st.lists(_TEXT, max_size=4),
    cache=st.none() | _TEXT,
    library_path=_TEXT,
)
def test_facts_from_anybody_never_break_it(
    paths: dict[str, str], entries: list[str], seeds: list[str], cache: str | None, library_path: str
) -> None:
    found = _made_up({"/op.so": {"needed": entries, "rpath": entries, "provides": entries}}, "/op.so", *seeds)
    document = {**found, "paths": paths, "cache": cache, "folder": library_path, "preload": library_path}
    answer = answers(_collection(document, LD_LIBRARY_PATH=library_path, LD_PRELOAD=library_path))
    assert answer.what_if(library_path="", first=seeds).missing == ()
    for name in (*entries, *seeds, *paths):
        answer.why(name)
        answer.find(name)
        answer.read(name)


def test_a_path_of_a_million_folders_is_no_path() -> None:
    long = "/a" * 500_000
    answer = answers(_collection({**_made_up({}, long), "paths": {long: long, "/x": long}}))
    assert answer.loadings == {}
