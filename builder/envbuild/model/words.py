"""The words that rows are made of: one pattern each, so that no later code has to quote or look again.

Every text that can reach a Dockerfile or a shell is held to a pattern here, once.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

_VERSION = r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?"
Version = Annotated[str, StringConstraints(pattern=rf"^{_VERSION}$", max_length=40)]
MajorMinor = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=100)]
ImageRef = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]+([._:/-]{1,2}[a-zA-Z0-9_]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$", max_length=250
    ),
]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
# PEP 508 without markers and URLs: a name, extras, and version clauses.
Requirement = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(\[[A-Za-z0-9._,-]+\])?"
        r"((~=|===?|!=|<=?|>=?)[A-Za-z0-9.*+!_-]+(,(~=|===?|!=|<=?|>=?)[A-Za-z0-9.*+!_-]+)*)?$",
        max_length=200,
    ),
]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]*$", max_length=60)]
# One printable line, without what a shell or a Dockerfile would expand.
EnvValue = Annotated[str, StringConstraints(pattern=r"""^[^\x00-\x1f\x7f-\x9f"'\\$`\u2028\u2029]*$""", max_length=400)]
Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$", max_length=500)]
DottedNumber = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*$", max_length=40)]
Size = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*(KiB|MiB|GiB)$")]


class Frozen(BaseModel):
    """The base of everything that is read from outside."""

    # Built when first used: a run needs few of the models that it imports.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)
