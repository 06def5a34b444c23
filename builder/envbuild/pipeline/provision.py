"""A row on this host: render the script, run it, look at what it made, and let that train."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from envbuild import process, render, store
from envbuild.errors import BuildError, EngineError, EnvbuildError, GateError, InputError, Interrupted
from envbuild.events import Note, PhaseDone, PhaseStarted, StepDone, StepLine, StepStarted
from envbuild.facts import Facts
from envbuild.facts.versions import parse
from envbuild.judge.standards import Standards
from envbuild.lock import stage_local
from envbuild.model import Environment
from envbuild.pipeline import prefix as prefixes
from envbuild.pipeline.bare import Ahead, HostProof, prove_host
from envbuild.pipeline.causes import explained
from envbuild.pipeline.prepare import Target, prepare
from envbuild.pipeline.proof import Wish
from envbuild.pipeline.workbench import Workbench
from envbuild.site import urls

PROVISION_SECONDS = 7200.0
# What the script says of a step, and what it indents (templates/provision.sh.j2).
_STEP = re.compile(r"\[(\d+)/\d+\] (.+?)(?: (\.\.\.)|: (.*))")
_LINE = "    "
_HOST_LACKS = 9


class HostError(EngineError):
    """This host lacks what the row needs (exit 3)."""

    code = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioning:
    """How a prefix is wanted. Without any of the places, the site's own package indexes count.

    Attributes:
        prefix: The folder to make.
        options: Further options of the script, as they are.
        places: Options of the script that say where wheels come from.
        prove: Look at it and train with it in the end.
        timeout: Limit of the script, in seconds.
        wish: How the proof is wanted.
    """

    prefix: Path
    options: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    prove: bool = True
    timeout: float = PROVISION_SECONDS
    wish: Wish = field(default_factory=Wish)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioned:
    """What came of it.

    Attributes:
        prefix: Where the environment is.
        status: ``made`` or ``up to date``.
        proof: What it has shown; None where nobody asked.
    """

    prefix: Path
    status: str
    seconds: float
    proof: HostProof | None


def script(bench: Workbench, target: Target) -> bytes:
    """``provision.sh`` of a prepared row.

    Raises:
        InputError: A template is missing or wrong, or the lock is empty.
    """
    glibc = glibc_of(target.env, bench.facts)
    return render.provision(target.plan, bench.project.templates, glibc=glibc)


def glibc_of(env: Environment, facts: Facts) -> str:
    """The C library that the row's torch asks for; empty where nobody knows."""
    fitting = [each for each in facts.libraries if parse(each.since) <= parse(env.torch.version) <= parse(each.through)
               and each.build in (None, env.torch.build) and each.platform in (None, *env.platforms)]  # fmt: skip
    return max((each.glibc for each in fitting), key=parse, default="")


def foresee(bench: Workbench, name: str, wanted: Provisioning) -> tuple[str, ...]:
    """What would be done, line by line; changes nothing.

    Raises:
        EngineError: This host lacks something (exit 3).
        InputError: An option cannot be used, or the row has no lock.
    """
    target = prepare(bench, name)
    with _folder(bench) as folder:
        path = folder / "provision.sh"
        path.write_bytes(script(bench, target))
        lines: list[str] = []
        argv = ("sh", str(path), "--prefix", str(wanted.prefix), *wanted.options, *wanted.places, "--dry-run")
        code = process.stream(argv, on_line=lines.append, timeout=wanted.timeout)
    if code:
        raise _failure(code, lines)
    return tuple(lines)


def provision(bench: Workbench, name: str, wanted: Provisioning) -> Provisioned:
    """Make a row's environment in a folder of this host, and prove it there. The proof counts for no image.

    Raises:
        FindingsError: The row breaks a rule (exit 1), or the prefix does not pass (exit 5).
        EngineError: This host lacks something, or network or disk (exit 3).
        BuildError: A step failed (exit 4).
        GateError: The prefix was changed since it was made (exit 5).
    """
    began = time.monotonic()
    target = prepare(bench, name, lock_missing=True)
    with _folder(bench) as folder:
        path = folder / "provision.sh"
        path.write_bytes(script(bench, target))
        places = wanted.places or _site(bench, target, folder)
        argv = ("sh", str(path), "--prefix", str(wanted.prefix), *wanted.options, *places, "--verbose")
        bench.sink(PhaseStarted(phase="provision", detail=f"{name} in {wanted.prefix}"))
        told = _Told(bench, target.env)
        code = process.stream(argv, on_line=told, env=_proxies(bench, target), timeout=wanted.timeout)
    if code:
        with explained(bench):
            raise _failure(code, told.lines)
    bench.sink(PhaseDone(phase="provision", seconds=time.monotonic() - began))
    status = "up to date" if told.up_to_date else "made"
    prefix = Path.cwd() / wanted.prefix
    proof = _prove(bench, target.env, prefix, wanted.wish) if wanted.prove else None
    return Provisioned(prefix=prefix, status=status, seconds=time.monotonic() - began, proof=proof)


