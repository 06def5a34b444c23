"""What is known of failures, as data: one signature an entry of ``signatures/*.yaml``.

A pattern is a regular expression over one logical line (colours, rank prefixes and time stamps are gone by then), or
over several with ``lines``. Its anchors are what the fast search over gigabytes looks for: every text that the pattern
matches holds at least one of them, as it is, letter by letter.
"""

from __future__ import annotations

import re
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


class Pattern(Frozen):
    """One way in which it shows.

    Attributes:
        regex: Searched for in the line; its named groups are the captures.
        anchors: Literals, of which every match holds one. At least five characters each, so that the fast search
            does not stop at everything.
        lines: Over how many logical lines, joined by newlines, it may extend.
        last: It counts only when nothing but noise follows: the log ends there (a hang, a kill).
    """

    regex: Regex
    anchors: tuple[Annotated[str, StringConstraints(min_length=5, max_length=100)], ...] = Field(min_length=1)
    lines: Annotated[int, Field(ge=1, le=12)] = 1
    last: bool = False

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The expression, made once."""
        return re.compile(self.regex)


class Answer(Frozen):
    """What is said when the captures are of a kind.

    Attributes:
        when: Capture -> regular expression that it has to match (search); all of them. A capture that is not there is
            the empty text.
        cause: One or two sentences, with {captures}. An answer that names a capture which is not there is passed over.
        fix: Steps, best first, with {captures}.
        command: One line that is safe to paste, where there is one.
    """

    when: dict[str, Regex] = Field(default_factory=dict)
    cause: Text
    fix: tuple[Text, ...] = Field(min_length=1)
    command: str = ""


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
