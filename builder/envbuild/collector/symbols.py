"""Which dynamic symbols an ELF file asks for, and whether another has them: by its GNU hash table, as the loader does.

A file of hundreds of megabytes costs a few reads for each name. The undefined symbols stand in front of the hashed ones
(glibc's elf/dl-lookup.c relies on it), so that no table has to be read to its end either. 64 bits, little endian.
"""

import os
import re
import struct

from .common import opened

# Names that torch, NCCL and CUDA have to give. C++ names are mangled: namespace c10 is "3c10", at is "2at".
_TORCH = re.compile(r"_Z(?:T[IVS]|GV)?(?:N[KVrRO]*)?(?:3c10|2at|5torch|6caffe2)")
_NCCL = re.compile(r"nccl[A-Z]\w*$")
_CUDA = re.compile(r"(?:cuda|cublas|curand|cusparse|cu)[A-Z]\w*$|__nvJitLink")
_MAX_SYMBOLS = 1 << 20
_MAX_STRINGS = 256 << 20
_MAX_CHAIN = 4096
_MAX_FILES = 400
_MAX_ASKERS = 60
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_GNU_HASH = 5, 6, 10, 0x6FFFFEF5
_DT_VERSYM, _DT_VERNEED = 0x6FFFFFF0, 0x6FFFFFFE
_MAX_NEEDS = 4096
_STB_WEAK = 2


