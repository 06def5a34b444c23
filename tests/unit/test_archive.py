"""Image archives built in memory, in both layouts, whole and damaged: contents, or an EngineError, nothing else."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild.errors import EngineError
from envbuild.judge import archive
from envbuild.judge.archive import ImageArchive

Member = tuple[str, bytes | str | None]  # path, and content; a text is a link's target, None is a folder


def _add(tar: tarfile.TarFile, name: str, content: bytes | None, **attributes: Any) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content or b"")
    for key, value in attributes.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(content or b""))


def layer(*members: Member, hard: Iterable[tuple[str, str]] = ()) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in members:
            if content is None:
                _add(tar, path, None, type=tarfile.DIRTYPE, mode=0o755)
            elif isinstance(content, str):
                _add(tar, path, None, type=tarfile.SYMTYPE, linkname=content)
            else:
                _add(tar, path, content)
        for path, target in hard:
            _add(tar, path, None, type=tarfile.LNKTYPE, linkname=target)
    return buffer.getvalue()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def config_of(layers: Iterable[bytes], **more: Any) -> bytes:
    diff_ids = [f"sha256:{digest(data)}" for data in layers]
    document = {"architecture": "amd64", "config": {"Env": ["A=1", "B=x=y"]}, "history": [{"created_by": "RUN x"}]}
    return json.dumps({**document, "rootfs": {"type": "layers", "diff_ids": diff_ids}, **more}).encode()


def tar_of(members: Iterable[tuple[str, bytes | str]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in members:
            if isinstance(content, str):
                _add(tar, name, None, type=tarfile.SYMTYPE, linkname=content)
            else:
                _add(tar, name, content)
    return buffer.getvalue()


def classic(layers: list[bytes], *, stored: list[bytes | str] | None = None, config: bytes | None = None) -> bytes:
    """As Docker to 24 saves it; a text in ``stored`` is a link to another layer's archive."""
    config = config_of(layers) if config is None else config
    names = [f"{number:064x}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": f"{digest(config)}.json", "RepoTags": ["a:b"], "Layers": names}]
    members: list[tuple[str, bytes | str]] = [*zip(names, stored or layers, strict=True)]
    members += [(f"{digest(config)}.json", config), ("manifest.json", json.dumps(manifest).encode())]
    return tar_of(members)


def oci(layers: list[bytes], *, pack: Callable[[bytes], bytes] = bytes, nested: bool = False) -> bytes:
    """As the OCI image layout has it, without Docker's manifest.json."""
    config = config_of(layers)
    blobs = {digest(blob): blob for blob in (pack(data) for data in layers)}
    packed = [{"digest": f"sha256:{digest(pack(data))}", "mediaType": "layer"} for data in layers]
    manifest = json.dumps({"config": {"digest": f"sha256:{digest(config)}"}, "layers": packed}).encode()
    top = {"digest": f"sha256:{digest(manifest)}"}
    blobs |= {digest(config): config, digest(manifest): manifest}
    if nested:
        attestation = {"digest": f"sha256:{'0' * 64}", "annotations": {"vnd.docker.reference.type": "attestation"}}
        index = json.dumps({"manifests": [top, attestation]}).encode()
        top = {"digest": f"sha256:{digest(index)}"}
        blobs[digest(index)] = index
    members: list[tuple[str, bytes | str]] = [("index.json", json.dumps({"manifests": [top]}).encode())]
    members += [(f"blobs/sha256/{name}", blob) for name, blob in blobs.items()]
    return tar_of(members)


def read(data: bytes, wanted: Callable[[str], bool] = lambda path: True) -> ImageArchive:
    return archive.read(io.BytesIO(data), wanted)


