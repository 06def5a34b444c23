"""The engine's own BuildKit reads every row's golden Dockerfile: it parses all of it before it misses a stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.engines import BuildRequest, DockerEngine
from envbuild.errors import EnvbuildError

EXPECTED = Path(__file__).parents[1] / "golden" / "expected"


@pytest.mark.parametrize("row", ["cpu", "a100-cu118", "h200-cu130"])
def test_buildkit_understands_every_line(row: str, engine: DockerEngine, tmp_path: Path) -> None:
    folder = EXPECTED / row
    wanted = BuildRequest(
        context=folder, dockerfile=folder / "Dockerfile", tag=f"envbuild-test/{row}:never", target="no-such-stage",
        platform="linux/amd64",
    )  # fmt: skip
    log = tmp_path / "log"
    with pytest.raises(EnvbuildError):
        engine.build(wanted, log=log, timeout=60)
    said = log.read_text()
    assert "no-such-stage" in said and "parse error" not in said, said
