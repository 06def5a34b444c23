"""Bundles without any program: what they are made of, that they are the same bytes, and hostile ones."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import resource
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bundles
from bundles import CREATED, Recipe, contents, noise
from envbuild.bundle import conf, differential, manifest, provenance, sums, volumes, wheels, writing
from envbuild.bundle.compare import compare
from envbuild.bundle.finishing import Seals
from envbuild.bundle.inspect import inspect
from envbuild.bundle.tree import Tree, Unreadable
from envbuild.bundle.verify import Verified, Wanted, verify
from envbuild.errors import BundleError, EngineError, InputError
from envbuild.evidence import Evidence, Host, Identity, keys, statement
from envbuild.evidence.signing import seal, unseal
from envbuild.model import Level, Severity


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVBUILD_HOME", str(tmp_path / "home"))


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Two packages, two wheels, an image of two layers."""
    folder = tmp_path / "index"
    small = bundles.wheel(folder, "small", "1.0", "py3-none-any")
    large = bundles.wheel(folder, "large", "2.0", "cp39-cp39-manylinux_2_17_x86_64", padding=400_000)
    asked = bundles.lock({"small": ("1.0", "deps", [small]), "large": ("2.0", "torch", [large])})
    made = bundles.source(tmp_path / "blobs", noise(200_000, "one"), noise(500_000, "two"))
    rpms = {"a-1-1.x86_64.rpm": noise(300_000, "a"), "b-2-1.noarch.rpm": noise(90_000, "b")}
    return Recipe(cache=tmp_path / "cache", rpms=rpms, wheels=(folder, asked), image=made)


def rules(seen: Verified, severity: Severity = Severity.ERROR) -> dict[str, str]:
    return {each.rule.removeprefix("bundle."): each.message for each in seen.findings if each.severity is severity}


def seen(folder: Path, **wanted: Any) -> Verified:
    """What is found, with nobody asking who signed: no gpgv runs."""
    found = verify(folder, Wanted(**wanted))
    others = tuple(each for each in found.findings if each.rule != "bundle.signature")
    return Verified(folder=folder, manifest=found.manifest, findings=others, key=found.key, files=found.files)


def test_what_another_one_brings_is_said(recipe: Recipe, tmp_path: Path) -> None:
    old = recipe.write(tmp_path / "old")
    assert compare(old, old).changes == () and compare(old, old).fresh == 0
    rpms = {"a-2-1.x86_64.rpm": noise(1000, "a2"), "c-libs-1.0-3.el8.noarch.rpm": noise(500, "c")}
    new = replace(recipe, rpms=rpms, image=None).write(tmp_path / "new")
    found = {(each.kind, each.name): (each.old, each.new) for each in compare(old, new).changes}
    assert found[("package", "a.x86_64")] == ("1-1", "2-1")
    assert found[("package", "b.noarch")] == ("2-1", "") and found[("package", "c-libs.noarch")] == ("", "1.0-3.el8")
    assert found[("image", "image")][1] == "" and ("bundle", "parts") in found
    assert not {kind for kind, _ in found} & {"wheel"}
    # As much as a differential one carries of packages and wheels; lists and scripts are in every one.
    again = replace(recipe, rpms=rpms, image=None).write(tmp_path / "differential", base=tmp_path / "old")
    carried = sum(file.bytes for file in again.files if file.path in (again.carried or ()) and file.part == "rpms")
    assert compare(old, new).fresh >= carried > 1500


# --- what it says of itself -------------------------------------------------------------------------------------------


