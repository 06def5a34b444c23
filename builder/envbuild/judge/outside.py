"""What an image contains, as its files say it: nothing of it is executed or imported.

A lying image can patch its own Python; it cannot patch this. What is read here is compared with the row, and with
what the modules say of themselves inside (``content.py``).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from envbuild.errors import EngineError
from envbuild.judge.archive import ImageArchive
from envbuild.model import Environment
from envbuild.plan import HOME, PREFIX
from envbuild.plan.families import cxx_package

CONSTRAINTS = f"{HOME}/constraints.txt"
_VENV = PREFIX.strip("/")
_SITE = rf"{_VENV}/lib/python\d+\.\d+/site-packages"
_STATUS = "var/lib/dpkg/status"
_WANTED = re.compile(
    rf"{_VENV}/pyvenv\.cfg"
    rf"|{_SITE}/[^/]+\.dist-info/METADATA"
    rf"|{_SITE}/torch/version\.py"
    rf"|{_SITE}/deepspeed/git_version_info_installed\.py"
    rf"|{re.escape(CONSTRAINTS.strip('/'))}"
    rf"|{_STATUS}"
)
_OP_FILE = re.compile(r"([a-z0-9_]+?)_op(?:\.[^/]*)?\.so")
# The names only: other variables of an image may hold what nobody wants to keep.
ENVIRONMENT = (
    "PATH",
    "CC",
    "CXX",
    "CUDAHOSTCXX",
    "DS_ACCELERATOR",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "PIP_CONSTRAINT",
    "PYTHONNOUSERSITE",
    "PYTHONPATH",
    "TORCH_CUDA_ARCH_LIST",
    "UV_CONSTRAINT",
)


def WANTED(path: str) -> bool:
    """Whether :func:`outside` reads this file; the predicate for :func:`envbuild.judge.archive.read`."""
    return _WANTED.fullmatch(path) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideReport:
    """What the files of an image say. None, or a name that is not in a mapping: it could not be read.

    Attributes:
        python: Full version, from pyvenv.cfg.
        python_folder: Major and minor version, from the folder of the packages.
        torch: From torch/version.py.
        torch_cuda: From torch/version.py; None for a build without CUDA, and where ``torch`` is None.
        deepspeed: From git_version_info_installed.py, which DeepSpeed's setup writes.
        built_for: The accelerator that DeepSpeed's ops were compiled for.
        installed_ops: Ops that DeepSpeed's setup says it compiled; None where the file is missing.
        op_files: Path below the packages' folder of each compiled op, by op name.
        nccl_pin: The NCCL version that torch's METADATA asks for; None where NCCL is linked statically.
        packages: Version by normalised name, from every METADATA.
        duplicates: Names that more than one dist-info claims.
        system: Upstream version of the operating system's compiler and C library packages, by package name.
        constraints: The file that guards torch against a later ``pip install``.
        env: Variables of the image's config, of those that matter here.
        toolkit: Paths of nvcc: a runtime image carries none.
        problems: Files that are there and could not be understood.
    """

    python: str | None
    python_folder: str | None
    torch: str | None
    torch_cuda: str | None
    deepspeed: str | None
    built_for: str | None
    installed_ops: tuple[str, ...] | None
    op_files: dict[str, str]
    nccl_pin: str | None
    packages: dict[str, str]
    duplicates: tuple[str, ...]
    system: dict[str, str]
    constraints: str | None
    env: dict[str, str]
    toolkit: tuple[str, ...]
    problems: tuple[str, ...] = field(default=())


def outside(archive: ImageArchive, env: Environment) -> OutsideReport:
    """Read what can be known of an image from its files alone. Never raises; what is wrong is in ``problems``."""
    reader = _Reader(archive)
    folders = sorted(path for path in archive.entries if re.fullmatch(_SITE, path))
    site = f"{_VENV}/lib/python{env.python}/site-packages"
    if site not in folders and folders:
        site = folders[0]
    torch = reader.assignments(f"{site}/torch/version.py")
    deepspeed = reader.assignments(f"{site}/deepspeed/git_version_info_installed.py")
    packages, duplicates, pin = _packages(reader, site)
    compiled = deepspeed.get("installed_ops")
    wanted_system = (env.gcc.package, cxx_package(env), "libc6")
    return OutsideReport(
        python=_python(reader),
        python_folder=re.sub(rf"{_VENV}/lib/python|/site-packages", "", site) if folders else None,
        torch=_text(torch.get("__version__")),
        torch_cuda=_text(torch.get("cuda")),
        deepspeed=_text(deepspeed.get("version")),
        built_for=_text(deepspeed.get("accelerator_name")),
        installed_ops=tuple(sorted(str(name) for name, built in compiled.items() if built))
        if isinstance(compiled, dict)
        else None,
        op_files=_op_files(archive, site),
        nccl_pin=pin,
        packages=packages,
        duplicates=duplicates,
        system=_system(reader, wanted_system),
        constraints=reader.text(CONSTRAINTS.strip("/")),
        env={name: value for name, value in archive.env.items() if name in ENVIRONMENT or name in env.env},
        toolkit=tuple(sorted(path for path, entry in archive.entries.items() if _is_nvcc(path, entry.kind))),
        problems=tuple(reader.problems),
    )


class _Reader:
    """Files of the archive; what cannot be read is noted once."""

    def __init__(self, archive: ImageArchive) -> None:
        self.archive = archive
        self.problems: list[str] = []

    def text(self, path: str) -> str | None:
        try:
            data = self.archive.data(path)
        except EngineError as error:
            self.problems.append(error.message)
            return None
        return None if data is None else data.decode("utf-8", "replace")

    def assignments(self, path: str) -> dict[str, Any]:
        """Names that a Python file assigns literals to; the file is parsed, never run."""
        text = self.text(path)
        if text is None:
            return {}
        found: dict[str, Any] = {}
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.problems.append(f"{path} is not Python: {error}")
            return {}
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if _annotated(node) else []
            for target in targets:
                if isinstance(target, ast.Name):
                    found[target.id] = _literal(node.value)
        return found


def _annotated(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and node.value is not None
