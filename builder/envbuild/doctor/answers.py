"""Which file the loader takes for the names that matter, and why, as rows to read."""

from __future__ import annotations

from dataclasses import dataclass

from envbuild.doctor.collection import Collection


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The loader's answer for one name.

    Attributes:
        name: What is asked for, such as libstdc++.so.6.
        path: The file it takes; None where it finds none.
        why: What made it this one, in words.
        version: What the file is, such as GLIBCXX_3.4.30; empty where nothing says so.
        asker: File of the first one that asked.
        telling: Worth a line even for a reader in a hurry.
    """

    name: str
    path: str | None
    why: str
    version: str = ""
    asker: str = ""
    telling: bool = True


def answers(collection: Collection) -> tuple[Answer, ...]:
    """The answers, in the order in which people ask: C++ and C first, then NVIDIA's."""
    return ()