def test_what_the_scripts_read_is_what_the_manifest_says(recipe: Recipe, tmp_path: Path) -> None:
    made = recipe.write(tmp_path / "b")
    text = (tmp_path / "b/bundle.conf").read_text()
    image = made.image
    assert image is not None and made.wheels is not None
    size = sum(file.bytes for file in made.files if file.part == "wheels")
    assert text == (
        "schema 1\nname test\ndistro rhel\nmajor 8\narch x86_64\nfips no\n"
        "part rpms\npart wheels\npart image\npart doctor\nroot a\nrpm_count 2\nrpm_installed_bytes 780000\n"
        f"python 3.9\nimport small.sub\nenv CC /opt/a b/gcc\nwheels_bytes {size}\n"
        "image_path images/test.oci.tar\nimage_ref envbuild/test:validated\n"
        f"image_manifest {image.manifest_digest}\nimage_config {image.config_digest}\nprefix /opt/envbuild\n"
    )
    assert manifest.parse((tmp_path / "b/manifest.json").read_bytes(), "it") == made
    known = sums.parse((tmp_path / "b/SHA256SUMS").read_bytes(), "it")
    assert known.keys() == {path for path in contents(tmp_path / "b") if (tmp_path / "b" / path).is_file()} - {
        "SHA256SUMS"
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["files"][0].update(path="../x"), "files.0.path"),
        (lambda m: m["files"][0].update(path="/etc/passwd"), "files.0.path"),
        (lambda m: m["files"][0].update(path="a b"), "files.0.path"),
        (lambda m: m["files"][0].update(path="manifest.json"), "made after it"),
        (lambda m: m["files"][0].update(path="rpms"), "both a file and a folder"),
        (lambda m: m["files"].append({**m["files"][0], "path": "Doctor.pyz"}), "one file on a medium"),
        (lambda m: m["files"].append({**m["files"][0], "path": "rpms/Packages/x.rpm"}), "of which it does not speak"),
        (lambda m: m["files"].append({**m["files"][0], "path": "wheels/pip-1-py3-none-any.whl"}), "does not speak"),
        (lambda m: m["files"].reverse(), "not sorted"),
        (lambda m: m["files"].append(m["files"][-1]), "not sorted, or not each once"),
        (lambda m: m["rpms"]["packages"][0].update(sha256="0" * 64), "two sums of rpms/Packages/a"),
        (lambda m: m["image"].update(path="images/other.tar"), "none of its files"),
        (lambda m: m.update(image=None), "image is not both a part and described"),
        (lambda m: m.update(carried=["doctor.pyz"]), "both its base and what it carries"),
        (lambda m: m["rpms"].update(roots=["--nogpgcheck"]), "rpms.roots.0"),
        (lambda m: m["rpms"].update(roots=["a\nfips yes"]), "rpms.roots.0"),
        (lambda m: m["image"].update(reference="a b"), "image.reference"),
        (lambda m: m["wheels"].update(env=[["PATH", "x\npart image"]]), "wheels.env.0.1"),
        (lambda m: m["wheels"].update(imports=["os; evil"]), "wheels.imports.0"),
        (lambda m: m.update(surplus=1), "surplus"),
        (lambda m: m.update(schema="envbuild.bundle/2"), "envbuild.bundle/1 was expected"),
    ],
)
def test_a_manifest_that_lies_is_none(
    recipe: Recipe, tmp_path: Path, change: Callable[[Any], object], said: str
) -> None:
    recipe.write(tmp_path / "b")
    document = json.loads((tmp_path / "b/manifest.json").read_bytes())
    change(document)
    document["files"] = (
        document["files"] if "sorted" in said else sorted(document["files"], key=lambda f: str(f["path"]))
    )
    with pytest.raises(BundleError, match=said):
        manifest.parse(json.dumps(document).encode(), "it")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300) | st.text(alphabet='{}[]":,0abc\n /.', max_size=200).map(str.encode))
def test_any_bytes_are_a_bundle_or_an_error(data: bytes) -> None:
    with contextlib.suppress(BundleError):
        manifest.parse(data, "it")
    with contextlib.suppress(BundleError):
        sums.parse(data, "it")


@given(
    st.dictionaries(st.from_regex(r"[A-Za-z0-9_][a-z.+-]{0,6}(/[a-z0-9]{1,5}){0,2}", fullmatch=True), st.integers(0))
)
def test_sums_are_read_as_they_were_written(found: dict[str, int]) -> None:
    wanted = {path: f"{number % (1 << 256):064x}" for path, number in found.items() if sums.is_path(path)}
    wanted.pop("SHA256SUMS", None)
    if wanted:
        assert sums.parse(sums.dump(wanted), "it") == wanted


@pytest.mark.parametrize(
    "line", ["../x", "a/../b", "/etc/x", "a//b", "a b", "./a", ".ssh/x", "-x", "a\tb", "SHA256SUMS", "a\\b", "ä", "a/"]
)
def test_no_sum_leads_out_of_the_bundle(line: str) -> None:
    with pytest.raises(BundleError):
        sums.parse(f"{'0' * 64}  {line}\n".encode(), "it")


# --- writing ----------------------------------------------------------------------------------------------------------


def test_two_exports_are_the_same_bytes_permissions_and_times(recipe: Recipe, tmp_path: Path) -> None:
    keys.make(tmp_path / "key.pem")
    seals = Seals(dsse=keys.load_signing(tmp_path / "key.pem"))
    before = os.umask(0o077)
    try:
        recipe.write(tmp_path / "one" / "b", seals)
        os.umask(0o002)
        recipe.cache = tmp_path / "another-cache"
        recipe.write(tmp_path / "two" / "b", seals)
    finally:
        os.umask(before)
    assert contents(tmp_path / "one").keys() == contents(tmp_path / "two").keys()
    assert contents(tmp_path / "one" / "b") == contents(tmp_path / "two" / "b")
    assert (tmp_path / "one/b/install.sh").stat().st_mode & 0o777 == 0o755
    moment = datetime.datetime.fromisoformat(CREATED.replace("Z", "+00:00")).timestamp()
    assert {time for _, _, time in contents(tmp_path / "one/b").values()} == {moment}
    # A third one, in place of the first.
    recipe.write(tmp_path / "one" / "b", seals)
    assert contents(tmp_path / "one" / "b") == contents(tmp_path / "two" / "b")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["b"]


