"""What is read of a repository before anything is solved: packed files, indexes, keys, modules; and what is cut out."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from envbuild.bundle.rpms import armor, cut, filelists, modules, repomd
from envbuild.bundle.rpms.addresses import joined
from envbuild.bundle.rpms.transport import opened
from envbuild.bundle.rpms.unpack import harmless, unpack
from envbuild.errors import BundleError, EnvbuildError, InputError

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "plain": bytes,
}
PLAIN = b"<metadata>" + os.urandom(300_000) + bytes(3_000_000) + b"</metadata>"


def sums(data: bytes) -> tuple[str, str]:
    return "sha256", hashlib.sha256(data).hexdigest()


def unpacked(folder: Path, packed: bytes, *, limit: int = 1 << 26) -> bytes:
    file = folder / "packed"
    file.write_bytes(packed)
    unpack(file, folder / "plain", checksum=sums(packed), limit=limit, sync=True)
    return (folder / "plain").read_bytes()


@pytest.mark.parametrize("form", PACKERS)
def test_every_packing_comes_out_whole_and_in_several_streams(tmp_path: Path, form: str) -> None:
    pack = PACKERS[form]
    assert unpacked(tmp_path, pack(PLAIN)) == PLAIN
    half = len(PLAIN) // 2
    assert unpacked(tmp_path, pack(PLAIN[:half]) + pack(PLAIN[half:])) == PLAIN


@pytest.mark.parametrize("form", PACKERS)
def test_what_is_cut_short_changed_or_a_bomb_leaves_nothing(tmp_path: Path, form: str) -> None:
    packed = PACKERS[form](PLAIN)
    # The reader of zstd does not tell an end from a break; the XML that lacks its end does.
    if form not in ("plain", "zstd"):
        with pytest.raises(BundleError, match=r"in the middle|cannot be unpacked"):
            unpacked(tmp_path, packed[: len(packed) - 40])
    with pytest.raises(BundleError, match="more than 1000000 bytes"):
        unpacked(tmp_path, packed, limit=1_000_000)
    (tmp_path / "packed").write_bytes(packed)
    with pytest.raises(BundleError, match="was expected"):
        unpack(tmp_path / "packed", tmp_path / "plain", checksum=sums(b"x"), limit=1 << 26, sync=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packed"]


def test_a_small_file_that_stands_for_gigabytes_is_left_early(tmp_path: Path) -> None:
    """The limit is on what comes out, not on what was read: a piece at a time."""
    packed = zstandard.ZstdCompressor().compress(bytes(64 << 20)) * 64
    with pytest.raises(BundleError, match="more than 1048576 bytes"):
        unpacked(tmp_path, packed, limit=1 << 20)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><metadata/>', "declares a document type"),
        (b"<!-- " + b"x" * 70_000 + b" --><!DOCTYPE a><metadata/>", "begins with something else"),
        ('<?xml version="1.0" encoding="UTF-16"?><metadata/>'.encode("utf-16"), "begins with something else"),
        (b'<?xml version="1.0" encoding="UTF-7"?><metadata/>', "its encoding is UTF-7"),
        (b"", "begins with something else"),
    ],
)
def test_xml_that_declares_something_is_no_metadata(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "a").write_bytes(text)
    with pytest.raises(BundleError, match=said):
        harmless(tmp_path / "a")
    (tmp_path / "b").write_bytes(b'\xef\xbb\xbf<?xml version="1.0" encoding="UTF-8"?>\n<metadata/>')
    harmless(tmp_path / "b")


SUM = "a" * 64
DATA = """<data type="{type}"><checksum type="{sum}">{digest}</checksum><location href="{href}"/>
<timestamp>17.5</timestamp><size>10</size></data>"""


def index(**changes: str) -> bytes:
    values = {"type": "primary", "sum": "sha256", "digest": SUM, "href": "repodata/p.xml.gz", **changes}
    return (
        '<repomd xmlns="http://linux.duke.edu/metadata/repo"><revision>8\n.8</revision>' + DATA.format(**values)
        + "</repomd>"
    ).encode()  # fmt: skip


def test_an_index_says_what_is_needed_and_no_more() -> None:
    found = repomd.parse(index(), "here")
    entry = found.entries["primary"]
    assert (entry.location, entry.checksum, entry.size, entry.opened_as) == (
        "repodata/p.xml.gz", ("sha256", SUM), 10, None
    )  # fmt: skip
    assert found.timestamp == 17 and "\n" not in found.revision


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (index(type="primary_zck"), "names no primary"),
        (index(sum="sha"), "no SHA-256"),
        (index(sum="md5", digest="a" * 32), "no SHA-256"),
        (index(digest="../../x"), "no SHA-256"),
        (b"<metadata/>", "not a repomd.xml"),
        (b"", "no element found"),
        (b"\x00\xff" * 99, "not the XML"),
        (b"<repomd>" + b"<a>" * 100, "nested too deeply"),
        (b'<!DOCTYPE r [<!ENTITY a "b">]><repomd>&a;</repomd>', "declares a document type"),
    ],
)
def test_an_index_that_says_too_little_is_none(data: bytes, said: str) -> None:
    with pytest.raises(BundleError, match=said):
        repomd.parse(data, "here")


@pytest.mark.parametrize(
    "location",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "http://elsewhere/x",
        "file:///etc/passwd",
        "a\\..\\b",
        "a\nb",
        "a\x7fb",
        "%2e%2e/x",
        "a/%2E./b",
    ],
)
def test_a_location_never_leads_out_of_its_repository(location: str) -> None:
    with pytest.raises(BundleError, match="not below it"):
        joined("https://user:canary@mirror.example/os/", location)
    with pytest.raises(BundleError) as failed:
        joined("https://user:canary@mirror.example/os/", location)
    assert "canary" not in failed.value.message
    assert joined("https://m/os/", "Packages/a+b c#d?e-1.rpm") == "https://m/os/Packages/a+b%20c%23d%3Fe-1.rpm"


def test_only_files_are_read(tmp_path: Path) -> None:
    """A pipe would wait for ever, and a device never ends."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError):
            opened(path)


