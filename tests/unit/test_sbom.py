"""Bills of materials of images that are made up here, file by file: everything once, and always the same bytes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import struct
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from envbuild import evidence, sbom
from envbuild.engines import ImageInfo
from envbuild.events import Event, PhaseStarted
from envbuild.pipeline import materials
from envbuild.pipeline.workbench import Workbench
from rpm_made import package, sqlite_file

SITE = "opt/venv/lib/python3.11/site-packages"
RELEASE = ("etc/os-release", b'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n# no\nX=\'\n')
GCC = "GCC: (Debian 12.2.0-14+deb12u1) 12.2.0"
CREATED = "2026-03-04T05:06:07.123456789+02:00"
Files = tuple[tuple[str, bytes | str], ...]


def op(compiler: str = GCC) -> bytes:
    """A shared object of one AVX instruction, and who compiled it."""
    names, said, code = b"\0.comment\0.shstrtab\0.text\0", compiler.encode() + b"\0", b"\xc5\xfc\x58\xc0\xc3"
    table, content = bytes(64), b""
    for name, kind, flags, data in ((1, 1, 0x30, said), (10, 3, 0, names), (20, 1, 6, code)):
        table += struct.pack("<IIQQQQIIQQ", name, kind, flags, 0, 64 + len(content), len(data), 0, 0, 1, 0)
        content += data
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64 + len(content), 0, 64, 56, 0, 64, 4, 2)
    return header + content + table


def wheel(name: str, version: str, *lines: str, vendored: str = "", url: bytes = b"") -> Files:
    info = f"{SITE}/{name}-{version}.dist-info"
    metadata = "\n".join(("Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines, "", "About it."))
    record = f"{name}.py,sha256=x,1\n" + (f"{vendored}/METADATA,sha256=x,1\n" if vendored else "")
    return (
        (f"{info}/METADATA", metadata.encode()), (f"{info}/RECORD", record.encode()), (f"{info}/INSTALLER", b"pip\n"),
        *(((f"{info}/direct_url.json", url),) if url else ()),
    )  # fmt: skip


def status(*paragraphs: str) -> tuple[str, bytes]:
    return "var/lib/dpkg/status", "\n".join(paragraphs).encode()


def deb(name: str, version: str, *lines: str, state: str = "install ok installed", arch: str = "amd64") -> str:
    more = "".join(f"{line}\n" for line in lines)
    return f"Package: {name}\nStatus: {state}\nArchitecture: {arch}\nVersion: {version}\n{more}"


SYSTEM: Files = (
    RELEASE,
    status(
        deb("libc6", "2.36-9", "Source: glibc", "Depends: libgcc-s1"),
        deb("libc6", "2.36-9", "Source: glibc", arch="i386"),
        deb("libgcc-s1", "12.2.0-14", "Source: gcc-12 (12.2.0-13)", "Provides: libgcc1 (= 1:12)"),
        deb("gone", "1", state="deinstall ok config-files"),
        deb("tool", "1:2.0-1+b2", "Description: does it", " and more", "Pre-Depends: libc6 (>= 2.34)",
            "Depends: absent | libgcc1:any, never"),
    ),
    ("usr/share/doc/tool/copyright", b"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"
     b"Files: *\nLicense: GPL-2+\n text\n\nFiles: debian/*\nLicense: MIT\n\nLicense: Unused\n"),
    ("usr/share/doc/libc6/copyright", b"This is free text.\nLicense: none\n"),
)  # fmt: skip
VENDORED = "big/_vendor/small-0.9.dist-info"
PACKAGES: Files = (
    *wheel("Big_Thing", "1.0", "License-Expression: MIT OR Apache-2.0", "Requires-Dist: plain[fast]>=1",
           "Requires-Dist: other; python_version < '3.9'", vendored=VENDORED),
    (f"{SITE}/{VENDORED}/METADATA", b"Metadata-Version: 2.1\nName: small\nVersion: 0.9\n"),
    *wheel("plain", "2", "Classifier: License :: OSI Approved :: BSD License", "Classifier: License :: OSI Approved",
           "Requires-Dist: deepspeed; extra == 'fast'", "Requires-Dist: other; extra == 'slow'"),
    *wheel("other", "3.0+cpu", "License: " + "all of the text " * 20,
           url=json.dumps({"url": "file:///w", "archive_info": {"hash": f"sha256={'a' * 64}"}}).encode()),
    *wheel("deepspeed", "0.19.8", "License: Apache-2.0", "Requires-Dist: not a requirement at all !"),
    (f"{SITE}/deepspeed/ops/adam/cpu_adam_op.cpython-311-x86_64-linux-gnu.so", op()),
    ("usr/lib/python3/dist-packages/distro_info-1.5.egg-info", b"Name: distro-info\nVersion: 1.5\n"),
)  # fmt: skip


def tar(members: Iterable[tuple[str, bytes | str]]) -> bytes:
    """An archive; a text is a link's target."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as out:
        for name, content in members:
            info = tarfile.TarInfo(name)
            data = content if isinstance(content, bytes) else b""
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            info.size, info.mode = len(data), 0o644
            out.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def image(*layers: Files, oci: bool = False, **config: Any) -> io.BytesIO:
    """As an engine saves it: as Docker to 24 does, or in the OCI image layout."""
    packed = [tar(files) for files in layers]
    rootfs = {"diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in packed]}
    said = {"architecture": "amd64", "os": "linux", "created": CREATED, "rootfs": rootfs, **config}
    document = json.dumps(said).encode()
    if not oci:
        names = [f"{number}/layer.tar" for number in range(len(packed))]
        manifest = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
        return io.BytesIO(
            tar([*zip(names, packed, strict=True), ("config.json", document), ("manifest.json", manifest)])
        )
    digests = [hashlib.sha256(data).hexdigest() for data in (document, *packed)]
    manifest = json.dumps({"config": {"digest": f"sha256:{digests[0]}"},
                           "layers": [{"digest": f"sha256:{each}"} for each in digests[1:]]}).encode()  # fmt: skip
    top = hashlib.sha256(manifest).hexdigest()
    blobs = zip([*digests, top], [document, *packed, manifest], strict=True)
    index = json.dumps({"manifests": [{"digest": f"sha256:{top}"}]}).encode()
    return io.BytesIO(tar([("index.json", index), *((f"blobs/sha256/{name}", data) for name, data in blobs)]))


def made(scratch: Path, stream: io.BytesIO) -> dict[str, Any]:
    data = sbom.dump(sbom.read(stream, scratch))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode()) is None
    document: dict[str, Any] = json.loads(data)
    return document


