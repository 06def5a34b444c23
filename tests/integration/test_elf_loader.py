"""The loader's choice, with the loader of this machine as the judge: every case is compiled and asked of both."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from envbuild.elf import Conditions, ElfError, FolderRoot, Loaded, Process, load, read
from envbuild.elf.cache import parse

_HOST = FolderRoot(Path("/"))
_INTERP = read(Path("/bin/sh"), "/bin/sh").interp or ""
_IGNORED = (Path(_INTERP).name, "linux-vdso.so.1")


def _run(argv: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **environment}, timeout=60
    )


@pytest.fixture(scope="session")
def cpu() -> str:
    """The level of this machine's CPU, as its loader sees it."""
    return max(
        re.findall(r"(x86-64-v\d) \(supported, searched\)", _run([_INTERP, "--help"]).stdout), default="x86-64-v1"
    )


@dataclass
class Bench:
    """A folder in which libraries are compiled."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)

    def make(
        self, path: str, *needs: str, soname: str | None = None, rpath: str = "", runpath: str = "",
        code: str = "", flags: tuple[str, ...] = (),
    ) -> Path:  # fmt: skip
        """Compile one library (or, when it is called ``main``, a program) that needs others of this folder."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"\W", "_", target.name.partition(".")[0])
        source = target.with_suffix(".c")
        source.write_text(
            code or ("int main(void) { return 0; }" if stem == "main" else f"int {stem}(void) {{ return 1; }}")
        )
        argv = ["gcc", "-o", str(target), str(source), "-Wl,--no-as-needed", "-Wl,--unresolved-symbols=ignore-all"]
        if stem != "main":
            argv += ["-shared", "-fPIC", f"-Wl,-soname,{target.name if soname is None else soname}"]
        if rpath or runpath:
            argv += [f"-Wl,-rpath,{rpath or runpath}", "-Wl,--disable-new-dtags" if rpath else "-Wl,--enable-new-dtags"]
        argv += [str(self.root / need) for need in needs]
        done = _run([*argv, *flags])
        assert done.returncode == 0, done.stderr
        return target

    def at(self, path: str) -> str:
        """A path in the folder, as text."""
        return str(self.root / path)


Case = Callable[[Bench], "dict[str, str | None]"]
CASES: list[Case] = []


def case(function: Case) -> Case:
    """Register a case: it compiles, and returns where the libraries that matter have to come from."""
    CASES.append(function)
    return function


@case
def rpath_is_inherited(bench: Bench) -> dict[str, str | None]:
    bench.make("deep/libb.so")
    bench.make("near/liba.so", "deep/libb.so")
    bench.make("main", "near/liba.so", rpath=f"{bench.at('near')}:{bench.at('deep')}")
    return {"libb.so": "deep/libb.so"}


@case
def rpath_is_inherited_from_the_middle(bench: Bench) -> dict[str, str | None]:
    bench.make("deep/libc1.so")
    bench.make("mid/libb.so", "deep/libc1.so")
    bench.make("near/liba.so", "mid/libb.so", rpath=f"{bench.at('mid')}:{bench.at('deep')}")
    bench.make("main", "near/liba.so", runpath=bench.at("near"))
    return {"libb.so": "mid/libb.so", "libc1.so": "deep/libc1.so"}


@case
def runpath_is_not_inherited(bench: Bench) -> dict[str, str | None]:
    bench.make("deep/libb.so")
    bench.make("near/liba.so", "deep/libb.so")
    bench.make("main", "near/liba.so", runpath=f"{bench.at('near')}:{bench.at('deep')}")
    return {"libb.so": None}


@case
def a_runpath_in_the_asking_object_switches_off_the_rpaths_above(bench: Bench) -> dict[str, str | None]:
    bench.make("deep/libb.so")
    bench.make("near/liba.so", "deep/libb.so", runpath="/nowhere")
    bench.make("main", "near/liba.so", rpath=f"{bench.at('near')}:{bench.at('deep')}")
    return {"libb.so": None}


@case
def a_runpath_in_the_middle_does_not_switch_off_the_rpath_of_the_top(bench: Bench) -> dict[str, str | None]:
    bench.make("deep/libc1.so")
    bench.make("mid/libb.so", "deep/libc1.so")
    bench.make("near/liba.so", "mid/libb.so", runpath=bench.at("mid"))
    bench.make("main", "near/liba.so", rpath=f"{bench.at('near')}:{bench.at('deep')}")
    return {"libc1.so": "deep/libc1.so"}


@case
def rpath_comes_before_the_library_path(bench: Bench) -> dict[str, str | None]:
    bench.make("own/liba.so")
    bench.make("env/liba.so")
    bench.make("main", "own/liba.so", rpath=bench.at("own"))
    bench.env["LD_LIBRARY_PATH"] = bench.at("env")
    return {"liba.so": "own/liba.so"}


@case
def the_library_path_comes_before_runpath(bench: Bench) -> dict[str, str | None]:
    bench.make("own/liba.so")
    bench.make("env/liba.so")
    bench.make("main", "own/liba.so", runpath=bench.at("own"))
    bench.env["LD_LIBRARY_PATH"] = f"/nowhere;{bench.at('env')}/"
    return {"liba.so": "env/liba.so"}


