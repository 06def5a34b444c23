"""Which of libstdc++'s two strings a file speaks of, told from the names of its dynamic symbols.

``std::string`` is mangled as ``Ss`` in the old ABI and as ``St7__cxx11...`` in the new one (Itanium C++ ABI; GCC's
manual, "Dual ABI"). What counts is the signatures of functions that are not libstdc++'s own: devtoolset links parts
of libstdc++ statically, so that a library of one ABI defines names of the other. Measured: libc10.so of torch 2.2.2
for aarch64 (old) has 43 old names of its own and 213 new ones of libstdc++; libtorch_python.so of torch 2.13.0 (new)
has 368 and 1.
"""

import re

_SPECIAL = rb"(?:T[VISTC]|T[hv][n0-9]+_(?:n?[0-9]+_)?|GV|GR|GTt)*"  # vtables, thunks, guards, ...
_LIBSTDCXX = _SPECIAL + rb"N?K?[RO]?(?:S[a-z]|9__gnu_cxx|10__cxxabiv1)"
_NEW = re.compile(rb"\0_Z(?!" + _LIBSTDCXX + rb")[^\0]*?St7__cxx11")
_OLD = re.compile(rb"\0(_Z(?!" + _LIBSTDCXX + rb")[^\0]*?Ss[^\0]*)")
# For a file with no such function: names of members of the strings themselves.
_NEW_OWN, _OLD_OWN = b"St7__cxx1112basic_string", re.compile(rb"\0_ZNK?Ss")
# What looks like a length or a string inside a mangled name and is not: substitutions, literals, template parameters.
_TOKEN = re.compile(rb"S[0-9A-Z]{0,5}_|T\d{0,5}_|L[a-z]n?\d{1,40}E|A\d{1,20}_|(\d{1,5})|Ss|.", re.DOTALL)
_PREFIX = re.compile(rb"_Z" + _SPECIAL)
_ENOUGH = 1000
_MAX_NAME = 64 << 10
_MAX_NAMES = 4 << 20  # bytes of names that are taken apart
_CLEAR = 10


class StringAbi:
    """Counts over a dynamic string table that arrives in pieces."""

    def __init__(self) -> None:
        self._rest = b""
        self._new = self._old = 0
        self._left = _MAX_NAMES
        self._own_new = self._own_old = False

    def feed(self, piece: bytes) -> None:
        """Look at one more piece of the table."""
        data = self._rest + piece
        cut = data.rfind(b"\0")
        # The last name may go on in the next piece; one that never ends is nobody's.
        self._rest = data[cut:] if cut >= 0 and len(data) - cut <= _MAX_NAME else b""
        data = data[: cut + 1]
        if b"__cxx11" in data:
            self._own_new = self._own_new or _NEW_OWN in data
            for _ in _NEW.finditer(data):
                self._new += 1
                if self._new >= _ENOUGH:
                    break
        if b"Ss" in data:
            self._own_old = self._own_old or _OLD_OWN.search(data) is not None
            for found in _OLD.finditer(data):
                self._left -= len(found[1])
                if self._old >= _ENOUGH or self._left < 0:
                    break
                self._old += _names_old_string(found[1])

    @property
    def cxx11(self) -> "bool | None":
        """True: the new ABI; False: the old one; None: no string in sight, or no clear answer (libstdc++ itself)."""
        new, old = (self._new, self._old) if self._new or self._old else (self._own_new, self._own_old)
        if new > old * _CLEAR:
            return True
        if old > new * _CLEAR:
            return False
        return None


def _names_old_string(symbol: bytes) -> bool:
    """Whether ``Ss`` stands in a mangled name as a type, not inside an identifier such as ``ClassSsum``."""
    prefix = _PREFIX.match(symbol)
    at = prefix.end() if prefix else 0
    token = _TOKEN.match(symbol, at)
    while token is not None:
        if token.group(0) == b"Ss":
            return True
        token = _TOKEN.match(symbol, token.end() + int(token.group(1) or 0))
    return False
