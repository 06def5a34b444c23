"""Everything about one row: its facts with their sources, what they stand on, and how far its image has come here."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from envbuild import evidence
from envbuild.errors import EnvbuildError
from envbuild.lock import stale
from envbuild.matrix import check
from envbuild.model import Environment
from envbuild.pipeline import performance
from envbuild.pipeline.envelope import envelope
from envbuild.pipeline.locks import unresolved_text
from envbuild.pipeline.performance_told import required
from envbuild.pipeline.prepare import find_lock
from envbuild.pipeline.proof import as_dict
from envbuild.pipeline.sizes import format_size
from envbuild.pipeline.standing import Standing, standing
from envbuild.pipeline.upstream import upstream
from envbuild.pipeline.workbench import Workbench

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def details(bench: Workbench, env: Environment) -> dict[str, Any]:
    """Everything ``show`` prints, as JSON-able values."""
    state = standing(bench, env)
    record = state.proof[1] if state.proof else None
    seal = _signature(bench, state.proof[2]) if state.proof else None
    return {
        "name": env.name,
        "row": env.model_dump(mode="json", exclude={"sources"}),
        "facts": _facts(env),
        "claimed": [{"name": name, **said.model_dump(mode="json")} for name, said in env.claimed.items()],
        "waivers": [waiver.model_dump(mode="json") for waiver in env.waivers],
        "upstream": [dataclasses.asdict(each) for each in upstream(env, bench.facts)],
        "findings": [as_dict(finding) for finding in check(env, bench.facts, bench.matrix)],
        "state": {
            "requires": env.requires,
            "performance": _performance(bench, env, state),
            "level": state.level,
            "standing": state.text,
            "image": state.image,
            "target_id": state.target_id,
            "lock": _lock(bench, env),
            "recorded": state.recorded.as_dict() if state.recorded else None,
            "note": state.note,
        },
        "evidence": record.model_dump(mode="json", by_alias=True) if record else None,
        "signature": seal,
        "evidence_lines": lines(record, state.proof[2]) if record and state.proof else [],
    }


def _performance(bench: Workbench, env: Environment, state: Standing) -> str | None:
    """What a row requires of its image's speed, and what is known of that here."""
    if env.performance is None:
        return None
    info = bench.engine.image(state.image) if state.image is not None else None
    known = performance.state(bench, env, info) if info is not None else ["no image here"]
    return _CONTROLS.sub("?", "; ".join((required(env.performance), *known)))


def _signature(bench: Workbench, path: Path) -> dict[str, str | None]:
    """Who signed a record, as far as the trusted keys can tell."""
    try:
        seal = evidence.signed_by(path, bench.trusted_keys)
    except EnvbuildError as error:
        return {"state": evidence.State.UNKNOWN.value, "key": None, "reason": error.message}
    return {"state": seal.state.value, "key": seal.key.id if seal.key else None, "reason": seal.reason}


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
