"""Small bundles for the tests: made by the product, of an image, wheels and packages that the tests make up."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from envbuild.bundle import differential, image, wheels, writing
from envbuild.bundle.fetching import Fetcher
from envbuild.bundle.finishing import Seals, finish
from envbuild.bundle.manifest import Manifest
from envbuild.bundle.words import SBOM
from envbuild.facts.upstream import Upstream
from envbuild.facts.upstream.reader import route
from envbuild.model import Lock
from envbuild.net import Client
from envbuild.registry import Blobs, Descriptor
from envbuild.registry.gzip import compress
from envbuild.registry.manifests import OCI_CONFIG, OCI_LAYER, OCI_MANIFEST, digest_of, dump
from envbuild.site.pip import PipSettings

CREATED = "2026-11-30T00:00:00Z"
EL8 = (2, 28)


def noise(size: int, seed: str) -> bytes:
    """Bytes that do not compress, the same for the same seed."""
    return random.Random(seed).randbytes(size)


def wheel(folder: Path, name: str, version: str, tag: str, *, padding: int = 0, code: str = "") -> Path:
    """A wheel that pip installs."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-{tag}.whl"
    members = {
        f"{name.replace('-', '_')}/__init__.py": code.encode() or f"__version__ = {version!r}\n".encode(),
        f"{name.replace('-', '_')}/data.bin": noise(padding, path.name),
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{stem}.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    record = "".join(f"{member},,\n" for member in members) + f"{stem}.dist-info/RECORD,,\n"
    with zipfile.ZipFile(path, "w") as out:
        for member, data in (*members.items(), (f"{stem}.dist-info/RECORD", record.encode())):
            out.writestr(zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0)), data)
    return path


def lock(
    packages: Mapping[str, tuple[str, str, list[Path]]], *, python: str = "3.9", platform: str = "linux/amd64"
) -> Lock:
    """A lock: version, group and files by name."""
    return Lock.model_validate({
        "schema": "envbuild.lock/1", "environment": "test", "platform": platform, "python": python,
        "inputs": digest_of(b""), "resolver": "test",
        "packages": [
            {"name": name, "version": version, "group": group,
             "hashes": [digest_of(path.read_bytes()) for path in paths]}
            for name, (version, group, paths) in packages.items()
        ],
    })  # fmt: skip


def source(folder: Path, *layers: bytes, reference: str = "envbuild/test:validated", note: str = "") -> image.Source:
    """An image as blobs, of layers with one file each."""
    blobs, packed, diff_ids = Blobs(folder), [], []
    for number, content in enumerate(layers):
        raw = tarred({f"file{number}": content})
        diff_ids.append(digest_of(raw))
        data = b"".join(compress(io.BytesIO(raw).read))
        packed.append(Descriptor(media_type=OCI_LAYER, digest=digest_of(data), size=len(data)))
        blobs.add(data, packed[-1].digest)
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Labels": {"note": note}},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }).encode()  # fmt: skip
    described = Descriptor(media_type=OCI_CONFIG, digest=digest_of(config), size=len(config))
    manifest = {
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": described.as_dict(),
        "layers": [each.as_dict() for each in packed],
    }  # fmt: skip
    return image.Source(manifest=dump(manifest), config=config, blobs=blobs, reference=reference)


def upstream(pip: PipSettings, folder: Path) -> Upstream:
    """What an index or a folder has."""
    return Upstream(pip, folder / "pages")


def fetcher(pip: PipSettings, cache: Path) -> Fetcher:
    """What brings files here."""
    return Fetcher(Client(route(pip)), cache)


