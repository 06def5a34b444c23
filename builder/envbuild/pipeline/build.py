"""build, smoke and promote: the three ways to a name."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from envbuild import evidence
from envbuild.engines import ImageInfo, Run
from envbuild.errors import EngineError, GateError, InputError
from envbuild.events import Note
from envbuild.model import Environment, Level
from envbuild.pipeline import performance, room, turns
from envbuild.pipeline.current import Result, current
from envbuild.pipeline.gates import ALL
from envbuild.pipeline.image import base_label, build_image
from envbuild.pipeline.known import Known, place, remember
from envbuild.pipeline.locate import locate, not_a_rows_own, own_target, require_level
from envbuild.pipeline.names import Names, derived_names, give, names
from envbuild.pipeline.offering import offer
from envbuild.pipeline.prepare import Target, find_lock, prepare, require_clean
from envbuild.pipeline.proof import Proof, Wish
from envbuild.pipeline.prove import SMOKE_SECONDS, foresee, note_unsigned, prove, proven
from envbuild.pipeline.runs import exclusive, running
from envbuild.pipeline.workbench import Workbench

BUILD_SECONDS = 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How a build is wanted.

    Attributes:
        no_cache: Run every step again, the base included.
        timeout: Limit of the image build, in seconds.
        smoke_timeout: Limit of the smoke, in seconds.
        allow_level: Tag at this level although the row requires more; the tag then says so.
        gpus: The GPUs to prove it on: ``all``, ``none``, or by UUID or index.
        force: Prove it again although there is evidence.
        compilers: How many may run at once; None is as many as the engine's machine can run.
    """

    no_cache: bool = False
    timeout: float = BUILD_SECONDS
    smoke_timeout: float = SMOKE_SECONDS
    allow_level: Level | None = None
    gpus: tuple[str, ...] = ALL
    force: bool = False
    compilers: int | None = None

    @property
    def wish(self) -> Wish:
        """What it means for the proof."""
        return Wish(timeout=self.smoke_timeout, gpus=self.gpus, force=self.force, allow_level=self.allow_level)


def up_to_date(bench: Workbench, target: Target, *, touch: bool = True) -> Result | None:
    """The tagged image with evidence from the current suite at the required level, or None; see ``current``."""
    return current(bench, Known.of(target), touch=touch)


def build(bench: Workbench, name: str, options: BuildOptions) -> Result:
    """Build a row's image, prove it, and only then give it its names.

    Raises:
        FindingsError: The row breaks a rule (exit 1), or the image does not pass (exit 5).
        BuildError: A build step failed (exit 4).
        GateError: The evidence does not reach the required level; or the image is not known to be as fast as the row
            requires (exit 5): then it has the name of its content, and ``validated`` does not move.
        EngineError: Engine, network or disk (exit 3).
    """
    began = time.monotonic()
    env = bench.matrix.get(name)
    require_clean(bench, env)
    found = find_lock(bench, env)
    if found is None or not found[1].resolved:
        # Locking writes a file; without an engine it would be all that came of it.
        bench.need_engine()
    asked = place(bench, name)
    target = prepare(bench, name, lock_missing=True)
    remember(bench, target, asked)
    if not (options.no_cache or options.force):
        done = up_to_date(bench, target)
        if done is not None:
            return done
    wanted = names(target.env, target.rendering.id8, bench.site.registry.name)
    with exclusive(bench, target.rendering.target_id), running(bench) as run:
        if not options.no_cache:
            # The run that was waited for may have done the work.
            done = None if options.force else up_to_date(bench, target)
            if done is not None:
                return done
        elif (tagged := bench.engine.image(wanted.proven)) is not None:
            raise GateError(
                f"{wanted.proven} exists; a rebuild gives other bytes, and an id tag is never overwritten",
                hint="Remove the name first, if that is what you want: "
                f"{bench.engine.kind} rmi {wanted.proven} ({tagged.id[:19]})",
            )
        ref, how = _image_of(bench, run, target, wanted, options)
        base_used = base_label(bench, ref)
        proof = prove(
            bench, run, target.env, ref,
            target_id=target.rendering.target_id, base=base_used, wish=options.wish,
        )  # fmt: skip
        if not proof.reused:
            note_unsigned(bench)
        # By id: a name may have moved since the image was looked at.
        info = _present(bench, proof.engine_id)
        require_level(target.env, proof.level, ref, allowed=options.allow_level, missing=proof.missing, again=name)
        tags = give(
            bench.engine, info, wanted, level=proof.level, required=target.env.required_level,
            first=lambda: _compared(bench, target, info, ref, wanted, force=options.force),
        )  # fmt: skip
        _untag_candidate(bench, target, ref)
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


