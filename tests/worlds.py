"""A row's image, a pusher and a puller with stores of their own, and a front before the registry between them.

The image is small, and its evidence is made up and signed here: what is tested with it is the way, not the proof.
"""

from __future__ import annotations

import datetime
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envbuild import evidence
from envbuild.engines import BuildRequest, Engine, ImageInfo
from envbuild.evidence import keys
from envbuild.judge import archive
from envbuild.judge.suite import suite_hash
from envbuild.model import Level
from envbuild.pipeline import pull as pulling
from envbuild.pipeline import push as pushing
from envbuild.pipeline.names import names
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.prove import claims
from envbuild.pipeline.remote import repository
from envbuild.pipeline.wanted import Wanted
from envbuild.pipeline.workbench import Workbench
from envbuild.plan import LABEL_ENV, LABEL_TARGET
from envbuild.registry import Repository, parse
from registries import Front

REPOSITORY = Path(__file__).parents[1]


@dataclass
class World:
    """A front before the registry, a pusher's store and a puller's, one key, and the row's image."""

    engine: Engine
    front: Front
    folder: Path
    prefix: str
    patch: pytest.MonkeyPatch
    layer: str = ""
    project: Path = REPOSITORY

    def __post_init__(self) -> None:
        keys.make(self.folder / "farm.pem")
        self.key = keys.load_signing(self.folder / "farm.pem")
        self.home("pusher")
        bench = self.bench()
        self.env = bench.matrix.get("cpu")
        self.target = prepare(bench, "cpu", checked=False)
        self.names = names(self.env, self.target.rendering.id8, self.prefix)

    def home(self, name: str) -> Path:
        """Be somebody else: with a store, and so a cache, of their own."""
        path = self.folder / name
        self.patch.setenv("ENVBUILD_HOME", str(path))
        return path

    def bench(self, *, trusts: bool = True, signs: bool = True) -> Workbench:
        settings = {
            "registry.name": self.prefix,
            "engine.kind": self.engine.kind,
            "trust.keys": [str(self.folder / "farm.pub")] if trusts else None,
            "signing.key": str(self.folder / "farm.pem") if signs else None,
        }
        return Workbench(project_folder=self.project, settings={k: v for k, v in settings.items() if v})

    def image(self, *sizes: int, base: str | None = None, target: str | None = None) -> ImageInfo:
        """An image of layers that nobody has, the row's by its labels; named as a build would name it."""
        context = self.folder / secrets.token_hex(4)
        context.mkdir()
        lines = ["FROM scratch" if base is None else f"FROM {base}"]
        for number, size in enumerate(sizes):
            (context / f"file{number}").write_bytes(os.urandom(size))
            lines.append(f"COPY file{number} /{secrets.token_hex(4)}")
        (context / "Dockerfile").write_text("\n".join(lines) + "\n")
        target = target or self.target.rendering.target_id
        self.engine.build(
            BuildRequest(
                context=context, dockerfile=context / "Dockerfile", tag=self.names.proven, platform="linux/amd64",
                labels=((LABEL_ENV, "cpu"), (LABEL_TARGET, target)),
            ),
            log=context / "log",
        )  # fmt: skip
        info = self.engine.image(self.names.proven)
        assert info is not None
        return info

    def record(self, info: ImageInfo, **changes: Any) -> evidence.Evidence:
        with self.engine.save(info.id) as stream:
            identity = archive.read(stream, lambda path: False).identity
        now = datetime.datetime.now(datetime.timezone.utc)
        made = evidence.Evidence(
            schema="envbuild.evidence/1", environment="cpu", target_id=self.target.rendering.target_id,
            level=Level.CPU, suite=suite_hash(), envbuild="0", image=evidence.Identity.of(identity),
            platform="linux/amd64", size_bytes=5, base={}, claims=claims(self.env), content={}, portability={},
            smoke={}, findings=(), started=now, finished=now, seconds={},
            host=evidence.Host(system="s", machine="m", cpu="c", cpus=1, memory_bytes=1, engine="e"),
        )  # fmt: skip
        return made.model_copy(update=changes)

    def prove(self, info: ImageInfo, *, key: evidence.SigningKey | str | None = "own", **changes: Any) -> None:
        signer = self.key if key == "own" else key
        assert not isinstance(signer, str)
        evidence.save(self.record(info, **changes), info.id, key=signer)
        evidence.remember_built(self.target.rendering.target_id, info.id)

    def push(self, **wish: Any) -> pushing.Pushed:
        bench = self.bench()
        return pushing.push(bench, pushing.plan(bench, "cpu", row=None, wish=pushing.Wish(**wish)))

    def pull(self, *, trusts: bool = True, wanted: Wanted | None = None, **wish: Any) -> ImageInfo:
        wished = pulling.Wish(wanted=wanted or Wanted(), **wish)
        _, info = pulling.pull(self.bench(trusts=trusts), "cpu", wished)
        assert info is not None
        return info

    def move(self, prefix: str, info: ImageInfo) -> None:
        """Be a site whose registry has another name; the image has the name that it has there, and no other."""
        new = names(self.env, self.target.rendering.id8, prefix)
        self.engine.tag(info.id, new.proven)
        for tag in self.local:
            self.engine.untag(f"{self.names.repository}:{tag}")
        self.prefix, self.names = prefix, new

    def forget(self, *names: str) -> None:
        """Take the image away from the engine, every name of it, and what a build cache keeps of its layers."""
        forgotten = self.engine.images(f"{self.names.repository}:*")
        for tag in names or [tag for info in forgotten for tag in info.repo_tags]:
            self.engine.untag(tag)
        for info in self.engine.every_image():
            if not info.repo_tags and any(set(info.diff_ids) & set(each.diff_ids) for each in forgotten):
                self.engine.remove_unnamed(info.id)

    @property
    def local(self) -> set[str]:
        """The tags that the engine has of this repository."""
        found = self.engine.images(f"{self.names.repository}:*")
        tags = {tag for info in found for tag in info.repo_tags}
        return {tag.rpartition(":")[2] for tag in tags if tag.startswith(f"{self.names.repository}:")}

    @property
    def there(self) -> Repository:
        """The row's repository in the registry."""
        return repository(self.bench(), parse(self.names.proven), lambda event: None)

    @property
    def remote(self) -> set[str]:
        """The tags that the registry has, without the lists of what refers to an image."""
        return {tag for tag in self.there.tags() if not tag.startswith("sha256-")}

    def start(self, home: str, *arguments: str) -> subprocess.Popen[bytes]:
        """The command in a process of its own."""
        env = {**os.environ, "ENVBUILD_HOME": str(self.folder / home), "ENVBUILD_REGISTRY_NAME": self.prefix}
        argv = [sys.executable, "-m", "envbuild", *arguments, "--project", str(self.project)]
        argv += ["--engine", self.engine.kind]
        return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
