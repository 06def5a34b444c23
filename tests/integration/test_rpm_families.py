"""dnf and yum for real, in stand-ins for bases that no registry has here.

A stand-in is a Debian with Debian's dnf, whose repository holds a signed package of every name that the distribution
really has (``facts/packages.yaml``) and of no other one. The packages put links to Debian's compiler and interpreter
where the real ones have theirs; outside them the stand-in has no interpreter by its name, no assembler and no linker.
``yum`` is dnf here: what only yum 3 does is not seen.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from envbuild import facts, plan, render
from envbuild.base import ensure
from envbuild.engines import BuildRequest, DockerEngine, connect
from envbuild.errors import BuildError
from envbuild.facts import Facts
from envbuild.lock import read
from envbuild.model import Environment
from envbuild.pipeline.image import build_image
from envbuild.pipeline.prepare import Target
from envbuild.pipeline.runs import running
from envbuild.pipeline.workbench import Workbench
from envbuild.site.pip import pip_settings
from envbuild.site.secrets import build_secrets, needs_host_network
from envbuild.site.sections import NetworkSection, RpmSection, SiteConfig
from rpm_world import Key, Payload, key, need_tools, repository, served

REPOSITORY = Path(__file__).parents[2]
LOCK = REPOSITORY / "images" / "cpu" / "lock.json"
HIDDEN = "/usr/lib/standin"
STANDIN = f"""\
ARG BASE
FROM ${{BASE}}
RUN --mount=type=secret,id=apt,mode=0444 --mount=type=secret,id=apt-sources,mode=0444 \\
    --mount=type=secret,id=ca,mode=0444 \\
    set -eu; export DEBIAN_FRONTEND=noninteractive; \\
    if [ -s /run/secrets/apt ]; then export APT_CONFIG=/run/secrets/apt; fi; \\
    apt-get update; \\
    apt-get install -y --no-install-recommends dnf rpm g++-12 python3.11-dev python3.11-venv libaio-dev; \\
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*; \\
    mkdir {HIDDEN}; \\
    mv /usr/bin/python3.11 {HIDDEN}/; ln -sf {HIDDEN}/python3.11 /usr/bin/python3; \\
    for tool in as ld; do \\
        mv "$(readlink -f /usr/bin/$tool)" {HIDDEN}/$tool; rm -f /usr/bin/$tool /usr/bin/x86_64-linux-gnu-$tool; \\
    done; \\
    mkdir -p /etc/rpm /etc/yum.repos.d /etc/pki/rpm-gpg; rm -f /etc/yum.repos.d/*; \\
    echo '%_dbpath /var/lib/rpm' > /etc/rpm/macros; \\
    ln -s dnf /usr/bin/yum
COPY RPM-GPG-KEY-CentOS-7 /etc/pki/rpm-gpg/
"""
# What the packages of the toolsets and interpreters bring, at their real paths.
PROGRAM = """\
extern const char *version(void); extern int puts(const char *);
int main(void) { return puts(version()) < 0; }
"""


def toolset(name: str) -> dict[str, Payload]:
    """A compiler with an assembler and a linker of its own, as gcc.spec asks for."""
    folder = f"/opt/rh/{name}/root/usr/bin"
    return {
        f"{name}-gcc": Payload(links={f"{folder}/gcc": "/usr/bin/gcc-12"}, requires=(f"{name}-binutils",)),
        f"{name}-gcc-c++": Payload(links={f"{folder}/g++": "/usr/bin/g++-12"}, requires=(f"{name}-gcc",)),
        f"{name}-binutils": Payload(links={f"{folder}/{tool}": f"{HIDDEN}/{tool}" for tool in ("as", "ld")}),
    }


def world(release: str, payloads: Mapping[str, Payload]) -> dict[str, Payload]:
    """Every package that a release really has; a payload of another name is an addition of the stand-in's."""
    return {**{name: Payload() for name in facts.load().packages[release].names()}, **payloads}


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    need_tools()


@pytest.fixture(scope="module")
def canary() -> str:
    return f"canary-{secrets.token_hex(6)}"


@pytest.fixture(scope="module")
def site_key(tools: None, canary: str) -> Iterator[Key]:
    with key(f"{canary}-key") as made:
        yield made


@pytest.fixture(scope="module")
def distribution_key(tools: None) -> Iterator[Key]:
    with key("centos-7") as made:
        yield made


@pytest.fixture(scope="module")
def el8(site_key: Key, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of Enterprise Linux 8, signed again by the site."""
    folder = tmp_path_factory.mktemp("el8")
    python = Payload(links={"/usr/bin/python3.11": f"{HIDDEN}/python3.11"})
    repository(folder, site_key, world("el8", {**toolset("gcc-toolset-11"), "python3.11": python}))
    return folder


@pytest.fixture(scope="module")
def standin(
    engine: DockerEngine, distribution_key: Key, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Names of a base and of a toolkit image: the same with a repository of NVIDIA's that is out of reach."""
    bench = Workbench(project_folder=REPOSITORY)
    env = bench.matrix.get("cpu")
    used = ensure(engine, env, site=bench.site, apt=bench.apt_for(env), sink=bench.sink)
    context = tmp_path_factory.mktemp("standin")
    shutil.copy(distribution_key.public, context / "RPM-GPG-KEY-CentOS-7")
    (context / "cuda.repo").write_text(
        "[cuda-rhel8-x86_64]\nname=cuda\nbaseurl=http://developer.invalid/cuda\nenabled=1\n"
    )
    base, toolkit = (f"envbuild-test/standin:{os.getpid()}-{name}" for name in ("base", "toolkit"))
    (context / "base").write_text(STANDIN)
    (context / "toolkit").write_text(f"FROM {base}\nCOPY cuda.repo /etc/yum.repos.d/\n")
    pip = bench.pip_for(env)
    apt = bench.apt_for(env)
    for tag, file in ((base, "base"), (toolkit, "toolkit")):
        build(
            engine, context, context / file, tag, build_secrets(bench.site, pip, apt),
            build_args=(("BASE", used.reference),) if file == "base" else (),
            network="host" if needs_host_network(bench.site, pip, apt) else None,
        )  # fmt: skip
    yield base, toolkit
    for tag in (toolkit, base):
        engine.untag(tag)


def build(
    engine: DockerEngine, context: Path, dockerfile: Path, tag: str, contents: Mapping[str, bytes], **options: Any
) -> str:
    """Build with secrets, and return what was said."""
    folder = context.parent / f"secrets-{secrets.token_hex(4)}"
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    log = folder / "log"
    request = BuildRequest(
        context=context, dockerfile=dockerfile, tag=tag, platform="linux/amd64",
        secrets=tuple((name, folder / name) for name in contents), **options,
    )  # fmt: skip
    engine.build(request, log=log, timeout=300)
    return log.read_text()


def row(image: str, **changes: Any) -> Environment:
    """The row ``cpu`` on a stand-in."""
    document = Workbench(project_folder=REPOSITORY).matrix.get("cpu").model_dump(mode="json")
    document |= {"name": "standin", "base": {"image": image}, "fabric": "verbs"}
    return Environment.model_validate({**document, **changes})


def rocky8(image: str, **changes: Any) -> Environment:
    gcc = {"version": "12.2", "package": "gcc-toolset-11-gcc"}
    return row(image, family="rocky8", gcc=gcc, **changes)


def target_of(env: Environment, known: Facts) -> Target:
    lock = read(LOCK)
    made = plan.make(env, lock, known)
    return Target(
        env=env, lock=lock, lock_path=LOCK, plan=made, rendering=render.render(made, REPOSITORY / "templates")
    )


class UpTo:
    """The real engine, asked for one stage only."""

    def __init__(self, engine: DockerEngine, tag: str, target: str | None, *, no_cache: bool) -> None:
        self._engine, self._changes = engine, {"tag": tag, "target": target, "no_cache": no_cache}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def build(self, request: BuildRequest, **rest: Any) -> None:
        self._engine.build(dataclasses.replace(request, **self._changes), **rest)


def build_row(bench: Workbench, target: Target) -> None:
    try:
        with running(bench) as run:
            build_image(bench, run, target, no_cache=False, timeout=1200, compilers=2)
    finally:
        for image in bench.engine.images("envbuild/base:*"):
            if any(name.startswith("envbuild-test/standin") for name in image.repo_tags):
                for name in image.repo_tags:
                    if name.startswith("envbuild/base:"):
                        bench.engine.untag(name)


def output(image: str, *argv: str, env: Mapping[str, str] | None = None) -> str:
    """What a command says inside an image, in an environment of nothing but PATH and ``env``."""
    variables = [part for name, value in (env or {}).items() for part in ("--env", f"{name}={value}")]
    engine = connect()
    done = subprocess.run(
        [engine.any_client(), "--host", engine.endpoint, "run", "--rm", "--network", "none", *variables, image, *argv],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_dnf_installs_the_system_and_leaves_no_trace_of_the_site(
    engine: DockerEngine, tag: str, standin: tuple[str, str], el8: Path, site_key: Key, canary: str, tmp_path: Path,
    places_of: Callable[[str, tuple[bytes, ...]], list[str]],
) -> None:  # fmt: skip
    """A mirror behind a token, through a proxy with a password, signed with the site's own key, under a CA."""
    ca = tmp_path / f"{canary}.pem"
    ca.write_text(f"# {canary}\n{Path(requests.certs.where()).read_text()}")
    token = f"token-{canary}"
    bench = Workbench(project_folder=REPOSITORY)
    env = rocky8(standin[0])
    target = target_of(env, bench.facts)
    with served(el8, token=token, proxy=f"proxy-user:{canary}") as (port, given):
        bench.__dict__["site"] = SiteConfig(
            network=NetworkSection(ca=ca),
            rpm=RpmSection(
                repositories={f"{canary}-id": f"http://{token}:x@{canary}.invalid/"},
                gpgkey=(str(site_key.public),),
                proxy=f"http://proxy-user:{canary}@127.0.0.1:{port}",
            ),
        )
        bench.__dict__["engine"] = UpTo(engine, tag, "toolchain", no_cache=True)
        build_row(bench, target)
    assert any(path.endswith(".rpm") for path in given), "dnf did not go through the proxy"
    installed = output(tag, "rpm", "-qa", "--queryformat", "%{NAME}\n").split()
    assert set(target.plan.packages) <= set(installed) and "gpg-pubkey" not in installed
    needles = (canary.encode(), b"proxy-user", f"127.0.0.1:{port}".encode())
    assert places_of(tag, needles) == []


def test_a_toolset_finds_its_own_assembler_and_is_enabled_for_nobody_else(
    engine: DockerEngine, tag: str, standin: tuple[str, str], el8: Path, site_key: Key
) -> None:
    bench = Workbench(project_folder=REPOSITORY)
    target = target_of(rocky8(standin[0]), bench.facts)
    with served(el8) as (port, _):
        rpm = RpmSection(repositories={"site": f"http://127.0.0.1:{port}/"}, gpgkey=(str(site_key.public),))
        bench.__dict__["site"] = SiteConfig(rpm=rpm)
        bench.__dict__["engine"] = UpTo(engine, tag, "toolchain", no_cache=False)
        build_row(bench, target)
    compile_it = f"echo 'int main(void) {{ return 0; }}' | {target.plan.cc} -x c - -o /tmp/a && /tmp/a && echo built"
    variables = {name: value for name, value in target.plan.env if name == "COMPILER_PATH"}
    assert output(tag, "sh", "-c", compile_it, env=variables) == "built\n"
    assert output(tag, "sh", "-c", f"({compile_it}) 2> /dev/null || echo none") == "none\n", "a system assembler"
    assert output(tag, "sh", "-c", "command -v gcc || ls /etc/profile.d/*set* 2> /dev/null || echo none") == "none\n"


def test_yum_takes_the_vault_its_keys_and_the_collections_python(
    engine: DockerEngine, tag: str, standin: tuple[str, str], distribution_key: Key, tmp_path: Path
) -> None:
    """The release's own repositories, moved to loopback; one is signed with a key that a package of another brings."""
    for name, text in (("library.c", 'const char *version(void) { return "3.8"; }'), ("program.c", PROGRAM)):
        (tmp_path / name).write_text(text)
    soname = "libpython3.8.so.rh-python38-1.0"
    compile_it = ["gcc", "-x", "c"]
    subprocess.run(
        [*compile_it, "-shared", "-fPIC", f"-Wl,-soname,{soname}", "library.c", "-o", soname], cwd=tmp_path, check=True
    )
    subprocess.run(["gcc", "program.c", f"./{soname}", "-o", "program"], cwd=tmp_path, check=True)
    root = "/opt/rh/rh-python38/root/usr"
    python = Payload(files={f"{root}/bin/python3.8": tmp_path / "program", f"{root}/lib64/{soname}": tmp_path / soname})
    vault = tmp_path / "vault"
    with key("sclo") as collections:
        release = Payload(files={"/etc/pki/rpm-gpg/RPM-GPG-KEY-CentOS-SIG-SCLo": collections.public})
        everything = world(
            "centos7",
            {**toolset("devtoolset-9"), "rh-python38-python": python, "centos-release-scl-rh": release},
        )
        of_collections = {name for name in everything if name.startswith(("devtoolset", "rh-python"))}
        for name in ("os", "sclo"):
            (vault / name).mkdir(parents=True)
        repository(vault / "sclo", collections, {name: everything[name] for name in of_collections})
        others = {name: payload for name, payload in everything.items() if name not in of_collections}
        repository(vault / "os", distribution_key, others)
        with served(vault) as (port, _):
            known = moved(f"http://127.0.0.1:{port}", tmp_path / "facts")
            bench = Workbench(project_folder=REPOSITORY)
            gcc = {"version": "12.2", "package": "devtoolset-9-gcc"}
            target = target_of(row(standin[0], family="centos7", gcc=gcc, python="3.8"), known)
            bench.__dict__["site"] = SiteConfig(network=NetworkSection(build="host"))
            bench.__dict__["engine"] = UpTo(engine, tag, "toolchain", no_cache=True)
            build_row(bench, target)
    installed = output(tag, "rpm", "-qa", "--queryformat", "%{NAME}\n").split()
    assert set(target.plan.packages) | {"centos-release-scl-rh"} <= set(installed)
    assert output(tag, "env", "-i", target.plan.python_program) == "3.8\n", "the loader does not find libpython"
    assert output(tag, "ls", "/etc/yum.repos.d") == ""


def moved(address: str, folder: Path) -> Facts:
    """The facts, with the vault at another address."""
    shutil.copytree(REPOSITORY / "facts", folder)
    document = yaml.safe_load((folder / "packages.yaml").read_text())
    for name, entry in document["packages"]["centos7"]["repositories"].items():
        entry["baseurl"] = f"{address}/{'sclo' if 'sclo' in name else 'os'}/"
    (folder / "packages.yaml").write_text(yaml.safe_dump(document))
    return facts.load((folder,))


def test_a_toolkit_image_needs_nothing_of_nvidias_repository(
    engine: DockerEngine, tag: str, standin: tuple[str, str], el8: Path, site_key: Key, tmp_path: Path
) -> None:
    """The base's own configuration is used: one repository in reach, and NVIDIA's, which is not."""
    env = rocky8(
        standin[0], accelerator="cuda", requires="gpu", gpus=["a100"], nccl="2.18.3",
        base={"image": standin[0], "toolkit_image": standin[1]}, cuda={"version": "11.8", "toolkit": "image"},
    )  # fmt: skip
    text = target_of(env, facts.load()).rendering.files["Dockerfile"].decode()
    context = tmp_path / "context"
    context.mkdir()
    shutil.copy(site_key.public, context / "key")
    with served(el8) as (port, _):
        (context / "own.repo").write_text(
            f"[own]\nname=own\nbaseurl=http://127.0.0.1:{port}/\ngpgcheck=1\ngpgkey=file:///etc/key\n"
        )
        (context / "Dockerfile").write_text(f"FROM {standin[1]}\nCOPY own.repo /etc/yum.repos.d/\nCOPY key /etc/key\n")
        toolkit = f"{tag}-toolkit"
        build(engine, context, context / "Dockerfile", toolkit, {})
        (context / "Dockerfile").write_text(text[: text.index("COPY --from=wheels")])
        empty = dict.fromkeys(("rpm", "rpm-repositories", "rpm-keys", "ca"), b"")
        try:
            build(
                engine, context, context / "Dockerfile", tag, empty, network="host", target="ops", no_cache=True,
                build_args=(("TOOLKIT", toolkit), ("BASE", standin[0])),
            )  # fmt: skip
        finally:
            engine.untag(toolkit)
    installed = output(tag, "rpm", "-qa", "--queryformat", "%{NAME}\n").split()
    assert {"libaio-devel", "gcc-toolset-11-gcc-c++", "python3.11"} <= set(installed)


def test_a_package_that_the_distribution_does_not_have_ends_the_build(
    engine: DockerEngine, tag: str, standin: tuple[str, str], el8: Path, site_key: Key
) -> None:
    """And the repository is asked past a proxy that is not for it, for there is none."""
    bench = Workbench(project_folder=REPOSITORY)
    with served(el8) as (port, _):
        bench.__dict__["site"] = SiteConfig(
            rpm=RpmSection(
                repositories={"site": f"http://127.0.0.1:{port}/"},
                gpgkey=(str(site_key.public),),
                proxy="http://127.0.0.1:9",
            ),
            network=NetworkSection(no_proxy="127.0.0.0/8"),
        )
        bench.__dict__["engine"] = UpTo(engine, tag, "toolchain", no_cache=True)
        with pytest.raises(BuildError) as failed:
            build_row(bench, target_of(rocky8(standin[0], packages=["libaio1"]), bench.facts))
    assert "No match for argument: libaio1" in failed.value.message


def test_a_whole_row_of_an_rpm_family_is_built_by_its_toolset(
    engine: DockerEngine, tag: str, standin: tuple[str, str], el8: Path, site_key: Key
) -> None:
    """To the end: torch, and an op (the smallest) compiled by the toolset at its path, which loads with no compiler."""
    bench = Workbench(project_folder=REPOSITORY)
    deepspeed = {"version": "0.19.8", "ops": ["cpu_adagrad"]}
    target = target_of(rocky8(standin[0], deepspeed=deepspeed), bench.facts)
    with served(el8) as (port, _):
        rpm = RpmSection(repositories={"site": f"http://127.0.0.1:{port}/"}, gpgkey=(str(site_key.public),))
        bench.__dict__["site"] = SiteConfig(rpm=rpm)
        assert pip_settings(bench.site, os.environ).locations == pip_settings(SiteConfig(), os.environ).locations
        bench.__dict__["engine"] = UpTo(engine, tag, None, no_cache=False)
        build_row(bench, target)
    load = (
        "import torch, deepspeed; from deepspeed.ops.op_builder import CPUAdagradBuilder; "
        "assert CPUAdagradBuilder().load(verbose=False); print(torch.__version__, deepspeed.__version__)"
    )
    assert output(tag, "/opt/venv/bin/python", "-c", load, env={"PATH": "/nowhere"}) == "2.13.0+cpu 0.19.8\n"
