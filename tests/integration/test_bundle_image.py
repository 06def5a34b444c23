"""The image of a bundle, loaded by each of the engines that a site may have: Docker, podman, skopeo."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

import registries
from envbuild.bundle import image
from envbuild.engines import BuildRequest, DockerEngine, ImageInfo
from envbuild.errors import BundleError
from envbuild.model import Level
from envbuild.pipeline import shipping
from envbuild.pipeline.resolving import look_up
from envbuild.pipeline.workbench import Workbench
from envbuild.registry import Descriptor, push_blob
from envbuild.registry.connect import connect
from envbuild.registry.manifests import OCI_CONFIG, OCI_MANIFEST, digest_of
from envbuild.registry.reference import parse
from envbuild.site.sections import SiteConfig

NAMED = shipping.Named(reference=f"envbuild-test/bundle-{os.getpid()}:validated", level=Level.CPU)


@pytest.fixture(scope="module")
def skopeo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The installed one, or Debian's, unpacked into a folder."""
    if (found := shutil.which("skopeo")) is not None:
        return found
    folder = tmp_path_factory.mktemp("deb")
    folder.chmod(0o777)
    for argv in (["apt-get", "download", "-qq", "skopeo"], ["sh", "-c", "dpkg-deb -x ./*.deb ."]):
        subprocess.run(argv, cwd=folder, check=True, capture_output=True, timeout=120)
    return str(folder / "usr/bin/skopeo")


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """podman with a storage of its own."""
    folder = tmp_path_factory.mktemp("podman")
    line = ["podman", "--root", str(folder / "root"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]
    yield line
    subprocess.run([*line, "rmi", "--all", "--force"], capture_output=True, timeout=120)


@pytest.fixture
def made(engine: DockerEngine, tmp_path: Path) -> Iterator[ImageInfo]:
    """An image of three layers, two of them the same, that the engine forgets as soon as it was packed."""
    (tmp_path / "a").write_bytes(os.urandom(3 << 20))
    (tmp_path / "b").write_text(secrets.token_hex(8))
    text = 'FROM scratch\nCOPY a /a\nCOPY b /b\nCOPY b /b\nENV WHAT="a bundle"\n'
    (tmp_path / "Dockerfile").write_text(text)
    request = BuildRequest(
        context=tmp_path, dockerfile=tmp_path / "Dockerfile", tag=NAMED.reference, platform="linux/amd64", labels=()
    )
    engine.build(request, log=tmp_path / "log")
    info = engine.image(NAMED.reference)
    assert info is not None
    yield info
    engine.untag(NAMED.reference)


def written(source: image.Source, path: Path) -> Path:
    path.write_bytes(b"".join(image.archive(source)))
    return path


def said(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_docker_podman_and_skopeo_load_the_same_image_from_it(
    engine: DockerEngine, made: ImageInfo, podman: list[str], skopeo: str, tmp_path: Path
) -> None:
    source = shipping.from_engine(Workbench(), made, NAMED)
    path = written(source, tmp_path / "image.tar")
    known = image.described(source, "images/image.oci.tar")
    assert (known.config_digest, known.diff_ids, known.level) == (made.id, made.diff_ids, Level.CPU)
    with path.open("rb") as file:
        assert list(image.contradictions(file, known)) == []
    # The same image is the same archive, from the cache or packed again.
    again = shipping.from_engine(Workbench(), made, NAMED)
    assert b"".join(image.archive(again)) == path.read_bytes()
    for layer in again.parsed().layers:
        again.blobs.remove(layer.digest)
    assert b"".join(image.archive(shipping.from_engine(Workbench(), made, NAMED))) == path.read_bytes()

    engine.untag(NAMED.reference)
    assert engine.image(made.id) is None
    said([engine.any_client(), "--host", engine.endpoint, "load", "-i", str(path)])
    loaded = engine.image(NAMED.reference)
    assert loaded is not None and (loaded.id, loaded.diff_ids) == (known.config_digest, known.diff_ids)

    said([*podman, "load", "-i", str(path)])
    (theirs,) = json.loads(said([*podman, "inspect", NAMED.reference]))
    assert f"sha256:{theirs['Id']}" == known.config_digest
    assert theirs["RootFS"]["Layers"] == list(known.diff_ids)

    for archive in ("oci-archive", "docker-archive"):
        tag = ":validated" if archive == "oci-archive" else ""
        seen = json.loads(said([skopeo, "inspect", f"{archive}:{path}{tag}"]))
        assert (seen["Digest"] == known.manifest_digest) == (archive == "oci-archive"), seen["Digest"]
        copy = tmp_path / archive
        said([skopeo, "copy", f"{archive}:{path}{tag}", f"dir:{copy}"])
        config = json.loads((copy / "manifest.json").read_bytes())["config"]["digest"]
        assert config == known.config_digest


def test_an_image_of_a_registry_keeps_the_manifest_that_it_has_there(
    made: ImageInfo, skopeo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = shipping.from_engine(Workbench(), made, NAMED)
    manifest = source.manifest.replace(
        b'"schemaVersion":2', b'"annotations":{"a":"of another packer"},"schemaVersion":2'
    )
    with registries.running(registries.program(tmp_path), tmp_path) as address:
        there = connect(parse(f"{address}/team/cpu:1"), SiteConfig(), {})
        config = Descriptor(media_type=OCI_CONFIG, digest=made.id, size=len(source.config))
        for blob in (config, *source.parsed().layers):
            push_blob(there, blob, source.blobs)
        there.put_manifest(manifest, OCI_MANIFEST, "1")
        # On another machine, that has neither the image nor a layer of it.
        monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path / "elsewhere"))
        remote = look_up(Workbench(), f"{address}/team/cpu:1", ("linux/amd64",), lambda event: None)
        path = written(shipping.from_registry(Workbench(), remote, NAMED), tmp_path / "image.tar")
    seen = json.loads(said([skopeo, "inspect", f"oci-archive:{path}:validated"]))
    assert seen["Digest"] == digest_of(manifest)


def test_a_layer_that_was_damaged_in_the_cache_reaches_no_bundle(made: ImageInfo) -> None:
    source = shipping.from_engine(Workbench(), made, NAMED)
    layer = source.blobs.path(source.parsed().layers[0].digest)
    content = bytearray(layer.read_bytes())
    content[len(content) // 2] ^= 1
    layer.write_bytes(content)
    with pytest.raises(BundleError, match="is not sha256:"):
        b"".join(image.archive(source))
    layer.unlink()


def test_an_archive_with_one_image_for_docker_and_another_for_the_rest_is_found_out(
    made: ImageInfo, tmp_path: Path
) -> None:
    source = shipping.from_engine(Workbench(), made, NAMED)
    known = image.described(source, "images/image.oci.tar")
    path = written(source, tmp_path / "image.tar")
    with tarfile.open(path) as tar:
        parts = [(member, tar.extractfile(member).read() if member.isreg() else b"") for member in tar]  # type: ignore[union-attr]

    def changed(name: str, old: bytes, new: bytes) -> list[str]:
        other = tmp_path / "other.tar"
        with tarfile.open(other, "w") as tar:
            for member, data in parts:
                copy = tarfile.TarInfo(member.name)
                data = data.replace(old, new) if member.name == name else data
                copy.size, copy.type = len(data), member.type
                tar.addfile(copy, BytesIO(data))
        with other.open("rb") as file:
            return list(image.contradictions(file, known))

    first = source.parsed().layers[0].digest.removeprefix("sha256:").encode()
    assert changed("nothing", b"", b"") == []
    assert changed("manifest.json", first, b"0" * 64) == ["its listing for Docker is of another image than its index"]
    assert changed("index.json", known.manifest_digest[7:].encode(), b"0" * 64) == ["its index names another image"]
    config = f"blobs/sha256/{made.id[7:]}"
    assert changed(config, b"a bundle", b"b bundle") == ["its config is another one"]
    assert changed("oci-layout", b"{", b"") == [] and changed("index.json", b"{", b"")[0].startswith("it is no archive")
