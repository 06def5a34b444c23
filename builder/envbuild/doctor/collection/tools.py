"""The interpreter, and what compiles for it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from envbuild.doctor.collection.base import Seen


class Package(Seen):
    """A Python distribution.

    Attributes:
        location: The folder that holds it, as sys.path has it.
        requires: Its raw Requires-Dist, without those of extras, but for an extra's DeepSpeed.
        info: The name of its record there, such as torch-2.13.0.dist-info.
    """

    name: str
    version: str
    location: str | None = None
    info: str | None = None
    requires: tuple[str, ...] = ()


class Damage(Seen):
    """A package that is not whole.

    Attributes:
        record: Whether it has a RECORD; without one its installation did not end.
        missing: Files of its RECORD that are gone, or cut short (``path: 0 of 12 bytes``); the first of ``count``.
    """

    name: str
    version: str
    record: bool = True
    missing: tuple[str, ...] = ()
    count: int = 0


class Interpreter(Seen):
    """The Python that is examined.

    Attributes:
        kind: venv, conda, or system.
        prefix: sys.prefix; ``base`` is sys.base_prefix.
        build: sysconfig's variables that say how extensions are compiled: CC, CXX, LDSHARED, CFLAGS, LDFLAGS, ...
        header: Whether Python.h is in ``include``.
        path: sys.path.
        user_site: The user's own site-packages, where it is in use.
        closed: Folders of ``path`` that this user may not read.
    """

    executable: str
    real: str | None = None
    version: str | None = None
    kind: Literal["venv", "conda", "system"] | None = None
    prefix: str | None = None
    base: str | None = None
    build: dict[str, str] = Field(default_factory=dict)
    include: str | None = None
    header: bool | None = None
    path: tuple[str, ...] = ()
    user_site: str | None = None
    closed: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()


class Tool(Seen):
    """A program as the PATH (or a variable) finds it.

    Attributes:
        role: Who would call it: ``shell`` (c++, g++, gcc, cc, nvcc, ninja, ld by PATH), ``CC``/``CXX``/``CUDAHOSTCXX``
            (the variable), ``sysconfig`` (Python's extension compiler), ``cuda_home`` (nvcc of CUDA_HOME).
        version: The number alone, such as 12.2.0; ``says`` is the first line of what it prints.
    """

    name: str
    role: str
    path: str | None = None
    real: str | None = None
    version: str | None = None
    says: str | None = None
    error: str | None = None


class Compile(Seen):
    """A small C++ program compiled and run with one compiler."""

    compiler: str
    works: bool
    error: str | None = None


class Alternative(Seen):
    """A link of update-alternatives: /usr/bin/gcc -> /etc/alternatives/gcc -> value."""

    name: str
    link: str
    value: str


class Toolkit(Seen):
    """A CUDA toolkit: a folder with nvcc or with headers.

    Attributes:
        found_by: CUDA_HOME, CUDA_PATH, nvcc (on PATH), default (/usr/local/cuda*), wheel, conda; several by comma.
        version: Such as 12.4, of nvcc or version.json.
        nvcc: Whether bin/nvcc is there and can be executed.
        headers: Which of cuda_runtime.h, curand_kernel.h, cublas_v2.h, ... are there.
        libraries: Link names in lib64 or lib: libcudart.so, libcurand.so, libcublas.so, ...
        taken_by_torch: torch.utils.cpp_extension takes this one for CUDA_HOME.
    """

    path: str
    real: str | None = None
    found_by: str = ""
    version: str | None = None
    nvcc: bool = False
    headers: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    lib: str | None = None
    taken_by_torch: bool = False


class Libaio(Seen):
    """libaio, for DeepSpeed's async_io.

    Attributes:
        header: Whether the compiler's default folders (or CFLAGS' -I) hold libaio.h.
        link: libaio.so, the name that -laio asks for.
        path: libaio.so.1 (or .so.1t64) as the loader finds it.
        provides: Its symbol versions, such as LIBAIO_0.4.
    """

    header: bool | None = None
    link: str | None = None
    path: str | None = None
    provides: tuple[str, ...] = ()
