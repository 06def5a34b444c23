"""`verify` on a real engine: the identity is the exported image's, and a stranger needs nothing of envbuild."""

from __future__ import annotations

import base64
import datetime
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envbuild import evidence
from envbuild.engines import DockerEngine
from envbuild.evidence import keys
from envbuild.judge import archive
from envbuild.judge.suite import suite_hash
from envbuild.matrix import load
from envbuild.model import Level
from envbuild.pipeline.prove import claims

REPOSITORY = Path(__file__).parents[2]
ENVBUILD = str(Path(sys.executable).with_name("envbuild"))
Ask = Callable[..., tuple[int, Any]]


@dataclass(frozen=True)
class Signed:
    """A small image that says it is the row `cpu`, and evidence of it that was signed here."""

    ref: str
    key: evidence.SigningKey
    public: Path
    record: evidence.Evidence
    path: Path


@pytest.fixture
def image(engine: DockerEngine, tag: str, tmp_path: Path) -> Iterator[str]:
    root = tmp_path / "root.tar"
    with tarfile.open(root, "w") as file:
        info = tarfile.TarInfo("etc/hello")
        info.size = 5
        file.addfile(info, io.BytesIO(b"hello"))
    engine.import_root(root, tag, ("LABEL io.envbuild.environment=cpu",))
    yield tag


@pytest.fixture
def signed(engine: DockerEngine, image: str, tmp_path: Path) -> Signed:
    info = engine.image(image)
    assert info is not None
    with engine.save(info.id) as stream:
        identity = archive.read(stream, lambda path: False).identity
    keys.make(tmp_path / "farm.pem")
    key = keys.load_signing(tmp_path / "farm.pem")
    now = datetime.datetime.now(datetime.timezone.utc)
    record = evidence.Evidence(
        schema="envbuild.evidence/1", environment="cpu", target_id=None, level=Level.CPU, suite=suite_hash(),
        envbuild="0", image=evidence.Identity.of(identity), platform="linux/amd64", size_bytes=5, base={},
        claims=claims(load(REPOSITORY / "matrix.yaml").get("cpu")), content={},
        portability={}, smoke={}, findings=(), started=now,
        finished=now, seconds={},
        host=evidence.Host(system="s", machine="m", cpu="c", cpus=1, memory_bytes=1, engine="e"),
    )  # fmt: skip
    path = evidence.save(record, info.id, key=key)
    return Signed(image, key, tmp_path / "farm.pub", record, path)


@pytest.fixture
def ask(store_home: Path) -> Ask:
    """`envbuild verify --json`, as a user types it; the exit code and the document."""

    def call(*arguments: str) -> tuple[int, Any]:
        done = subprocess.run(
            [ENVBUILD, "verify", *arguments, "--json", "--project", str(REPOSITORY)], capture_output=True, text=True,
            env={**os.environ, "ENVBUILD_HOME": str(store_home)}, timeout=120,
        )  # fmt: skip
        assert done.stderr == ""
        return done.returncode, json.loads(done.stdout)

    return call


def rules(document: Any) -> list[str]:
    return [finding["rule"] for finding in document["findings"]]


def test_a_signed_image_is_verified_by_the_public_key_alone(signed: Signed, ask: Ask) -> None:
    code, said = ask(signed.ref, "--key", str(signed.public), "--require", "cpu", "--max-age", "1d")
    assert (code, said["schema"], said["findings"]) == (0, "envbuild.verify/1", [])
    image = said["image"]
    assert image["config_digest"] == signed.record.image.config_digest
    assert (image["verified"], image["level"], image["signed_by"]) == (True, "cpu", signed.key.public.id)
    assert image["evidence"] == str(signed.path)
    code, said = ask(signed.ref, "--key", str(signed.public), "--require", "gpu", "--sm", "90")
    assert (code, rules(said)) == (5, ["verify.level", "verify.sm"])
    code, said = ask(signed.ref)
    assert (code, rules(said)) == (5, ["verify.key"])


def test_openssl_accepts_it_and_refuses_another_bit(signed: Signed, tmp_path: Path) -> None:
    """As docs/evidence.md tells a stranger to do it."""
    openssl = shutil.which("openssl")
    assert openssl, "this test needs the openssl program"
    envelope = json.loads(evidence.envelope_of(signed.path).read_bytes())
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    (tmp_path / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))

    def verified(body: bytes) -> bool:
        (tmp_path / "pae").write_bytes(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(body), body))
        argv = [openssl, "pkeyutl", "-verify", "-pubin", "-inkey", str(signed.public), "-rawin",
                "-in", str(tmp_path / "pae"), "-sigfile", str(tmp_path / "sig")]  # fmt: skip
        return subprocess.run(argv, capture_output=True, timeout=60).returncode == 0

    assert verified(payload)
    assert not verified(payload.replace(b'"cpu"', b'"gpu"', 1))
    statement = json.loads(payload)
    assert statement["subject"][0]["digest"]["sha256"] == signed.record.image.config_digest.removeprefix("sha256:")


def test_evidence_does_not_follow_a_name_to_another_image(
    signed: Signed, ask: Ask, engine: DockerEngine, tmp_path: Path
) -> None:
    root = tmp_path / "other.tar"
    with tarfile.open(root, "w") as file:
        file.addfile(tarfile.TarInfo("etc"))
    engine.import_root(root, signed.ref, ("LABEL io.envbuild.environment=cpu",))
    code, said = ask(signed.ref, "--key", str(signed.public))
    assert (code, rules(said)) == (5, ["verify.none"])
    # The evidence of the first image, put where that of the second one would be.
    folder = signed.path.parent.with_name(said["image"]["config_digest"].removeprefix("sha256:"))
    shutil.copytree(signed.path.parent, folder)
    code, said = ask(signed.ref, "--key", str(signed.public))
    assert (code, rules(said)) == (5, ["verify.digest"])
    assert said["image"]["signed_by"] == signed.key.public.id, "the signature itself is good"


def test_a_file_that_was_changed(signed: Signed, ask: Ask) -> None:
    signed.path.write_text(signed.path.read_text().replace('"size_bytes": 5', '"size_bytes": 6'))
    code, said = ask(signed.ref, "--key", str(signed.public))
    assert (code, rules(said)) == (5, ["verify.tampered"])
    evidence.envelope_of(signed.path).unlink()
    code, said = ask(signed.ref, "--key", str(signed.public))
    assert (code, rules(said)) == (5, ["verify.unsigned"])


def test_the_documented_commands_do_what_they_say(signed: Signed, engine: DockerEngine, tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "evidence.md").read_text()
    check, subject = re.findall(r"(?ms)^```sh\n(.*?)^```", text)
    envelope = evidence.envelope_of(signed.path)
    own = {"E": str(envelope), "K": str(signed.public), "IMAGE": signed.ref, "DOCKER_HOST": engine.endpoint}

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", script], cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True, timeout=60
        )

    assert run(check).stdout == "Signature Verified Successfully\n"
    said = run(subject)
    digest = signed.record.image.config_digest.removeprefix("sha256:")
    assert said.stderr == "" and [digest in line for line in said.stdout.splitlines()] == [True, True]
    envelope.write_text(envelope.read_text().replace('"payload": "ey', '"payload": "fy'))
    assert "Verified Successfully" not in run(check).stdout
