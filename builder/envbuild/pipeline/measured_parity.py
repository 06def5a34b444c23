"""Whether the measured step is the right one: DeepSpeed's figures beside plain torch's. Pure.

The limits are those by which the proof's own sabotages (doubled gradients, no reduction, none at all) are caught; see
docs/profile.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envbuild.judge.number import number
from envbuild.profile.document import Parity

_RATIO = 0.01
# Relative error of the gradients, absolute error of the loss; parameters are compared in fp32 only.
_GRADIENT = {"fp32": 1e-5, "bf16": 5e-2, "fp16": 5e-2}
_LOSS = {"fp32": 1e-5, "bf16": 5e-3, "fp16": 5e-3}
_PARAMETER = 1e-3


def parity_of(reports: Sequence[Mapping[str, Any]]) -> tuple[Parity, ...]:
    """One judgement over all ranks: the worst figure of each counts, and a figure that is missing does not pass."""
    if not reports:
        return ()
    precision = str(reports[0].get("precision"))
    gradients = [report.get("gradients") or {} for report in reports]
    error = _worst([each.get("relative_error") for each in gradients])
    ratio = _farthest([each.get("ratio") for each in gradients])
    clean = all(each.get(name) == 0 for each in gradients for name in ("missing", "zero", "nonfinite"))
    passed = clean and _within(error, _GRADIENT[precision]) and ratio is not None and abs(ratio - 1) <= _RATIO
    loss = parameter = None
    if all(report.get("optimizer_compared") for report in reports):
        loss = _worst([apart for report in reports for apart in _apart(report)])
        parameter = _worst([(report.get("parameters") or {}).get("relative_error") for report in reports])
        passed = passed and _within(loss, _LOSS[precision])
        passed = passed and (precision != "fp32" or _within(parameter, _PARAMETER))
    return (
        Parity.model_validate(
            {
                "precision": precision, "passed": passed, "gradient_error": error, "gradient_ratio": ratio,
                "loss_error": loss, "parameter_error": parameter,
            }
        ),
    )  # fmt: skip


def _apart(report: Mapping[str, Any]) -> list[Any]:
    ours, theirs = report.get("losses") or [None], report.get("reference_losses") or [None]
    if len(ours) != len(theirs):
        return [None]
    pairs = [(number(one), number(two)) for one, two in zip(ours, theirs, strict=True)]
    return [None if one is None or two is None else abs(one - two) for one, two in pairs]


def _worst(values: Sequence[Any]) -> float | None:
    known = [number(value) for value in values]
    return None if not known or any(value is None for value in known) else max(v for v in known if v is not None)


def _farthest(values: Sequence[Any]) -> float | None:
    known = [number(value) for value in values]
    if not known or any(value is None for value in known):
        return None
    return max((value for value in known if value is not None), key=lambda value: abs(value - 1))


def _within(value: float | None, limit: float) -> bool:
    return value is not None and value <= limit
