"""Importing torch and DeepSpeed: how it ended, in its own words, and what that is known to mean."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuild.doctor.collection import Import, Interpreter
from envbuild.doctor.found import absent, older, torch_version
from envbuild.doctor.pip import install
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity

# What the words mean: the reason, what to do, who says so. The first that fits counts. A reason is part of the
# finding's rule, so that a check that knows the root can say that this is its echo.
_LOADER = "the loader's own words"
_KNOWN: tuple[tuple[str, str, str, str], ...] = (
    (
        "libstdcxx",
        r"\b(GLIBCXX|CXXABI)_[0-9.]+",
        "let the process load a libstdc++ with that version: see what is said about libstdc++",
        _LOADER,
    ),
    (
        "glibc",
        r"GLIBC_[0-9.]+'? not found",
        "use a system (or an image) with a newer C library: it cannot be exchanged in place",
        _LOADER,
    ),
    (
        "nccl",
        r"undefined symbol: nccl\w+|libnccl\.so",
        "let torch load the NCCL that it came with",
        "pytorch/pytorch#119932",
    ),
    (
        "cuda-library",
        r"(libcu\w+|libnv\w+|libcudnn\w*)\.so[.\d]*: |undefined symbol: (__nv|cu|cudnn)\w+",
        "let torch load the CUDA libraries that it came with: take other toolkits out of LD_LIBRARY_PATH",
        _LOADER,
    ),
    (
        "libcuda",
        r"libcuda\.so\.1: cannot open",
        "start with the driver's library: in a container with its GPUs",
        _LOADER,
    ),
    (
        "abi",
        r"undefined symbol: _ZN?K?(3c10|2at|5torch)",
        "compile the extension against this torch again",
        "huggingface/transformers#18868",
    ),
    (
        "permission",
        r"Permission denied|Operation not permitted|\[Errno 13\]",
        "let this user read it (its owner: chmod -R a+rX on the environment), or train as the user whom it belongs to",
        "the file's permissions",
    ),
    (
        "library",
        # What glibc's elf/dl-load.c says of a file that it cannot use, and a symbol of a library's own version.
        r"error while loading shared libraries|cannot open shared object file|file too short|invalid ELF header|"
        r"cannot read file data|only ET_DYN|ELF load command|failed to map segment|wrong ELF class|"
        r"undefined symbol: \w+, version (GCC|G?OMP|OACC|lib\w+)",
        "install the library that is named, where the loader looks",
        _LOADER,
    ),
    (
        "pydantic",
        r"pydantic|field_info|validation errors? for DeepSpeed",
        "install the pydantic that this DeepSpeed wants",
        "deepspeedai/DeepSpeed#3950",
    ),
    (
        "numpy",
        r"numpy|_ARRAY_API",
        "install the numpy that this torch and DeepSpeed were made for",
        "NumPy 2.0 migration guide",
    ),
    (
        "setuptools",
        r"pkg_resources|setuptools",
        "install the setuptools that this torch wants",
        "pytorch's torch.utils.cpp_extension",
    ),
    (
        "triton",
        r"active drivers|triton",
        "take a DeepSpeed that can be imported without a GPU, or import it where there is one",
        "facts: deepspeed.minimums.import_without_gpu",
    ),
    (
        "torch-api",
        r"cannot import name '\w+' from 'torch",
        "take a DeepSpeed of the time of this torch",
        "deepspeedai/DeepSpeed#5337",
    ),
    (
        "nvcc",
        r"CUDA_HOME|nvcc|MissingCUDAException",
        "give it the toolkit, or a DeepSpeed that does without",
        "deepspeedai/DeepSpeed#7452",
    ),
    (
        "transformers",
        r"deepspeed[<>=]+.* is required",
        "install the DeepSpeed that is named",
        "databrickslabs/dolly#209",
    ),
    (
        "module",
        r"No module named '[\w.]+'",
        "install the package that has the module into this environment",
        "sys.path of the interpreter",
    ),
    (
        "accelerator",
        r"DS_ACCELERATOR|accelerator",
        "unset DS_ACCELERATOR, or name one that is there",
        "deepspeed/accelerator/real_accelerator.py",
    ),
    (
        "isa",
        r"ended by signal 4|illegal instruction",
        "use a build for this CPU: it holds instructions that it lacks",
        "signal 4 is SIGILL",
    ),
    (
        "memory",
        r"ended by signal 9",
        "give it more memory: whoever kills with signal 9 is mostly the kernel, for want of it (dmesg says so)",
        "signal 9 is SIGKILL",
    ),
    (
        "slow",
        r"not done after",
        "look at the file system that it is loaded from",
        "the collector's time-out",
    ),
)
_Entry = tuple[str, re.Pattern[str], str, str]
_READ: tuple[_Entry, ...] = tuple(
    (reason, re.compile(pattern, re.IGNORECASE), fix, source) for reason, pattern, fix, source in _KNOWN
)
_LINES, _LETTERS = 12, 400
# The rules of imports that failed on what they found; a process that took too long or too much memory found nothing.
FAILURES = (*(f"imports.{entry[0]}" for entry in _KNOWN if entry[0] not in ("memory", "slow")), "imports.unknown")


def look(view: View) -> Iterator[Finding]:
    """The imports that failed, and an interpreter that has nothing to import."""
    torch, deepspeed = view.collection.torch, view.collection.deepspeed
    interpreter = view.collection.interpreter
    missing = [name for name in ("torch", "deepspeed") if absent(view, name)]
    # Of one that does not start nothing is known (`interpreter`).
    if missing and interpreter is not None and interpreter.version is not None:
        yield _nothing(view, missing, interpreter)
    if torch is not None and not torch.ok and "torch" not in missing:
        yield _failed("torch", torch)
    # Without torch DeepSpeed only repeats what torch said.
    same = torch is not None and not torch.ok and deepspeed is not None and deepspeed.error == torch.error
    if deepspeed is not None and not deepspeed.ok and not missing and not same:
        root = _failed("torch", torch).rule if torch is not None and not torch.ok else ""
        yield _failed("deepspeed", deepspeed, root)


def _nothing(view: View, missing: list[str], interpreter: Interpreter) -> Finding:
    both, meant = len(missing) == 2, view.row is not None
    names = {"torch": "torch", "deepspeed": "DeepSpeed"}
    lost = " and no ".join(names[name] for name in missing)
    empty = view.collection.torch is not None and view.collection.torch.is_empty and "torch" in missing
    another = "name the interpreter that trains: envbuild doctor --python PATH"
    first = "torch in the build for your GPU or CPU (pytorch.org, Get Started)"
    # DeepSpeed's installation imports torch, which it does not see from an isolated build.
    fix = {
        ("torch", "deepspeed"): another,
        ("torch",): f"install {first}; or {another}",
        ("deepspeed",): f"install DeepSpeed, with --no-build-isolation: it looks at torch meanwhile; or {another}",
    }[tuple(missing)]
    return Finding(
        rule="imports.nothing",
        severity=Severity.INFO if both and meant else Severity.WARNING if both else Severity.ERROR,
        subject=interpreter.executable,
        message=f"this Python has no {lost}"
        + (", but a folder of that name, as an uninstall leaves one" if empty else "")
        + (": only the machine itself was looked at" if both else ""),
        why="" if both else "Training needs both.",
        fix=fix,
        command="" if "torch" in missing else _deepspeed(view),
        source="importlib.metadata",
    )


def _deepspeed(view: View) -> str:
    """The lines that install DeepSpeed beside this torch: pip shall choose one for it, and no other torch."""
    torch, limit = torch_version(view), view.facts.setuptools
    setuptools = limit.specifier if older(torch, limit.torch_below) else "setuptools"
    first = install(view, setuptools, "wheel") if view.package("setuptools") is None else ""
    beside = (f"torch=={torch}",) if torch is not None else ()
    second = install(view, "deepspeed", *beside, options="--no-build-isolation")
    return "\n".join(filter(None, (first, second)))


def _failed(name: str, seen: Import, root: str = "") -> Finding:
    known = _known(seen)
    meaning, fix, source = (
        (known[0], known[2], known[3])
        if known
        else ("unknown", "read its own words: they are what was seen", "the exception itself")
    )
    shown = {"torch": "torch", "deepspeed": "DeepSpeed"}[name]
    return Finding(
        rule=f"imports.{meaning}",
        # It may only take long: nothing is known to be wrong.
        severity=Severity.WARNING if meaning == "slow" else Severity.ERROR,
        subject=name,
        message=f"{shown} cannot be imported: {(seen.error or 'it ended without a word')[:_LETTERS]}",
        why="Nothing can be trained before that.",
        fix=fix,
        evidence=tuple(line[:_LETTERS] for line in seen.trace[-_LINES:]),
        source=source,
        explained_by=root,
    )


def reason(seen: Import) -> str:
    """What the words of a failed import are known to mean, such as ``nvcc``; ``unknown`` where they are not."""
    known = _known(seen)
    return known[0] if known else "unknown"


def _known(seen: Import) -> _Entry | None:
    # Indented lines of a traceback are paths and code, in which every one of these words may stand.
    printed = "\n".join(line for line in seen.trace[-_LINES:] if not line.startswith((" ", "\t")))
    found = (entry for words in (seen.error or "", printed) for entry in _READ if entry[1].search(words))
    return next(found, None)


CHECK = Check(
    name="imports",
    title="torch and DeepSpeed can be imported",
    look=look,
)
