"""Remedies for a library that the loader should not have taken, tried on the recorded machine before they are said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envbuild.collector.elf.linker import preloads
from envbuild.doctor.collection import Collection
from envbuild.doctor.loading import Answers
from envbuild.doctor.words import belongs, folder, shell_path, told
from envbuild.elf import Choice, Missing, by_family


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What to do.

    Attributes:
        words: As a sentence without its end.
        command: The same as a line for the shell; empty where there is none.
    """

    words: str
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A remedy that changes what the loader is told, and its answer then."""

    remedy: Remedy
    after: Answers


def trials(
    collection: Collection, known: Answers, name: str, better: Iterable[str] = (), refused: Choice | None = None
) -> Iterator[Trial]:
    """Ways to another copy of a library, mildest first: take away what put this one in front, then point to another.

    Args:
        name: What the loader is asked for, such as ``libstdc++.so.6``.
        better: Paths of copies that would do.
        refused: The request that ended at a file which is no library; others of that name may have been served.
    """
    yield from _less(collection, known, refused or known.choice(name))
    for path in better:
        place = folder(path)
        if known.knows(place):
            value = ":".join(filter(None, (place, known.conditions.library_path)))
            words = f"start Python with {place} in front in LD_LIBRARY_PATH, where {path} is"
            remedy = Remedy(words=words, command=variable("LD_LIBRARY_PATH", value.split(":")))
            yield Trial(remedy=remedy, after=known.what_if(library_path=value))


def cures(before: Answers, after: Answers, wrong: Iterable[Missing] = ()) -> bool:
    """Whether something is better then, all of ``wrong`` is gone, and nothing else breaks."""
    was, now = _faults(before), _faults(after)
    return not after.problem and now <= was and not now & {_key(missing) for missing in wrong}


def copies(collection: Collection, known: Answers, soname: str) -> dict[str, dict[str, str]]:
    """Every recorded file with a soname -> the newest symbol version that it has, by family."""
    paths = [path for path, file in collection.libraries.files.items() if file.soname == soname]
    paths += collection.libraries.elsewhere.get(soname, ())
    found = {path: file for path in dict.fromkeys(paths) if (file := known.read(path)) is not None}
    return {path: by_family(file.provides) for path, file in found.items()}


def _less(collection: Collection, known: Answers, choice: Choice | None) -> Iterator[Trial]:
    path = (choice.path or known.refused(choice)) if choice is not None else None
    if choice is None or path is None:
        return
    conditions = known.conditions
    if choice.why == "LD_LIBRARY_PATH":
        wrong = known.leading(choice.name, path)
        less = [entry for entry in re.split("[:;]", conditions.library_path) if entry and entry not in wrong]
        if wrong:
            places = " and ".join(
                told(entry, collection) if entry else "the empty entry" for entry in dict.fromkeys(wrong)
            )
            words = f"take {places} out of LD_LIBRARY_PATH"
            remedy = Remedy(words=words, command=variable("LD_LIBRARY_PATH", less))
            yield Trial(remedy=remedy, after=known.what_if(library_path=":".join(less)))
        if wrong and less:
            remedy = Remedy(words="unset LD_LIBRARY_PATH", command="unset LD_LIBRARY_PATH")
            yield Trial(remedy=remedy, after=known.what_if(library_path=""))
    elif choice.why == "preload":
        entries = preloads(conditions.preload, "")
        less = [entry for entry in entries if entry not in (choice.name, choice.path)]
        if less != entries:
            remedy = Remedy(words=f"take {choice.path} out of LD_PRELOAD", command=variable("LD_PRELOAD", less))
            yield Trial(remedy=remedy, after=known.what_if(preload=":".join(less)))
        else:
            remedy = Remedy(words=f"take {choice.path} out of /etc/ld.so.preload")
            yield Trial(remedy=remedy, after=known.what_if(without=path))
    elif choice.why in ("cache", "default") and (
        "/glibc-hwcaps/" in path or belongs(path, collection) != "of the system"
    ):
        remedy = Remedy(words=f"remove {path} (or its folder from /etc/ld.so.conf.d), and run ldconfig")
        yield Trial(remedy=remedy, after=known.what_if(without=path))


def variable(name: str, entries: list[str]) -> str:
    """A line for the shell that gives a variable these entries, or takes it away."""
    return f"export {name}={':'.join(map(shell_path, entries))}" if entries else f"unset {name}"


def _faults(known: Answers) -> set[tuple[str, str, str]]:
    faults = {_key(missing) for missing in known.missing}
    return faults | {(choice.asker, choice.name, "") for choice in known.unresolved}


def _key(missing: Missing) -> tuple[str, str, str]:
    return missing.asker, missing.library, missing.version
