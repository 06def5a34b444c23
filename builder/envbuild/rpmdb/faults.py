"""What is wrong with a database of packages."""

from __future__ import annotations

from envbuild.errors import GateError


class RpmdbError(GateError):
    """A database, or one header in it, that cannot be understood; ``message`` says why."""

    code = "rpmdb"
