"""docs/doctor.md lists every check as it is, and nothing else; every echo that a check names can be found."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from envbuild.doctor.checks import CHECKS, imports
from envbuild.doctor.order import check_of

DOCS = Path(__file__).parents[2] / "docs" / "doctor.md"
HEAD = "| check | what it looks at | when it fails, these are its echoes |\n|---|---|---|\n"
TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\n)*")


def table() -> str:
    def row(name: str, title: str, explains: tuple[str, ...]) -> str:
        return f"| `{name}` | {title} | {' '.join(f'`{each}`' for each in explains)} |\n".replace("|  |", "| |")

    return HEAD + "".join(row(check.name, check.title, check.explains) for check in CHECKS)


def test_every_check_is_listed_as_it_is() -> None:
    text = DOCS.read_text()
    if os.environ.get("UPDATE_GOLDEN"):
        DOCS.write_text(TABLE.sub(lambda found: table(), text))
        text = DOCS.read_text()
    found = TABLE.search(text)
    assert found is not None and found[0] == table(), "UPDATE_GOLDEN=1 pytest tests/unit/test_doctor_docs.py writes it"


def test_names_of_checks_are_words_that_can_be_typed_and_no_two_are_the_same() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z0-9-]*", name) for name in names)
    assert all(check.title and "|" not in check.title and not check.title.endswith(".") for check in CHECKS)


def test_what_a_check_explains_is_found_by_a_check() -> None:
    lost = [(check.name, rule) for check in CHECKS for rule in check.explains if check_of(rule, CHECKS) is None]
    assert lost == []
    # A rule stands in the source where it is given to a finding, and not only where it is explained.
    folder = Path(imports.__file__).parent
    source = {path.stem: path.read_text() for path in (*folder.glob("*.py"), *folder.parent.glob("*.py"))}
    written = Counter(re.findall(r'"([a-z0-9-]+\.[a-z0-9.-]+)"', "".join(source.values())))
    named = Counter(rule for check in CHECKS for rule in check.explains if "." in rule)
    made = {f"imports.{meaning}" for meaning in ("unknown", "nothing", *(entry[0] for entry in imports._KNOWN))}
    made |= {f"row.{part}" for part in re.findall(r'_finding\(\s*"([a-z]+)"', source["row"])}
    assert {rule for rule in named if written[rule] <= named[rule]} - made == set()


def test_the_options_that_the_docs_show_are_there() -> None:
    import typer.main

    from envbuild.cli import application

    command = typer.main.get_command(application()).commands["doctor"]  # type: ignore[attr-defined]
    known = {name for option in command.params for name in option.opts}
    lines = [line for line in DOCS.read_text().splitlines() if "envbuild doctor" in line]
    assert lines
    for line in lines:
        said = re.findall(r"(?<=\s)--?[a-z]+", line.partition("#")[0].partition("envbuild doctor")[2])
        assert set(said) <= known, line
