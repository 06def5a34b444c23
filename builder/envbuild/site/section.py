"""What every table of ``envbuild.toml`` is."""

from __future__ import annotations

from typing import Any

from envbuild.model import Frozen
from envbuild.site import urls


class _Masked:
    """A value that is printed without credentials."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        return urls.mask(repr(self._value))


class Section(Frozen):
    """A table of envbuild.toml. Its text form shows no credentials."""

    def __repr_args__(self) -> Any:
        return [(name, _Masked(value)) for name, value in super().__repr_args__()]
