"""Which engine is meant, and what is said when it does not answer."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from envbuild import process
from envbuild.engines import connect
from envbuild.engines.endpoint import DEFAULT_SOCKET, OWN_SOCKET, endpoints, unreachable
from envbuild.errors import EngineError


def context(config: Path, name: str, host: str, *, tls: bool = False) -> None:
    digest = hashlib.sha256(name.encode()).hexdigest()
    meta = config / "contexts" / "meta" / digest / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host, "SkipTLSVerify": False}}}))
    if tls:
        (config / "contexts" / "tls" / digest / "docker").mkdir(parents=True)


def test_a_choice_stands_alone_and_the_strongest_wins(tmp_path: Path) -> None:
    context(tmp_path, "lab", "tcp://lab:2376")
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "lab"}))
    environ = {"DOCKER_HOST": "unix:///env.sock", "DOCKER_CONFIG": str(tmp_path)}
    assert [each.url for each in endpoints("unix:///flag.sock", environ)] == ["unix:///flag.sock"]
    assert [each.url for each in endpoints(None, environ)] == ["unix:///env.sock"]
    del environ["DOCKER_HOST"]
    assert [each.url for each in endpoints(None, environ)] == ["tcp://lab:2376"]


def test_without_a_choice_the_usual_socket_comes_before_our_own(tmp_path: Path) -> None:
    for text in (None, "{not json", "[]", '{"currentContext": "default"}'):
        if text is not None:
            (tmp_path / "config.json").write_text(text)
        found = endpoints(None, {"DOCKER_CONFIG": str(tmp_path)})
        assert [each.url for each in found] == [DEFAULT_SOCKET, OWN_SOCKET]


def test_docker_context_variable_wins_over_the_file_and_brings_its_certificates(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "other"}))
    context(tmp_path, "lab", "tcp://lab:2376", tls=True)
    (found,) = endpoints(None, {"DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "lab"})
    assert found.env["DOCKER_HOST"] == "tcp://lab:2376"
    assert found.env["DOCKER_TLS_VERIFY"] == "1"
    assert found.env["DOCKER_CERT_PATH"].startswith(str(tmp_path / "contexts" / "tls"))


@pytest.mark.parametrize("damage", [None, "{", "[]", '{"Endpoints": {}}'])
def test_a_context_that_cannot_be_used_is_an_error_with_a_way_out(tmp_path: Path, damage: str | None) -> None:
    if damage is not None:
        context(tmp_path, "lab", "tcp://lab:1")
        next(tmp_path.glob("contexts/meta/*/meta.json")).write_text(damage)
    with pytest.raises(EngineError, match="docker context lab") as caught:
        endpoints(None, {"DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "lab"})
    assert "docker context" in caught.value.hint


def test_tls_variables_apply_to_tcp_only(tmp_path: Path) -> None:
    environ = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)}
    assert endpoints("tcp://h:2376", environ)[0].tls == tmp_path
    assert endpoints("unix:///s", environ)[0].tls is None


def test_a_file_that_is_no_socket_is_seen_without_asking(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nothing", tmp_path / "file"):
        (endpoint,) = endpoints(f"unix://{path}", {})
        assert unreachable(endpoint) == "there is no such socket"


def test_no_engine_says_what_was_tried_and_how_to_start_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("envbuild.engines.endpoint.DEFAULT_SOCKET", f"unix://{tmp_path}/a.sock")
    monkeypatch.setattr("envbuild.engines.endpoint.OWN_SOCKET", f"unix://{tmp_path}/b.sock")
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr(process, "which", lambda program: None)
    with pytest.raises(EngineError) as caught:
        connect()
    assert caught.value.exit_code == 3
    assert caught.value.message.splitlines() == [
        "no container engine answers; tried",
        f"  unix://{tmp_path}/a.sock (default): there is no such socket",
        f"  unix://{tmp_path}/b.sock (make engine-start): there is no such socket",
        "  podman (podman on PATH): there is no podman client on PATH",
    ]
    assert "make engine-start" in caught.value.hint


def test_a_forbidden_socket_gets_its_own_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import socket

    path = tmp_path / "s"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    monkeypatch.setattr(os, "access", lambda *args: False)
    try:
        with pytest.raises(EngineError, match="permission denied") as caught:
            connect(f"unix://{path}")
    finally:
        server.close()
    assert "group" in caught.value.hint