@case
def rpath_next_to_runpath_counts_for_nothing(bench: Bench) -> dict[str, str | None]:
    # No linker writes both: an unused entry of the dynamic section becomes a DT_RUNPATH to the string of the soname,
    # which is a folder here.
    bench.make("old/libb.so")
    bench.make("old/libc1.so")
    bench.make("new/libb.so", "old/libc1.so")
    library = bench.make("liba.so", "old/libb.so", rpath=bench.at("old"), soname=bench.at("new"))
    data = bytearray(library.read_bytes())
    soname = next(m for m in re.finditer(rb"\x0e\0{7}(.{8})", data, re.DOTALL) if m.start() % 8 == 0)
    null = next(at for at in range(soname.start(), len(data), 16) if data[at : at + 16] == bytes(16))
    data[null : null + 16] = struct.pack("<Q", 29) + soname[1]
    library.write_bytes(data)
    (bench.root / "liba.so").rename(bench.root / "both.so")
    bench.make("main", "both.so")
    assert read(bench.root / "both.so", "both").runpath == (bench.at("new"),)
    # The program asks for the soname, which has a slash: a path, taken as it is.
    shutil.move(bench.root / "new", bench.root / "kept")
    (bench.root / "both.so").rename(bench.root / "new")
    bench.env["LD_LIBRARY_PATH"] = bench.at("kept")
    return {"libb.so": "kept/libb.so", "libc1.so": None, bench.at("new"): "new"}


@case
def origin_is_the_folder_of_the_object(bench: Bench) -> dict[str, str | None]:
    bench.make("app/lib/deps/libb.so")
    bench.make("app/lib/liba.so", "app/lib/deps/libb.so", runpath="${ORIGIN}/deps")
    bench.make("app/bin/main", "app/lib/liba.so", runpath="$ORIGIN/../lib")
    (bench.root / "main").symlink_to("app/bin/main")
    return {"liba.so": "app/bin/../lib/liba.so", "libb.so": "app/bin/../lib/deps/libb.so"}


@case
def lib_and_platform_are_those_of_the_loader(bench: Bench) -> dict[str, str | None]:
    lib = "lib64" if not Path("/lib/x86_64-linux-gnu").is_dir() else "lib/x86_64-linux-gnu"
    bench.make(f"{lib}/liba.so")
    bench.make(f"{lib}/libb.so")
    bench.make("$LIBRARY/libb.so")
    bench.make("main", f"{lib}/liba.so", f"{lib}/libb.so", runpath="$ORIGIN/$LIBRARY:$ORIGIN/$LIB")
    return {"liba.so": f"{lib}/liba.so", "libb.so": "$LIBRARY/libb.so"}


@case
def what_is_loaded_under_its_soname_is_taken_again(bench: Bench) -> dict[str, str | None]:
    bench.make("one/libx.so", soname="libreal.so.1")
    bench.make("two/libreal.so.1")
    bench.make("libb.so", "two/libreal.so.1", runpath=bench.at("two"))
    shutil.copy(bench.root / "one/libx.so", bench.root / "one/libreal.so.1")
    bench.make("main", "one/libx.so", "libb.so", runpath=f"{bench.at('one')}:{bench.root}")
    return {"libreal.so.1": "one/libreal.so.1"}


@case
def one_file_under_two_names_is_loaded_once(bench: Bench) -> dict[str, str | None]:
    bench.make("libx.so.1.2", soname="")
    (bench.root / "libx.so").symlink_to("libx.so.1.2")
    bench.make("liba.so", "libx.so", runpath=str(bench.root))
    bench.make("main", "liba.so", "libx.so.1.2", runpath=str(bench.root))
    return {}


@case
def breadth_comes_first(bench: Bench) -> dict[str, str | None]:
    # Both libx.so and liby.so are asked for twice: once by a library and once by the program, or by an earlier one.
    for folder in ("two", "three"):
        bench.make(f"{folder}/libx.so")
        bench.make(f"{folder}/liby.so")
    bench.make("one/liba.so", "two/libx.so", "two/liby.so", runpath=bench.at("two"))
    bench.make("one/libb.so", "three/liby.so", runpath=bench.at("three"))
    folders = f"{bench.at('one')}:{bench.at('three')}"
    bench.make("main", "one/liba.so", "one/libb.so", "three/libx.so", runpath=folders)
    return {"libx.so": "three/libx.so", "liby.so": "two/liby.so"}


@case
def hardware_folders_come_first(bench: Bench) -> dict[str, str | None]:
    bench.make("lib/liba.so")
    bench.make("lib/glibc-hwcaps/x86-64-v2/liba.so")
    bench.make("lib/glibc-hwcaps/x86-64-v9/liba.so")
    bench.make("main", "lib/liba.so", runpath=bench.at("lib"))
    return {"liba.so": "lib/glibc-hwcaps/x86-64-v2/liba.so"}


