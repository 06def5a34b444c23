"""Bundles and repositories that were made to hang, to fill memory and disk, or to end in a traceback."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.bundle import image, target
from envbuild.bundle.manifest import Image
from envbuild.bundle.rpms import armor, cut, filelists, headers, modules
from envbuild.bundle.rpms.objections import of_package
from envbuild.bundle.rpms.transport import Wanted, Way
from envbuild.bundle.rpms.types import Nevra, Package, Source
from envbuild.errors import BundleError, InputError
from envbuild.site.sections import NetworkSection

DIGEST = "a" * 64


def primary(folder: Path, entry: str) -> Path:
    path = folder / "primary.xml"
    own = f'<checksum type="sha256" pkgid="YES">{DIGEST}</checksum>'
    path.write_text(f'<metadata xmlns="{cut.COMMON}" packages="1"><package>{entry}{own}</package></metadata>')
    return path


@pytest.mark.parametrize(
    "entry",
    [
        "<a>" * 20_000 + "</a>" * 20_000,
        f'<checksum type="sha256" pkgid="NO">{"b" * 64}</checksum><location href="x"/>',
    ],
    ids=["nested", "two-sums"],
)
def test_an_entry_that_is_built_to_break_the_writer_is_refused(tmp_path: Path, entry: str) -> None:
    with pytest.raises(BundleError, match=r"primary\.xml"):
        list(cut.cut(primary(tmp_path, entry), {DIGEST}, cut.located({DIGEST: "Packages/x.rpm"})))


def test_a_yaml_bomb_is_not_unfolded(tmp_path: Path) -> None:
    """Nine lines that stand for a text of gigabytes, where the name of a stream belongs."""
    lines = ["---", "document: modulemd", "version: 2", "x:", "  a0: &a0 [aaaaaaaaaa]"]
    lines += [f"  a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 6)]
    lines += ["data:", "  name: n", "  stream: '1'", "  version: 1", "  dependencies:", "  - requires: {platform: *a5}"]
    (tmp_path / "modules.yaml").write_text("\n".join(lines))
    (document,) = modules.read([tmp_path / "modules.yaml"]).documents
    assert max(map(len, document.requires[0]["platform"]), default=0) < 1000


def test_a_key_of_blank_lines_is_read_to_its_end_once() -> None:
    """Quadratic, this would take hours."""
    with pytest.raises(InputError, match="no public key"):
        armor.keys(b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n" + b"\n" * (armor.LARGEST - 100), "it")


def test_names_out_of_metadata_are_told_without_their_escape_sequences() -> None:
    nevra = Nevra(name="a\x9b2J", epoch="0", version="1\x1b[2J", release="1", arch="noarch")
    package = Package(
        nevra=nevra, repository="r", checksum=("md\x1b5", ""), location=("a.rpm", None), bytes=1, installed_bytes=1
    )  # fmt: skip
    found = list(of_package(package))
    assert {each.rule for each in found} == {"rpm.checksum", "rpm.name"}
    assert all(f"{each.subject}{each.message}".isprintable() for each in found)
    lines = ["envbuild-target\t1", "name\tx\x1b[2J", "os_id\trocky", "os_version\t8", "arch\tx86_64"]
    with pytest.raises(InputError, match="not understood: 'name'"):
        target.parse("\n".join([*lines, f"end\t{len(lines)}\n"]).encode(), "it", "host")


@pytest.mark.parametrize(
    ("signatures", "header"),
    [((33, 0), (1, 1)), ((1, 1 << 30), (1, 1)), ((1, 8), (0xFFFFFFF, 8)), ((1, 8), (1, 0xFFFFFFF0)), ((1, 8), (1, 99))],
)
def test_a_package_whose_headers_want_all_the_memory_is_refused(
    tmp_path: Path, signatures: tuple[int, int], header: tuple[int, int]
) -> None:
    """rpm-rs would end the whole process."""

    def intro(count: int, length: int) -> bytes:
        return b"\x8e\xad\xe8\x01" + bytes(4) + count.to_bytes(4, "big") + length.to_bytes(4, "big")

    path = tmp_path / "x.rpm"
    path.write_bytes(bytes(96) + intro(*signatures) + bytes(24) + intro(*header) + bytes(64))
    with pytest.raises(BundleError, match="a header of"):
        headers.hold(path)
    path.write_bytes(bytes(96) + intro(1, 8) + bytes(24) + intro(1, 48) + bytes(64))
    headers.hold(path)


def test_file_lists_that_are_made_to_fill_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filelists, "_MOST", 100)
    path = tmp_path / "x.xml"
    head = f'<filelists xmlns="{cut.FILELISTS}">'
    # One package that has a file a million times has it once; a piece without any file is read a piece at a time.
    path.write_text(f'{head}<package pkgid="a"><file>/usr/x</file>' + ">/usr/x<" * 1_000_000 + "</package></filelists>")
    seen = []
    real = filelists._FILE

    class Watched:
        def findall(self, data: Any, start: int, end: int) -> list[bytes]:
            seen.append(end - start)
            return real.findall(data, start, end)

    monkeypatch.setattr(filelists, "_FILE", Watched())
    filelists.reduce(path, ["/usr/x"], tmp_path / "out.xml")
    assert (tmp_path / "out.xml").read_text().count("/usr/x") == 1 and max(seen) < 1 << 21
    path.write_text(head + "".join(f'<package pkgid="{n}"><file>/usr/x</file></package>' for n in range(200)))
    with pytest.raises(BundleError, match="more than 100"):
        filelists.reduce(path, ["/usr/x"], tmp_path / "out.xml")
    path.write_text("".join(f'<rpm:entry name="/usr/x{n}"/>' for n in range(200)))
    with pytest.raises(BundleError, match="more than 100"):
        filelists.asked(path)


class EndlessServer:
    """Stands for a server that never ends an answer."""

    def __init__(self) -> None:
        self.sent = 0

    @contextlib.contextmanager
    def rest(self, url: str, start: int, *, limit: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        yield 0, self._blocks(limit)

    def _blocks(self, limit: int) -> Iterator[bytes]:
        while self.sent < limit:
            assert self.sent < 1 << 26, "nothing stops it"
            self.sent += 1 << 20
            yield bytes(1 << 20)


def test_a_size_that_metadata_claims_is_no_leave_to_fill_the_disk(tmp_path: Path) -> None:
    way = Way(Source(id="hostile"), NetworkSection())
    server = way._others = EndlessServer()  # type: ignore[assignment]
    wanted = Wanted(name="its primary metadata", checksum=("sha256", DIGEST), size=10**15, limit=1 << 22)
    with pytest.raises(BundleError, match="its primary metadata: 1000000000000000 bytes"):
        way.fetch(["https://hostile.invalid/x"], tmp_path / "x", wanted)
    assert server.sent == 0 and not (tmp_path / "x.part").exists()


def test_a_header_of_gigabytes_in_an_archive_is_not_read_into_memory() -> None:
    """The names of a member may be in a member of their own, of any size that it says."""
    zero = f"sha256:{'0' * 64}"
    said = Image(path="images/x", reference="a:b", manifest_digest=zero, config_digest=zero, diff_ids=(zero,))
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
        header = tarfile.TarInfo("x")
        header.type, header.size = kind, 8 << 30

        class Asked(io.BytesIO):
            def read(self, size: int | None = -1, /) -> bytes:
                assert size is not None and size < 1 << 24, "read whole"
                return super().read(size)

        (reason,) = image.contradictions(Asked(header.tobuf(tarfile.GNU_FORMAT) + bytes(10240)), said)
        assert "no archive of an image" in reason and "header" in reason
