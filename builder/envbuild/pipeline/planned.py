"""A run on a cluster that can be submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envbuild.collector.secrets import SECRET
from envbuild.executors import Run, RunFolder, values


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run that can be submitted: its folder, its scripts by name, and what Slurm will be told.

    Attributes:
        scripts: One for each submission, in their order.
        files: What the scripts need besides.
        values: Of variables that a task needs, by its number; they are written for the user alone, and shown to nobody.
    """

    folder: RunFolder
    run: Run
    scripts: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...] = ()
    values: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        hidden = {
            values.path_of(self.folder.path, task).name: dict.fromkeys(each, SECRET)
            for task, each in self.values.items()
        }
        return {
            "run": self.run.id,
            "folder": str(self.folder.path),
            "tasks": [{"name": task.name, "argv": list(task.argv)} for task in self.run.tasks],
            "submissions": [
                {"tasks": list(each.tasks), "argv": list(each.argv), "script": text}
                for each, (_, text) in zip(self.run.submissions, self.scripts, strict=True)
            ],
            "files": {**dict(self.files), **hidden},
        }
