"""provision.sh and apptainer.def as texts, and what becomes of what the script says. Nothing is started here."""

from __future__ import annotations

import base64
import copy
import dataclasses
import hashlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild import facts, plan, render
from envbuild.errors import BuildError, EngineError, GateError, InputError, Interrupted
from envbuild.events import Event, Note, StepDone, StepLine, StepStarted
from envbuild.judge.standards import Standards
from envbuild.matrix import load
from envbuild.model import Environment, Lock
from envbuild.pipeline import prefix as prefixes
from envbuild.pipeline.provision import HostError, _failure, _Told, glibc_of
from envbuild.pipeline.workbench import Workbench
from envbuild.project import find
from envbuild.site.pip import PipSettings

FACTS = facts.load()
PROJECT = find(None, Path(__file__))
TEMPLATES = PROJECT.templates
MATRIX = load(PROJECT.matrix)
GROUPS = {"pip": "tools", "torch": "torch", "numpy": "deps", "deepspeed": "ops", "nvidia-cuda-nvcc": "toolkit"}


def planned(row: str = "cpu", **changes: Any) -> plan.Plan:
    document = copy.deepcopy(MATRIX.get(row).model_dump(mode="json"))
    document.update(changes)
    env = Environment.model_validate(document)
    packages = [
        {"name": name, "version": "1.0", "group": group, "hashes": [f"sha256:{'a' * 64}"]}
        for name, group in GROUPS.items()
    ]
    lock = Lock.model_validate(
        {"environment": env.name, "platform": "linux/amd64", "python": env.python, "inputs": f"sha256:{'a' * 64}",
         "resolver": "uv 1", "packages": packages}
    )  # fmt: skip
    return plan.make(env, lock, FACTS)


def shell(made: plan.Plan) -> str:
    return render.provision(made, TEMPLATES, glibc="2.28").decode()


