"""What a lint found, as people read it, as JSON and as SARIF."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from envbuild.cli import output
from envbuild.errors import EnvbuildError, InputError

if TYPE_CHECKING:
    from envbuild.dsconfig.context import Context
    from envbuild.dsconfig.document import Document
    from envbuild.dsconfig.linting import Judged
    from envbuild.pipeline.linting import Wish

# Of a long line, this much is shown before what is wrong in it.
_BEFORE = 40
# Of a message, which may name a key as long as a file.
_LONGEST = 1000


class _Linted(NamedTuple):
    document: Document
    context: Context
    judged: tuple[Judged, ...]
    mended: int = 0


class Run:
    """The files of one call."""

    def __init__(self, wish: Wish, base: Context, wanted: frozenset[str], *, fix: bool, dry_run: bool) -> None:
        self.wish, self.base, self.wanted, self.fix, self.dry_run = wish, base, wanted, fix, dry_run
        self.linted: list[_Linted] = []
        self.unread: list[tuple[str, EnvbuildError]] = []
        self._said: set[str] = set()

    def take(self, name: str, *, quiet: bool) -> None:
        """Read, mend and judge one file."""
        from envbuild.dsconfig.document import read
        from envbuild.dsconfig.linting import judge
        from envbuild.pipeline.linting import for_file

        try:
            document = read(name)
            context = for_file(document, self.base, self.wish)
            mended = 0
            if self.fix:
                document, mended = self._mend(name, document, context)
        except InputError as error:
            self.unread.append((name, error))
            output.narrate(f"{output.paint('error', '31', stream=sys.stderr)}: {_line(error.message)}")
            if error.hint:
                output.narrate(f"hint: {_line(error.hint)}")
            return
        for assumption in context.assumed if not quiet else ():
            if assumption not in self._said:
                self._said.add(assumption)
                output.narrate(f"assumed: {assumption}")
        found = tuple(each for each in judge(document, context) if each.finding.rule in self.wanted)
        self.linted.append(_Linted(document, context, found, mended))

    def _mend(self, name: str, document: Document, context: Context) -> tuple[Document, int]:
        from envbuild.dsconfig import fixing
        from envbuild.dsconfig.document import read

        fixed = fixing.fix(document, context, wanted=self.wanted)
        if self.dry_run:
            output.result(_difference(document, fixed.document))
            return document, 0
        if name == "-":
            output.result(fixed.document.text)
        elif fixed.mended:
            from envbuild import store

            path = Path(name)
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode):
                raise InputError(f"{name}: no file that could be mended", hint="Print the mended text: --fix - < FILE")
            # A file is replaced, for which it need not be writable itself.
            if not os.access(path, os.W_OK):
                raise InputError(
                    f"{name}: may not be written", hint="chmod u+w it, or print the mended text: --fix - < FILE"
                )
            if read(name).text != document.text:
                raise InputError(f"{name}: changed while it was looked at; it was left alone", hint="Run it again.")
            store.write_where_asked(path, fixed.document.text.encode("utf-8", "surrogatepass"))
            if path.stat().st_mode != mode:
                path.chmod(stat.S_IMODE(mode))
        for each in fixed.mended:
            output.narrate(_line(f"mended: {document.name}:{each.line}: [{each.rule}] {each.message}"))
        return fixed.document, len(fixed.mended)

    def tell(self, *, json: bool, sarif: str | None, quiet: bool) -> int:
        """Print what was found; returns how many of it are errors."""
        found = [each.finding for linted in self.linted for each in linted.judged]
        errors = sum(finding.severity.value == "error" for finding in found)
        if sarif is not None:
            self._sarif(sarif)
        if json:
            output.document(
                "lint", findings=output.documents(found), files=[_file(each) for each in self.linted],
                unread=[{"file": name, "reason": error.message} for name, error in self.unread],
            )  # fmt: skip
        elif sarif != "-":
            # Where the mended text is the result, what is left is narration.
            narrated = self.fix and any(linted.document.name == "<stdin>" for linted in self.linted)
            for linted in self.linted:
                for each in linted.judged:
                    _print(linted.document, each, narrated=narrated or self.dry_run)
        if not quiet:
            others = len(found) - errors
            output.narrate(f"{len(self.linted)} file(s), {errors} error(s), {others} other finding(s)")
        return errors

    def _sarif(self, name: str) -> None:
        import json

        from envbuild import __version__, store
        from envbuild.dsconfig.sarif import sarif
        from envbuild.pipeline.linting import titles

        found = [each.finding for linted in self.linted for each in linted.judged]
        text = json.dumps(sarif(found, titles(), __version__), indent=2) + "\n"
        if name == "-":
            output.result(text)
        else:
            store.write_where_asked(Path(name), text)


def _file(linted: _Linted) -> dict[str, object]:
    from envbuild.dsschema import for_version

    context = linted.context
    schema = for_version(context.deepspeed)
    return {
        "file": linted.document.name, "deepspeed": context.deepspeed, "schema_of": schema.measured,
        "with": context.launcher, "assumed": list(context.assumed), "mended": linted.mended,
    }  # fmt: skip


def _difference(old: Document, new: Document) -> str:
    import difflib

    lines = difflib.unified_diff(
        old.text.splitlines(keepends=True), new.text.splitlines(keepends=True), old.name, f"{new.name} (mended)"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _print(document: Document, judged: Judged, *, narrated: bool) -> None:
    finding, write = judged.finding, output.narrate if narrated else output.text
    colour = {"error": "31", "warning": "33", "info": "36"}[finding.severity.value]
    out = sys.stderr if narrated else sys.stdout
    about = "" if finding.message.startswith(finding.subject) or finding.rule.startswith("json.") else finding.subject
    about = f"{about}: " if about and f"'{about}'" not in finding.message else ""
    head = output.paint(finding.severity.value, colour, stream=out)
    place = f"{_line(finding.file or '')}:{finding.line}:{finding.column}"
    write(f"{place}: {head} [{finding.rule}] {_line(about + finding.message)}")
    if judged.place is not None:
        for line in _excerpt(document, judged, colour, out):
            write(line)
    for word, text in (("why", finding.why), ("fix", finding.fix), ("source", finding.source)):
        if text:
            write(f"    {word}: {_line(text)}")


def _excerpt(document: Document, judged: Judged, colour: str, out: object) -> Sequence[str]:
    """The line with a mark under what is meant; what looks like a secret is no part of what is printed."""
    from envbuild.collector import secrets

    place = judged.place
    assert place is not None
    line = secrets.blackened(document.line(place.line))
    room = max(30, output.width() - len(str(place.line)) - 4)
    begin = 0 if len(line) <= room else max(0, min(place.column - 1 - _BEFORE, len(line) - room))
    shown = "".join(_plain(letter) for letter in line[begin : begin + room])
    before = "".join("\t" if letter == "\t" else " " * _columns(letter) for letter in line[begin : place.column - 1])
    first_line = document.text[place.start : place.end].splitlines()[:1]
    length = max(1, min(len(first_line[0]) if first_line else 1, room - (place.column - 1 - begin)))
    mark = output.paint("^" + "~" * (length - 1), colour, stream=out)
    blank = " " * len(str(place.line))
    return f"  {place.line} | {shown}".rstrip(), f"  {blank} | {before}{mark}"


def _line(text: str) -> str:
    """A text with pieces of the file in it, for a terminal: nothing in it that it would obey, and no flood."""
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return "".join(letter if letter.isprintable() else "?" for letter in shown)


def _columns(letter: str) -> int:
    """How wide a terminal shows it: two columns for Chinese, Japanese and Korean."""
    from unicodedata import east_asian_width

    return 2 if not letter.isascii() and east_asian_width(letter) in "WF" else 1


def _plain(letter: str) -> str:
    return letter if letter == "\t" or letter.isprintable() else "?"
