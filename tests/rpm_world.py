"""A small RPM world for tests: packages with the names that a distribution really has, signed, and served by a site.

What the packages hold stands in for the real thing: links to a Debian's own compiler and interpreter, at the paths that
the real packages use.
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

TOOLS = ("rpmbuild", "rpmsign", "createrepo_c", "gpg")


@dataclass(frozen=True)
class Payload:
    """What one package brings: links, copied files, and the packages it asks for."""

    links: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class Key:
    """A throwaway signing key: its folder, its public part, its fingerprint."""

    home: Path
    public: Path
    fingerprint: str


def run(*argv: str | Path) -> str:
    """What a tool of the RPM world says; its output is in the failure."""
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{argv[0]}: {done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return done.stdout


def need_tools() -> None:
    """Fail, and say how to get them, where the machine has no tools for RPM packages."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.fail(f"{', '.join(missing)} missing: make rpm-tools", pytrace=False)


@contextlib.contextmanager
def key(owner: str) -> Iterator[Key]:
    """A key of ``owner``. Its folder has a short name: the agent's socket lies in it."""
    home = Path(tempfile.mkdtemp(prefix="envbuild-gpg-"))
    try:
        gpg = ("gpg", "--homedir", home, "--batch")
        run(*gpg, "--passphrase", "", "--quick-gen-key", f"{owner} <{owner}@example.invalid>", "rsa2048", "sign", "0")
        run(*gpg, "--armor", "--output", home / "public", "--export")
        listed = run(*gpg, "--with-colons", "--list-keys")
        fingerprint = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))
        yield Key(home=home, public=home / "public", fingerprint=fingerprint)
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], capture_output=True, timeout=60)
        shutil.rmtree(home, ignore_errors=True)


def repository(folder: Path, signer: Key, packages: Mapping[str, Payload]) -> None:
    """Make a repository of signed packages in ``folder``."""
    with tempfile.TemporaryDirectory(prefix="envbuild-rpm-") as made:
        top = Path(made)
        spec = top / "world.spec"
        spec.write_text(_spec(packages))
        define = ("--define", f"_topdir {top}", "--define", f"_rpmdir {folder}")
        run("rpmbuild", "-bb", "--quiet", *define, "--define", "_build_id_links none", spec)
        rpms = sorted(folder.rglob("*.rpm"))
        assert len(rpms) == len(packages)
        # By fingerprint: a key that is named by its owner's address puts that into each signature.
        macros = {"__gpg": shutil.which("gpg"), "_gpg_path": signer.home, "_gpg_name": signer.fingerprint}
        define = tuple(part for name, value in macros.items() for part in ("--define", f"{name} {value}"))
        run("rpmsign", "--addsign", *define, *rpms)
    run("createrepo_c", "--quiet", folder)


def _spec(packages: Mapping[str, Payload]) -> str:
    lines = [
        "Name: world", "Version: 1", "Release: 1", "Summary: a stand-in", "License: MIT", "BuildArch: noarch",
        # A compiled file in a package for every machine is a mistake elsewhere.
        "%global _binaries_in_noarch_packages_terminate_build 0", "%global debug_package %{nil}",
        "%global __os_install_post %{nil}", "%description", "A stand-in.", "%install",
    ]  # fmt: skip
    for payload in packages.values():
        for path, target in payload.links.items():
            lines += [f"mkdir -p %{{buildroot}}{Path(path).parent}", f"ln -s {target} %{{buildroot}}{path}"]
        for path, source in payload.files.items():
            lines.append(f"install -D {source} %{{buildroot}}{path}")
    for name, payload in packages.items():
        lines += [f"%package -n {name}", "Summary: a stand-in", "AutoReqProv: no"]
        lines += [f"Requires: {other}" for other in payload.requires]
        lines += [f"%description -n {name}", "A stand-in.", f"%files -n {name}", *payload.links, *payload.files]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def served(folder: Path, token: str | None = None, proxy: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """Serve ``folder`` on loopback; yields the port and the paths that were asked for and given.

    Args:
        token: The user name without which nothing is given.
        proxy: The user and password without which nothing is forwarded: then this is a proxy for any host.
    """
    given: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if proxy and not self._allowed("Proxy-Authorization", proxy):
                self._refuse(407, "Proxy-Authenticate")
            elif token and not self._allowed("Authorization", f"{token}:x"):
                self._refuse(401, "WWW-Authenticate")
            else:
                if self.path.startswith("http://"):
                    self.path = "/" + self.path.removeprefix("http://").partition("/")[2]
                given.append(self.path)
                super().do_GET()

        def _refuse(self, status: int, header: str) -> None:
            self.send_response(status)
            self.send_header(header, "Basic")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _allowed(self, header: str, wanted: str) -> bool:
            return self.headers.get(header) == "Basic " + base64.b64encode(wanted.encode()).decode()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], given
    finally:
        server.shutdown()
        server.server_close()
