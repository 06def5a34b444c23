"""The collector as people run it: from its archive, in environments where everything it looks at is broken.

The modules that are called torch and deepspeed here are fakes of a few lines, but in the image.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.doctor.archive import archive, write_archive
from envbuild.doctor.collection import Collection
from envbuild.engines import DockerEngine
from envbuild.errors import GateError, InputError
from envbuild.pipeline.examine import Extent, collection_text, examine_host, examine_image, read_collection
from envbuild.pipeline.workbench import Workbench

Collect = Callable[..., Collection]
GOOD_TORCH = """
    __version__ = "2.5.1+cu124"
    class version: cuda = "12.4"
    class _C:
        _GLIBCXX_USE_CXX11_ABI = False
        _cuda_getArchFlags = staticmethod(lambda: "sm_80 sm_90 compute_90")
    class cuda:
        class nccl: version = staticmethod(lambda: (2, 21, 5))
        @staticmethod
        def is_available():
            import warnings
            warnings.warn("CUDA initialization: the driver\\nis too old")
            return False
"""
GOOD_DEEPSPEED = """
    import torch
    __version__ = "0.16.4"
"""


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "doctor.pyz"
    write_archive(path)
    return path


@pytest.fixture
def collect(pyz: Path, tmp_path: Path) -> Collect:
    """Run the archive; the modules that are given are all that the examined Python finds beside its own."""

    def call(
        *options: str,
        modules: dict[str, str] | None = None,
        python: str = sys.executable,
        prefix: tuple[str, ...] = (),
        **environ: str,
    ) -> Collection:
        folder = tmp_path / "módulos"
        for name, text in (modules or {}).items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "__init__.py").write_text(textwrap.dedent(text))
            (folder / f"{name}-1.dist-info").mkdir(exist_ok=True)
            (folder / f"{name}-1.dist-info/METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        base = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(folder), "PYTHONNOUSERSITE": "1"}
        argv = [*prefix, python, str(pyz), *options]
        done = subprocess.run(argv, env=base | environ, capture_output=True, text=True, timeout=100, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr == "" or prefix or "LD_PRELOAD" in environ
        return Collection.model_validate_json(done.stdout)

    return call


def test_both_imports_and_what_they_say(collect: Collect) -> None:
    found = collect(modules={"torch": GOOD_TORCH, "deepspeed": GOOD_DEEPSPEED})
    assert found.torch is not None and found.deepspeed is not None
    assert (found.torch.ok, found.torch.version, found.torch.cuda) == (True, "2.5.1+cu124", "12.4")
    assert (found.torch.cxx11_abi, found.torch.nccl) == (False, "2.21.5")
    assert found.torch.architectures == ("sm_80", "sm_90", "compute_90")
    assert (found.torch.available, found.torch.unavailable) == (False, "CUDA initialization: the driver is too old")
    assert any(name.startswith("libc.so") for name in found.torch.maps)
    assert (found.deepspeed.ok, found.deepspeed.version) == (True, "0.16.4")
    assert found.interpreter is not None and found.interpreter.version == sys.version.split()[0]
    assert {each.name for each in found.interpreter.packages} >= {"pytest"}
    assert any(each.works for each in found.compiles)
    assert found.errors == ()


@pytest.mark.parametrize(
    ("torch", "error", "signal"),
    [
        ("import ctypes; ctypes.string_at(0)", "signal 11", 11),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "signal 4", 4),
        ("import os; os._exit(0)", "exit code 0", None),
        ("import sys; sys.exit(3)", "SystemExit: 3", None),
        ("import time\nwhile True: time.sleep(1)", "not done after 4 s", None),
        ("raise ImportError('libcudart.so.12: cannot\\nopen')", "ImportError: libcudart.so.12: cannot open", None),
        ("print('{}' * 100000); import os; os.write(1, bytes(range(256)) * 40000); raise KeyError", "KeyError", None),
    ],
    ids=["segfault", "sigill", "exit", "sys.exit", "hang", "import-error", "garbage"],
)  # fmt: skip
def test_a_torch_that_takes_its_process_down(collect: Collect, torch: str, error: str, signal: int | None) -> None:
    found = collect("--timeout", "4", modules={"torch": torch, "deepspeed": GOOD_DEEPSPEED})
    assert found.torch is not None and found.deepspeed is not None
    assert not found.torch.ok and error in str(found.torch.error)
    assert found.torch.signal == signal
    # What hangs or crashes is seen to do so in torch/__init__.py: that is what the trace is for.
    if error not in ("exit code 0",) and "signal 4" not in error:
        assert any("torch/__init__.py" in line for line in found.torch.trace), found.torch.trace
    assert not found.deepspeed.ok
    assert found.interpreter is not None and found.interpreter.packages and found.machine.kernel


def test_a_crash_in_deepspeed_keeps_what_torch_said(collect: Collect) -> None:
    found = collect(modules={"torch": GOOD_TORCH, "deepspeed": "import os; os.abort()"})
    assert found.torch is not None and found.torch.ok and found.torch.nccl == "2.21.5"
    assert found.deepspeed is not None and found.deepspeed.signal == 6


def test_a_driver_that_does_not_answer_is_said_of_torch(collect: Collect) -> None:
    hangs = GOOD_TORCH.replace("import warnings", "import time; time.sleep(1000)")
    found = collect("--timeout", "4", modules={"torch": hangs, "deepspeed": GOOD_DEEPSPEED})
    assert found.torch is not None and found.torch.ok and found.torch.available is None
    assert "is_available(): not done after 4 s" in str(found.torch.unavailable)
    assert found.deepspeed is not None and "not tried" in str(found.deepspeed.error)


def test_what_is_not_installed_is_no_failure(collect: Collect) -> None:
    found = collect(modules={})
    assert found.torch is None and found.deepspeed is None


def test_modules_of_the_users_that_shadow_the_standard_library_break_the_examined_python_alone(
    collect: Collect,
) -> None:
    shadows = {"json": "raise ImportError('mine')", "argparse": "raise ImportError('mine')", "threading": "1/0"}
    found = collect(modules=shadows | {"torch": GOOD_TORCH})
    assert any("ImportError: mine" in each.error for each in found.errors if each.part == "interpreter")
    # It was asked again without the user's environment.
    assert found.interpreter is not None and found.interpreter.version and found.interpreter.packages


def test_a_preload_that_is_no_library(collect: Collect, tmp_path: Path) -> None:
    broken = tmp_path / "libbroken.so"
    broken.write_bytes(b"\x7fELF and no more")
    found = collect("--no-import", LD_PRELOAD=str(broken), LD_LIBRARY_PATH="/nonexistent::")
    gcc = next(each for each in found.tools if each.name == "g++" and each.role == "shell")
    # The loader's complaint comes first in everything that every program prints.
    assert gcc.version and gcc.says and "ld.so" not in gcc.says
    assert found.environment["LD_PRELOAD"].endswith("libbroken.so")


def test_nothing_can_be_written_anywhere(collect: Collect, tmp_path: Path) -> None:
    """Every mount is read-only, in a namespace of its own."""
    script = (
        'mount --make-rprivate / && for point in / /tmp /var/tmp /dev/shm; do mount --bind "$point" "$point" && '
        'mount -o remount,bind,ro "$point" || exit 1; done; exec "$@"'
    )
    probe = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"no mount namespace here: {probe.stderr.strip()}")
    found = collect("--quiet", modules={"torch": GOOD_TORCH}, prefix=("unshare", "-m", "sh", "-c", script, "sh"))
    assert found.torch is not None and found.torch.ok
    assert any(each.part == "temporary" for each in found.errors)
    assert found.compiles == ()


def test_the_users_folders_are_not_written_to(collect: Collect, tmp_path: Path) -> None:
    cache = tmp_path / "home/.cache/torch_extensions/py39_cu117/cpu_adam"
    cache.mkdir(parents=True)
    (cache / "lock").touch()
    (cache / "build.ninja").write_text("cxx = g++-11\ncflags = -isystem /old/torch/include -std=c++17 -march=native\n")
    writer = "import os, pathlib\npathlib.Path(os.environ['TORCH_EXTENSIONS_DIR'], 'x').mkdir(parents=True)\n"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if "módulos" not in path.parts}
    found = collect(modules={"torch": writer + textwrap.dedent(GOOD_TORCH)})
    assert found.torch is not None and found.torch.ok
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if "módulos" not in path.parts} == before
    (op,) = (each for each in found.ops if each.kind == "cached")
    assert (op.name, op.key, op.file, op.compiler) == ("cpu_adam", "py39_cu117", None, "g++-11")
    assert op.lock is not None and op.built_against == "/old/torch/include" and "-march=native" in op.flags


def test_a_large_environment(collect: Collect) -> None:
    # The kernel allows 128 KiB for one string, and a quarter of the stack's limit for all (execve(2)).
    several = {f"CUDA_FILL_{number}": "x" * 100_000 for number in range(12)}
    found = collect("--no-import", **several)
    assert all(len(found.environment[name]) < 40_000 for name in several)
    assert found.interpreter is not None and found.interpreter.version


def test_stdout_is_closed_full_or_a_broken_pipe(pyz: Path, tmp_path: Path) -> None:
    argv = f"{sys.executable} -I {pyz} --no-import"
    closed = subprocess.run(f"{argv} >&-", shell=True, capture_output=True, text=True, timeout=60)  # noqa: S602
    assert closed.returncode == 2 and "--output" in closed.stderr
    file = tmp_path / "facts.json"
    closed = subprocess.run(f"{argv} --output {file} <&- >&- 2>&-", shell=True, timeout=60)  # noqa: S602
    assert closed.returncode == 0 and read_collection(str(file)).machine.kernel
    full = subprocess.run(f"{argv} > /dev/full", shell=True, capture_output=True, text=True, timeout=60)  # noqa: S602
    assert full.returncode == 2 and full.stderr.startswith("cannot write to standard output")
    broken = subprocess.run(f"{argv} | true", shell=True, capture_output=True, text=True, timeout=60)  # noqa: S602
    assert "Traceback" not in broken.stderr


def test_an_interrupted_run_leaves_nothing(pyz: Path, tmp_path: Path) -> None:
    folder = tmp_path / "modules/torch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(
        f"import os, time; open({str(tmp_path / 'begun')!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder.parent), "TMPDIR": str(tmp_path)}
    child = subprocess.Popen([sys.executable, pyz], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    begun = tmp_path / "begun"
    while not (begun.exists() and begun.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    child.terminate()
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err) == (130, b"", b"")
    assert not list(tmp_path.glob("envbuild-doctor-*"))
    # What it had started is gone, or is no more than an entry that nobody has waited for.
    state = Path("/proc", begun.read_text(), "stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_thread_that_waits_for_ever_does_not_keep_the_collector() -> None:
    code = """
