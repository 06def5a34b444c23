"""An export, part by part: what it would be, and writing it."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild.bundle import differential, image, rpms, scripts
from envbuild.bundle.sections import Target
from envbuild.bundle.signing import Signer
from envbuild.bundle.words import DOCTOR, SBOM, Part
from envbuild.bundle.writing import Draft
from envbuild.doctor import archive as doctor
from envbuild.events import Sink, StepDone, StepLine, StepStarted
from envbuild.judge.suite import probes_folder
from envbuild.model import Environment, Finding
from envbuild.pipeline import exported_rpms, exported_wheels, materials
from envbuild.pipeline.exported import Wish
from envbuild.pipeline.exported_bill import bill
from envbuild.pipeline.exported_image import Carried
from envbuild.pipeline.exported_parts import without_toolkit
from envbuild.pipeline.prepare import Target as Row
from envbuild.pipeline.sizes import format_media
from envbuild.pipeline.workbench import Workbench

_REPORT_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What an export would write.

    Attributes:
        row: With its lock; None where neither wheels nor image are wanted.
        to: The machines that it is for.
        created: The bundle's own time.
    """

    env: Environment
    row: Row | None
    to: Target
    parts: tuple[Part, ...]
    wish: Wish
    created: str
    findings: tuple[Finding, ...]
    packages: rpms.Plan | None = None
    wheels: exported_wheels.Chosen | None = None
    image: Carried | None = None
    base: differential.Known | None = None

    @property
    def name(self) -> str:
        """What the bundle is called."""
        return self.wish.name or self.env.name

    @property
    def bytes(self) -> int:
        """About how much it has, as far as repositories and indexes say; without scripts and lists."""
        return sum(size for size, _ in self._contents())

    @property
    def carried_bytes(self) -> int:
        """About how much of that its base has not."""
        return sum(size for size, known in self._contents() if not known)

    def _contents(self) -> Iterator[tuple[int, bool]]:
        """Bytes of each thing, and whether the base has it."""
        theirs = {sha256 for sha256, _ in self.base.files.values()} if self.base is not None else set()
        for package in self.packages.packages if self.packages is not None else ():
            yield package.bytes, package.checksum[1] in theirs
        for choice in self.wheels.choices if self.wheels is not None else ():
            yield exported_wheels.size_of(choice) or 0, choice.file is not None and choice.file.sha256 in theirs
        if self.image is not None and "image" in self.parts:
            other = self.base.manifest.image if self.base is not None else None
            yield self.image.size, other is not None and other.reference == self.image.reference

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        packages, chosen = self.packages, self.wheels
        return {
            "name": self.name,
            "row": self.env.name,
            "parts": list(self.parts),
            "target": self.to.model_dump(mode="json"),
            "created": self.created,
            "rpms": None if packages is None else {
                "roots": list(packages.request.roots),
                "repositories": [{"id": each.id, "url": each.url} for each in packages.repositories],
                "targets": {each.target.name: len(each.installs) for each in packages.closures},
                "packages": [
                    {"nevra": str(each.nevra), "bytes": each.bytes, "installed_bytes": each.installed_bytes,
                     "repository": each.repository, "checksum": ":".join(each.checksum), "licence": each.licence}
                    for each in packages.packages
                ],
                "bytes": packages.bytes,
                "installed_bytes": packages.installed_bytes,
            },
            "wheels": None if chosen is None else {
                "python": chosen.wish.lock.python,
                "files": [
                    {"name": each.file.filename, "bytes": exported_wheels.size_of(each), "sha256": each.file.sha256}
                    for each in chosen.choices if each.file is not None
                ],
                "of_the_image": list(chosen.compiled),
                "bytes": chosen.bytes,
            },
            "image": None if self.image is None or "image" not in self.parts else {
                "reference": self.image.reference, "level": self.image.level.value, "bytes": self.image.size,
            },
            "base": self.base.base.name if self.base else None,
            "bytes": self.bytes,
            "carried_bytes": self.carried_bytes if self.base else None,
            "volume_bytes": self.wish.volume,
        }  # fmt: skip


