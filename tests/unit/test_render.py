"""Rendering: one file set, layers from the slowest-changing, and no value that becomes syntax."""

from __future__ import annotations

import copy
import functools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from envbuild import facts, model, plan
from envbuild.errors import EngineError, InputError
from envbuild.matrix.explain import _pattern
from envbuild.model import Environment, Lock
from envbuild.project import find
from envbuild.render import Rendering, apptainer, provision, render, write

FACTS = facts.load()
TEMPLATES = find(None, Path("/")).templates
A = f"sha256:{'a' * 64}"
ROW: dict[str, Any] = {
    "name": "row",
    "summary": "a row",
    "accelerator": "cuda",
    "family": "debian",
    "base": {
        "image": "docker.io/library/debian:bookworm-slim",
        "toolkit_image": "docker.io/nvidia/cuda:12.4.1-devel-ubuntu22.04",
    },
    "python": "3.11",
    "gcc": {"version": "12.2", "package": "gcc-12"},
    "torch": {"version": "2.6.0", "build": "cu124"},
    "deepspeed": {"version": "0.19.8", "ops": ["cpu_adam", "async_io"]},
    "cuda": {"version": "12.4", "toolkit": "image"},
    "nccl": "2.21.5",
    "gpus": ["a100"],
    "requires": "gpu",
    "packages": ["zz-one", "zz-two"],
    "env": {"ZZ_A": "1", "ZZ_B": "2"},
    "sources": {},
}
# Where compilers and interpreters cannot be called anything.
OF_FAMILY: dict[str, dict[str, Any]] = {
    "rocky8": {"python": "3.11", "gcc": {"version": "11.2", "package": "gcc-toolset-11-gcc"}},
    "centos7": {"python": "3.8", "gcc": {"version": "9.3", "package": "devtoolset-9-gcc"}},
}
GROUPS = {"pip": "tools", "torch": "torch", "numpy": "deps", "deepspeed": "ops", "cuda-toolkit": "toolkit"}


def locked(versions: dict[str, str], digest: str = A) -> Lock:
    return Lock.model_validate(
        {
            "environment": "row",
            "platform": "linux/amd64",
            "python": "3.11",
            "inputs": A,
            "resolver": "uv 1",
            "packages": [
                {"name": name, "version": versions.get(name, "1.0"), "group": group, "hashes": [digest]}
                for name, group in GROUPS.items()
            ],
        }
    )


def rendered(document: dict[str, Any], lock: Lock | None = None) -> Rendering:
    return render(plan.make(Environment.model_validate(document), lock or locked({}), FACTS), TEMPLATES)


def with_toolkit(toolkit: str) -> dict[str, Any]:
    return {**ROW, "cuda": {"version": "12.4", "toolkit": toolkit}}


def instructions(text: str) -> list[str]:
    """The Dockerfile as BuildKit reads it: comment lines dropped, continued lines joined."""
    lines = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    return "\n".join(lines).replace("\\\n", " ").split("\n")


# --- the files --------------------------------------------------------------------------------------------------------


def test_the_context_has_what_the_dockerfile_mounts_and_nothing_more() -> None:
    for toolkit in ("image", "wheels", "none"):
        files = rendered(with_toolkit(toolkit)).files
        text = files["Dockerfile"].decode()
        mounted = set(re.findall(r"type=bind,source=([\w./-]+)", text)) | set(re.findall(r"^COPY (\w\S+)", text, re.M))
        named = {name for name in mounted if not name.startswith("wheels/")}
        assert named <= set(files), toolkit
        # A group that no step installs is empty or belongs to the other kind of toolkit.
        assert set(files) - named <= {"Dockerfile", "requirements/toolkit.txt"}, toolkit
        assert list(files) == sorted(files)


def test_only_the_ops_stage_knows_the_toolkit() -> None:
    for toolkit in ("image", "wheels"):
        text = rendered(with_toolkit(toolkit)).files["Dockerfile"].decode()
        runtime = text[text.index(" AS runtime") :]
        assert "toolkit" not in runtime.lower() and "nvcc" not in runtime and "CUDA_HOME" not in runtime
        assert re.search(r"^FROM wheels AS runtime$", text, re.M), "what ops installs stays behind"


