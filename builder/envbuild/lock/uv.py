"""uv, asked for one row: its target, the site's indexes, and what its failures mean."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from envbuild import process, store
from envbuild.errors import EngineError, EnvbuildError, InputError
from envbuild.lock import ask, parse
from envbuild.model import Environment
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
# "Because torch==1.0 has no wheels with a matching tag and you require torch==1.0, we can conclude that ..."
_BECAUSE = re.compile(r"Because (?P<why>.+?)(?:,? and (?:you|all|row) |,? we can conclude)")
_FETCHED = re.compile(r"failed to fetch:? `?(?P<index>[a-z]+://[^\s`]+?)/[^/\s`]+/?[`\s]", re.IGNORECASE)
_SHOWN_LINES = 25


class NoSolution(InputError):
    """There is no set of wheels; ``why`` is uv's own clause."""

    why: str = ""


class NoAnswer(EngineError):
    """An index could not be asked; ``index`` is its address, with credentials masked, where uv says which."""

    index: str = ""


class Uv:
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

    def compile(
        self, requirements: Sequence[str], *, constraints: Sequence[str] = (), deps: bool = True
    ) -> tuple[parse.Resolved, ...]:
        """One run of ``uv pip compile``.

        Args:
            requirements: What is asked for.
            constraints: Limits on versions of what is not asked for.
            deps: Whether what they need is asked for too.

        Raises:
            NoSolution: There is none.
            NoAnswer: An index cannot be reached, or the time is up.
            InputError: Something has to be compiled to be understood, and cannot be.
            EngineError: uv itself fails.
        """
        argv = ["pip", "compile", "-", "--no-header", "--annotation-style", "split", "--generate-hashes"]
        argv += ["--no-progress", "--color", "never", "--quiet", *self._arguments]
        argv += [] if deps else ["--no-deps"]
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
                raise NoAnswer(
                    f"cannot resolve {self._env.name}: {self._clean(error.message)}\n{self.asked()}",
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
        message = "\n".join((f"cannot resolve {self._env.name}:", *(f"  {line}" for line in lines), self.asked()))
        # uv says 1 for "there is no answer" and 2 for "I could not ask".
        if done.returncode == 1 and "No solution found" in explanation:
            none = NoSolution(message, hint=self._advice(explanation))
            found = _BECAUSE.search(" ".join(explanation.split()))
            none.why = found["why"] if found else ""
            return none
        if _NETWORK.search(explanation):
            silent = NoAnswer(message, hint="check the network, or name a mirror, a proxy or a CA in envbuild.toml")
            address = _FETCHED.search(explanation)
            silent.index = address["index"] if address else ""
            return silent
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

    def asked(self) -> str:
        """Where was looked, without credentials."""
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
