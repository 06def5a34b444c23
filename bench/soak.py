"""Long checks, run on demand; what was seen goes to docs/measured/.

    python bench/soak.py [buildah] [ten] [cuda] [kills] [overhead] [equal] [slower]

    buildah   the row's build context builds with Buildah, no daemon asked, and the image passes inspect and smoke
    ten       the proven image passes inspect and smoke ten times in a row
    cuda      the row with the CUDA toolkit from wheels builds, and its image passes inspect and a smoke on the CPU
    kills     a push and a pull are killed at 50 random points each; no wrong name is left, and the rerun ends well
    overhead  being measured changes the median step by less than 3 %
    equal     the image against itself, twenty comparisons of ten rounds: never `regressed`
    slower    a busy wait of 10 % of the step is found in eight of ten comparisons

The last three want a machine with nothing else to do, and hours; they run by their names only. Without a name the
others run. Exit code 1 when one of them fails. `cuda` downloads 3 GB and needs 30 GB. `buildah` installs
the package of that name where it is missing (apt, as root or with sudo) and needs some 6 GB of temporary space, which
it gives back.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measuring
from commands import ENVBUILD, ROOT
from staging import Staged, must, stage

from envbuild import __version__, process
from envbuild.errors import EnvbuildError
from envbuild.judge.outcome import dig
from envbuild.pipeline.host import describe
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.sizes import format_size
from envbuild.pipeline.summary import summary
from envbuild.pipeline.workbench import Workbench

ROW = "cpu"
CUDA_ROW = "h200-cu130"
TIMES = 10
ROUNDS = 50
_KILLS_SECONDS = 3600.0
_LOADED = "envbuild-soak/cpu:buildah"
_BUILD_SECONDS = 7200.0
# apt-get update removes files that it does not know from its lists.
_LOCK_FILE = "harmless: Buildah lays its lock into the cache mount, and apt clears its own folder"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("check", nargs="*", metavar="|".join(CHECKS), help="all of them without a name")
    chosen = parser.parse_args().check or [name for name in CHECKS if name not in _ALONE]
    if unknown := [name for name in chosen if name not in CHECKS]:
        parser.error(f"no such check: {', '.join(unknown)}")
    ok = True
    for name in chosen:
        say(f"{name}: {CHECKS[name].__doc__}")
        bench = Workbench(project_folder=ROOT)
        try:
            lines = CHECKS[name](bench)
            passed = True
        except EnvbuildError as error:
            lines, passed = ["It failed:", "", "```", error.message, "```"], False
            print(error.message, file=sys.stderr)
        try:
            write(name, bench, passed, lines)
        except EnvbuildError as error:
            print(f"error: {error.message}\n{error.hint}".rstrip(), file=sys.stderr)
            return error.exit_code
        ok = ok and passed
    return 0 if ok else 1


def buildah(bench: Workbench) -> list[str]:
    """The rendered build context builds with Buildah, and the image passes inspect and smoke."""
    if process.which("buildah") is None:
        say("buildah is not installed: installing it (apt, as root or with sudo)")
        must(("sh", str(ROOT / "scripts" / "engine.sh"), "install", "buildah"))
    version = must(("buildah", "--version")).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="envbuild-soak-") as scratch:
        folder = Path(scratch)
        staged = stage(bench, prepare(bench, ROW), folder)
        with _Buildah(folder) as tool:
            base = tool.take(bench, staged)
            command = (
                # With this isolation RUN steps share the host's network in any case.
                "bud", "--isolation", "chroot", "--network", "host", "--layers", "--pull=never",
                "--build-arg", f"BASE={base}",
                *(part for name, path in staged.secrets for part in ("--secret", f"id={name},src={path}")),
                "--tag", "localhost/envbuild-soak:latest",
                "--file", str(staged.context / "Dockerfile"), str(staged.context),
            )  # fmt: skip
            began = time.monotonic()
            log = tool.build(command)
            seconds = time.monotonic() - began
            warnings = sorted({_warning(line, scratch) for line in log if "level=warning" in line})
            tool.give(bench, "localhost/envbuild-soak:latest", folder / "image.tar")
            try:
                # The evidence of this image is for this document, not for the user's store.
                argv = (ENVBUILD, "smoke", _LOADED, "--row", ROW, "--json")
                said = json.loads(must(argv, cwd=ROOT, env={"ENVBUILD_HOME": str(folder / "home")}).stdout)
                record = json.loads(Path(said["evidence"]).read_text())
            finally:
                bench.engine.untag(_LOADED)
    shown = shlex.join(("buildah", *command)).replace(scratch, "$SCRATCH")
    return [
        f"{version}, with no daemon, from the build context as `envbuild render {ROW}` writes it (target "
        f"{staged.target.rendering.id8}), nothing in its caches, base `{base}` imported from the engine:",
        "",
        "```",
        shown,
        "```",
        "",
        f"- It built in {seconds:.0f} s, the ops compiled on the way.",
        f"- Warnings of its own: {len(warnings)}.",
        *(f"  - {warning}" for warning in warnings),
        f"- The image, carried over to the engine, passes `envbuild smoke` at level {said['level']}: "
        f"{record['size_bytes'] / 2**30:.2f} GiB, {len(record['image']['diff_ids'])} layers.",
        *(f"- {line}" for line in summary(record["smoke"]["zero3"])),
    ]


class _Buildah:
    """Buildah with a store, caches and temporary files of its own, all gone at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "buildah"
        store = ("--root", str(self._folder / "root"), "--runroot", str(self._folder / "run"))
        root = () if os.geteuid() == 0 else ("sudo",)
        if root:
            say("buildah runs as root here: using sudo")
        # Its cache mounts lie in TMPDIR.
        self._as_root = (*root, "env", f"TMPDIR={self._folder}")
        self._program = (*self._as_root, "buildah", *store)

    def __enter__(self) -> _Buildah:
        self._folder.mkdir()
        return self

    def __exit__(self, *error: object) -> None:
        for command in ((*self._program, "rm", "--all"), (*self._program, "rmi", "--all", "--force")):
            process.run(command)
        # The store is a mount of its own while it is in use.
        process.run((*self._as_root, "umount", str(self._folder / "root" / "overlay")))
        process.run((*self._as_root, "rm", "-rf", "--one-file-system", str(self._folder)))

    def take(self, bench: Workbench, staged: Staged) -> str:
        """Bring the engine's base over; returns its name here."""
        archive = self._folder / "base.tar"
        with bench.engine.save(staged.base) as stream, archive.open("wb") as file:
            while block := stream.read(1 << 20):
                file.write(block)
        must((*self._program, "pull", f"docker-archive:{archive}"))
        archive.unlink()
        return f"localhost/{staged.base}"

    def build(self, command: tuple[str, ...]) -> list[str]:
        """Run a build; returns its output."""
        lines: list[str] = []
        code = process.stream((*self._program, *command), on_line=lines.append, timeout=_BUILD_SECONDS)
        if code != 0:
            raise EnvbuildError(f"buildah ended with {code}:\n" + "\n".join(lines[-25:]))
        return lines

    def give(self, bench: Workbench, image: str, archive: Path) -> None:
        """Carry an image over to the engine."""
        # By its id: by its name it would arrive under both names.
        found = must((*self._program, "images", "--quiet", "--no-trunc", image)).stdout.split()[0]
        must((*self._program, "push", found.removeprefix("sha256:"), f"docker-archive:{archive}:{_LOADED}"))
        must((bench.engine.any_client(), "--host", bench.engine.endpoint, "load", "--input", str(archive)))
        archive.unlink(missing_ok=True)


