"""Native code as files: what it needs, what it provides, what the loader would choose. Nothing is executed."""

from envbuild.elf.faults import ElfError, NotElf
from envbuild.elf.file import ElfFile, Need, read
from envbuild.elf.folder import FolderRoot
from envbuild.elf.linker import Linker, Root, linker
from envbuild.elf.loader import Choice, Loading, Missing, Process, load
from envbuild.elf.search import Conditions, Loaded
from envbuild.elf.versions import by_family, highest

__all__ = [
    "Choice",
    "Conditions",
    "ElfError",
    "ElfFile",
    "FolderRoot",
    "Linker",
    "Loaded",
    "Loading",
    "Missing",
    "Need",
    "NotElf",
    "Process",
    "Root",
    "by_family",
    "highest",
    "linker",
    "load",
    "read",
]
