"""From a failing log to its root cause, and the echoes that it explains."""

from envbuild.diagnose.engine import diagnose, diagnose_text
from envbuild.diagnose.library import Library, load
from envbuild.diagnose.signature import Signature
from envbuild.diagnose.types import Cause, Diagnosis, Echo, Evidence, as_dict, evidence_dict

__all__ = [
    "Cause", "Diagnosis", "Echo", "Evidence", "Library", "Signature", "as_dict", "diagnose", "diagnose_text",
    "evidence_dict", "load",
]  # fmt: skip
