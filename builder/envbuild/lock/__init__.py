"""Every wheel of a row by version and hash: asked of uv once, kept beside the row, checked when installed."""

from envbuild.lock.ask import inputs_digest, requirements, torch_index, with_torch_index
from envbuild.lock.file import read, requirements_txt, stale, write
from envbuild.lock.resolve import resolve
from envbuild.lock.stage import stage_local

__all__ = [
    "inputs_digest",
    "read",
    "requirements",
    "requirements_txt",
    "resolve",
    "stage_local",
    "stale",
    "torch_index",
    "with_torch_index",
    "write",
]
