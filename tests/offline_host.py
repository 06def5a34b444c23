"""Hosts that bundles are installed on: containers without a network that look like Enterprise Linux 8 to an installer.

They are a Debian with Debian's dnf, rpm and Python, an empty RPM database, and an os-release that says Rocky 8.8. What
only yum 3, a subscribed host, SELinux or FIPS mode does is not seen. Nothing is ever installed outside of them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.base import ensure
from envbuild.engines import BuildRequest, DockerEngine
from envbuild.pipeline.workbench import Workbench
from envbuild.site.secrets import build_secrets, needs_host_network
from proving import REPOSITORY

OS_RELEASE = """\
NAME="Rocky Linux"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="8.8"
PLATFORM_ID="platform:el8"
PRETTY_NAME="Rocky Linux 8.8 (a stand-in)"
"""
_DOCKERFILE = """\
ARG BASE
FROM ${BASE}
RUN --mount=type=secret,id=apt,mode=0444 --mount=type=secret,id=apt-sources,mode=0444 \\
    --mount=type=secret,id=ca,mode=0444 \\
    set -eu; export DEBIAN_FRONTEND=noninteractive; \\
    if [ -s /run/secrets/apt ]; then export APT_CONFIG=/run/secrets/apt; fi; \\
    apt-get update; \\
    apt-get install -y --no-install-recommends dnf rpm gpgv gcc-12 libc6-dev python3.11-venv iproute2; \\
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /etc/yum.repos.d/*; \\
    mkdir -p /etc/rpm /etc/yum.repos.d; \\
    echo '%_dbpath /var/lib/rpm' > /etc/rpm/macros; rpm --initdb; \\
    printf '%s\\n' '[elsewhere]' name=elsewhere baseurl=http://elsewhere.invalid/ enabled=1 \\
        > /etc/yum.repos.d/elsewhere.repo
COPY os-release /etc/os-release
"""


@contextlib.contextmanager
def image(engine: DockerEngine, folder: Path) -> Iterator[str]:
    """The image of such hosts, by name."""
    bench = Workbench(project_folder=REPOSITORY)
    env = bench.matrix.get("cpu")
    used = ensure(engine, env, site=bench.site, apt=bench.apt_for(env), sink=bench.sink)
    pip, apt = bench.pip_for(env), bench.apt_for(env)
    context, kept = folder / "context", folder / "secrets"
    context.mkdir()
    kept.mkdir()
    (context / "os-release").write_text(OS_RELEASE)
    (context / "Dockerfile").write_text(_DOCKERFILE)
    contents = build_secrets(bench.site, pip, apt)
    for name, content in contents.items():
        (kept / name).write_bytes(content)
    tag = f"envbuild-test/offline:{os.getpid()}"
    request = BuildRequest(
        context=context, dockerfile=context / "Dockerfile", tag=tag, platform="linux/amd64",
        secrets=tuple((name, kept / name) for name in contents), build_args=(("BASE", used.reference),),
        network="host" if needs_host_network(bench.site, pip, apt) else None,
    )  # fmt: skip
    engine.build(request, log=folder / "log", timeout=600)
    try:
        yield tag
    finally:
        engine.untag(tag)


@dataclass
class Host:
    """A host that runs, and commands on it."""

    container: Any

    def run(self, command: str, *, limit: int = 280, user: str = "0:0") -> tuple[int, str]:
        """Exit code and output of a shell command."""
        done = self.container.exec_run(
            ["timeout", str(limit), "sh", "-c", command], user=user, workdir="/", environment={"HOME": "/root"}
        )
        return done.exit_code, done.output.decode(errors="replace")

    def good(self, command: str) -> str:
        """The output of a command that has to end well."""
        code, said = self.run(command)
        assert code == 0, said
        return said

    def start(self, command: str) -> None:
        """Start a command and leave it running."""
        self.container.exec_run(["sh", "-c", command], workdir="/", environment={"HOME": "/root"}, detach=True)

    def write(self, path: str, text: str, *, executable: bool = False) -> None:
        """Write a small file."""
        self.good(f"mkdir -p $(dirname {path}) && printf %s {shlex.quote(text)} > {path}")
        if executable:
            self.good(f"chmod 0755 {path}")

    def packages(self) -> set[str]:
        """Names of the packages in its RPM database."""
        return set(self.good("rpm -qa --queryformat '%{NAME}\\n'").split()) - {"gpg-pubkey"}


@contextlib.contextmanager
def host(engine: DockerEngine, name: str, binds: Mapping[Path, str], **options: Any) -> Iterator[Host]:
    """A host of an image; ``binds`` are folders of this machine and where the host sees them, read-only."""
    import docker

    client = docker.DockerClient(base_url=engine.endpoint, timeout=600)
    volumes = {str(path): {"bind": place, "mode": "ro"} for path, place in binds.items()}
    container = client.containers.run(
        name, ["sleep", "3600"], detach=True, network_mode="none", init=True,
        name=f"envbuild-offline-{secrets.token_hex(4)}", volumes={**volumes, **options.pop("writable", {})}, **options,
    )  # fmt: skip
    try:
        yield Host(container)
    finally:
        container.remove(force=True)
        client.close()
