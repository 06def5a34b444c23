from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild import lock, net, process
from envbuild.errors import EngineError, EnvbuildError, InputError
from envbuild.events import Event, Note
from envbuild.lock import ask, parse
from envbuild.lock.parse import Resolved
from envbuild.model import Environment, Extra, Lock
from envbuild.site.config import SiteConfig
from envbuild.site.pip import PipSettings

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")
ROW: dict[str, Any] = {
    "name": "row",
    "summary": "a row",
    "accelerator": "cpu",
    "family": "debian",
    "base": {"image": "docker.io/library/debian:bookworm-slim"},
    "python": "3.11",
    "gcc": {"version": "12.2", "package": "gcc-12"},
    "torch": {"version": "2.13.0", "build": "cpu"},
    "deepspeed": {"version": "0.19.8", "ops": ["cpu_adam"]},
    "requires": "cpu",
    "sources": {},
}
CUDA: dict[str, Any] = {
    **ROW,
    "accelerator": "cuda",
    "requires": "gpu",
    "cuda": {"version": "13.0", "toolkit": "wheels"},
    "torch": {"version": "2.11.0", "build": "cu130", "index": "pypi", "torchvision": "0.26.0"},
}


def row(base: dict[str, Any] = ROW, /, **changes: Any) -> Environment:
    return Environment.model_validate({**base, **changes})


def locked(env: Environment, packages: list[tuple[str, str, str, tuple[str, ...]]], **changes: Any) -> Lock:
    return Lock.model_validate(
        {
            "environment": env.name,
            "platform": "linux/amd64",
            "python": env.python,
            "inputs": lock.inputs_digest(env, "linux/amd64"),
            "resolver": "uv 1.2.3",
            "packages": [
                {"name": name, "version": version, "group": group, "hashes": hashes}
                for name, version, group, hashes in packages
            ],
            **changes,
        }
    )


PACKAGES = [
    ("torch", "2.13.0+cpu", "torch", (B, A)),
    ("deepspeed", "0.19.8", "ops", (C,)),
    ("numpy", "2.4.6", "deps", (A,)),
]


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_requirements_of_a_cpu_row() -> None:
    env = row(pins=["pydantic>=2"], extras=[{"requirement": "transformers==4.57.1"}])
    assert lock.requirements(env) == (
        "torch==2.13.0+cpu",
        "deepspeed==0.19.8",
        "transformers==4.57.1",
        "pydantic>=2",
        "pip",
        "setuptools",
        "wheel",
        "ninja",
    )


def test_requirements_of_a_cuda_row_with_the_toolkit_from_wheels() -> None:
    asked = lock.requirements(row(CUDA))
    # "==" would also take 2.11.0+cpu from a folder of wheels.
    assert asked[:3] == ("torch===2.11.0", "torchvision===0.26.0", "deepspeed==0.19.8")
    assert "nvidia-ml-py" in asked
    toolkit = asked[-1]
    assert toolkit.startswith("cuda-toolkit[nvcc,")
    assert toolkit.endswith("]==13.0.*")
    assert {"cudart", "cccl", "cublas", "curand", "cusolver", "cusparse", "crt", "nvvm"} < set(
        toolkit.partition("[")[2].partition("]")[0].split(",")
    )
    image = row(CUDA, cuda={"version": "13.0", "toolkit": "image"})
    assert not any("cuda-toolkit" in item for item in lock.requirements(image))


@pytest.mark.parametrize(
    "changes",
    [
        {"python": "3.12"},
        {"torch": {"version": "2.13.1", "build": "cpu"}},
        {"torch": {"version": "2.13.0", "build": "cpu", "index": "pypi"}},
        {"deepspeed": {"version": "0.19.7", "ops": []}},
        {"pins": ["numpy<3"]},
        {"extras": [{"requirement": "flash-attn==2.8.3"}]},
        {"extras": [{"requirement": "flash-attn==2.8.3", "build": True}]},
    ],
)
def test_digest_follows_what_is_asked(changes: dict[str, Any]) -> None:
    digests = {lock.inputs_digest(row(), "linux/amd64"), lock.inputs_digest(row(**changes), "linux/amd64")}
    if "build" in str(changes.get("extras")):
        digests.add(lock.inputs_digest(row(extras=[{"requirement": "flash-attn==2.8.3"}]), "linux/amd64"))
        assert len(digests) == 3
    assert len(digests) >= 2


