"""doctor's answer against the real loader: everything goes through the collector's JSON, as from another machine."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

import envbuild.collector
from envbuild.collector.libraries import libraries
from envbuild.doctor.collection import SCHEMA, Collection
from envbuild.doctor.loading import Answers, answers
from envbuild.engines import ContainerSpec, DockerEngine, Mount
from loaders import CASES, Bench, Case, cpu_level, run, theirs


def _answers(executable: str, seeds: Sequence[str] = (), **environment: str) -> Answers:
    """Collect, travel as JSON, answer."""
    interpreter = {"executable": executable, "path": [sysconfig.get_path("platlib")]}
    return _answered(libraries(interpreter, seeds, environment, cpu_level()), environment)


def _answered(found: dict[str, object], environment: dict[str, str]) -> Answers:
    document = {
        "schema": SCHEMA, "taken": "2026-01-01T00:00:00Z", "environment": environment,
        "machine": {"cpu": {"level": cpu_level()}}, "libraries": found,
    }  # fmt: skip
    return answers(Collection.model_validate_json(json.dumps(document)))


def _asked(answer: Answers) -> dict[str, str | None]:
    asked = [choice for choice in answer.start.choices if choice.why not in ("start", "loaded")]
    return {choice.name: choice.path for choice in asked if choice.why != "preload" or choice.path}


@pytest.mark.parametrize("build", CASES, ids=lambda function: function.__name__)
def test_the_loader_agrees(build: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path.resolve())
    expected = build(bench)
    monkeypatch.chdir(bench.root)

    answer = _answers(bench.at("main"), **bench.env)

    assert answer.problem == ""
    chosen = {choice.name: choice.path for choice in answer.start.choices}
    assert {name: chosen[name] for name in expected} == {
        name: path and bench.at(path) for name, path in expected.items()
    }
    assert _asked(answer) == theirs([bench.at("main")], **bench.env)
    found = {name for name, path in _asked(answer).items() if path}
    reasons = {name: why for name, why in _reasons([bench.at("main")], **bench.env).items() if name in found}
    assert {name: answer.why(name) for name in reasons} == reasons
    # And without the variables, though they were there when it was collected.
    assert _asked(answer.what_if(library_path="", preload="")) == theirs([bench.at("main")])


def _reasons(argv: list[str], **environment: str) -> dict[str, str]:
    """Why the loader took what it searched for and found, from what LD_DEBUG=libs tells."""
    said = run(argv, LD_TRACE_LOADED_OBJECTS="1", LD_DEBUG="libs", **environment).stderr
    found: dict[str, str] = {}
    for search in re.split(r"find library=", said)[1:]:
        lines = [line.partition(":")[2].strip() for line in search.partition("calling init")[0].splitlines()[1:]]
        tried = [number for number, line in enumerate(lines) if line.startswith("trying file=")]
        if not tried or not Path(lines[tried[-1]].partition("=")[2]).is_file():
            continue
        (why,) = [line for line in lines[: tried[-1]] if line.startswith("search ")][-1:]
        owner = re.search(r"\((R(?:UN)?PATH) from file (.+)\)", why)
        words = {"search cache=/etc/ld.so.cache": "ld.so.cache"}.get(why, "LD_LIBRARY_PATH")
        if "system search path" in why:
            words = "a default folder of the loader"
        found[search.split()[0]] = (
            f"{owner[1]} of {Path(owner[2]).resolve() if owner[2] == argv[0] else owner[2]}" if owner else words
        )
    return found


# Loads what it is told to, as import does, and tells how it went and what it has then.
_DLOPEN = """
import ctypes, json, os, sys
said = []
for path in sys.argv[1:]:
    try:
        ctypes.CDLL(path, os.RTLD_LAZY)
        said.append("")
    except OSError as error:
        said.append(str(error))