def test_another_deepspeed_does_not_reinstall_torch() -> None:
    before = rendered(ROW, locked({"deepspeed": "0.19.8"}))
    other = copy.deepcopy(ROW)
    other["deepspeed"]["version"] = "0.19.7"
    after = rendered(other, locked({"deepspeed": "0.19.7"}, A))
    assert before.target_id != after.target_id
    changed = {name for name, content in before.files.items() if after.files[name] != content}
    assert changed == {"Dockerfile", "constraints.txt", "requirements/ops.txt"}
    # Layers are shared up to the first instruction that differs or mounts a changed file.
    pairs = list(zip(*(instructions(each.files["Dockerfile"].decode()) for each in (before, after)), strict=True))
    first = next(n for n, (one, two) in enumerate(pairs) if one != two or any(name in one for name in changed))
    shared = " ".join(one for one, _ in pairs[:first])
    assert all(f"requirements/{group}.txt" in shared for group in ("tools", "torch", "deps"))


def test_equal_plans_are_equal_bytes() -> None:
    assert rendered(ROW) == rendered(copy.deepcopy(ROW))


def test_write(tmp_path: Path) -> None:
    rendering = rendered(ROW)
    paths = write(rendering, tmp_path / "deep" / "context")
    assert [path.relative_to(tmp_path / "deep" / "context").as_posix() for path in paths] == list(rendering.files)
    assert all(path.read_bytes() == rendering.files[str(path.relative_to(tmp_path / "deep/context"))] for path in paths)
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match="file"):
        write(rendering, tmp_path / "file")


# --- templates that are not right -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, r"Dockerfile\.j2: this template is missing"),
        ("{% if %}", r"Dockerfile\.j2:1: "),
        ("a\n{{ plan.bse_image }}", r"Dockerfile\.j2: .*bse_image"),
        ('{% include "gone.j2" %}', r"gone\.j2: this template is missing"),
        ("{{ 1 / 0 }}", r"Dockerfile\.j2: "),
        (b"\xff\xfe", r"Dockerfile\.j2: "),
        # `envbuild list` renders: a project that was merely cloned must not run code of its own.
        ("{{ cycler.__init__.__globals__.os.getpid() }}", r"Dockerfile\.j2: .*unsafe"),
    ],
)
def test_a_broken_template_is_an_input_error_with_its_place(
    tmp_path: Path, text: str | bytes | None, said: str
) -> None:
    if text is not None:
        content = text if isinstance(text, bytes) else text.encode()
        (tmp_path / "Dockerfile.j2").write_bytes(content)
    with pytest.raises(InputError, match=said):
        render(plan.make(Environment.model_validate(ROW), locked({}), FACTS), tmp_path)


def test_a_missing_mounted_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile.j2").touch()
    with pytest.raises(InputError, match=r"files/compiler: No such file"):
        render(plan.make(Environment.model_validate(ROW), locked({}), FACTS), tmp_path)


# --- values are never syntax ------------------------------------------------------------------------------------------


GCC_SUFFIX = st.text("abcxyz0189.+-", min_size=1, max_size=20)


@functools.cache
def of(kind: Any, longest: int = 40) -> st.SearchStrategy[str]:
    """Texts that a type of the model lets through."""
    return st.from_regex(_pattern(kind), fullmatch=True).filter(lambda text: len(text) <= longest)


# What a shell, a Dockerfile or Jinja could trip over, of what the model lets through.
HOSTILE = st.text(alphabet="aZ0 ;&|<>(){}[]*?!#%^~=,:/@+-._\ufeff\u200b\U0001f600", max_size=20)
VALUE = st.one_of(of(model.EnvValue), HOSTILE)
LINE = st.one_of(of(model.Line), HOSTILE, st.sampled_from(["'", '"', "\\", "$(id)", "`id`", "{{ 7 }}", "# escape=x"]))


