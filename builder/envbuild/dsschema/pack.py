"""Writes schema.json from what extract.py printed, one file for each release; what releases have in common once.

python -m envbuild.dsschema.pack EXTRACTED.json...
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envbuild.dsschema.releases import FILE, release

SOURCE = "DeepSpeed's own releases: source archives on PyPI, read by envbuild/dsschema/extract.py"


def pack(extracted: Sequence[Mapping[str, Any]], date: str) -> dict[str, Any]:
    """The content of schema.json."""
    store = _Store()
    releases = {
        each["deepspeed"]: {
            "pydantic": each["pydantic"], "root": store.section(each["root"]), "by_stage": each["by_stage"],
            "optimizers": each["optimizers"], "schedulers": each["schedulers"],
        }
        for each in sorted(extracted, key=lambda each: release(each["deepspeed"]))
    }  # fmt: skip
    return {
        "schema": "envbuild.dsschema/1", "date": date, "source": SOURCE, "releases": releases,
        "sections": store.sections, "keys": store.keys,
    }  # fmt: skip


class _Store:
    """Every different key and section, once."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.sections: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}

    def section(self, said: Mapping[str, Any]) -> int:
        kept: dict[str, Any] = {"extra": said["extra"]}
        if said["model"]:
            kept["model"] = said["model"]
        if said.get("removed"):
            kept["removed"] = said["removed"]
        kept["keys"] = {name: self._key(key) for name, key in said["keys"].items()}
        return self._number(self.sections, kept)

    def _key(self, said: Mapping[str, Any]) -> int:
        kept = {name: said[name] for name in ("types", "enum", "bounds", "required", "deprecated") if said.get(name)}
        if len(said["names"]) > 1:
            kept["also"] = said["names"][1:]
        if said["default"] is not None:
            kept["default"] = said["default"]
        kept["takes"] = said["takes"]
        if "section" in said:
            kept["section"] = self.section(said["section"])
        return self._number(self.keys, kept)

    def _number(self, values: list[dict[str, Any]], kept: dict[str, Any]) -> int:
        name = f"{'section' if values is self.sections else 'key'} {json.dumps(kept)}"
        if name not in self._numbers:
            self._numbers[name] = len(values)
            values.append(kept)
        return self._numbers[name]


def main() -> None:
    """Write the file."""
    extracted = [json.loads(Path(name).read_bytes()) for name in sys.argv[1:]]
    packed = pack(extracted, datetime.datetime.now(datetime.timezone.utc).date().isoformat())
    # A line for each entry: a change of one key is a change of one line.
    lines = json.dumps(packed, separators=(",", ":"))
    for part in ("sections", "keys"):
        text = json.dumps(packed[part], separators=(",", ":"))
        each = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in packed[part])
        lines = lines.replace(f'"{part}":{text}', f'\n"{part}":[\n{each}\n]')
    FILE.write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
