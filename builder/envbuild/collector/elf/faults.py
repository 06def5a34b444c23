"""What is wrong with a file that should be native code."""


class Damaged(Exception):
    """It is an ELF file, and broken, or it asks for too much, where the loader reads it; the text says how."""


class NotElf(Damaged):
    """It is none: empty, text (linker scripts are named ``.so`` too), an archive."""
