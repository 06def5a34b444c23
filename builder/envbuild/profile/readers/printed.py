"""What programs print of a step: its loss, its gradient's norm, its number. One rule for logs that are read and for
trainings that are watched."""

from __future__ import annotations

import re

FLOAT = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_LOSS = re.compile(
    rf"(?<![\w-])['\"]?(?:lm |train_|training )?loss['\"]?\s{{0,8}}[:=]\s{{0,8}}['\"]?({FLOAT})(?![\w.])", re.IGNORECASE
)
NORM = re.compile(
    rf"['\"]?grad(?:ient)?[_ ]norm['\"]?\s{{0,8}}[:=]\s{{0,8}}['\"]?({FLOAT})(?![\w.])", re.IGNORECASE
)  # fmt: skip
# Neither of micro-steps, which are several in a step, nor a time ("iter: 0.35 s", "iter 12ms").
NUMBER = re.compile(
    r"(?<![\w-])(?<!micro )(?:global_?)?(?:step|iteration|iter)['\"]?\s{0,8}[:=\[ ]\s{0,8}(\d{1,12})(?!\w|\.\d)",
    re.IGNORECASE,
)
# Whose loss it is, by the words in front of it, of which the last one counts: directly ("val loss", "[test] loss",
# "eval/loss", "aux loss"), or as a heading ("Validation step 3, loss"). A word in a path is none.
_WHOSE = re.compile(
    r"(?<![\w/.-])(?:(train(?:ing)?)|val|validat(?:ion|ing)|eval|evaluat(?:ion|ing)"
    r"|(?:test|testing|valid|dev)(?= (?:step|epoch|iter|batch|set)\w*\b)"
    r"|(?:test|testing|valid|dev|aux|auxiliary)(?=[\s\])>:|,/._-]{1,4}$))(?![\w-])", re.IGNORECASE
)  # fmt: skip
# What a Trainer says at its end: the mean of all its steps.
_SUMMARY = "train_runtime"


def loss_of(line: str) -> float | None:
    """The loss that a line tells of the training; that of an evaluation, a test or a summary is none."""
    if _SUMMARY in line:
        return None
    for found in _LOSS.finditer(line):
        words = list(_WHOSE.finditer(line[: found.start()]))
        if not words or words[-1][1]:
            return float(found[1])
    return None


def tells_loss(line: str) -> bool:
    """Whether a line tells any loss, whosever it is."""
    return _LOSS.search(line) is not None
