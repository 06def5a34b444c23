"""docker-py's many exceptions, turned into the one that users meet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from envbuild.engines.gpufaults import GpuStartError, known_fault
from envbuild.errors import EngineError, EnvbuildError


@contextlib.contextmanager
def plain(doing: str, endpoint: str) -> Iterator[None]:
    """Turn whatever docker-py, requests or urllib3 raise into an EngineError that says what was being done.

    Raises:
        EngineError: In place of any of their exceptions.
    """
    try:
        yield
    except EnvbuildError:
        raise
    except Exception as error:
        raise _plain(error, doing, endpoint) from error


def _plain(error: Exception, doing: str, endpoint: str) -> Exception:
    # Imported when something has failed, and not on the way there.
    import urllib3.exceptions
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException, Timeout

    if isinstance(error, APIError):
        said = explanation(error)
        if fault := known_fault(said):
            return GpuStartError(said, fault, doing=doing)
        return EngineError(f"cannot {doing}: {said}", hint=_hint(said))
    if isinstance(error, (Timeout, TimeoutError)):
        return EngineError(f"cannot {doing}: the engine at {endpoint} did not answer in time")
    if isinstance(error, (DockerException, RequestException, urllib3.exceptions.HTTPError, OSError)):
        return EngineError(
            f"cannot {doing}: the engine at {endpoint} is not reachable ({root_cause(error)})",
            hint="is the daemon still running?",
        )
    return error


def explanation(error: Exception) -> str:
    """What the engine itself said in an API error, in one line."""
    said = getattr(error, "explanation", None) or str(error)
    return " ".join((said.decode(errors="replace") if isinstance(said, bytes) else str(said)).split())


def root_cause(error: BaseException) -> str:
    """The operating system's reason at the bottom of a chain of wrapped exceptions."""
    seen: list[BaseException] = []
    todo: list[BaseException] = [error]
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.append(current)
        if "Timeout" in type(current).__name__:
            return "no answer in time"
        if isinstance(current, OSError) and isinstance(current.strerror, str):
            return current.strerror.lower()
        todo += [link for link in (current.__cause__, current.__context__, *current.args) if _is_error(link)]
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:199] + "…"


def _is_error(value: object) -> bool:
    return isinstance(value, BaseException)


def _hint(said: str) -> str:
    if "no space left on device" in said:
        return "the engine's disk is full: docker system df shows why"
    if "No such image" in said:
        return "docker images shows what there is"
    return ""
