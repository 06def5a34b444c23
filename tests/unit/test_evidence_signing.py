"""Signed evidence: a stranger accepts it, no changed byte passes, and nothing that lies in the store is a traceback."""

from __future__ import annotations

import base64
import datetime
import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild import evidence, store
from envbuild.errors import EngineError
from envbuild.evidence import State, keys, signing, statement
from envbuild.model import Level

REPOSITORY = Path(__file__).parents[2]
CONFIG, OTHER, LAYER = (f"sha256:{letter * 64}" for letter in "abc")
TYPE = "application/vnd.in-toto+json"


def record(**changes: Any) -> evidence.Evidence:
    now = "2026-11-01T12:00:00Z"
    fields = {
        "environment": "cpu", "target_id": None, "level": Level.CPU, "suite": "5" * 64, "envbuild": "0.1.0",
        "image": {"config_digest": CONFIG, "diff_ids": [LAYER]}, "platform": "linux/amd64", "size_bytes": 1, "base": {},
        "claims": {"torch": "2.13.0+cpu"}, "content": {}, "portability": {},
        "smoke": {"fp32": {"losses": [1.25, 0.5e-7]}}, "findings": [],
        "host": {"system": "Größe", "machine": "m", "cpu": "c", "cpus": 2, "memory_bytes": 1, "engine": "e"},
        "started": now, "finished": now, "seconds": {"smoke": 1.0},
    }  # fmt: skip
    return evidence.Evidence.model_validate({**fields, **changes})


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[evidence.SigningKey]:
    """Two pairs: one that signs, and a stranger's."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("own.pem", "other.pem"):
        keys.make(folder / name)
    return [keys.load_signing(folder / name) for name in ("own.pem", "other.pem")]


@pytest.fixture
def own(pairs: list[evidence.SigningKey]) -> evidence.SigningKey:
    return pairs[0]


@pytest.fixture
def path(own: evidence.SigningKey) -> Path:
    """A signed record in a store."""
    return evidence.save(record(), "sha256:x", key=own)


def state(path: Path, *trusted: evidence.SigningKey) -> State:
    return evidence.signed_by(path, [key.public for key in trusted]).state


def pae(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding, written by hand from its specification."""
    return b" ".join([b"DSSEv1", str(len(TYPE)).encode(), TYPE.encode(), str(len(payload)).encode(), payload])


# --- a stranger -------------------------------------------------------------------------------------------------------


def test_a_stranger_with_the_public_key_alone_accepts_it(path: Path, own: evidence.SigningKey) -> None:
    envelope = json.loads(evidence.envelope_of(path).read_bytes())
    assert set(envelope) == {"payload", "payloadType", "signatures"} and envelope["payloadType"] == TYPE
    payload = base64.b64decode(envelope["payload"])
    (signature,) = envelope["signatures"]
    public: Any = load_pem_public_key(own.public.pem.encode())
    public.verify(base64.b64decode(signature["sig"]), pae(payload))
    with pytest.raises(InvalidSignature):
        public.verify(base64.b64decode(signature["sig"]), pae(payload[:-1] + b" "))
    assert signature["keyid"] == own.public.id


@pytest.mark.parametrize("real", [False, True])
def test_in_totos_own_reader_takes_the_statement(real: bool, own: evidence.SigningKey) -> None:
    from google.protobuf.json_format import Parse
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement

    seen = evidence.read(REPOSITORY / "images/cpu/record.json") if real else record()
    path = evidence.save(seen, "sha256:x", key=own)
    payload = base64.b64decode(json.loads(evidence.envelope_of(path).read_bytes())["payload"])
    read: Any = Statement.copy_from_pb(Parse(payload, statement_pb2.Statement()))
    read.validate()
    assert read.pb.predicate_type == statement.PREDICATE_TYPE
    (subject,) = read.pb.subject
    assert (subject.name, dict(subject.digest)) == ("cpu", {"sha256": seen.image.config_digest.removeprefix("sha256:")})
    assert json.loads(payload)["predicate"] == json.loads(path.read_bytes())


def test_what_was_signed_is_the_whole_record(path: Path, own: evidence.SigningKey) -> None:
    seal = evidence.signed_by(path, [own.public])
    assert (seal.state, seal.reason, seal.key, seal.record) == (State.SIGNED, "", own.public, record())
    assert evidence.best("sha256:x", (LAYER,), environment="cpu", claims=record().claims, suite="5" * 64) is not None
    assert evidence.records("sha256:x") == [path], "an envelope is no record"