def own(path: Path) -> wheels.Own:
    """A wheel that no index has."""
    return wheels.Own(path=path, filename=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


@dataclass
class Recipe:
    """What a bundle is to be made of.

    Attributes:
        cache: A folder for what is fetched or packed.
        rpms: Content by name.
        wheels: A folder of wheels, and the lock that asks for them.
    """

    cache: Path
    rpms: dict[str, bytes] = field(default_factory=lambda: {"a-1-1.x86_64.rpm": noise(300_000, "a")})
    wheels: tuple[Path, Lock] | None = None
    image: image.Source | None = None
    evidence: dict[str, bytes] = field(default_factory=dict)
    doctor: bytes = b"#!/usr/bin/env python3\n"
    scripts: tuple[str, ...] = ("install.sh", "verify.sh", "assemble.sh")

    def write(self, target: Path, seals: Seals | None = None, base: Path | None = None) -> Manifest:
        """Write it."""
        known = None if base is None else differential.read(base)
        with writing.drafting(target, CREATED, base=known.files if known else None) as draft:
            sections = dict(self._parts(draft))

            def describe(files: tuple[Any, ...], carried: tuple[str, ...]) -> Manifest:
                return Manifest.model_validate({
                    "name": "test", "created": CREATED, "envbuild": "0.0",
                    "target": {"distro": "rhel", "major": 8, "arch": "x86_64"}, "files": files,
                    "parts": [*sections, "doctor"], **sections,
                    "base": known.base if known else None, "carried": carried if known else None,
                })  # fmt: skip

            return finish(draft, describe, seals or Seals())

    def _parts(self, draft: writing.Draft) -> Iterator[tuple[str, Any]]:
        for name in self.scripts:
            draft.write(name, f"#!/bin/sh\necho {name}\n".encode(), program=True)
        draft.write(SBOM, b"{}\n")
        draft.write("doctor.pyz", self.doctor, "doctor", program=True)
        if self.rpms:
            yield "rpms", self._rpms(draft)
        if self.wheels is not None:
            folder, asked = self.wheels
            pip = PipSettings(no_index=True, find_links=(str(folder),))
            wish = wheels.Wish(lock=asked, glibc=EL8, own={}, imports=("small.sub",), env=(("CC", "/opt/a b/gcc"),))
            choices = wheels.choose(wish, upstream(pip, self.cache), self.cache)
            yield "wheels", wheels.write(draft, wish, choices, fetcher(pip, self.cache))
        if self.image is not None:
            path = "images/test.oci.tar"
            draft.stream(path, image.archive(self.image), "image")
            beside = [draft.write(f"images/evidence/{name}", data, "image") for name, data in self.evidence.items()]
            yield "image", image.described(self.image, path, tuple(sorted(file.path for file in beside)))

    def _rpms(self, draft: writing.Draft) -> dict[str, Any]:
        packages = []
        for name, content in self.rpms.items():
            cached = self.cache / "rpms" / name
            cached.parent.mkdir(parents=True, exist_ok=True)
            if not cached.is_file() or cached.read_bytes() != content:
                cached.write_bytes(content)
            sha256, path = hashlib.sha256(content).hexdigest(), f"rpms/Packages/{name}"
            draft.copy(path, cached, sha256, "rpms")
            packages.append({"nevra": name.removesuffix(".rpm"), "path": path, "sha256": sha256, "bytes": len(content),
                             "installed_bytes": 2 * len(content), "repository": "test"})  # fmt: skip
        listed = json.dumps([each["sha256"] for each in packages]).encode()
        draft.write("rpms/repodata/repomd.xml", listed, "rpms")
        return {
            "roots": ["a"], "packages": packages, "keys": [],
            "repositories": [{"id": "test", "url_masked": "file:///r", "revision": "1", "repomd_sha256": "0" * 64}],
            "targets": [{"name": "empty", "source": "empty", "installs": [each["nevra"] for each in packages]}],
        }  # fmt: skip


def tarred(files: Mapping[str, bytes]) -> bytes:
    """A layer."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return raw.getvalue()


def exported(*layers: bytes) -> Callable[[], AbstractContextManager[BinaryIO]]:
    """An image as ``docker save`` gives it."""
    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]}}).encode()
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    listing = json.dumps([{"Config": name, "RepoTags": None, "Layers": names}]).encode()
    members = {name: config, **dict(zip(names, layers, strict=True)), "manifest.json": listing}
    archive = tarred(members)
    return lambda: contextlib.closing(io.BytesIO(archive))


def contents(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Bytes, permissions and time of every file, and permissions and time of every folder, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[path.relative_to(folder).as_posix()] = (data, status.st_mode, int(status.st_mtime))
    return found


@contextlib.contextmanager
def changed(path: Path, data: bytes) -> Iterator[None]:
    """A file that says something else for a while."""
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before)