def ten(bench: Workbench) -> list[str]:
    """The proven image passes inspect and smoke ten times in a row."""
    must((ENVBUILD, "build", ROW), cwd=ROOT)
    heads = ("run", "seed", "inspect", "smoke", *_COLUMNS)
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    image = level = ""
    for number in range(1, TIMES + 1):
        said = json.loads(must((ENVBUILD, "smoke", ROW, "--json", "--force"), cwd=ROOT).stdout)
        record = json.loads(Path(said["evidence"]).read_text())
        image, level = f"{said['image']}, config {record['image']['config_digest'][:19]}", said["level"]
        row = (number, *_figures(record))
        rows.append(f"| {' | '.join(map(str, row))} |")
        say(f"run {number} of {TIMES} passes at level {level}")
    return [
        f"`envbuild smoke {ROW} --force`, {TIMES} times: {image}. Every run passed at level {level}, each with weights "
        "and data of its own. Of two ranks the worse figure is shown; errors are relative, against plain torch.",
        "",
        *rows,
    ]


_COLUMNS = (
    "gradient error",
    "ratio",
    "parameter error",
    "bf16 gradient error",
    "on disk: losses apart",
    "checkpoint: losses apart",
)


def _figures(record: dict[str, Any]) -> tuple[str, ...]:
    report = record["smoke"]["zero3"]
    passes = [rank["report"]["passes"] for rank in report["ranks"]]
    saved = [rank["report"]["checkpoint"] for rank in report["ranks"]]
    return (
        str(dig(report, "arguments", "seed")),
        f"{record['seconds']['inspect']:.1f} s",
        f"{record['seconds']['smoke']:.1f} s",
        _worst(passes, "fp32", "gradients", "relative_error"),
        f"{max((dig(each, 'fp32', 'gradients', 'ratio') for each in passes), key=lambda ratio: abs(ratio - 1)):.6f}",
        _worst(passes, "fp32", "parameters", "relative_error"),
        _worst(passes, "bf16", "gradients", "relative_error"),
        _apart(_mean([dig(each, "nvme", "losses") for each in passes]), dig(passes[0], "nvme", "reference_losses")),
        max(_apart(dig(rank, "losses"), dig(rank, "losses_again")) for rank in saved),
    )


