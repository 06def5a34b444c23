"""One piece of a refresh: told to the audience, and what it cannot read written down."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from envbuild.events import Sink, StepDone, StepStarted
from envbuild.facts.refresh.reading import Notebook
from envbuild.facts.upstream import Shape
from envbuild.facts.upstream.archive import Whole
from envbuild.net import Missing, NetworkError


@contextlib.contextmanager
def step(sink: Sink, name: str) -> Iterator[None]:
    """A step with a beginning and an end, whatever happens in it."""
    began = time.monotonic()
    sink(StepStarted(key=name, name=name))
    status = "error"
    try:
        yield
        status = "done"
    finally:
        sink(StepDone(key=name, name=name, status=status, seconds=time.monotonic() - began))


@contextlib.contextmanager
def attempt(book: Notebook, subject: str, failed: list[str] | None = None, *, network: bool = False) -> Iterator[None]:
    """Write down what one file refuses to tell, and go on with the others.

    Args:
        failed: Gets the subject then.
        network: Whether a server that does not answer is no more than that; else it ends the refresh.
    """
    try:
        yield
    except Whole as error:
        book.missed(subject, error.message, hint=error.hint)
    except (Shape, Missing) as error:
        book.missed(subject, error.message, hint=error.hint, failed=True)
    except NetworkError as error:
        if not network:
            raise
        book.missed(subject, error.message, hint=error.hint)
    else:
        return
    if failed is not None:
        failed.append(subject)
