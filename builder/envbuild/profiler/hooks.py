"""Puts the clock around what DeepSpeed's engine does, for our own loop and for anybody's.

The engine's own timers are not used: they know no data wait, ``wall_clock_breakdown`` prints a line in every step, and
stage 3 reads and resets its optimizer's timers within the step. What they say is kept beside ours where a training has
them switched on. Standard library only, Python 3.7 and later; loaded by its path.
"""

import functools

_MARK = "envbuild_hooked"


class Hooks:
    """Attributes:
    clock: A Clock.
    swaps: A Swaps of the same clock.
    losses: Those of this step's backward passes.
    timers: What DeepSpeed's own timers said in this step, in milliseconds, by their names.
    after_step: Called with the engine when it has made a step of the optimizer.
    before: Called with the engine before its first forward pass.
    """

    def __init__(self, clock, swaps):
        self.clock = clock
        self.swaps = swaps
        self.timers = {}
        self.losses = []
        self.after_step = None
        self.before = None
        self._known = set()

    def install(self, engine_class):
        """Wrap the methods of DeepSpeedEngine, once."""
        if getattr(engine_class, _MARK, False):
            return
        setattr(engine_class, _MARK, True)
        self._wrap(engine_class, "forward", "forward", first=self._meet)
        self._wrap(engine_class, "backward", "backward", first=self._lose)
        self._wrap(engine_class, "allreduce_gradients", "reduction")
        self._wrap(engine_class, "save_checkpoint", "checkpoint")
        self._wrap_step(engine_class)

    def _wrap(self, owner, name, part, first=None):
        inner = getattr(owner, name, None)
        if inner is None:
            return

        @functools.wraps(inner)
        def wrapped(engine, *args, **kwargs):
            if first is not None:
                first(engine, *args)
            # What calls itself (an evaluation inside a forward pass, for one) is one part, not two.
            if self.clock.inside == part:
                return inner(engine, *args, **kwargs)
            with self.clock.part(part):
                return inner(engine, *args, **kwargs)

        setattr(owner, name, wrapped)

    def _wrap_step(self, owner):
        inner = owner.step

        @functools.wraps(inner)
        def step(engine, *args, **kwargs):
            before = getattr(engine, "global_steps", None)
            with self.clock.part("optimizer"):
                answer = inner(engine, *args, **kwargs)
            if self.after_step is not None and getattr(engine, "global_steps", None) != before:
                self.after_step(engine)
            return answer

        owner.step = step

    def _lose(self, engine, loss=None, *more):
        # Read at the end of the step, when the device has been waited for anyway.
        if hasattr(loss, "detach") and loss.numel() == 1:
            self.losses.append(loss.detach())

    def take_loss(self):
        """The mean loss since the last call; None where none was seen."""
        said, self.losses = self.losses, []
        return float(sum(said)) / len(said) if said else None

    def _meet(self, engine, *given):
        """What can be wrapped only when the engine is whole: its optimizer's kernel, swapper, and timers' log."""
        if id(engine) in self._known:
            return
        self._known.add(id(engine))
        whole = getattr(engine, "optimizer", None)
        # Without ZeRO there is nothing around it.
        basic = getattr(whole, "optimizer", whole)
        if basic is not None and hasattr(basic, "step"):
            inner = basic.step

            @functools.wraps(inner)
            def kernel(*args, **kwargs):
                with self.clock.span("optimizer_kernel"):
                    return inner(*args, **kwargs)

            basic.step = kernel
        self.swaps.install(engine)
        self._keep_timers(getattr(engine, "timers", None))
        if self.before is not None:
            self.before(engine)

    def _keep_timers(self, timers):
        log = getattr(timers, "log", None)
        if log is None or not hasattr(timers, "get_timers"):
            return

        def kept(names, *args, **kwargs):
            # Before it is reset by being logged.
            known = timers.get_timers()
            for name in [names] if isinstance(names, str) else list(names):
                if name in known:
                    self.timers[name] = self.timers.get(name, 0.0) + known[name].elapsed(reset=False)
            return log(names, *args, **kwargs)

        timers.log = kept

    def norm(self, engine):
        """The norm of the whole gradient, where the engine knows it."""
        try:
            value = engine.get_global_grad_norm()
            return None if value is None else float(value)
        except (AttributeError, TypeError, ValueError, RuntimeError):
            return None

    def seen(self, inside):
        """What a step's line says beside its times, since the last call; ``inside`` gets the swapper's."""
        swapping, moved = self.swaps.take()
        if swapping is not None:
            inside["swap"] = swapping
        return {"inside": inside, "cpu": self.clock.cpu, "disk": moved, "timers": self.take_timers()}

    def take_timers(self):
        """What the timers said since the last call."""
        said, self.timers = self.timers, {}
        return said
