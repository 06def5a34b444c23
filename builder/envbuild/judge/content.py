"""Is the content what the row claims? Files from outside, modules from inside, each against the row and the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuild.judge import python
from envbuild.judge.claims import claims, module
from envbuild.judge.compare import error
from envbuild.judge.number import count, show
from envbuild.judge.outcome import dig
from envbuild.judge.outside import CONSTRAINTS, WANTED, OutsideReport, outside
from envbuild.judge.versions import capability
from envbuild.model import Environment, Finding
from envbuild.plan import PREFIX
from envbuild.plan.families import compiler

__all__ = ["SCHEMA", "WANTED", "OutsideReport", "inspect", "outside"]

SCHEMA = "envbuild.probe.content/1"
_PINNED = ("deepspeed", "torch")
# Packages whose version decides how torch and DeepSpeed behave, and which both sides can see.
_COMPARED = ("numpy", "pydantic")
# They decide what is loaded in place of the proven files, and the probes' isolated Python does not heed them.
_UNSEEN = ("LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONUSERBASE")
_Told = Iterator[tuple[str, str]]


def inspect(
    env: Environment, outside: OutsideReport, inside: Mapping[str, object], *, sms: tuple[str, ...] = ()
) -> list[Finding]:
    """Compare an image's content with its row; no finding means that it is what the row says.

    Args:
        env: The row.
        outside: From the exported filesystem.
        inside: The content probe's document, as decoded JSON; what is missing or malformed in it fails.
        sms: Compute capabilities of the row's GPUs, such as ``9.0``; a cuda row needs them.
    """
    findings = [finding for claim in claims(env, outside, inside) for finding in claim.findings(env.name)]
    for part in (_probe, _accelerator, _ops, _packages, _constraints, _environment, _startup, _residue):
        findings.extend(error(rule, env.name, told, _FIXES[rule]) for rule, told in part(env, outside, inside))
    findings.extend(error("content.arch", env.name, told, _FIXES["content.arch"]) for told in _arch(env, inside, sms))
    return findings


_FIXES = {
    "content.probe": "Run the content probe again; its last lines are in the report.",
    "content.python": "Make the environment with the distribution's Python: build the image again.",
    "content.files": "The image's files are damaged or not what envbuild builds: build it again.",
    "content.deepspeed": "DeepSpeed uses compiled ops only on the accelerator they were made for: set DS_ACCELERATOR.",
    "content.op.missing": "The op was not compiled: see the build's log of the ops stage.",
    "content.op.load": "The op does not load: look at what it was linked with, and against which torch.",
    "content.op.jit": "The op would be compiled on a user's first step: compile it in the build.",
    "content.packages": "Nothing may be installed on top of the locked wheels: build the image again.",
    "content.constraints": "Without constraints a later pip install swaps torch: build the image again.",
    "content.env": "The image's variables are not what envbuild sets: build it again.",
    "content.hooks": "Remove the file: what runs at every start can change what was proven.",
    "content.residue": "The toolkit belongs to the ops stage: nothing of it may be copied into the runtime image.",
    "content.arch": "Take a torch build that holds code for the row's GPUs.",
}


def _probe(env: Environment, outside: OutsideReport, inside: Mapping[str, object]) -> _Told:
    if inside.get("schema") != SCHEMA:
        yield "content.probe", f"the content probe's document has the schema {show(inside.get('schema'))}, not {SCHEMA}"
    for part, value in (("the content probe", inside.get("error")), ("its imports", dig(inside, "modules", "error"))):
        if value is not None:
            yield "content.probe", f"{part} failed: {show(value)}"
    for problem in outside.problems:
        yield "content.files", problem


def _accelerator(env: Environment, outside: OutsideReport, inside: Mapping[str, object]) -> _Told:
    found = {
        "git_version_info_installed.py": outside.built_for,
        "deepspeed.git_version_info": module(inside, "deepspeed", "built_for"),
        "DeepSpeed's accelerator": module(inside, "deepspeed", "accelerator"),
    }
    for where, value in found.items():
        if value != env.accelerator:
            yield "content.deepspeed", f"{where} says {show(value)}, the row's accelerator is {env.accelerator}"


def _ops(env: Environment, outside: OutsideReport, inside: Mapping[str, object]) -> _Told:
    for op in env.deepspeed.ops:
        figures = module(inside, "ops", op)
        loaded = dig(figures, "loaded") is True
        absent = [
            where
            for where, there in (
                ("no file under deepspeed/ops", op in outside.op_files),
                ("not in git_version_info_installed.py", op in (outside.installed_ops or ())),
                ("not in deepspeed.git_version_info", module(inside, "deepspeed", "installed_ops", op) is True),
            )
            if not there
        ]
        reason = dig(figures, "error")
        if absent:
            yield "content.op.missing", f"{op}: {', '.join(absent)}" + (f" ({show(reason)})" if reason else "")
        compiled = dig(figures, "jit") is True or count(dig(figures, "extension_files")) != 0
        if loaded and (compiled or not _same_file(dig(figures, "file"), outside.op_files.get(op))):
            yield "content.op.jit", f"{op} was loaded from {show(dig(figures, 'file'))}, which the build did not make"
        elif not loaded and not absent:
            kind = "content.op.jit" if dig(figures, "jit") is True else "content.op.load"
            yield kind, f"{op} does not load with no compiler on PATH: {show(reason)}"
    if count(dig(inside, "modules", "extension_files")) != 0:
        files = show(dig(inside, "modules", "extension_files"))
        yield "content.op.jit", f"files in the extension folder after all ops were loaded: {files}"


def _same_file(inside: object, outside: str | None) -> bool:
    return isinstance(inside, str) and outside is not None and inside.endswith(f"/site-packages/{outside}")


def _packages(env: Environment, outside: OutsideReport, inside: Mapping[str, object]) -> _Told:
    for name in outside.duplicates:
        yield "content.packages", f"{name} is installed more than once"
    for name in _COMPARED:
        seen, imported = outside.packages.get(name), module(inside, "imported", name, "version")
        if seen is None or seen != imported:
            yield "content.packages", f"{name}: its METADATA says {show(seen)}, the module says {show(imported)}"
    for name in ("torch", "deepspeed", *_COMPARED):
        file = module(inside, "imported", name, "file")
        if not isinstance(file, str) or not file.startswith(f"{PREFIX}/"):
            reason = module(inside, "imported", name, "error")
            told = f" ({show(reason)})" if reason else ""
            yield "content.packages", f"{name} was imported from {show(file)}, not from {PREFIX}{told}"


def _constraints(env: Environment, outside: OutsideReport, inside: Mapping[str, object]) -> _Told:
    rule = "content.constraints"
    path, text = dig(inside, "constraints", "path"), dig(inside, "constraints", "text")
    if path != CONSTRAINTS:
        yield rule, f"PIP_CONSTRAINT names {show(path)}, not {CONSTRAINTS}"
    if outside.constraints is None:
        yield rule, f"there is no file {CONSTRAINTS}"
        return
    if not isinstance(text, str) or text.split() != outside.constraints.split():
        yield rule, f"{CONSTRAINTS} reads differently inside ({show(text)})"
    named: set[str] = set()
    for line in filter(None, (line.partition("#")[0].strip() for line in outside.constraints.splitlines())):
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            yield rule, f"{CONSTRAINTS} has a line that is no requirement: {show(line)}"
            continue
        name = canonicalize_name(requirement.name)
        named.add(name)
        version = outside.packages.get(name)
        # Compared as text: a pin on 2.13.0 would let 2.13.0+cu130 take the place of 2.13.0+cpu.
        if version is not None and str(requirement.specifier) != f"=={version}":
            yield rule, f"{CONSTRAINTS} says {line}, installed is {name} {version}"
    for missing in sorted(set(_PINNED) - named):
        yield rule, f"{CONSTRAINTS} does not pin {missing}"


def _environment(env: Environment, outside: OutsideReport, inside: Mapping[str, object]) -> _Told:
    gcc = compiler(env)
    expected = {
        "PIP_CONSTRAINT": CONSTRAINTS,
        "UV_CONSTRAINT": CONSTRAINTS,
        "CC": gcc.cc,
        "CXX": gcc.cxx,
    }
    if gcc.tools:
        expected["COMPILER_PATH"] = gcc.tools
    if env.accelerator == "cpu":
        expected["DS_ACCELERATOR"] = "cpu"
    else:
        expected.update(CUDAHOSTCXX=gcc.cxx, NVIDIA_VISIBLE_DEVICES="all", NVIDIA_DRIVER_CAPABILITIES="compute,utility")
    expected.update(env.env)
    reported = dig(inside, "environment")
    for name, right in expected.items():
        for where, value in (("the image's config", outside.env.get(name)), ("the container", dig(reported, name))):
            # A variable of the row's own is not among those that the probe reports.
            if value != right and not (where == "the container" and name in env.env and value is None):
                yield "content.env", f"{name} is {show(value)} in {where}, not {right}"
    for where, value in (("the image's config", outside.env.get("PATH")), ("the container", dig(reported, "PATH"))):
        if not isinstance(value, str) or value.split(":")[0] != f"{PREFIX}/bin":
            yield "content.env", f"PATH begins with {show(value)} in {where}, not with {PREFIX}/bin"


def _startup(env: Environment, outside: OutsideReport, inside: Mapping[str, object]) -> _Told:
    """What happens before the first line of a user's program, and what a probe under ``python -I`` does not see."""
    if not python.is_distributions(outside.interpreter, env.python):
        right = python.EXAMPLES.format(env.python)
        yield "content.python", f"{PREFIX}/bin/python is {show(outside.interpreter)}, not {right}"
    for name in outside.hooks:
        yield "content.hooks", f"{name} beside the packages runs at every start of Python, and no package owns it"
    for name in _UNSEEN:
        if outside.env.get(name):
            yield "content.env", f"{name} is {show(outside.env[name])} in the image's config; it must not be set"


def _residue(env: Environment, outside: OutsideReport, inside: Mapping[str, object]) -> _Told:
    nvcc = dig(inside, "toolkit", "nvcc")
    if outside.toolkit or nvcc != []:
        yield "content.residue", f"nvcc is in the image: {', '.join(outside.toolkit) or show(nvcc)}"


def _arch(env: Environment, inside: Mapping[str, object], sms: tuple[str, ...]) -> Iterator[str]:
    if env.accelerator != "cuda":
        return
    listed = module(inside, "torch", "arch_list")
    if not isinstance(listed, list) or not listed:
        yield f"torch's list of architectures could not be read ({show(listed)})"
        return
    if not sms:
        yield "nobody says which architectures the row's GPUs have"
    # A cubin runs on later minor versions of its own major one; PTX is not counted on: it needs a newer driver.
    cubins = [found for item in listed if str(item).startswith("sm_") and (found := capability(str(item)))]
    for sm in sms:
        wanted = capability(sm)
        if wanted is None or not any(major == wanted[0] and minor <= wanted[1] for major, minor in cubins):
            yield f"torch holds no code for compute capability {sm}; it has {' '.join(str(item) for item in listed)}"
