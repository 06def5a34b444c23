"""Ask uv for the versions and hashes of a row."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from envbuild import process, store
from envbuild.errors import EngineError, EnvbuildError, InputError
from envbuild.lock import ask, parse
from envbuild.model import Environment, Lock, LockedPackage
from envbuild.site import urls
from envbuild.site.config import SiteConfig
from envbuild.site.pip import PipSettings

_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
# What a user may rightly set for uv on this machine; any other UV_* variable would change what is resolved.
_KEPT = re.compile(r"UV_(CACHE_DIR|NO_CACHE|OFFLINE|CONCURRENT_\w+|HTTP_\w+|NATIVE_TLS|SYSTEM_CERTS|SSL_\w+|LOG\w*)")
_NETWORK = re.compile(
    r"failed to fetch|request failed|error sending request|failed to download|could not connect|dns error"
    r"|timed? ?out|connection (refused|reset)|certificate|network",
    re.IGNORECASE,
)
_SHOWN_LINES = 25


def resolve(
    env: Environment,
    *,
    platform: str,
    pip: PipSettings,
    site: SiteConfig,
    timeout: float = 600.0,
    glibc: tuple[int, int] = (2, 28),
) -> Lock:
    """Resolve a row to exact versions with the hashes of every file that may be installed.

    Wheels only, apart from what the row compiles: an archive that would be compiled during the build is not a lock.

    Args:
        platform: ``linux/amd64`` or ``linux/arm64``.
        pip: Where packages come from, with PyTorch's own index where the row needs it (see ``with_torch_index``).
        timeout: Limit in seconds for each run of uv.
        glibc: The base's glibc: wheels for a newer one are not considered. 2.28 (Debian 10, RHEL 8) and newer are taken
            as 2.28, anything older as 2.17: what manylinux wheels are made for.

    Raises:
        InputError: There is no solution, or one has to be compiled and cannot be; with uv's own explanation.
        EngineError: An index cannot be reached, uv fails, or it ran longer than ``timeout``.
    """
    uv = _Uv(env, platform=platform, pip=pip, site=site, timeout=timeout, glibc=glibc)
    everything = uv.compile(ask.requirements(env))
    runtime = everything
    if ask.requirements(env) != ask.runtime_requirements(env):
        pins = [f"{package.name}=={package.version}" for package in everything]
        runtime = uv.compile(ask.runtime_requirements(env), constraints=pins)
    if bare := [package.name for package in everything if not package.hashes]:
        raise EngineError(f"no hashes are known for {', '.join(bare)}")
    groups = parse.assign(
        everything,
        runtime,
        built=ask.built_names(env),
        tools=ask.TOOLS,
        torch=("torch", "torchvision", "torchaudio"),
    )
    return Lock.model_validate(
        {
            "environment": env.name,
            "platform": platform,
            "python": env.python,
            "inputs": ask.inputs_digest(env, platform),
            "resolver": f"uv {importlib.metadata.version('uv')}",
            "packages": tuple(
                LockedPackage(
                    name=package.name, version=package.version, group=groups[package.name], hashes=package.hashes
                )
                for package in everything
            ),
        }
    )


class _Uv:
    """uv with one row's target and one site's indexes."""

    def __init__(
        self,
        env: Environment,
        *,
        platform: str,
        pip: PipSettings,
        site: SiteConfig,
        timeout: float,
        glibc: tuple[int, int],
    ) -> None:
        self._env = env
        self._pip = pip
        self._timeout = timeout
        self._cache = store.cache(site.paths.cache) / "uv"
        level = "manylinux_2_28" if glibc >= (2, 28) else "manylinux_2_17"
        arguments = ["--python", sys.executable, "--no-python-downloads", "--python-version", env.python]
        arguments += ["--python-platform", f"{_MACHINES[platform]}-{level}", "--only-binary", ":all:"]
        for name in sorted(ask.built_names(env)):
            arguments += ["--no-binary", name]
        self._arguments = (*arguments, *pip.uv_arguments())

    def compile(self, requirements: Sequence[str], constraints: Sequence[str] = ()) -> tuple[parse.Resolved, ...]:
        """One run of ``uv pip compile``; ``constraints`` limit versions without asking for them."""
        argv = ["pip", "compile", "-", "--no-header", "--annotation-style", "split", "--generate-hashes"]
        argv += ["--no-progress", "--color", "never", "--quiet", *self._arguments]
        with tempfile.TemporaryDirectory(prefix="envbuild-lock-") as folder:
            if constraints:
                path = Path(folder, "constraints.txt")
                path.write_text("\n".join(constraints))
                argv += ["--constraints", str(path)]
            variables = self._variables()
            try:
                done = process.run(
                    [*_program(variables), *argv],
                    env=variables,
                    # An empty folder: no pyproject.toml or uv.toml of the user's takes part.
                    cwd=Path(folder),
                    timeout=self._timeout,
                    input="\n".join((*requirements, "")).encode(),
                )
            except EnvbuildError as error:
                raise EngineError(
                    f"cannot resolve {self._env.name}: {self._clean(error.message)}\n{self._asked()}",
                    hint="an index that is slow to answer, or none at all; see --timeout and [pip] in envbuild.toml",
                ) from None
        if done.returncode != 0:
            raise self._failure(done)
        return parse.parse(done.stdout)

    def _variables(self) -> dict[str, str]:
        variables = self._pip.uv_environment()
        if not os.environ.get("UV_CACHE_DIR"):
            variables["UV_CACHE_DIR"] = str(store.make_folder(self._cache))
        return variables

    def _failure(self, done: process.Completed) -> EnvbuildError:
        explanation = self._clean(done.stderr.strip() or done.stdout.strip())
        lines = explanation.splitlines()
        if len(lines) > _SHOWN_LINES:
            lines = [*lines[:_SHOWN_LINES], f"... and {len(lines) - _SHOWN_LINES} more lines"]
        message = "\n".join((f"cannot resolve {self._env.name}:", *(f"  {line}" for line in lines), self._asked()))
        # uv says 1 for "there is no answer" and 2 for "I could not ask".
        if done.returncode == 1 and "No solution found" in explanation:
            return InputError(message, hint=self._advice(explanation))
        if _NETWORK.search(explanation):
            return EngineError(message, hint="check the network, or name a mirror, a proxy or a CA in envbuild.toml")
        if done.returncode == 1:
            return InputError(message, hint="the package's own build failed; another version may have better metadata")
        return EngineError(message, hint="this is uv's own failure; its words are above")

    def _advice(self, explanation: str) -> str:
        if "no usable wheels" in explanation or "building from source is disabled" in explanation:
            return "give a wheel folder that has the wheel, or list the package under extras with build: true"
        url = ask.torch_index(self._env)
        if url and url not in self._pip.locations and re.search(r"\btorch\b", explanation):
            return f"{url} was not asked; name a mirror of it or a wheel folder under [pip] in envbuild.toml"
        if "not found in the package registry" in explanation and any("@" in index for index in self._pip.indexes):
            return "no index has the package, or one refused the credentials in its URL: the two look the same"
        return (
            "relax a pin of the row, or name an index or wheel folder that has the version under [pip] in envbuild.toml"
        )

    def _asked(self) -> str:
        places = (*self._pip.indexes, *self._pip.find_links)
        origin = f" (from {self._pip.origin})" if self._pip.origin else ""
        return f"asked{origin}: {', '.join(map(urls.mask, places)) or 'nothing'}"

    def _clean(self, text: str) -> str:
        return urls.scrub(text, self._pip.secret_urls())


def _program(variables: Mapping[str, str]) -> list[str]:
    import uv

    try:
        program = uv.find_uv_bin()
    except FileNotFoundError as error:
        raise EngineError(
            "the program of the Python package uv was not found", hint="install envbuild again"
        ) from error
    # uv obeys UV_* variables beyond its configuration files; --no-config does not cover them.
    inherited = sorted(name for name in os.environ if name.startswith("UV_") and not _KEPT.fullmatch(name))
    foreign = [name for name in inherited if name not in variables]
    return ["env", *(part for name in foreign for part in ("-u", name)), program] if foreign else [program]
