"""The command, but an image's content is not looked at: a fake image has none. Everything else is the real thing."""

from __future__ import annotations

from typing import Any

from envbuild.cli import main
from envbuild.judge import archive
from envbuild.pipeline import prove
from envbuild.pipeline.inspecting import Inspected


def who(engine: Any, run: Any, env: Any, engine_id: str, **rest: Any) -> Inspected:
    with engine.save(engine_id) as stream:
        image = archive.read(stream, lambda path: False)
    return Inspected(identity=image.identity, reports={"fake": True}, portability={}, findings=())


prove.inspect_image = who  # type: ignore[assignment]
main()
