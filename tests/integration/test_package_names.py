"""The names that the facts list for Debian are asked for in Debian's own archive, through this host's mirror."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild import facts
from envbuild.base import ensure
from envbuild.engines import BuildRequest, DockerEngine
from envbuild.pipeline.workbench import Workbench
from envbuild.site.apt import apt_settings
from envbuild.site.secrets import build_secrets, needs_host_network

REPOSITORY = Path(__file__).parents[2]
# Nothing is installed: what matters is who has a candidate.
ASK = """\
FROM {base}
RUN --mount=type=secret,id=apt --mount=type=secret,id=apt-sources --mount=type=secret,id=ca \\
    export APT_CONFIG=/run/secrets/apt; apt-get update && apt-cache policy {names}
"""


@pytest.mark.parametrize("suite", [name for name, each in facts.load().releases.items() if "debian" in each.families])
def test_debian_has_every_package_that_the_facts_list(
    suite: str, engine: DockerEngine, tag: str, tmp_path: Path
) -> None:
    bench = Workbench(project_folder=REPOSITORY)
    env = bench.matrix.get("cpu")
    base = ensure(engine, env, site=bench.site, apt=bench.apt_for(env), sink=bench.sink)
    apt = apt_settings(bench.site, suite=suite, components=("main",), family="debian")
    # Said even where they are the public ones: the base's own sources are of its own release.
    main, security = apt.archives()
    apt = replace(apt, mirror=main, security_mirror=security)
    pip = bench.pip_for(env)
    contents = build_secrets(bench.site, pip, apt)
    context = tmp_path / "context"
    context.mkdir()
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    known = facts.load().packages[suite]
    names = " ".join(sorted(known.names() | set(known.renamed)))
    (context / "Dockerfile").write_text(ASK.format(base=base.reference, names=names))
    request = BuildRequest(
        context=context, dockerfile=context / "Dockerfile", tag=tag, platform="linux/amd64", no_cache=True,
        secrets=tuple((name, tmp_path / name) for name in contents),
        network="host" if needs_host_network(bench.site, pip, apt) else None,
    )  # fmt: skip
    log = tmp_path / "log"
    engine.build(request, log=log, timeout=180)
    said = re.sub(r"(?m)^#[0-9]+ [0-9.]+ ", "", log.read_text())
    there = set(re.findall(r"(?m)^(\S+):\n +Installed: .*\n +Candidate: [0-9]", said))
    assert known.names() <= there, sorted(known.names() - there)
    assert not set(known.renamed) & there, "a renamed package is gone"
