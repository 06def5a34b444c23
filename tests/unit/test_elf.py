"""Native code as files: damaged ones, the loader's rules on made-up roots. The real loader is asked in integration."""

from __future__ import annotations

import importlib.util
import io
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.collector.elf.strings import StringAbi
from envbuild.elf import Conditions, ElfError, ElfFile, FolderRoot, Need, NotElf, Process, load, read
from envbuild.elf.cache import parse as parse_cache
from envbuild.elf.versions import by_family, highest, parse
from native_made import EXTRA, NEEDED, RPATH, RUNPATH, VERDEF, VERNEED, cache_of, made


def _sample() -> bytes:
    """A real ELF file of this machine, the smallest of some."""
    specs = [importlib.util.find_spec(name) for name in ("_json", "_bisect", "_struct", "_heapq")]
    origins = [spec.origin for spec in specs if spec is not None and spec.origin and spec.origin.endswith(".so")]
    return min(map(Path, (*origins, sys.executable, "/bin/sh")), key=lambda path: path.stat().st_size).read_bytes()


SAMPLE = _sample()


def test_versions_are_compared_as_numbers() -> None:
    versions = ["GLIBCXX_3.4.9", "GLIBCXX_3.4.29", "GLIBCXX_3.4", "GLIBC_2.36", "CXXABI_FLOAT128", "GLIBC_PRIVATE"]
    assert highest(versions, "GLIBCXX") == "GLIBCXX_3.4.29"
    assert highest(versions, "CXXABI") is None
    assert by_family(versions) == {"GLIBC": "GLIBC_2.36", "GLIBCXX": "GLIBCXX_3.4.29"}
    assert parse("CXXABI_TM_1") == ("CXXABI_TM", (1,))
    assert [
        parse(text) for text in ("GLIBC_ABI_DT_RELR", "libcudart.so.12", "OPENSSL_1_1_0", "X_" + "9" * 5000, "")
    ] == [None] * 5


def test_what_is_no_elf_file_is_told_apart_from_a_damaged_one(tmp_path: Path) -> None:
    for data in (b"", b"\x7fEL", b"INPUT(libc.so.6)\n", b"!<arch>\n"):
        with pytest.raises(NotElf, match=r"x\.so is not"):
            read(io.BytesIO(data), "x.so")
    for data in (SAMPLE[:20], SAMPLE[:100], SAMPLE[:4] + b"\xff" * 60):
        with pytest.raises(ElfError, match=r"x\.so is a damaged ELF file") as caught:
            read(io.BytesIO(data), "x.so")
        assert not isinstance(caught.value, NotElf)
    with pytest.raises(ElfError, match="cannot be read"):
        read(tmp_path, "folder")


def test_a_stripped_or_damaged_section_table_hides_nothing() -> None:
    whole = read(io.BytesIO(SAMPLE), "x")
    assert whole.requires
    assert whole.needed
    for table in (bytes(8), b"\xff" * 7 + b"\x00", struct.pack("<Q", 8)):
        data = SAMPLE[:0x28] + table + SAMPLE[0x30:]
        assert replace(read(io.BytesIO(data), "x"), comment=()) == replace(whole, comment=())


