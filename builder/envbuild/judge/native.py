"""What the loader would make of an image's native code: Python, torch, DeepSpeed's ops, under the image's environment.

Nothing is run: the loader's choices are worked out from the files (``elf``), in the order in which a training script
brings them into its process. Raw facts here; what is wrong with them is said in ``native_rules``.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envbuild import elf
from envbuild.elf.gpucode import GpuCode
from envbuild.elf.isa import Isa, NotLookedAt
from envbuild.judge.archive import ImageArchive
from envbuild.judge.files import FileFacts, ImageRoot, facts_of
from envbuild.model import Environment
from envbuild.plan import PREFIX

# The driver's own libraries: the container runtime mounts them from the host when it is asked for "compute" and
# "utility" (NVIDIA Container Toolkit, "Driver Capabilities"). No image has them, and none should.
FROM_DRIVER = frozenset({"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"})
# Libraries of which a process must not have another copy than the one torch was built for.
CUDA_LIBRARIES = re.compile(
    r"lib(nccl|cudart|cublas|cublasLt|cudnn|cufft|curand|cusparse|cusparseLt|cusolver|nvrtc|nvJitLink|cupti|cufile)\.so\.\d+"
)
_PLUGINS = re.compile(
    r"/site-packages/nvidia/|/site-packages/triton/|/torch/lib/(libtorch_nvshmem|libtorch_cuda_linalg)\.so"
)

_KNOWN_CODE = re.compile(r"/(?:torch/lib|nvidia|(?:opt/rh/[^/]+/root/)?usr/lib(?:32|64|x32)?|lib(?:32|64|x32)?)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A shared object of a process.

    Attributes:
        path: As the loader names it.
        why: What made the loader take this file: ``runpath``, ``cache``, ``LD_LIBRARY_PATH``, ...
        compilers: What its .comment says.
        cxx11_abi: Whether its C++ strings are of the new ABI; None where it has none.
        requires: The newest symbol version it asks for, by family.
        provides: The newest symbol version it has, by family.
    """

    path: str
    why: str
    compilers: tuple[str, ...]
    cxx11_abi: bool | None
    requires: dict[str, str]
    provides: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeReport:
    """What would be loaded, and what stands in the way.

    Attributes:
        libraries: By the name that was asked for, everything that Python, torch and the ops bring into a process.
        ops: Path of each op's file.
        unresolved: Asker, name and reason of each library that is not found.
        missing: Asker, version, library and its newest version, for each symbol version that is not there.
        shadowed: Library, the file that LD_LIBRARY_PATH or LD_PRELOAD puts in front, and the one behind it.
        copies: CUDA and NCCL libraries of which there are several, with their paths.
        unreadable: Native code of the environment that could not be read, and why.
        problems: Why the whole could not be worked out.
        isa: What each op's code asks of the CPU, and that of foreign libraries that it brings in.
        gpu: The GPU code of torch (all its libraries together, by path) and of each op.
    """

    libraries: dict[str, Library] = field(default_factory=dict)
    ops: dict[str, str] = field(default_factory=dict)
    unresolved: tuple[tuple[str, str, str], ...] = ()
    missing: tuple[tuple[str, str, str, str], ...] = ()
    shadowed: tuple[tuple[str, str, str], ...] = ()
    copies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unreadable: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    isa: dict[str, Isa | NotLookedAt | None] = field(default_factory=dict)
    gpu: dict[str, GpuCode] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For the evidence: of an op's instructions the sums by extension, not every function."""
        told = dataclasses.asdict(self)
        told["isa"] = {
            name: _summed(isa) if isinstance(isa, Isa) else told["isa"][name] for name, isa in self.isa.items()
        }
        return told


def _summed(isa: Isa) -> dict[str, Any]:
    sums: Counter[str] = Counter()
    for use in isa.uses:
        sums[use.extension] += use.count
    return {
        "level": isa.level,
        "extensions": dict(sorted(sums.items())),
        "tests_cpu": isa.tests_cpu,
        "gaps": len(isa.gaps),
        "code_bytes": isa.code_bytes,
        "truncated": isa.truncated,
    }