@case
def files_for_another_machine_are_passed_over(bench: Bench) -> dict[str, str | None]:
    for folder, offset, value in (("arm", 18, b"\xb7\0"), ("half", 4, b"\x01")):
        data = bytearray(bench.make(f"{folder}/liba.so").read_bytes())
        data[offset : offset + len(value)] = value
        (bench.root / folder / "liba.so").write_bytes(data)
    bench.make("lib/liba.so")
    bench.make("main", "lib/liba.so", runpath=":".join(bench.at(folder) for folder in ("arm", "half", "lib")))
    return {"liba.so": "lib/liba.so"}


@case
def a_preload_wins(bench: Bench) -> dict[str, str | None]:
    bench.make("pre/liba.so")
    bench.make("lib/liba.so")
    bench.make("main", "lib/liba.so", runpath=bench.at("lib"))
    bench.env["LD_PRELOAD"] = f"{bench.at('pre/liba.so')}:libnowhere.so"
    return {"liba.so": "pre/liba.so"}


@case
def the_old_hardware_folders_are_searched_as_long_as_the_loader_knows_them(bench: Bench) -> dict[str, str | None]:
    bench.make("lib/liba.so")
    bench.make("lib/tls/liba.so")
    bench.make("main", "lib/liba.so", rpath=bench.at("lib"))
    legacy = "Legacy HWCAP" in _run([_INTERP, "--help"]).stdout
    return {"liba.so": "lib/tls/liba.so" if legacy else "lib/liba.so"}


@case
def default_folders_can_be_forbidden(bench: Bench) -> dict[str, str | None]:
    bench.make("lib/liba.so", flags=("-Wl,-z,nodefaultlib",))
    bench.make("main", "lib/liba.so", runpath=bench.at("lib"), flags=("-Wl,-z,nodefaultlib",))
    return {"liba.so": "lib/liba.so", "libc.so.6": None}


@pytest.mark.parametrize("build", CASES, ids=lambda function: function.__name__)
def test_the_loader_agrees(build: Case, tmp_path: Path, cpu: str) -> None:
    bench = Bench(tmp_path.resolve())
    expected = build(bench)
    main = bench.at("main")
    conditions = Conditions(
        library_path=bench.env.get("LD_LIBRARY_PATH", ""), preload=bench.env.get("LD_PRELOAD", ""), cpu=cpu, folder="/"
    )

    process = load(_HOST, main, conditions)

    chosen = {choice.name: choice.path for choice in process.start.choices}
    assert {name: chosen[name] for name in expected} == {
        name: path and bench.at(path) for name, path in expected.items()
    }
    assert _ours(process) == _theirs([main], **bench.env)


def _ours(process: Process) -> dict[str, str | None]:
    """Where every library comes from, by the name under which it was first asked for."""
    asked = [choice for choice in process.start.choices if choice.why not in ("start", "loaded")]
    return {choice.name: choice.path for choice in asked if choice.why != "preload" or choice.path}


def _theirs(argv: list[str], **environment: str) -> dict[str, str | None]:
    """The same from the loader: LD_TRACE_LOADED_OBJECTS makes it tell and not run."""
    output = _run(argv, LD_TRACE_LOADED_OBJECTS="1", **environment).stdout
    found: dict[str, str | None] = {}
    for line in output.splitlines():
        match = re.fullmatch(r"\t(\S+)(?: => (.+?))?(?: \(0x[0-9a-f]+\))?", line)
        assert match, line
        if Path(match[1]).name not in _IGNORED:
            found[match[1]] = None if match[2] == "not found" else match[2] or match[1]
    return found


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
        said = _run([main], LD_LIBRARY_PATH=bench.at(folder), LD_BIND_NOW="").stderr
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
    done = _run([sys.executable, "-I", "-c", _DLOPEN, str(bench.root), *argv])

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
    assert (result.works, _run([main]).returncode == 0) == (works, works)


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
        main = Loaded(path=str(path), real=str(path), elf=replace(elf, interp=_INTERP))
        process = Process(_HOST, main, Conditions(cpu=cpu))
        done = _run([_INTERP, "--list", str(path)])
        if done.returncode == 0:
            listed = re.findall(r"^\t(\S+) => (\S+)", done.stdout, re.MULTILINE)
            theirs = {name: path for name, path in listed if Path(name).name not in _IGNORED}
            assert _ours(process) == theirs, path
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
    done = _run(ldconfig)
    assert done.returncode == 0, done.stderr

    found = parse(cache.read_bytes(), "x86_64")

    printed = _run(["/sbin/ldconfig", "-C", str(cache), "-p"]).stdout
    lines = re.findall(r"^\t(\S+) \(libc6,x86-64\) => (\S+)", printed, re.MULTILINE)
    assert {found.lookup(name) for name, _ in lines} == {path for _, path in lines}
    assert bench.at("lib/libb.so.10") in dict(lines).values()
    # In the old layout the loader does not find the names of the hardware folders (seen in a chroot, glibc 2.36).
    best = {"new": "lib/glibc-hwcaps/x86-64-v3/liba.so.1", "compat": "lib/liba.so.1"}[layout]
    assert found.lookup("liba.so.1", ("x86-64-v4", "x86-64-v3")) == bench.at(best)