# --- whose signature --------------------------------------------------------------------------------------------------


def test_only_a_trusted_keys_signature_counts(path: Path, pairs: list[evidence.SigningKey]) -> None:
    own, other = pairs
    assert state(path) is State.UNTRUSTED
    assert state(path, other) is State.UNTRUSTED
    assert state(path, other, own) is State.SIGNED
    assert own.public.id[:12] in evidence.signed_by(path, [other.public]).reason


def test_one_of_two_signers_is_enough_and_a_false_one_spoils_it(path: Path, pairs: list[evidence.SigningKey]) -> None:
    own, other = pairs
    file = evidence.envelope_of(path)
    first = json.loads(file.read_bytes())
    second = signing.seal(base64.b64decode(first["payload"]), other)["signatures"]
    store.write_json(file, {**first, "signatures": [*second, *first["signatures"]]})
    assert state(path, own) is state(path, other) is state(path, own, other) is State.SIGNED
    false = [{"keyid": other.public.id, "sig": first["signatures"][0]["sig"]}]
    store.write_json(file, {**first, "signatures": [*first["signatures"], *false]})
    assert state(path, own) is State.SIGNED, "whoever does not trust the other one does not look at it"
    assert state(path, own, other) is State.TAMPERED
    store.write_json(file, {**first, "signatures": first["signatures"] * 2})
    assert state(path, own) is State.TAMPERED, "twice the same"


def test_a_signature_under_another_key_id_is_refused(path: Path, pairs: list[evidence.SigningKey]) -> None:
    file = evidence.envelope_of(path)
    document = json.loads(file.read_bytes())
    for keyid in (pairs[1].public.id, "0" * 64, ""):
        document["signatures"][0]["keyid"] = keyid
        store.write_json(file, document)
        assert state(path, *pairs) is State.TAMPERED
        assert state(path, pairs[0]) is State.TAMPERED


# --- changed ----------------------------------------------------------------------------------------------------------


def test_no_bit_of_the_signature_the_key_id_or_the_type_may_change(path: Path, own: evidence.SigningKey) -> None:
    file = evidence.envelope_of(path)
    good = file.read_bytes()
    text = good.decode()
    document = json.loads(good)
    (signature,) = document["signatures"]
    values = [signature["sig"], signature["keyid"], TYPE]
    # With the quotes around them.
    for place in [text.index(value) + at for value in values for at in range(-1, len(value) + 1)]:
        for bit in range(8):
            changed = bytearray(good)
            changed[place] ^= 1 << bit
            file.write_bytes(changed)
            assert state(path, own) is not State.SIGNED, (place, bit, bytes(changed[place - 5 : place + 5]))
    file.write_bytes(good)
    assert state(path, own) is State.SIGNED


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_bit_of_either_file_may_change(data: st.DataObject, path: Path, own: evidence.SigningKey) -> None:
    file = data.draw(st.sampled_from([path, evidence.envelope_of(path)]))
    good = file.read_bytes()
    place, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
    try:
        file.write_bytes(good[:place] + bytes([good[place] ^ 1 << bit]) + good[place + 1 :])
        assert state(path, own) is not State.SIGNED
    finally:
        file.write_bytes(good)


def test_padding_bits_are_no_room_for_a_change(path: Path, own: evidence.SigningKey) -> None:
    """The last character before ``==`` has four bits that decode to nothing."""
    file = evidence.envelope_of(path)
    document = json.loads(file.read_bytes())
    sig = document["signatures"][0]["sig"]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    twin = sig[:-3] + alphabet[alphabet.index(sig[-3]) ^ 1] + "=="
    assert base64.b64decode(twin) == base64.b64decode(sig) and twin != sig
    document["signatures"][0]["sig"] = twin
    store.write_json(file, document)
    assert state(path, own) is State.TAMPERED


def test_url_safe_base64_is_as_good(path: Path, own: evidence.SigningKey) -> None:
    file = evidence.envelope_of(path)
    document = json.loads(file.read_bytes())
    document["payload"] = document["payload"].replace("+", "-").replace("/", "_")
    sig = document["signatures"][0]["sig"]
    document["signatures"][0]["sig"] = sig.replace("+", "-").replace("/", "_")
    store.write_json(file, document)
    assert state(path, own) is State.SIGNED


def test_a_record_that_says_something_else_is_tampered_with(path: Path, own: evidence.SigningKey) -> None:
    good = path.read_bytes()
    for change in (b'"level": "gpu"', b'"level": "gpu", "level": "cpu"'):
        path.write_bytes(good.replace(b'"level": "cpu"', change))
        seal = evidence.signed_by(path, [own.public])
        assert (seal.state, seal.record) == (State.TAMPERED, None) and path.name in seal.reason
    path.unlink()
    assert state(path, own) is State.TAMPERED, "an envelope without its record"