class _Counting(io.BytesIO):
    """A file that knows how much was read of it."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


@settings(deadline=None, max_examples=300)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(SAMPLE) - 1) | st.integers(0, 1200), st.integers(0, 255)), max_size=6
    ),
    length=st.just(len(SAMPLE)) | st.integers(0, len(SAMPLE)),
)
def test_damage_anywhere_ends_in_an_answer_or_in_the_one_error(changes: list[tuple[int, int]], length: int) -> None:
    data = bytearray(SAMPLE)
    for offset, value in changes:
        data[offset] = value
    stream = _Counting(bytes(data[:length]))
    try:
        assert isinstance(read(stream, "x"), ElfFile)
    except ElfError as error:
        assert "x" in error.message
    assert stream.count < 16 << 20


def test_a_file_is_read_by_addresses_as_the_loader_does() -> None:
    data = made((NEEDED, 1), (RPATH, 1), (RPATH, 7), (RUNPATH, 0), (NEEDED, 3), strings=b"\0liba\0\0/x::/y\0")
    elf = read(io.BytesIO(data), "x")
    assert (elf.needed, elf.rpath, elf.runpath, elf.soname) == (("liba", "ba"), ("/x", "", "/y"), (), None)


_AUX = struct.pack("<IHHII", 0, 0, 2, 0, 16)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (made((NEEDED, 1), strtab=False), "no string table"),
        (made((NEEDED, 1 << 50)), "nothing is mapped"),
        (made((NEEDED, 0), strings=b"a" * 90_000), "a name of more than"),
        (made(*[(NEEDED, 0)] * 9000), "no end"),
        (made(*[(NEEDED, 0)] * 8000, strings=b"a" * 2000 + b"\0"), "bytes of names"),
        (made((VERNEED, EXTRA), extra=struct.pack("<HHIII", 2, 1, 0, 16, 0)), "version 2 of the version records"),
        (made((VERNEED, EXTRA), extra=struct.pack("<HHIII", 1, 1, 0, 16, 0) + _AUX * 17_000), "16384 symbol versions"),
        (made((VERDEF, EXTRA), extra=struct.pack("<HHHHIII", 1, 0, 1, 1, 0, 1 << 31, 0)), "nothing is mapped"),
    ],
    ids=range(8),
)
def test_files_that_ask_too_much_are_damaged(data: bytes, why: str) -> None:
    with pytest.raises(ElfError, match=why):
        read(io.BytesIO(data), "x")


OLD = [b"_ZN3c105ErrorC1ENS_14SourceLocationESs", b"_ZNSs4_Rep20_S_empty_rep_storageE"]
NEW = [b"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"]
# Of libstdc++ itself, as devtoolset links it statically into libraries of either ABI.
STATIC = [
    b"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE6appendEPKc",
    b"_ZTv0_n24_NSt7__cxx1118basic_stringstreamD0Ev",
    b"_ZGTtNSt11logic_errorC1ERKNSt7__cxx1112basic_stringIcE",
    b"_ZNSsC1ERKSs",
]
NEITHER = [b"malloc", b"_ZN3foo9ClassSsumEv", b"_ZTSs", b"_Z1fILi3EE2Ssv", b""]


@pytest.mark.parametrize(
    ("names", "cxx11"),
    [
        (NEW, True), (OLD, False), (NEITHER, None), (NEW + NEITHER, True), (OLD + NEITHER, False),
        (NEW + STATIC, True), (OLD + STATIC, False), (STATIC, None), (STATIC[:1], True), (STATIC[3:], False),
        (NEW + OLD, None),
    ],
)  # fmt: skip
def test_the_string_abi_is_that_of_the_functions_that_are_not_libstdcxxs(
    names: list[bytes], cxx11: bool | None
) -> None:
    table = b"\0" + b"\0".join(names) + b"\0"
    for size in (1, 7, 64, len(table)):
        abi = StringAbi()
        for start in range(0, len(table), size):
            abi.feed(table[start : start + size])
        assert abi.cxx11 is cxx11


NAMED = 1 << 62
CACHE = cache_of(
    ("liba.so.1", "/v3/liba.so.1", 0x303, NAMED), ("liba.so.1", "/32/liba.so.1", 0x3, 0),
    ("liba.so.1", "/lib/liba.so.1", 0x303, 0), ("libb.so.1", "/arm/libb.so.1", 0xA03, 0), folders=("x86-64-v3",),
)  # fmt: skip


def test_the_cache_answers_for_the_machine_and_its_cpu() -> None:
    cache = parse_cache(CACHE, "x86_64")
    assert cache.lookup("liba.so.1", ("x86-64-v4", "x86-64-v3")) == "/v3/liba.so.1"
    assert cache.lookup("liba.so.01", ("x86-64-v2",)) == "/lib/liba.so.1"
    assert cache.lookup("libb.so.1") is None
    assert parse_cache(CACHE, "aarch64").lookup("libb.so.1") == "/arm/libb.so.1"
    old = b"ld.so-1.7.0\0" + struct.pack("<I", 2) + bytes(24)
    for damaged in (b"", CACHE[:40], CACHE[:90], b"x" + CACHE, old, CACHE[:28] + b"\x03" + CACHE[29:]):
        assert len(parse_cache(damaged, "x86_64")) == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(CACHE) - 1), st.integers(0, 255)), max_size=8))
def test_a_damaged_cache_never_raises(changes: list[tuple[int, int]]) -> None:
    data = bytearray(CACHE)
    for offset, value in changes:
        data[offset] = value
    parse_cache(bytes(data), "x86_64").lookup("liba.so.1", ("x86-64-v3",))


LINKER = b"\x7fELF GLIBC_PRIVATE\0/lib/\0/usr/lib/\0glibc-hwcaps\0"


@dataclass
class Made:
    """A root of made-up files."""

    files: dict[str, ElfFile | bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.add("/lib64/ld.so", soname="ld.so")
        self.add("/bin/python", kind="executable", interp="/lib64/ld.so", needed=("libc.so",))
        self.add("/lib/libc.so", soname="libc.so", versioned=True, provides=("libc.so", "GLIBC_2.9", "GLIBC_2.17"))

    def add(self, path: str, **says: object) -> None:
        """One ELF file; what is not said is empty."""
        self.files[path] = replace(ElfFile(name=path, machine="x86_64", bits=64, kind="shared"), **says)  # type: ignore[arg-type]

    def resolve(self, path: str) -> str | None:
        return path if path in self.files else None

    def read(self, path: str) -> ElfFile:
        found = self.files[path]
        if isinstance(found, bytes):
            raise NotElf(f"{path} is not an ELF file")
        return found

    def data(self, path: str, limit: int) -> bytes:
        found = self.files[path]
        return found if isinstance(found, bytes) else LINKER if path == "/lib64/ld.so" else b""


def _start(root: Made, **conditions: object) -> Process:
    return load(root, "/bin/python", Conditions(**conditions))  # type: ignore[arg-type]


def test_a_dlopen_that_fails_leaves_nothing_behind() -> None:
    root = Made()
    root.add("/op/liba.so", needed=("libb.so", "libgone.so"), rpath=("/op",))
    root.add("/op/libb.so", soname="libb.so")
    root.add("/op/user.so", needed=("libb.so",))
    process = _start(root)
    before = process.loaded
    failed = process.dlopen("/op/liba.so")
    assert [choice.name for choice in failed.unresolved] == ["libgone.so"]
    assert process.loaded == before
    assert not process.dlopen("/op/user.so").works
    assert process.dlopen("/op/libb.so").works
    assert process.dlopen("/op/user.so").works
    assert process.provider("libb.so").path == "/op/libb.so"  # type: ignore[union-attr]


class Enterprise(Made):
    """Folders as on Enterprise Linux: 64-bit libraries in lib64, and what was in / is in /usr."""

    linker = b"\x7fELF GLIBC_PRIVATE\0/lib64/\0/usr/lib64/\0"

    def __post_init__(self) -> None:
        self.add("/usr/lib64/ld-2.28.so", soname="ld-linux-x86-64.so.2")
        self.add("/usr/bin/python", kind="executable", interp="/lib64/ld-linux-x86-64.so.2", needed=("libc.so.6",))
        self.add("/usr/lib64/libc.so.6", soname="libc.so.6")

    def resolve(self, path: str) -> str | None:
        path = {"/lib64/ld-linux-x86-64.so.2": "/usr/lib64/ld-2.28.so"}.get(path, path)
        return super().resolve(f"/usr{path}" if path.startswith(("/lib64/", "/lib/", "/bin/")) else path)

    def data(self, path: str, limit: int) -> bytes:
        return self.linker if path == "/usr/lib64/ld-2.28.so" else super().data(path, limit)


def test_enterprise_linux_searches_lib64_and_not_lib() -> None:
    root = Enterprise()
    root.add("/usr/lib/liba.so.1", machine="i386", bits=32)
    root.add("/usr/lib64/liba.so.1", soname="liba.so.1")
    root.add("/opt/rh/toolset/root/usr/lib64/libb.so", soname="libb.so", needed=("liba.so.1", "libc.so.6"))
    root.add("/usr/lib/libold.so")
    process = _start(root)
    assert process.provider("libc.so.6").path == "/lib64/libc.so.6"  # type: ignore[union-attr]
    root.add("/op.so", needed=("libb.so", "libold.so"), rpath=("/opt/rh/toolset/root/usr/$LIB",))
    result = process.dlopen("/op.so")
    assert {choice.name: (choice.path, choice.why) for choice in result.choices[1:]} == {
        "libb.so": ("/opt/rh/toolset/root/usr/lib64/libb.so", "rpath"),
        "libold.so": (None, "nowhere"),
        "liba.so.1": ("/lib64/liba.so.1", "default"),
        "libc.so.6": ("/lib64/libc.so.6", "loaded"),
    }
    # One file under two names is one object; and ldconfig's cache comes before the folders.
    assert process.dlopen("/usr/lib64/libc.so.6").loaded == ()
    root.files["/etc/ld.so.cache"] = cache_of(("liba.so.1", "/opt/rh/toolset/root/usr/lib64/liba.so.1", 0x303, 0))
    root.add("/opt/rh/toolset/root/usr/lib64/liba.so.1", soname="liba.so.1")
    choice = _start(root).dlopen("liba.so.1").choices[0]
    assert (choice.path, choice.why) == ("/opt/rh/toolset/root/usr/lib64/liba.so.1", "cache")


def test_symbol_versions_are_asked_of_the_file_that_was_chosen() -> None:
    root = Made()
    wants = (Need(library="libc.so", version="GLIBC_2.17"), Need(library="libc.so", version="GLIBC_2.34"),
             Need(library="libc.so", version="GLIBC_2.36", weak=True), Need(library="libx.so", version="X_1"),
             Need(library="libcuda.so.1", version="CUDA_1"))  # fmt: skip
    root.add("/op.so", needed=("libc.so", "libcuda.so.1"), requires=wants)
    process = _start(root, given=frozenset({"libcuda.so.1"}))
    result = process.dlopen("/op.so")
    assert [(found.version, found.chosen, found.best) for found in result.missing] == [
        ("GLIBC_2.34", "/lib/libc.so", "GLIBC_2.17"), ("X_1", None, None),
    ]  # fmt: skip
    assert not result.unresolved
    assert [choice.why for choice in result.choices] == ["dlopen", "loaded", "given"]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda root: root.files.update({"/rp/liba.so": b"INPUT(liba.so.1)"}), "is not an ELF file"),
        (lambda root: root.add("/rp/liba.so", kind="other"), "is not a library"),
        (lambda root: root.add("/rp/liba.so", kind="executable"), "is not a library"),
        (lambda root: root.files.pop("/lib/liba.so"), "liba.so is not found"),
        (lambda root: root.add("/lib/liba.so", machine="aarch64"), "/lib/liba.so is for another machine"),
    ],
)
def test_why_a_library_cannot_be_had_is_said(spoil: Callable[[Made], object], why: str) -> None:
    root = Made()
    root.add("/lib/liba.so")
    root.add("/op.so", needed=("liba.so",), rpath=("/rp",))
    spoil(root)
    (choice,) = _start(root).dlopen("/op.so").unresolved
    assert why in choice.problem
    assert choice.path is None


def test_circles_end_and_searches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envbuild.elf.search._MAX_PLACES", 10_000)
    root = Made()
    root.add("/lib/liba.so", needed=("libb.so", "liba.so"))
    root.add("/lib/libb.so", needed=("liba.so",))
    assert _start(root).dlopen("/lib/liba.so").works
    folders = tuple(f"/{number}" for number in range(100))
    root.add("/huge.so", needed=tuple(f"lib{number}.so" for number in range(100)), rpath=folders)
    with pytest.raises(ElfError, match="10000 places, most by the rpath of /huge"):
        _start(root).dlopen("/huge.so")


def test_a_bare_name_is_searched_by_the_rules_of_its_caller() -> None:
    root = Made()
    root.add("/mod/caller.so", runpath=("$ORIGIN/private",))
    root.add("/mod/private/libp.so", soname="libp.so")
    process = _start(root)
    assert process.dlopen("/mod/caller.so").works
    assert not process.dlopen("libp.so").works
    assert process.dlopen("libp.so", caller="/mod/caller.so").choices[0].why == "runpath"
    assert process.dlopen("libp.so").choices[0].why == "loaded"


def test_preloads_come_from_the_environment_and_from_the_file() -> None:
    root = Made()
    root.files["/etc/ld.so.preload"] = b"# all of them\n/opt/two.so libgone.so\n"
    root.add("/opt/one.so", soname="libc.so", versioned=True)
    root.add("/opt/two.so", soname="two")
    start = _start(root, preload="/opt/one.so").start
    assert [object_.path for object_ in start.loaded] == ["/bin/python", "/opt/one.so", "/opt/two.so"]
    assert start.works  # a preload that is not there is warned of, no more
    assert [choice.problem for choice in start.choices if choice.problem] == ["libgone.so is not found"]


def test_only_a_glibc_loader_is_followed() -> None:
    root = Made()
    for change, why in (
        ({"interp": None}, "asks for no loader"),
        ({"interp": "/lib/ld-musl.so"}, "which is not there"),
    ):
        root.files["/bin/python"] = replace(root.read("/bin/python"), **change)  # type: ignore[arg-type]
        with pytest.raises(ElfError, match=why):
            _start(root)
    root.add("/lib/ld-musl.so")
    with pytest.raises(ElfError, match="not glibc's loader"):
        _start(root)
    with pytest.raises(ElfError, match="/bin/sh is not there"):
        load(root, "/bin/sh", Conditions())


def test_a_folder_is_a_root_that_nothing_leaves(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/liba.so.1").write_bytes(SAMPLE)
    links = {"lib": "/usr/lib", "usr/lib/liba.so": "liba.so.1", "loop": "loop", "up": "../../../usr/lib/liba.so",
             "out": "/etc/passwd", "under": "usr/lib/liba.so.1/x"}  # fmt: skip
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    root = FolderRoot(tmp_path)
    for path in ("/lib/liba.so", "/up", "//lib/./../lib/liba.so.1"):
        assert root.resolve(path) == "/usr/lib/liba.so.1"
    for path in ("/loop", "/out", "/usr", "/", "/under", "/usr/lib/liba.so/..", "/a\0b"):
        assert root.resolve(path) is None
    assert root.read("/usr/lib/liba.so.1").needed
    assert root.data("/usr/lib/liba.so.1", 4) == b"\x7fELF"
    with pytest.raises(ElfError, match="cannot be read"):
        root.data("/gone", 4)
