"""The bill of materials of the proven image, and of one that was made on top of it, against what is asked inside."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name

from envbuild.engines import BuildRequest, ContainerSpec, DockerEngine
from proving import ENVBUILD, REPOSITORY, surroundings

pytestmark = pytest.mark.integration

# A package that was made on the spot, one of the distribution's that is purged, one that is removed and leaves its
# configuration behind, and wheels in both directions.
OVERLAY = r"""
FROM {base}
COPY overlay_made-1.2.3+site-py3-none-any.whl /tmp/
RUN mkdir -p /tmp/made/DEBIAN /tmp/made/etc \
 && printf 'Package: %s\nVersion: 1:4.5-6\nArchitecture: all\nMaintainer: T <t@t.invalid>\nDescription: x\n%s' \
    overlay-made 'Depends: libc6 | none' > /tmp/made/DEBIAN/control && echo >> /tmp/made/DEBIAN/control \
 && dpkg-deb -b /tmp/made /tmp/made.deb && dpkg -i /tmp/made.deb && rm -r /tmp/made /tmp/made.deb \
 && dpkg --purge --force-all hostname && dpkg --remove --force-all login \
 && pip install --no-index --no-deps /tmp/overlay_made-1.2.3+site-py3-none-any.whl && pip uninstall -y einops
"""


def bill(home: Path, *arguments: str) -> tuple[bytes, dict[str, Any]]:
    """The command's stdout, with a store of its own; and that it is what the official schema says."""
    env = surroundings(home)
    done = subprocess.run([ENVBUILD, "sbom", *arguments], cwd=REPOSITORY, env=env, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(done.stdout.decode()) is None
    document: dict[str, Any] = json.loads(done.stdout)
    assert not document.get("properties"), "nothing could not be read"
    return done.stdout, document


def inside(engine: DockerEngine, ref: str, *argv: str) -> str:
    result = engine.run(ContainerSpec(image=ref, argv=argv, network="none"), timeout=120)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def is_what_is_inside(engine: DockerEngine, ref: str, document: dict[str, Any]) -> None:
    """Everything that dpkg and pip list, and nothing that they do not."""
    form = "${db:Status-Status}\t${Package}\t${Version}\t${Architecture}\n"
    listed = [line.split("\t") for line in inside(engine, ref, "dpkg-query", "-W", "-f", form).splitlines()]
    debs = Counter(tuple(fields[1:]) for fields in listed if fields[0] == "installed")
    listed_by_pip = json.loads(inside(engine, ref, "pip", "--disable-pip-version-check", "list", "--format", "json"))
    wheels = Counter((canonicalize_name(each["name"]), each["version"]) for each in listed_by_pip)
    parts = document["components"]
    assert debs and wheels
    assert debs == Counter(
        (each["name"], each["version"], each["bom-ref"].partition("@")[0].rpartition(":")[2])
        for each in parts if each["bom-ref"].startswith("deb:")
    )  # fmt: skip
    assert wheels == Counter(
        (canonicalize_name(each["name"]), each["version"]) for each in parts if each["bom-ref"].startswith("pypi:")
    )


def test_the_bill_is_what_is_in_the_proven_image(
    proven: dict[str, Any], engine: DockerEngine, store_home: Path, tmp_path: Path
) -> None:
    data, document = bill(tmp_path / "one", "cpu")
    is_what_is_inside(engine, proven["id"], document)
    image = document["metadata"]["component"]
    assert image["name"] == "cpu"
    parts = {each["bom-ref"]: each for each in document["components"]}
    ops = {each["name"]: each for ref, each in parts.items() if ref.startswith("op:")}
    assert {"cpu_adam", "async_io"} <= set(ops)
    for op in ops.values():
        compilers = [each["value"] for each in op["properties"] if each["name"] == "envbuild:native:compiler"]
        assert compilers and all(each.startswith("GCC: (Debian 12.") for each in compilers)
        assert len(op["hashes"][0]["content"]) == 64
    deepspeed, torch = (
        next(ref for ref in parts if ref.startswith(f"pypi:{name}@")) for name in ("deepspeed", "torch")
    )
    needs = {each["ref"]: set(each.get("dependsOn", ())) for each in document["dependencies"]}
    assert torch in needs[deepspeed] and {op["bom-ref"] for op in ops.values()} <= needs[deepspeed]
    assert parts[torch].get("licenses") and parts[torch]["purl"].startswith("pkg:pypi/torch@2.")
    # The proof of the image has made it on the way, from a reading of everything.
    digest = str(image["version"]).removeprefix("sha256:")
    assert [path.read_bytes() for path in (store_home / "cache" / "sbom").glob(f"{digest}-*.json")] == [data]
    # Another machine, another time: the same bytes. And here it is not read again.
    file = tmp_path / "bill.json"
    again = subprocess.run(
        [ENVBUILD, "sbom", proven["id"], "-o", str(file), "--json"], cwd=REPOSITORY, capture_output=True, timeout=300,
        env={**surroundings(tmp_path / "two"), "TZ": "Pacific/Apia"}, text=True,
    )  # fmt: skip
    assert again.returncode == 0 and file.read_bytes() == data
    told = json.loads(again.stdout)
    assert told["schema"] == "envbuild.sbom/1" and told["sbom"]["parts"]["op"] == len(ops)
    env = {**surroundings(tmp_path / "one"), "TMPDIR": os.fspath(tmp_path)}
    cached = subprocess.run([ENVBUILD, "sbom", "cpu"], cwd=REPOSITORY, env=env, capture_output=True, timeout=60)
    assert cached.stdout == data and b"read the image" not in cached.stderr


def test_an_overlay_shows_what_it_added_and_not_what_it_removed(
    proven: dict[str, Any], engine: DockerEngine, tag: str, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "overlay_made-1.2.3+site-py3-none-any.whl", "w") as wheel:
        info = "overlay_made-1.2.3+site.dist-info"
        wheel.writestr("overlay_made.py", "")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: overlay-made\nVersion: 1.2.3+site\n"
                       "License: MIT\nRequires-Dist: numpy\n")  # fmt: skip
        wheel.writestr(f"{info}/RECORD", f"overlay_made.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    dockerfile = tmp_path / "Dockerfile"
    engine.tag(proven["id"], f"{tag}-base")
    dockerfile.write_text(OVERLAY.format(base=f"{tag}-base"))
    try:
        engine.build(
            BuildRequest(context=tmp_path, dockerfile=dockerfile, tag=tag, platform="linux/amd64"),
            log=tmp_path / "log",
        )
        _, document = bill(tmp_path / "home", tag)
        is_what_is_inside(engine, tag, document)
    finally:
        engine.untag(f"{tag}-base")
    parts = {each["bom-ref"]: each for each in document["components"]}
    assert {"deb:overlay-made:all@1:4.5-6", "pypi:overlay-made@1.2.3+site"} <= set(parts)
    assert not [ref for ref in parts if ref.startswith(("deb:hostname:", "deb:login:", "pypi:einops@"))]
    wheel_part = parts["pypi:overlay-made@1.2.3+site"]
    assert wheel_part["licenses"] == [{"license": {"id": "MIT"}}]
    needs = {each["ref"]: each.get("dependsOn", []) for each in document["dependencies"]}
    assert [ref.partition("@")[0] for ref in needs["pypi:overlay-made@1.2.3+site"]] == ["pypi:numpy"]
    assert [ref.partition("@")[0] for ref in needs["deb:overlay-made:all@1:4.5-6"]] == ["deb:libc6:amd64"]
