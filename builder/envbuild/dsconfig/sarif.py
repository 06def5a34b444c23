"""Findings as SARIF 2.1.0, which code hosts show beside the lines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from envbuild.model.finding import Finding, Severity

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def sarif(found: Iterable[Finding], rules: Mapping[str, str], version: str) -> dict[str, Any]:
    """The log of one run.

    Args:
        rules: The title of each rule by its id.
        version: Envbuild's own.
    """
    names = list(rules)
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "envbuild lint",
                        "semanticVersion": version,
                        "rules": [_rule(name, title) for name, title in rules.items()],
                    }
                },
                # Columns are counted as Python counts: in code points.
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, names) for finding in found],
            }
        ],
    }


def _rule(name: str, title: str) -> dict[str, Any]:
    # GitHub wants all three of them.
    text = {"text": f"{title[:1].upper()}{title[1:]}."}
    about = f"envbuild lint --rule {name} looks for this alone; --ignore {name} leaves it out."
    return {"id": name, "shortDescription": text, "fullDescription": text, "help": {"text": about}}


def _result(finding: Finding, names: list[str]) -> dict[str, Any]:
    text = ". ".join(part.rstrip(".") for part in (finding.message, finding.why, finding.fix) if part)
    # What is wrong, and with what: the same after lines were added above.
    mark = hashlib.sha256(f"{finding.rule}\0{finding.subject}\0{finding.message}".encode("utf-8", "replace"))
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{text}."},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(finding.file or "")},
                    "region": {"startLine": finding.line or 1, "startColumn": finding.column or 1},
                }
            }
        ],
        "partialFingerprints": {"envbuildFinding/v1": mark.hexdigest()[:32]},
    }
    if finding.rule in names:
        result["ruleIndex"] = names.index(finding.rule)
    return result


def _uri(name: str) -> str:
    from urllib.parse import quote

    if name == "<stdin>":
        return "stdin"
    # Relative paths stay relative: a code host finds the file by them.
    quoted = quote(name.removeprefix("./").encode("utf-8", "surrogateescape"))
    return f"file://{quoted}" if name.startswith("/") else quoted
