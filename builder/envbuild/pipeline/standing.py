"""How far rows have come: on this machine, and by the evidence that was committed with them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuild import evidence, store
from envbuild.errors import EnvbuildError
from envbuild.matrix import check
from envbuild.model import Environment, Level
from envbuild.pipeline.names import names
from envbuild.pipeline.prepare import Target, errors, prepare

if TYPE_CHECKING:
    from envbuild.engines import ImageInfo
    from envbuild.pipeline.workbench import Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The evidence that was committed with a row; ``current`` is whether it is of the row's inputs as they are now."""

    level: Level
    finished: datetime.datetime
    path: Path
    current: bool | None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "level": self.level.value,
            "finished": self.finished.isoformat(),
            "path": str(self.path),
            "current": self.current,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a row has come on this machine.

    Attributes:
        level: The strongest level of its image here; ``unproven`` for one that has shown nothing to the current suite;
            without an image, ``derived`` or ``declared``.
        text: The same for people.
        broken: The rules that the row breaks.
        recorded: Evidence that was committed.
        note: What could not be found out.
    """

    level: str
    text: str
    image: str | None = None
    proof: tuple[Level, evidence.Evidence, Path] | None = None
    target_id: str | None = None
    broken: tuple[str, ...] = ()
    recorded: Recorded | None = None
    note: str | None = None
    no_engine: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "level": self.level,
            "standing": self.text,
            "image": self.image,
            "target_id": self.target_id,
            "broken": list(self.broken),
            "recorded": self.recorded.as_dict() if self.recorded else None,
            "note": self.note,
        }


def standing(bench: Workbench, env: Environment) -> Standing:
    """How far a row has come; never raises for what merely is not there."""
    return _standing(bench, env, exact=True, there=None)


def standings(bench: Workbench, rows: Iterable[Environment], *, exact: bool = False) -> list[Standing]:
    """The same for many rows, in their order.

    Args:
        exact: Work out every target's id. Without it rows that nothing here speaks of are not rendered, and have none.
    """
    wanted = list(rows)
    there = None if exact else _repositories(bench)
    return [_standing(bench, env, exact=exact, there=there) for env in wanted]


def _repositories(bench: Workbench) -> frozenset[str] | None:
    """Names without tags of all images that envbuild may have made here; None when no engine says."""
    prefix = bench.site.registry.name
    try:
        found = bench.engine.images(f"{prefix.rstrip('/')}/envbuild/*" if prefix else "envbuild/*")
        found += bench.engine.images("envbuild/*") if prefix else ()
    except EnvbuildError:
        return None
    return frozenset(tag.rpartition(":")[0] for image in found for tag in image.repo_tags)


def _standing(bench: Workbench, env: Environment, *, exact: bool, there: frozenset[str] | None) -> Standing:
    broken = tuple(dict.fromkeys(finding.rule for finding in errors(check(env, bench.facts, None))))
    level = (Level.DECLARED if broken else Level.DERIVED).value
    path = bench.project.images / env.name / "record.json"
    repository = names(env, "", bench.site.registry.name).repository
    known = there is not None and not {repository, f"envbuild/{env.name}"} & there
    if not exact and not path.is_file() and (known or (there is None and not _ever_built())):
        note = "no image on this engine" if known else _no_engine(bench)
        return Standing(level=level, text=_never(broken), broken=broken, note=note, no_engine=not known)
    target, problem = _target(bench, env)
    recorded = _recorded(env, path, target)
    text = _text(recorded, broken)
    if target is None:
        return Standing(level=level, text=text, broken=broken, recorded=recorded, note=problem)
    target_id = target.rendering.target_id
    wanted = names(env, target.rendering.id8, bench.site.registry.name)
    try:
        engine = bench.engine
    except EnvbuildError as error:
        here = (store.home() / "built" / target_id).is_file()
        return Standing(
            level=level, text="built; no engine answers" if here else text, target_id=target_id, broken=broken,
            recorded=recorded, note=error.message, no_engine=True,
        )  # fmt: skip
    for ref in (*wanted.own, target.candidate):
        info = engine.image(ref)
        if info is None:
            continue
        found = _proven(info, env) if evidence.is_built(target_id, info.id) else None
        return Standing(
            level=found[0].value if found else "unproven", text=found[0].value if found else "unproven", image=ref,
            target_id=target_id, proof=found, broken=broken, recorded=recorded,
        )  # fmt: skip
    if recorded is None and (there if there is not None else _repositories(bench) or frozenset()) & {repository}:
        text = "older inputs"
    return Standing(
        level=level, text=text, target_id=target_id, broken=broken, recorded=recorded,
        note="no image of the current inputs on this engine",
    )  # fmt: skip


def _proven(info: ImageInfo, env: Environment) -> tuple[Level, evidence.Evidence, Path] | None:
    from envbuild.pipeline.prove import proven

    return proven(info, env)


def _target(bench: Workbench, env: Environment) -> tuple[Target | None, str]:
    try:
        return prepare(bench, env.name, checked=False), ""
    except EnvbuildError as error:
        return None, error.message


def _no_engine(bench: Workbench) -> str:
    try:
        _ = bench.engine
    except EnvbuildError as error:
        return error.message
    return ""


def _ever_built() -> bool:
    """Whether anything was built with this store."""
    folder = store.home() / "built"
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _recorded(env: Environment, path: Path, target: Target | None) -> Recorded | None:
    if not path.is_file():
        return None
    try:
        record = evidence.read(path)
    except EnvbuildError:
        return None
    if record.environment != env.name:
        return None
    current = record.target_id == target.rendering.target_id if target else None
    return Recorded(level=record.level, finished=record.finished, path=path, current=current)


def _text(recorded: Recorded | None, broken: tuple[str, ...]) -> str:
    if recorded is None:
        return _never(broken)
    older = " (older)" if recorded.current is False else ""
    return f"recorded {recorded.level.value} {recorded.finished:%Y-%m-%d}{older}"


def _never(broken: tuple[str, ...]) -> str:
    return f"never built; breaks {', '.join(broken)}" if broken else "never built"
