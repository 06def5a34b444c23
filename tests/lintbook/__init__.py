"""Configurations that break a rule of lint's, and configurations that keep it; and what DeepSpeed does with both."""

from lintbook.broken import BROKEN
from lintbook.case import HARMFUL, IGNORED, REJECTED, UNSEEN, Case
from lintbook.kept import FILES, KEPT

__all__ = ["BROKEN", "FILES", "HARMFUL", "IGNORED", "KEPT", "REJECTED", "UNSEEN", "Case"]
