"""Which combinations the facts know, field by field, and the row that each of them would be."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from envbuild.facts import Facts
from envbuild.facts.versions import cuda_of_build, parse, within
from envbuild.matrix.releases import deepspeed_releases, image_of, release_name
from envbuild.model import Base, Cuda, DeepSpeed, Environment, Gcc, Torch

# What may be asked for and changed, in the order in which it is told.
FIELDS = ("gpu", "cuda", "torch", "deepspeed", "gcc", "python", "base", "nccl", "driver")
# GPUs are a tuple of names, torch is its version and its build, all others are texts. None: it follows from the others.
Value = Any
Combination = Mapping[str, Value]
Read = Callable[[str], Value]

# First releases of a compiler are N.1; minor numbers that rows name are taken from there.
_GCC_MINOR = "1"
_PINNED = ("pydantic", "numpy", "setuptools")


def accelerated(accelerator: str, field: str) -> bool:
    """Whether a field means anything for an accelerator."""
    return accelerator == "cuda" or field in ("torch", "deepspeed", "gcc", "python", "base")


class Space:
    """Every value that a field may have, and the way from one value a field to an Environment.

    Args:
        facts: What upstream says.
        rows: The rows of the matrix: what they hold is preferred where several values would do.
        start: A row whose other contents (ops, extras, variables) are kept; without it they are what rows have usually.
        accelerator: ``cpu`` or ``cuda``.
    """

    def __init__(self, facts: Facts, rows: Iterable[Environment], start: Environment | None, accelerator: str) -> None:
        self.facts = facts
        self.accelerator = accelerator
        newest_first = sorted(rows, key=lambda row: parse(row.torch.version), reverse=True)
        self.rows: Sequence[Environment] = [row for row in newest_first if row.accelerator == accelerator]
        self.start = start
        self._own = self.of(start) if start else {}
        self._on = [(release_name(facts, row), row) for row in ([start] if start else []) + list(self.rows)]
        self._constant = start or self._usual()
        self._parts: dict[str, Callable[[Read], Any]] = {
            "gpus": lambda read: read("gpu"),
            "cuda": self._cuda,
            "torch": self._torch,
            "deepspeed": lambda read: DeepSpeed(version=read("deepspeed"), ops=self._constant.deepspeed.ops),
            "gcc": self._gcc,
            "python": lambda read: read("python"),
            "base": self._base,
            "family": lambda read: self._family(read("base")),
            "nccl": self._nccl,
            "driver": self._driver,
            "pins": self._pins,
            "packages": self._packages,
            "waivers": lambda read: self._constant.waivers if self._same(read, "base", "cuda") else (),
        }

    @functools.cached_property
    def domain(self) -> dict[str, list[Value]]:
        """The values of each field, oldest first."""
        facts, rows = self.facts, [self.of(row) for row in [*self.rows, *([self.start] if self.start else [])]]
        cpu = self.accelerator == "cpu"
        torch = [(v, b) for v, known in facts.versions.items() for b in known.builds if self._fits(b)]
        majors = range(9, max(toolkit.max_gcc for toolkit in facts.toolkits.values()) + 1)
        rows_gcc = {row["gcc"] for row in rows}
        plain = [f"{n}.{_GCC_MINOR}" for n in majors if not any(g.split(".")[0] == str(n) for g in rows_gcc)]
        found: dict[str, list[Value]] = {
            "gpu": [()] if cpu else [(name,) for name in facts.gpus],
            "cuda": [None] if cpu else list(facts.toolkits),
            "torch": torch, "deepspeed": deepspeed_releases(facts), "gcc": plain, "python": _pythons(facts),
            "base": list(facts.releases), "nccl": [None], "driver": [None],
        }  # fmt: skip
        for field in ("gpu", "cuda", "torch", "deepspeed", "gcc", "python", "base"):
            found[field] = sorted(
                {*found[field], *(row[field] for row in rows)}, key=functools.partial(self.order, field)
            )
        return found

    def order(self, field: str, value: Value) -> tuple[Any, ...]:
        """Where a value stands among the others of its field, oldest first."""
        if field == "gpu":
            known = [self.facts.gpus[name].sm for name in value if name in self.facts.gpus]
            return max((parse(sm) for sm in known), default=parse("0")), value
        if field == "torch":
            return parse(value[0]), parse(cuda_of_build(value[1]) or "0"), value[1]
        if field == "base":
            release = self.facts.releases.get(value)
            return parse(release.glibc if release else "0"), value
        return (parse(value or "0"),)

    def rank(self, field: str, value: Value) -> Any:
        """The part of the order that counts as distance: two builds of one torch are as near as can be."""
        return self.order(field, value)[0]

    def of(self, row: Environment) -> dict[str, Value]:
        """The combination that a row is."""
        cuda = row.accelerator == "cuda"
        return {
            "gpu": row.gpus, "cuda": row.cuda.version if row.cuda else None,
            "torch": (row.torch.version, row.torch.build), "deepspeed": row.deepspeed.version, "gcc": row.gcc.version,
            "python": row.python, "base": release_name(self.facts, row), "nccl": row.nccl if cuda else None,
            "driver": row.driver if cuda else None,
        }  # fmt: skip

    def attribute(self, name: str, read: Read) -> Any:
        """One attribute of the row; ``read`` gives the fields that it is made from, and sees which ones they are."""
        if name in self._parts:
            return self._parts[name](read)
        if name == "torch_version":
            return "+".join(read("torch"))
        if name not in Environment.model_fields and name != "required_level":
            # A method may read anything.
            return getattr(self.row({field: read(field) for field in FIELDS}), name)
        return getattr(self._constant, name)

    def row(self, combination: Combination) -> Environment:
        """The whole row."""
        made = {name: part(combination.__getitem__) for name, part in self._parts.items()}
        return self._constant.model_copy(update=made)

    # What a row is made of.

    def _usual(self) -> Environment:
        like = self.rows[0] if self.rows else None
        ops = ("cpu_adam", "fused_adam") if self.accelerator == "cuda" else ("cpu_adam",)
        return Environment.model_validate(
            {
                "name": "asked", "summary": "", "accelerator": self.accelerator, "family": "debian",
                "base": {"image": "debian"}, "python": "3.11", "gcc": {"version": "12.2", "package": "gcc-12"},
                "torch": {"version": "0", "build": "cpu"}, "requires": "cpu" if self.accelerator == "cpu" else "gpu",
                "deepspeed": {"version": "0", "ops": like.deepspeed.ops if like else ops}, "sources": {},
                "fabric": like.fabric if like else "none",
            }
        )  # fmt: skip

    def _same(self, read: Read, *fields: str) -> bool:
        """Whether the row that was asked about has just these values."""
        return bool(self._own) and all(read(field) == self._own[field] for field in fields)

    def _fits(self, build: str) -> bool:
        return (build == "cpu") == (self.accelerator == "cpu")

    def _cuda(self, read: Read) -> Cuda | None:
        version = read("cuda")
        if version is None:
            return None
        if self.start and self.start.cuda and (version == self.start.cuda.version or self.start.cuda.toolkit == "none"):
            return self.start.cuda.model_copy(update={"version": version})
        there = [row.cuda for row in self.rows if row.cuda]
        # As in a row of that version, else of that major: wheels hold a toolkit from CUDA 13 on.
        for like in (version, version.split(".")[0]):
            for cuda in there:
                if like in (cuda.version, cuda.version.split(".")[0]):
                    return Cuda(version=version, toolkit=cuda.toolkit)
        return Cuda(version=version, toolkit="image")

    def _torch(self, read: Read) -> Torch:
        version, build = read("torch")
        if self.start and self._same(read, "torch"):
            return self.start.torch
        known = self.facts.versions.get(version)
        pairs = {"torchvision": known.torchvision, "torchaudio": known.torchaudio} if known and build != "cpu" else {}
        if self.start:
            pairs = {name: pair for name, pair in pairs.items() if getattr(self.start.torch, name)}
        return Torch(
            version=version, build=build,
            index="pypi" if known and known.pypi and known.pypi.build == build else "pytorch",
            **{name: pair.version for name, pair in pairs.items() if pair},
        )  # fmt: skip

    def _gcc(self, read: Read) -> Gcc:
        version, base = read("gcc"), read("base")
        major, family = version.split(".")[0], self._family(base)
        here = [row.gcc for _, row in self._on if row.family == family]
        for gcc in sorted(here, key=lambda gcc: gcc.version != version):
            package = re.sub(r"[0-9]+", major, gcc.package, count=1)
            return gcc if gcc.version == version else Gcc(version=version, package=package)
        return Gcc(version=version, package=f"gcc-{major}")

    def _base(self, read: Read) -> Base:
        base, cuda = read("base"), read("cuda")
        here = [row for on, row in self._on if on == base]
        for row in here:
            if cuda == (row.cuda.version if row.cuda else None):
                return row.base
        if here:
            # The image with another toolkit is not known by name.
            return here[0].base.model_copy(update={"toolkit_image": None, "toolkit_digest": None})
        return Base.model_validate({"image": image_of(self.facts.releases[base])})

    def _family(self, base: str) -> str:
        here = next((row.family for on, row in self._on if on == base), None)
        return here or self.facts.releases[base].families[0]

    def _nccl(self, read: Read) -> str | None:
        said = read("nccl")
        if said is not None or self.accelerator == "cpu":
            return said if self.accelerator == "cuda" else None
        if self.start and self._same(read, "torch"):
            return self.start.nccl
        build = self.facts.torch_build(*read("torch"))
        return build.nccl if build else None

    def _driver(self, read: Read) -> str | None:
        said = read("driver")
        if said is not None or self.accelerator == "cpu":
            return said if self.accelerator == "cuda" else None
        floor = self.facts.driver_floor(read("cuda"), read("gpu"))
        return floor.floor if floor else None

    def _pins(self, read: Read) -> tuple[str, ...]:
        if self.start and self._same(read, "deepspeed", "torch"):
            return self.start.pins
        names = {pin: re.split(r"[^A-Za-z0-9._-]", pin)[0].lower() for pin in self._constant.pins}
        pins = [pin for pin, name in names.items() if name not in _PINNED]
        deepspeed, torch = read("deepspeed"), parse(read("torch")[0])
        pins += [
            f"pydantic{entry.specifier}"
            for entry in self.facts.deepspeed.pydantic
            if within(deepspeed, entry.since, entry.through) and entry.specifier.startswith("<")
        ]
        pins += [
            limit.specifier for limit in (self.facts.numpy, self.facts.setuptools) if torch < parse(limit.torch_below)
        ]
        return tuple(pins)

    def _packages(self, read: Read) -> tuple[str, ...]:
        numactl, packages = self.facts.deepspeed.cpu_numactl, self._constant.packages
        if self.accelerator == "cuda" or numactl.package in packages:
            return packages
        version = read("deepspeed")
        affected = within(version, numactl.since, None) and parse(version) < parse(numactl.before)
        return (*packages, numactl.package) if affected else packages


def _pythons(facts: Facts) -> list[str]:
    ends = [end for known in facts.versions.values() for end in (known.python_min, known.python_max) if end]
    minors = [int(end.split(".")[1]) for end in ends if end.startswith("3.")]
    return [f"3.{minor}" for minor in range(min(minors), max(minors) + 1)]
