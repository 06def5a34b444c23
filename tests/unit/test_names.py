"""What images are called: a name says what was built, and how much of it has been proven."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.model import Environment, Level
from envbuild.pipeline.names import derived_names, is_reference, names

DIGEST = "sha256:" + "0123456789abcdef" * 4
ENV = Environment.model_validate(
    {
        "name": "h200-cu130",
        "summary": "a row",
        "accelerator": "cuda",
        "family": "debian",
        "base": {"image": "docker.io/library/debian:bookworm-slim"},
        "python": "3.11",
        "gcc": {"version": "12.2", "package": "gcc-12"},
        "torch": {"version": "2.11.0", "build": "cu130"},
        "deepspeed": {"version": "0.19.8", "ops": ["cpu_adam"]},
        "requires": "gpu",
        "sources": {},
    }
)


def test_a_rows_names() -> None:
    wanted = names(ENV, "1a2b3c4d", None)
    assert wanted.proven == "envbuild/h200-cu130:2.11.0-cu130-1a2b3c4d"
    assert wanted.moving == "envbuild/h200-cu130:validated"
    assert wanted.below(Level.CPU) == "envbuild/h200-cu130:2.11.0-cu130-1a2b3c4d-cpu"
    assert wanted.own == (
        "envbuild/h200-cu130:2.11.0-cu130-1a2b3c4d",
        "envbuild/h200-cu130:2.11.0-cu130-1a2b3c4d-gpu-mig",
        "envbuild/h200-cu130:2.11.0-cu130-1a2b3c4d-cpu",
        "envbuild/h200-cu130:2.11.0-cu130-1a2b3c4d-built",
    ), "what says most comes first; the moving name is nobody's own"


@pytest.mark.parametrize("registry", ["registry.example:5000/team", "registry.example:5000/team/"])
def test_the_sites_registry_stands_before_them(registry: str) -> None:
    assert names(ENV, "1a2b3c4d", registry).moving == "registry.example:5000/team/envbuild/h200-cu130:validated"


@pytest.mark.parametrize(
    ("reference", "repository"),
    [
        ("train", "train"),
        ("my-team/train:1", "my-team/train"),
        ("localhost:5000/train", "localhost:5000/train"),
        ("localhost:5000/my/train:latest", "localhost:5000/my/train"),
        (f"my/train@{DIGEST}", "my/train"),
        (f"localhost:5000/my/train:7@{DIGEST}", "localhost:5000/my/train"),
    ],
)
def test_a_derived_image_keeps_its_own_repository(reference: str, repository: str) -> None:
    wanted = derived_names(reference, ENV, DIGEST)
    assert wanted.proven == f"{repository}:2.11.0-cu130-01234567", "named by its own content"
    assert wanted.moving == f"{repository}:validated"
    assert is_reference(wanted.proven)


@pytest.mark.parametrize(
    "text",
    ["cpu", "a/b/c", "a.b_c__d--e:T.1_x-", "localhost:5000/x", "Registry.Example:5000/x:1", DIGEST, DIGEST[:20],
     f"x@{DIGEST}", f"x:1@{DIGEST}", "1a2b3c4d5e6f", "localhost/x"],
)  # fmt: skip
def test_references(text: str) -> None:
    assert is_reference(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "a b", "../x", "/x", "x/", "a//b", "UPPER", "UPPER/x", "a:b:c", "a:", ":a", "a@b", "x@sha256:12", "-x",
     "--rm", "a?b", "a%2e", "ä", "x\n", "\nx", "a:\u0661", "x" * 256, "x:" + "y" * 129, "a..b", "a___b"],
)  # fmt: skip
def test_what_no_engine_has(text: str) -> None:
    assert not is_reference(text)


@given(st.text(alphabet="aA0.:/@-_ \n?%", max_size=12))
def test_a_reference_can_be_put_into_an_address(text: str) -> None:
    """No space, no line break, nothing that leads elsewhere, and no option for a command line."""
    if is_reference(text):
        assert re.fullmatch(r"[\w.:/@-]+", text, re.ASCII)
        assert not text.startswith(("-", "/", ".")) and "//" not in text and ".." not in text
