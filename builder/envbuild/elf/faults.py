"""What is wrong with a file that should be native code."""

from __future__ import annotations

from envbuild.errors import GateError


class ElfError(GateError):
    """A file that is, or should be, native code and cannot be understood; ``message`` says which and why."""

    code = "elf"


class NotElf(ElfError):
    """Not an ELF file at all: empty, text (linker scripts are named ``.so`` too), an archive."""


def damaged(name: str, why: str) -> ElfError:
    """The error for an ELF file that is broken where the loader reads it."""
    return ElfError(f"{name} is a damaged ELF file: {why}", hint="Install the package that it belongs to again.")
