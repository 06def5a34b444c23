"""What an image contains, as its files say it: nothing of it is executed or imported.

What is read here is compared with the row, and with what the modules say of themselves inside (``content.py``). It
reads what files state; that the other files are those of the wheels is not looked at here.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import EngineError
from envbuild.judge import dpkg
from envbuild.judge.archive import ImageArchive
from envbuild.judge.installed import Installed
from envbuild.judge.system import interpreter
from envbuild.model import Environment
from envbuild.plan import HOME, PREFIX
from envbuild.plan.families import cxx_package

CONSTRAINTS = f"{HOME}/constraints.txt"
_VENV = PREFIX.strip("/")
_SITE = rf"{_VENV}/lib/python\d+\.\d+/site-packages"
_FILES = re.compile(
    rf"{_VENV}/pyvenv\.cfg"
    rf"|{_SITE}/[^/]+\.dist-info/(METADATA|RECORD)"
    rf"|{_SITE}/torch/version\.py"
    rf"|{_SITE}/deepspeed/git_version_info_installed\.py"
    rf"|{re.escape(CONSTRAINTS.strip('/'))}"
    # The loader, for the folders that it searches, and its configuration.
    r"|(usr/)?lib(32|64|x32)?/([^/]+/)?ld-[^/]+\.so[^/]*"
    r"|etc/ld\.so\.(cache|preload)"
    rf"|{_SITE}/[^/]+\.pth"
)
# glibc's package: Debian's name, and everybody else's.
C_LIBRARIES = ("libc6", "glibc")
_OP_FILE = re.compile(r"([a-z0-9_]+?)_op(?:\.[^/]*)?\.so")
_KNOWN_STARTUP = {"distutils-precedence.pth"}
_RUN = re.compile(r"^import[ \t]", re.MULTILINE)
# The names only: other variables of an image may hold what nobody wants to keep.
ENVIRONMENT = (
    "PATH",
    "CC",
    "COMPILER_PATH",
    "CXX",
    "CUDAHOSTCXX",
    "DS_ACCELERATOR",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "PIP_CONSTRAINT",
    "PYTHONHOME",
    "PYTHONNOUSERSITE",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONUSERBASE",
    "TORCH_CUDA_ARCH_LIST",
    "UV_CONSTRAINT",
)


def _is_wanted(path: str) -> bool:
    return _FILES.fullmatch(path) is not None or dpkg.wanted(path)


# Whether `outside` reads a file: the predicate for `archive.read`.
WANTED: Callable[[str], bool] = _is_wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideReport:
    """What the files of an image say. None, or a name that is not in a mapping: it could not be read.

    Attributes:
        python: Full version, from pyvenv.cfg.
        interpreter: The file behind the environment's ``python``, all links followed.
        hooks: Files that Python runs at every start and that no package owns: ``sitecustomize``, stray ``.pth``.
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
        system_places: The database of packages that says so, by package name.
        constraints: The file that guards torch against a later ``pip install``.
        env: Variables of the image's config, of those that matter here.
        toolkit: Paths of nvcc: a runtime image carries none.
        problems: Files that are there and could not be understood.
    """

    python: str | None
    interpreter: str | None
    hooks: tuple[str, ...]
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
    system_places: dict[str, str]
    constraints: str | None
    env: dict[str, str]
    toolkit: tuple[str, ...]
    problems: tuple[str, ...] = field(default=())


def outside(archive: ImageArchive, env: Environment, said: Installed) -> OutsideReport:
    """Read what can be known of an image from its files alone. Never raises; what is wrong is in ``problems``.

    Args:
        archive: The image, read with ``WANTED``.
        env: The row.
        said: What the system's packages say of themselves.
    """
    reader = _Reader(archive)
    folders = sorted(path for path in archive.entries if re.fullmatch(_SITE, path))
    site = f"{_VENV}/lib/python{env.python}/site-packages"
    if site not in folders and folders:
        site = folders[0]
    torch = reader.assignments(f"{site}/torch/version.py")
    deepspeed = reader.assignments(f"{site}/deepspeed/git_version_info_installed.py")
    packages, duplicates, pin = _packages(reader, site)
    compiled = deepspeed.get("installed_ops")
    versions = {
        name: said.versions[name] for name in (env.gcc.package, cxx_package(env), *C_LIBRARIES) if name in said.versions
    }
    return OutsideReport(
        python=_python(reader),
        interpreter=interpreter(archive),
        hooks=_hooks(reader, site),
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
        system={name: version.value for name, version in versions.items()},
        system_places={name: version.place for name, version in versions.items()},
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
        try:
            return dict(_literals(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.problems.append(f"{path} is not plain Python: {error}")
            return {}


def _literals(module: ast.Module) -> Iterable[tuple[str, Any]]:
    for node in module.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        with contextlib.suppress(ValueError, TypeError):  # an expression, which nothing here needs
            literal = ast.literal_eval(value)
            yield from ((target.id, literal) for target in targets if isinstance(target, ast.Name))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _python(reader: _Reader) -> str | None:
    """The venv module writes ``version``, virtualenv and uv write ``version_info``."""
    for line in (reader.text(f"{_VENV}/pyvenv.cfg") or "").splitlines():
        name, _, value = line.partition("=")
        if name.strip() in ("version", "version_info"):
            found = re.match(r"\d+\.\d+\.\d+", value.strip())
            return found[0] if found else None
    return None


def _packages(reader: _Reader, site: str) -> tuple[dict[str, str], tuple[str, ...], str | None]:
    """Versions by name, names that are there twice, and the NCCL that torch asks for."""
    versions: dict[str, str] = {}
    twice: set[str] = set()
    pin = None
    metadata = re.compile(rf"{re.escape(site)}/[^/]+\.dist-info/METADATA")  # no vendored ones further down
    for path in sorted(reader.archive.entries):
        if not metadata.fullmatch(path):
            continue
        fields = _headers(reader.text(path) or "")
        name = canonicalize_name(next(iter(fields.get("name", [])), path.split("/")[-2].partition("-")[0]))
        version = next(iter(fields.get("version", [])), None)
        if name in versions:
            twice.add(name)
        if version:
            versions[name] = version
        else:
            reader.problems.append(f"{path} states no version")
        if name == "torch":
            pin = _nccl_pin(fields.get("requires-dist", []))
    return versions, tuple(sorted(twice)), pin


def _hooks(reader: _Reader, site: str) -> tuple[str, ...]:
    """Start-up files of the packages' folder that no package owns or that run code, and the two that site looks for.

    A ``.pth`` line that begins with ``import`` is run (Python library reference, "site"); of the packages that a row
    locks, setuptools alone has one.
    """
    entries = reader.archive.entries
    names = [path.removeprefix(f"{site}/") for path in entries if path.startswith(f"{site}/")]
    startup = {name for name in names if name.endswith(".pth") and "/" not in name}
    owned: set[str] = set()
    if startup:
        for name in names:
            if name.endswith(".dist-info/RECORD") and name.count("/") == 1:
                lines = (reader.text(f"{site}/{name}") or "").splitlines()
                owned |= {line.partition(",")[0] for line in lines if ".pth," in line}
    runs = {name for name in startup - _KNOWN_STARTUP if _RUN.search(reader.text(f"{site}/{name}") or "")}
    always = {name for name in names if re.fullmatch(r"(site|user)customize(\.py|\.pyc|\.so|/__init__\.py)", name)}
    return tuple(sorted((startup - owned) | runs | always))


def _headers(text: str) -> dict[str, list[str]]:
    """The header fields of a METADATA file, by lower-case name; the description below them is not looked at."""
    fields: dict[str, list[str]] = {}
    for line in text.replace("\r\n", "\n").partition("\n\n")[0].splitlines():
        name, colon, value = line.partition(":")
        if colon and not line.startswith((" ", "\t")):
            fields.setdefault(name.lower(), []).append(value.strip())
    return fields


def _nccl_pin(requirements: Iterable[str]) -> str | None:
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.name.startswith("nvidia-nccl-cu"):
            return next((clause.version for clause in requirement.specifier if clause.operator == "=="), None)
    return None


def _op_files(archive: ImageArchive, site: str) -> dict[str, str]:
    folder = f"{site}/deepspeed/ops/"
    found = {}
    for path, entry in archive.entries.items():
        match = _OP_FILE.fullmatch(path.rpartition("/")[2]) if path.startswith(folder) else None
        if match and entry.kind == "file" and entry.size > 0:
            found[match[1]] = path.removeprefix(f"{site}/")
    return dict(sorted(found.items()))


def _is_nvcc(path: str, kind: str) -> bool:
    return path.endswith("/bin/nvcc") and kind in ("file", "symlink")
