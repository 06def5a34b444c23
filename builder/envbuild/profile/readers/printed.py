"""What programs print of a step: its loss, its gradient's norm, its number. One rule for logs that are read and for
trainings that are watched."""

from __future__ import annotations

import re
from itertools import islice

FLOAT = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
# "loss: 2.31", "'loss': 2.31", "loss=tensor(2.31, ...", and "loss 2.31", which needs its point.
_IS = r"['\"]?\s{0,8}[:=]\s{0,8}['\"]?(?:tensor\(\[?)?"
_LOSS = re.compile(
    rf"(?<![\w-])['\"]?(lm |train_|training )?loss(?:{_IS}({FLOAT})|"
    r"\s{1,8}([-+]?(?:\d+\.\d+(?:[eE][-+]?\d+)?|nan|inf)))(?![\w.])", re.IGNORECASE
)  # fmt: skip
NORM = re.compile(rf"['\"]?grad(?:ient)?[_ ]norm{_IS}({FLOAT})(?![\w.])", re.IGNORECASE)
# Neither of micro-steps, which are several in a step, nor a time ("iter: 0.35 s", "iter 12ms").
NUMBER = re.compile(
    r"(?<![\w-])(?<!micro )(?:global_?)?(?:step|iteration|iter)['\"]?\s{0,8}[:=\[ ]\s{0,8}(\d{1,12})(?!\w|\.\d)",
    re.IGNORECASE,
)
# Whose loss it is, by the words in front of it, of which the last one counts: directly ("val loss", "[test] loss",
# "eval/loss", "aux loss"), or as a heading ("Validation step 3, loss") as fairseq's is
# ("| valid | epoch 001 | loss"). A word in a path is none.
_WHOSE = re.compile(
    r"(?<![\w/.-])(?:(train(?:ing)?)|val|validat(?:ion|ing)|eval|evaluat(?:ion|ing)"
    r"|(?:test|valid)(?= \| )|(?:test|testing|valid|dev)(?= (?:step|epoch|iter|batch|set)\w*\b)"
    r"|(?:test|testing|valid|dev|aux|auxiliary)(?=[\s\])>:|,/._-]{1,4}$))(?![\w-])", re.IGNORECASE
)  # fmt: skip
# A word that is its name, where it is none of these; no end of a number ("1e-4 loss"), and none that counts ("step5").
_NAME = re.compile(r"(?<![\w.-])([A-Za-z][\w-]*?)\d*[ /.]$")
_USUAL = frozenset(
    {"train", "training", "lm", "total", "the", "batch", "step", "iter", "iteration", "epoch", "mean", "avg", "average",
     "current", "running", "overall", "global", "model", "final", "info", "debug"}
)  # fmt: skip
_MOST = 16
# What a Trainer says at its end: the mean of all its steps.
_SUMMARY = "train_runtime"


def losses_of(line: str) -> list[tuple[str, float]]:
    """The losses that a line tells of the training, each with its name where that is none of the usual ones ("D loss").

    Those of an evaluation, a test or a summary are none.
    """
    if _SUMMARY in line:
        return []
    told = []
    for found in islice(_LOSS.finditer(line), _MOST):
        words = list(_WHOSE.finditer(line[: found.start()]))
        if not words or words[-1][1]:
            before = None if found[1] else _NAME.search(line, max(0, found.start() - 32), found.start())
            name = before[1].lower() if before else ""
            told.append(("" if name in _USUAL else name, float(found[2] or found[3])))
    return told


def loss_of(line: str) -> tuple[str, float] | None:
    """The one that is trained on, with its name: the first that has a usual name, else the first."""
    told = losses_of(line)
    return next((each for each in told if not each[0]), told[0]) if told else None


def tells_loss(line: str) -> bool:
    """Whether a line tells any loss, whosever it is."""
    return _LOSS.search(line) is not None
