"""Where a rank's time goes: the parts of a step, one after another, and what happens inside them.

The time between two borders belongs to one part, so the parts of a step can never be more than the step. On the CPU a
border is a reading of the clock; on a GPU it is an event on the stream, and the host waits once, at the end of the
step: reading a clock there would time the launches, and waiting at every border would take away the overlap.
Standard library only; loaded by its path.
"""

import contextlib
import time

PARTS = ("data_wait", "forward", "backward", "reduction", "optimizer", "checkpoint")


class Clock:
    """The parts of the present step.

    A step begins where the last one ended: what a training does between two steps is in the figures, too.

    Attributes:
        cuda: ``torch.cuda`` where the training is on a GPU; to be set before the first step.
        cpu: Seconds of CPU that all threads of this process used within each span of the step that ended last.
    """

    def __init__(self, cuda=None):
        self.cuda = cuda
        self.cpu = {}
        self._borders = []
        self._spans = []
        self._open = []
        self._origin = time.time() - time.monotonic()
        self.began = None

    def start(self):
        """The first step begins now."""
        if self.cuda is not None:
            self.cuda.synchronize()
        self._borders, self._spans, self._open = [(self._mark(), None)], [], []
        self.began = time.monotonic()

    @property
    def inside(self):
        """The part that goes on; None is between two."""
        return self._open[-1] if self._open else None

    @contextlib.contextmanager
    def part(self, name):
        """A part; one within another takes its own time out of it. Before the first step there is none."""
        if self.began is None:
            yield
            return
        self._open.append(name)
        self._borders.append((self._mark(), name))
        try:
            yield
        finally:
            self._open.pop()
            self._borders.append((self._mark(), self.inside))

    @contextlib.contextmanager
    def span(self, name):
        """Something that happens inside a part, and is taken out of nothing."""
        if self.began is None:
            yield
            return
        began, used = self._mark(), time.process_time()
        try:
            yield
        finally:
            self._spans.append((name, began, self._mark(), time.process_time() - used))

    def end(self):
        """The step ends, and the next one begins.

        Returns when it began (seconds since 1970, so that every rank and the samples have one axis), its seconds, the
        parts', and what happened inside.
        """
        last = self._mark()
        if self.cuda is not None:
            last.synchronize()
        parts, inside, self.cpu = {}, {}, {}
        marks = [*self._borders, (last, None)]
        for (mark, name), (after, _) in zip(marks, marks[1:]):  # noqa: B905, RUF007 (Python 3.7)
            if name is not None:
                parts[name] = parts.get(name, 0.0) + self._between(mark, after)
        for name, began, ended, used in self._spans:
            inside[name] = inside.get(name, 0.0) + self._between(began, ended)
            self.cpu[name] = self.cpu.get(name, 0.0) + used
        seconds, at = self._between(marks[0][0], last), self._origin + self.began
        # Where the step ends inside of a part (a checkpoint that ends a step) the part goes on in the next one.
        self._borders, self._spans = [(last, self.inside)], []
        self.began = time.monotonic()
        return at, seconds, parts, inside

    def _mark(self):
        if self.cuda is None:
            return time.perf_counter()
        event = self.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, one, two):
        return two - one if self.cuda is None else one.elapsed_time(two) / 1000.0


class NoClock:
    """Measures whole steps only: what profiling itself costs is seen against it."""

    inside = None

    def __init__(self):
        self.cpu = {}

    def start(self):
        self._began = time.perf_counter()

    @contextlib.contextmanager
    def part(self, name):
        yield

    span = part

    def end(self):
        now = time.perf_counter()
        seconds, self._began = now - self._began, now
        return time.time() - seconds, seconds, {}, {}