class Symbols(object):
    """The dynamic symbols of one file. All of it raises ValueError or OSError on one that has none or is damaged."""

    def __init__(self, path):
        self._file = opened(path)
        try:
            self._open()
        except Exception:
            self._file.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def undefined(self):
        """Names that somebody else has to define; weak ones, which nobody has to, are left out."""
        return [name for name, _ in self._undefined()]

    def _undefined(self):
        if self._first > _MAX_SYMBOLS:
            raise ValueError("more than %d undefined symbols" % _MAX_SYMBOLS)
        entries = self._read(self._symbols, 24 * self._first)
        strings = self._read(self._strings, self._size)
        names = []
        for at, (name, info, _, section, _, _) in enumerate(struct.iter_unpack("<IBBHQQ", entries)):
            if section == 0 and info >> 4 != _STB_WEAK and name:
                names.append((strings[name : strings.find(b"\0", name)].decode("utf-8", "replace"), at))
        return names

    def versioned(self, library):
        """Names that it asks of one library, by a symbol version of that library; weak ones are left out."""
        indices, at = set(), self._needs
        for _ in range(_MAX_NEEDS if at else 0):
            _, _, file, first, following = struct.unpack("<HHIII", self._read(at, 16))
            if self._is_string(file, library.encode("utf-8")):
                indices.update(self._indices(at + first))
            if not following:
                break
            at += following
        if not (indices and self._versions):
            return []
        numbers = struct.unpack("<%dH" % self._first, self._read(self._versions, 2 * self._first))
        return [name for name, at in self._undefined() if numbers[at] & 0x7FFF in indices]

    def _indices(self, at):
        for _ in range(_MAX_NEEDS):
            _, _, number, _, following = struct.unpack("<IHHII", self._read(at, 16))
            yield number & 0x7FFF
            if not following:
                break
            at += following

    def defines(self, name):
        """Whether it has a symbol of that name, of any version."""
        wanted = name.encode("utf-8")
        code = 5381
        for byte in wanted:
            code = (code * 33 + byte) & 0xFFFFFFFF
        word, bit = code // 64 % self._bloom, code % 64
        (seen,) = struct.unpack("<Q", self._read(self._hash + 16 + 8 * word, 8))
        if not (seen >> bit & 1 and seen >> (code >> self._shift) % 64 & 1):
            return False
        buckets = self._hash + 16 + 8 * self._bloom
        (index,) = struct.unpack("<I", self._read(buckets + 4 * (code % self._buckets), 4))
        if index < self._first:
            return False
        chain = buckets + 4 * self._buckets
        for number in range(index, index + _MAX_CHAIN):
            (found,) = struct.unpack("<I", self._read(chain + 4 * (number - self._first), 4))
            if found | 1 == code | 1 and self._is(number, wanted):
                return True
            if found & 1:
                return False
        return False

    def _is(self, number, wanted):
        name, _, _, section, _, _ = struct.unpack("<IBBHQQ", self._read(self._symbols + 24 * number, 24))
        return section != 0 and self._is_string(name, wanted)

    def _is_string(self, offset, wanted):
        return self._read(self._strings + offset, len(wanted) + 1) == wanted + b"\0"

    def _open(self):
        head = self._file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
            raise ValueError("no ELF file of 64 bits, little endian")
        offset, size, count = struct.unpack_from("<Q", head, 32) + struct.unpack_from("<HH", head, 54)
        if size != 56 or count > 256:
            raise ValueError("its program headers are damaged")
        self._loads, dynamic = [], None
        self._file.seek(offset)
        for kind, _, place, address, _, in_file, _, _ in struct.iter_unpack("<IIQQQQQQ", self._exactly(56 * count)):
            if kind == _PT_LOAD:
                self._loads.append((address, in_file, place))
            elif kind == _PT_DYNAMIC:
                dynamic = (address, min(in_file, 1 << 16) // 16 * 16)
        if dynamic is None:
            raise ValueError("it is not linked dynamically")
        tags = {}
        for tag, value in struct.iter_unpack("<QQ", self._read(*dynamic)):
            if tag == 0:
                break
            tags[tag] = value
        if not all(tag in tags for tag in (_DT_SYMTAB, _DT_STRTAB, _DT_STRSZ, _DT_GNU_HASH)):
            raise ValueError("it has no GNU hash table")
        self._symbols, self._strings, self._hash = tags[_DT_SYMTAB], tags[_DT_STRTAB], tags[_DT_GNU_HASH]
        self._versions, self._needs = tags.get(_DT_VERSYM), tags.get(_DT_VERNEED)
        self._size = min(tags[_DT_STRSZ], _MAX_STRINGS)
        self._buckets, self._first, self._bloom, self._shift = struct.unpack("<IIII", self._read(self._hash, 16))
        if not (self._buckets and self._bloom):
            raise ValueError("its hash table is damaged")

    def _read(self, address, size):
        for start, length, place in self._loads:
            if start <= address and address + size <= start + length:
                self._file.seek(place + address - start)
                return self._exactly(size)
        raise ValueError("an address is in none of its segments")

    def _exactly(self, size):
        data = self._file.read(size)
        if len(data) < size:
            raise ValueError("it ends too early")
        return data


def undefined(path):
    """What an op asks of torch, NCCL and CUDA, sorted; empty for a file that cannot be read."""
    try:
        with Symbols(path) as file:
            names = file.undefined()
    except (ValueError, OSError, struct.error):
        return []
    return sorted({name for name in names if _TORCH.match(name) or _NCCL.match(name) or _CUDA.match(name)})


def absent(names, folder):
    """Those of the names of torch's namespaces that no library in its folder ``torch/lib`` has.

    None where that cannot be said: a library there cannot be read, and it might be the one.
    """
    wanted = {name for name in names if _TORCH.match(name)}
    try:
        files = sorted(name for name in os.listdir(folder) if ".so" in name)
    except OSError:
        return None
    # libtorch_cpu and libtorch_python have nearly everything.
    files.sort(key=lambda name: not name.startswith(("libtorch_cpu", "libc10.", "libtorch_python")))
    unread = not files
    for name in files[:_MAX_FILES]:
        if not wanted:
            break
        try:
            with Symbols(os.path.join(folder, name)) as file:
                wanted -= {each for each in wanted if file.defines(each)}
        except (ValueError, OSError, struct.error):
            unread = True
    return None if wanted and unread else sorted(wanted)


def nccl_lacks(askers, copies):
    """What torch's libraries (``askers``) ask of NCCL, and every copy of it does not have: copy -> names.

    A copy that has everything, or cannot be read, is not in the answer.
    """
    wanted = set()
    for path in askers:
        wanted.update(name for name in undefined(path) if _NCCL.match(name))
    found = {}
    for path in copies:
        try:
            with Symbols(path) as file:
                lacks = sorted(name for name in wanted if not file.defines(name))
        except (ValueError, OSError, struct.error):
            continue
        if lacks:
            found[path] = lacks
    return found


def unversioned_lack(files):
    """What is asked, by symbol versions, of libraries that have no versions and not these symbols: path -> names.

    The loader takes such a library for any version; it is the symbols that are then missing.

    Args:
        files: ``Libraries.files``.
    """
    found = {}
    for path, file in files.items():
        if file["versioned"] or file["kind"] != "shared":
            continue
        names = {file["soname"], os.path.basename(path)} - {None}
        askers = [other for other, asks in files.items() if any(need[0] in names for need in asks["requires"])]
        lacks = _lacks(path, names, askers[:_MAX_ASKERS])
        if lacks:
            found[path] = lacks
    return found


def _lacks(path, names, askers):
    wanted = {each for asker in askers for each in _asked_of(asker, names)}
    try:
        with Symbols(path) as file:
            return sorted(each for each in wanted if not file.defines(each))
    except (ValueError, OSError, struct.error):
        return []


def _asked_of(path, names):
    try:
        with Symbols(path) as file:
            return [each for name in names for each in file.versioned(name)]
    except (ValueError, OSError, struct.error):
        return []
