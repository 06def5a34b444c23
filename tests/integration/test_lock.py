"""Locks by the real uv: of a real row with this host's own pip settings, and of self-made wheels behind a token."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild import lock, project, store
from envbuild.errors import InputError
from envbuild.events import discard
from envbuild.matrix.load import load as load_matrix
from envbuild.model import Environment, Lock
from envbuild.site import config, pipconf
from envbuild.site.config import SiteConfig
from envbuild.site.pip import PipSettings, pip_settings

pytestmark = pytest.mark.integration

TOKEN = "canary-5f3c"
PLATFORM = "linux/amd64"


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path / "store"))


def resolve(env: Environment, pip: PipSettings, site: SiteConfig | None = None) -> Lock:
    return lock.resolve(env, platform=PLATFORM, pip=pip, site=site or SiteConfig(), timeout=60)


# --- a real row -------------------------------------------------------------------------------------------------------


def test_the_cpu_row_locks_with_this_hosts_own_pip_settings(tmp_path: Path) -> None:
    site = config.load(None, os.environ)
    pip = pip_settings(site, os.environ)
    env = load_matrix(project.find(None, Path(__file__).parent).matrix).get("cpu")
    pip = lock.with_torch_index(env, pip, discard)
    made = resolve(env, pip, site)

    groups = {package.name: package.group for package in made.packages}
    assert groups["torch"] == groups["sympy"] == "torch"
    assert groups["deepspeed"] == "ops"
    assert groups["pip"] == groups["setuptools"] == groups["wheel"] == "tools"
    assert groups["pydantic"] == groups["ninja"] == groups["numpy"] == "deps"
    assert "toolkit" not in groups.values()
    assert lock.stale(made, env, PLATFORM) is None
    assert next(package for package in made.packages if package.name == "torch").version == env.torch_version

    lock.write(tmp_path / "a.json", made)
    lock.write(tmp_path / "b.json", resolve(env, pip, site))
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert lock.read(tmp_path / "a.json") == made

    # What this host alone has is in the context, byte for byte as locked.
    for name in lock.stage_local(made, pip, tmp_path / "context"):
        group, _, filename = name.partition("/")
        content = (tmp_path / "context" / group / filename).read_bytes()
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" in lock.requirements_txt(made.packages, group)  # type: ignore[arg-type]


def test_pips_files_are_those_that_pip_reads() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "debug"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    named = [line.strip().rpartition(", exists: ")[0] for line in said.splitlines() if ", exists: " in line]
    ours = [str(path) for path in pipconf.files(os.environ, Path(sys.prefix))]
    # pip prints its groups in another order than it applies them, so only the order inside of a group is comparable.
    assert sorted(ours) == sorted(named)


# --- an index behind a token ------------------------------------------------------------------------------------------


def wheel(folder: Path, name: str, version: str, *needs: str, tag: str = "py3-none-any") -> None:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")


def sdist(folder: Path, name: str, version: str, *needs: str) -> None:
    # Metadata 2.2 promises that a wheel will say the same, so that nothing has to be run to know it.
    text = f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n"
    text += "".join(f"Requires-Dist: {need}\n" for need in needs)
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo(f"{name}-{version}/PKG-INFO")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text.encode()))


class Guarded(http.server.SimpleHTTPRequestHandler):
    """Serves a folder to those who know the token."""

    def do_GET(self) -> None:
        wanted = base64.b64encode(f"__token__:{TOKEN}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {wanted}":
            self.send_error(401)
        else:
            super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Wheels that need one another as the real ones do."""
    folder = tmp_path / "files"
    folder.mkdir()
    wheel(
        folder,
        "torch",
        "2.11.0",
        "sympy",
        "setuptools",
        "cuda-toolkit[cudart]",
        tag="cp311-cp311-manylinux_2_28_x86_64",
    )
    # What PyPI does not have, and what `==2.11.0` would prefer.
    wheel(folder, "torch", "2.11.0+cpu", tag="cp311-cp311-manylinux_2_28_x86_64")
    for name in ("sympy", "setuptools", "pip", "pydantic", "ninja", "packaging", "nvidia_ml_py"):
        wheel(folder, name, "1.0")
    wheel(folder, "wheel", "1.0", "packaging")
    wheel(folder, "cuda_toolkit", "13.0.2", "cuda-runtime ; extra == 'cudart'", "cuda-nvcc ; extra == 'nvcc'")
    wheel(folder, "cuda_runtime", "13.0.9")
    wheel(folder, "cuda_nvcc", "13.0.8", "cuda-runtime")
    sdist(folder, "deepspeed", "0.19.8", "torch", "pydantic", "packaging", "ninja")
    for path in folder.iterdir():
        name = path.name.partition("-")[0].replace("_", "-")
        page = tmp_path / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with page.open("a") as file:
            file.write(f'<a href="../../files/{path.name}#sha256={digest}">{path.name}</a>\n')
    return tmp_path


