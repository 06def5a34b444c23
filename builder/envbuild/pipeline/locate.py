"""Finding the image that is meant, and the row that it claims to be."""

from __future__ import annotations

from envbuild import evidence
from envbuild.engines import ImageInfo
from envbuild.errors import GateError, InputError
from envbuild.matrix.merge import near
from envbuild.model import Environment, Finding, Level
from envbuild.pipeline.names import Names, is_reference, names
from envbuild.pipeline.prepare import FindingsError, prepare
from envbuild.pipeline.workbench import Workbench
from envbuild.plan import LABEL_ENV, LABEL_TARGET


def locate(bench: Workbench, reference: str, row: str | None) -> tuple[str, ImageInfo, Environment]:
    """Find an image by its name or by its row's, and the row it claims to be.

    Raises:
        GateError: There is no such image.
        InputError: The row is not known, or no image could have that name.
    """
    if reference in bench.matrix.environments:
        if row not in (None, reference):
            raise InputError(
                f"{reference} is a row, and --row says {row}", hint="Name an image to hold it to another row's claims."
            )
        target = prepare(bench, reference, checked=False)
        wanted = names(target.env, target.rendering.id8, bench.site.registry.name)
        # An image that was built before the site had a registry has the same names without it.
        plain = names(target.env, target.rendering.id8, None)
        for ref in dict.fromkeys((*wanted.own, wanted.candidate, *plain.own, target.candidate)):
            info = bench.engine.image(ref)
            if info is not None:
                return ref, info, target.env
        raise GateError(
            f"{reference} has no image of its current inputs (neither {wanted.proven} nor a candidate)",
            hint=f"Build it: envbuild build {reference}",
        )
    known = ", ".join(bench.matrix.environments)
    guess = near(reference, bench.matrix.environments).removeprefix("; ").capitalize()
    if not is_reference(reference):
        raise InputError(
            f"{reference!r} is neither a row nor the name of an image", hint=f"{guess} Rows: {known}".strip()
        )
    info = bench.engine.image(reference)
    if info is None:
        raise GateError(
            f"there is no image {reference}, and no row of that name",
            hint=f"{guess} Rows: {known}. Images: {bench.engine.kind} images 'envbuild/*'".strip(),
        )
    claimed = row or dict(info.labels).get(LABEL_ENV)
    if claimed is None:
        raise InputError(
            f"{reference} does not say which row it is: it was not built by envbuild, nor derived from its images",
            hint="Say it: --row ENV",
        )
    return reference, info, bench.matrix.get(claimed)


def own_target(env: Environment, info: ImageInfo) -> str | None:
    """The target id when the image itself is what the row builds; None for one that was derived from it."""
    labels = dict(info.labels)
    target = labels.get(LABEL_TARGET)
    # A derived image inherits its parent's labels, and anybody can move a name: the build's own note decides.
    own = target is not None and labels.get(LABEL_ENV) == env.name and evidence.is_built(target, info.id)
    return target if own else None


def require_level(
    env: Environment,
    level: Level,
    ref: str,
    *,
    again: str,
    allowed: Level | None = None,
    missing: tuple[Finding, ...] = (),
) -> None:
    """Go on only with a level that the row requires, or that somebody allowed.

    Args:
        env: The row.
        level: What the image has.
        ref: The image.
        again: What `envbuild smoke` and `envbuild promote` are to be told to go on with it.
        allowed: A lower level that is enough.
        missing: What stood in the way of more.

    Raises:
        GateError: It has less (exit 5); with ``missing`` a FindingsError that holds it.
    """
    required = env.required_level
    if level.rank >= required.rank or (allowed is not None and level.rank >= allowed.rank):
        return
    message = f"{ref} has evidence of level {level.value}; the row {env.name} requires {required.value}"
    hint = (
        f"Nothing was tagged, and the image stays. On a host with a GPU of the row: envbuild smoke {again}, then "
        f"envbuild promote {again}. Or tag it as what it is: --allow-level {level.value}"
    )
    if missing:
        raise FindingsError(message, missing, hint=hint, exit_code=5)
    raise GateError(message, hint=hint)


def not_a_rows_own(bench: Workbench, ref: str, wanted: Names) -> None:
    """A derived image gets names of its own: a row's names say that the row's inputs made the image."""
    for row in bench.matrix.environments:
        if f"/{wanted.repository}".endswith(f"/envbuild/{row}"):
            raise GateError(
                f"{ref} is not what the row {row} builds, and {wanted.repository} is the name of what it builds",
                hint=f"Give it a name of your own first: {bench.engine.kind} tag {ref} my-team/{row}:1",
            )