def test_metalinks_and_lists_of_mirrors() -> None:
    link = f"""<metalink xmlns="http://www.metalinker.org/"><files><file name="repomd.xml"><verification>
    <hash type="md5">{"b" * 32}</hash><hash type="sha256">{SUM.upper()}</hash></verification><resources>
    <url protocol="http" preference="100">http://one.example/os/repodata/repomd.xml</url>
    <url protocol="https" preference="1">https://two.example/os/repodata/repomd.xml</url>
    <url protocol="rsync" preference="9">rsync://three.example/os/repodata/repomd.xml</url>
    <url protocol="https" preference="9">https://four.example/elsewhere</url></resources></file></files></metalink>"""
    found = repomd.metalink(link.encode(), "here")
    assert found.mirrors == ("https://two.example/os/", "http://one.example/os/")
    assert found.sums == {("sha256", SUM)}
    with pytest.raises(BundleError, match="not a metalink"):
        repomd.metalink(link.replace("sha256", "sha1").encode(), "here")
    listed = b"# comment\nhttps://a.example/os\n\nftp://b.example/\nhttp://c.example/os/\n"
    assert repomd.mirrorlist(listed, "here") == ("https://a.example/os/", "http://c.example/os/")
    with pytest.raises(BundleError, match="without any mirror"):
        repomd.mirrorlist(b"<html>captive portal</html>", "here")


@pytest.mark.parametrize(
    ("entry", "needed"),
    [
        ('name="/usr/bin/tool"', False), ('name="/etc/x"', False), ('name="/usr/lib/sendmail"', False),
        ('name="a"', False),
        ('name="(a if b)"', False), ('name="(/usr/sbin/x or /bin/y)"', False), ('name="/usr/share/x"', True),
        ('name="(a or /usr/libexec/x)"', True), ('name="(/opt/x if a)"', True), ('name="/usr/lib/sendmail2"', True),
    ],
)  # fmt: skip
def test_the_file_lists_are_wanted_for_files_that_primary_metadata_has_not(
    tmp_path: Path, entry: str, needed: bool
) -> None:
    path = tmp_path / "primary.xml"
    path.write_text(f"<metadata><package><rpm:requires><rpm:entry {entry}/></rpm:requires></package></metadata>")
    assert bool(filelists.asked(path)) is needed


