"""What the tests of the loader's choice share: libraries that are compiled, cases, and the loader of this machine."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.elf import Process, read

INTERP = read(Path("/bin/sh"), "/bin/sh").interp or ""
IGNORED = (Path(INTERP).name, "linux-vdso.so.1")


def run(argv: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program under these variables and no others."""
    return subprocess.run(
        argv, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **environment}, timeout=60
    )


def cpu_level() -> str:
    """The level of this machine's CPU, as its loader sees it."""
    return max(re.findall(r"(x86-64-v\d) \(supported, searched\)", run([INTERP, "--help"]).stdout), default="x86-64-v1")


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
        done = run([*argv, *flags])
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
    legacy = "Legacy HWCAP" in run([INTERP, "--help"]).stdout
    return {"liba.so": "lib/tls/liba.so" if legacy else "lib/liba.so"}


@case
def default_folders_can_be_forbidden(bench: Bench) -> dict[str, str | None]:
    bench.make("lib/liba.so", flags=("-Wl,-z,nodefaultlib",))
    bench.make("main", "lib/liba.so", runpath=bench.at("lib"), flags=("-Wl,-z,nodefaultlib",))
    return {"liba.so": "lib/liba.so", "libc.so.6": None}


@case
def the_library_path_may_name_a_folder_twice_and_the_current_one_by_nothing(bench: Bench) -> dict[str, str | None]:
    for folder in ("one", "two"):
        bench.make(f"{folder}/liba.so")
    bench.make("two/libb.so")
    bench.make("libc1.so")
    bench.make("three/libc1.so")
    bench.make("main", "one/liba.so", "two/libb.so", "three/libc1.so", runpath=bench.at("three"))
    one, two = bench.at("one"), bench.at("two")
    bench.env["LD_LIBRARY_PATH"] = f"{one}:{two}//:{one}:;{two}:"
    return {"liba.so": "one/liba.so", "libb.so": "two/libb.so", "libc1.so": "libc1.so"}


@case
def the_parent_of_a_linked_folder_is_that_of_the_real_one(bench: Bench) -> dict[str, str | None]:
    bench.make("real/deep/deps/libb.so")
    bench.make("deps/libb.so")
    bench.make("real/deep/lib/liba.so", "deps/libb.so", runpath="$ORIGIN/../deps")
    (bench.root / "short").symlink_to(bench.at("middle"))
    (bench.root / "middle").symlink_to("real/./deep/../deep/lib")
    bench.make("main", "real/deep/lib/liba.so", runpath=bench.at("short"))
    return {"liba.so": "short/liba.so", "libb.so": "short/../deps/libb.so"}


@case
def the_origin_of_a_linked_library_is_the_folder_of_the_link(bench: Bench) -> dict[str, str | None]:
    bench.make("far/deps/libb.so")
    bench.make("near/deps/libb.so")
    bench.make("far/liba.so.1", "far/deps/libb.so", soname="liba.so", runpath="$ORIGIN/deps")
    (bench.root / "near/liba.so").symlink_to("../far/liba.so.1")
    bench.make("main", "far/liba.so.1", runpath=bench.at("near"))
    return {"liba.so": "near/liba.so", "libb.so": "near/deps/libb.so"}


@case
def what_is_not_there_has_no_parent(bench: Bench) -> dict[str, str | None]:
    bench.make("lib/liba.so")
    bench.make("own/liba.so")
    (bench.root / "loop").symlink_to("loop")
    folders = ("nowhere/../lib", "loop/../lib", "main/../lib", "lib/liba.so", "own")
    bench.make("main", "lib/liba.so", runpath=":".join(map(bench.at, folders)))
    return {"liba.so": "own/liba.so"}


@case
def two_that_lead_to_one_another_come_to_an_end(bench: Bench) -> dict[str, str | None]:
    bench.make("b/libb.so")
    bench.make("a/liba.so", "b/libb.so", runpath="$ORIGIN/../b")
    bench.make("b/libb.so", "a/liba.so", runpath="$ORIGIN/../a")
    bench.make("main", "a/liba.so", runpath=bench.at("a"))
    return {"libb.so": "a/../b/libb.so"}


@case
def a_prefix_of_its_own_brings_its_own_libraries(bench: Bench) -> dict[str, str | None]:
    # As conda has it: bin/python with an RPATH to ../lib, which is inherited, and a copy of what the system has.
    for folder in ("env/lib", "system"):
        bench.make(f"{folder}/libstdc++.so.6.0.29", soname="libstdc++.so.6")
        (bench.root / folder / "libstdc++.so.6").symlink_to("libstdc++.so.6.0.29")
    bench.make("env/lib/python3/site-packages/ext.so", "system/libstdc++.so.6")
    bench.make("env/lib/libpython.so", "env/lib/python3/site-packages/ext.so")
    bench.make("env/bin/main", "env/lib/libpython.so", "env/lib/python3/site-packages/ext.so",
               rpath="$ORIGIN/../lib:$ORIGIN/../lib/python3/site-packages")  # fmt: skip
    bench.env["LD_LIBRARY_PATH"] = bench.at("system")
    (bench.root / "main").symlink_to("env/bin/main")
    return {"libstdc++.so.6": "env/bin/../lib/libstdc++.so.6"}


def ours(process: Process) -> dict[str, str | None]:
    """Where every library comes from, by the name under which it was first asked for."""
    asked = [choice for choice in process.start.choices if choice.why not in ("start", "loaded")]
    return {choice.name: choice.path for choice in asked if choice.why != "preload" or choice.path}


def theirs(argv: list[str], **environment: str) -> dict[str, str | None]:
    """The same from the loader, in the current folder: LD_TRACE_LOADED_OBJECTS makes it tell and not run."""
    output = run(argv, LD_TRACE_LOADED_OBJECTS="1", **environment).stdout
    found: dict[str, str | None] = {}
    for line in output.splitlines():
        match = re.fullmatch(r"\t(\S+)(?: => (.+?))?(?: \(0x[0-9a-f]+\))?", line)
        assert match, line
        if Path(match[1]).name not in IGNORED:
            path = match[2] or match[1]
            # What the current folder has is named from there.
            absolute = path if path.startswith("/") else f"{Path.cwd()}/{path.removeprefix('./')}"
            found[match[1]] = None if path == "not found" else absolute
    return found
