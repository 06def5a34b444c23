"""What is known of a row: its facts with their sources, and how far its image has come here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild import evidence
from envbuild.errors import EnvbuildError
from envbuild.lock import stale
from envbuild.matrix import check
from envbuild.model import Environment, Level
from envbuild.pipeline.envelope import envelope
from envbuild.pipeline.locks import unresolved_text
from envbuild.pipeline.names import names
from envbuild.pipeline.prepare import errors, find_lock, prepare
from envbuild.pipeline.prove import as_dict, proven
from envbuild.pipeline.sizes import format_size
from envbuild.pipeline.workbench import Workbench

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a row has come on this machine; ``note`` says what could not be found out."""

    level: str
    image: str | None = None
    proof: tuple[Level, evidence.Evidence, Path] | None = None
    target_id: str | None = None
    note: str | None = None
    no_engine: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"level": self.level, "image": self.image, "target_id": self.target_id, "note": self.note}


def standing(bench: Workbench, env: Environment) -> Standing:
    """The strongest level of the row's image here; never raises for what merely is not there."""
    declared = Level.DECLARED.value if errors(check(env, bench.facts, None)) else Level.DERIVED.value
    try:
        target = prepare(bench, env.name, checked=False)
    except EnvbuildError as error:
        return Standing(level=declared, note=error.message)
    target_id = target.rendering.target_id
    wanted = names(env, target.rendering.id8, bench.site.registry.name)
    try:
        engine = bench.engine
    except EnvbuildError as error:
        return Standing(level=declared, target_id=target_id, note=error.message, no_engine=True)
    for ref in (*wanted.own, target.candidate):
        info = engine.image(ref)
        if info is None:
            continue
        found = proven(info, env) if evidence.is_built(target_id, info.id) else None
        return Standing(level=found[0].value if found else "unproven", image=ref, target_id=target_id, proof=found)
    return Standing(level=declared, target_id=target_id, note="no image of the current inputs on this engine")


def details(bench: Workbench, env: Environment) -> dict[str, Any]:
    """Everything ``show`` prints, as JSON-able values."""
    state = standing(bench, env)
    record = state.proof[1] if state.proof else None
    return {
        "name": env.name,
        "row": env.model_dump(mode="json", exclude={"sources"}),
        "facts": _facts(env),
        "findings": [as_dict(finding) for finding in check(env, bench.facts, bench.matrix)],
        "state": {
            "requires": env.requires,
            "level": state.level,
            "image": state.image,
            "target_id": state.target_id,
            "lock": _lock(bench, env),
            "note": state.note,
        },
        "evidence": record.model_dump(mode="json", by_alias=True) if record else None,
        "evidence_lines": lines(record, state.proof[2]) if record and state.proof else [],
    }


def lines(record: evidence.Evidence, path: Any) -> list[str]:
    """A record for people: what ran, where, and the figures that were judged."""
    out = [
        f"Evidence: level {record.level.value}, {record.finished:%Y-%m-%d %H:%M} UTC, suite {record.suite[:12]}"
        + (f", a long run of {record.long_seconds:.0f} s" if record.long_seconds else ""),
        f"  image    {record.image.config_digest[:19]}, {len(record.image.diff_ids)} layers, "
        f"{format_size(record.size_bytes)}, {record.platform}",
        f"  base     {record.base.get('how', 'unknown')}: {record.base.get('declared', 'unknown')}",
        f"  host     {record.host.cpu}, {record.host.cpus} CPUs, {format_size(record.host.memory_bytes)}; "
        f"{record.host.engine}",
        *_gpus(record.host),
        "  claims   " + ", ".join(f"{name} {value}" for name, value in record.claims.items()),
        *envelope(record.portability, record.content),
        "  seconds  " + ", ".join(f"{name} {value:.1f}" for name, value in record.seconds.items()),
    ]
    for name, report in record.smoke.items():
        out += [f"  smoke    {name}: {line}" for line in _figures(report)]
    out.append(f"  record   {path}")
    # A record is a file that anybody may have written: no escape sequence of it reaches a terminal.
    return [_CONTROLS.sub("?", line) for line in out]


def _gpus(host: evidence.Host) -> list[str]:
    if not host.gpus:
        return []
    names = [str(gpu.get("name", "unknown")) for gpu in host.gpus]
    told = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return [f"  gpus     {told}; driver {host.driver or 'unknown'}, CUDA {host.cuda or 'unknown'}"]


def _figures(report: dict[str, Any]) -> list[str]:
    from envbuild.pipeline.summary import summary

    return summary(report)


def _lock(bench: Workbench, env: Environment) -> str:
    try:
        found = find_lock(bench, env)
    except EnvbuildError as error:
        return error.message
    if found is None:
        return f"none yet (envbuild lock {env.name})"
    path, lock = found
    finding = stale(lock, env, env.platforms[0])
    if finding is None and not lock.resolved:
        return f"{path}: {unresolved_text(lock)}"
    return f"{path}: {finding.message if finding else f'{len(lock.packages)} packages, by {lock.resolver}'}"


def _facts(env: Environment) -> list[dict[str, str]]:
    """One line for each fact: dotted name, value, mark, source with its date."""
    values = {
        "base": env.base.image + (f"@{env.base.digest}" if env.base.digest else ""),
        "python": env.python,
        "gcc": f"{env.gcc.version} ({env.gcc.package})",
        "torch": env.torch_version,
        "deepspeed": f"{env.deepspeed.version} (ops: {', '.join(env.deepspeed.ops)})",
        "cuda": f"{env.cuda.version} (toolkit: {env.cuda.toolkit})" if env.cuda else None,
        "nccl": env.nccl,
        "gpus": ", ".join(env.gpus) or None,
    }
    rows = []
    for name, source in env.sources.items():
        value = values[name] if name in values else _value(env, name)
        note = f"; {source.note}" if source.note else ""
        rows.append(
            {
                "name": name,
                "value": value or "-",
                "mark": source.mark.value,
                "source": f"{source.source} ({source.date}){note}",
            }
        )
    return rows


def _value(env: Environment, path: str) -> str | None:
    """A fact that has no words of its own: what the row holds at a dotted path."""
    node: Any = env.model_dump(mode="json")
    for part in path.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    if isinstance(node, list):
        return ", ".join(item["requirement"] if isinstance(item, dict) else str(item) for item in node)
    return None if node is None else str(node)
