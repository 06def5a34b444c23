"""The loader's choice, with the loader of this machine as the judge: every case is compiled and asked of both."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.elf import Conditions, ElfError, FolderRoot, Loaded, Process, load, read
from envbuild.elf.cache import parse
from loaders import CASES, IGNORED, INTERP, Bench, Case, cpu_level, ours, run, theirs

_HOST = FolderRoot(Path("/"))


@pytest.fixture(scope="session")
def cpu() -> str:
    """The level of this machine's CPU, as its loader sees it."""
    return cpu_level()


@pytest.mark.parametrize("build", CASES, ids=lambda function: function.__name__)
def test_the_loader_agrees(build: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: str) -> None:
    bench = Bench(tmp_path.resolve())
    monkeypatch.chdir(bench.root)
    expected = build(bench)
    main = bench.at("main")
    conditions = Conditions(
        library_path=bench.env.get("LD_LIBRARY_PATH", ""),
        preload=bench.env.get("LD_PRELOAD", ""),
        cpu=cpu,
        folder=str(bench.root),
    )

    process = load(_HOST, main, conditions)

    chosen = {choice.name: choice.path for choice in process.start.choices}
    assert {name: chosen[name] for name in expected} == {
        name: path and bench.at(path) for name, path in expected.items()
    }
    assert ours(process) == theirs([main], **bench.env)


def test_versions_that_are_not_there_are_named_as_the_loader_names_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path.resolve())
    script = bench.root / "new.map"
    script.write_text("GLIBCXX_3.4.9 { global: old; };\nGLIBCXX_3.4.29 { global: libv; } GLIBCXX_3.4.9;\n")
    bench.make("new/libv.so", code="int libv(void) { return 1; } int old(void) { return 2; }",
               flags=(f"-Wl,--version-script={script}",))  # fmt: skip
    script.write_text("GLIBCXX_3.4.9 { global: old; };\n")
    bench.make("old/libv.so", code="int old(void) { return 2; }", flags=(f"-Wl,--version-script={script}",))
    bench.make("plain/libv.so")
    code = "int libv(void); int old(void); int main(void) { return libv() + old(); }"
    main = str(bench.make("main", "new/libv.so", code=code, runpath=bench.at("new")))

    for folder, missing in (("new", []), ("old", ["GLIBCXX_3.4.29"]), ("plain", [])):
        start = load(_HOST, main, Conditions(library_path=bench.at(folder))).start
        said = run([main], LD_LIBRARY_PATH=bench.at(folder), LD_BIND_NOW="").stderr
        assert [(found.version, found.chosen, found.best) for found in start.missing] == [
            (version, bench.at("old/libv.so"), "GLIBCXX_3.4.9") for version in missing
        ]
        assert re.findall(r"version `(\S+)' not found", said) == missing


# The two programs get the same list of paths; what the real one has mapped afterwards is what counts.
_DLOPEN = """
import ctypes, json, os, sys
answers = []
for path in sys.argv[2:]:
    try:
        ctypes.CDLL(path, os.RTLD_LAZY)
        answers.append(True)
    except OSError as error:
        answers.append(False)
mapped = {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if sys.argv[1] in line}
print(json.dumps([answers, sorted(mapped)]))
"""


def test_dlopen_goes_by_what_is_loaded_already(tmp_path: Path) -> None:
    bench = Bench(tmp_path.resolve())
    bench.make("hidden/libdep.so.1")
    bench.make("libneeds.so", "hidden/libdep.so.1")  # no rpath: only a loaded libdep.so.1 can satisfy it
    bench.make("other/libdep.so.1")
    bench.make("libprefers.so", "other/libdep.so.1", rpath=bench.at("other"))
    bench.make("libhalf.so", "libneeds.so", "hidden/libdep.so.1", runpath=str(bench.root))
    (bench.root / "text.so").write_text("INPUT(libneeds.so)\n")
    paths = ["libneeds.so", "text.so", "libhalf.so", "absent.so", "hidden/libdep.so.1", "libneeds.so", "libprefers.so"]
    argv = [bench.at(path) for path in paths]

    process = load(_HOST, sys.executable, Conditions())
    answers = [process.dlopen(path).works for path in argv]
    done = run([sys.executable, "-I", "-c", _DLOPEN, str(bench.root), *argv])

    mapped = sorted(loaded.real for loaded in process.loaded if str(bench.root) in loaded.real)
    assert [answers, mapped] == json.loads(done.stdout)
    assert answers == [False, False, False, False, True, True, True]
    assert bench.at("other/libdep.so.1") not in mapped


