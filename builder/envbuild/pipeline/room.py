"""What the machine has room for: disk, compilers and rows at a time, found out before anything is built.

Of the disk it refuses only what cannot go well: layers that rows share count once, and those that an image here has
count as there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild import evidence
from envbuild.errors import EngineError
from envbuild.pipeline.names import names
from envbuild.pipeline.prepare import Target
from envbuild.pipeline.sizes import format_size
from envbuild.pipeline.workbench import Workbench

# Bytes of an image that no record tells of: measured in November 2026 on images of the rows cpu and h200-cu130 with
# everything in them that their builds need, compilers and toolkit included.
_UNKNOWN = {"cpu": 2_010_000_000, "cuda": 7_300_000_000}
# What the ops stage has besides the image: those 7.3 GB less the 5.5 GB of the finished one (its record).
_TOOLKIT = 1_800_000_000
# DeepSpeed with its compiled ops, in the records of both: the layer that no two rows share.
_DEEPSPEED = 91_000_000
# Inspection unpacks one library at a time: at most the whole of torch (the record of h200-cu130).
_UNPACKED = 1_183_000_000

# How each engine shows what it holds, and lets go of it.
_ENGINES = {
    "docker": "docker system df; free the build cache: docker builder prune",
    "podman": "podman system df; remove images without a name: podman image prune",
}

# Bytes of memory that one compiler may need. Measured: cc1plus takes 0.66 GB for cpu_adam of DeepSpeed 0.19.7 with
# torch 2.13. What nvcc takes was not measured, so there is room to spare.
COMPILER_BYTES = 2 << 30
# Bytes that a row needs at least: one compiler, or the ranks of its proof.
ROW_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one row needs of the engine's disk.

    Attributes:
        shares: Equal for rows whose images have everything up to torch in common.
        whole: Bytes of the row by itself.
        own: Bytes of the layers behind torch.
        there: An image of the row is here, so that what it shares is too.
    """

    shares: object
    whole: int
    own: int
    there: bool = False


def needed(needs: Iterable[Need]) -> int:
    """Bytes that rows need together: of those that share, one counts whole; none where an image of theirs is here."""
    groups: dict[object, list[Need]] = {}
    for need in needs:
        groups.setdefault(need.shares, []).append(need)
    total = 0
    for group in groups.values():
        shared = 0 if any(need.there for need in group) else max(need.whole - need.own for need in group)
        total += shared + sum(need.own for need in group)
    return total


def need_of(bench: Workbench, target: Target) -> Need:
    """What a row needs, by its committed record where there is one."""
    env, plan = target.env, target.plan
    whole, own = _UNKNOWN[env.accelerator], _DEEPSPEED
    try:
        record = evidence.read(bench.project.images / env.name / "record.json")
    except EngineError:
        pass
    else:
        sizes: dict[str, Any] = record.content.get("config", {}).get("sizes", {})
        whole = record.size_bytes
        own = int(sizes.get("deepspeed", _DEEPSPEED)) + int(sizes.get("packages", 0))
    if plan.toolkit != "none":
        whole += _TOOLKIT
    repository = names(env, target.rendering.id8, bench.site.registry.name).repository
    patterns = dict.fromkeys((f"{target.repository}:*", f"{repository}:*"))
    return Need(
        shares=(plan.base_reference, plan.packages, plan.group("tools"), plan.group("torch"), plan.toolkit),
        whole=whole, own=min(own, whole), there=any(map(bench.engine.images, patterns)),
    )  # fmt: skip


def require(bench: Workbench, targets: Sequence[Target], *, at_once: int = 1) -> None:
    """Go on only where the disks have room for these rows.

    An engine elsewhere shows no disk, so nothing is asked of it.

    Raises:
        EngineError: They have not; the message names both numbers.
    """
    if not targets:
        return
    wants: dict[Path, int] = {}
    info = bench.engine.info()
    if bench.engine.local and info.root and _is_there(root := Path(info.root)):
        wants[root] = needed(need_of(bench, target) for target in targets)
    wants[bench.cache] = min(at_once, len(targets)) * _UNPACKED
    by_disk: dict[int, tuple[Path, int]] = {}
    for folder, bytes_ in wants.items():
        there = next(path for path in (folder, *folder.parents) if _is_there(path))
        device = there.stat().st_dev
        first, before = by_disk.get(device, (there, 0))
        by_disk[device] = (first, before + bytes_)
    for folder, bytes_ in by_disk.values():
        free = shutil.disk_usage(folder).free
        if free < bytes_:
            rows = ", ".join(target.env.name for target in targets)
            raise EngineError(
                f"{folder} has {format_size(free)} free, and building {rows} needs about {format_size(bytes_)}",
                hint=f"See what can go: envbuild prune --dry-run; {_ENGINES[bench.engine.kind]}. Or build fewer "
                "rows at a time.",
            )


def _is_there(folder: Path) -> bool:
    """Whether it is a folder that can be asked about: an engine's may lie where only root looks."""
    try:
        return folder.is_dir()
    except OSError:
        return False


def rows_at_once(wanted: int, rows: int, *, cpus: int, memory_bytes: int) -> int:
    """How many rows the machine can build at a time, at most ``wanted``."""
    return max(1, min(wanted, rows, cpus or wanted, memory_bytes // ROW_BYTES if memory_bytes else wanted))


def builds_at_once(cpus: int) -> int:
    """How many images the machine builds at a time: two cores each, and one in any case.

    More of them are not done earlier, and what they compile alike they compile once each instead of once: the second
    finds in the compiler's cache what the first has ended. Meanwhile other rows are inspected and trained.
    """
    return max(1, cpus // 2)


def compilers(*, cpus: int, memory_bytes: int, at_once: int = 1) -> int:
    """How many compilers (``MAX_JOBS``) one row may run while ``at_once`` rows are built.

    BuildKit's steps have no limit of memory of their own, so their number is what bounds it.
    """
    return max(1, min(cpus // at_once, memory_bytes // at_once // COMPILER_BYTES))
