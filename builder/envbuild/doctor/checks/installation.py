"""What was installed is there as it was installed. After an install that did not end, on a disk that was full, or where
a hand removed files, a package is on every list and cannot be imported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from envbuild.doctor.checks.imports import FAILURES
from envbuild.doctor.collection import Damage, Import
from envbuild.doctor.pip import install
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity


def look(view: View) -> Iterator[Finding]:
    """Packages that are not whole. Where everything can be imported that is a note: images are made slim so."""
    imports = [seen for seen in (view.collection.torch, view.collection.deepspeed) if seen is not None]
    failed = [seen for seen in imports if not seen.ok or seen.is_empty]
    for damage in view.collection.damaged:
        blamed = any(_stops(file, damage, failed) for file in damage.missing)
        blamed = blamed or (not damage.record and any(_names(damage, seen) for seen in failed))
        yield _finding(view, damage, bool(failed), blamed)


def _stops(file: str, damage: Damage, failed: Sequence[Import]) -> bool:
    """Whether a lost file explains a failed import: native code, a package's first file, or what the words name."""
    path, _, cut = file.partition(": ")
    name = path.rpartition("/")[2]
    first = path.endswith(f"/{damage.name.replace('-', '_')}/__init__.py")
    named = re.compile(rf"\b{re.escape(name.removesuffix('.py'))}\b")
    return bool(cut) or first or ".so" in name or any(named.search(seen.error or "") for seen in failed)


def _names(damage: Damage, seen: Import) -> bool:
    """Whether a failed import speaks of a package: in its words, or in the files that it went through last."""
    module = re.escape(damage.name.replace("-", "_"))
    return any(re.search(rf"\b{module}\b", line) for line in (seen.error or "", *seen.trace[-6:]))


def _finding(view: View, damage: Damage, failed: bool, blamed: bool) -> Finding:
    named, exact = f"{damage.name} {damage.version}", f"{damage.name}=={damage.version}"
    lost = f"{damage.count} of its files {'is' if damage.count == 1 else 'are'} gone or cut short"
    half = "it has no RECORD, which pip writes last: its installation did not end"
    build = damage.version.partition("+")[2]
    where = f", from where it came (PyPI has no build {build})" if build else ""
    more = (f"and {damage.count - len(damage.missing)} more",) if damage.count > len(damage.missing) else ()
    return Finding(
        rule="installation.damaged",
        severity=Severity.INFO if not failed else Severity.ERROR if blamed else Severity.WARNING,
        subject=named,
        message=f"{named} is not whole: {lost if damage.record else half}",
        why="A package that is listed and cannot be loaded: the install was killed, the disk was full, or a hand "
        "removed files."
        if failed
        else "Whatever imports what is gone ends there; nothing that was tried does.",
        fix=f"install {exact} again over what is there{where}" if failed else "nothing to do while it works",
        command=install(view, exact, options="--ignore-installed --no-deps") if failed else "",
        evidence=(*damage.missing[:6], *more),
        source="PyPA, Recording installed projects: the package's RECORD",
    )


CHECK = Check(
    name="installation",
    title="torch, DeepSpeed and what they stand on are whole: every file that was installed is there",
    look=look,
    explains=(*FAILURES, "loader.unresolved", "abi.symbols", "ops", "cuda-libraries", "nccl"),
)
