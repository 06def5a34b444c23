"""An examination on a terminal: short and calm, as wide as the terminal and no wider, plain without colour."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from envbuild.cli.folding import fold
from envbuild.doctor.answers import Answer
from envbuild.doctor.changes import Change
from envbuild.doctor.layers import Layer
from envbuild.doctor.report import Report, Since, headline, layer_words
from envbuild.doctor.text import count, glossary
from envbuild.model import Finding

_COLOURS = {"error": "31;1", "warning": "33;1", "info": "36;1"}
_WORDS = {"error": "error", "warning": "warning", "info": "note"}
_LABEL = 9
# Below this, a column of words is no pleasure to read: it goes under its name.
_NARROWEST = 28
_CHANGES_SHOWN = 12
_EVIDENCE_SHOWN = 6
_ECHOES_SHOWN = 4
_OPS_SHOWN = 6
_LAYERS = "Compilers: what compiles here, and what compiled the libraries that are here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """How a reader reads.

    Attributes:
        width: Columns.
        encoding: What the terminal can show; other characters become escapes before anything is wrapped.
        paint: Puts a line in a colour, or leaves it.
        verbose: Everything, not only what matters.
        quiet: The findings alone.
    """

    width: int
    encoding: str = "utf-8"
    paint: Callable[[str, str], str] = lambda text, code: text
    verbose: bool = False
    quiet: bool = False


def lines(report: Report, page: Page) -> list[str]:
    """The whole answer, line by line."""
    view = _View(page)
    parts: list[list[str]] = []
    if not page.quiet:
        held = f"held to {report.held}" if report.held else ""
        title = ", ".join(part for part in (report.subject, held, report.taken) if part)
        parts.append([view.bold(each) for each in view.wrap(title)])
        parts.append(view.pairs(report.head))
        parts.append(view.layers(report.layers))
        parts.append(view.answers(report.answers))
        if report.problems:
            parts.append(view.problems(report.problems))
    if report.since is not None:
        parts.append(view.since(report.since))
    parts += [view.group(report, number) for number in range(len(report.groups)) if view.shown(report, number)]
    parts.append(view.end(report))
    made: list[str] = []
    for part in parts:
        if part:
            made += [*([""] if made else []), *part]
    return made


class _View:
    def __init__(self, page: Page) -> None:
        self._page = page

    # --- text -----------------------------------------------------------------------------------------------------

    def _plain(self, text: str) -> str:
        return text.encode(self._page.encoding, "backslashreplace").decode(self._page.encoding)

    def wrap(self, text: str, before: str = "", under: str | None = None) -> list[str]:
        """Words behind a first few, every further line under the first; a path that is too long is broken."""
        return fold(self._plain(text), self._page.width, before, " " * len(before) if under is None else under)

    def bold(self, text: str) -> str:
        return self._page.paint(text, "1")

    def pairs(self, rows: Iterable[tuple[str, str]], indent: str = "") -> list[str]:
        return [each for name, value in rows for each in self.wrap(value, f"{indent}{name.ljust(_LABEL)}  ")]

    def _rows(self, rows: Sequence[tuple[str, ...]]) -> list[str]:
        """Columns, the last of which wraps; where there is no room for that, the rest of a row goes under its name."""
        wide = [max(len(self._plain(row[column])) for row in rows) for column in range(len(rows[0]) - 1)]
        if self._page.width - sum(wide) - 2 * len(wide) - 2 >= _NARROWEST:
            made = []
            for row in rows:
                cells = [self._plain(cell).ljust(size) for cell, size in zip(row, wide, strict=False)]
                made += self.wrap(row[-1], "  " + "".join(f"{cell}  " for cell in cells))
            return [each.rstrip() for each in made]
        return [each for row in rows for each in (*self.wrap(row[0], "  "), *self._under(row[1:]))]

    def _under(self, cells: Iterable[str]) -> Iterator[str]:
        for cell in cells:
            if cell:
                yield from self.wrap(cell, "      ")

    # --- the tables -----------------------------------------------------------------------------------------------

    def layers(self, layers: Sequence[Layer]) -> list[str]:
        """The places where a compiler's version counts."""
        if not layers:
            return []
        some = (
            layers
            if self._page.verbose
            else [each for each in layers if each.name != "op"]
            + [each for each in layers if each.name == "op"][:_OPS_SHOWN]
        )
        rows = [(each.title, layer_words(each, brief=not self._page.verbose)) for each in layers if each in some]
        made = [*map(self.bold, self.wrap(_LAYERS)), *self._rows(rows)]
        more = len(layers) - len(some)
        return [*made, *(self.wrap(f"and {count(more, 'more op')} (-v)", "  ") if more else ())]

    def answers(self, answers: Sequence[Answer]) -> list[str]:
        """What would be loaded, and why that."""
        chosen = [each for each in answers if each.telling or self._page.verbose]
        if not chosen:
            return []
        made = [*map(self.bold, self.wrap("Libraries: the file that Python gets for a name, and why that one"))]
        made += self._rows([(each.name, self._answer(each)) for each in chosen])
        words = glossary(" ".join(each.why for each in chosen))
        made += self.wrap(f"({'; '.join(words)})", "  ") if words else []
        if len(chosen) < len(answers):
            made += self.wrap(f"and {len(answers) - len(chosen)} more with nothing to say of them (-v)", "  ")
        return made

    def _answer(self, each: Answer) -> str:
        if each.path is None:
            return each.why if each.enough else f"not found; needed up to {each.needed}" if each.needed else "not found"
        version = f" ({each.version})" if each.version else ""
        why = each.because if self._page.verbose else re.sub(r"/\S*/(?=[^/\s]+$)", "", each.because)
        told = f"{each.path}{version}, {why}" if why else f"{each.path}{version}"
        if not each.enough:
            told += f". Too old: {each.needed} is needed"
        return f"{told}. {each.better} would do" if each.better else told

    def problems(self, problems: Sequence[str]) -> list[str]:
        """What could not be seen."""
        some = problems if self._page.verbose else problems[:3]
        made = [*map(self.bold, self.wrap("Could not be looked at"))]
        made += [each for problem in some for each in self.wrap(problem, "  ", "      ")]
        return [*made, *(self.wrap(f"and {len(problems) - 3} more (-v)", "  ") if len(some) < len(problems) else ())]

    # --- what changed ---------------------------------------------------------------------------------------------

    def since(self, since: Since) -> list[str]:
        """The changes, likeliest cause first."""
        made = [*map(self.bold, self.wrap(f"Since the snapshot of {since.taken}, the likeliest cause first"))]
        for stranger in since.strangers:
            made += self.wrap(f"take care: {stranger}", "  ", "      ")
        causes = [each for each in since.changes if not each.effect]
        effects = [each for each in since.changes if each.effect]
        shown = causes if self._page.verbose else causes[:_CHANGES_SHOWN]
        for change in (*shown, *effects):
            made += self._change(change)
        if len(shown) < len(causes):
            made += self.wrap(f"and {len(causes) - len(shown)} more changes, less likely (-v)", "  ")
        if not since.changes:
            made += self.wrap("nothing that envbuild looks at has changed", "  ")
        for finding in since.gone:
            made += self.wrap(f"no longer: {headline(finding)} [{finding.rule}]", "  ", "      ")
        return made

    def _change(self, change: Change) -> list[str]:
        what = change.what
        if change.kind == "package transaction":
            return self.wrap(f"{what} {change.name}: {change.new}", "  ", "      ")
        made = self.wrap(f"{what} {change.name}", "  ", "      ")
        was, now = change.old or "(not there)", change.new or "(gone)"
        if len(self._plain(f"{made[-1]}: {was} -> {now}")) <= self._page.width and len(made) == 1:
            made = [self._plain(f"{made[0]}: {was} -> {now}")]
        else:
            made += [*self.wrap(was, "      was  "), *self.wrap(now, "      now  ")]
        return [*made, *(self.wrap(change.note, "      ") if change.note else ())]

    # --- findings -------------------------------------------------------------------------------------------------

    def shown(self, report: Report, number: int) -> bool:
        """Notes are for readers who ask for everything, unless they are new or there is little else."""
        root = report.groups[number].root
        return root.severity.value != "info" or self._page.verbose or report.fresh(root)

    def group(self, report: Report, number: int) -> list[str]:
        """A root, in full, and its echoes in a line each."""
        group = report.groups[number]
        made = self._finding(report, group.root, number + 1)
        if not group.echoes:
            return made
        if self._page.verbose:
            made += self.wrap("and so", "    ")
            inner = _View(dataclasses.replace(self._page, width=self._page.width - 4))
            for echo in group.echoes:
                made += [f"    {each}" for each in inner._finding(report, echo, None)]
            return made
        shown = group.echoes[:_ECHOES_SHOWN]
        told = [f"{headline(each)} [{each.rule}]" for each in shown]
        if len(shown) < len(group.echoes):
            told.append(f"and {len(group.echoes) - len(shown)} more (-v)")
        made += self._labelled("so also", told)
        return made

    def _finding(self, report: Report, finding: Finding, number: int | None) -> list[str]:
        word = _WORDS[finding.severity.value]
        new = "new " if report.fresh(finding) else ""
        before = f"{number}. " if number is not None else ""
        first, *rest = self.wrap(f"{new}{word} {headline(finding)}", before, "    ")
        head = f"{before}{new}{word}"
        painted = self._page.paint(head, _COLOURS[finding.severity.value]) + first[len(head) :]
        made = [painted if first.startswith(head) else first, *rest]
        made += self._labelled("seen", self._evidence(finding.evidence))
        made += self._labelled("why", [finding.why] if finding.why else [])
        made += self._labelled("fix", [self._fix(report, finding, number)] if finding.fix else [])
        # Never wrapped: it is there to be copied.
        made += [f"    {'':<{_LABEL}} $ {self._plain(each)}" for each in finding.command.splitlines()]
        place = f"{finding.file}:{finding.line}" if finding.file else ""
        source = ", ".join(part for part in (finding.source, place) if part)
        return [*made, *self._labelled("source", [f"{source} [{finding.rule}]" if source else f"[{finding.rule}]"])]

    def _evidence(self, evidence: tuple[str, ...]) -> list[str]:
        """What was seen; of a long list its two ends, for a traceback says most in its last lines."""
        if self._page.verbose or len(evidence) <= _EVIDENCE_SHOWN:
            return list(evidence)
        half = _EVIDENCE_SHOWN // 2
        return [*evidence[:half], f"... {len(evidence) - 2 * half} more (-v)", *evidence[-half:]]

    def _fix(self, report: Report, finding: Finding, number: int | None) -> str:
        """The fix, or where it stands already: seven findings with one remedy are read once."""
        before = [group.root.fix for group in report.groups[: (number or 1) - 1]]
        return f"as for number {before.index(finding.fix) + 1}" if finding.fix in before else finding.fix

    def _labelled(self, label: str, texts: Sequence[str]) -> list[str]:
        made: list[str] = []
        for place, text in enumerate(texts):
            name = label if place == 0 else ""
            made += self.wrap(text, f"    {name:<{_LABEL}}", " " * (4 + _LABEL))
        return made

    def end(self, report: Report) -> list[str]:
        """The sums, and where to begin."""
        made = [self.bold(each) for each in self.wrap(report.sums)]
        hidden = sum(not self.shown(report, number) for number in range(len(report.groups)))
        if hidden:
            made += self.wrap(f"{count(hidden, 'note is', 'notes are')} not shown (-v).")
        return [*made, *(self.wrap(report.first) if report.first else ())]
