"""What changed between two collections, the likeliest cause first: for the environment that worked yesterday.

What a process loads first counts most: another file for libstdc++ breaks more trainings than another kernel. Things
that move by themselves (free memory, ages, times) are no changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from envbuild.doctor.answers import Answer, answers
from envbuild.doctor.changes import Change, Kind, changed, elapsed, since_lines
from envbuild.doctor.collection import Collection, Import, Op, Tool, Toolkit
from envbuild.doctor.sizes import amount, limit
from envbuild.doctor.view import normalised

# Variables that decide which files are loaded; of these one more folder is enough.
_LEADING = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "CUDA_HOME", "CONDA_PREFIX", "VIRTUAL_ENV")
_CORE = (
    "torch", "deepspeed", "triton", "numpy", "pydantic", "pydantic-core", "setuptools", "transformers", "accelerate",
    "ninja",
)  # fmt: skip
_SYSTEM_CORE = (
    "libstdc++", "libc6", "glibc", "libgcc", "gcc", "g++", "cuda", "libnccl", "libcud", "nvidia", "libnvidia",
    "kmod-nvidia", "libaio", "numactl", "libnuma",
)  # fmt: skip

# Earlier is likelier. One place, so that the order can be read.
ORDER: tuple[Kind, ...] = (
    "loader", "loading variable", "core package", "driver", "core system package", "package transaction", "toolkit",
    "compiler", "op", "limit", "variable", "python package", "system package", "kernel", "machine", "import",
)  # fmt: skip


def since(old: Collection, new: Collection) -> tuple[Change, ...]:
    """Every change, the likeliest cause of a new failure first; how the imports ended comes last, as the effect.

    What one of the two could not collect is no change.
    """
    found = [change for part in _PARTS for change in part(old, new)]
    return tuple(sorted(found, key=lambda each: ORDER.index(each.kind)))


def strangers(old: Collection, new: Collection) -> tuple[str, ...]:
    """Why the two may not be the same environment at different times, in words; empty when nothing says so."""
    told = []
    for what, before, after in (
        ("image", old.image, new.image),
        ("interpreter", _of(old, lambda each: each.executable), _of(new, lambda each: each.executable)),
        ("CPU", old.machine.cpu.model, new.machine.cpu.model),
        ("operating system", old.machine.distribution.name, new.machine.distribution.name),
        ("container", old.machine.container or "none", new.machine.container or "none"),
        ("set of GPUs", _devices(old), _devices(new)),
    ):
        # Without an image on one side the other is a bare host: that is another environment, too.
        if before != after and (what == "image" or (before and after)):
            told.append(f"another {what}: {before or 'none'} then, {after or 'none'} now")
    if old.taken > new.taken:
        told.append(f"the snapshot is the newer one: {old.taken}, compared with {new.taken}")
    return tuple(told)


def _of(collection: Collection, get: Callable[..., str | None]) -> str | None:
    return get(collection.interpreter) if collection.interpreter is not None else None


def _devices(collection: Collection) -> str:
    return ", ".join(each.name or "?" for each in collection.gpu.devices)


# --- what is loaded -------------------------------------------------------------------------------------------------


def _loader(old: Collection, new: Collection) -> Iterator[Change]:
    before, after = ({each.name: each for each in answers(side)} for side in (old, new))
    if not before or not after:
        return
    for name in [*after, *(each for each in before if each not in after)]:
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            # Nobody asks for it on one side: another torch, or other ops. That is told elsewhere.
            continue
        if (one.path, one.version) != (other.path, other.version):
            yield Change(kind="loader", name=name, old=_file(one), new=_file(other), note=_cause(one, other, old, new))


def _file(answer: Answer) -> str:
    version = f" ({answer.version})" if answer.version else ""
    return f"{answer.path or 'not found'}{version}"


def _cause(one: Answer, other: Answer, old: Collection, new: Collection) -> str:
    if one.path == other.path:
        return "the same file name, with other content"
    moved = [name for name in _LEADING if old.environment.get(name) != new.environment.get(name) and name in other.why]
    told = f"now by {other.why}, before by {one.why}" if one.why != other.why else f"by {other.why}"
    return f"{told}; {moved[0]} has changed" if moved else told


def _variables(old: Collection, new: Collection) -> Iterator[Change]:
    for name, before, after in changed(old.environment, new.environment):
        leading = name in _LEADING
        yield Change(kind="loading variable" if leading else "variable", name=name, old=before, new=after)


def _packages(old: Collection, new: Collection) -> Iterator[Change]:
    if old.interpreter is None or new.interpreter is None:
        return
    before, after = (
        {normalised(each.name): each.version for each in side.packages} for side in (old.interpreter, new.interpreter)
    )
    for name, was, now in changed(before, after):
        core = name in _CORE or name.startswith("nvidia-")
        yield Change(kind="core package" if core else "python package", name=name, old=was, new=now)
    if old.interpreter.version != new.interpreter.version:
        yield Change(
            kind="core package", name="Python itself", old=old.interpreter.version, new=new.interpreter.version
        )


def _system(old: Collection, new: Collection) -> Iterator[Change]:
    if old.system.manager is None or old.system.manager != new.system.manager:
        return
    for name, was, now in changed(old.system.packages, new.system.packages):
        core = name.startswith(_SYSTEM_CORE)
        yield Change(kind="core system package" if core else "system package", name=name, old=was, new=now)
    for line in since_lines(old.system.transactions, new.system.transactions):
        yield Change(kind="package transaction", name=new.system.manager or "", old=None, new=line)


# --- what it runs on ------------------------------------------------------------------------------------------------


def _driver(old: Collection, new: Collection) -> Iterator[Change]:
    values = (
        ("kernel module", old.gpu.module, new.gpu.module),
        ("NVML", old.gpu.nvml, new.gpu.nvml),
        ("CUDA of the driver", old.gpu.cuda, new.gpu.cuda),
        ("GPUs", _devices(old) or None, _devices(new) or None),
    )
    for name, before, after in values:
        if before != after:
            yield Change(kind="driver", name=name, old=before, new=after)
    for path, was, now in changed(old.gpu.libcuda, new.gpu.libcuda):
        yield Change(kind="driver", name=path, old=_there(was), new=_there(now))


def _there(version: str | None) -> str | None:
    return "there" if version == "" else version


def _toolkits(old: Collection, new: Collection) -> Iterator[Change]:
    before, after = ({each.path: _toolkit(each) for each in side.toolkits} for side in (old, new))
    for path, was, now in changed(before, after):
        yield Change(kind="toolkit", name=path, old=was, new=now)


def _toolkit(each: Toolkit) -> str:
    parts = [each.version or "version unknown", "with nvcc" if each.nvcc else "without nvcc"]
    return ", ".join([*parts, "taken by torch"] if each.taken_by_torch else parts)


def _compilers(old: Collection, new: Collection) -> Iterator[Change]:
    before, after = (
        {f"{each.name} ({each.role})": _tool(each) for each in side.tools if each.path} for side in (old, new)
    )
    for name, was, now in changed(before, after):
        yield Change(kind="compiler", name=name, old=was, new=now)
    links, linked = ({each.link: each.value for each in side.alternatives} for side in (old, new))
    for link, was, now in changed(links, linked):
        yield Change(kind="compiler", name=f"link {link}", old=was, new=now)


def _tool(each: Tool) -> str:
    return f"{each.path} {each.version or ('which does not run' if each.error else '')}".strip()


def _ops(old: Collection, new: Collection) -> Iterator[Change]:
    before, after = ({(each.kind, each.name, each.root or ""): each for each in side.ops} for side in (old, new))
    for key in sorted(before.keys() | after.keys()):
        one, other = before.get(key), after.get(key)
        kind, name, root = key
        told = f"{name} ({kind}{f', {root}' if root else ''})"
        if one is None or other is None:
            yield Change(kind="op", name=told, old=_op(one), new=_op(other))
            continue
        again = "compiled again since" if other.kind == "cached" else "written again since"
        again = again if _younger(other, old, new) else ""
        if _op(one) != _op(other) or again:
            yield Change(kind="op", name=told, old=_op(one), new=_op(other), note=again)


def _op(each: Op | None) -> str | None:
    if each is None:
        return None
    parts = [each.file or "no file", *(("locked",) if each.lock is not None else ())]
    if each.built_against:
        parts.append(f"built against {each.built_against}")
    return ", ".join(parts)


def _younger(op: Op, old: Collection, new: Collection) -> bool:
    passed = elapsed(old.taken, new.taken)
    return op.age is not None and passed is not None and 0 <= op.age < passed


def _limits(old: Collection, new: Collection) -> Iterator[Change]:
    one, other = old.machine, new.machine
    rows: Iterable[tuple[str, _Show, object, object]] = (
        ("memlock", _pair(limit), one.memlock, other.memlock),
        ("open files", _pair(str), one.nofile, other.nofile),
        ("memory of the machine", _size, *_apart(one.memory.total, other.memory.total)),
        ("swap", _size, one.memory.swap, other.memory.swap),
        ("/dev/shm", _size, one.shm.total, other.shm.total),
        ("usable CPUs", str, one.cpu.usable, other.cpu.usable),
        ("SELinux", str, one.selinux, other.selinux),
        ("user id", str, one.uid, other.uid),
    )
    for name, show, before, after in rows:
        if before != after and before is not None and after is not None:
            yield Change(kind="limit", name=name, old=show(before), new=show(after))
    # Of a memory that was looked at, no limit is an answer.
    before, after = one.memory.limit, other.memory.limit
    if before != after and one.memory.total and other.memory.total:
        yield Change(kind="limit", name="memory of the cgroup", old=_none(before), new=_none(after))


def _none(limit: int | None) -> str:
    return "none" if limit is None else amount(limit)


def _apart(one: int | None, other: int | None) -> tuple[int | None, int | None]:
    """Two amounts; the same one twice where they differ by no more than another boot makes them differ."""
    return (one, one) if one and other and abs(one - other) < one / 50 else (one, other)


_Show = Callable[[object], str]


def _size(value: object) -> str:
    return amount(value) if isinstance(value, int) else "unknown"


def _pair(show: Callable[[int | None], str]) -> _Show:
    return lambda value: "/".join(show(each) for each in value) if isinstance(value, tuple) else "unknown"


def _machine(old: Collection, new: Collection) -> Iterator[Change]:
    rows: tuple[tuple[Kind, str, str | None, str | None], ...] = (
        ("kernel", "kernel", old.machine.kernel, new.machine.kernel),
        ("loader", "glibc", old.machine.glibc, new.machine.glibc),
        ("machine", "operating system", old.machine.distribution.version, new.machine.distribution.version),
        ("machine", "CPU level", old.machine.cpu.level, new.machine.cpu.level),
    )
    for kind, name, before, after in rows:
        if before != after and before is not None and after is not None:
            yield Change(kind=kind, name=name, old=before, new=after)
    for name, was, now in changed(old.machine.modules, new.machine.modules):
        if name != "nvidia":  # it is the driver, and told there
            yield Change(kind="kernel", name=f"module {name}", old=was, new=now)


def _imports(old: Collection, new: Collection) -> Iterator[Change]:
    for name, before, after in (("torch", old.torch, new.torch), ("deepspeed", old.deepspeed, new.deepspeed)):
        if before is not None and after is not None and (before.ok, before.error) != (after.ok, after.error):
            yield Change(kind="import", name=f"import {name}", old=_ended(before), new=_ended(after))
    if old.torch is not None and new.torch is not None and old.torch.available != new.torch.available:
        words = {True: "yes", False: "no", None: "unknown"}
        yield Change(
            kind="import", name="torch sees a GPU", old=words[old.torch.available], new=words[new.torch.available]
        )


def _ended(how: Import) -> str:
    return "works" if how.ok else f"fails: {how.error or 'no word why'}"


_PARTS: tuple[Callable[[Collection, Collection], Iterator[Change]], ...] = (
    _loader, _variables, _packages, _driver, _system, _toolkits, _compilers, _ops, _limits, _machine, _imports,
)  # fmt: skip