_CALLER = "#include <dlfcn.h>\nvoid *go(const char *path) { return dlopen(path, RTLD_LAZY); }"
_PROGRAM = 'void *go(const char *); int main(void) { return go("libd.so") == 0; }'


@pytest.mark.parametrize(("tag", "works"), [("rpath", True), ("runpath", False)])
def test_what_is_dlopened_inherits_from_the_program_and_not_from_the_caller(
    tag: str, works: bool, tmp_path: Path
) -> None:
    bench = Bench(tmp_path.resolve())
    bench.make("deep/libdd.so")
    bench.make("deep/libd.so", "deep/libdd.so")
    bench.make("libcaller.so", code=_CALLER, rpath=bench.at("deep"))
    folders = f"{bench.root}:{bench.at('deep')}"
    main = str(bench.make("main", "libcaller.so", code=_PROGRAM, **{tag: folders}))

    result = load(_HOST, main, Conditions()).dlopen("libd.so", caller=bench.at("libcaller.so"))

    assert result.choices[0].path == bench.at("deep/libd.so")
    assert (result.works, run([main]).returncode == 0) == (works, works)


def test_the_interpreters_own_modules_resolve_as_the_loader_says(cpu: str) -> None:
    folders = [sysconfig.get_config_var("DESTSHARED"), sysconfig.get_path("platlib")]
    files = [Path(sys.executable).resolve(), *(p for folder in folders for p in sorted(Path(folder).rglob("*.so")))]
    compared = 0
    for path in files[:120]:
        try:
            elf = read(path, str(path))
        except ElfError:
            continue
        # Asked for one library, the loader takes it for the program.
        main = Loaded(path=str(path), real=str(path), elf=replace(elf, interp=INTERP))
        process = Process(_HOST, main, Conditions(cpu=cpu))
        done = run([INTERP, "--list", str(path)])
        if done.returncode == 0:
            listed = re.findall(r"^\t(\S+) => (\S+)", done.stdout, re.MULTILINE)
            theirs = {name: path for name, path in listed if Path(name).name not in IGNORED}
            assert ours(process) == theirs, path
            compared += 1
        else:
            assert not process.start.works, path
    assert compared > 20


@pytest.mark.parametrize("layout", ["new", "compat"])
def test_the_cache_is_read_as_ldconfig_prints_it(layout: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path.resolve())
    bench.make("lib/liba.so.1")
    bench.make("lib/libb.so.10")
    bench.make("lib/glibc-hwcaps/x86-64-v3/liba.so.1")
    cache = bench.root / "cache"
    ldconfig = ["/sbin/ldconfig", "-C", str(cache), "-f", "/dev/null", "-X", "-c", layout, bench.at("lib")]
    done = run(ldconfig)
    assert done.returncode == 0, done.stderr

    found = parse(cache.read_bytes(), "x86_64")

    printed = run(["/sbin/ldconfig", "-C", str(cache), "-p"]).stdout
    lines = re.findall(r"^\t(\S+) \(libc6,x86-64\) => (\S+)", printed, re.MULTILINE)
    assert {found.lookup(name) for name, _ in lines} == {path for _, path in lines}
    assert bench.at("lib/libb.so.10") in dict(lines).values()
    # In the old layout the loader does not find the names of the hardware folders (seen in a chroot, glibc 2.36).
    best = {"new": "lib/glibc-hwcaps/x86-64-v3/liba.so.1", "compat": "lib/liba.so.1"}[layout]
    assert found.lookup("liba.so.1", ("x86-64-v4", "x86-64-v3")) == bench.at(best)
