"""The program: the console script ``envbuild`` and ``python -m envbuild``."""

from __future__ import annotations

import gc
import os

from envbuild import own_variables


def main() -> None:
    """Run the command line.

    Pydantic asks the metadata of every installed package for plug-ins of its own, at each start: beside a torch that is
    a tenth of the time of a build with nothing to do, and it would let strangers' code into our parsing. The variable
    must be set before the first import of pydantic; children do not see it.
    """
    if "PYDANTIC_DISABLE_PLUGINS" not in os.environ:
        os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
        own_variables.add("PYDANTIC_DISABLE_PLUGINS")
    # What starting up makes stays: looking through it for garbage, again and again, is a twentieth of a short command.
    gc.set_threshold(50_000)
    from envbuild.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
