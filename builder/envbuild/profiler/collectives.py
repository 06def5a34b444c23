"""Counts and times every collective that DeepSpeed starts.

DeepSpeed's comms_logger cannot be believed: since 0.18.3 its latencies are cumulative, and of an operation that goes on
behind the call (gloo, async_op) it times the call alone. So the calls of its backend are wrapped here, one level below.
Counting costs a dictionary's entry and is done in every pass; timing waits for every operation, which takes all overlap
away, and is a pass of its own. Standard library only, Python 3.7 and later; loaded by its path.
"""

import functools
import time

# Methods of deepspeed.comm.torch.TorchBackend, by the name that torch gives the operation; the older names of one
# operation count as the newer.
OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce_coalesced",
    "inference_all_reduce": "inference_all_reduce",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter_tensor",
    "reduce_scatter_base": "reduce_scatter_tensor",
    "broadcast": "broadcast",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather_into_tensor",
    "all_gather_base": "all_gather_into_tensor",
    "all_gather_coalesced": "all_gather_coalesced",
    "all_to_all_single": "all_to_all_single",
    "all_to_all": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
    "isend": "isend",
    "irecv": "irecv",
    "barrier": "barrier",
}
# What a rank gives, and what it gets: the message of a gather is what it gets, as in NCCL's own tests.
_WHOLE = {
    "all_gather_into_tensor": ("output_tensor", 0),
    "all_gather_coalesced": ("output_tensors", 0),
    "all_gather": ("tensor_list", 0),
    "reduce_scatter_tensor": ("input_tensor", 1),
    "reduce_scatter": ("input_list", 1),
    "all_reduce_coalesced": ("tensors", 0),
    "all_to_all_single": ("input", 1),
    "all_to_all": ("input_tensor_list", 1),
}


class Counted:
    """The collectives since it was last emptied.

    Attributes:
        timed: Wait for each, and measure it.
        seconds: Time in collectives, all together.
    """

    def __init__(self, torch, cuda=None):
        self._torch = torch
        self._cuda = cuda
        self._depth = 0
        self.timed = False
        self.empty()

    def empty(self):
        """Begin again; returns what there was: by operation, message size and group size."""
        before = getattr(self, "rows", {})
        self.rows, self.seconds = {}, 0.0
        return before

    def install(self, backend):
        """Wrap an object of DeepSpeed's backend."""
        if getattr(backend, "envbuild_counted", False):
            return
        backend.envbuild_counted = True
        for method, operation in OPERATIONS.items():
            inner = getattr(backend, method, None)
            if callable(inner):
                setattr(backend, method, self._wrapped(inner, operation))

    def _wrapped(self, inner, operation):
        @functools.wraps(inner)
        def wrapped(*args, **kwargs):
            # One operation of the backend may be made of others.
            if self._depth:
                return inner(*args, **kwargs)
            self._depth += 1
            try:
                return self._called(inner, operation, args, kwargs)
            finally:
                self._depth -= 1

        return wrapped

    def _called(self, inner, operation, args, kwargs):
        key = (operation, self._bytes(operation, args, kwargs), self._size(kwargs.get("group")))
        if not self.timed:
            answer = inner(*args, **kwargs)
            self._note(key, None)
            return answer
        if self._cuda is not None:
            self._cuda.synchronize()
        began = time.perf_counter()
        answer = inner(*args, **kwargs)
        if hasattr(answer, "wait"):
            answer.wait()
        if self._cuda is not None:
            self._cuda.synchronize()
        self._note(key, time.perf_counter() - began)
        return answer

    def _note(self, key, seconds):
        row = self.rows.setdefault(key, [0, 0.0])
        row[0] += 1
        if seconds is not None:
            row[1] += seconds
            self.seconds += seconds

    def _bytes(self, operation, args, kwargs):
        name, place = _WHOLE.get(operation, ("tensor", 0))
        value = kwargs.get(name, args[place] if len(args) > place else None)
        values = value if isinstance(value, (list, tuple)) else [value]
        return sum(each.numel() * each.element_size() for each in values if self._torch.is_tensor(each))

    def _size(self, group):
        try:
            return self._torch.distributed.get_world_size(group)
        except (RuntimeError, ValueError, TypeError):
            return None


def lines(rows, timed):
    """Rows for a report."""
    return [
        {
            "op": operation,
            "message_bytes": size,
            "group_size": group,
            "count": count,
            "bytes": size * count,
            "seconds": seconds if timed else None,
        }
        for (operation, size, group), (count, seconds) in sorted(rows.items(), key=lambda each: str(each[0]))
    ]