BASE = layer(
    ("etc", None),
    ("etc/keep", b"kept"),
    ("etc/gone", b"gone"),
    ("old", None),
    ("old/a", b"a"),
    ("old/deep", None),
    ("old/deep/b", b"b"),
    ("usr", None),
    ("usr/lib", None),
    ("usr/lib/below", b"below"),
    ("lib", "usr/lib"),
    ("swap", None),
    ("swap/inside", b"x"),
)
TOP = layer(
    ("./etc/keep", b"changed"),
    ("etc/.wh.gone", b""),
    ("old/new", b"new"),
    ("old/.wh..wh..opq", b""),  # after its sibling: a mark speaks of lower layers only, wherever it stands
    ("usr/lib", None),  # said again, as layers do for each folder they touch
    ("lib/through", b"link"),
    ("swap", b"now a file"),
    ("implied/folder/file", b"f"),
)
MERGED = {
    "etc/keep": b"changed",
    "old/new": b"new",
    "usr/lib/below": b"below",
    "usr/lib/through": b"link",
    "swap": b"now a file",
    "implied/folder/file": b"f",
}


@pytest.mark.parametrize(
    "data",
    [
        classic([BASE, TOP]),
        oci([BASE, TOP]),
        oci([BASE, TOP], pack=lambda blob: gzip.compress(blob, mtime=0)),
        oci([BASE, TOP], nested=True),
    ],
    ids=["classic", "oci", "oci-gzip", "oci-nested"],
)
def test_layers_are_merged_and_identity_is_the_same_in_every_layout(data: bytes) -> None:
    image = read(data)
    files = {path: entry.data for path, entry in image.entries.items() if entry.kind == "file"}
    assert files == MERGED
    assert image.identity.config_digest == f"sha256:{digest(config_of([BASE, TOP]))}"
    assert image.identity.diff_ids == tuple(f"sha256:{digest(item)}" for item in (BASE, TOP))
    assert image.env == {"A": "1", "B": "x=y"}
    assert image.history == ({"created_by": "RUN x"},)
    assert image.size == len(data)


def test_links_are_followed_inside_the_image() -> None:
    data = layer(
        ("a", None),
        ("a/file", b"x"),
        ("absolute", "/a/file"),
        ("a/up", "../../../../absolute"),
        ("loop", "loop2"),
        ("loop2", "loop"),
        ("dangling", "nowhere"),
        ("folder", "a"),
    )
    image = read(classic([data]))
    assert image.resolve("a/up") == image.resolve("folder/file") == "a/file"
    assert image.data("folder/up") == b"x"
    assert [image.resolve(path) for path in ("loop", "dangling", "a/none", "a/file/below")] == [None] * 4
    assert image.data("a") is None


def test_a_hard_link_shares_its_file_and_says_when_the_bytes_went_by() -> None:
    first = layer(("kept", b"12345"), hard=[("wanted", "kept")])
    second = layer(("other", b""), hard=[("from-below", "kept")])
    both = read(classic([first, second]))
    assert both.data("wanted") == both.data("from-below") == b"12345"
    missed = read(classic([first]), lambda path: path == "wanted")
    assert missed.entries["wanted"].size == 5
    with pytest.raises(EngineError, match="wanted of the image: it is a hard link to kept"):
        missed.data("wanted")
    with pytest.raises(EngineError, match="not asked for"):
        missed.data("kept")


def test_a_repeated_layer_may_be_a_link_to_the_first() -> None:
    data = classic([BASE, TOP, BASE], stored=[BASE, TOP, f"../{0:064x}/layer.tar"])
    assert len(read(data).identity.diff_ids) == 3


def test_the_digest_covers_what_follows_the_end_marker() -> None:
    padded = BASE + b"\0" * 300_000
    assert read(classic([padded])).identity.diff_ids == (f"sha256:{digest(padded)}",)
    with pytest.raises(EngineError, match="is not what"):
        read(classic([padded], stored=[padded[:-512] + b"x" * 512]))


def test_a_layer_may_be_empty() -> None:
    empty = b"\0" * 1024  # as the engine writes it for a step that changed nothing
    image = read(classic([BASE, empty, TOP]))
    assert {path: entry.data for path, entry in image.entries.items() if entry.kind == "file"} == MERGED


def test_only_wanted_files_are_kept_and_progress_reaches_the_end() -> None:
    told: list[int] = []
    data = classic([BASE])
    image = archive.read(io.BytesIO(data), lambda path: path == "etc/keep", told.append)
    assert [path for path, entry in image.entries.items() if entry.data is not None] == ["etc/keep"]
    assert told[-1] == len(data)


