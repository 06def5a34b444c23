"""DeepSpeed's configuration by release: its keys, their types and defaults, and what a file comes to with them.

The data (schema.json) is read out of DeepSpeed's own releases by extract and written by pack.py; nothing of it is
typed by hand. Between two releases that were read, the lower one answers.
"""

from envbuild.dsschema.releases import DATE, NEWEST, SOURCE, VERSIONS, for_version, known, release
from envbuild.dsschema.resolving import digest, resolve
from envbuild.dsschema.types import Deprecation, Key, Schema, Section

__all__ = [
    "DATE",
    "NEWEST",
    "SOURCE",
    "VERSIONS",
    "Deprecation",
    "Key",
    "Schema",
    "Section",
    "digest",
    "for_version",
    "known",
    "release",
    "resolve",
]