mapped = {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if "/" in line}
print(json.dumps([said, sorted(mapped)]), flush=True)
# An extension that was loaded and not imported may not survive the end of an interpreter: one of matplotlib's does not.
os._exit(0)
"""


def _really(seeds: Sequence[str], **environment: str) -> tuple[list[str], set[str]]:
    """What this interpreter says to each, and the files that it has mapped in the end."""
    done = run([sys.executable, "-I", "-c", _DLOPEN, *seeds], **environment)
    assert done.returncode == 0, done.stderr
    said, mapped = json.loads(done.stdout)
    return said, set(mapped)


def _own() -> set[str]:
    """What the program of ``_really`` brings itself: json, ctypes and what they need."""
    return _really([])[1]


def _real(answer: Answers) -> set[str]:
    return {loaded.real for loaded in answer.loaded}


def _versioned(bench: Bench, path: str, *versions: str) -> None:
    """A libv.so.1 that defines some versions, the function ``libv`` in the last."""
    script = bench.root / "versions.map"
    nodes = [f"{version} {{ global: v{number}; }};" for number, version in enumerate(versions[:-1])]
    script.write_text("\n".join([*nodes, f"{versions[-1]} {{ global: libv; }};"]))
    code = "int libv(void) { return 1; }" + "".join(f"int v{n}(void) {{ return 2; }}" for n in range(len(versions)))
    bench.make(path, soname="libv.so.1", code=code, flags=(f"-Wl,--version-script={script}",))


def test_the_first_copy_that_is_loaded_serves_everybody(tmp_path: Path) -> None:
    bench = Bench(tmp_path.resolve())
    _versioned(bench, "conda/libv.so.1", "GLIBCXX_3.4.9")
    _versioned(bench, "system/libv.so.1", "GLIBCXX_3.4.9", "GLIBCXX_3.4.29")
    bench.make("other.so", "conda/libv.so.1", runpath=bench.at("conda"))
    calls = "int libv(void); int op(void) { return libv(); }"
    bench.make("op.so", "system/libv.so.1", code=calls, runpath=bench.at("system"))
    paths = {name: bench.at(f"{name}.so") for name in ("other", "op")}

    for order in (("other", "op"), ("op", "other")):
        seeds = [paths[name] for name in order]
        answer = _answers(sys.executable, seeds)
        said, mapped = _really(seeds)
        assert [loading.works for loading in answer.loadings.values()] == [not line for line in said]
        assert _real(answer) <= mapped
        assert mapped - _real(answer) <= _own()

    broken = _answers(sys.executable, [paths["other"], paths["op"]])
    (missing,) = broken.missing
    words = re.escape(f"{missing.chosen}: version `{missing.version}' not found (required by {missing.asker})")
    assert re.fullmatch(words, _really([paths["other"], paths["op"]])[0][1])
    assert (missing.best, missing.library) == ("GLIBCXX_3.4.9", "libv.so.1")
    assert broken.why("libv.so.1") == f"RUNPATH of {paths['other']}"
    assert broken.bringer("libv.so.1") == paths["other"]
    # What would help, tried before it is advised: and the loader says the same.
    library_path = bench.at("system")
    for remedy, variables, first in (
        (broken.what_if(library_path=library_path), {"LD_LIBRARY_PATH": library_path}, []),
        (broken.what_if(first=[bench.at("system/libv.so.1")]), {}, [bench.at("system/libv.so.1")]),
        (broken.what_if(preload=bench.at("system/libv.so.1")), {"LD_PRELOAD": bench.at("system/libv.so.1")}, []),
        (broken.what_if(library_path=bench.at("conda")), {"LD_LIBRARY_PATH": bench.at("conda")}, []),
    ):
        said, mapped = _really([*first, *paths.values()], **variables)
        assert (not remedy.missing and not remedy.unresolved) == (not any(said))
        provider = remedy.provider("libv.so.1")
        assert provider is not None
        assert provider.real in mapped
    assert broken.what_if(library_path=library_path).why("libv.so.1") == "LD_LIBRARY_PATH"


def test_this_interpreter_and_its_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [sysconfig.get_config_var("DESTSHARED"), sysconfig.get_path("platlib")]
    seeds = [str(path) for folder in folders for path in sorted(Path(folder).rglob("*.so"))][:150]
    polluted = f"/usr/lib:{sysconfig.get_config_var('LIBDIR')}:/usr/local/cuda/lib64:/tmp"

    for environment in ({}, {"LD_LIBRARY_PATH": polluted}):
        answer = _answers(sys.executable, seeds, **environment)
        said, mapped = _really(seeds, **environment)

        assert [loading.works for loading in answer.loadings.values()] == [not line for line in said]
        assert _real(answer) <= mapped
        assert mapped - _real(answer) <= _own()
        assert len(answer.loaded) > 40


_COLLECT = """
import glob, json, os, sys
sys.path.insert(0, "/program")
from collector.libraries import libraries
site = next(path for path in sys.path if path.endswith("-packages"))
seeds = [site + "/torch/lib/libtorch_global_deps.so", *glob.glob(site + "/torch/_C.*.so")]
seeds += sorted(glob.glob(site + "/deepspeed/ops/**/*_op*.so", recursive=True))
seeds += sorted(glob.glob(site + "/numpy/**/*.so", recursive=True))
interpreter = {"executable": sys.executable, "prefix": sys.prefix, "base": sys.base_prefix, "path": sys.path}
print(json.dumps(libraries(interpreter, seeds, dict(os.environ))))
"""
_IMPORT = """
import torch, deepspeed.ops.adam.cpu_adam
from deepspeed.ops.op_builder import CPUAdamBuilder
CPUAdamBuilder().load()
print(*{line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if ".so" in line}, sep="\\n")
"""


@pytest.mark.parametrize(
    "library_path", ["", "/usr/lib/x86_64-linux-gnu:/opt/venv/lib/python3.11/site-packages/torch/lib"]
)
def test_torch_and_its_ops_in_an_image(engine: DockerEngine, proven: dict[str, object], library_path: str) -> None:
    compare_in_image(engine, str(proven["id"]), library_path)


def compare_in_image(engine: DockerEngine, image: str, library_path: str) -> None:
    """Collect in a container, answer here, and ask the container's own loader."""
    collector = Path(envbuild.collector.__file__).parent
    environment = {"LD_LIBRARY_PATH": library_path} if library_path else {}

    def inside(*argv: str) -> str:
        spec = ContainerSpec(
            image=image, argv=("python", *argv), network="none", env=tuple(environment.items()),
            mounts=(Mount(source=collector, target="/program/collector"),),
        )  # fmt: skip
        done = engine.run(spec, timeout=300)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    found = json.loads(inside("-I", "-c", _COLLECT))
    assert found["errors"] == []
    answer = _answered(found, environment)
    seeds = list(answer.loadings)
    said, mapped = json.loads(inside("-I", "-c", _DLOPEN, *seeds))
    assert [loading.works for loading in answer.loadings.values()] == [not line for line in said]
    assert _real(answer) <= set(mapped)
    assert set(mapped) - _real(answer) <= set(json.loads(inside("-I", "-c", _DLOPEN))[1])
    # What the import of torch and of an op brings is what their files, loaded in this order, bring.
    imported = set(inside("-c", _IMPORT).split("\n"))
    for name in ("libtorch_python.so", "libtorch_cpu.so", "libc10.so", "libstdc++.so.6", "libgomp.so.1", "libc.so.6"):
        provider = answer.provider(name)
        assert provider is not None
        assert provider.real in imported, name


