"""The table of sabotages. To add one: what was done, the finding that must name it, a word of its message, and how."""

from __future__ import annotations

from sabotage.content import CONTENT
from sabotage.smoke import SMOKE

SABOTAGES = (*CONTENT, *SMOKE)