def test_a_file_too_large_to_keep_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envbuild.judge.layers.MAX_FILE", 3)
    with pytest.raises(EngineError, match="more than is kept"):
        read(classic([BASE])).data("etc/keep")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot be read|no exported image"),
        (b"\0" * 1024, "no exported image"),
        (b"not a tar archive at all" * 100, "cannot be read"),
        (tar_of([("hello", b"world")]), "neither a manifest.json nor an index.json"),
        (classic([BASE, TOP], stored=[BASE, TOP.replace(b"changed", b"chanced")]), "layer 2 of 2 is not what"),
        (classic([BASE, TOP], stored=[BASE, BASE]), "layer 2 of 2 is not what"),
        (classic([BASE])[:3000], "cannot be read|no exported image|incomplete"),
        (classic([BASE], config=config_of([BASE, TOP])), "states 2 layers, its manifest 1"),
        (classic([BASE], config=config_of([BASE])[:-3]), "is not JSON"),
        (classic([BASE], config=b"[]"), "not an object"),
        (classic([BASE], config=b"{" * 50_000), "is not JSON"),
        (classic([BASE], stored=[b"\x28\xb5\x2f\xfd" + b"z" * 600]), "zstd"),
        (oci([BASE], pack=lambda blob: gzip.compress(blob)[:-20] + b"damage" * 5), "cannot be read"),
        (classic([layer(("../escape", b"x"))]), "outside of it"),
        (classic([layer(("file", b"x"), ("file/below", b"y"))]), "not a folder"),
        (classic([layer(hard=[("a", "missing")])]), "not a file in it"),
        (tar_of([("manifest.json", b'[{"Config": "a"}, {"Config": "b"}]')]), "exactly one image"),
        (tar_of([("manifest.json", b'[{"Config": 3, "Layers": 4}]')]), "not a text"),
        (tar_of([("index.json", b'{"manifests": [{"digest": "sha256:../../x"}]}')]), "no sha256 digest"),
    ],
)
def test_what_is_damaged_or_foreign_is_said(data: bytes, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        read(data)


def test_a_config_that_is_not_what_its_name_says_is_refused() -> None:
    config = config_of([BASE])
    data = classic([BASE]).replace(b'"architecture": "amd64"', b'"architecture": "arm64"')
    assert config != config.replace(b"amd64", b"arm64")
    with pytest.raises(EngineError, match="has the digest"):
        read(data)


def test_a_stream_that_breaks_off_is_an_engine_error() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 4096:
                raise OSError("connection reset by peer")
            return super().read(min(size or 1, 1024))

    with pytest.raises(EngineError, match="connection reset by peer"):
        archive.read(Broken(classic([BASE, TOP])), lambda path: True)


@given(data=st.binary(max_size=4096))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_an_engine_error(data: bytes) -> None:
    with pytest.raises(EngineError):
        read(data)


_WHOLE = (classic([BASE, TOP]), oci([BASE, TOP], nested=True))


@given(
    whole=st.sampled_from(_WHOLE),
    cuts=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=12)), min_size=1, max_size=4),
    keep=st.floats(0.2, 1),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_archive_is_read_right_or_refused(whole: bytes, cuts: list[tuple[float, bytes]], keep: float) -> None:
    data = bytearray(whole)
    for where, patch in cuts:
        start = int(where * (len(data) - len(patch)))
        data[start : start + len(patch)] = patch
    try:
        image = read(bytes(data[: int(len(data) * keep)]))
    except EngineError:
        return
    # What is read in spite of the damage (in padding, or a tag) has the digests of the whole one.
    assert image.identity.diff_ids == read(whole).identity.diff_ids


@given(cuts=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=12)), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_a_malformed_layer_is_read_or_refused(cuts: list[tuple[float, bytes]]) -> None:
    data = bytearray(TOP)
    for where, patch in cuts:
        start = int(where * (len(data) - len(patch)))
        data[start : start + len(patch)] = patch
    try:
        image = read(classic([BASE, bytes(data)]))  # the config states this very layer: only the reader can object
    except EngineError:
        return
    for path in image.entries:
        image.resolve(path)
