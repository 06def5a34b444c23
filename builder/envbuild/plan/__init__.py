"""Environment and lock in, Plan out. Pure: no file, no clock, no network.

A Plan says what has to be true of a machine for it to be the environment. Every output (Dockerfile,
script, bundle) is a rendering of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import InputError
from envbuild.facts import Facts, Op
from envbuild.model import Bootstrap, Environment, Lock, LockedPackage, LockGroup
from envbuild.plan.families import Compiler, compiler, family, packages, python

PREFIX = "/opt/venv"
HOME = "/opt/envbuild"
USER_HOME = "/home/envbuild"
# What an image says of itself. Labels are inherited and can be set by anybody, so they are hints, never proof.
LABEL_ENV = "io.envbuild.environment"
LABEL_TARGET = "io.envbuild.target"

# What a later `pip install` must not swap: these decide whether the proof still holds. The rest may move.
_CORE = ("deepspeed", "numpy", "pydantic", "pydantic-core", "torch", "torchaudio", "torchvision", "triton")

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Where packages come from, and the file of the image with the key that they are signed with."""

    id: str
    baseurl: str
    gpgkey: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What makes a machine this environment.

    Attributes:
        claims: What the finished image is said to contain, by name; inspection holds the image to it.
        packages: Operating system packages that stay.
        repositories: Where packages come from, where the base's own configuration leads nowhere any more.
        key_packages: Packages that bring the keys of some of these, and are installed first.
        library_folders: Folders that the system's loader has to be told of.
        op_packages: Those that only the ops stage needs.
        cache_packages: Those that let the ops stage of a container build find again what it compiled before.
        wheels: The locked packages, in lock order; none where the row's lock is unresolved or missing.
        built: What the ops stage compiles into wheels, as pip takes it: ``deepspeed==0.19.8``. From the row, not from
            the lock, so that the Dockerfile is the same with and without one.
        ops_env: Variables of the op compilation, sorted.
        env: Variables of the finished image, in writing order.
        constraints: Lines of the constraints file that guards the proof against a later ``pip install``.
        toolkit: Where nvcc comes from: ``image``, ``wheels`` or ``none``.
    """

    environment: str
    platform: str
    template: str
    accelerator: str
    claims: Pairs
    base_image: str
    base_digest: str | None
    bootstrap: Bootstrap | None
    toolkit: str
    toolkit_image: str | None
    toolkit_digest: str | None
    python: str
    python_program: str
    packages: tuple[str, ...]
    op_packages: tuple[str, ...]
    cache_packages: tuple[str, ...]
    repositories: tuple[Repository, ...]
    key_packages: tuple[str, ...]
    library_folders: tuple[str, ...]
    cc: str
    cxx: str
    cpu_baseline: str
    wheels: tuple[LockedPackage, ...]
    built: tuple[str, ...]
    ops: tuple[str, ...]
    ops_env: Pairs
    constraints: tuple[str, ...]
    env: Pairs
    prefix: str = PREFIX
    home: str = HOME
    user_home: str = USER_HOME

    @property
    def site_packages(self) -> str:
        """Where the wheels live in the image."""
        return f"{self.prefix}/lib/python{self.python}/site-packages"

    @property
    def base_reference(self) -> str:
        """The declared base, by digest where one is known."""
        return reference(self.base_image, self.base_digest)

    @property
    def toolkit_reference(self) -> str | None:
        """The declared image with the CUDA toolkit, if the toolkit comes in one."""
        return reference(self.toolkit_image, self.toolkit_digest) if self.toolkit_image else None

    @property
    def base_key(self) -> str:
        """A short name for the declared base, for caches that belong to it."""
        return hashlib.sha256(self.base_reference.encode()).hexdigest()[:12]

    @property
    def cuda_home(self) -> str:
        """Where the toolkit's wheels lay their files (NVIDIA's wheels of CUDA 13: ``nvidia/cu13``)."""
        major = dict(self.claims).get("cuda", "0").split(".")[0]
        return f"{self.site_packages}/nvidia/cu{major}"

    def group(self, name: LockGroup) -> tuple[LockedPackage, ...]:
        """The locked packages of one build step."""
        return tuple(package for package in self.wheels if package.group == name)

    def canonical(self) -> bytes:
        """Canonical JSON of the Plan: sorted keys, no spaces."""
        return json.dumps(
            dataclasses.asdict(self), sort_keys=True, separators=(",", ":"), default=lambda model: model.model_dump()
        ).encode()


def reference(image: str, digest: str | None) -> str:
    """``image`` or ``image@digest``."""
    return f"{image}@{digest}" if digest else image


def make(env: Environment, lock: Lock | None, facts: Facts) -> Plan:
    """The Plan of a row with its lock, whose digests of the images count where the row names none.

    Without a resolved lock it has no wheels: enough for the Dockerfile, and not for a target id.

    Raises:
        InputError: The row names a family or an op that nobody knows.
    """
    env = lock.pin(env) if lock else env
    wheels = lock.packages if lock else ()
    distribution, known, gcc = family(env), packages(env, facts), compiler(env)
    python_packages, program, libraries = python(env, facts)
    verbs = distribution.verbs if env.fabric == "verbs" else ()
    ops = _ops(env, facts)
    toolkit = env.cuda.toolkit if env.cuda else "none"
    renamed = known.renamed if known else {}

    def named(*names: str) -> tuple[str, ...]:
        """The names as this release has them. A row's own packages are taken as they are."""
        return tuple(renamed.get(name, name) for name in names)

    return Plan(
        environment=env.name,
        platform=lock.platform if lock else env.platforms[0],
        template=distribution.template,
        accelerator=env.accelerator,
        claims=_claims(env),
        base_image=env.base.image,
        base_digest=env.base.digest,
        bootstrap=env.base.bootstrap,
        toolkit=toolkit,
        toolkit_image=env.base.toolkit_image if toolkit == "image" else None,
        toolkit_digest=env.base.toolkit_digest if toolkit == "image" else None,
        python=env.python,
        python_program=program,
        packages=_unique(
            *distribution.always,
            *gcc.packages,
            *python_packages,
            *named(*verbs),
            *named(*(name for op in ops for name in op.run_packages.get(distribution.naming, ()))),
            *env.packages,
        ),
        op_packages=_unique(*named(*(name for op in ops for name in op.build_packages.get(distribution.naming, ())))),
        cache_packages=distribution.compiler_cache,
        repositories=tuple(
            Repository(id=name, baseurl=entry.baseurl, gpgkey=entry.gpgkey)
            for name, entry in (known.repositories if known else {}).items()
        ),
        key_packages=known.keys if known else (),
        library_folders=(libraries,) if libraries else (),
        cc=gcc.cc,
        cxx=gcc.cxx,
        cpu_baseline=env.cpu_baseline,
        wheels=wheels,
        built=_built(env),
        ops=facts.deepspeed.with_implied(env.deepspeed.ops, env.deepspeed.version),
        ops_env=_ops_env(env, facts, gcc),
        constraints=tuple(f"{package.name}=={package.version}" for package in wheels if _guarded(package, env)),
        env=_image_env(env, gcc),
    )


