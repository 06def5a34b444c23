"""Keys: made once, for their owner alone; anything else in their place is an error that says so."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from envbuild.errors import EngineError, InputError
from envbuild.evidence import keys
from envbuild.pipeline.workbench import Workbench
from envbuild.site import config

REPOSITORY = Path(__file__).parents[2]
PEM, PKCS8, SPKI = (
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.PublicFormat.SubjectPublicKeyInfo,
)
PLAIN = serialization.NoEncryption()


@pytest.fixture(params=[0o022, 0o000, 0o777])
def umask(request: pytest.FixtureRequest) -> object:
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_a_new_pair_is_its_owners_alone_whatever_the_umask(tmp_path: Path, umask: object) -> None:
    made = keys.make(tmp_path / "signing.pem")
    assert stat.S_IMODE((tmp_path / "signing.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "signing.pub").stat().st_mode) == 0o644
    assert {path.name for path in tmp_path.iterdir()} == {"signing.pem", "signing.pub"}
    key = keys.load_signing(tmp_path / "signing.pem")
    public = keys.load_public(tmp_path / "signing.pub")
    assert made == public
    assert (key.public.id, key.public.pem) == (public.id, public.pem)
    assert "PRIVATE" not in repr(key) and "Ed25519" not in repr(key)
    assert keys.load_public(public.pem) == keys.PublicKey(id=public.id, pem=public.pem, origin="inline")


def test_the_key_id_is_securesystemslibs(tmp_path: Path) -> None:
    """Worked out by hand, so that another release of the library cannot change whom a signature names."""
    import hashlib

    path = tmp_path / "k.pub"
    private = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    raw = private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw).hex()
    path.write_bytes(private.public_key().public_bytes(PEM, SPKI))
    text = f'{{"keytype":"ed25519","keyval":{{"public":"{raw}"}},"scheme":"ed25519"}}'
    assert keys.load_public(path).id == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("name", ["signing.pem", "signing.pub"])
@pytest.mark.parametrize("kind", ["file", "link to nowhere"])
def test_nothing_is_overwritten(name: str, kind: str, tmp_path: Path) -> None:
    taken = tmp_path / name
    if kind == "file":
        taken.write_text("mine")
    else:
        taken.symlink_to("nowhere")
    with pytest.raises(InputError, match=f"{name} exists; a key is never overwritten"):
        keys.make(tmp_path / "signing.pem")
    assert [path.name for path in tmp_path.iterdir()] == [name] and not (tmp_path / "nowhere").exists()


def test_both_halves_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(EngineError, match="No space left"):
        keys.make(tmp_path / "signing.pem")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match="cannot write"):
        keys.make(tmp_path / "file" / "signing.pem")
    with pytest.raises(InputError, match="name of a public key"):
        keys.make(tmp_path / "k.pub")


def test_a_passphrase(tmp_path: Path) -> None:
    path = tmp_path / "k"
    made = keys.make(path, passphrase="größer")
    assert made.origin == str(tmp_path / "k.pub") and "ENCRYPTED" in path.read_text()
    assert keys.load_signing(path, passphrase="größer").public.id == made.id
    for wrong, said in ((None, "has a passphrase"), ("other", "the passphrase is another one")):
        with pytest.raises(InputError, match=said) as caught:
            keys.load_signing(path, passphrase=wrong)
        assert "ENVBUILD_KEY_PASSPHRASE" in caught.value.hint
    keys.make(tmp_path / "plain.pem")
    keys.load_signing(tmp_path / "plain.pem", passphrase="for another key")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610, 0o644])
def test_a_private_key_that_others_can_reach_is_refused(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "k.pem"
    keys.make(path)
    path.chmod(mode)
    with pytest.raises(InputError, match=f"by others .mode {mode:04o}") as caught:
        keys.load_signing(path)
    assert f"chmod 600 {path}" in caught.value.hint


ELSE = ec.generate_private_key(ec.SECP256R1())
DAMAGED = "-----BEGIN {0}-----\nMCowBQYDK2VwAyEA\n-----END {0}-----\n"


@pytest.mark.parametrize(
    ("content", "private", "public"),
    [
        (b"", "not a private key", "not one public key"),
        (b"\xff\xfe\x00", "not a private key", "not one public key"),
        (b"x" * 70_000, "larger than 64 KiB", "larger than 64 KiB"),
        (DAMAGED.format("PRIVATE KEY").encode(), "damaged", "this is a private key"),
        (DAMAGED.format("PUBLIC KEY").encode(), "not a private key", "damaged"),
        (DAMAGED.format("OPENSSH PRIVATE KEY").encode(), "damaged", "this is a private key"),
        (ELSE.private_bytes(PEM, PKCS8, PLAIN), "not an ed25519 key", "this is a private key"),
        (ELSE.public_key().public_bytes(PEM, SPKI), "not a private key", "not an ed25519 key"),
        (ELSE.public_key().public_bytes(PEM, SPKI) * 2, "not a private key", "not one public key"),
        (None, "there is no such key", "there is no such key"),
    ],
)
def test_what_is_no_key(content: bytes | None, private: str, public: str, tmp_path: Path) -> None:
    path = tmp_path / "k.pem"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    for load, said in ((keys.load_signing, private), (keys.load_public, public)):
        with pytest.raises(InputError, match=said) as caught:
            load(path)
        assert str(path) in caught.value.message


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "k", 0o600)
    for load in (keys.load_signing, keys.load_public):
        with pytest.raises(InputError, match="no file"):
            load(tmp_path / "k")


# --- the site's keys --------------------------------------------------------------------------------------------------


def bench(root: Path, **settings: object) -> Workbench:
    (root / "matrix.yaml").write_bytes((REPOSITORY / "matrix.yaml").read_bytes())
    return Workbench(project_folder=root, environ={"HOME": str(root)}, settings=settings)


def test_keys_come_from_the_site_and_flags_replace_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        keys.make(tmp_path / f"{name}.pem")
    inline = (tmp_path / "b.pub").read_text()
    (tmp_path / "envbuild.toml").write_text(
        f'[signing]\nkey = "a.pem"\n[trust]\nkeys = ["a.pub", "a.pub", """\n{inline}"""]\n'
    )
    own = bench(tmp_path)
    key = own.signing_key
    assert key is not None and key.public.origin == str(tmp_path / "a.pem")
    assert [each.origin for each in own.trusted_keys] == [str(tmp_path / "a.pub"), "inline"], "each once"
    other = bench(tmp_path, **{"signing.key": str(tmp_path / "b.pem"), "trust.keys": [str(tmp_path / "b.pub")]})
    assert other.signing_key is not None and other.signing_key.public.id == own.trusted_keys[1].id
    assert [each.id for each in other.trusted_keys] == [own.trusted_keys[1].id]
    (tmp_path / "envbuild.toml").unlink()
    assert bench(tmp_path).signing_key is None and bench(tmp_path).trusted_keys == ()


def test_every_key_that_cannot_be_trusted_is_named(tmp_path: Path) -> None:
    keys.make(tmp_path / "a.pem")
    (tmp_path / "envbuild.toml").write_text('[trust]\nkeys = ["a.pub", "nowhere.pub", "a.pem"]\n')
    with pytest.raises(InputError) as caught:
        _ = bench(tmp_path).trusted_keys
    lines = caught.value.message.splitlines()
    assert (
        len(lines) == 2 and "nowhere.pub: there is no such key" in lines[0] and "a.pem: this is a private" in lines[1]
    )


@pytest.mark.parametrize("place", ['[signing]\nkey = """{}"""\n', '[trust]\nkeys = ["""{}"""]\n'])
def test_a_private_key_in_the_configuration_is_refused_and_not_repeated(place: str, tmp_path: Path) -> None:
    keys.make(tmp_path / "a.pem")
    secret = (tmp_path / "a.pem").read_text()
    (tmp_path / "envbuild.toml").write_text(place.format(secret))
    with pytest.raises(InputError, match=r"envbuild\.toml:2:1: .* private key has no place") as caught:
        config.load(tmp_path, {"HOME": str(tmp_path)})
    assert secret.splitlines()[1] not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("folder", ["images", "templates"])
def test_a_private_key_among_what_is_shared_is_refused(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    keys.make(tmp_path / folder / "a.pem")
    with pytest.raises(InputError, match="there to be shared"):
        _ = bench(tmp_path, **{"signing.key": str(tmp_path / folder / "a.pem")}).signing_key