class Writer:
    """Writes one part after the other; each returns what the manifest says of it."""

    def __init__(self, bench: Workbench, planned: Planned, draft: Draft, openpgp: Signer | None) -> None:
        self._bench, self._planned, self._draft, self._openpgp = bench, planned, draft, openpgp
        self._checked: tuple[rpms.Checked, ...] = ()
        self.findings: list[Finding] = []

    def common(self) -> dict[str, Any]:
        """The scripts, and the programs that the target proves itself with."""
        for name, data in scripts.files().items():
            self._draft.write(name, data, program="/" not in name)
        self._draft.write(scripts.README, scripts.readme())
        if "doctor" in self._planned.parts:
            self._draft.write(DOCTOR, doctor.archive(self._bench.cache).read_bytes(), "doctor", program=True)
        if "wheels" in self._planned.parts:
            for path in sorted(probes_folder().glob("*.py")):
                self._draft.write(f"probes/{path.name}", path.read_bytes())
        return {}

    def rpms(self, checked: rpms.Check | None) -> dict[str, Any]:
        """The repository, and the keys of its packages."""
        planned = self._planned
        if planned.packages is None or checked is None:
            return {}
        moment = datetime.datetime.fromisoformat(planned.created.replace("Z", "+00:00"))
        made = exported_rpms.write(
            self._draft, planned.packages, checked, created=planned.created, seconds=int(moment.timestamp()),
            signer=self._openpgp, sink=self._bench.sink,
        )  # fmt: skip
        self._checked = made.checked
        self.findings += made.findings
        return {"rpms": made.section}

    def wheels(self, scratch: Path) -> dict[str, Any]:
        """The wheels."""
        planned = self._planned
        if planned.wheels is None or planned.row is None:
            return {}
        info = planned.image.info if planned.image is not None else None
        made = exported_wheels.write(self._bench, planned.row, planned.wheels, info, self._draft, scratch)
        if planned.wheels.compiled and made.deepspeed == "source":
            self.findings += without_toolkit(planned.env)
        return {"wheels": made}

    def image(self) -> dict[str, Any]:
        """The image, what it has proved, and what it is made of."""
        carried, name = self._planned.image, self._planned.env.name
        if carried is None or "image" not in self._planned.parts:
            return {}
        source, path = carried.source(self._bench), f"images/{name}.oci.tar"
        self._draft.stream(path, image.archive(source), "image")
        if carried.info is not None:
            own = materials.bill(self._bench, carried.reference, carried.info)
            self._draft.write(f"images/{name}.cdx.json", own.data, "image")
        evidence = carried.put_evidence(self._draft, name)
        return {"image": image.described(source, path, evidence)}

    def bill(self, sections: Mapping[str, Any]) -> None:
        """What is in the whole bundle."""
        data = bill(
            self._planned.name, self._planned.created, self._planned.to, packages=self._checked,
            wheels=sections.get("wheels"), image=sections.get("image"),
        )  # fmt: skip
        self._draft.write(SBOM, data)


class Progress:
    """How much of something is done, as lines of one step; told from several threads.

    Args:
        name: Of the step.
        verb: Behind the number of bytes, such as ``written``.
    """

    def __init__(self, sink: Sink, name: str, verb: str) -> None:
        self._sink, self._name, self._verb = sink, name, verb
        self._began = self._last = time.monotonic()
        self._count = 0

    def __call__(self, count: int) -> None:
        if self._count == 0:
            self._sink(StepStarted(key=self._name, name=self._name))
        self._count += count
        if (now := time.monotonic()) - self._last > _REPORT_SECONDS:
            self._last = now
            self._sink(StepLine(key=self._name, text=f"{format_media(self._count)} {self._verb}"))

    def done(self) -> None:
        """It ended well."""
        seconds = time.monotonic() - self._began
        if self._count:
            self._sink(StepDone(key=self._name, name=self._name, status="done", seconds=seconds))
