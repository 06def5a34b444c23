"""The one reader of ELF files, for the collector and for ``envbuild.elf``: bounded, and without other parts of either.

Plain ``struct`` where it is hot: a torch environment has some 300 libraries, and pyelftools takes 2.5 ms for each of
them, this 0.4 (x86-64, Python 3.11). pyelftools knows the names of machines that are not.
"""

from .faults import Damaged, NotElf
from .file import Elf, Need, read
from .sections import Section, Sections, read_sections

__all__ = ["Damaged", "Elf", "Need", "NotElf", "Section", "Sections", "read", "read_sections"]