@st.composite
def rows(draw: st.DrawFn) -> tuple[dict[str, Any], Lock]:
    """A row and its lock with every free text drawn, and as many items in each list as in ROW."""
    digest = st.one_of(st.none(), of(model.Digest, 80))
    document = {
        **ROW,
        "name": draw(of(model.Name)),
        "summary": draw(LINE),
        "family": draw(st.sampled_from(["debian", "ubuntu", *OF_FAMILY])),
        "base": {
            "image": draw(of(model.ImageRef, 80)),
            "digest": draw(digest),
            "toolkit_image": draw(of(model.ImageRef, 80)),
            "toolkit_digest": draw(digest),
            "bootstrap": {"suite": draw(of(model.Name)), "packages": [draw(of(model.Word))]},
        },
        "python": draw(of(model.MajorMinor)),
        "gcc": {"version": draw(of(model.MajorMinor)), "package": f"gcc-{draw(GCC_SUFFIX)}"},
        "cuda": {"version": draw(of(model.MajorMinor)), "toolkit": draw(st.sampled_from(["image", "wheels", "none"]))},
        "nccl": draw(of(model.Version)),
        "torch": {
            "version": draw(of(model.Version)),
            "build": "cu124",
            "torchvision": draw(of(model.Version)),
            "torchaudio": draw(of(model.Version)),
        },
        "driver": draw(of(model.DottedNumber)),
        "claimed": {draw(LINE): {"value": draw(LINE), "by": draw(LINE), "contradicted": draw(LINE)}},
        "waivers": [{"rule": "R21", "key": draw(LINE), "reason": f"a{draw(LINE)}", "until": "2030-01-01"}],
        # Prefixes keep names apart from one another and from what every image has.
        "packages": [f"zz-one-{draw(of(model.Word))}", f"zz-two-{draw(of(model.Word))}"],
        "env": {f"ZZ_A{draw(of(model.EnvName))}": draw(VALUE), f"ZZ_B{draw(of(model.EnvName))}": draw(VALUE)},
        "sources": {"gcc": {"mark": "verified", "source": draw(LINE), "date": "2026-11-01", "note": draw(LINE)}},
    }
    document |= OF_FAMILY.get(document["family"], {})
    version = of(model.LockedPackage.model_fields["version"].rebuild_annotation())
    return document, locked({name: draw(version) for name in GROUPS}, draw(of(model.Digest, 80)))


def words(line: str) -> int:
    """How many words and operators a shell sees."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    return len(list(lexer))


def shape(rendering: Rendering) -> list[tuple[str, int]]:
    """Each instruction with its number of words, then each file with its number of lines."""
    text = rendering.files["Dockerfile"].decode()
    found = [(line.split(" ", 1)[0], words(line)) for line in instructions(text)]
    return found + [(name, len(content.decode().splitlines())) for name, content in rendering.files.items()]


@functools.cache
def plain_shape(family: str, toolkit: str) -> list[tuple[str, int]]:
    return shape(rendered({**with_toolkit(toolkit), "family": family, **OF_FAMILY.get(family, {})}))


@given(rows())
@settings(max_examples=50, deadline=None)
def test_no_field_can_add_an_instruction_a_word_or_a_line(drawn: tuple[dict[str, Any], Lock]) -> None:
    document, lock = drawn
    try:
        made = rendered(document, lock)
    except ValidationError:
        assume(False)
        raise
    assert shape(made) == plain_shape(document["family"], document["cuda"]["toolkit"])


@given(rows())
@settings(max_examples=25, deadline=None)
def test_no_field_can_add_a_line_to_a_script(drawn: tuple[dict[str, Any], Lock]) -> None:
    document, lock = drawn
    try:
        made = plan.make(Environment.model_validate(document), lock, FACTS)
        lines = scripts(made)
    except (ValidationError, InputError):
        assume(False)
        raise
    family, toolkit = document["family"], document["cuda"]["toolkit"]
    document = {**with_toolkit(toolkit), "family": family, **OF_FAMILY.get(family, {})}
    plain = plan.make(Environment.model_validate(document), locked({}), FACTS)
    assert lines == scripts(plain)


def scripts(made: plan.Plan) -> list[list[int]]:
    """The number of quotes that a shell sees in each line of provision.sh and apptainer.def."""
    texts = (provision(made, TEMPLATES, glibc="2.28"), apptainer(made, TEMPLATES))
    return [[len(re.findall("[\"'`]", line)) for line in text.decode().split("\n")] for text in texts]


@pytest.mark.parametrize(
    "value", ["a\nRUN id", 'a" RUN id "', "$(id)", "`id`", "${HOME}", "a\\", "a\u2028RUN id", "a\x85b"]
)
def test_values_that_a_dockerfile_would_expand_are_refused_at_the_door(value: str) -> None:
    with pytest.raises(ValidationError):
        Environment.model_validate({**ROW, "env": {"A": value}})