def parts(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {part["bom-ref"]: part for part in document["components"]}
    assert len(found) == len(document["components"])
    return found


def needs(document: dict[str, Any], ref: str) -> set[str]:
    (found,) = (each for each in document["dependencies"] if each["ref"] == ref)
    return set(found.get("dependsOn", ()))


def said(part: dict[str, Any], name: str) -> list[str]:
    return [each["value"] for each in part.get("properties", ()) if each["name"] == f"envbuild:{name}"]


def licences(part: dict[str, Any]) -> list[str]:
    return [each.get("expression") or each["license"].get("id") or each["license"]["name"] for each in part["licenses"]]


def test_everything_is_there_once_with_what_it_says_of_itself(tmp_path: Path) -> None:
    document = made(tmp_path, image(SYSTEM, PACKAGES))
    found = parts(document)
    assert set(found) == {
        "os:debian-12", "deb:libc6:amd64@2.36-9", "deb:libc6:i386@2.36-9", "deb:libgcc-s1:amd64@12.2.0-14",
        "deb:tool:amd64@1:2.0-1+b2", "pypi:big-thing@1.0", "pypi:plain@2", "pypi:other@3.0+cpu",
        "pypi:deepspeed@0.19.8", f"op:/{SITE}/deepspeed/ops/adam/cpu_adam_op.cpython-311-x86_64-linux-gnu.so",
        "pypi:distro-info@1.5",
    }  # fmt: skip
    assert not document.get("properties"), "nothing is missing"
    tool = found["deb:tool:amd64@1:2.0-1+b2"]
    assert (tool["name"], tool["version"], tool["description"]) == ("tool", "1:2.0-1+b2", "does it")
    assert tool["purl"] == "pkg:deb/debian/tool@1:2.0-1%2Bb2?arch=amd64&distro=debian-12"
    assert sorted(licences(tool)) == ["GPL-2+", "MIT"] and "licenses" not in found["deb:libc6:amd64@2.36-9"]
    assert found["deb:libgcc-s1:amd64@12.2.0-14"]["purl"].endswith("&upstream=gcc-12%4012.2.0-13")
    big = found["pypi:big-thing@1.0"]
    assert (big["name"], big["purl"]) == ("Big_Thing", "pkg:pypi/big-thing@1.0")
    assert licences(big) == ["MIT OR Apache-2.0"] and said(big, "python:installer") == ["pip"]
    record = dict(PACKAGES)[f"{SITE}/Big_Thing-1.0.dist-info/RECORD"]
    assert isinstance(record, bytes) and said(big, "python:record:sha256") == [hashlib.sha256(record).hexdigest()]
    assert [(each["name"], each["version"]) for each in big["components"]] == [("small", "0.9")]
    assert licences(found["pypi:plain@2"]) == ["BSD License"]
    assert "licenses" not in found["pypi:other@3.0+cpu"], "a whole text is no name"
    assert found["pypi:other@3.0+cpu"]["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]


def test_an_op_tells_its_compiler_and_its_bytes(tmp_path: Path) -> None:
    document = made(tmp_path, image(PACKAGES))
    (native,) = (part for ref, part in parts(document).items() if ref.startswith("op:"))
    assert (native["group"], native["name"], native["version"]) == ("deepspeed.ops", "cpu_adam", "0.19.8")
    assert said(native, "native:compiler") == [GCC] == said(document["metadata"]["component"], "native:compiler")
    assert native["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(op()).hexdigest()}]
    assert said(native, "native:isa") == ["x86-64-v3"] and said(native, "native:isa:extension") == ["AVX"]
    assert native["bom-ref"] in needs(document, "pypi:deepspeed@0.19.8")


def test_packages_are_found_wherever_they_were_installed(tmp_path: Path) -> None:
    metadata = b"Metadata-Version: 2.1\nName: each\nVersion: %d\n"
    places = (
        "usr/local/lib/python3.11/dist-packages/each-1.dist-info/METADATA",
        "root/.local/lib/python3.11/site-packages/each-2.dist-info/METADATA",
        "usr/lib/python3/site-packages/each-3-py3.11.egg/EGG-INFO/PKG-INFO",
        "opt/sources/each.egg-info/PKG-INFO",
        "opt/conda/lib/python3.11/site-packages/each-5.dist-info/METADATA",
    )
    built = "opt/DeepSpeed/deepspeed"
    document = made(tmp_path, image((
        *((place, metadata % number) for number, place in enumerate(places, 1)),
        (f"{built}.egg-info/PKG-INFO", b"Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.8\n"),
        (f"{built}/ops/adam/cpu_adam_op.so", op()),
    )))  # fmt: skip
    found = parts(document)
    assert {f"pypi:each@{number}" for number in range(1, 6)} <= found.keys()
    egg = found["pypi:each@3"]["evidence"]["occurrences"]
    assert [each["location"] for each in egg] == ["/usr/lib/python3/site-packages/each-3-py3.11.egg"]
    own = f"op:/{built}/ops/adam/cpu_adam_op.so"
    assert found[own]["version"] == "0.19.8"
    assert own in needs(document, "pypi:deepspeed@0.19.8")


def test_what_needs_what(tmp_path: Path) -> None:
    document = made(tmp_path, image(SYSTEM, PACKAGES))
    assert needs(document, "deb:tool:amd64@1:2.0-1+b2") == {"deb:libc6:amd64@2.36-9", "deb:libgcc-s1:amd64@12.2.0-14"}
    # An extra that somebody asks for counts, another one does not, nor what is for an older Python.
    assert needs(document, "pypi:big-thing@1.0") == {"pypi:plain@2"}
    assert needs(document, "pypi:plain@2") == {"pypi:deepspeed@0.19.8"}
    whole = document["metadata"]["component"]["bom-ref"]
    assert needs(document, whole) >= {"deb:tool:amd64@1:2.0-1+b2", "pypi:big-thing@1.0", "pypi:other@3.0+cpu"}
    assert not needs(document, whole) & {"pypi:plain@2", "deb:libc6:amd64@2.36-9"}


def test_an_overlay_shows_what_it_adds_and_hides_what_it_takes(tmp_path: Path) -> None:
    overlay: Files = (
        status(deb("libc6", "2.36-10"), deb("extra", "7")),
        *wheel("einops", "0.8"),
        *wheel("plain", "3"),
        (f"{SITE}/.wh.plain-2.dist-info", b""),
        (f"{SITE}/deepspeed/ops/adam/.wh.cpu_adam_op.cpython-311-x86_64-linux-gnu.so", b""),
        ("var/lib/dpkg/status.d/base", deb("base-files", "12.4").encode()),
        ("var/lib/dpkg/status.d/base.md5sums", b"0 x\n"),
    )
    before = set(parts(made(tmp_path, image(SYSTEM, PACKAGES))))
    after = set(parts(made(tmp_path, image(SYSTEM, PACKAGES, overlay))))
    assert after - before == {
        "deb:libc6:amd64@2.36-10", "deb:extra:amd64@7", "deb:base-files:amd64@12.4", "pypi:einops@0.8", "pypi:plain@3",
    }  # fmt: skip
    assert {ref.partition("@")[0] for ref in before - after if not ref.startswith("op:")} == {
        "deb:libc6:amd64", "deb:libc6:i386", "deb:libgcc-s1:amd64", "deb:tool:amd64", "pypi:plain",
    }  # fmt: skip
    assert not [ref for ref in after if ref.startswith("op:")]


def test_the_same_image_gives_the_same_bytes(tmp_path: Path) -> None:
    saved = (image(SYSTEM, PACKAGES), image(SYSTEM, PACKAGES, oci=True))
    first, second = (sbom.dump(sbom.read(stream, tmp_path)) for stream in saved)
    assert first == second, "whatever saved it"
    document = made(tmp_path, image(SYSTEM))
    digest = document["metadata"]["component"]["version"]
    assert document["serialNumber"] == f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'oci:{digest}')}"
    assert document["metadata"]["timestamp"] == "2026-03-04T03:06:07+00:00"
    other = made(tmp_path, image(SYSTEM, created="2026-03-04T05:06:08Z"))
    assert other["serialNumber"] != document["serialNumber"]


@pytest.mark.parametrize("created", ["", "yesterday", "9999-99-99T99:99:99Z", "0001-01-01T00:00:00+14:00", 7, None])
def test_an_image_that_does_not_say_when_it_was_made_has_no_time(tmp_path: Path, created: object) -> None:
    assert "timestamp" not in made(tmp_path, image(SYSTEM, created=created))["metadata"]


def test_packages_of_the_rpm_world(tmp_path: Path) -> None:
    says = {1014: "GPLv3+ and LGPLv2+", 1044: "gcc-8.5-1.el8.src.rpm", 1011: "Rocky"}
    headers = (package("glibc", "2.28", files={"/lib64/libc.so": b"c"}), package("gcc-c++", "8.5", change=says),
               package("glibc", "2.28", arch="i686"), package("glibc", "2.28", arch="i686"))  # fmt: skip
    root: Files = (("etc/os-release", b"ID=rocky\nVERSION_ID=8.9\n"),
                   ("var/lib/rpm/rpmdb.sqlite", sqlite_file(tmp_path, headers)))  # fmt: skip
    found = parts(made(tmp_path, image(root)))
    purls = {part["purl"] for part in found.values() if "purl" in part}
    assert len(purls) == 3 and len(found) == 4
    (compiler,) = (part for part in found.values() if part["name"] == "gcc-c++")
    purl = compiler["purl"]
    assert purl.startswith("pkg:rpm/rocky/gcc-c%2B%2B@8.5-") and "distro=rocky-8.9" in purl
    assert "upstream=gcc-8.5-1.el8.src.rpm" in purl and compiler["publisher"] == "Rocky"
    assert compiler["licenses"] == [{"license": {"name": "GPLv3+ and LGPLv2+"}}]


HOSTILE: list[tuple[str, Sequence[Files]]] = [
    ("nothing in it", [()]),
    ("no text", [(("var/lib/dpkg/status", b"Package: \xff\xfe\nStatus: x installed\nVersion: \x00\x1b\n"),)]),
    ("names that are no UTF-8", [((f"{SITE}/b\udcff-1.dist-info/METADATA", b"Name: b\xff\nVersion: 1\n"),)]),
    ("a name of slashes", [(status(deb("///", "1")), ("etc/os-release", b"ID=a/b c\n"))]),
    ("versions without end", [(status(deb("a", "1" * 5000)), *wheel("w", "2" * 5000))]),
    ("no name or version", [((f"{SITE}/x.dist-info/METADATA", b""), (f"{SITE}/y.egg-info/PKG-INFO", b"Name: y\n"))]),
    ("the same twice", [(status(deb("a", "1"), deb("a", "1")), *wheel("w", "1"), *wheel("W", "1"))]),
    ("needs in a circle", [(status(deb("a", "1", "Depends: b"), deb("b", "1", "Depends: a, b")),
                            *wheel("w", "1", "Requires-Dist: w[x]", "Requires-Dist: w[y]; extra == 'x'"))]),
    ("licences of all kinds", [(*wheel("w", "1", "License-Expression: (((MIT"), *wheel("v", "1", "License: GPL or so"),
                                *wheel("u", "1", "Classifier: License :: OSI Approved :: MIT License",
                                       "Classifier: License :: Public Domain"),
                                *wheel("t", "1", url=b"[" * 9999), *wheel("s", "1", url=b"{}"))]),
]  # fmt: skip


@pytest.mark.parametrize("layers", [case[1] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_any_image_gives_a_valid_document(tmp_path: Path, layers: Sequence[Files]) -> None:
    made(tmp_path, image(*layers))


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ((("var/lib/rpm/Packages", b"no database"),), "/var/lib/rpm/Packages: "),
        (((f"{SITE}/deepspeed/ops/x/y_op.so", b"no ELF"),), f"/{SITE}/deepspeed/ops/x/y_op.so: "),
        (((f"{SITE}/x.dist-info/METADATA", b""),), "states no version"),
    ],
)
def test_what_cannot_be_read_is_said_in_the_document(tmp_path: Path, files: Files, told: str) -> None:
    document = made(tmp_path, image(files))
    (problem,) = said(document, "incomplete")
    assert told in problem


class Engine:
    """It has one image, and counts how often that was asked for."""

    def __init__(self) -> None:
        self.saved = 0

    @contextlib.contextmanager
    def save(self, ref: str) -> Iterator[io.BytesIO]:
        self.saved += 1
        yield image(SYSTEM, PACKAGES)


def test_an_image_is_read_once_and_again_where_the_file_was_damaged() -> None:
    engine, told = Engine(), list[Event]()
    bench = Workbench(sink=told.append)
    bench.__dict__["engine"] = engine
    info = ImageInfo(id="sha256:" + "1" * 64, diff_ids=(), labels=(), env=(), architecture="amd64", os="linux", size=1,
                     created="", repo_tags=(), repo_digests=())  # fmt: skip
    assert evidence.digest_of(info.id) is None
    first = materials.bill(bench, "a:1", info)
    assert not first.cached and any(isinstance(event, PhaseStarted) and event.phase == "sbom" for event in told)
    assert first.counts == {"deb": 4, "op": 1, "os": 1, "pypi": 5} and first.problems == ()
    told.clear()
    again = materials.bill(bench, "a:1", info)
    assert again.cached and again.data == first.data and engine.saved == 1 and not told
    (kept,) = (bench.cache / "sbom").iterdir()
    kept.write_bytes(first.data[:100])
    assert materials.bill(bench, "a:1", info).data == first.data and engine.saved == 2
    assert kept.read_bytes() == first.data


def test_every_property_is_explained(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/sbom.md").read_text()
    database = sqlite_file(tmp_path, (package("glibc", "2.28", files={}, arch="x86_64"),))
    root: Files = (*PACKAGES, ("var/lib/rpm/rpmdb.sqlite", database), ("var/lib/rpm/Packages", b"no database"),
                   (f"{SITE}/x.dist-info/METADATA", b""))  # fmt: skip
    config = {"Labels": {"io.envbuild.target": "t", "io.envbuild.environment": "cpu"}}
    documents = [made(tmp_path, image(*layers, config=config)) for layers in ((SYSTEM,), (root,))]
    names = set(re.findall(r'"envbuild:([^"]+)"', json.dumps(documents)))
    assert {"target", "incomplete", "native:isa", "rpm:architecture"} <= names
    assert {name for name in names if f"`{name}`" not in text} == set()
    refs = {part["bom-ref"].partition(":")[0] for document in documents for part in document["components"]}
    assert refs == {"os", "deb", "rpm", "pypi", "op"} and all(f"`{ref}:`" in text for ref in refs)
