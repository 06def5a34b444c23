"""A minimal Debian or Ubuntu root made by mmdebstrap, with nothing of the site left in it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
from collections import deque
from pathlib import Path

from envbuild import process
from envbuild.engines.engine import Engine
from envbuild.errors import EngineError, InputError
from envbuild.events import Sink, StepDone, StepLine, StepStarted
from envbuild.model import Bootstrap
from envbuild.site import urls
from envbuild.site.apt import FAMILIES, AptSettings

LABEL = "io.envbuild.bootstrap"
KEY = "bootstrap"
TIMEOUT = 1800.0

# What official "slim" images leave out too (their /etc/dpkg/dpkg.cfg.d/docker), so that a bootstrapped base
# stands in for a pulled one: 127 MB in place of 170 MB for bookworm. Copyright files stay.
DPKG_OPTIONS = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
)
# Every file gets this time (1980-01-01 UTC): the same packages then make the same bytes on every day, and ZIP
# archives, which know nothing earlier, can still be made of them.
_EPOCH = "315532800"
_ARCHITECTURES = {"linux/amd64": "amd64", "linux/arm64": "arm64"}
# As the official images say it.
_CHANGES = (
    "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    'CMD ["bash"]',
)


def describe(plan: Bootstrap) -> str:
    """A bootstrap in one line, as in ``bookworm main +ca-certificates``."""
    return " ".join((plan.suite, *plan.components, *(f"+{name}" for name in plan.packages)))


def argv(
    plan: Bootstrap, *, platform: str, mode: str, tar: Path, sources: Path, defaults: str, ca: Path | None
) -> list[str]:
    """The mmdebstrap command line.

    Args:
        plan: What to install.
        platform: Such as ``linux/amd64``.
        mode: ``root``, or ``unshare`` for an ordinary user.
        tar: Where the root file system goes.
        sources: One-line sources used now; a file, so that a mirror's password is in no process list.
        defaults: The sources that stay in the root: the distribution's public ones.
        ca: Certificates for https mirrors, readable by apt's own user; None is the host's.
    """
    command = ["mmdebstrap", "--variant=minbase", f"--mode={mode}", "--format=tar"]
    command += [f"--architectures={_ARCHITECTURES[platform]}", f"--components={','.join(plan.components)}"]
    if plan.packages:
        command.append(f"--include={','.join(plan.packages)}")
    if ca is not None:
        command.append(f'--aptopt=Acquire::https::CAInfo "{ca}"')
    command += ["--aptopt=Acquire::Retries 3", *(f"--dpkgopt={option}" for option in DPKG_OPTIONS)]
    command += [f"--customize-hook={_clean_hook(defaults)}", plan.suite, str(tar), str(sources)]
    return command


def _clean_hook(defaults: str) -> str:
    """A shell command that takes out of the root (``$1``) what the site, the host and the making left in it.

    mmdebstrap keeps its --aptopt values and the mirror for good, and copies the host's name and resolver.
    """
    lines = " ".join(f"'{line}'" for line in defaults.splitlines())
    return "; ".join(
        (
            "set -eu",
            f"printf '%s\\n' {lines} > \"$1/etc/apt/sources.list\"",
            'rm -rf "$1"/etc/apt/sources.list.d/* "$1/etc/apt/apt.conf.d/99mmdebstrap"',
            'mv "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap" "$1/etc/dpkg/dpkg.cfg.d/slim"',
            'rm -f "$1/etc/hostname" "$1/etc/resolv.conf"',
            'rm -rf "$1"/var/log/apt "$1"/var/log/*.log "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old',
        )
    )


def environment(apt: AptSettings) -> dict[str, str]:
    """Variables of the mmdebstrap process. apt takes proxies from here, where no file keeps them."""
    pairs = {"http_proxy": apt.http_proxy, "https_proxy": apt.https_proxy, "no_proxy": apt.no_proxy}
    return {"SOURCE_DATE_EPOCH": _EPOCH, **{name: value for name, value in pairs.items() if value}}


def bootstrap(
    engine: Engine, plan: Bootstrap, name: str, *, platform: str, apt: AptSettings, ca: Path | None, sink: Sink
) -> None:
    """Make the root and import it as ``name``.

    Raises:
        InputError: The row's family cannot be bootstrapped.
        EngineError: mmdebstrap is missing or failed, or the engine refused the result.
    """
    if apt.family not in FAMILIES:
        raise InputError(f"a base of the family {apt.family} cannot be bootstrapped", hint="give the row a base image")
    if process.which("mmdebstrap") is None:
        raise EngineError(
            "mmdebstrap, which bootstraps the base, is not installed",
            hint="apt-get install mmdebstrap (Debian, Ubuntu); elsewhere set [base] mirrors in envbuild.toml "
            "to a registry that has the image",
        )
    began = time.monotonic()
    title = f"mmdebstrap {describe(plan)}"
    sink(StepStarted(key=KEY, name=title))
    with tempfile.TemporaryDirectory(prefix="envbuild-base-") as folder:
        # Open to apt's and mmdebstrap's own users; what may hold a password is closed below.
        work = Path(folder)
        work.chmod(0o755)
        tar = work / "root.tar"
        try:
            _make(plan, platform, apt, ca, work, tar, sink)
            sink(StepLine(key=KEY, text=f"importing {tar.stat().st_size / 1e6:.0f} MB"))
            engine.import_root(tar, name, (*_CHANGES, f'LABEL "{LABEL}"="{describe(plan)}"'))
        except BaseException:
            sink(StepDone(key=KEY, name=title, status="error", seconds=time.monotonic() - began))
            raise
    sink(StepDone(key=KEY, name=title, status="done", seconds=time.monotonic() - began))


def _make(plan: Bootstrap, platform: str, apt: AptSettings, ca: Path | None, work: Path, tar: Path, sink: Sink) -> None:
    sources = work / "sources.list"
    try:
        sources.touch(mode=0o600)
        sources.write_text(dataclasses.replace(apt, suite=plan.suite, components=plan.components).sources())
        readable = shutil.copyfile(ca, work / "ca.crt") if ca is not None else None
        if readable is not None:
            readable.chmod(0o644)
    except OSError as error:
        raise EngineError(f"the bootstrap cannot be prepared: {error.filename}: {error.strerror}") from error
    public = AptSettings(suite=plan.suite, components=plan.components, family=apt.family).sources()
    command = argv(
        plan,
        platform=platform,
        mode="root" if os.geteuid() == 0 else "unshare",
        tar=tar,
        sources=sources,
        defaults=public,
        ca=readable,
    )
    tail: deque[str] = deque(maxlen=15)

    def on_line(line: str) -> None:
        text = urls.scrub(line.removeprefix("I: "), apt.locations).strip()
        if text.startswith("running --customize-hook"):
            text = "cleaning the root"
        if text:
            tail.append(text)
            sink(StepLine(key=KEY, text=text))

    code = process.stream(command, on_line=on_line, env=environment(apt), timeout=TIMEOUT)
    if code != 0:
        shown = "\n".join(f"  {line}" for line in tail)
        raise EngineError(
            f"the base could not be bootstrapped (mmdebstrap ended with {code}):\n{shown}",
            hint="is the package mirror reachable? [apt] in envbuild.toml names mirror and proxy, [network] the CA; "
            "a base of another distribution needs its keyring package on this host",
        )
