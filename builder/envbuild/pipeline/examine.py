"""Examine an environment: on this host, in an image, or as a file says that it was."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild import process
from envbuild.doctor.archive import NAME, archive
from envbuild.doctor.collection import SCHEMA, Collection
from envbuild.engines import ContainerResult, ContainerSpec, Mount, Run
from envbuild.errors import EngineError, GateError, InputError
from envbuild.events import Note
from envbuild.pipeline.interpreter import find_interpreter
from envbuild.pipeline.runs import running
from envbuild.pipeline.workbench import Workbench

# What the collector may take over the limit of its imports: reading, compiling, measuring.
_GRACE_SECONDS = 240.0
_MOST_BYTES = 256 << 20
_PYTHONS = ("python3", "python", "/opt/venv/bin/python", "/opt/conda/bin/python", "/usr/libexec/platform-python")
_NO_COMMAND = (126, 127)
# What runc and crun say of a program that an image does not have.
_NOT_THERE = ("no such file or directory", "executable file not found")
# The collector's own word, and what Python 2 says of -I.
_TOO_OLD = ("it needs 3.6 or later", "nknown option: -I")
_SHM_BYTES = 8 << 30
_HOW = "Collect it with: python3 -I doctor.pyz > facts.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What is collected.

    Attributes:
        nvme: Folders that offload would swap to.
        bench: Measure bandwidth, of memory and of those folders.
        imports: Import torch and DeepSpeed, in a child process.
        timeout: Limit of the imports, in seconds.
    """

    nvme: tuple[str, ...] = ()
    bench: bool = False
    imports: bool = True
    timeout: float = 120.0

    @property
    def options(self) -> tuple[str, ...]:
        """As the collector's command line has it."""
        folders = (part for folder in self.nvme for part in ("--nvme", folder))
        flags = (*(("--bench",) if self.bench else ()), *(() if self.imports else ("--no-import",)))
        return (*folders, *flags, "--timeout", f"{self.timeout:g}", "--quiet")


def examine_host(bench: Workbench, *, python: str | None = None, extent: Extent = Extent()) -> Collection:
    """Examine an interpreter on this host, and the host.

    Args:
        bench: The surroundings.
        python: Path of the interpreter, or its name on PATH; None is the one that the shell would start, or the next
            best one that has torch.
        extent: What is collected.

    Raises:
        InputError: There is no such interpreter.
        EngineError: The collector could not be run.
    """
    chosen = ("--guess",) if python is None else ("--python", str(_interpreter(python)))
    extent = _absolute(extent)
    argv = (sys.executable, "-I", "-S", str(archive(bench.cache)), *chosen, *extent.options)
    done = process.run(argv, timeout=extent.timeout + _GRACE_SECONDS)
    if done.returncode != 0:
        raise EngineError(f"the collector failed ({_ending(done.returncode)}): {_last(done.stderr)}")
    return _parsed(done.stdout, "the collector's answer")


def examine_image(
    bench: Workbench,
    image: str,
    *,
    python: str | None = None,
    extent: Extent = Extent(),
    gpus: tuple[str, ...] = (),
) -> Collection:
    """Examine an image from inside: a container of it runs the collector, with no network, and is removed.

    Args:
        bench: The surroundings; their engine has the image.
        image: Its name or id.
        python: The interpreter in the image; None is the one on its PATH, or the next best one that has torch.
        extent: What is collected.
        gpus: ``("all",)`` or UUIDs; empty is no GPU.

    Raises:
        GateError: There is no such image, or no Python in it that runs the collector.
        EngineError: The engine failed, or the collector did.
    """
    info = bench.engine.image(image)
    if info is None:
        raise GateError(
            f"there is no image {image}",
            hint=f"Pull it first, or see what there is: {bench.engine.kind} images {image}",
        )
    pyz, extent = archive(bench.cache), _absolute(extent)
    with running(bench) as run:
        for starter in (python,) if python else _PYTHONS:
            spec = image_spec(info.id, run, pyz, starter, python=python, extent=extent, gpus=gpus)
            result = bench.engine.run(spec, timeout=extent.timeout + _GRACE_SECONDS, sink=bench.sink)
            if result.exit_code not in _NO_COMMAND and not any(text in result.stderr for text in _TOO_OLD):
                break
            # That one is not there is no news: the next is tried, and all are named at the end.
            if not any(text in result.stderr for text in _NOT_THERE):
                bench.sink(Note(message=f"{starter} does not run the collector in {image}: {_last(result.stderr)}"))
        else:
            looked = python or ", ".join(_PYTHONS)
            raise GateError(
                f"{image}: no Python in it runs the collector, which needs 3.6 or later (tried {looked})",
                hint="Name the interpreter by its path inside the image: --python /path/to/python",
            )
    return _answer(result, image)


