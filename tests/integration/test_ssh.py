"""An engine behind ssh: a real sshd on loopback with throw-away keys, this machine's Docker Engine behind it."""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.engines import BuildRequest, ContainerSpec, DockerEngine, connect
from envbuild.errors import EngineError


@pytest.fixture(scope="module")
def sshd(docker: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of this machine's engine by ssh; the client's settings are the test's own."""
    folder = tmp_path_factory.mktemp("ssh")
    server = _server(folder)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\nSetEnv DOCKER_HOST={docker.endpoint}\n"
    )
    (folder / "config").write_text(
        f"Host lab\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n IdentityFile {folder}/user\n"
        f" IdentitiesOnly yes\n UserKnownHostsFile {folder}/known\n StrictHostKeyChecking accept-new\n"
        " IdentityAgent none\n"
    )
    # The system's client, with these settings in place of the user's.
    (folder / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    (folder / "ssh").chmod(0o755)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # it changes its root to there
    libraries = {"LD_LIBRARY_PATH": f"{folder}/usr/lib/{os.uname().machine}-linux-gnu"}
    with (folder / "log").open("w") as log:
        argv = [*server, "-D", "-e", "-f", str(folder / "sshd_config")]
        process = subprocess.Popen(argv, stderr=log, env={**os.environ, **libraries})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        _listening(port)
        yield "ssh://lab"
    process.terminate()
    process.wait()


def _server(folder: Path) -> list[str]:
    """sshd: the installed one, or one unpacked into ``folder``, so that no service is installed."""
    found = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        folder.chmod(0o777)
        packages = ["openssh-server", "libwrap0", "libnsl2", "libtirpc3"]
        unpack = 'for each in *.deb; do dpkg-deb -x "$each" .; done'
        for argv in (["apt-get", "download", "-qq", *packages], ["sh", "-c", unpack]):
            subprocess.run(argv, cwd=folder, check=True, capture_output=True, timeout=120)
        folder.chmod(0o755)
        found = str(folder / "usr/sbin/sshd")
    with contextlib.suppress(KeyError):
        pwd.getpwnam("sshd")
        return [found]
    if os.geteuid() != 0:
        return [found]
    # As root it wants a user of that name, which its package would have made: one for its eyes only.
    users = folder / "passwd"
    users.write_text(Path("/etc/passwd").read_text() + "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n")
    return ["unshare", "--mount", "sh", "-c", f'mount --bind {users} /etc/passwd && exec "$@"', "sh", found]


def _listening(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    pytest.fail("sshd does not listen")


def test_an_engine_behind_ssh_builds_runs_and_exports(sshd: str, base: str, tag: str, tmp_path: Path) -> None:
    engine = connect(sshd)
    assert (engine.endpoint, engine.local) == (sshd, False)
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN echo {tag} > /made\n")
    wanted = BuildRequest(context=tmp_path, dockerfile=tmp_path / "Dockerfile", tag=tag, platform="linux/amd64")
    engine.build(wanted, log=tmp_path / "log")
    spec = ContainerSpec(image=tag, argv=("sh", "-c", "cat /made; echo said >&2; exit 3"), network="none")
    result = engine.run(spec, timeout=60)
    assert (result.exit_code, result.stdout, result.stderr) == (3, f"{tag}\n", "said\n")
    with engine.save(tag) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        assert "manifest.json" in {member.name for member in archive}


def test_what_ssh_complains_of_is_told(sshd: str) -> None:
    for url, says in (
        (f"ssh://nobody-here@{sshd.removeprefix('ssh://')}", "ermission denied"),
        (f"{sshd}:1", "refused"),
    ):
        with pytest.raises(EngineError) as caught:
            connect(url)
        assert says in caught.value.message
        assert "dial-stdio" in caught.value.hint


def test_no_line_stays_open_when_the_engine_is_let_go(sshd: str, base: str) -> None:
    def lines() -> int:
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        return listed.count("-- lab docker system dial-stdio")

    engine = connect(sshd)
    for _ in range(4):
        assert engine.image(base) is not None
    ended = [each for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()
             if "Z (zombie)" in Path(f"/proc/{pid}/status").read_text()]  # fmt: skip
    assert len(ended) <= 2, "lines that have ended are let go"
    del engine
    deadline = time.monotonic() + 20
    while lines() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert lines() == 0
