"""Templates are a project's own programs: they run in a sandbox, and whatever they raise is the template's fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from envbuild.errors import InputError


def text(
    templates: Path, name: str, values: Mapping[str, object], filters: Mapping[str, Callable[[str], str]] | None = None
) -> str:
    """Render one template.

    Raises:
        InputError: The template is missing or wrong.
    """
    import jinja2  # slow to import; most commands do not render
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # Sandboxed: `list` renders too, and a project that was merely cloned must not run code of its own.
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        # The result is a program; every value was held to a pattern when the matrix was read.
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=False,
        lstrip_blocks=False,
    )
    environment.filters.update(filters or {})
    try:
        return environment.get_template(name).render(**values)
    except jinja2.TemplateNotFound as error:
        raise InputError(f"{templates / str(error.name)}: this template is missing") from error
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"{error.filename or error.name}:{error.lineno}: {error.message}") from error
    except Exception as error:
        raise InputError(f"{templates / name}: {error}") from error


def file(path: Path) -> bytes:
    """A file that is handed on as it is.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
