"""SARIF 2.1.0: what code hosts require of it, and what they show."""

from __future__ import annotations

from envbuild.dsconfig.context import Context
from envbuild.dsconfig.document import parse
from envbuild.dsconfig.linting import lint
from envbuild.dsconfig.sarif import sarif
from envbuild.pipeline.linting import titles


def test_a_log_says_what_where_and_by_which_rule() -> None:
    found = lint(parse('{\n "zero_optimisation": {}, // so\n}', "conf/ds #1.json"), Context(deepspeed="0.19.8"))
    log = sarif(found, titles(), "1.2.3")
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    driver = log["runs"][0]["tool"]["driver"]
    assert driver["name"]
    rules = [rule["id"] for rule in driver["rules"]]
    for rule in driver["rules"]:
        assert all(rule[part]["text"] for part in ("shortDescription", "fullDescription", "help"))
    assert len(rules) == len(set(rules))
    results = log["runs"][0]["results"]
    assert len(results) == len(found)
    for result in results:
        assert result["ruleId"] == rules[result["ruleIndex"]]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "conf/ds%20%231.json"
        assert min(place["region"].values()) >= 1
        assert result["partialFingerprints"]
    unknown = next(result for result in results if result["ruleId"] == "schema.unknown")
    assert unknown["level"] == "error"
    assert unknown["locations"][0]["physicalLocation"]["region"] == {"startLine": 2, "startColumn": 2}


def test_fingerprints_outlive_a_line_above() -> None:
    def marks(text: str) -> list[object]:
        log = sarif(lint(parse(text, "ds.json"), Context(deepspeed="0.19.8")), titles(), "1")
        return [each["partialFingerprints"] for each in log["runs"][0]["results"] if each["ruleId"] == "schema.unknown"]

    first = marks('{"zzz": 1}')
    assert first
    assert marks('{\n\n"zzz": 1}') == first
    assert marks('{"zzy": 1}') != first