def _built(env: Environment) -> tuple[str, ...]:
    """What is compiled, by name, and by version where the row says one; the ops stage makes one wheel of each."""
    names = [f"deepspeed=={env.deepspeed.version}"]
    for extra in env.extras:
        if extra.build:
            wanted = Requirement(extra.requirement)
            exact = [each for each in wanted.specifier if each.operator in ("==", "===") and "*" not in each.version]
            names.append(canonicalize_name(wanted.name) + (f"=={exact[0].version}" if exact else ""))
    return tuple(sorted(set(names)))


def _unique(*names: str) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _claims(env: Environment) -> Pairs:
    claims = {
        "python": env.python,
        "gcc": env.gcc.version,
        "torch": env.torch_version,
        "deepspeed": env.deepspeed.version,
        "cuda": env.cuda.version if env.cuda else None,
        "nccl": env.nccl,
        "gpus": ",".join(env.gpus) or None,
    }
    return tuple((name, value) for name, value in claims.items() if value is not None)


def _guarded(package: LockedPackage, env: Environment) -> bool:
    """Whether a later install must keep it: what the proof stands on, and what the row itself limits. The toolkit's
    wheels are not in the finished image."""
    limited = {canonicalize_name(Requirement(pin).name) for pin in env.pins}
    core = package.name in _CORE or package.name.startswith("nvidia-") or package.name in limited
    return package.group == "ops" or (core and package.group != "toolkit")


