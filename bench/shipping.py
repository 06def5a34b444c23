"""How fast an image goes to a registry on loopback and comes back, against `docker push` and `docker pull`.

Both move the row's image with some bytes of this round's own in every layer: what a builder or an earlier round has
kept of a layer would otherwise not be moved at all. Its evidence is made up and signed here, since it is not the image
that was proven; it is checked like any other.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import io
import json
import os
import secrets
import shutil
import sys
import tarfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from commands import ENVBUILD, ROOT
from figures import Ratio
from staging import must

from envbuild import evidence
from envbuild.evidence import keys
from envbuild.judge import archive
from envbuild.judge.suite import suite_hash
from envbuild.pipeline.names import names
from envbuild.pipeline.prepare import Target
from envbuild.pipeline.prove import claims
from envbuild.pipeline.workbench import Workbench
from envbuild.store import HOME_VARIABLE

sys.path.insert(0, str(ROOT / "tests"))

# 0.8 or more of the speed.
LIMIT = 1 / 0.8


def measures(bench: Workbench, target: Target, proven: str, folder: Path, rounds: int) -> list[Ratio]:
    """Push and pull of the row's image, each against Docker's own."""
    import registries

    binary = registries.program(_made(folder / "registry"))
    trips: list[_Trip] = []
    for number in range(rounds):
        with ExitStack() as stack:
            its = _made(folder / f"round{number}")
            ours, theirs = (
                stack.enter_context(registries.running(binary, _made(its / name))) for name in ("ours", "theirs")
            )
            trips.append(_round(bench, target, _salted(bench, proven, its), its, (ours, theirs), number % 2 == 0))
        shutil.rmtree(its)
    against = "the same image to and from a registry of the same kind; layers that neither has"
    return [
        Ratio(
            name=f"envbuild {name}", limit=LIMIT, against=f"docker {name} of {against}",
            ours=tuple(getattr(each, name)[0] for each in trips),
            reference=tuple(getattr(each, name)[1] for each in trips),
        )
        for name in ("push", "pull")
    ]  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Trip:
    """Seconds of one round: ours and Docker's."""

    push: tuple[float, float]
    pull: tuple[float, float]


def _round(
    bench: Workbench, target: Target, image: str, folder: Path, registries: tuple[str, str], first: bool
) -> _Trip:
    ours, theirs = registries
    home, prefix = folder / "home", f"{ours}/bench"
    keys.make(folder / "farm.pem")
    _prove(bench, target, image, home, keys.load_signing(folder / "farm.pem"))
    name, other = names(target.env, target.rendering.id8, prefix).proven, f"{theirs}/bench/{target.env.name}:latest"
    docker = (bench.engine.any_client(), "--host", bench.engine.endpoint)
    settings = {
        "ENVBUILD_HOME": str(home), "ENVBUILD_REGISTRY_NAME": prefix, "DOCKER_HOST": bench.engine.endpoint,
        "ENVBUILD_TRUST_KEYS": str(folder / "farm.pub"), "ENVBUILD_SIGNING_KEY": str(folder / "farm.pem"),
    }  # fmt: skip
    for each in (name, other):
        bench.engine.tag(image, each)
    row = target.env.name

    def pull(argv: tuple[str, ...]) -> float:
        _forget(bench, image)
        return _seconds(argv, settings)

    # As the proof of a real image leaves it: its bill is made on the way, and not by the push.
    must((ENVBUILD, "sbom", image, "-o", str(folder / "bill.json")), cwd=ROOT, env=settings)
    pushes = _both(
        first,
        lambda: _seconds((ENVBUILD, "push", row, "--quiet"), settings),
        lambda: _seconds((*docker, "push", "--quiet", other), settings),
    )
    pulls = _both(
        first,
        lambda: pull((ENVBUILD, "pull", row, "--any-host", "--quiet")),
        lambda: pull((*docker, "pull", "--quiet", other)),
    )
    _forget(bench, image)
    return _Trip(push=pushes, pull=pulls)


def _forget(bench: Workbench, image: str) -> None:
    """Take an image away: its layers go with the last of its names."""
    if (info := bench.engine.image(image)) is not None:
        for tag in info.repo_tags:
            bench.engine.untag(tag)


def _both(first: bool, ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[float, float]:
    """Both of them, the one or the other first."""
    if first:
        one = ours()
        return one, theirs()
    other = theirs()
    return ours(), other


def _seconds(argv: tuple[str, ...], env: dict[str, str]) -> float:
    began = time.monotonic()
    must(argv, cwd=ROOT, env=env)
    return time.monotonic() - began


def _prove(bench: Workbench, target: Target, image: str, home: Path, key: evidence.SigningKey) -> None:
    """Evidence of the row's level for this image, in a store of its own."""
    with bench.engine.save(image) as stream:
        identity = archive.read(stream, lambda path: False).identity
    now = datetime.datetime.now(datetime.timezone.utc)
    made = evidence.Evidence(
        schema="envbuild.evidence/1", environment=target.env.name, target_id=target.rendering.target_id,
        level=target.env.requires, suite=suite_hash(), envbuild="0", image=evidence.Identity.of(identity),
        platform=target.plan.platform, size_bytes=1, base={}, claims=claims(target.env), content={}, portability={},
        smoke={}, findings=(), started=now, finished=now, seconds={},
        host=evidence.Host(system="-", machine="-", cpu="-", cpus=1, memory_bytes=1, engine="-"),
    )  # fmt: skip
    before = os.environ.get(HOME_VARIABLE)
    os.environ[HOME_VARIABLE] = str(home)
    try:
        evidence.save(made, image, key=key)
        evidence.remember_built(target.rendering.target_id, image)
    finally:
        os.environ.pop(HOME_VARIABLE)
        if before is not None:
            os.environ[HOME_VARIABLE] = before


def _salted(bench: Workbench, image: str, folder: Path) -> str:
    """Load the image with a file of random bytes more in every layer; its id."""
    saved, made = folder / "saved", folder / "made.tar"
    with bench.engine.save(image) as stream, tarfile.open(fileobj=stream, mode="r|*") as whole:
        whole.extractall(saved, filter="tar")
    manifest = json.loads((saved / "manifest.json").read_text())[0]
    config = json.loads((saved / manifest["Config"]).read_text())
    salt = secrets.token_bytes(64)
    digests = []
    for layer in manifest["Layers"]:
        path = (saved / layer).resolve()
        with tarfile.open(path, "a") as tar:
            entry = tarfile.TarInfo(f"opt/salt-{len(digests)}")
            entry.size = len(salt)
            tar.addfile(entry, io.BytesIO(salt))
        digests.append(f"sha256:{_sha256(path)}")
    config["rootfs"]["diff_ids"] = digests
    text = json.dumps(config).encode()
    name = hashlib.sha256(text).hexdigest()
    with tarfile.open(made, "w") as tar:
        described = [{"Config": f"{name}.json", "RepoTags": None, "Layers": manifest["Layers"]}]
        for arcname, content in ((f"{name}.json", text), ("manifest.json", json.dumps(described).encode())):
            entry = tarfile.TarInfo(arcname)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for layer in manifest["Layers"]:
            tar.add((saved / layer).resolve(), layer)
    shutil.rmtree(saved)
    must((bench.engine.any_client(), "--host", bench.engine.endpoint, "load", "--quiet", "--input", str(made)))
    made.unlink()
    return f"sha256:{name}"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
