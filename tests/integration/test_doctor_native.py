"""Native faults in real containers of the proven image: the loader fails, doctor names it first, and its remedy helps.

What breaks them is made in the container by the image's own compiler. Every case says three things: what really fails
(with the real loader's words), the finding that has to stand first, and, where that has a command, that the same thing
works in a container where the command was run before.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from envbuild import facts
from envbuild.doctor.archive import archive
from envbuild.doctor.checks import CHECKS
from envbuild.doctor.collection import Collection
from envbuild.doctor.order import flat, groups
from envbuild.doctor.run import run
from envbuild.doctor.view import View
from envbuild.engines import ContainerResult, DockerEngine
from envbuild.model import Finding, Severity
from envbuild.pipeline.examine import Extent, image_spec
from envbuild.pipeline.runs import running
from envbuild.pipeline.workbench import Workbench

pytestmark = pytest.mark.integration

SITE = "/opt/venv/lib/python3.11/site-packages"
ADAM = f"{SITE}/deepspeed/ops/adam/cpu_adam_op.cpython-311-x86_64-linux-gnu.so"
CACHE = "/root/.cache/torch_extensions/py311_cpu/cpu_adam"
LIB = "/usr/lib/x86_64-linux-gnu"
GCC = "gcc-12 -shared -fPIC -Wl,--no-as-needed -xc -"
# A libstdc++ that has everything but the symbols of GCC 12: the loader compares the names of versions.
OLD = f"sed 's/GLIBCXX_3\\.4\\.30/GLIBCXX_3.4.3x/g' {LIB}/libstdc++.so.6.0.30 >"
OPEN = "python -c 'import torch, ctypes, sys; ctypes.CDLL(sys.argv[1], 2)'"


@dataclass(frozen=True)
class Fault:
    """A way to break a container.

    Attributes:
        breaks: Shell, as root.
        fails: A command that then fails, and ``says`` in its output.
        rule: Of the finding that stands first; ``words`` are in its message.
        healed: Whether the finding's command, run before, makes ``fails`` work.
    """

    breaks: str
    fails: str
    says: str
    rule: str
    words: tuple[str, ...]
    healed: bool = True
    python: str | None = None


_CONDA = "/root/miniconda3/envs/train"
_MAIN = "int Py_BytesMain(int, char **); int main(int c, char **v) { return Py_BytesMain(c, v); }"
_STALE = 'extern int f(void) __asm__("_ZN3c103OldC1Ev"); int g(void) { return f(); }'
_NINJA = f"cxx = c++\\ncflags = -isystem {SITE}/torch/include -std=c++20 -march=x86-64\\n"
_ASKS = "int ncclCommRegister(void); int use(void) { return ncclCommRegister(); }"

FAULTS = {
    "an older libstdc++ in LD_LIBRARY_PATH": Fault(
        f"mkdir /opt/old; {OLD} /opt/old/libstdc++.so.6; export LD_LIBRARY_PATH=/opt/old:/usr/local/lib",
        f"{OPEN} {ADAM}",
        "version `GLIBCXX_3.4.30' not found",
        "libstdcxx.shadowed",
        ("/opt/old/libstdc++.so.6", "GLIBCXX_3.4.29 at most", "LD_LIBRARY_PATH"),
    ),
    "text in the place of libgomp": Fault(
        "mkdir /opt/bad; echo 'GROUP ( libgomp.so.1.0.0 )' > /opt/bad/libgomp.so.1; export LD_LIBRARY_PATH=:/opt/bad/",
        f"{OPEN} {ADAM}",
        "/opt/bad/libgomp.so.1: file too short",
        "unfit.damaged",
        ("/opt/bad/libgomp.so.1", "is not an ELF file", "LD_LIBRARY_PATH"),
    ),
    "a folder in the place of libgcc_s, as a mount makes it": Fault(
        "mkdir -p /opt/bad/libgcc_s.so.1; export LD_LIBRARY_PATH=/opt/bad",
        f"{OPEN} {ADAM}",
        "/opt/bad/libgcc_s.so.1: cannot read file data",
        "unfit.damaged",
        ("/opt/bad/libgcc_s.so.1", "(a folder)", "LD_LIBRARY_PATH"),
    ),
    "a stand-in for libstdc++ that has no symbol versions": Fault(
        f"mkdir /opt/bad; echo 'int x;' | {GCC} -Wl,-soname,libstdc++.so.6 -o /opt/bad/libstdc++.so.6; "
        "export LD_LIBRARY_PATH=/opt/bad",
        f"{OPEN} {ADAM}",
        "version GLIBCXX_3.4",
        "unfit.unversioned",
        ("/opt/bad/libstdc++.so.6", "LD_LIBRARY_PATH", "no symbol versions"),
    ),
    "libc10 of another torch": Fault(
        f"mkdir -p /opt/libtorch/lib; echo 'int x;' | {GCC} -Wl,-soname,libc10.so -o /opt/libtorch/lib/libc10.so; "
        "export LD_LIBRARY_PATH=/opt/libtorch/lib",
        f"{OPEN} {ADAM}",
        "undefined symbol",
        "loader.other-torch",
        ("/opt/libtorch/lib/libc10.so is loaded, by LD_LIBRARY_PATH", f"{SITE}/torch/lib"),
    ),
    "an older libstdc++ in a hardware folder, of a folder named from the working directory": Fault(
        f"mkdir -p /opt/old/lib/glibc-hwcaps/x86-64-v2; {OLD} /opt/old/lib/glibc-hwcaps/x86-64-v2/libstdc++.so.6; "
        "cd /opt/old; export LD_LIBRARY_PATH=:lib/",
        f"{OPEN} {ADAM}",
        "version `GLIBCXX_3.4.30' not found",
        "libstdcxx.shadowed",
        ("x86-64-v2/libstdc++.so.6", "GLIBCXX_3.4.29 at most", "LD_LIBRARY_PATH"),
    ),
    "a package of conda's that comes before torch": Fault(
        f"mkdir -p {_CONDA}/bin {_CONDA}/lib; {OLD} {_CONDA}/lib/libstdc++.so.6; "
        f"echo '{_MAIN}' | gcc-12 -o {_CONDA}/bin/python -xc - -xnone {LIB}/libpython3.11.so.1.0; "
        f"echo 'int x;' | {GCC} -o {_CONDA}/lib/snappy.so -xnone {LIB}/libstdc++.so.6 -Wl,-rpath,{_CONDA}/lib; "
        f"export PYTHONPATH={SITE} PATH={_CONDA}/bin:$PATH",
        f'python -c \'import ctypes; ctypes.CDLL("{_CONDA}/lib/snappy.so"); import torch; ctypes.CDLL("{ADAM}")\'',
        "version `GLIBCXX_3.4.30' not found",
        "libstdcxx.waiting",
        (f"{_CONDA}/lib/libstdc++.so.6 (of the conda environment {_CONDA})", "imported before torch"),
        healed=False,
        python=f"{_CONDA}/bin/python",
    ),
    "an op of the old string ABI": Fault(
        "echo '#include <string>\nnamespace c10 { struct Error { Error(int, std::string); }; }\n"
        'extern "C" int make() { c10::Error e(1, std::string("x")); return 0; }\' | '
        f"g++-12 -D_GLIBCXX_USE_CXX11_ABI=0 -shared -fPIC -xc++ - -o {ADAM}",
        f"{OPEN} {ADAM}",
        "undefined symbol: _ZN3c105ErrorC1EiSs",
        "abi.symbols",
        ("op cpu_adam", "_ZN3c105ErrorC1EiSs", "names of the old C++ string ABI"),
        healed=False,
    ),
    "a stale op in the JIT cache": Fault(
        f"mkdir -p {CACHE}; echo '{_STALE}' | {GCC} -o {CACHE}/cpu_adam.so; printf '{_NINJA}' > {CACHE}/build.ninja",
        f"test ! -e {CACHE}/cpu_adam.so || {OPEN} {CACHE}/cpu_adam.so",
        "undefined symbol: _ZN3c103OldC1Ev",
        "jit.stale",
        ("_ZN3c103OldC1Ev", f"{CACHE}/cpu_adam.so"),
    ),
    "a lock in the JIT cache": Fault(
        f"mkdir -p {CACHE}; printf '{_NINJA}' > {CACHE}/build.ninja; touch -d '3 hours ago' {CACHE}/lock",
        f"test ! -e {CACHE}/lock",
        "",
        "jit.locked",
        ("3 hours", CACHE),
    ),
    "half an op": Fault(
        f"head -c 9000 {ADAM} > /tmp/half && cat /tmp/half > {ADAM}",
        f"{OPEN} {ADAM}",
        "Bus error",
        "ops.damaged",
        ("op cpu_adam",),
        healed=False,
    ),
    "an older NCCL before the wheel's": Fault(
        f"mkdir -p {SITE}/nvidia/nccl/lib /opt/nccl; cd /tmp; "
        f"echo 'int ncclCommRegister(void) {{ return 0; }}' | {GCC} -Wl,-soname,libnccl.so.2 "
        f"-o {SITE}/nvidia/nccl/lib/libnccl.so.2; "
        f"echo 'int ncclSend(void) {{ return 0; }}' | {GCC} -Wl,-soname,libnccl.so.2 -o /opt/nccl/libnccl.so.2; "
        f"echo '{_ASKS}' | {GCC} -Wl,-rpath,'$ORIGIN/../../nvidia/nccl/lib' -Wl,-soname,libtorch_cuda.so "
        f"-o {SITE}/torch/lib/libtorch_cuda.so -xnone {SITE}/nvidia/nccl/lib/libnccl.so.2; "
        "export LD_LIBRARY_PATH=/opt/nccl",
        f"{OPEN} {SITE}/torch/lib/libtorch_cuda.so",
        "undefined symbol: ncclCommRegister",
        "nccl.symbols",
        ("/opt/nccl/libnccl.so.2, by LD_LIBRARY_PATH", "ncclCommRegister"),
    ),
}


@pytest.fixture(scope="module")
def shell(proven: dict[str, object], engine: DockerEngine) -> Callable[..., ContainerResult]:
    """Run shell lines as root in a container of the proven image, and what the collector then says, or a command."""
    bench = Workbench()

    def run_in(before: str, command: str = "", *, python: str | None = None) -> ContainerResult:
        extent = Extent(imports=False)
        with running(bench) as own:
            spec = image_spec(
                str(proven["id"]),
                own,
                archive(bench.cache),
                "/opt/venv/bin/python",
                python=python,
                extent=extent,
                gpus=(),
            )
            last = command or f"exec {shlex.join(spec.argv)}"
            spec = dataclasses.replace(
                spec, argv=("sh", "-c", f"{before}; {last}"), user="0", cap_drop_all=False, env=(("HOME", "/root"),)
            )
            return bench.engine.run(spec, timeout=200)

    return run_in


def said(result: ContainerResult) -> tuple[Finding, ...]:
    """What all checks say of it, roots first."""
    assert result.exit_code == 0, result.stderr
    view = View(collection=Collection.model_validate_json(result.stdout), facts=facts.load())
    return flat(groups(run(view), CHECKS))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_the_loader_refuses_is_named_first_and_the_remedy_helps(
    fault: Fault, shell: Callable[..., ContainerResult]
) -> None:
    real = shell(fault.breaks, fault.fails)
    assert real.exit_code != 0 and fault.says in real.stderr + real.stdout, real
    # PYTHONPATH is a crutch of these tests: it lends an interpreter the packages of another.
    first = next(each for each in said(shell(fault.breaks, python=fault.python)) if each.subject != "PYTHONPATH")
    assert first.rule == fault.rule, first
    assert first.severity is (Severity.WARNING if fault.rule == "libstdcxx.waiting" else Severity.ERROR)
    for word in fault.words:
        assert word in first.message, first.message
    if fault.healed:
        healed = shell(f"{fault.breaks}; {first.command}", fault.fails)
        assert healed.exit_code == 0, (first.command, healed)
    else:
        assert not first.command.startswith("rm"), first