def _prove(bench: Workbench, env: Environment, prefix: Path, wish: Wish) -> HostProof:
    began = time.monotonic()
    bench.sink(PhaseStarted(phase="files", detail=f"what lies in {prefix}"))
    with _folder(bench) as scratch:
        reports, findings = prefixes.inspect(prefix, env, Standards.of(env, bench.facts), scratch)
    bench.sink(PhaseDone(phase="files", seconds=time.monotonic() - began))
    ahead = Ahead(content=reports, findings=findings, launcher=(str(prefix / "bin" / "in-env"),))
    return prove_host(bench, str(prefix / "venv" / "bin" / "python"), env, None, wish, ahead)


def _site(bench: Workbench, target: Target, folder: Path) -> tuple[str, ...]:
    """The site's indexes as options, with nothing of them on a command line or in the prefix."""
    pip = bench.pip_for(target.env)
    conf = folder / "pip.conf"
    conf.touch(mode=0o600)
    conf.write_text(pip.pip_conf(cert=str(pip.cert)))
    wheels = folder / "wheels"
    staged = stage_local(target.lock, pip, wheels, bench.cache)
    if staged:
        bench.sink(Note(message=f"{len(staged)} of {len(target.lock.packages)} locked files come from local folders"))
    groups = sorted({name.partition("/")[0] for name in staged})
    return ("--pip-config", str(conf), *(f"--find-links={wheels / group}" for group in groups))


def _proxies(bench: Workbench, target: Target) -> dict[str, str]:
    """pip.conf has no ``no_proxy``."""
    no_proxy = bench.pip_for(target.env).no_proxy
    return {"no_proxy": no_proxy, "NO_PROXY": no_proxy} if no_proxy else {}


@contextlib.contextmanager
def _folder(bench: Workbench) -> Iterator[Path]:
    """A folder for this run alone, closed to others, and gone in the end: it may hold a site's passwords."""
    with tempfile.TemporaryDirectory(prefix="provision-", dir=store.make_folder(bench.cache)) as name:
        yield Path(name)


class _Told:
    """The script's lines as events; all of them but the steps' own output are kept for what may go wrong."""

    def __init__(self, bench: Workbench, env: Environment) -> None:
        self._sink = bench.sink
        self._secrets = bench.pip_for(env).secret_urls()
        self._running: dict[str, tuple[str, float]] = {}
        self._last = ""
        self.lines: list[str] = []
        self.up_to_date = False

    def __call__(self, raw: str) -> None:
        text = urls.scrub(raw, self._secrets)
        if text.startswith(_LINE) and self._last in self._running:
            self._sink(StepLine(key=self._last, text=text.removeprefix(_LINE)))
            return
        self.lines.append(text)
        found = _STEP.fullmatch(text)
        if found is None:
            self.up_to_date |= " is up to date in " in text
            if text.startswith("warning: "):
                self._sink(Note(message=text.removeprefix("warning: "), level="warning"))
            return
        key, title, starts, said = found.groups()
        now = time.monotonic()
        if starts:
            self._running[key], self._last = (title, now), key
            self._sink(StepStarted(key=key, name=title))
            return
        _, began = self._running.pop(key, (title, now))
        status = "cached" if said == "up to date" else "done"
        self._sink(StepDone(key=key, name=title, status=status, seconds=now - began))


def _failure(code: int, lines: list[str]) -> EnvbuildError:
    """What the script ended with, in its own words from its first complaint on."""
    first = next((number for number, line in enumerate(lines) if line.startswith("error: ")), max(len(lines) - 5, 0))
    message = "\n".join(lines[first:]).removeprefix("error: ") or f"provision.sh ended with exit code {code}"
    if code == 2:
        return InputError(message)
    if code == _HOST_LACKS:
        return HostError(message)
    if code == 3:
        return EngineError(message)
    if code == 5:
        return GateError(message, hint="Say --force to make it anew.")
    if code in (130, -2, -15):
        return Interrupted("the prefix is not finished; run it again to go on")
    return BuildError(message, hint="Run it again: it goes on where it stopped.")