def smoke(bench: Workbench, reference: str, *, row: str | None, wish: Wish) -> tuple[Proof, str]:
    """Inspect and smoke an image, write the evidence, tag nothing; returns the proof and the image's name.

    Where the row requires it, it is compared with the row's baselines behind that.

    Args:
        bench: The surroundings.
        reference: An image, or the name of a row, which means its candidate or its proven image.
        row: The row whose claims count; without it the image's label says.
        wish: How it is wanted.

    Raises:
        FindingsError: The image does not pass, or this host cannot show what the row requires (exit 5).
        InputError: It is not known which row the image claims to be.
        GateError: There is no such image, or the evidence, which was written, is below what the row requires, or it is
            not known to be as fast as the row requires (exit 5).
    """
    ref, info, env = locate(bench, reference, row)
    with running(bench) as run:
        proof = prove(
            bench, run, env, ref, target_id=own_target(env, info), base=base_label(bench, ref), wish=wish
        )  # fmt: skip
    if not proof.reused:
        note_unsigned(bench)
    again = f"{reference} --row {row}" if row and row != reference else reference
    require_level(env, proof.level, ref, again=again, allowed=wish.allow_level, missing=proof.missing)
    if proof.level.rank >= env.required_level.rank:
        proof = dataclasses.replace(proof, compared=_held(bench, env, info, ref, again=again, force=wish.force))
    return proof, ref


def promote(bench: Workbench, reference: str, *, row: str | None, allow_level: Level | None = None) -> Result:
    """Give an image the names that its evidence allows. Runs nothing.

    Raises:
        GateError: No evidence, or too little; or it is not known to be as fast as the row requires (exit 5).
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
    own = own_target(env, info)
    if own is None and info.id.removeprefix("sha256:").startswith(ref.removeprefix("sha256:")):
        raise InputError(
            f"{ref} is an id; an image is promoted by its name", hint=f"Give it one: {bench.engine.kind} tag {ref} NAME"
        )
    if own:
        wanted = names(env, own[:8], bench.site.registry.name)
    else:
        wanted = derived_names(ref, env, record.image.config_digest)
        not_a_rows_own(bench, ref, wanted)
    again = f"{reference} --row {row}" if row and row != reference else reference
    require_level(env, level, ref, again=again, allowed=allow_level)
    tags = give(
        bench.engine, info, wanted, level=level, required=env.required_level,
        first=lambda: performance.require(bench, env, info, ref, again=again),
    )  # fmt: skip
    return Result(
        environment=env.name, target_id=own, status="promoted", image=info.id, tags=tags, level=level,
        evidence=path, seconds=0.0,
    )  # fmt: skip


def _compared(
    bench: Workbench, target: Target, info: ImageInfo, ref: str, wanted: Names, *, force: bool
) -> None:  # fmt: skip
    """What a row requires of an image's speed, before ``validated`` moves."""
    try:
        _held(bench, target.env, info, wanted.proven, again=target.env.name, force=force)
    except BaseException:
        # It has the name of its content, and is found by that.
        _untag_candidate(bench, target, ref)
        raise


def _held(
    bench: Workbench, env: Environment, info: ImageInfo, ref: str, *, again: str, force: bool
) -> tuple[evidence.Compared, ...]:
    if env.performance is None:
        return ()
    from envbuild.pipeline.versus import hold

    return hold(bench, env, info, ref, again=again, force=force)


def _untag_candidate(bench: Workbench, target: Target, ref: str) -> None:
    if ref == target.candidate:
        bench.engine.untag(target.candidate)


def _present(bench: Workbench, ref: str) -> ImageInfo:
    info = bench.engine.image(ref)
    if info is None:
        raise EngineError(f"{ref} disappeared from the engine during the run")
    return info


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
            hint=f"If it may go, remove its name, and build again: {bench.engine.kind} rmi {wanted.proven}",
        )
    foresee(bench, target.env, options.wish)
    performance.foresee(bench, target.env)
    if not options.no_cache and (elsewhere := offer(bench, target.env, wanted)):
        bench.sink(Note(message=elsewhere))
    room.require(bench, [target])
    machine = bench.engine.info()
    compilers = options.compilers or room.compilers(cpus=machine.cpus, memory_bytes=machine.memory_bytes)
    with turns.building(bench):
        build_image(bench, run, target, no_cache=options.no_cache, timeout=options.timeout, compilers=compilers)
    evidence.remember_built(target.rendering.target_id, _present(bench, target.candidate).id)
    return target.candidate, "built"


__all__ = ["BuildOptions", "build", "locate", "promote", "smoke", "up_to_date"]