import threading
from envbuild.collector import __main__ as collector
def main():
    threading.Thread(target=threading.Event().wait).start()
    print("written", end="")
    return 3
collector.main = main
collector.run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "written", "")


def _pythons() -> dict[str, str]:
    """The interpreters of this host, one of each release: of pyenv, of a distribution, and the one that runs."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    for path in (*pyenv.glob("3.*/bin/python3.*"), *Path("/usr/bin").glob("python3.*")):
        release = path.name.removeprefix("python")
        if release.replace(".", "").isdigit() and int(release.split(".")[1]) >= 6:
            found.setdefault(release, str(path))
    return found


@pytest.mark.parametrize("python", _pythons().values(), ids=_pythons())
def test_every_python_that_is_at_hand_runs_it(collect: Collect, python: str) -> None:
    found = collect(modules={"torch": GOOD_TORCH, "deepspeed": GOOD_DEEPSPEED}, python=python, LC_ALL="C")
    assert found.interpreter is not None
    assert found.torch is not None and found.torch.version == "2.5.1+cu124"
    assert found.errors == ()
    # A path that is no ASCII, where one of the two knows nothing else: it is read, and is the same everywhere.
    modern = collect("--python", sys.executable, python=python, LC_ALL="C")
    for each in (found, modern):
        assert each.torch is not None and "/módulos/torch" in str(each.torch.file)
        assert each.interpreter is not None and any(path.endswith("/módulos") for path in each.interpreter.path)
        assert "deepspeed" in {package.name for package in each.interpreter.packages}


FAKE_CUDA = "int cuDriverGetVersion(int *version) { *version = 12040; return 0; }"


def test_the_drivers_libraries_are_called_in_children(collect: Collect, tmp_path: Path) -> None:
    """Fakes of both, so named: they answer what is written in a file, and one of them crashes."""
    driver = tmp_path / "driver"
    driver.mkdir()
    nvml, cuda = driver / "libnvidia-ml.so.535.183.01", driver / "libcuda.so.550.54.15"
    (tmp_path / "cuda.c").write_text(FAKE_CUDA)
    source = Path(__file__).parent / "fake_gpu/nvml.c"
    for output, text in ((nvml, source), (cuda, tmp_path / "cuda.c")):
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", output, text], check=True, timeout=60)
        (driver / f"{output.name.split('.so')[0]}.so.1").symlink_to(output.name)
    config = tmp_path / "nvml"
    environ = {"LD_LIBRARY_PATH": str(driver), "FAKE_NVML": str(config)}
    config.write_text(
        "driver 535.104.05\ngpu GPU-1|NVIDIA H200|9.0|143771|14|0\ngpu GPU-2|NVIDIA V100|7.0|16384|14|-1\n"
        "gpu GPU-3|NVIDIA GB10|12.1|0|14|-1\n"
    )
    found = collect("--no-import", **environ).gpu
    assert (found.nvml, found.nvml_error, found.cuda) == ("535.104.05", None, "12.4")
    assert [(each.name, each.sm, each.memory, each.mig) for each in found.devices] == [
        ("NVIDIA H200", "9.0", 143771 << 20, False), ("NVIDIA V100", "7.0", 16384 << 20, False),
        ("NVIDIA GB10", "12.1", None, False),
    ]  # fmt: skip
    assert found.libcuda[f"{driver}/libcuda.so.1"] == "550.54.15"
    config.write_text("init 18\n")
    mismatch = collect("--no-import", **environ).gpu
    assert mismatch.nvml == "535.183.01" and "NVML error 18" in str(mismatch.nvml_error)
    (tmp_path / "cuda.c").write_text("__attribute__((constructor)) static void die(void) { __builtin_trap(); }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", nvml, tmp_path / "cuda.c"], check=True, timeout=60)
    crashed = collect("--no-import", **environ)
    assert "ended by signal" in str(crashed.gpu.nvml_error) and crashed.gpu.cuda == "12.4"


def test_measurements_are_bounded_and_leave_no_file(collect: Collect, tmp_path: Path) -> None:
    folder = tmp_path / "nvme"
    folder.mkdir()
    found = collect("--no-import", "--bench", "--nvme", str(folder), "--nvme", str(tmp_path / "none"))
    there, missing = found.nvme
    assert there.exists and there.writable and there.kind and there.options
    if there.direct:
        assert there.write_bandwidth and there.read_bandwidth
    assert not missing.exists and missing.error
    assert found.bench is not None and found.bench.memory_bandwidth
    assert list(folder.iterdir()) == []


def test_the_host_is_examined_with_its_own_environment(store_home: Path, tmp_path: Path) -> None:
    bench = Workbench()
    found = examine_host(bench, python=sys.executable, extent=Extent(imports=False))
    assert found.interpreter is not None and found.interpreter.executable == sys.executable
    written = tmp_path / "facts.json"
    written.write_text(collection_text(found))
    assert read_collection(str(written)) == found
    with pytest.raises(InputError, match="is not there"):
        examine_host(bench, python="/nonexistent/python")
    shell = tmp_path / "python"
    shell.write_text("#!/bin/sh\nexit 3\n")
    shell.chmod(0o755)
    dead = examine_host(bench, python=str(shell), extent=Extent(imports=False))
    assert any(each.part == "interpreter" for each in dead.errors)


def test_an_image_is_examined_from_inside(proven: dict[str, object], engine: DockerEngine) -> None:
    bench = Workbench()
    image = str(proven["tags"][0])  # type: ignore[index]
    found = examine_image(bench, image)
    assert found.image == image and found.machine.container == "docker"
    assert found.torch is not None and found.torch.ok and found.torch.cxx11_abi is True
    assert found.deepspeed is not None and found.deepspeed.ok and found.deepspeed.accelerator == "cpu"
    assert {"cpu_adam", "deepspeed_shm_comm"} <= {op.name for op in found.ops if op.kind == "prebuilt"}
    assert found.errors == ()
    with pytest.raises(GateError, match="no image"):
        examine_image(bench, "envbuild.test/none:none")


def test_an_image_without_python(engine: DockerEngine, tag: str, tmp_path: Path) -> None:
    import tarfile

    (tmp_path / "file").write_text("nothing else")
    with tarfile.open(tmp_path / "root.tar", "w") as packed:
        packed.add(tmp_path / "file", "file")
    engine.import_root(tmp_path / "root.tar", tag)
    with pytest.raises(GateError, match="no Python in it") as caught:
        examine_image(Workbench(), tag)
    assert "--python" in caught.value.hint


def test_a_limit_on_open_files_and_an_archive_that_is_there(store_home: Path, pyz: Path) -> None:
    first, second = archive(store_home / "cache"), archive(store_home / "cache")
    assert first == second and first.read_bytes() == pyz.read_bytes()
    few = subprocess.run(
        [sys.executable, "-I", pyz, "--no-import"], capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )  # fmt: skip
    document: Any = json.loads(few.stdout)
    assert document["machine"]["nofile"] == [64, 64]