def test_an_envelope_of_another_record_is_no_signature_of_this_one(path: Path, own: evidence.SigningKey) -> None:
    other = evidence.save(record(image={"config_digest": OTHER, "diff_ids": [LAYER]}), "sha256:y", key=own)
    evidence.envelope_of(path).write_bytes(evidence.envelope_of(other).read_bytes())
    assert state(path, own) is State.TAMPERED


# --- signed, and not evidence -----------------------------------------------------------------------------------------


def sealed(path: Path, key: evidence.SigningKey, payload: bytes, payload_type: str = TYPE) -> evidence.Seal:
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner

    envelope = Envelope(payload, payload_type, {})
    envelope.sign(CryptoSigner(key.private))
    store.write_json(evidence.envelope_of(path), envelope.to_dict())
    return evidence.signed_by(path, [key.public])


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(statement.payload(record())), **fields}).encode()


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 50_000, "nested too deeply"),
        (b"[]", "no in-toto Statement"),
        (b'{"_type": NaN}', "NaN"),
        (b"1" * 10_000, "not JSON"),
        (changed(_type="https://in-toto.io/Statement/v0.1"), "no in-toto Statement v1.*_type"),
        (changed(subject=[]), "subject"),
        (changed(subject=[{"digest": {"sha256": "a"}}] * 2), "subject"),
        (changed(subject=[{"name": "x", "digest": {"sha512": "a"}}]), "sha256"),
        (changed(predicateType=f"{statement.PREDICATE_FAMILY}v2"), "a version that this envbuild does not know"),
        (changed(predicateType="https://slsa.dev/provenance/v1"), "not evidence of envbuild"),
        (changed(predicate={}), "no record of evidence"),
        (changed(predicate={**statement.document_of(record()), "more": 1}), "no record of evidence: more"),
        (changed(predicate={**statement.document_of(record()), "finished": "2026-11-01T12:00:00"}), "finished"),
    ],
)
def test_a_signature_over_something_else_is_not_understood(
    payload: bytes, said: str, path: Path, own: evidence.SigningKey
) -> None:
    seal = sealed(path, own, payload)
    assert seal.state is State.UNKNOWN
    assert re.search(said, seal.reason), seal.reason
    assert len(seal.reason) < 1500


def test_another_payload_type_is_not_understood(path: Path, own: evidence.SigningKey) -> None:
    assert sealed(path, own, statement.payload(record()), "application/json").state is State.UNKNOWN


def test_a_subject_that_is_not_the_records_image_is_refused(path: Path, own: evidence.SigningKey) -> None:
    payload = changed(subject=[{"name": "cpu", "digest": {"sha256": "b" * 64}}])
    assert sealed(path, own, payload).state is State.TAMPERED


def test_fields_that_in_toto_adds_are_ignored(path: Path, own: evidence.SigningKey) -> None:
    subject = [{"name": "cpu", "digest": {"sha256": "a" * 64, "sha512": "f"}, "mediaType": "x"}]
    assert sealed(path, own, changed(subject=subject, extension=1)).signed


# --- hostile files ----------------------------------------------------------------------------------------------------

DEEP = b"[" * 200_000
ONE = b'{"keyid": "a", "sig": ""}'
MANY = b", ".join([ONE.replace(b"a", b"%d" % number) for number in range(17)])
FIELDS = ["payload", "payloadType", "signatures", "keyid", "sig", "x"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", State.TAMPERED),
        (b"\xff\x00", State.TAMPERED),
        (b"null", State.TAMPERED),
        (DEEP, State.TAMPERED),
        (b'{"payload": "", "payloadType": "", "signatures": []}', State.TAMPERED),
        (b'{"payload": "a", "payloadType": "", "signatures": [{"keyid": "", "sig": ""}]}', State.TAMPERED),
        (b'{"payload": "", "payloadType": "\\ud800", "signatures": [{"keyid": "", "sig": ""}]}', State.TAMPERED),
        (b'{"payload": "", "payloadType": "", "signatures": [{"keyid": "\\u001b[31m", "sig": ""}]}', State.UNTRUSTED),
        (b'{"\\u001b[31m": 1}', State.TAMPERED),
        (b'{"payload": 1, "payloadType": [], "signatures": {}}', State.TAMPERED),
        (b'{"payload": "", "payloadType": "", "signatures": [%s]}' % MANY, State.TAMPERED),
        (b'{"payload": "", "payload": "", "payloadType": "", "signatures": [%s]}' % ONE, State.TAMPERED),
        (b'{"payload": "\xc3\xbc==", "payloadType": "", "signatures": [{"keyid": "", "sig": ""}]}', State.TAMPERED),
    ],
)
def test_hostile_envelopes(content: bytes, expected: State, path: Path, own: evidence.SigningKey) -> None:
    evidence.envelope_of(path).write_bytes(content)
    seal = evidence.signed_by(path, [own.public])
    assert seal.state is expected and seal.reason
    assert "\x1b" not in seal.reason
    assert not evidence.signed_by(path, []).signed


