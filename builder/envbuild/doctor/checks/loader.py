"""Nothing in the environment leads the loader astray, and everything that torch and the ops need is found."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.collector.elf.linker import preloads
from envbuild.doctor.found import absent
from envbuild.doctor.loading import Answers, answers
from envbuild.doctor.remedies import trials, variable
from envbuild.doctor.view import Check, View
from envbuild.doctor.wheels import wheel_files
from envbuild.doctor.words import (
    OFFLOAD,
    belongs,
    conda_prefix,
    folder,
    harmless,
    listed,
    named,
    op_at,
    ours,
    remedy_for,
    serves,
)
from envbuild.elf import Choice
from envbuild.model import Finding, Severity

_SOURCE = "ld.so(8); glibc's elf/dl-load.c"
_CUDA = re.compile(r"/cuda(?:-[\d.]+)?(?:/targets/[^/]+)?/lib(?:64)?(?=/|$)")
_TORCHS = re.compile(r"lib(torch|c10)(_\w+)?\.so")
# Packages of libraries that wheels leave to the system, by distribution family.
_PACKAGES = {
    "libaio.so.1": ("libaio1 (libaio1t64 on Ubuntu 24.04 and Debian 13)", "libaio"),
    "libgomp.so.1": ("libgomp1", "libgomp"),
    "libstdc++.so.6": ("libstdc++6", "libstdc++"),
    "libnuma.so.1": ("libnuma1", "numactl-libs"),
    "libibverbs.so.1": ("libibverbs1", "libibverbs"),
    "librdmacm.so.1": ("librdmacm1", "librdmacm"),
}


def _look(view: View) -> Iterator[Finding]:
    known = answers(view.collection)
    if known.problem and view.collection.interpreter is not None:
        yield Finding(
            rule="loader.unknown",
            severity=Severity.INFO,
            subject="loader",
            message=f"what the loader would choose could not be worked out: {known.problem}",
            fix="nothing to do: the checks that rest on it say nothing",
            source=_SOURCE,
        )
    yield from _unresolved(view, known)
    yield from _other_torch(view, known)
    yield from _library_path(view, known)
    yield from _preload(view, known)
    yield from _linker(view)


def _unresolved(view: View, known: Answers) -> Iterator[Finding]:
    groups: dict[str, list[Choice]] = {}
    without = absent(view, "torch")
    # Where torch itself does not load, nobody finds its libraries: that is no fault of theirs.
    torch = all(loading.works for path, loading in known.loadings.items() if "/torch/" in path)
    for choice in known.unresolved:
        # A file that is there and no library is told by `ops` and `unfit`.
        if known.refused(choice) is None and (torch or not choice.name.startswith(("libtorch", "libc10"))):
            groups.setdefault(choice.name, []).append(choice)
    for name, choices in groups.items():
        askers = [choice.asker or name for choice in choices]
        ops = [op for asker in askers if (op := op_at(asker, view.collection))]
        mine = ours(askers, view.collection)
        starts = any(choice in known.start.choices for choice in choices)  # what the interpreter itself needs
        mild = not starts and (not mine or harmless(view.collection, mine))
        if ops and not any(serves(op, view.collection) for op in ops):
            continue
        fix, command = _where_from(view, name, askers)
        yield Finding(
            rule="loader.unresolved",
            severity=Severity.WARNING if mild else Severity.ERROR,
            subject=askers[0],
            message=f"{named(askers, view.collection)} cannot be loaded: {choices[0].problem}",
            why=OFFLOAD if ops else "it ends in an ImportError, whatever asks for it",
            evidence=tuple(f"{choice.asker or 'dlopen'}: {choice.name}: {choice.problem}" for choice in choices[:6]),
            fix=fix,
            command=command,
            source=_SOURCE,
            explained_by="imports.nothing" if without and name.startswith(("libtorch", "libc10")) else "",
        )


def _where_from(view: View, name: str, askers: list[str]) -> tuple[str, str]:
    torch = view.collection.torch
    ops = [op for asker in askers if (op := op_at(asker, view.collection))]
    if len(ops) < len(set(askers)):
        ops = []  # torch, or a wheel, asks for it too: it is no fault of the ops
    if name in _PACKAGES:
        debian, redhat = _PACKAGES[name]
        distribution = view.collection.machine.distribution
        is_redhat = bool({distribution.id or "", *distribution.like} & {"rhel", "fedora", "centos"})
        return f"install the system's package {redhat if is_redhat else debian}", ""
    if name.startswith(("libtorch", "libc10")):
        if ops:
            words, command = remedy_for(ops[0], view)
            return f"it was linked against another torch: {words}", command
        return "import torch before it: it finds torch's libraries only when they are loaded", ""
    found = re.match(r"lib(cudart|cublas|cudnn|nccl|cusparse|cufft|curand|cusolver|nvrtc)\w*\.so\.(\d+)", name)
    if found:
        built = f", and this torch is built for {torch.cuda or 'no CUDA'}" if torch is not None and torch.ok else ""
        if ops:
            words, command = remedy_for(ops[0], view)
            return f"it was linked against another CUDA{built}: {words}", command
        return "install torch again with its dependencies: its CUDA libraries come as nvidia-* wheels", ""
    return f"install what brings {name}, or the package of {askers[0].rpartition('/')[2]} again", ""


def _other_torch(view: View, known: Answers) -> Iterator[Finding]:
    """torch's libraries out of another torch: those of a CPU build look for one another by RUNPATH."""
    own = next((folder(path) for path in known.loadings if path.endswith("/torch/lib/libtorch_global_deps.so")), None)
    other = [
        loaded for loaded in known.loaded
        if own is not None and _TORCHS.fullmatch(loaded.real.rpartition("/")[2])
        and folder(loaded.real) != folder(known.real(f"{own}/libtorch_global_deps.so"))
    ]  # fmt: skip
    # Of a library that the wheel has not, it is somebody else's.
    other = [loaded for loaded in other if known.read(f"{own}/{loaded.real.rpartition('/')[2]}") is not None]
    if not other:
        return
    first, works = other[0], view.collection.torch is not None and view.collection.torch.ok
    gone = {loaded.real for loaded in other}
    tried = trials(view.collection, known, first.elf.soname or first.path.rpartition("/")[2])
    cured = next((trial for trial in tried if not gone & {loaded.real for loaded in trial.after.loaded}), None)
    yield Finding(
        rule="loader.other-torch",
        severity=Severity.WARNING if works else Severity.ERROR,
        subject=first.path,
        message=f"{listed(loaded.real for loaded in other)} {'is' if len(other) == 1 else 'are'} loaded, by "
        f"{known.why(first.path)}, and not torch's own in {own}",
        why="torch's libraries are made for one another: of two versions the import ends in 'undefined symbol'",
        evidence=tuple(f"{loaded.real}, by {known.why(loaded.path)}" for loaded in other[:6]),
        fix=f"{cured.remedy.words} (tried on what was seen)" if cured else "see that torch's own are found first",
        command=cured.remedy.command if cured else "",
        source=_SOURCE,
    )


