"""What an image asks of a driver in NVIDIA_REQUIRE_*, and whether a GPU and its driver fulfil it.

The GPU runtime refuses to start a container whose image asks for more than there is. The grammar is the one of
libnvidia-container (src/cli/dsl.c): terms with a blank between them are alternatives, terms with a comma between them
must all hold. Which variables count is decided by nvidia-container-toolkit (internal/config/image/cuda_image.go).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

_PREFIX, _OTHER = "NVIDIA_REQUIRE_", "NVIDIA_REQUIRE_JETPACK"
_TERM = re.compile(r"([a-z]+)(<=|>=|!=|<|>|=)(.+)", re.IGNORECASE)
_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+)*")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def unfulfilled(image_env: Mapping[str, str], *, driver: str, cuda: str, sm: str, brand: str) -> tuple[str, ...]:
    """The requirements of an image that a GPU and its driver do not fulfil, as ``NAME=value``.

    Args:
        image_env: The variables of the image.
        driver: Version of the driver.
        cuda: The newest CUDA that the driver knows.
        sm: Compute capability of the GPU.
        brand: Its product line, in lower case.
    """
    if image_env.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "t", "true"):
        return ()
    have = {"driver": driver, "cuda": cuda, "arch": sm, "brand": brand}
    asked = {
        name: value
        for name, value in image_env.items()
        if name.startswith(_PREFIX) and not name.startswith(_OTHER) and value.strip()
    }
    version = _NUMBERS.match(image_env.get("CUDA_VERSION", ""))
    if version and "NVIDIA_REQUIRE_CUDA" not in asked:
        # The runtime takes such an image for one of the old ones, which said no more than this.
        asked["NVIDIA_REQUIRE_CUDA"] = "cuda>=" + ".".join(version[0].split(".")[:2])
    return tuple(f"{name}={value}" for name, value in sorted(asked.items()) if not _holds(value, have))


def _holds(predicate: str, have: Mapping[str, str]) -> bool:
    return any(all(_term(term, have) for term in either.split(",") if term) for either in predicate.split() if either)


def _term(text: str, have: Mapping[str, str]) -> bool:
    """One comparison; what cannot be understood fails, as it makes the runtime fail."""
    parts = _TERM.fullmatch(text)
    if parts is None:
        return False
    name, comparison, value = parts[1].lower(), parts[2], parts[3]
    if name == "brand":
        equal = have["brand"].lower() == value.lower()
        return {"=": equal, "!=": not equal}.get(comparison, False)
    if name not in have or not _NUMBERS.fullmatch(value) or not _NUMBERS.fullmatch(have[name]):
        return False
    return bool(_COMPARE[comparison](*_padded(have[name], value)))


def _padded(one: str, other: str) -> tuple[object, object]:
    # As numbers, the shorter one filled up with zeros: 11.8 and 11.8.0 are equal.
    pairs = list(zip_longest(map(int, one.split(".")), map(int, other.split(".")), fillvalue=0))
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
