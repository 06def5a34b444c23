"""What every part of a collection is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Seen(BaseModel):
    """The base of all of them: frozen, and patient with what it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class Failure(Seen):
    """A part that could not be collected."""

    part: str
    error: str