@pytest.mark.parametrize(
    "kind", ["text", "empty", "half", "folder", "device", "program", "dangling", "foreign", "other"]
)
def test_what_stands_in_the_place_of_a_library_ends_the_search_or_is_passed_over(tmp_path: Path, kind: str) -> None:
    bench = Bench(tmp_path.resolve())
    bench.make("good/libv.so.1")
    op = str(bench.make("op.so", "good/libv.so.1", runpath=bench.at("good")))
    place = bench.root / "bad" / "libv.so.1"
    place.parent.mkdir()
    whole = (bench.root / "good/libv.so.1").read_bytes()
    if kind == "folder":
        place.mkdir()
    elif kind in ("device", "dangling"):
        place.symlink_to("/dev/null" if kind == "device" else "/nowhere")
    elif kind == "program":
        bench.make("main", flags=("-no-pie",)).rename(place)
    else:
        foreign = whole[:18] + b"\xb7\0" + whole[20:]
        content = {"text": b"GROUP ( libv.so.1.0 )", "empty": b"", "half": whole[:300], "foreign": foreign}
        place.write_bytes(content.get(kind, whole))
    (bench.root / "short").symlink_to("bad")
    path = f"{bench.at('short')}/:{bench.at('bad')}"

    answer = _answers(sys.executable, [op], LD_LIBRARY_PATH=path)
    said, mapped = _really([op], LD_LIBRARY_PATH=path)

    works = kind in ("dangling", "foreign", "other")
    assert (answer.loadings[op].works, not said[0]) == (works, works), said
    assert _real(answer) <= mapped
    refused = [answer.refused(choice) for choice in answer.unresolved]
    assert refused == ([] if works else ["/dev/null" if kind == "device" else str(place)])
    if kind not in ("dangling", "foreign"):
        assert answer.leading("libv.so.1", str(place.resolve())) == (f"{bench.at('short')}/", bench.at("bad"))
    # Without both ways to it, all is well: the loader says the same.
    assert answer.what_if(library_path="").loadings[op].works and not _really([op])[0][0]


def test_what_no_glibc_loader_starts_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path.resolve())
    bench.make("static/main", flags=("-static",))
    bench.make("gone/main", flags=("-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1",))
    musl = bench.make("ld-musl.so")
    bench.make("other/main", flags=(f"-Wl,--dynamic-linker={musl}",))
    (bench.root / "script").write_text("#!/bin/sh\n")
    op = bench.make("op.so")
    for name, why in (
        ("static/main", "linked statically"),
        ("gone/main", "asks for the loader /lib/ld-musl-x86_64.so.1, which is not there"),
        ("other/main", "is not glibc's"),
        ("script", "not ELF"),
        ("absent", "it is not there"),
    ):
        answer = _answers(bench.at(name), [str(op)])
        assert why in answer.problem
        assert bench.at(name) in answer.problem
        assert answer.missing == answer.unresolved == answer.loaded == ()
        assert answer.why("libc.so.6") == ""
        # The files are known all the same, for what they say of their compilers.
        assert answer.read(str(op)) is not None
