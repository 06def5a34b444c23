"""A row's wheels, each by version and hash; or, exactly, what of them cannot be had."""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement

from envbuild.errors import EngineError, EnvbuildError, InputError
from envbuild.lock import ask, parse
from envbuild.lock.uv import NoAnswer, NoSolution, Uv
from envbuild.model import Environment, Lock, LockedBase, LockedPackage
from envbuild.site.config import SiteConfig
from envbuild.site.pip import PYPI, PipSettings

_TORCH = ("torch", "torchvision", "torchaudio")
_LONGEST = 400


class Missing(EnvbuildError):
    """Some of a row's requirements cannot be had here; the exit code says whether an index answered (2) or not (3).

    Attributes:
        missing: What, one requirement a line, each with the reason. Nothing in it names the site.
    """

    def __init__(self, cause: EnvbuildError, missing: tuple[str, ...], *, message: str = "", hint: str = "") -> None:
        super().__init__(message or cause.message, hint=hint or cause.hint)
        self.exit_code, self.code = cause.exit_code, cause.code
        self.missing = missing


def resolve(
    env: Environment,
    *,
    platform: str,
    pip: PipSettings,
    site: SiteConfig,
    timeout: float = 600.0,
    glibc: tuple[int, int] = (2, 28),
    base: LockedBase | None = None,
) -> Lock:
    """Resolve a row to exact versions with the hashes of every file that may be installed.

    Wheels only, apart from what the row compiles: an archive that would be compiled during the build is not a lock.

    Args:
        platform: ``linux/amd64`` or ``linux/arm64``.
        pip: Where packages come from, with PyTorch's own index where the row needs it (see ``with_torch_index``).
        timeout: Limit in seconds for each run of uv.
        glibc: The base's glibc: wheels for a newer one are not considered. 2.28 (Debian 10, RHEL 8) and newer are taken
            as 2.28, anything older as 2.17: what manylinux wheels are made for.
        base: The row's images, with their digests; without it the digests that the row names.

    Raises:
        Missing: Requirements of the row cannot be had: no index has them (exit 2), or none answers (exit 3).
        InputError: They contradict one another, or one has to be compiled and cannot be; with uv's own explanation.
        EngineError: uv fails.
    """
    uv = Uv(env, platform=platform, pip=pip, site=site, timeout=timeout, glibc=glibc)
    try:
        everything = uv.compile(ask.requirements(env))
    except NoSolution as error:
        raise _not_found(env, pip, uv, error) from None
    except NoAnswer as error:
        raise Missing(error, tuple(f"{each}: {_silent(error.index)}" for each in ask.requirements(env))) from None
    runtime = everything
    if ask.requirements(env) != ask.runtime_requirements(env):
        pins = [f"{package.name}=={package.version}" for package in everything]
        runtime = uv.compile(ask.runtime_requirements(env), constraints=pins)
    if bare := [package.name for package in everything if not package.hashes]:
        raise EngineError(f"no hashes are known for {', '.join(bare)}")
    groups = parse.assign(everything, runtime, built=ask.built_names(env), tools=ask.TOOLS, torch=_TORCH)
    packages = tuple(
        LockedPackage(name=package.name, version=package.version, group=groups[package.name], hashes=package.hashes)
        for package in everything
    )
    return _lock(env, platform, base, packages=packages)


def unresolved(env: Environment, *, platform: str, missing: tuple[str, ...], base: LockedBase | None = None) -> Lock:
    """The lock of a row whose wheels cannot be had here: what is missing, and no guess."""
    return _lock(env, platform, base, packages=(), status="unresolved", missing=missing)


def _lock(env: Environment, platform: str, base: LockedBase | None, **content: object) -> Lock:
    return Lock.model_validate(
        {
            "environment": env.name,
            "platform": platform,
            "python": env.python,
            "inputs": ask.inputs_digest(env, platform),
            "resolver": f"uv {importlib.metadata.version('uv')}",
            "base": base or ask.images(env),
            **content,
        }
    )


def _not_found(env: Environment, pip: PipSettings, uv: Uv, error: NoSolution) -> EnvbuildError:
    """Which of the requirements have no answer of their own, asked one by one; where each has, they contradict."""
    asked = ask.requirements(env)
    # Without their needs first: what is simply not there is the clearest answer.
    for deps in (False, True):
        reasons = {each: why for each in asked if (why := _alone(uv, each, deps)) is not None}
        if reasons:
            break
    else:
        return InputError(error.message, hint=error.hint)
    missing = tuple(f"{each}: {_reason(env, pip, each, why)}"[:_LONGEST] for each, why in reasons.items())
    lines = (
        f"cannot resolve {env.name}: {len(missing)} of {len(asked)} requirements cannot be had:",
        *(f"  {line}" for line in missing),
        uv.asked(),
    )
    return Missing(error, missing, message="\n".join(lines), hint=_way(env, pip, tuple(reasons)) or error.hint)


def _alone(uv: Uv, requirement: str, deps: bool) -> str | None:
    """Why a requirement has no answer of its own; None when it has one."""
    try:
        uv.compile((requirement,), deps=deps)
    except NoSolution as error:
        return error.why
    return None


def _reason(env: Environment, pip: PipSettings, requirement: str, why: str) -> str:
    said = " ".join(why.split())
    if not said or "no version of" in said or "://" in said:
        said = "not found in the indexes asked"
    url = ask.unasked_torch_index(env, pip)
    if url and Requirement(requirement).name in _TORCH:
        said += " (indexes are switched off)" if pip.no_index else f" ({url} does not answer)"
    return "".join(letter if letter.isprintable() else "?" for letter in said)


def _way(env: Environment, pip: PipSettings, requirements: tuple[str, ...]) -> str:
    """How to get what only PyTorch's own index has; empty where something else is missing too."""
    url = ask.unasked_torch_index(env, pip)
    if url is None or not all(Requirement(each).name in _TORCH for each in requirements):
        return ""
    return (
        f"{url} was not asked: name a mirror of it (extra_index) or a folder with the wheels (find_links) under [pip] "
        f"in envbuild.toml; where it answers, this fills a folder: python{env.python} -m pip download --no-deps "
        f"-d wheels --index-url {url} {' '.join(requirements)}"
    )


def _silent(index: str) -> str:
    # Only public addresses: a lock names no mirror of anybody's.
    public = next((each for each in (PYPI, ask.TORCH_INDEX) if index.startswith(each)), None)
    return f"{public or 'an index that was asked'} does not answer"