def _worst(passes: list[dict[str, Any]], *keys: str) -> str:
    values = [dig(each, *keys) for each in passes]
    return f"{max(values):.2e}" if None not in values else "not run"


def _mean(losses: list[list[float]]) -> list[float]:
    """A rank's loss is that of its own part of the batch: the mean over ranks is the batch's."""
    return [sum(step) / len(step) for step in zip(*losses, strict=True)]


def _apart(one: list[float], other: list[float]) -> str:
    return f"{max(abs(a - b) for a, b in zip(one, other, strict=True)):.2e}"


def cuda(bench: Workbench) -> list[str]:
    """The row with the CUDA toolkit from wheels builds, and its image passes inspect and a smoke on the CPU."""
    argv = (ENVBUILD, "build", CUDA_ROW, "--gpus", "none", "--allow-level", "cpu", "--json")
    (said,) = json.loads(must(argv, cwd=ROOT).stdout)["images"]
    shown = must((ENVBUILD, "show", CUDA_ROW), cwd=ROOT).stdout.partition("Evidence:")
    return [
        f"`{shlex.join((Path(ENVBUILD).name, *argv[1:]))}`: {said['status']} in {said['seconds']:.0f} s, "
        f"level {said['level']}. No GPU was used, so this is not what the row requires (gpu).",
        "",
        "```",
        *(line for line in (shown[1] + shown[2]).splitlines() if not line.startswith("  record")),
        "```",
    ]