def native(
    image: ImageArchive, env: Environment, site: str, op_files: Mapping[str, str], root: elf.Root | None = None
) -> NativeReport:
    """Work out what a training process would load. Never raises.

    Args:
        image: Read with ``files.Examiner`` as its visitor.
        env: The row, for the CPU that it is for.
        site: The packages' folder, without a leading slash.
        op_files: Path below ``site`` of each compiled op, by its name.
        root: Where the loader looks, if that is not the image alone: a host's own file system.
    """
    start = _Start(image, env, site, op_files, root or ImageRoot(image))
    variables = image.env
    own = start.run(variables.get("LD_LIBRARY_PATH", ""), variables.get("LD_PRELOAD", ""))
    plain = own if not own.influenced else start.run("", "")
    facts = {path: seen for path, entry in image.entries.items() if (seen := facts_of(entry)) is not None}
    ops = {name: f"/{site}/{path}" for name, path in op_files.items()}
    return NativeReport(
        libraries=own.libraries,
        ops=ops,
        unresolved=tuple(own.unresolved),
        missing=tuple(own.missing),
        shadowed=tuple(_shadowed(own.libraries, plain.libraries)),
        copies=_copies(facts),
        unreadable=tuple(_unreadable(facts, site)),
        problems=tuple(own.problems),
        isa={
            name if path == ops[name] else f"{path}, which {name} brings in,": _isa_of(facts, path)
            for name in ops
            for path in (ops[name], *own.brought.get(ops[name], ()))
        },
        gpu=_gpu(facts, site, ops),
    )


class _Run:
    """One simulated process, and what it met."""

    def __init__(self, library_path: str, preload: str) -> None:
        self.influenced = bool(library_path or preload)
        self.libraries: dict[str, Library] = {}
        self.unresolved: list[tuple[str, str, str]] = []
        self.missing: list[tuple[str, str, str, str]] = []
        self.problems: list[str] = []
        self.brought: dict[str, list[str]] = {}

    def take(self, loading: elf.Loading, process: elf.Process) -> None:
        """Note what one start or dlopen gave."""
        by_path = {found.path: found.elf for found in (*process.loaded, *loading.loaded)}
        for choice in loading.choices:
            if choice.path is not None and choice.path in by_path and choice.why != "loaded":
                self.libraries.setdefault(choice.name, _library(choice, by_path[choice.path]))
        for choice in loading.unresolved:
            self.unresolved.append((choice.asker or choice.name, choice.name, choice.problem))
        for lack in loading.missing:
            self.missing.append(
                (lack.asker, lack.version, lack.chosen or lack.library, lack.best or "none of that family")
            )