@pytest.fixture
def index(packages: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Guarded, directory=str(packages)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://__token__:{TOKEN}@127.0.0.1:{server.server_address[1]}/simple"
    server.shutdown()
    thread.join()
    server.server_close()


def cuda_row(**changes: Any) -> Environment:
    return Environment.model_validate(
        {
            "name": "row",
            "summary": "a row",
            "accelerator": "cuda",
            "family": "debian",
            "base": {"image": "docker.io/library/debian:bookworm-slim"},
            "python": "3.11",
            "gcc": {"version": "12.2", "package": "gcc-12"},
            "torch": {"version": "2.11.0", "build": "cu130", "index": "pypi"},
            "cuda": {"version": "13.0", "toolkit": "wheels"},
            "deepspeed": {"version": "0.19.8", "ops": ["cpu_adam"]},
            "requires": "gpu",
            "sources": {},
            **changes,
        }
    )


def test_a_token_opens_the_index_and_shows_nowhere(index: str) -> None:
    made = resolve(cuda_row(), PipSettings(index=index))
    assert {package.name: package.group for package in made.packages} == {
        "cuda-nvcc": "toolkit",
        "cuda-runtime": "torch",
        "cuda-toolkit": "torch",
        "deepspeed": "ops",
        "ninja": "deps",
        "nvidia-ml-py": "deps",
        "packaging": "tools",
        "pip": "tools",
        "pydantic": "deps",
        "setuptools": "tools",
        "sympy": "torch",
        "torch": "torch",
        "wheel": "tools",
    }
    assert next(package.version for package in made.packages if package.name == "torch") == "2.11.0"
    assert TOKEN not in made.model_dump_json()


def test_a_folder_of_the_host_gives_the_same_lock_and_the_files(packages: Path, index: str, tmp_path: Path) -> None:
    env = cuda_row()
    served = resolve(env, PipSettings(index=index))
    pip = PipSettings(index=(packages / "simple").as_uri())
    assert resolve(env, pip) == served
    staged = lock.stage_local(served, pip, tmp_path / "context")
    assert "torch/torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl" in staged
    assert "ops/deepspeed-0.19.8.tar.gz" in staged
    assert len(staged) == len(served.packages)
    links = PipSettings(no_index=True, find_links=(str(packages / "files"),))
    assert resolve(env, links) == served


@pytest.mark.parametrize(
    ("wrong", "code", "missing"),
    [
        ("token", 2, "torch===2.11.0: torch was not found in the package registry"),
        ("port", 3, "torch===2.11.0: an index that was asked does not answer"),
        ("version", 2, "pydantic==7: not found in the indexes asked"),
        # It is deepspeed's own need: asked for alone, without its needs, deepspeed is there.
        ("wheel", 2, "deepspeed==0.19.8: "),
    ],
)
def test_failures_say_what_is_missing_and_not_the_token(
    index: str, wrong: str, code: int, missing: str, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    env = cuda_row()
    if wrong == "token":
        index = index.replace(TOKEN, f"{TOKEN}-wrong")
    elif wrong == "port":
        index = f"http://__token__:{TOKEN}@127.0.0.1:1/simple"
    elif wrong == "version":
        env = cuda_row(pins=["pydantic==7"])
    else:
        sdist(packages / "files", "pydantic", "8.0")
        page = packages / "simple" / "pydantic" / "index.html"
        page.write_text('<a href="../../files/pydantic-8.0.tar.gz">pydantic-8.0.tar.gz</a>')
    with pytest.raises(lock.Missing) as caught:
        resolve(env, PipSettings(index=index, origin="a test"))
    error = caught.value
    assert error.exit_code == code
    assert [line for line in error.missing if line.startswith(missing)], error.missing
    if code == 2 and wrong != "token":
        assert len(error.missing) == 1
    assert TOKEN not in error.message + error.hint + str(error.missing)
    assert "127.0.0.1" not in str(error.missing), "a lock names no mirror of anybody's"
    assert "asked (from a test): http://***@127.0.0.1:" in error.message
    assert error.hint
    assert {"token": "not found", "port": "refused", "version": "pydantic==7", "wheel": "pydantic"}[
        wrong
    ] in error.message


def test_what_contradicts_is_not_missing(packages: Path) -> None:
    wheel(packages / "files", "pydantic", "0.9")
    pip = PipSettings(no_index=True, find_links=(str(packages / "files"),))
    with pytest.raises(InputError) as caught:
        resolve(cuda_row(pins=["pydantic==1.0", "pydantic<1"]), pip)
    assert "pydantic<1" in caught.value.message and not isinstance(caught.value, lock.Missing)


def test_markers_are_those_of_the_target_and_not_of_this_host(packages: Path, tmp_path: Path) -> None:
    """A row for Python 3.8 on another machine, resolved by whatever Python and machine this is."""
    files = packages / "files"
    for tag in ("cp38-cp38-manylinux_2_17_aarch64", "cp38-cp38-manylinux_2_17_x86_64"):
        wheel(
            files,
            "torch",
            "2.0.1",
            "setuptools",
            "old-python ; python_version < '3.9'",
            "new-python ; python_version >= '3.9'",
            "exact-python ; python_full_version < '3.9' and implementation_name == 'cpython'",
            "for-arm ; platform_machine == 'aarch64'",
            "for-intel ; platform_machine == 'x86_64'",
            "for-windows ; sys_platform == 'win32'",
            tag=tag,
        )
    for name in ("old_python", "new_python", "exact_python", "for_arm", "for_intel", "for_windows"):
        wheel(files, name, "1.0")
    # A wheel of a newer Python and one of a newer C library would win by their versions.
    wheel(files, "pydantic", "3.0", tag="cp311-cp311-manylinux_2_28_x86_64")
    wheel(files, "pydantic", "2.0", tag="cp38-cp38-manylinux_2_28_aarch64")
    env = cuda_row(
        python="3.8",
        torch={"version": "2.0.1", "build": "cu117", "index": "pypi"},
        cuda={"version": "11.7", "toolkit": "none"},
    )
    pip = PipSettings(no_index=True, find_links=(str(files),))
    seen = {}
    for platform in ("linux/arm64", "linux/amd64"):
        made = lock.resolve(env, platform=platform, pip=pip, site=SiteConfig(), timeout=60, glibc=(2, 17))
        seen[platform] = {package.name: package.version for package in made.packages}
    assert {"old-python", "exact-python", "for-arm"} < set(seen["linux/arm64"])
    assert {"old-python", "exact-python", "for-intel"} < set(seen["linux/amd64"])
    for packages_of in seen.values():
        assert not {"new-python", "for-windows"} & set(packages_of)
        assert packages_of["pydantic"] == "1.0"
    assert "for-intel" not in seen["linux/arm64"] and "for-arm" not in seen["linux/amd64"]


# --- between runs -----------------------------------------------------------------------------------------------------


def test_a_killed_run_gives_its_lock_back(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, time; from pathlib import Path; from envbuild.store import FileLock\n"
        "lock = FileLock(Path(sys.argv[1])); lock.acquire(); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        mine = store.FileLock(path)
        assert not mine.try_acquire()
        child.send_signal(signal.SIGKILL)
        child.wait(10)
    assert mine.try_acquire()
    mine.release()
