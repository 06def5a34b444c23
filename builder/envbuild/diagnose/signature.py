"""What is known of failures, as data: one signature an entry of ``signatures/*.yaml``.

A pattern is a regular expression over one logical line (colours, rank prefixes and time stamps are gone by then), or
over several with ``lines``. Its anchors are what the fast search over gigabytes looks for: every text that the pattern
matches holds at least one of them, as it is, letter by letter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from envbuild.model import Frozen

Kind = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=2000)]


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    return pattern


Regex = Annotated[str, StringConstraints(min_length=1, max_length=2000), AfterValidator(_compiles)]


Anchor = Annotated[str, StringConstraints(min_length=5, max_length=100)]


class Pattern(Frozen):
    """One way in which it shows.

    Attributes:
        regex: Searched for in the line; its named groups are the captures. A quote of any kind (``'`` `````` ``"`` and
            the typographic ones) stands for all of them, inside of brackets too, but not in ``[^...]``.
        anchors: Literals, of which every match holds one. At least five characters each, so that the fast search
            does not stop at everything.
        lines: Over how many logical lines, joined by newlines, it may extend. Of a log that several ranks write, they
            are lines of one rank.
        last: It counts only when nothing but noise follows (a hang, a kill): no training progress, no sure cause.
        until: Literals that show, anywhere after it, that it went on.
        certainty: Where this way of showing says less, or more, than the signature's others; see there.
        unless: As the signature's, for this pattern only.
    """

    regex: Regex
    anchors: tuple[Anchor, ...] = Field(min_length=1)
    lines: Annotated[int, Field(ge=1, le=12)] = 1
    last: bool = False
    until: tuple[Anchor, ...] = ()
    certainty: Literal["sure", "likely", "weak"] | None = None
    unless: tuple[Regex, ...] = ()

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The expression, made once."""
        return re.compile(loose(self.regex))


QUOTES = "`'\"\u2018\u2019\u201c\u201d"


def loose(regex: str) -> str:
    """The expression with every quote standing for all kinds of quotes: logs pass through hands that change them."""
    made: list[str] = []
    inside = negated = escaped = False
    for place, letter in enumerate(regex):
        if escaped:
            escaped = False
            if letter not in QUOTES:
                made.append("\\" + letter)
                continue
        elif letter == "\\":
            escaped = True
            continue
        if letter in QUOTES:
            made.append(letter if negated else QUOTES if inside else f"[{QUOTES}]")
            continue
        if letter == "[" and not inside:
            inside, negated = True, regex[place + 1 : place + 2] == "^"
        elif letter == "]" and inside and regex[place - 1] not in "[^":
            inside = negated = False
        made.append(letter)
    return "".join(made)


class Answer(Frozen):
    """What is said when the captures are of a kind.

    Attributes:
        when: Capture -> regular expression that it has to match (search); all of them. A capture that is not there is
            the empty text.
        cause: One or two sentences, with {captures}. An answer that names a capture which is not there is passed
            over; so is a step of ``fix``, and a command.
        fix: Steps, best first, with {captures}.
        command: One line that is safe to paste, where there is one.
    """

    when: dict[str, Regex] = Field(default_factory=dict)
    cause: Text
    fix: tuple[Text, ...] = Field(min_length=1)
    command: str = ""

    def holds(self, captures: Mapping[str, str]) -> bool:
        """Whether its conditions hold."""
        return all(re.search(regex, captures.get(name, "")) for name, regex in self.when.items())


class Examples(Frozen):
    """Texts that it has to match (as its kind), and texts that look alike and that it must not."""

    positive: tuple[Text, ...] = Field(min_length=1)
    negative: tuple[Text, ...] = Field(min_length=1)


class Signature(Frozen):
    """One kind of failure, one of the echoes that failures have, or a line that tells something of the environment.

    Attributes:
        role: ``cause`` is an answer. ``echo`` is what a cause leaves behind (``ninja -v returned non-zero``): shown
            as explained, and as the most telling line where no cause is found. ``context`` only gives its captures to
            everybody: versions, paths, sizes.
        certainty: sure: the line says so itself. likely: it has other causes too, rarer. weak: only where nothing
            else is found (a bare ``Killed``).
        explains: Kinds of echoes, or of weaker causes, that follow from it.
        unless: Where one of these is found within ten lines of the match, it is something else.
        level: error: lines that are logged as WARNING, INFO or DEBUG do not count. any: they do.
        trains_on: It counts although training went on after it (a loss that is not a number).
        derive: Names of functions in envbuild.diagnose.derive that add captures (the GCC of a symbol version).
        answers: The first whose conditions hold is given; the last should hold always.
        doctor: Checks of ``envbuild doctor`` that look at the same thing; ``rules`` the same of the matrix's.
        source: Where this is known from.
    """

    kind: Kind
    title: Text
    role: Literal["cause", "echo", "context"] = "cause"
    certainty: Literal["sure", "likely", "weak"] = "sure"
    patterns: tuple[Pattern, ...] = Field(min_length=1)
    explains: tuple[Kind, ...] = ()
    unless: tuple[Regex, ...] = ()
    level: Literal["error", "any"] = "error"
    trains_on: bool = False
    derive: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    doctor: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    source: Text
    examples: Examples

    @model_validator(mode="after")
    def _answers(self) -> Signature:
        if self.role == "cause" and not self.answers:
            raise ValueError("a cause needs an answer")
        return self