class _Start:
    def __init__(
        self, image: ImageArchive, env: Environment, site: str, op_files: Mapping[str, str], root: elf.Root
    ) -> None:
        self._root = root
        self._env = env
        self._site = f"/{site}"
        torch = re.compile(rf"{re.escape(site)}/torch/_C\.[^/]*\.so")
        self._torch = sorted(f"/{path}" for path in image.entries if torch.fullmatch(path))
        # async_io takes the memory of pin_memory, which DeepSpeed therefore loads before it.
        self._ops = [
            f"{self._site}/{op_files[name]}" for name in sorted(op_files, key=lambda name: name != "pin_memory")
        ]
        python = rf"(?:opt/rh/[^/]+/root/)?usr/lib(?:64)?/python{re.escape(env.python)}/lib-dynload/[^/]+\.so"
        others = re.compile(rf"(?:{re.escape(site)}/.+|{python})\.so(?:\.\d+)*|{python}")
        self._others = sorted(
            f"/{path}" for path, entry in image.entries.items() if others.fullmatch(path) and entry.kind == "file"
        )
        self._wheels = {path.rpartition("/")[2]: path for path in self._others if "/site-packages/nvidia/" in path}

    def run(self, library_path: str, preload: str) -> _Run:
        """A process that starts Python, imports torch and every op, and then the rest."""
        run = _Run(library_path, preload)
        conditions = elf.Conditions(
            library_path=library_path,
            preload=preload,
            cpu=self._env.cpu_baseline,
            given=FROM_DRIVER if self._env.accelerator == "cuda" else frozenset(),
        )
        try:
            process = elf.load(self._root, f"{PREFIX}/bin/python", conditions)
        except elf.ElfError as error:
            run.problems.append(error.message)
            return run
        run.take(process.start, process)
        # As torch/__init__.py does: first what is to be visible to all (torch 2.1 to 2.13).
        for path in (f"{self._site}/torch/lib/libtorch_global_deps.so", *self._torch, *self._ops):
            if self._root.resolve(path) is not None:
                loading = self._open(process, path)
                run.take(loading, process)
                if path in self._ops:
                    run.brought[path] = [each.real for each in loading.loaded if self._is_foreign(each.real, path)]
        if not self._torch:
            run.problems.append(f"{self._site}/torch has no _C module")
        self._rest(process, run)
        return run

    def _is_foreign(self, real: str, op: str) -> bool:
        """Neither torch's nor NVIDIA's, which ask the CPU themselves, nor the system's, which are its packages'."""
        return real != self._root.resolve(op) and not _KNOWN_CODE.match(real.removeprefix(self._site))

    def _open(self, process: elf.Process, path: str) -> elf.Loading:
        """dlopen; a CUDA library that only its wheel has is preloaded first, as torch does (_preload_cuda_deps)."""
        loading = process.dlopen(path)
        for _ in range(len(self._wheels)):
            wanted = [self._wheels[each.name] for each in loading.unresolved if each.name in self._wheels]
            if not any(process.dlopen(wheel).works for wheel in wanted):
                break
            loading = process.dlopen(path)
        return loading

    def _rest(self, process: elf.Process, run: _Run) -> None:
        """Everything else of Python and of the packages must find its libraries too, beside what is loaded by then."""
        for path in self._others:
            if _PLUGINS.search(path):
                continue
            loading = process.dlopen(path)
            # What a plugin asks for in vain is told, what it brings is not part of training.
            if not loading.works:
                run.take(loading, process)


def _isa_of(facts: Mapping[str, FileFacts], path: str) -> Isa | NotLookedAt | None:
    found = facts.get(path.lstrip("/"))
    return found.isa if found is not None else None


def _library(choice: elf.Choice, file: elf.ElfFile) -> Library:
    from envbuild.elf.versions import by_family

    return Library(
        path=choice.path or "",
        why=choice.why,
        compilers=file.comment,
        cxx11_abi=file.cxx11_abi,
        requires=by_family(need.version for need in file.requires if not need.weak),
        provides=by_family(file.provides),
    )


def _shadowed(own: Mapping[str, Library], plain: Mapping[str, Library]) -> Iterable[tuple[str, str, str]]:
    for name, library in own.items():
        behind = plain.get(name)
        if behind is not None and behind.path != library.path:
            yield name, library.path, behind.path
        elif behind is None and library.why == "preload":
            yield name, library.path, "nothing"


def _copies(facts: Mapping[str, FileFacts]) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[bytes, str]] = {}
    for path, seen in sorted(facts.items()):
        name = seen.elf.soname if seen.elf is not None else None
        if name is not None and CUDA_LIBRARIES.fullmatch(name):
            # The same bytes under several names (wheels have no symbolic links) are one library.
            found.setdefault(name, {}).setdefault(seen.sha256 or seen.md5 or path.encode(), f"/{path}")
    return {name: tuple(paths.values()) for name, paths in sorted(found.items()) if len(paths) > 1}


def _unreadable(facts: Mapping[str, FileFacts], site: str) -> Iterable[tuple[str, str]]:
    for path, seen in facts.items():
        if seen.fault is not None and path.startswith(f"{site}/") and path.endswith(".so"):
            yield f"/{path}", seen.fault.message


def _gpu(facts: Mapping[str, FileFacts], site: str, ops: Mapping[str, str]) -> dict[str, GpuCode]:
    torch = f"{site}/torch/lib/"
    wanted = {path.lstrip("/") for path in ops.values()}
    return {
        f"/{path}": seen.gpu
        for path, seen in sorted(facts.items())
        if seen.gpu is not None and (seen.gpu.entries or seen.gpu.problems)
        and (path in wanted or path.startswith(torch))
    }  # fmt: skip
