"""Plan to text: a Dockerfile with its context, a script for a bare host, an Apptainer definition.

Pure but for reading templates; the same Plan gives the same bytes, everywhere.
"""

from envbuild.render.context import GROUPS, Rendering, dockerfile, render, write
from envbuild.render.scripts import apptainer, provision

__all__ = ["GROUPS", "Rendering", "apptainer", "dockerfile", "provision", "render", "write"]