def _library_path(view: View, known: Answers) -> Iterator[Finding]:
    collection = view.collection
    value = known.conditions.library_path or collection.environment.get("LD_LIBRARY_PATH", "")
    entries = re.split("[:;]", value) if value else []
    wheels = wheel_files(view)
    stubs = [entry for entry in entries if entry.rstrip("/").endswith("/stubs")]
    cuda = [entry for entry in entries if _CUDA.search(entry) and entry not in stubs]
    if cuda and wheels:
        yield _entries(
            "loader.cuda-path",
            f"LD_LIBRARY_PATH holds {listed(cuda)}, and torch brings its CUDA libraries in NVIDIA's wheels "
            f"({folder(next(iter(wheels.values())))} and others)",
            "the wheels' libraries look for one another by RUNPATH, which LD_LIBRARY_PATH goes before: one of the "
            "toolkit's is then mixed in, and the first call of a missing function ends the process",
            known, entries, cuda,
        )  # fmt: skip
    if stubs:
        yield _entries(
            "loader.stubs",
            f"LD_LIBRARY_PATH holds {listed(stubs)}: the link stubs of a CUDA toolkit, which do nothing",
            "they are for linking where there is no driver; at run time a stub that wins gives error 34 (stub library)",
            known, entries, stubs,
        )  # fmt: skip
    python = collection.interpreter
    places = (python.executable, python.real, f"{python.base}/lib/python") if python is not None else ()
    own = {conda_prefix(place, collection) for place in places if place}
    foreign = [entry for entry in entries
               if (prefix := conda_prefix(f"{entry.rstrip('/')}/x", collection)) and prefix not in own]  # fmt: skip
    if foreign:
        yield _entries(
            "loader.conda-path",
            f"LD_LIBRARY_PATH holds {listed(foreign)} of a conda environment that this Python is not of",
            "conda's libstdc++, OpenSSL and others then serve a Python that was not built with them",
            known, entries, foreign,
        )  # fmt: skip
    if "" in entries:
        yield Finding(
            rule="loader.working-folder",
            severity=Severity.INFO,
            subject="LD_LIBRARY_PATH",
            message=f"LD_LIBRARY_PATH has an empty entry ({value!r}), which stands for the working directory: what "
            "lies there is taken for a library",
            fix="write it without the empty entry",
            command=variable("LD_LIBRARY_PATH", [entry for entry in entries if entry]),
            source=_SOURCE,
        )