def test_what_fails_leaves_nothing_and_what_was_killed_is_no_obstacle(recipe: Recipe, tmp_path: Path) -> None:
    recipe.write(tmp_path / "b")
    before = contents(tmp_path / "b")
    (tmp_path / ".b.part").mkdir()  # as kill -9 leaves them
    (tmp_path / ".b.part/rest").touch()
    cached = tmp_path / "cache/rpms/a-1-1.x86_64.rpm"
    good, recipe.rpms["a-1-1.x86_64.rpm"] = recipe.rpms["a-1-1.x86_64.rpm"], b"other"
    with pytest.raises(RuntimeError), writing.drafting(tmp_path / "b", CREATED) as draft:
        draft.write("x", b"x")
        raise RuntimeError
    assert contents(tmp_path / "b") == before and not (tmp_path / ".b.part").exists()
    with pytest.raises(BundleError, match="was expected"), writing.drafting(tmp_path / "b", CREATED) as draft:
        draft.copy("rpms/a.rpm", cached, "0" * 64, "rpms")
    assert contents(tmp_path / "b") == before and cached.read_bytes() == good
    with pytest.raises(BundleError, match="twice"), writing.drafting(tmp_path / "b", CREATED) as draft:
        draft.write("x", b"1")
        draft.write("x", b"2")
    with pytest.raises(EngineError, match="cannot read"), writing.drafting(tmp_path / "b", CREATED) as draft:
        draft.copy("x", tmp_path / "nowhere", "0" * 64, "rpms")
    assert contents(tmp_path / "b") == before


def test_what_others_write_into_it_is_taken_as_it_is(tmp_path: Path) -> None:
    digest = bundles.digest_of(b"a package").removeprefix("sha256:")
    for base, there in ({}, True), ({"rpms/a.rpm": (digest, 9)}, False), ({"rpms/a.rpm": (digest, 8)}, True):
        with writing.drafting(tmp_path / "b", CREATED, base=base) as draft:
            (draft.folder / "rpms").mkdir()
            (draft.folder / "rpms/a.rpm").write_bytes(b"a package")
            (draft.folder / "rpms/a.rpm").chmod(0o600)
            file = draft.adopt("rpms/a.rpm", digest, "rpms")
            assert (file.bytes, draft.carried) == (9, ("rpms/a.rpm",) if there else ())
            with pytest.raises(BundleError, match="not written"):
                draft.adopt("rpms/b.rpm", digest, "rpms")
            draft.write("x", b"")
        assert (tmp_path / "b/rpms/a.rpm").is_file() == there
        assert not there or (tmp_path / "b/rpms/a.rpm").stat().st_mode & 0o777 == 0o644
        for name in ("manifest.json", "SHA256SUMS"):  # so that it may be replaced
            (tmp_path / "b" / name).touch()


def test_a_full_disk_leaves_nothing_and_says_so(recipe: Recipe, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk's: the kernel refuses in the same place."""
    recipe.write(tmp_path / "b")
    before, limits = contents(tmp_path / "b"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, limits[1]))
    try:
        with pytest.raises(EngineError, match="cannot write"):
            recipe.write(tmp_path / "b")
        with pytest.raises(EngineError, match="cannot write"):
            volumes.write(tmp_path / "b", 600_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(tmp_path / "b") == before
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith((".", "b"))} <= {"b", "blobs", "b.vol01"}


def test_nothing_of_somebody_elses_is_replaced(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "home-of-ada").mkdir()
    (tmp_path / "home-of-ada/thesis.tex").write_text("x")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "home-of-ada")
    for name in ("home-of-ada", "file", "link"):
        with pytest.raises(BundleError):
            recipe.write(tmp_path / name)
    assert (tmp_path / "home-of-ada/thesis.tex").read_text() == "x"
    (tmp_path / "empty").mkdir()
    recipe.write(tmp_path / "empty")


# --- looking at one ---------------------------------------------------------------------------------------------------


def test_a_whole_bundle_is_good_and_says_what_it_is(recipe: Recipe, tmp_path: Path) -> None:
    made = recipe.write(tmp_path / "b")
    found = seen(tmp_path / "b")
    assert (found.manifest, found.findings) == (made, ())
    assert found.files == len(made.files) + 2
    said = inspect(tmp_path / "b").as_dict()
    assert said["bytes"] == {
        part: sum(f.bytes for f in made.of(part)) for part in ("rpms", "wheels", "image", "doctor")
    }
    assert said["manifest"]["image"]["level"] is None and "files" not in said["manifest"] and not said["signed"]