def test_digest_does_not_follow_what_is_not_asked() -> None:
    other = row(summary="another", env={"A": "b"}, gcc={"version": "13.3", "package": "gcc-13"}, pins=[])
    assert lock.inputs_digest(row(), "linux/amd64") == lock.inputs_digest(other, "linux/amd64")
    assert lock.inputs_digest(row(), "linux/amd64") != lock.inputs_digest(row(), "linux/arm64")


@pytest.mark.parametrize(
    ("env", "pip", "alive", "added", "noted"),
    [
        (row(), PipSettings(), True, True, False),
        (row(), PipSettings(find_links=("/wheels",)), False, False, True),
        (row(CUDA), PipSettings(), True, False, False),
        (row(), PipSettings(no_index=True), True, False, False),
        (row(), PipSettings(extra_index=("https://m.example/pytorch/whl/cpu/",)), True, False, False),
        (row(), PipSettings(extra_index=("https://m.example/pytorch/whl/cu118",)), True, True, False),
    ],
)
def test_pytorchs_index_is_added_where_it_answers(
    monkeypatch: pytest.MonkeyPatch, env: Environment, pip: PipSettings, alive: bool, added: bool, noted: bool
) -> None:
    monkeypatch.setattr(net, "answers", lambda url, **options: alive)
    events: list[Event] = []
    result = lock.with_torch_index(env, pip, events.append)
    assert ("https://download.pytorch.org/whl/cpu" in result.extra_index) is added
    assert len(events) == noted
    assert all(isinstance(event, Note) and "2.13.0+cpu" in event.message for event in events)
    # A second time nothing is asked or said.
    monkeypatch.setattr(net, "answers", lambda url, **options: pytest.fail("asked again"))
    if added:
        assert lock.with_torch_index(env, result, events.append) is result


def test_net_answers_never_raises() -> None:
    # The unit tests' fixture refuses every connection.
    assert net.answers("http://index.example/", timeout=1) is False
    assert net.answers("https://x.example/", timeout=1, ca=Path("/nowhere"), proxies={"https": "http://p:1"}) is False
    assert net.answers("not a url", timeout=1) is False


# --- what uv says -----------------------------------------------------------------------------------------------------

OUTPUT = f"""\
Deep_Speed==0.19.8 \\
    --hash={C}
    # via -c constraints.txt
numpy==2.4.6 \\
    --hash={B} \\
    --hash={A}
    # via
    #   -r -
    #   deep-speed
    #   torch[opt]
torch==2.13.0+cpu \\
    --hash={A}
    # via deep.speed
"""


