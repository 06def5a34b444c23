"""An export whose layer is damaged: told as what it is, and nothing of it is kept."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.errors import EngineError
from envbuild.pipeline.packing import Layers, Packing
from envbuild.registry import Blobs

PACKED = gzip.compress(bytes(range(256)) * 4096, mtime=0)


@pytest.mark.parametrize(
    "layer",
    [
        PACKED[:600] + bytes(byte ^ 0xFF for byte in PACKED[600:900]) + PACKED[900:],
        PACKED[:-900],
        PACKED[:-8] + bytes(8),
        PACKED[:3] + b"\xff" + PACKED[4:],
    ],
    ids=["deflate", "truncated", "checksum", "header"],
)
def test_a_packed_layer_that_is_damaged(layer: bytes, tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo("blobs/sha256/layer")
        member.size = len(layer)
        tar.addfile(member, io.BytesIO(layer))

    @contextlib.contextmanager
    def save(ref: str) -> Iterator[io.BytesIO]:
        yield io.BytesIO(out.getvalue())

    engine: Any = SimpleNamespace(save=save)
    info: Any = SimpleNamespace(id=f"sha256:{'1' * 64}", diff_ids=("sha256:2",))
    packing = Packing(
        engine=engine, info=info, needed=["sha256:2"], blobs=Blobs(tmp_path), layers=Layers(folder=tmp_path),
        done=lambda diff_id, packed: None, read=lambda count: None,
    )  # fmt: skip
    with pytest.raises(EngineError, match=r"exported image sha256:1111.* cannot be read") as caught:
        packing.run()
    assert "cannot write" not in caught.value.message
    assert not list((tmp_path / "sha256").iterdir())
