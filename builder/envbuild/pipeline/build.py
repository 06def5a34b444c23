"""build, smoke and promote: the three ways to a name."""

from __future__ import annotations

import time
from dataclasses import dataclass

from envbuild import evidence
from envbuild.engines import ImageInfo, Run
from envbuild.errors import EngineError, GateError, InputError
from envbuild.events import Note
from envbuild.matrix.merge import near
from envbuild.model import Environment, Level
from envbuild.pipeline.current import Result, current
from envbuild.pipeline.image import base_label, build_image
from envbuild.pipeline.known import Known, place, remember
from envbuild.pipeline.names import Names, derived_names, give, is_reference, names
from envbuild.pipeline.prepare import Target, find_lock, prepare, require_clean
from envbuild.pipeline.prove import SMOKE_SECONDS, Proof, note_unsigned, prove, proven
from envbuild.pipeline.runs import exclusive, running
from envbuild.pipeline.workbench import Workbench
from envbuild.plan import LABEL_ENV, LABEL_TARGET

BUILD_SECONDS = 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How a build is wanted.

    Attributes:
        no_cache: Run every step again, the base included.
        timeout: Limit of the image build, in seconds.
        smoke_timeout: Limit of the smoke, in seconds.
        allow_level: Tag at this level although the row requires more; the tag then says so.
    """

    no_cache: bool = False
    timeout: float = BUILD_SECONDS
    smoke_timeout: float = SMOKE_SECONDS
    allow_level: Level | None = None


def up_to_date(bench: Workbench, target: Target, *, touch: bool = True) -> Result | None:
    """The tagged image with evidence from the current suite at the required level, or None; see ``current``."""
    return current(bench, Known.of(target), touch=touch)


def build(bench: Workbench, name: str, options: BuildOptions) -> Result:
    """Build a row's image, prove it, and only then give it its names.

    Raises:
        FindingsError: The row breaks a rule (exit 1), or the image does not pass (exit 5).
        BuildError: A build step failed (exit 4).
        GateError: The evidence does not reach the required level (exit 5).
        EngineError: Engine, network or disk (exit 3).
    """
    began = time.monotonic()
    env = bench.matrix.get(name)
    require_clean(bench, env)
    if find_lock(bench, env) is None:
        # Locking writes a file; without an engine it would be all that came of it.
        bench.need_engine()
    asked = place(bench, name)
    target = prepare(bench, name, lock_missing=True)
    remember(bench, target, asked)
    if not options.no_cache:
        done = up_to_date(bench, target)
        if done is not None:
            return done
    wanted = names(target.env, target.rendering.id8, bench.site.registry.name)
    with exclusive(bench, target.rendering.target_id), running(bench) as run:
        if not options.no_cache:
            # The run that was waited for may have done the work.
            done = up_to_date(bench, target)
            if done is not None:
                return done
        elif (tagged := bench.engine.image(wanted.proven)) is not None:
            raise GateError(
                f"{wanted.proven} exists; a rebuild gives other bytes, and an id tag is never overwritten",
                hint=f"Remove the name first, if that is what you want: docker rmi {wanted.proven} ({tagged.id[:19]})",
            )
        ref, how = _image_of(bench, run, target, wanted, options)
        base_used = base_label(bench, ref)
        proof = prove(
            bench, run, target.env, ref,
            target_id=target.rendering.target_id, base=base_used, timeout=options.smoke_timeout,
        )  # fmt: skip
        note_unsigned(bench)
        # By id: a name may have moved since the image was looked at.
        info = _present(bench, proof.engine_id)
        tags = _name(bench, target.env, info, ref, wanted, proof.level, options.allow_level)
        if ref == target.candidate and target.candidate not in tags:
            bench.engine.untag(target.candidate)
    return Result(
        environment=name,
        target_id=target.rendering.target_id,
        status=how,
        image=info.id,
        tags=tags,
        level=proof.level,
        evidence=proof.path,
        seconds=time.monotonic() - began,
    )


def smoke(bench: Workbench, reference: str, *, row: str | None, timeout: float = SMOKE_SECONDS) -> tuple[Proof, str]:
    """Inspect and smoke an image, write the evidence, tag nothing; returns the proof and the image's name.

    Args:
        bench: The surroundings.
        reference: An image, or the name of a row, which means its candidate or its proven image.
        row: The row whose claims count; without it the image's label says.
        timeout: Limit of the smoke, in seconds.

    Raises:
        FindingsError: The image does not pass (exit 5).
        InputError: It is not known which row the image claims to be.
        GateError: There is no such image.
    """
    ref, info, env = locate(bench, reference, row)
    with running(bench) as run:
        proof = prove(
            bench, run, env, ref,
            target_id=_own_target(bench, env, info), base=base_label(bench, ref), timeout=timeout,
        )  # fmt: skip
    note_unsigned(bench)
    return proof, ref


def promote(bench: Workbench, reference: str, *, row: str | None, allow_level: Level | None = None) -> Result:
    """Give an image the names that its evidence allows. Runs nothing.

    Raises:
        GateError: No evidence, or too little (exit 5).
        InputError: An image of one's own is given by its id, which is no name that a tag could be put to.
    """
    ref, info, env = locate(bench, reference, row)
    found = proven(info, env)
    if found is None:
        option = f" --row {row}" if row else ""
        raise GateError(
            f"{ref} has no evidence as {env.name}, as the row is today, from the current suite",
            hint=f"Prove it first: envbuild smoke {reference}{option}",
        )
    level, record, path = found
    own = _own_target(bench, env, info)
    if own is None and info.id.removeprefix("sha256:").startswith(ref.removeprefix("sha256:")):
        raise InputError(
            f"{ref} is an id; an image is promoted by its name", hint=f"Give it one: docker tag {ref} NAME"
        )
    if own:
        wanted = names(env, own[:8], bench.site.registry.name)
    else:
        wanted = derived_names(ref, env, record.image.config_digest)
        _not_a_rows_own(bench, ref, wanted)
    tags = _name(bench, env, info, ref, wanted, level, allow_level)
    return Result(
        environment=env.name, target_id=own, status="promoted", image=info.id, tags=tags, level=level,
        evidence=path, seconds=0.0,
    )  # fmt: skip


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
        for ref in (*wanted.own, target.candidate):
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
            hint=f"{guess} Rows: {known}. Images: docker images 'envbuild/*'".strip(),
        )
    claimed = row or dict(info.labels).get(LABEL_ENV)
    if claimed is None:
        raise InputError(
            f"{reference} does not say which row it is: it was not built by envbuild, nor derived from its images",
            hint="Say it: --row ENV",
        )
    return reference, info, bench.matrix.get(claimed)


def _name(
    bench: Workbench,
    env: Environment,
    info: ImageInfo,
    ref: str,
    wanted: Names,
    level: Level,
    allowed: Level | None,
) -> tuple[str, ...]:
    required = env.required_level
    if level.rank < required.rank and (allowed is None or level.rank < allowed.rank):
        raise GateError(
            f"{ref} has evidence of level {level.value}; the row {env.name} requires {required.value}",
            hint=f"On a machine with a GPU of the row: envbuild smoke {ref}, then envbuild promote {env.name}. "
            f"Or tag it as what it is: --allow-level {level.value}",
        )
    return give(bench.engine, info, wanted, level=level, required=required)


def _not_a_rows_own(bench: Workbench, ref: str, wanted: Names) -> None:
    """A derived image gets names of its own: a row's names say that the row's inputs made the image."""
    for row in bench.matrix.environments:
        if f"/{wanted.repository}".endswith(f"/envbuild/{row}"):
            raise GateError(
                f"{ref} is not what the row {row} builds, and {wanted.repository} is the name of what it builds",
                hint=f"Give it a name of your own first: docker tag {ref} my-team/{row}:1",
            )


def _present(bench: Workbench, ref: str) -> ImageInfo:
    info = bench.engine.image(ref)
    if info is None:
        raise EngineError(f"{ref} disappeared from the engine during the run")
    return info


def _own_target(bench: Workbench, env: Environment, info: ImageInfo) -> str | None:
    """The target id when the image itself is what the row builds; None for one that was derived from it."""
    labels = dict(info.labels)
    target = labels.get(LABEL_TARGET)
    # A derived image inherits its parent's labels, and anybody can move a name: the build's own note decides.
    own = target is not None and labels.get(LABEL_ENV) == env.name and evidence.is_built(target, info.id)
    return target if own else None


def _image_of(bench: Workbench, run: Run, target: Target, wanted: Names, options: BuildOptions) -> tuple[str, str]:
    if not options.no_cache:
        for ref in (*wanted.own, target.candidate):
            info = bench.engine.image(ref)
            if info is not None and evidence.is_built(target.rendering.target_id, info.id):
                bench.sink(Note(message=f"{ref} is already built; the current suite has yet to prove it"))
                return ref, "proven"
    if (taken := bench.engine.image(wanted.proven)) is not None:
        raise GateError(
            f"{wanted.proven} names an image that no build of this store made ({taken.id[:19]}); "
            "it is never overwritten",
            hint=f"If it may go, remove its name, and build again: docker rmi {wanted.proven}",
        )
    build_image(bench, run, target, no_cache=options.no_cache, timeout=options.timeout)
    evidence.remember_built(target.rendering.target_id, _present(bench, target.candidate).id)
    return target.candidate, "built"