def sections(text: str) -> dict[str, str]:
    """The sections of a definition file, by name."""
    parts = re.split(r"^%(\w+[^\n]*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


# --- the script -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["cpu", "a100-cu118", "h200-cu130"])
def test_no_path_of_an_image_is_left_in_the_script(row: str) -> None:
    text = shell(planned(row, env={"ZZ_DATA": "/opt/venv/share:/opt/envbuild/x"}))
    assert "/opt/venv" not in text and "/opt/envbuild" not in text and "/home/envbuild" not in text
    assert "ZZ_DATA='$venv/share:$state/x'" in text
    for command in ("update-alternatives", "sudo", ".bashrc", "pip config", "/run/secrets"):
        assert command not in text


def test_the_environment_is_the_plans_but_for_what_is_the_users_own() -> None:
    made = planned("cpu")
    text = shell(made)
    body = text[text.index("<<ENVBUILD_ENV\n") :].partition("\nENVBUILD_ENV\n")[0]
    set_here = re.findall(r"^    ([A-Z_]+)='", body, re.MULTILINE)
    wanted = [name for name, _ in made.env if name not in ("HOME", "USER", "PATH")]
    assert set_here[: len(wanted)] == wanted and "PYTHONNOUSERSITE" in wanted
    assert "CC='$cc'" in body and "CXX='$cxx'" in body and "HOME=" not in body


def test_only_a_row_that_takes_the_toolkit_from_the_host_looks_for_one() -> None:
    from_host, from_wheels, without = (shell(planned(row)) for row in ("a100-cu118", "h200-cu130", "cpu"))
    assert "--cuda-home DIR" in from_host and "/usr/local/cuda-11.8" in from_host
    assert "install_toolkit" in from_wheels and "nvidia-cuda-nvcc==1.0" in from_wheels
    for text in (from_wheels, without):
        assert "--cuda-home DIR" not in text and "check_cuda" not in text
    # The toolkit is there while ops compile, and belongs to nothing that stays.
    assert "install_toolkit" not in without and "nvidia-cuda-nvcc==1.0\n" not in from_wheels.split("wanted = dict")[1]


def test_a_lock_without_packages_cannot_be_rendered() -> None:
    empty = dataclasses.replace(planned(), wheels=())
    for rendering in (render.provision, render.apptainer):
        with pytest.raises(InputError, match="holds no packages") as caught:
            rendering(empty, TEMPLATES)
        assert "envbuild lock cpu" in caught.value.hint


def test_an_embedded_file_cannot_end_its_here_document(tmp_path: Path) -> None:
    for name in ("provision.sh.j2", "apptainer.def.j2", "_shell.j2", "apt.j2"):
        (tmp_path / name).write_text((TEMPLATES / name).read_text())
    (tmp_path / "files").mkdir()
    (tmp_path / "files/compiler").write_text("#!/bin/sh\nENVBUILD_COMPILER\nid\n")
    for rendering in (render.provision, render.apptainer):
        with pytest.raises(InputError, match="end of a here-document"):
            rendering(planned(), tmp_path)


def test_a_change_of_one_input_changes_the_keys_behind_it_only() -> None:
    def keys(text: str) -> dict[str, str]:
        return dict(re.findall(r"^key_(\w+)=(.*)$", text, re.MULTILINE))

    made = planned()
    other = planned(cpu_baseline="x86-64-v2")
    assert {name for name, value in keys(shell(made)).items() if keys(shell(other))[name] != value} == {"compile"}


# --- the definition file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["cpu", "a100-cu118", "h200-cu130"])
def test_the_definition_has_the_sections_that_apptainer_knows(row: str) -> None:
    made = planned(row)
    text = render.apptainer(made, TEMPLATES).decode()
    found = sections(text)
    image = made.toolkit == "image"
    assert list(found) == ["setup", *(["files from toolkit"] if image else []), "post", "environment", "labels", "test",
                           "help"]  # fmt: skip
    headers = re.findall(r"^(Bootstrap|From|Stage): (.*)$", text, re.MULTILINE)
    bases = [made.toolkit_reference, made.base_reference] if image else [made.base_reference]
    assert [value for name, value in headers if name == "From"] == bases
    assert all(package in found["post"] for package in made.packages)
    assert [line for line in found["setup"].splitlines() if line.strip()] == [
        '    mkdir -p "${APPTAINER_ROOTFS:-$SINGULARITY_ROOTFS}/run/secrets"'
    ], "it runs on the host"
    # All that only the build needs goes at its end.
    assert 'rm -rf "$scratch"' + (" /opt/cuda" if image else "") in found["post"]
    said = dict(re.findall(r"^    export (\w+)='(.*)'$", found["environment"], re.MULTILINE))
    assert said == {name: value for name, value in made.env if name not in ("HOME", "USER")}


def test_a_value_that_apptainer_would_read_as_its_own_is_refused() -> None:
    with pytest.raises(InputError, match="would not be read as text"):
        render.apptainer(planned(env={"ZZ": "{{ X }}"}), TEMPLATES)


# --- what the script says ---------------------------------------------------------------------------------------------


def told(*lines: str) -> tuple[list[Event], _Told]:
    seen: list[Event] = []
    bench = Workbench(project_folder=PROJECT.root, sink=seen.append)
    bench._pip_by_row["cpu"] = PipSettings()
    sink = _Told(bench, MATRIX.get("cpu"))
    for line in lines:
        sink(line)
    return seen, sink


def test_steps_become_events() -> None:
    seen, sink = told(
        "[2/8] torch wheels: up to date", "[3/8] compile cpu_adam ...", "    g++ -c https://me:secret@host/x",
        "[3/8] compile cpu_adam: done in 7 s", "warning: no such package", "cpu is up to date in /p",
    )  # fmt: skip
    assert [type(event) for event in seen] == [StepDone, StepStarted, StepLine, StepDone, Note]
    assert isinstance(seen[0], StepDone) and seen[0].status == "cached"
    assert isinstance(seen[3], StepDone) and (seen[3].name, seen[3].status) == ("compile cpu_adam", "done")
    assert isinstance(seen[2], StepLine) and "secret" not in seen[2].text
    assert sink.up_to_date


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [(2, InputError, 2), (3, EngineError, 3), (9, HostError, 3), (4, BuildError, 4), (5, GateError, 5),
     (130, Interrupted, 130), (-9, BuildError, 4)],
)  # fmt: skip
def test_every_end_of_the_script_is_an_end_of_the_command(code: int, kind: type, exit_code: int) -> None:
    error = _failure(code, ["[1/8] host ...", "error: a", "  - b"])
    assert type(error) is kind and error.exit_code == exit_code
    assert code == 130 or error.message == "a\n  - b"


def test_the_c_library_that_torch_asks_for_is_known() -> None:
    assert glibc_of(MATRIX.get("cpu"), FACTS) == "2.28" and glibc_of(MATRIX.get("a100-cu118"), FACTS) == "2.17"


# --- a prefix, looked at ----------------------------------------------------------------------------------------------


def test_a_prefix_is_held_to_its_records_and_told_by_its_own_paths(tmp_path: Path) -> None:
    env = MATRIX.get("cpu")
    site = tmp_path / "venv" / "lib" / f"python{env.python}" / "site-packages"
    info = site / "thing-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "venv/bin").mkdir()
    (tmp_path / "venv/bin/python").symlink_to(sys.executable)
    rows = []
    for name in ("good.py", "bad.py"):
        (site / name).write_text("x = 1\n")
        digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},6")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (info / "RECORD").write_text("\n".join([*rows, "thing-1.0.dist-info/METADATA,,", "thing-1.0.dist-info/RECORD,,\n"]))
    (site / "bad.py").write_text("x = 2\n")
    (site / "stray.py").touch()
    reports, findings = prefixes.inspect(tmp_path, env, Standards.of(env, FACTS), tmp_path)
    said = [(finding.rule, finding.message) for finding in findings]
    assert ("content.record", f"{site}/bad.py is not the file that its package installed") in said
    assert ("content.stray", f"{site}/stray.py lies among the packages and belongs to none") in said
    assert not any("good.py" in finding.message or "opt/venv" in finding.message for finding in findings)
    assert {finding.message.partition(":")[0] for finding in findings if finding.rule == "content.op.missing"} == set(
        env.deepspeed.ops
    )
    assert reports["intact"]["changed"] and ("content.native", f"{site}/torch has no _C module") in said