def test_parse() -> None:
    assert parse.parse(OUTPUT) == (
        Resolved(name="deep-speed", version="0.19.8", hashes=(C,), parents=()),
        Resolved(name="numpy", version="2.4.6", hashes=(A, B), parents=("deep-speed", "torch")),
        Resolved(name="torch", version="2.13.0+cpu", hashes=(A,), parents=("deep-speed",)),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("torch @ file:///wheels/torch.whl\n", "line 1"),
        ("-e .\n", "line 1"),
        (f"a==1 \\\n    --hash={A}\n    # from https://x\n", "line 3"),
        (f"    --hash={A}\n", "line 1"),
        ("a==1 ; python_version < '3.12'\n", "line 1"),
        ("a==1\nA==2\n", "a more than once"),
        ("a==1 \\\n    --hash=md5:0123\n", "md5 hashes and no SHA-256"),
    ],
)
def test_parse_takes_nothing_else(text: str, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        parse.parse(text)


def resolved(*edges: str) -> tuple[Resolved, ...]:
    """``name <- parent parent`` as resolved packages."""
    packages = []
    for edge in edges:
        name, _, parents = edge.partition(" <- ")
        packages.append(Resolved(name=name, version="1", hashes=(A,), parents=tuple(parents.split())))
    return tuple(packages)


def test_groups() -> None:
    runtime = resolved(
        "deepspeed",
        "torch <- deepspeed",
        "pip",
        "setuptools <- torch",
        "wheel",
        "packaging <- deepspeed wheel",
        "sympy <- torch",
        "mpmath <- sympy",
        "numpy <- deepspeed torchvision",
        "torchvision",
        "cuda-toolkit <- torch",
        "nvidia-cuda-runtime <- cuda-toolkit nvidia-cuda-nvcc",
        "pydantic <- deepspeed",
        "pydantic-core <- pydantic",
        "my-kernel",
        "einops <- my-kernel",
    )
    everything = (*runtime, *resolved("nvidia-cuda-nvcc <- cuda-toolkit", "nvidia-nvvm <- nvidia-cuda-nvcc"))
    groups = parse.assign(
        everything,
        runtime,
        built=frozenset({"deepspeed", "my-kernel"}),
        tools=ask.TOOLS,
        torch=("torch", "torchvision", "torchaudio"),
    )
    by_group: dict[str, set[str]] = {}
    for name, group in groups.items():
        by_group.setdefault(group, set()).add(name)
    assert by_group == {
        "tools": {"pip", "setuptools", "wheel", "packaging"},
        "torch": {"torch", "torchvision", "sympy", "mpmath", "numpy", "cuda-toolkit", "nvidia-cuda-runtime"},
        "deps": {"pydantic", "pydantic-core", "einops"},
        "ops": {"deepspeed", "my-kernel"},
        "toolkit": {"nvidia-cuda-nvcc", "nvidia-nvvm"},
    }


# --- resolve, with uv's part played -----------------------------------------------------------------------------------


class Uv:
    """Plays uv: keeps what it was given, answers what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[list[str], dict[str, str], str, str]] = []
        self.answers: list[tuple[int, str, str]] = []
        self.error: EnvbuildError | None = None
        # Texts of requirements, any of which makes a question unanswerable, with uv's clause.
        self.gone: dict[str, str] = {}
        self.only_with_deps = False
        monkeypatch.setattr(process, "run", self.run)
        monkeypatch.setattr(net, "answers", lambda url, **options: False)

    def run(
        self, argv: list[str], *, env: dict[str, str], cwd: Path, timeout: float, input: bytes
    ) -> process.Completed:
        if self.error:
            raise self.error
        constraints = cwd / "constraints.txt"
        self.calls.append((argv, env, input.decode(), constraints.read_text() if constraints.exists() else ""))
        for text, why in self.gone.items():
            if text in input.decode() and not (self.only_with_deps and "--no-deps" in argv):
                said = f"{NO_SOLUTION.format(why)} https://canary-token@j.example/s"
                return process.Completed(argv=tuple(argv), returncode=1, stdout="", stderr=said)
        if self.gone:
            return process.Completed(argv=tuple(argv), returncode=0, stdout=f"a==1 \\\n    --hash={A}\n", stderr="")
        code, out, err = self.answers[min(len(self.calls), len(self.answers)) - 1]
        return process.Completed(argv=tuple(argv), returncode=code, stdout=out, stderr=err)


@pytest.fixture
def uv(monkeypatch: pytest.MonkeyPatch) -> Uv:
    for name in ("UV_CACHE_DIR", "UV_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return Uv(monkeypatch)


SECRET = PipSettings(
    index="https://user:canary-pass@i.example/simple", extra_index=("https://canary-token@j.example/s",), origin="pip"
)


def ask_uv(env: Environment, pip: PipSettings = SECRET, **options: Any) -> Lock:
    return lock.resolve(env, platform="linux/amd64", pip=pip, site=SiteConfig(), **options)


def test_resolve(uv: Uv, own_store: Path) -> None:
    uv.answers = [(0, OUTPUT.replace("Deep_Speed", "deepspeed").replace("deep-speed", "deepspeed"), "")]
    env = row()
    found = ask_uv(env)
    assert [(package.name, package.group) for package in found.packages] == [
        ("deepspeed", "ops"),
        ("numpy", "torch"),
        ("torch", "torch"),
    ]
    assert found.inputs == lock.inputs_digest(env, "linux/amd64")
    ((argv, variables, requirements, constraints),) = uv.calls
    assert requirements.splitlines() == list(lock.requirements(env))
    assert constraints == ""
    text = " ".join(argv)
    for part in (
        "pip compile - --no-header --annotation-style split --generate-hashes",
        "--python-version 3.11 --python-platform x86_64-manylinux_2_28",
        "--only-binary :all: --no-binary deepspeed --no-config",
    ):
        assert part in text
    assert "canary" not in text
    assert "canary-pass" in variables["UV_INDEX"]
    assert variables["UV_CACHE_DIR"] == str(own_store / "cache" / "uv")


def test_platforms(uv: Uv) -> None:
    uv.answers = [(0, f"torch==1 \\\n    --hash={A}\n", "")]
    lock.resolve(row(), platform="linux/arm64", pip=SECRET, site=SiteConfig(), glibc=(2, 17))
    assert "aarch64-manylinux_2_17" in uv.calls[0][0]
    ask_uv(row(), glibc=(2, 36))
    assert "x86_64-manylinux_2_28" in uv.calls[1][0]


def test_the_users_own_uv_variables_take_no_part(uv: Uv, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "UV_CONSTRAINT": "/c.txt",
        "UV_INDEX": "https://other.example",
        "UV_EXCLUDE_NEWER": "2020-01-01",
        "UV_CACHE_DIR": "/kept",
        "UV_HTTP_RETRIES": "9",
    }.items():
        monkeypatch.setenv(name, value)
    uv.answers = [(0, f"torch==1 \\\n    --hash={A}\n", "")]
    ask_uv(row())
    argv, variables, *_ = uv.calls[0]
    # UV_INDEX is replaced, so it must not be taken away.
    assert argv[:5] == ["env", "-u", "UV_CONSTRAINT", "-u", "UV_EXCLUDE_NEWER"]
    assert variables["UV_INDEX"].startswith("https://user:")
    assert "UV_CACHE_DIR" not in variables


def test_the_toolkit_is_what_only_the_toolkit_asks_for(uv: Uv) -> None:
    runtime = f"cuda-toolkit==13.0.2 \\\n    --hash={A}\n    # via torch\ntorch==2.11.0 \\\n    --hash={B}\n"
    nvcc = f"nvidia-cuda-nvcc==13.0.88 \\\n    --hash={C}\n    # via cuda-toolkit\n"
    uv.answers = [(0, nvcc + runtime, ""), (0, runtime, "")]
    found = ask_uv(row(CUDA))
    assert {package.name: package.group for package in found.packages} == {
        "cuda-toolkit": "torch",
        "nvidia-cuda-nvcc": "toolkit",
        "torch": "torch",
    }
    (_, _, first, _), (_, _, second, constraints) = uv.calls
    assert "cuda-toolkit[" in first
    assert "cuda-toolkit" not in second
    assert constraints.splitlines() == ["cuda-toolkit==13.0.2", "nvidia-cuda-nvcc==13.0.88", "torch==2.11.0"]


NO_SOLUTION = "error: No solution found when resolving dependencies\n  cause: Because {}, we can conclude that no."
TORCHS = {"torch==2.13.0+cpu": "there is no version of torch==2.13.0+cpu and you require torch==2.13.0+cpu"}
SILENT = "not found in the indexes asked (https://download.pytorch.org/whl/cpu does not answer)"


@pytest.mark.parametrize(
    ("gone", "missing", "hint"),
    [
        (TORCHS, (f"torch==2.13.0+cpu: {SILENT}",), "python3.11 -m pip download"),
        (
            {"numpy==9": "there is no version of numpy==9 and you require numpy==9"},
            ("numpy==9: not found in the indexes asked",),
            "relax a pin",
        ),
        (
            {"numpy==9": "numpy==9 has no wheels with a matching tag (e.g., `cp310`) and you require numpy==9"},
            ("numpy==9: numpy==9 has no wheels with a matching tag (e.g., `cp310`)",),
            "relax a pin",
        ),
        (
            {"numpy==9": "numpy was not found in the package registry and you require numpy==9"},
            ("numpy==9: numpy was not found in the package registry",),
            "refused the credentials",
        ),
        (
            {"numpy==9": "numpy==9 has no usable wheels and you require numpy==9"},
            ("numpy==9: numpy==9 has no usable wheels",),
            "build: true",
        ),
        # A site's address in uv's words is not written down.
        (
            {"numpy==9": "https://i.example/simple said no"},
            ("numpy==9: not found in the indexes asked",),
            "relax a pin",
        ),
    ],
)
def test_what_is_missing_is_found_out_one_by_one(
    uv: Uv, gone: dict[str, str], missing: tuple[str, ...], hint: str
) -> None:
    uv.gone = gone
    with pytest.raises(lock.Missing) as caught:
        ask_uv(row(pins=["numpy==9", "wheel<1"]))
    error = caught.value
    assert error.missing == missing
    assert (error.exit_code, error.code) == (2, "input")
    assert f"{len(missing)} of 8 requirements cannot be had" in error.message and missing[0] in error.message
    assert "asked (from pip): https://***@i.example/simple, https://***@j.example/s" in error.message
    assert hint in error.hint
    assert "canary" not in error.message + error.hint


def test_what_only_its_own_needs_miss_is_missing_too(uv: Uv) -> None:
    uv.gone, uv.only_with_deps = {"deepspeed==0.19.8": "hjson was not found and deepspeed==0.19.8 depends"}, True
    with pytest.raises(lock.Missing) as caught:
        ask_uv(row())
    assert caught.value.missing == ("deepspeed==0.19.8: hjson was not found and deepspeed==0.19.8 depends",)


def test_requirements_that_contradict_one_another_are_not_missing(uv: Uv) -> None:
    uv.gone = {"numpy==9\nnumpy<2": "you require numpy==9 and numpy<2"}
    with pytest.raises(InputError, match="you require numpy==9 and numpy<2") as caught:
        ask_uv(row(pins=["numpy==9", "numpy<2"]))
    assert type(caught.value) is InputError


@pytest.mark.parametrize(
    ("code", "err", "kind", "hint"),
    [
        (1, "error: Failed to build `x==1`\n  cause: setup.py failed", InputError, "build failed"),
        (2, "error: unexpected argument '--only-binary'", EngineError, "uv's own failure"),
        (-9, "", EngineError, "uv's own failure"),
    ],
)
def test_failures(uv: Uv, code: int, err: str, kind: type[EnvbuildError], hint: str) -> None:
    uv.answers = [(code, "", f"{err}\n  at https://user:canary-pass@i.example/simple and canary-token")]
    with pytest.raises(kind) as caught:
        ask_uv(row())
    error = caught.value
    assert type(error) is kind
    assert hint in error.hint
    assert err.splitlines()[-1].strip() in error.message if err else True
    assert "asked (from pip): https://***@i.example/simple, https://***@j.example/s" in error.message
    assert "canary" not in error.message + error.hint


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("https://user:canary-pass@i.example/simple", "an index that was asked does not answer"),
        ("https://pypi.org/simple", "https://pypi.org/simple does not answer"),
        ("https://download.pytorch.org/whl/cpu", "https://download.pytorch.org/whl does not answer"),
    ],
)
def test_an_index_that_does_not_answer(uv: Uv, index: str, said: str) -> None:
    uv.answers = [(2, "", f"error: Request failed after 3 retries\n  cause: Failed to fetch: `{index}/pip/`")]
    with pytest.raises(lock.Missing) as caught:
        ask_uv(row())
    error = caught.value
    assert (error.exit_code, error.code) == (3, "engine")
    assert error.missing == tuple(f"{each}: {said}" for each in lock.requirements(row()))
    assert "network" in error.hint and "canary" not in error.message


def test_long_explanations_are_cut(uv: Uv) -> None:
    uv.answers = [(1, "", "error: Failed to build\n  cause: x" + "\n  and so on" * 100)]
    with pytest.raises(InputError, match=r"and 77 more lines"):
        ask_uv(row())


def test_a_time_out_names_the_indexes(uv: Uv) -> None:
    uv.error = process.TimedOut("uv did not end within 5 s")
    with pytest.raises(lock.Missing, match=r"did not end within 5 s\nasked") as caught:
        ask_uv(row(), timeout=5)
    assert caught.value.exit_code == 3 and "canary" not in caught.value.message


def test_packages_without_hashes_are_no_lock(uv: Uv) -> None:
    uv.answers = [(0, "torch==2.13.0+cpu\n", "")]
    with pytest.raises(EngineError, match="no hashes are known for torch"):
        ask_uv(row())


# --- lock.json --------------------------------------------------------------------------------------------------------


def test_write_and_read(tmp_path: Path) -> None:
    made = locked(row(), PACKAGES)
    lock.write(tmp_path / "images" / "row" / "lock.json", made)
    content = (tmp_path / "images" / "row" / "lock.json").read_bytes()
    assert lock.read(tmp_path / "images" / "row" / "lock.json") == made
    assert json.loads(content)["schema"] == "envbuild.lock/1"
    assert content.endswith(b"}\n")
    lock.write(tmp_path / "again", made)
    assert (tmp_path / "again").read_bytes() == content


def _drop(document: dict[str, Any]) -> None:
    del document["inputs"]
    document["packages"][0]["hashes"] = []


def _double(document: dict[str, Any]) -> None:
    document["packages"].append(document["packages"][0])


def _inject(document: dict[str, Any]) -> None:
    document["packages"][0]["version"] = "1 --index-url=https://evil.example"


def _edit(document: dict[str, Any]) -> None:
    document["packages"][0]["version"] = "2.13.1"


def _merge(document: dict[str, Any]) -> None:
    # What git makes of two branches that lock another package each.
    document["packages"][2]["hashes"] = [B]


def _unsign(document: dict[str, Any]) -> None:
    del document["checksum"]


def _claim(document: dict[str, Any]) -> None:
    document["status"] = "unresolved"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_drop, ("inputs: Field required", "packages.0.hashes: Tuple should have at least 1 item")),
        (_double, ("more than one entry for torch",)),
        (_inject, ("packages.0.version",)),
        (_edit, ("has changed since envbuild wrote it",)),
        (_merge, ("has changed since envbuild wrote it",)),
        (_unsign, ("has no checksum",)),
        (_claim, ("an unresolved lock has no packages",)),
    ],
)
def test_a_lock_that_was_edited(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], said: tuple[str, ...]
) -> None:
    lock.write(tmp_path / "lock.json", locked(row(), PACKAGES))
    document = json.loads((tmp_path / "lock.json").read_text())
    change(document)
    (tmp_path / "lock.json").write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        lock.read(tmp_path / "lock.json")
    assert all(part in caught.value.message for part in said)
    assert "envbuild lock" in caught.value.hint


def test_another_layout_of_the_same_lock_is_no_edit(tmp_path: Path) -> None:
    made = locked(row(), PACKAGES)
    lock.write(tmp_path / "lock.json", made)
    document = json.loads((tmp_path / "lock.json").read_text())
    (tmp_path / "lock.json").write_text(json.dumps(dict(reversed(document.items()))))
    assert lock.read(tmp_path / "lock.json") == made


def test_an_unresolved_lock_is_stale_like_any_other(tmp_path: Path) -> None:
    env = row()
    made = lock.unresolved(env, platform="linux/amd64", missing=(f"torch==2.13.0+cpu: {SILENT}",))
    lock.write(tmp_path / "lock.json", made)
    assert lock.read(tmp_path / "lock.json") == made
    assert (made.resolved, made.packages) == (False, ())
    assert lock.stale(made, env, "linux/amd64") is None
    finding = lock.stale(made, row(pins=["numpy<2"]), "linux/amd64")
    assert finding is not None and "have changed" in finding.message


# --- images by digest -------------------------------------------------------------------------------------------------

BASE = {"image": "docker.io/library/debian:bookworm-slim"}
TOOLKIT = {**BASE, "toolkit_image": "docker.io/nvidia/cuda:13.0.1-devel"}


def test_a_lock_pins_the_images_that_the_row_does_not() -> None:
    env = row(CUDA, base=TOOLKIT, cuda={"version": "13.0", "toolkit": "image"})
    made = locked(env, PACKAGES, base=lock.images(env).model_copy(update={"digest": A, "toolkit_digest": B}))
    assert (made.pin(env).base.digest, made.pin(env).base.toolkit_digest) == (A, B)
    own = row(CUDA, base={**TOOLKIT, "digest": C}, cuda={"version": "13.0", "toolkit": "image"})
    assert (made.pin(own).base.digest, made.pin(own).base.toolkit_digest) == (C, B), "the row's own digest wins"
    other = row(CUDA, base={"image": "docker.io/library/debian:trixie"})
    assert made.pin(other) == other, "a digest is one image's, not another's"
    assert locked(env, PACKAGES).pin(env) == env


def test_the_row_stands_on_other_images() -> None:
    env = row()
    made = locked(env, PACKAGES, base=lock.images(env))
    assert lock.stale(made, env, "linux/amd64") is None
    moved = lock.stale(made, row(base={"image": "docker.io/library/debian:trixie"}), "linux/amd64")
    assert moved is not None and "stands on other images" in moved.message
    for base in ({**BASE, "digest": A}, {**BASE, "bootstrap": {"suite": "trixie"}}):
        assert lock.inputs_digest(row(base=base), "linux/amd64") != lock.inputs_digest(env, "linux/amd64")
    # What envbuild would not start from is nothing of the lock.
    assert lock.images(row(base=TOOLKIT)).toolkit_image is None


@pytest.mark.parametrize("content", ["[]", "null", '"x"', "{"])
def test_not_a_lock_at_all(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock.json").write_text(content)
    with pytest.raises(InputError, match=r"lock\.json"):
        lock.read(tmp_path / "lock.json")


def test_a_lock_of_the_row_as_it_is() -> None:
    assert lock.stale(locked(row(), PACKAGES), row(), "linux/amd64") is None


@pytest.mark.parametrize(
    ("made", "env", "said"),
    [
        (locked(row(), PACKAGES), row(pins=["numpy<2"]), "pins, extras or base have changed"),
        (locked(row(), PACKAGES), row(python="3.12"), "its Python is 3.11, not 3.12"),
        (locked(row(), PACKAGES), row(name="other"), "its row is row, not other"),
        (locked(row(), PACKAGES, platform="linux/arm64"), row(), "its platform is linux/arm64, not linux/amd64"),
        # The digest says that it fits; the packages do not.
        (locked(row(), [("torch", "2.13.0", "torch", (A,)), *PACKAGES[1:]]), row(), "torch 2.13.0, and the row wants"),
        (locked(row(), PACKAGES[:1]), row(), "deepspeed not at all, and the row wants 0.19.8"),
    ],
)
def test_stale(made: Lock, env: Environment, said: str) -> None:
    finding = lock.stale(made, env, "linux/amd64")
    assert finding is not None
    assert said in finding.message
    assert (finding.rule, finding.severity, finding.subject) == ("lock", "error", env.name)
    assert finding.fix == f"envbuild lock {env.name}"


def test_a_row_from_pypi_is_locked_without_a_local_version() -> None:
    env = row(CUDA)
    packages = [
        ("torch", "2.11.0", "torch", (A,)),
        ("torchvision", "0.26.0", "torch", (A,)),
        ("deepspeed", "0.19.8", "ops", (A,)),
    ]
    assert lock.stale(locked(env, packages), env, "linux/amd64") is None


def test_requirements_for_pip() -> None:
    made = locked(row(), [("zlib-ng", "1.0", "torch", (A,)), *PACKAGES])
    assert lock.requirements_txt(made.packages, "torch") == (
        f"torch==2.13.0+cpu \\\n    --hash={A} \\\n    --hash={B}\nzlib-ng==1.0 \\\n    --hash={A}\n"
    )
    assert lock.requirements_txt(made.packages, "toolkit") == ""


def test_extras_that_are_built_go_to_the_ops() -> None:
    env = row(extras=[Extra(requirement="Flash_Attn[x]==2.8.3", build=True), Extra(requirement="einops")])
    assert ask.built_names(env) == {"deepspeed", "flash-attn"}
