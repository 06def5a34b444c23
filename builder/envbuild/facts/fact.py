"""What every fact carries."""

from __future__ import annotations

import datetime

from pydantic import ConfigDict

from envbuild.model import Frozen, Line, Mark


class Lazy(Frozen):
    """The base of everything in the facts."""

    # One validator is built for the whole document instead of one a class: import is on the path of every build.
    model_config = ConfigDict(defer_build=True)


class Fact(Lazy):
    """A statement with its evidence: how far it was checked, where, and when."""

    mark: Mark
    source: Line
    date: datetime.date
    note: Line = ""