def test_nothing_is_asked_of_any_network(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is verified where there is none must not wait for one (cosign #4454)."""
    keys.make(tmp_path / "key.pem")
    recipe.write(tmp_path / "b", Seals(dsse=keys.load_signing(tmp_path / "key.pem")))

    def refused(*args: Any, **rest: Any) -> Any:
        raise AssertionError("a socket")

    monkeypatch.setattr(socket, "socket", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    found = verify(tmp_path / "b", Wanted(keys=[keys.load_public(tmp_path / "key.pub")]))
    assert found.good and found.key is not None and inspect(tmp_path / "b").provenance


def damaged(folder: Path, path: str) -> None:
    content = bytearray((folder / path).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / path).write_bytes(content)


def linked(folder: Path, path: str, target: str) -> None:
    (folder / path).rename(folder.parent / "moved")
    (folder / path).symlink_to(target)


@pytest.mark.parametrize(
    ("harm", "rule", "said"),
    [
        (lambda b: damaged(b, "rpms/Packages/a-1-1.x86_64.rpm"), "checksum", "a-1-1.x86_64.rpm is not what its sum"),
        (lambda b: damaged(b, "install.sh"), "checksum", "install.sh"),
        (lambda b: (b / "doctor.pyz").unlink(), "missing", "doctor.pyz is missing"),
        (lambda b: (b / "manifest.json").unlink(), "missing", "manifest.json is missing"),
        (lambda b: (b / "rpms/repodata/repomd.xml").write_bytes(b""), "checksum", "repomd.xml"),
        # The same bytes are there, behind a link: nothing follows it.
        (lambda b: linked(b, "doctor.pyz", "../moved"), "path", "doctor.pyz: link is not a plain file"),
        (lambda b: linked(b, "rpms", "../moved"), "path", "rpms: link"),
        (lambda b: linked(b, "install.sh", "/etc/passwd"), "unreadable", "install.sh: it is a link"),
        (lambda b: os.mkfifo(b / "pipe"), "path", "pipe: special"),
        (lambda b: ((b / "doctor.pyz").unlink(), os.mkfifo(b / "doctor.pyz")), "unreadable", "it is no file"),
        (lambda b: ((b / "doctor.pyz").unlink(), (b / "doctor.pyz").mkdir()), "unreadable", "doctor.pyz"),
        (lambda b: (b / "SHA256SUMS").write_text("nonsense"), "sums", "cut off"),
        (lambda b: (b / "SHA256SUMS").write_text(f"{'0' * 64}  ../../etc/passwd\n"), "sums", "which no bundle has"),
        (lambda b: (b / "manifest.json").write_text("{" * 10_000), "manifest", "not a manifest"),
    ],
)  # fmt: skip
def test_what_was_done_to_a_bundle_is_found(
    recipe: Recipe, tmp_path: Path, harm: Callable[[Path], object], rule: str, said: str
) -> None:
    recipe.write(tmp_path / "b")
    harm(tmp_path / "b")
    found = rules(seen(tmp_path / "b"))
    assert said in found[rule], found


def test_everything_is_told_at_once_and_what_media_bring_along_is_not(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "b"
    recipe.write(folder)
    damaged(folder, "install.sh")
    (folder / "doctor.pyz").unlink()
    (folder / "System Volume Information").mkdir()
    (folder / "System Volume Information/x").touch()
    (folder / "evil\x1b[2Jname").touch()
    found = verify(folder, Wanted())
    assert set(rules(found)) == {"checksum", "missing", "signature"}
    assert rules(found, Severity.WARNING)["stray"] == "evil?[2Jname is not part of the bundle"
    with Tree(folder) as tree, pytest.raises(Unreadable):
        tree.read("../b/install.sh", 100)
    sock = socket.socket(socket.AF_UNIX)
    with sock:
        monkeypatch.chdir(folder)
        sock.bind("sock")
        assert "sock: special" in rules(seen(folder))["path"]


def test_a_folder_that_is_swapped_for_a_link_while_it_is_read_leads_nowhere(recipe: Recipe, tmp_path: Path) -> None:
    recipe.write(tmp_path / "b")
    (tmp_path / "secret").write_text("not for this")
    with Tree(tmp_path / "b") as tree:
        (tmp_path / "b").rename(tmp_path / "moved")
        (tmp_path / "b").symlink_to("/")
        assert tree.read("doctor.pyz", 1000) == recipe.doctor
        (tmp_path / "moved/images").rename(tmp_path / "moved/other")
        (tmp_path / "moved/images").symlink_to(tmp_path)
        with pytest.raises(Unreadable, match="behind"):
            tree.read("images/secret", 1000)


def resum(folder: Path) -> None:
    """What somebody does who may sign: the sums fit again."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in ("SHA256SUMS", "SHA256SUMS.asc"):
            with Tree(folder) as tree:
                found[name] = tree.digest(name)[0]
    (folder / "SHA256SUMS").write_bytes(sums.dump(found))


@pytest.mark.parametrize(
    ("path", "old", "new", "rule"),
    [
        ("bundle.conf", b"root a", b"root evil", "contradiction"),
        ("bundle.conf", b"fips no", b"fips yes", "contradiction"),
        ("wheels/requirements.lock", b"small==1.0", b"smell==1.0", "contradiction"),
        ("images/test.oci.tar", b'"RepoTags":["envbuild/test:v', b'"RepoTags":["envbuild/test:V', "image"),
        ("rpms/repodata/repomd.xml", b"[", b"{", "manifest"),
    ],
)  # fmt: skip
def test_a_signer_who_tells_people_and_programs_different_things_is_found_out(
    recipe: Recipe, tmp_path: Path, path: str, old: bytes, new: bytes, rule: str
) -> None:
    folder = tmp_path / "b"
    recipe.write(folder)
    data = (folder / path).read_bytes()
    assert old in data
    (folder / path).write_bytes(data.replace(old, new, 1))
    resum(folder)
    assert rule in rules(seen(folder))


def test_the_provenance_is_of_this_manifest_and_of_a_trusted_key(recipe: Recipe, tmp_path: Path) -> None:
    for name in ("farm", "mallory"):
        keys.make(tmp_path / f"{name}.pem")
    farm, mallory = (keys.load_public(tmp_path / f"{name}.pub") for name in ("farm", "mallory"))
    made = recipe.write(tmp_path / "b", Seals(dsse=keys.load_signing(tmp_path / "farm.pem")))
    assert seen(tmp_path / "b", keys=[farm]).key == farm
    assert "no trusted key" in rules(seen(tmp_path / "b", keys=[mallory]))["provenance"]
    # With a key that is trusted a bundle needs no OpenPGP signature here; its own scripts want one.
    assert verify(tmp_path / "b", Wanted(keys=[farm])).good and not verify(tmp_path / "b", Wanted()).good
    other = made.model_copy(update={"name": "other"})
    (tmp_path / "b/manifest.json").write_bytes(manifest.dump(other))
    (tmp_path / "b/bundle.conf").write_bytes(conf.text(other))
    resum(tmp_path / "b")
    assert "another manifest.json" in rules(seen(tmp_path / "b", keys=[farm]))["provenance"]


def test_other_programs_read_the_provenance(recipe: Recipe, tmp_path: Path) -> None:
    from google.protobuf.json_format import ParseDict
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement

    keys.make(tmp_path / "key.pem")
    made = recipe.write(tmp_path / "b", Seals(dsse=keys.load_signing(tmp_path / "key.pem")))
    payload, _ = unseal((tmp_path / "b/provenance.dsse.json").read_bytes(), [keys.load_public(tmp_path / "key.pub")])
    document = json.loads(payload)
    Statement.copy_from_pb(ParseDict(document, statement_pb2.Statement())).validate()
    said = ParseDict(document["predicate"], provenance_pb2.Provenance())
    assert said.build_definition.build_type == provenance.BUILD_TYPE
    assert made.image is not None
    digests = {each.digest["sha256"] for each in said.build_definition.resolved_dependencies}
    assert made.image.manifest_digest.removeprefix("sha256:") in digests


def evidence_of(digest: str, level: Level) -> bytes:
    now = datetime.datetime.now(datetime.timezone.utc)
    record = Evidence(
        schema="envbuild.evidence/1", environment="cpu", target_id=None, level=level, suite="5" * 64, envbuild="0",
        image=Identity(config_digest=digest, diff_ids=()), platform="linux/amd64", size_bytes=5, base={}, claims={},
        content={}, portability={}, smoke={}, findings=(), started=now, finished=now, seconds={},
        host=Host(system="s", machine="m", cpu="c", cpus=1, memory_bytes=1, engine="e"),
    )  # fmt: skip
    return record.model_dump_json(by_alias=True).encode()


def test_evidence_in_a_bundle_is_of_its_image_and_shows_what_is_said(recipe: Recipe, tmp_path: Path) -> None:
    assert recipe.image is not None
    recipe.image = replace(recipe.image, level=Level.CPU)
    own = recipe.image.parsed().config.digest
    recipe.evidence = {
        "cpu.json": evidence_of(own, Level.CPU),
        "cpu.dsse.json": b"{}",
        "b.json": evidence_of(own, Level.BUILT),
    }
    recipe.write(tmp_path / "good")
    assert seen(tmp_path / "good").findings == ()
    for files, said in (
        ({"cpu.json": evidence_of(f"sha256:{'0' * 64}", Level.CPU)}, "no evidence of the image"),
        ({"cpu.json": b"{}"}, "no evidence of the image"),
        ({"b.json": evidence_of(own, Level.BUILT)}, "shows level cpu"),
        ({}, "shows level cpu"),
    ):
        recipe.evidence = files
        recipe.write(tmp_path / "bad")
        assert any(said in each.message for each in seen(tmp_path / "bad").findings), files


def test_evidence_is_signed_by_a_key_that_is_trusted_here(recipe: Recipe, tmp_path: Path) -> None:
    assert recipe.image is not None
    recipe.image = replace(recipe.image, level=Level.CPU)
    own = recipe.image.parsed().config.digest
    for name in ("farm", "mallory"):
        keys.make(tmp_path / f"{name}.pem")
    farm, mallory = (keys.load_public(tmp_path / f"{name}.pub") for name in ("farm", "mallory"))
    record = evidence_of(own, Level.CPU)

    def sealed(data: bytes, name: str = "farm") -> bytes:
        signed = statement.payload(Evidence.model_validate_json(data))
        return json.dumps(seal(signed, keys.load_signing(tmp_path / f"{name}.pem"))).encode()

    other = evidence_of(f"sha256:{'1' * 64}", Level.CPU)
    built = evidence_of(own, Level.BUILT)
    for number, (files, said) in enumerate((
        ({"a.json": record, "a.dsse.json": sealed(record)}, ""),
        # One that nobody signed beside it harms nobody.
        ({"a.json": record, "b.json": record, "b.dsse.json": sealed(record)}, ""),
        ({"a.json": record}, "nobody has signed images/evidence/a.json"),
        ({"a.json": record, "a.dsse.json": sealed(record, "mallory")}, "no trusted key signed it"),
        ({"a.json": record, "a.dsse.json": sealed(built)}, "says something else than what was signed"),
        ({"a.json": record, "a.dsse.json": sealed(other)}, "says something else than what was signed"),
        ({"a.json": record, "a.dsse.json": b"{" * 9000}, "no DSSE envelope"),
        ({"a.json": record, "b.json": built, "b.dsse.json": sealed(built)}, "nobody has signed"),
    )):  # fmt: skip
        recipe.evidence = files
        folder = tmp_path / str(number)
        recipe.write(folder)
        found = verify(folder, Wanted(keys=[farm]))
        wrong = rules(found).get("evidence", "")
        assert (said in wrong) if said else (wrong, found.shown.key) == ("", farm), (number, wrong)
        # Without a key to trust it is not said that anybody's is.
        assert (seen(folder).findings, verify(folder, Wanted()).shown.key) == ((), None)
    assert verify(tmp_path / "0", Wanted(keys=[mallory])).shown.key is None


# --- only what is new -------------------------------------------------------------------------------------------------


def test_one_changed_small_wheel_is_all_that_travels(recipe: Recipe, tmp_path: Path) -> None:
    old = tmp_path / "old"
    recipe.write(old)
    assert recipe.wheels is not None
    folder, before = recipe.wheels
    small = bundles.wheel(folder, "small", "1.1", "py3-none-any")
    large = next(folder.glob("large-*"))
    recipe.wheels = folder, bundles.lock({"small": ("1.1", "deps", [small]), "large": ("2.0", "torch", [large])})
    made = recipe.write(tmp_path / "new", base=old)
    there = {path for path in contents(tmp_path / "new") if not (tmp_path / "new" / path).is_dir()}
    metadata = {
        "SHA256SUMS", "assemble.sh", "bundle.conf", "install.sh", "manifest.json", "rpms/repodata/repomd.xml",
        "sbom.cdx.json", "verify.sh", "wheels/requirements.lock",
    }  # fmt: skip
    assert there == {*metadata, f"wheels/{small.name}"}
    assert not (tmp_path / "new/images").exists()
    assert made.base is not None and made.carried is not None and len(made.files) == len(there) - 3 + 5
    assert f"base_sums {inspect(old).sums}\n" in (tmp_path / "new/bundle.conf").read_text()
    # Alone, it says on what it stands; with its base it is whole; with another one it is not.
    alone = seen(tmp_path / "new")
    assert alone.good and "its base" in rules(alone, Severity.WARNING)["base"]
    assert seen(tmp_path / "new", base=old).findings == ()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/SHA256SUMS").write_bytes((tmp_path / "new/SHA256SUMS").read_bytes())
    assert any("is another bundle" in each.message for each in seen(tmp_path / "new", base=tmp_path / "copy").findings)
    damaged(old, "images/test.oci.tar")
    assert "images/test.oci.tar is not what" in rules(seen(tmp_path / "new", base=old))["checksum"]
    (old / "images/test.oci.tar").unlink()
    assert "missing in the base" in rules(seen(tmp_path / "new", base=old))["base"]
    (tmp_path / "new" / f"wheels/{small.name}").unlink()
    assert small.name in rules(seen(tmp_path / "new"))["missing"]
    assert before.packages[0].version == "1.0"


def test_put_together_it_is_the_bundle_that_a_whole_export_gives(recipe: Recipe, tmp_path: Path) -> None:
    old = tmp_path / "old"
    recipe.write(old)
    recipe.rpms = {"a-2-1.x86_64.rpm": noise(1000, "new"), "b-2-1.noarch.rpm": recipe.rpms["b-2-1.noarch.rpm"]}
    made = recipe.write(tmp_path / "new", base=old)
    for file in made.files:
        if not (tmp_path / "new" / file.path).exists():
            target = tmp_path / "new" / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((old / file.path).read_bytes())
    assert seen(tmp_path / "new").findings == ()
    (tmp_path / "new/doctor.pyz").unlink()  # a file of the base, lost after that
    assert "doctor.pyz is missing" in rules(seen(tmp_path / "new"))["missing"]
    recipe.write(tmp_path / "whole")
    whole, together = (json.loads((tmp_path / name / "manifest.json").read_bytes()) for name in ("whole", "new"))
    assert {**together, "base": None, "carried": None} == whole
    (tmp_path / "whole/SHA256SUMS").write_bytes((tmp_path / "old/SHA256SUMS").read_bytes())
    with pytest.raises(BundleError, match="contradict"):
        differential.read(tmp_path / "whole")


# --- volumes ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=60), st.integers(700_000, 4_000_000))
def test_every_byte_is_in_one_volume_and_no_volume_is_too_large(found: list[int], limit: int) -> None:
    sizes = {f"f{number:03}": size for number, size in enumerate(found)}
    known = {path: f"{number:064x}" for number, path in enumerate(sizes)}
    made = volumes.plan(sizes, known, limit, 10_000)
    for path, size in sizes.items():
        pieces = sorted((each for volume in made for each in volume if each.source == path), key=lambda each: each.path)
        assert sum(each.size for each in pieces) == size
        assert [each.start for each in pieces] == [sum(e.size for e in pieces[:n]) for n in range(len(pieces))]
        # Cut only where it would not fit even alone.
        assert len(pieces) == 1 or size > limit - 10_000 - (64 << 10) - 160 * 70 - 4096
    for volume in made:
        taken = sum(-(-each.size // 2048) * 2048 for each in volume) + 2048 * 8 + 160 * len(volume) + 10_000
        assert taken <= limit
    shuffled = dict(sorted(sizes.items(), key=lambda item: hash(item[0])))
    assert volumes.plan(shuffled, known, limit, 10_000) == made


def test_the_largest_files_go_first_so_that_small_ones_fill_the_gaps() -> None:
    sizes = {"a": 300_000, "b": 300_000, "c": 700_000, "d": 700_000}
    known = dict.fromkeys(sizes, "0" * 64)
    made = volumes.plan(sizes, known, 1_100_000, 0)
    assert [[piece.path for piece in volume] for volume in made] == [["a", "c"], ["b", "d"]]


def test_volumes_are_looked_at_one_by_one_and_together_are_the_bundle(recipe: Recipe, tmp_path: Path) -> None:
    bundle = tmp_path / "b"
    recipe.rpms["c-1-1.x86_64.rpm"] = noise(900_000, "c")
    keys.make(tmp_path / "key.pem")
    recipe.write(bundle, Seals(dsse=keys.load_signing(tmp_path / "key.pem")))
    trusted = [keys.load_public(tmp_path / "key.pub")]
    made = volumes.write(bundle, 600_000)
    assert [place.name for place in made] == [f"b.vol{n:02}" for n in range(1, len(made) + 1)] and len(made) > 3
    first = [contents(place) for place in made]
    assert volumes.write(bundle, 600_000) == made and [contents(place) for place in made] == first
    together: dict[str, bytes] = {}
    pieces: dict[str, list[str]] = {}
    for place in made:
        size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        assert size <= 600_000 and seen(place, keys=trusted).findings == () and (place / "assemble.sh").is_file()
        together |= {path: data for path, (data, _, _) in contents(place).items() if (place / path).is_file()}
    for line in together["CHUNKS"].decode().splitlines():
        sha256, count, path = line.split(" ")
        assert len(together[path]) == int(count)
        pieces.setdefault(path[7:71], []).append(path)
        assert sums.is_path(path) and len(sha256) == 64
    known = sums.parse(together["SHA256SUMS"], "it")
    for path, sha256 in known.items():
        data = together.get(path) or b"".join(together[piece] for piece in sorted(pieces[sha256]))
        assert data == (bundle / path).read_bytes()
    assert {path for path in known if path not in together} == {"images/test.oci.tar", "rpms/Packages/c-1-1.x86_64.rpm"}
    # One of them harmed: it alone is named.
    victim = next(place for place in made if (place / "doctor.pyz").exists())
    damaged(victim, "doctor.pyz")
    assert "doctor.pyz" in rules(seen(victim))["checksum"]
    (victim / "doctor.pyz").unlink()
    assert "belong into it" in rules(seen(victim))["missing"]
    (victim / "VOLUME").write_text((victim / "VOLUME").read_text().replace("set ", "set 0")[:-1])
    with pytest.raises(BundleError):
        seen(victim)
    # What somebody adds is told: a link is followed by nobody, a file read by nobody.
    clean = made[-1]
    (clean / "rpms").symlink_to("/etc") if not (clean / "rpms").exists() else (clean / "evil").symlink_to("/etc")
    (clean / "run-me.sh").touch()
    (clean / "lost+found").mkdir()
    assert "link" in rules(seen(clean))["path"] and "run-me.sh" in rules(seen(clean), Severity.WARNING)["stray"]
    # Larger ones: fewer, and none of the smaller ones stays to be mixed with them.
    assert len(volumes.write(bundle, 5_000_000)) == 1 and not (tmp_path / "b.vol02").exists()
    (tmp_path / "b.vol01/VOLUME").unlink()
    with pytest.raises(BundleError, match="no volume"):
        volumes.write(bundle, 5_000_000)
    with pytest.raises(InputError, match="leaves no room"):
        volumes.write(bundle, 100_000)


def test_an_export_without_volumes_leaves_none_of_an_earlier_bundle(recipe: Recipe, tmp_path: Path) -> None:
    bundle, stranger = tmp_path / "b[1]", tmp_path / "b1.vol01"
    recipe.write(bundle)
    made = volumes.write(bundle, 600_000)
    stranger.mkdir()
    (stranger / "VOLUME").touch()
    (tmp_path / "b[1].vol77").mkdir()  # of somebody else: no volume
    # The same bundle again: they are still its own.
    recipe.write(bundle)
    volumes.remove_foreign(bundle)
    assert all(place.is_dir() for place in made)
    recipe.rpms["c-1-1.noarch.rpm"] = noise(1000, "c")
    recipe.write(bundle)
    volumes.remove_foreign(bundle)
    assert not any(place.exists() for place in made) and stranger.is_dir() and (tmp_path / "b[1].vol77").is_dir()


# --- wheels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("python", "platform", "glibc", "own"),
    [
        ("3.9", "linux/amd64", (2, 28), "manylinux_2_28_x86_64"),
        ("3.11", "linux/arm64", (2, 34), "manylinux_2_34_aarch64"),
        ("3.6", "linux/amd64", (2, 17), "manylinux2014_x86_64"),
    ],
)
def test_what_runs_on_the_target_is_no_more_than_what_a_lock_takes(
    python: str, platform: str, glibc: tuple[int, int], own: str
) -> None:
    from envbuild.lock.local import _supported

    found = wheels.tags(python, platform, glibc)
    assert len(set(found)) == len(found) and set(found) <= _supported(python, platform)
    platforms = {tag.platform for tag in found}
    assert own in platforms
    assert not any(f"manylinux_2_{level}_" in each for each in platforms for level in range(glibc[1] + 1, 60))


def chosen(tmp_path: Path, *tags: str, python: str = "3.9", glibc: tuple[int, int] = (2, 28)) -> str:
    folder = tmp_path / "index"
    paths = [bundles.wheel(folder, "thing", "1.0", tag) for tag in tags]
    wish = wheels.Wish(lock=bundles.lock({"thing": ("1.0", "deps", paths)}, python=python), glibc=glibc, own={})
    pip = bundles.PipSettings(no_index=True, find_links=(str(folder),))
    (choice,) = wheels.choose(wish, bundles.upstream(pip, tmp_path), tmp_path)
    assert choice.file is not None
    return choice.file.filename.removeprefix("thing-1.0-").removesuffix(".whl")


def test_the_wheel_is_the_targets_best_and_never_this_hosts(tmp_path: Path) -> None:
    new, old = "cp39-cp39-manylinux_2_28_x86_64", "cp39-cp39-manylinux_2_17_x86_64.manylinux2014_x86_64"
    others = (
        "cp311-cp311-manylinux_2_28_x86_64",
        "cp39-cp39-manylinux_2_28_aarch64",
        "cp39-cp39-manylinux_2_35_x86_64",
    )
    assert chosen(tmp_path / "a", *others, old, new, "py3-none-any") == new
    assert chosen(tmp_path / "b", *others, old, new, glibc=(2, 17)) == old
    assert chosen(tmp_path / "c", *others, "cp37-abi3-manylinux2010_x86_64") == "cp37-abi3-manylinux2010_x86_64"
    with pytest.raises(BundleError, match="1 of 1 locked packages") as error:
        chosen(tmp_path / "d", *others)
    assert "no wheel of it runs there: thing-1.0-cp311" in error.value.message


def test_another_file_of_the_same_name_is_not_taken(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    path = bundles.wheel(folder, "thing", "1.0", "py3-none-any")
    wish = wheels.Wish(lock=bundles.lock({"thing": ("1.0", "deps", [path])}), glibc=(2, 28), own={})
    bundles.wheel(folder, "thing", "1.0", "py3-none-any", code="import evil\n")
    pip = bundles.PipSettings(no_index=True, find_links=(str(folder),))
    with pytest.raises(BundleError, match="other hashes than the lock"):
        wheels.choose(wish, bundles.upstream(pip, tmp_path), tmp_path)


def test_deepspeed_without_an_image_is_a_source_archive_and_what_compiles_it(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    tool = bundles.wheel(folder, "ninja", "1.0", "py3-none-any")
    toolkit = bundles.wheel(folder, "cuda-toolkit", "13.0", "py3-none-any")
    archive = folder / "deepspeed-0.19.8.tar.gz"
    archive.write_bytes(b"sources")
    asked = bundles.lock({"ninja": ("1.0", "deps", [tool]), "deepspeed": ("0.19.8", "ops", [archive]),
                          "cuda-toolkit": ("13.0", "toolkit", [toolkit])})  # fmt: skip
    recipe = Recipe(cache=tmp_path / "cache", rpms={}, wheels=(folder, asked))
    made = recipe.write(tmp_path / "b").wheels
    assert made is not None and made.deepspeed == "source"
    assert (
        "compiled on the target" in made.note
        and "deepspeed source\nsource deepspeed\n" in (tmp_path / "b/bundle.conf").read_text()
    )
    digest = bundles.own(archive).sha256
    lines = f"deepspeed==0.19.8 \\\n    --hash=sha256:{digest}\n"
    assert lines in (tmp_path / "b/wheels/requirements.lock").read_text()
    # With a wheel of it there is nothing to compile, and so nothing that compiles.
    own = bundles.wheel(tmp_path / "own", "deepspeed", "0.19.8", "cp39-cp39-linux_x86_64")
    wish = wheels.Wish(lock=asked, glibc=(2, 28), own={"deepspeed": bundles.own(own)})
    pip = bundles.PipSettings(no_index=True, find_links=(str(folder),))
    choices = wheels.choose(wish, bundles.upstream(pip, tmp_path), tmp_path)
    assert [each.package.name for each in choices] == ["ninja"]
    with writing.drafting(tmp_path / "c", CREATED) as draft:
        described = wheels.write(draft, wish, choices, bundles.fetcher(pip, tmp_path))
    assert described.deepspeed == "image"
    foreign = bundles.wheel(tmp_path / "own", "deepspeed", "0.19.8", "cp311-cp311-linux_x86_64")
    wish = wheels.Wish(lock=asked, glibc=(2, 28), own={"deepspeed": bundles.own(foreign)})
    with pytest.raises(BundleError, match="is not deepspeed"), writing.drafting(tmp_path / "d", CREATED) as draft:
        wheels.write(draft, wish, choices, bundles.fetcher(pip, tmp_path))