def kills(bench: Workbench) -> list[str]:
    """A push and a pull are killed (-9) at 50 random points each: no wrong name is left, and the rerun ends well."""
    test = ROOT / "tests" / "integration" / "test_push_pull.py"
    with tempfile.TemporaryDirectory(prefix="envbuild-soak-") as scratch:
        report = Path(scratch) / "kills.jsonl"
        env = {"ENVBUILD_KILL_ROUNDS": str(ROUNDS), "ENVBUILD_KILL_REPORT": str(report)}
        argv = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(test), "-k", "killed")
        done = process.run(argv, cwd=ROOT, env=env, timeout=_KILLS_SECONDS)
        if done.returncode != 0:
            raise EnvbuildError(f"pytest ended with {done.returncode}:\n{done.stdout[-4000:]}")
        return _kills([json.loads(line) for line in report.read_text().splitlines()])


def _kills(found: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{ROUNDS} rounds of each command, against a real registry (Debian's docker-registry) behind a front that "
        "counts bytes and requests, an image of 5 MiB in two layers, and the engine below. Every round begins with "
        "nothing: another repository for a push, an engine and a store without the image for a pull. The command is "
        "killed at a random byte of what moves, at a random request, or up to a second after one; then the same "
        "command runs again.",
        "",
        "After each kill: every name that is there names the whole, proven image, with what belongs to it, or there is "
        "none. After each rerun: exit code 0, both names, the evidence, nothing half done in the store. All held.",
        "",
        "| command | what it was about when it was killed | kills | with a name left | moved by the rerun, of 5 MiB |",
        "|---|---|---|---|---|",
    ]
    for command in ("push", "pull"):
        rounds = [each for each in found if each["command"] == command]
        if len(rounds) != ROUNDS:
            raise EnvbuildError(f"{len(rounds)} rounds of {command} were seen, and not {ROUNDS}")
        steps = {str(each.get("step")) for each in rounds if each["killed"]}
        for step in sorted(steps):
            own = [each for each in rounds if each["killed"] and each.get("step") == step]
            moved = [each["rerun_moved"] / 2**20 for each in own]
            named = sum(bool(each["names_left"]) for each in own)
            lines.append(f"| {command} | {step} | {len(own)} | {named} | {min(moved):.1f} to {max(moved):.1f} MiB |")
        done = sum(not each["killed"] for each in rounds)
        lines.append(f"| {command} | (it had ended before its point was reached) | {done} | {done} | |")
    return lines


def write(name: str, bench: Workbench, passed: bool, lines: list[str]) -> None:
    """Write the dated document of one check."""
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    host = describe(bench.engine.info())
    text = [
        f"# Soak: {name}, {today}: {'passed' if passed else 'FAILED'}",
        "",
        f"`make soak` ({name}). {CHECKS[name].__doc__}",
        "",
        *lines,
        "",
        f"Machine: {host.cpu}, {host.cpus} CPUs, {format_size(host.memory_bytes)} of memory, {host.system}. "
        f"Engine: {host.engine}. envbuild {__version__}.",
    ]
    path = ROOT / "docs" / "measured" / f"soak-{name}-{today}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(text) + "\n")
    say(f"{name} {'passed' if passed else 'FAILED'}; wrote {path.relative_to(ROOT)}")


def _warning(line: str, scratch: str) -> str:
    """One of Buildah's warnings, without its time, and what is known of it."""
    text = (line.partition("msg=")[2] or line).strip('"').replace('\\"', "'").replace(scratch, "$SCRATCH")
    known = "buildah-cache-lockfile" in text
    return f"`{text}`" + (f" ({_LOCK_FILE})" if known else "")


def say(text: str) -> None:
    print(f"soak: {text}", file=sys.stderr, flush=True)


CHECKS: dict[str, Callable[[Workbench], list[str]]] = {
    "buildah": buildah, "ten": ten, "cuda": cuda, "kills": kills,
    "overhead": measuring.overhead, "equal": measuring.equal, "slower": measuring.slower,
}  # fmt: skip
_ALONE = ("overhead", "equal", "slower")

if __name__ == "__main__":
    sys.exit(main())