def image_spec(
    image_id: str,
    run: Run,
    pyz: Path,
    starter: str,
    *,
    python: str | None,
    extent: Extent,
    gpus: tuple[str, ...],
) -> ContainerSpec:
    """The container that examines an image: its own entrypoint is out of the game, its environment is not.

    Shared memory and locked memory are no property of an image; they are as ``envbuild run`` would give them.
    """
    inside = f"/run/{run.id}-{NAME}"
    chosen = ("--guess",) if python is None else ("--python", python)
    return ContainerSpec(
        image=image_id,
        argv=(starter, "-I", "-S", inside, *chosen, *extent.options),
        mounts=(
            Mount(source=pyz, target=inside, read_only=True),
            *(Mount(source=Path(each), target=each, read_only=False) for each in extent.nvme if Path(each).is_dir()),
        ),
        tmpfs=(("/tmp", "rw,exec,nosuid,size=2g,mode=1777"),),
        network="none",
        shm_bytes=_SHM_BYTES,
        memlock=-1,
        labels=run.labels,
        cap_drop_all=True,
        no_new_privileges=True,
        gpus=gpus,
    )


def read_collection(source: str) -> Collection:
    """Read what a collector wrote, on whatever machine.

    Args:
        source: Path of the file, also gzip-compressed; ``-`` is stdin.

    Raises:
        InputError: It is not there, or is no such file; the message says where it is wrong.
    """
    name = "standard input" if source == "-" else source
    if source == "-" and sys.stdin is None:
        raise InputError(f"{name} is closed", hint=_HOW)
    try:
        with open(sys.stdin.fileno(), "rb", closefd=False) if source == "-" else Path(source).open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        if data[:2] == b"\x1f\x8b":
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(_MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error) or "it ends too early"
        raise InputError(f"{name} cannot be read: {said}", hint=_HOW) from error
    if len(data) > _MOST_BYTES:
        raise InputError(f"{name} is larger than {_MOST_BYTES >> 20} MiB: no collector wrote it", hint=_HOW)
    # PowerShell writes UTF-16, and some editors a byte order mark.
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is no text, at byte {error.start}", hint=_HOW) from error
    if not text.strip():
        raise InputError(f"{name} is empty", hint=_HOW)
    return _parsed(text, name)


def collection_text(collection: Collection) -> str:
    """A collection as the collector writes it, to be read again later (``--since``)."""
    return collection.model_dump_json(by_alias=True, exclude_defaults=False) + "\n"


def _parsed(text: str, name: str) -> Collection:
    """A document of the collector.

    Raises:
        InputError: It is none.
    """
    from pydantic import ValidationError

    try:
        document: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{name}:{error.lineno}:{error.colno}: it is not JSON: {error.msg}", hint=_HOW) from error
    except (RecursionError, ValueError) as error:
        raise InputError(f"{name} is not JSON that can be read: {error}", hint=_HOW) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise _foreign(name, schema)
    try:
        return Collection.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        message = f"{name}: {place}: {first['msg']}"
        raise InputError(message[:500], hint=f"Nobody should edit such a file. {_HOW}") from error


def _foreign(name: str, schema: object) -> InputError:
    kind, _, number = str(schema).partition("/") if isinstance(schema, str) else ("", "", "")
    if kind == SCHEMA.partition("/")[0]:
        # As many digits as a number of schemas has: int() takes no ², and no end of them.
        if re.fullmatch(r"[0-9]{1,9}", number) and int(number) > int(SCHEMA.partition("/")[2]):
            return InputError(
                f"{name}: it was written by a newer collector ({schema}); this envbuild reads {SCHEMA}",
                hint="Update envbuild, or collect with the doctor.pyz of this one.",
            )
        return InputError(f"{name}: no collector writes {str(schema)[:100]}", hint=_HOW)
    what = f'its "schema" is {str(schema)[:100]!r}' if schema is not None else 'it has no "schema"'
    return InputError(f"{name}: it is not what a collector wrote: {what}, where {SCHEMA!r} belongs", hint=_HOW)


def _answer(result: ContainerResult, image: str) -> Collection:
    if result.timed_out:
        raise EngineError(f"{image}: the collector did not end within {result.seconds:.0f} s")
    if result.exit_code != 0:
        why = "the kernel ended it for memory" if result.oom_killed else _ending(result.exit_code)
        raise EngineError(f"{image}: the collector failed ({why}): {_last(result.stderr)}")
    found = _parsed(result.stdout, f"the collector's answer from {image}")
    return found.model_copy(update={"image": image})


def _interpreter(python: str) -> Path:
    """An interpreter by its path or name. Whether it starts is for the collector to find out, and to report."""
    found = process.which(python)
    if found is None:
        return find_interpreter(python)
    return Path(found).absolute()


def _absolute(extent: Extent) -> Extent:
    import dataclasses

    return dataclasses.replace(extent, nvme=tuple(str(Path(each).absolute()) for each in extent.nvme))


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