def test_a_huge_file_is_not_read(path: Path, own: evidence.SigningKey) -> None:
    """Sparse, so that only a reader would notice its gigabytes."""
    for file in (evidence.envelope_of(path), path):
        good = file.read_bytes()
        with file.open("r+b") as opened:
            opened.truncate(1 << 40)
        assert not evidence.signed_by(path, [own.public]).signed
        if file == path:
            with pytest.raises(EngineError, match="larger than 64 MiB"):
                evidence.read(path)
        file.write_bytes(good)


@pytest.mark.parametrize("kind", ["folder", "fifo", "loop", "nothing"])
def test_what_is_no_file(kind: str, path: Path, own: evidence.SigningKey) -> None:
    file = evidence.envelope_of(path)
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "loop":
        file.symlink_to(file)
    assert state(path, own) is (State.UNSIGNED if kind == "nothing" else State.UNKNOWN)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["payload", "payloadType", "signatures", "keyid", "sig", "x"]), inner, max_size=6
            )
        ),
        max_leaves=12,
    )
)
def test_any_document_is_a_state_and_never_a_traceback(document: Any, path: Path, own: evidence.SigningKey) -> None:
    evidence.envelope_of(path).write_text(json.dumps(document))
    assert not evidence.signed_by(path, [own.public]).signed


# --- written ----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """A process that ends at once."""


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("before", ["nothing", "unsigned", "signed"])
def test_a_kill_between_the_two_files_is_never_taken_for_signed(
    before: str, at: int, own: evidence.SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = record(envbuild="0.0.9")
    path = evidence.path_of(CONFIG, "cpu", "5" * 64, Level.CPU)
    if before != "nothing":
        evidence.save(old, "sha256:x", key=own if before == "signed" else None)
    real, count = Path.replace, 0

    def replace(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == at:
            raise Killed
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(Killed):
            evidence.save(record(), "sha256:x", key=own)
    seal = evidence.signed_by(path, [own.public])
    if (before, at) == ("signed", 1):
        assert seal.record == old, "nothing has changed yet"
    else:
        assert not seal.signed
        assert before != "nothing" or not path.exists(), "an envelope alone is no evidence"
    assert evidence.save(record(), "sha256:x", key=own) == path
    assert evidence.signed_by(path, [own.public]).record == record(), "the next run mends it"


def test_an_unsigned_record_takes_the_envelope_of_its_predecessor_away(path: Path, own: evidence.SigningKey) -> None:
    evidence.save(record(envbuild="0.2.0"), "sha256:x")
    assert state(path, own) is State.UNSIGNED and not evidence.envelope_of(path).exists()


def test_a_full_disk_changes_neither_file(
    path: Path, own: evidence.SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {each: each.read_bytes() for each in path.parent.iterdir()}
    synced = 0

    def fsync(descriptor: int) -> None:
        nonlocal synced
        synced += 1
        if synced == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(EngineError, match="No space left") as caught:
        evidence.save(record(envbuild="0.2.0"), "sha256:x", key=own)
    assert caught.value.exit_code == 3 and "free some space" in caught.value.hint
    assert {each: each.read_bytes() for each in path.parent.iterdir()} == before


def test_a_store_that_cannot_be_written_is_exit_3(own_store: Path, own: evidence.SigningKey) -> None:
    # A file where the folder would be: modes do not stop root.
    (own_store / "evidence").write_text("")
    for key in (None, own):
        with pytest.raises(EngineError, match="evidence") as caught:
            evidence.save(record(), "sha256:x", key=key)
        assert caught.value.exit_code == 3
    assert [each.name for each in own_store.iterdir()] == ["evidence"]


def test_times_have_a_zone() -> None:
    with pytest.raises(ValueError, match="timezone"):
        record(finished=datetime.datetime(2026, 11, 1))