def arch_list(env: Environment, facts: Facts) -> str:
    """``TORCH_CUDA_ARCH_LIST`` for the row's GPUs: a cubin for each, and PTX of the newest for what comes later."""
    versions = sorted(set(capabilities(env, facts)), key=lambda sm: tuple(map(int, sm.split("."))))
    return ";".join(versions) + "+PTX" if versions else ""


def capabilities(env: Environment, facts: Facts) -> tuple[str, ...]:
    """Compute capability of each of the row's GPUs, in the row's order.

    Raises:
        InputError: A GPU that the facts do not know.
    """
    unknown = [gpu for gpu in env.gpus if gpu not in facts.gpus]
    if unknown:
        raise InputError(
            f"{env.name}: gpus: nothing is known of {', '.join(unknown)}",
            hint=f"Known GPUs: {', '.join(sorted(facts.gpus))}.",
        )
    return tuple(facts.gpus[gpu].sm for gpu in env.gpus)


def _ops_env(env: Environment, facts: Facts, gcc: Compiler) -> Pairs:
    ops = _ops(env, facts)
    variables = {op.build_variable: "1" for op in ops}
    link = [f"{op.module.rpartition('.')[2]}={name}" for op in ops for name in op.link.get(env.accelerator, ())]
    if link:
        variables["ENVBUILD_LINK"] = " ".join(link)
    variables |= _tools(gcc)
    # Without it DeepSpeed asks the build machine, which has no GPU, and compiles for the CPU accelerator.
    variables["DS_ACCELERATOR"] = env.accelerator
    # setuptools compiles one file after the other; ninja uses the machine.
    variables["DS_ENABLE_NINJA"] = "1"
    if env.cuda:
        variables["TORCH_CUDA_ARCH_LIST"] = env.env.get("TORCH_CUDA_ARCH_LIST", arch_list(env, facts))
        if env.cuda.toolkit == "wheels":
            major = env.cuda.version.split(".")[0]
            variables["CUDA_HOME"] = f"{PREFIX}/lib/python{env.python}/site-packages/nvidia/cu{major}"
    return tuple(sorted(variables.items()))


def _tools(gcc: Compiler) -> dict[str, str]:
    """Where the compiler finds its own assembler and linker: gcc looks into COMPILER_PATH before PATH."""
    return {"COMPILER_PATH": gcc.tools} if gcc.tools else {}


def _image_env(env: Environment, gcc: Compiler) -> Pairs:
    variables = {
        "PATH": f"{PREFIX}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "VIRTUAL_ENV": PREFIX,
        "CC": gcc.cc,
        "CXX": gcc.cxx,
        **_tools(gcc),
        "PIP_CONSTRAINT": f"{HOME}/constraints.txt",
        "UV_CONSTRAINT": f"{HOME}/constraints.txt",
        # Clusters mount $HOME: a torch in ~/.local would win over the proven one.
        "PYTHONNOUSERSITE": "1",
        # A uid without a passwd entry has no home and no name; caches and getpass need both.
        "HOME": USER_HOME,
        "USER": "envbuild",
    }
    if env.accelerator == "cpu":
        variables["DS_ACCELERATOR"] = "cpu"
    else:
        variables["CUDAHOSTCXX"] = gcc.cxx
        variables["NVIDIA_VISIBLE_DEVICES"] = "all"
        variables["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    return tuple({**variables, **env.env}.items())


def _ops(env: Environment, facts: Facts) -> tuple[Op, ...]:
    """The ops that are compiled: those the row names, and what they bring along in its DeepSpeed."""
    names = facts.deepspeed.with_implied(env.deepspeed.ops, env.deepspeed.version)
    unknown = [name for name in names if name not in facts.deepspeed.ops]
    if unknown:
        known = ", ".join(sorted(facts.deepspeed.ops))
        raise InputError(
            f"{env.name}: deepspeed.ops: nothing is known of {', '.join(unknown)}", hint=f"Known ops: {known}."
        )
    return tuple(facts.deepspeed.ops[name] for name in names)
