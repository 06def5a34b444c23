"""Every wheel of a row by version and hash: asked of uv once, kept beside the row, checked when installed."""

from envbuild.lock.ask import images, inputs_digest, requirements, torch_index, with_torch_index
from envbuild.lock.file import document_of, read, requirements_txt, stale, text, write
from envbuild.lock.resolve import Missing, resolve, unresolved
from envbuild.lock.stage import stage_local

__all__ = [
    "Missing",
    "document_of",
    "images",
    "inputs_digest",
    "read",
    "requirements",
    "requirements_txt",
    "resolve",
    "stage_local",
    "stale",
    "text",
    "torch_index",
    "unresolved",
    "with_torch_index",
    "write",
]
