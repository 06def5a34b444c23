"""What people type after ``why-not``, understood: versions may be series, GPUs are called as on the box."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from envbuild.errors import InputError
from envbuild.facts import Facts
from envbuild.facts.gpus import plain
from envbuild.facts.versions import neighbours, parse, starts_with, within
from envbuild.matrix.answer import Want, shown
from envbuild.matrix.merge import near
from envbuild.matrix.space import FIELDS, Space, Value, accelerated
from envbuild.matrix.tree import quoted
from envbuild.model import Environment

# Three ways to say the base.
BASES = ("base", "family", "glibc")
_NUMBER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}", re.ASCII)
_TORCH = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6}){0,3}(?:(?:a|b|rc)[0-9]{1,3})?)(?:\+(cpu|cu[0-9]{2,3}))?", re.ASCII)


def understand(
    facts: Facts,
    rows: Iterable[Environment],
    said: Mapping[str, str],
    *,
    start: Environment | None = None,
    accelerator: str | None = None,
) -> tuple[Space, dict[str, Want]]:
    """The combination that is asked for.

    Args:
        said: What was typed, by field, or ``family`` or ``glibc`` for the base.
        start: A row whose values count where nothing else was said.
        accelerator: ``cpu`` or ``cuda``; None takes the row's, else the one that the rest speaks of.

    Raises:
        InputError: A value cannot be one, a GPU or a base is unknown, or two of them contradict one another.
    """
    if start is None and not said and accelerator is None:
        raise InputError("why not what?", hint="Say a row or values: envbuild why-not --gpu v100 --cuda 13.0")
    kind = _accelerator(said, start, accelerator)
    space = Space(facts, rows, start, kind)
    wants = {field: _want(space, field, said[field]) for field in FIELDS if field in said and field != "base"}
    if any(name in said for name in BASES):
        wants["base"] = _base(facts, {name: said[name].strip() for name in BASES if name in said})
    if start is not None:
        for field, value in space.of(start).items():
            # NCCL is torch's own: it follows.
            if field not in wants and field != "nccl" and accelerated(kind, field) and value is not None:
                wants[field] = Want(text=shown(field, value), values=(value,))
    return space, {field: wants[field] for field in FIELDS if field in wants}


def unknown(facts: Facts, field: str, want: Want) -> str:
    """In words, that the facts do not know a value, and the nearest that they do."""
    if field == "torch":
        version, build = want.literals[0]
        if version in facts.versions:
            builds = ", ".join(facts.versions[version].builds)
            build = build if "+" in want.text else "for this accelerator"
            return f"no build {build} of torch {version} is known to the facts, only {builds}"
        return (
            f"torch {want.text} is unknown to the facts; the nearest that they know: {_near(version, facts.versions)}"
        )
    if field == "cuda":
        near_by = _near(want.literals[0], facts.toolkits)
        return f"CUDA {want.text} is unknown to the facts; the nearest that they know: {near_by}"
    newest = facts.deepspeed.newest.version
    return f"DeepSpeed {want.text} is unknown to the facts; the newest that they know: {newest}"


def _near(version: str, known: Iterable[str]) -> str:
    return " and ".join(neighbours(version, known))


def _accelerator(said: Mapping[str, str], start: Environment | None, asked: str | None) -> str:
    if asked not in (None, "cpu", "cuda"):
        raise InputError(f"--accelerator: {quoted(asked)} is not known", hint="Say cpu or cuda.")
    for_gpus = [field for field in ("gpu", "cuda", "nccl", "driver") if field in said]
    plain = said.get("torch", "").strip().endswith("+cpu") and not for_gpus
    kind = asked or (start.accelerator if start else "cpu" if plain else "cuda")
    if start is not None and kind != start.accelerator:
        raise InputError(
            f"--accelerator: the row {start.name} is for {start.accelerator}",
            hint="Ask without the row: envbuild why-not --accelerator " + kind,
        )
    if kind == "cpu" and for_gpus:
        raise InputError(
            f"--{for_gpus[0]} has no meaning with the accelerator cpu", hint="Leave it out, or say --accelerator cuda."
        )
    return kind


def _want(space: Space, field: str, typed: str) -> Want:
    text = typed.strip()
    if field == "gpu":
        value = gpus(space.facts, text)
        return Want(text=shown("gpu", value), values=(value,))
    if field == "torch":
        return _torch(space, text)
    if field == "cuda":
        short = re.fullmatch(r"cu([0-9]{1,2})([0-9])", text)
        text = f"{short[1]}.{short[2]}" if short else text
    if not _NUMBER.fullmatch(text):
        raise InputError(f"--{field}: {quoted(typed)} is no version", hint=f"Say it like {_EXAMPLES[field]}.")
    if field in ("nccl", "driver"):
        return Want(text=text, values=(text,))
    if field in ("cuda", "gcc", "python"):
        text = ".".join(text.split(".")[:2])
    known = tuple(value for value in reversed(space.domain[field]) if starts_with(value, text))
    if known:
        return Want(text=text, values=known)
    if field == "cuda":
        return Want(text=text, values=(), literals=(text if "." in text else f"{text}.0",))
    if field == "deepspeed":
        exact = text if text.count(".") > 1 else f"{text}.0"
        fits = within(exact, None, space.facts.deepspeed.newest.version)
        return Want(text=text, values=(exact,) if fits else (), literals=(exact,))
    # Any compiler and any Python can be judged: the facts hold limits.
    exact = text if "." in text else f"{text}.{1 if field == 'gcc' else 0}"
    if max(map(int, exact.split("."))) > 999:
        raise InputError(f"--{field}: {quoted(typed)} is no version", hint=f"Say it like {_EXAMPLES[field]}.")
    return Want(text=text, values=(exact,))


_EXAMPLES = {
    "cuda": "12, 12.6 or cu126", "deepspeed": "0.19 or 0.19.8", "gcc": "12 or 12.2", "python": "3.11",
    "nccl": "2.28.9", "driver": "535.104.05",
}  # fmt: skip


def _torch(space: Space, text: str) -> Want:
    found = _TORCH.fullmatch(text)
    if found is None:
        raise InputError(f"--torch: {quoted(text)} is no version", hint="Say it like 2.12, 2.12.1 or 2.12.1+cu130.")
    version, build = found[1], found[2]
    fitting = [
        value
        for value in reversed(space.domain["torch"])
        if starts_with(value[0], version) and build in (None, value[1])
    ]
    builds = dict.fromkeys(known for _, known in reversed(space.domain["torch"]))
    in_series = [known for known in space.facts.versions if starts_with(known, version)]
    exact = version if version in space.facts.versions or not in_series else max(in_series, key=parse)
    literals = [(exact, each) for each in ([build] if build else builds)]
    return Want(text=text, values=tuple(fitting), literals=tuple(literals))


def gpus(facts: Facts, text: str) -> tuple[str, ...]:
    """The GPUs that are meant, by the names of the facts: ``V100``, ``NVIDIA RTX 4090``, several by comma.

    Raises:
        InputError: One is unknown, or none is named.
    """
    known = {plain(alias): name for name, gpu in facts.gpus.items() for alias in (name, gpu.name)}
    names = []
    for said in filter(None, map(str.strip, text.split(","))):
        if plain(said) not in known:
            raise InputError(
                f"--gpu: nothing is known of the GPU {quoted(said)}{near(plain(said), facts.gpus)}",
                hint=f"Known GPUs: {', '.join(facts.gpus)}.",
            )
        names.append(known[plain(said)])
    if not names:
        raise InputError("--gpu: no GPU is named", hint=f"Known GPUs: {', '.join(facts.gpus)}.")
    return tuple(dict.fromkeys(names))


def _base(facts: Facts, said: Mapping[str, str]) -> Want:
    releases: dict[str, Any] = dict(facts.releases)
    if "base" in said:
        wanted = said["base"]
        releases = {name: each for name, each in releases.items() if wanted == name or wanted in each.images}
        if not releases:
            raise InputError(
                f"--base: nothing is known of the release {quoted(wanted)}{near(wanted, facts.releases)}",
                hint=f"Known releases: {', '.join(facts.releases)}.",
            )
    if "family" in said:
        known = sorted({family for release in facts.releases.values() for family in release.families})
        if said["family"] not in known:
            raise InputError(
                f"--family: nothing is known of the family {quoted(said['family'])}{near(said['family'], known)}",
                hint=f"Known families: {', '.join(known)}.",
            )
        releases = {name: each for name, each in releases.items() if said["family"] in each.families}
    if "glibc" in said:
        releases = {name: each for name, each in releases.items() if each.glibc == said["glibc"]}
        if not _NUMBER.fullmatch(said["glibc"]) or not releases:
            there = ", ".join(f"{each.glibc} ({name})" for name, each in facts.releases.items())
            more = " of that family" if "family" in said else ""
            raise InputError(
                f"--glibc: no release{more} is known to have glibc {quoted(said['glibc'])}", hint=f"Known: {there}."
            )
    if not releases:
        raise InputError(
            f"--base {said['base']} is not of the family {said['family']}", hint="Leave one of the two out."
        )
    # The newest of a family first.
    order: list[Value] = sorted(releases, key=lambda name: parse(releases[name].glibc), reverse=True)
    return Want(text=" ".join(said.values()), values=tuple(order))