def test_of_the_file_lists_only_what_is_asked_for_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "primary.xml"
    entries = "".join(
        f'<rpm:entry name="{name}"/>' for name in ("/opt/a&amp;b", "(x if /srv/&quot;q&quot;)", "/no/one")
    )
    path.write_text(f"<metadata><package>{entries}</package></metadata>")
    asked = filelists.asked(path)
    assert asked == {"/opt/a&b", '/srv/"q"', "/no/one"}
    lists = tmp_path / "filelists.xml"
    lists.write_text(
        '<filelists><package pkgid="one" name="a" arch="noarch"><version/><file>/opt/a&amp;b</file><file>/opt/c</file>'
        '</package><package pkgid="two"><file type="dir">/srv/"q"</file></package><package pkgid="three"/></filelists>'
    )
    filelists.reduce(lists, asked, tmp_path / "less.xml")
    text = (tmp_path / "less.xml").read_text()
    assert text.count("<package") == 2 and text.count("<file>") == 2 and "/opt/c" not in text
    assert '<package pkgid="one" name="a" arch="noarch"><file>/opt/a&amp;b</file></package>' in text


def test_damaged_keys_are_told_apart_from_none(tmp_path: Path) -> None:
    begin, end = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n", b"\n-----END PGP PUBLIC KEY BLOCK-----\n"
    for data in (b"", b"-----BEGIN PUBLIC KEY-----\n", begin + b"mQ" + end[:20]):
        with pytest.raises(InputError, match="no public key in ASCII armor"):
            armor.keys(data, "here")
    for body in (b"mQEN", b"AAAA", b"mA==", b"=", b"x" * 41, b"//////////8="):
        with pytest.raises(InputError, match=r"damaged OpenPGP key|no public key"):
            armor.keys(begin + body + end, "here")


def document(
    name: str, stream: str, *, requires: str = "{}", version: int = 1, artifacts: str = "", more: str = ""
) -> str:
    return (
        f"---\ndocument: modulemd\nversion: 2\ndata:\n  name: {name}\n  stream: {stream}\n  version: {version}\n"
        f"  context: c\n  arch: x86_64\n  dependencies:\n  - requires: {requires}\n"
        f"  artifacts: {{rpms: [{artifacts}]}}\n"
        f"{more}...\n"
    )


def active(folder: Path, text: str, **streams: str) -> modules.Active:
    path = folder / "modules.yaml"
    path.write_text(text)
    return modules.active(modules.read([path]), streams, arch="x86_64", platform="el8")


def test_a_stream_is_a_text_even_if_it_looks_like_a_number(tmp_path: Path) -> None:
    text = document("go", "1.10", artifacts="go-0:1.10-1.x86_64") + document("go", "1.1", artifacts="go-0:1.1-1.x86_64")
    found = active(tmp_path, text, go="1.10")
    assert found.filter.active == {"go-0:1.10-1.x86_64"} and found.filter.inactive == {"go-0:1.1-1.x86_64"}


def test_streams_need_one_another_and_the_platform(tmp_path: Path) -> None:
    text = (
        document("a", "1", requires="{platform: [el8], b: ['2']}", artifacts="a-0:1-1.x86_64, a-0:1-1.src")
        + document("b", "2", artifacts="b-0:2-1.noarch", more="  demodularized: {rpms: [b-doc]}\n")
        + document("b", "3", artifacts="b-0:3-1.noarch")
        + document("c", "1", requires="{platform: [el9]}", artifacts="c-0:1-1.noarch")
        + document("d", "1", requires="{b: [-2]}", artifacts="d-0:1-1.noarch")
    )
    found = active(tmp_path, text, a="1")
    assert [(each.name, each.stream) for each in found.documents] == [("a", "1"), ("b", "2")]
    assert found.filter.names == {"a", "b"} and not found.problems
    assert active(tmp_path, text, c="1").problems == ("the stream c:1 needs what is not there",)
    assert active(tmp_path, text, b="2", d="1").problems == ("the stream d:1 needs what is not there",)
    assert [(each.name, each.stream) for each in active(tmp_path, text, d="1").documents] == [("b", "3"), ("d", "1")]


