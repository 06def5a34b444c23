"""Makes the image of a sabotage and has it judged as users have theirs: ``envbuild smoke IMAGE --row cpu --json``."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from envbuild.engines import BuildRequest, ContainerResult, ContainerSpec, DockerEngine
from envbuild.pipeline.build import smoke
from envbuild.pipeline.prepare import FindingsError
from envbuild.pipeline.prove import SMOKE_SECONDS, Wish, as_dict
from envbuild.pipeline.workbench import Workbench
from sabotage.sabotage import TAMPER, Sabotage

ROW = "cpu"
LABEL = "io.envbuild.test.sabotage"
Cli = Callable[..., subprocess.CompletedProcess[str]]
Faults = tuple[Sabotage, ...]
_MIB = 1024 * 1024
_BUILD_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of judging one image.

    Attributes:
        image: The engine's id of it.
        tags: Its names afterwards.
        exit_code: As of ``envbuild smoke``.
        findings: Those of severity error.
        said: Everything that was printed.
        seconds: Of building and of judging.
    """

    image: str
    tags: tuple[str, ...]
    exit_code: int
    findings: tuple[dict[str, Any], ...]
    said: str
    seconds: tuple[float, float]

    @property
    def told(self) -> str:
        """For a failing test: a line for each finding, or where there is none the end of what was printed."""
        lines = [f"{finding['rule']}: {finding['message'][:200]}" for finding in self.findings]
        return "\n".join(lines or self.said.splitlines()[-12:])

    @property
    def rules(self) -> frozenset[str]:
        """Ids of the findings."""
        return frozenset(str(finding["rule"]) for finding in self.findings)

    def problems(self, sabotage: Sabotage) -> list[str]:
        """Why the fault does not count as caught; empty when it does."""
        found = ", ".join(sorted(self.rules)) or "nothing"
        problems = []
        if self.exit_code != 5:
            problems.append(f"exit code {self.exit_code}, found: {found}")
        naming = [finding["message"] for finding in self.findings if finding["rule"] == sabotage.finding]
        if not naming:
            problems.append(f"found: {found}")
        elif not any(sabotage.names in message for message in naming):
            problems.append(f"{sabotage.finding} does not name {sabotage.names}")
        others = {rule for rule in self.rules if not rule.startswith("smoke.")}
        if sabotage.kind == "smoke" and others:
            # Training never began, so it was not training that told.
            problems.append(f"refused before the smoke: {', '.join(sorted(others))}")
        return problems


@dataclass(frozen=True, kw_only=True)
class Court:
    """What images are made from and judged with.

    Attributes:
        good: Name of the image that every one lies on.
        record: Its evidence.
        names: Prefix of the names of the spoiled images.
        cli: Runs the command line, from the repository.
        folder: For the files of builds.
    """

    engine: DockerEngine
    good: str
    record: Path
    names: str
    cli: Cli
    folder: Path


def name_of(court: Court, faults: Faults) -> str:
    """The one name of an image with these faults."""
    return f"{court.names}/{faults[0].id if len(faults) == 1 else 'several'}:1"


def judge(court: Court, faults: Faults) -> Verdict:
    """Make an image with these faults, judge it, and remove it. More than one: they have no say in how it is judged."""
    engine, ref, folder = court.engine, name_of(court, faults), court.folder / faults[0].id
    times = [time.monotonic()]
    try:
        _build(court, faults, ref, folder)
        times.append(time.monotonic())
        project = _project(faults[0], folder / "project")
        how = _limited if faults[0].memory_mib else _as_a_user
        code, findings, said = how(court, faults[0], ref, project)
        times.append(time.monotonic())
        info = engine.image(ref)
        assert info is not None, f"{ref} is gone"
        return Verdict(
            image=info.id,
            tags=info.repo_tags,
            exit_code=code,
            findings=tuple(finding for finding in findings if finding["severity"] == "error"),
            said=said,
            seconds=(times[1] - times[0], times[2] - times[1]),
        )
    finally:
        engine.untag(ref)


def _build(court: Court, faults: Faults, ref: str, folder: Path) -> None:
    context, dockerfile = folder / "context", folder / "Dockerfile"
    lines = [f"FROM {court.good}"]
    for sabotage in faults:
        _stage(court, sabotage, context / sabotage.id)
        steps = [*sabotage.dockerfile.splitlines(), *([f"RUN {TAMPER} patches"] if sabotage.patches else [])]
        # The files are seen through a mount, in a folder that every base has: no trace of it stays in the image.
        mount = f"--mount=type=bind,source={sabotage.id},target=/mnt"
        lines += [line.replace("RUN ", f"RUN {mount} ", 1) if line.startswith("RUN ") else line for line in steps]
    dockerfile.write_text("\n".join(lines) + "\n")
    request = BuildRequest(
        context=context,
        dockerfile=dockerfile,
        tag=ref,
        platform="linux/amd64",
        network="none",
        labels=((LABEL, faults[0].id),),
    )
    court.engine.build(request, log=folder / "build.log", timeout=_BUILD_SECONDS)


def _stage(court: Court, sabotage: Sabotage, folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("tamper.py"), folder)
    for name, text in sabotage.files.items():
        (folder / name).write_text(text)
    (folder / "patches.json").write_text(json.dumps([dataclasses.asdict(each) for each in sabotage.patches]))
    if sabotage.replay:
        record = json.loads(court.record.read_text())
        said = [record["content"]["inside"], *(each for each in record["smoke"].values() if isinstance(each, dict))]
        (folder / "replay.json").write_text(json.dumps(said))


def _project(sabotage: Sabotage, folder: Path) -> Path | None:
    """A project whose row is another one, where the sabotage says so."""
    if not sabotage.row:
        return None
    document = yaml.safe_load((Path(__file__).parents[2] / "matrix.yaml").read_text())
    document["environments"] = {ROW: {**document["environments"][ROW], **sabotage.row}}
    folder.mkdir()
    (folder / "matrix.yaml").write_text(yaml.safe_dump(document))
    return folder


_Judged = tuple[int, list[dict[str, Any]], str]


def _as_a_user(court: Court, sabotage: Sabotage, ref: str, project: Path | None) -> _Judged:
    options = ["--project", str(project)] if project else []
    if sabotage.timeout:
        options += ["--timeout", str(sabotage.timeout)]
    done = court.cli("smoke", ref, "--row", ROW, "--json", *options)
    document = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    return done.returncode, document.get("findings", []), done.stdout + done.stderr


class _Limited:
    """The real engine, whose training containers get less memory: no row says how much a cluster gives a job."""

    def __init__(self, engine: DockerEngine, mib: int) -> None:
        self._engine, self._mib = engine, mib

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, spec: ContainerSpec, **rest: Any) -> ContainerResult:
        if any(word.endswith("zero3.py") for word in spec.argv):
            spec = dataclasses.replace(spec, memory_bytes=self._mib * _MIB)
        return self._engine.run(spec, **rest)


def _limited(court: Court, sabotage: Sabotage, ref: str, project: Path | None) -> _Judged:
    bench = Workbench(project_folder=project or Path(__file__).parents[2])
    bench.__dict__["engine"] = _Limited(court.engine, sabotage.memory_mib or 0)
    try:
        smoke(bench, ref, row=ROW, wish=Wish(timeout=sabotage.timeout or SMOKE_SECONDS))
    except FindingsError as error:
        return error.exit_code, [as_dict(finding) for finding in error.findings], error.message
    return 0, [], "it passes"