def _entries(rule: str, message: str, why: str, known: Answers, entries: list[str], wrong: list[str]) -> Finding:
    """Entries of LD_LIBRARY_PATH that should not be there, unless something is found in them alone."""
    less = [entry for entry in entries if entry and entry not in wrong]
    after = known.what_if(library_path=":".join(less))
    lost = {choice.name for choice in after.unresolved} - {choice.name for choice in known.unresolved}
    keeps = f"; {listed(sorted(lost))} is found there alone: install that where the loader looks, first" if lost else ""
    return Finding(
        rule=rule,
        severity=Severity.WARNING,
        subject="LD_LIBRARY_PATH",
        message=message,
        why=why,
        evidence=(f"LD_LIBRARY_PATH={':'.join(entries)}",),
        fix=f"take it out of LD_LIBRARY_PATH: torch finds its own libraries without{keeps}",
        command="" if lost else variable("LD_LIBRARY_PATH", less),
        source=f"{_SOURCE}; RUNPATH of the files in NVIDIA's wheels" if rule == "loader.cuda-path" else _SOURCE,
    )


def _preload(view: View, known: Answers) -> Iterator[Finding]:
    gone = [choice for choice in known.start.choices if choice.why == "preload" and choice.path is None]
    for choice in gone:
        problem = (choice.problem or "it is not there").removesuffix(", and the loader looks no further")
        yield Finding(
            rule="loader.preload",
            severity=Severity.WARNING,
            subject=choice.name,
            message=f"{choice.name} is to be preloaded and cannot be: {problem}",
            why="every process says so on stderr and goes on without it",
            fix=f"take it out of {known.because(choice)}, or install it",
            command="unset LD_PRELOAD" if preloads(known.conditions.preload, "") == [choice.name] else "",
            evidence=(f"LD_PRELOAD={known.conditions.preload}",) if known.conditions.preload else (),
            source=_SOURCE,
        )
    there = [choice for choice in known.start.choices if choice.why == "preload" and choice.path is not None]
    kinds = re.compile(r"lib(stdc\+\+|nccl|cudart|cublas|cudnn|cuda)[-.]")
    for choice in there:
        if choice.path and kinds.search(choice.path.rpartition("/")[2]):
            yield Finding(
                rule="loader.preload",
                severity=Severity.WARNING,
                subject=choice.path,
                message=f"{choice.path} {f'({whose}) ' if (whose := belongs(choice.path, view.collection)) else ''}is "
                "preloaded into every process, so it goes before the one that torch was built with",
                why="it hides which library an environment would take, and stays when the environment changes",
                fix=f"take it out of {known.because(choice)}, and repair what it was set for",
                command="unset LD_PRELOAD" if preloads(known.conditions.preload, "") == [choice.name] else "",
                evidence=(f"LD_PRELOAD={known.conditions.preload}",) if known.conditions.preload else (),
                source=_SOURCE,
            )


def _linker(view: View) -> Iterator[Finding]:
    collection = view.collection
    entries = collection.environment.get("PATH", "").split(":")
    first = next((entry for entry in entries if entry.rstrip("/").endswith("compiler_compat")), None)
    linker = next((tool for tool in collection.tools if tool.name == "ld" and tool.role == "shell"), None)
    if first is None and (linker is None or "/compiler_compat/" not in f"{linker.path}"):
        return
    place = linker.path if linker is not None and linker.path else f"{first}/ld"
    yield Finding(
        rule="loader.conda-linker",
        severity=Severity.WARNING,
        subject=place or "ld",
        message=f"ld is conda's {place}, which comes first on PATH" if linker else f"{first} is on PATH",
        why="it does not look where the system's compiler does: linking an op, or DeepSpeed's probe for one, ends in "
        "'undefined reference to ...@GLIBCXX', and no libstdc++ is too old",
        evidence=(f"PATH={collection.environment.get('PATH', '')}", *((f"ld: {linker.says}",) if linker else ())),
        fix="take the compiler_compat folder out of PATH, so that the compiler finds its own linker",
        command=variable("PATH", [entry for entry in entries if entry and entry != first]) if first else "",
        source="ContinuumIO/anaconda-issues#11152",
    )


CHECK = Check(
    name="loader",
    title="everything that torch and the ops need is found, and the environment leads the loader nowhere else",
    look=_look,
    # An import that failed for another reason than a library is another root.
    explains=(
        "imports.abi",
        "host-compiler.runtime",
        "imports.cuda-library",
        "imports.glibc",
        "interpreter.dead",
        "imports.libcuda",
        "imports.library",
        "imports.libstdcxx",
        "imports.nccl",
        "imports.unknown",
        "ninja.runtime",
        "ops",
    ),
)