def test_a_default_stream_counts_unless_another_one_is_enabled(tmp_path: Path) -> None:
    text = (
        document("n", "1", artifacts="n-0:1-1.noarch") + document("n", "2", artifacts="n-0:2-1.noarch")
        + "---\ndocument: modulemd-defaults\nversion: 1\ndata: {module: n, stream: '1', profiles: {}}\n...\n"
    )  # fmt: skip
    assert active(tmp_path, text).filter.active == {"n-0:1-1.noarch"}
    assert active(tmp_path, text, n="2").filter.active == {"n-0:2-1.noarch"}


@pytest.mark.parametrize(
    "text",
    ["---\nmodulemd: [", "---\nmodulemd: " + "[" * 5000, "---\nmodulemd: &a [*a]\n",
     "---\nmodulemd: !!python/object:os.x {}",
     "modulemd", "---\ndocument: modulemd\ndata: {name: [], stream: {}, version: x}\n", "\0"],
)  # fmt: skip
def test_modules_that_make_no_sense_are_refused_or_passed_over(tmp_path: Path, text: str) -> None:
    try:
        assert active(tmp_path, text).documents == ()
    except BundleError as error:
        assert "cannot be read" in error.message


PACKAGE = """<package type="rpm"><name>{name}</name><arch>noarch</arch>
<checksum type="sha256" pkgid="YES">{digest}</checksum>
<packager>&lt;a&amp;b&gt; "q"</packager><!-- <package> --><location href="x/{name}.rpm" xml:base="http://elsewhere/"/>
<format><r:license>MIT</r:license><evil:tag xmlns:evil="urn:evil">x</evil:tag><r:requires><r:entry name="a&#10;b"/>
</r:requires></format></package>
"""


def primary(*digests: str) -> str:
    entries = "".join(PACKAGE.format(name=f"p{number}", digest=digest) for number, digest in enumerate(digests))
    head = f'<?xml version="1.0" encoding="UTF-8"?>\n<metadata xmlns="{cut.COMMON}" xmlns:r="{cut.RPM}" packages="9">\n'
    return f"{head}{entries}</metadata>\n"


def test_entries_are_cut_out_and_written_in_one_form(tmp_path: Path) -> None:
    one, two, three = (letter * 64 for letter in "abc")
    path = tmp_path / "primary.xml"
    path.write_text(primary(one, two, three, two))
    found = dict(cut.cut(path, {two, three}, cut.located({two: "Packages/two.rpm", three: "Packages/three.rpm"})))
    assert set(found) == {two, three}
    text = found[two].decode()
    assert '<location href="Packages/two.rpm"/>' in text and "elsewhere" not in text and "evil" not in text
    assert "<rpm:license>MIT</rpm:license>" in text and '<rpm:entry name="a&#10;b"/>' in text
    assert '<packager>&lt;a&amp;b&gt; "q"</packager>' in text and "<!--" not in text


@pytest.mark.parametrize("damage", ["cut", "unclosed", "foreign", "empty"])
def test_metadata_that_cannot_be_cut_is_refused(tmp_path: Path, damage: str) -> None:
    text = primary("a" * 64)
    path = tmp_path / "primary.xml"
    changed = {
        "cut": text[: text.index("</package>")], "unclosed": text.replace("</name>", "", 1), "foreign": "<other/>",
        "empty": "x",
    }  # fmt: skip
    path.write_text(changed[damage])
    with pytest.raises(EnvbuildError):
        list(cut.cut(path, {"a" * 64}, cut.unchanged))
