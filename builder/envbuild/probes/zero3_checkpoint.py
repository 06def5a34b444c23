"""Saves a checkpoint, goes on, loads it into an engine with other weights, goes on again: are both ways one?

Loaded by its path, like ``common.py``.
"""

import os
import time

STEPS = 3
_TAG = "envbuild"
_CLIENT = "envbuild_step"


def there_and_back(job, figures, train, held, build, batch, folder, prefix="checkpoint "):
    """Everything of it; what was seen goes into ``figures``.

    Args:
        train: The module with the steps.
        held: The engine that has been trained so far, in a list; afterwards the one that was loaded.
        build: Makes a network of other weights, its plain twin, and an engine of it.
        batch: From a number to this rank's micro-batches of that step.
    """
    phases = job.phases
    engine = held[0]
    phases.enter(prefix + "save")
    before = _Snapshot(job, engine)
    figures["step"] = before.global_steps
    began = time.monotonic()
    engine.save_checkpoint(folder, tag=_TAG, client_state={_CLIENT: before.global_steps})
    job.torch.distributed.barrier()
    figures["saved"] = dict(_size(folder), seconds=time.monotonic() - began, optimizer_steps=before.optimizer_steps)

    phases.enter(prefix + "continue")
    figures["losses"] = [train.step(engine, batch(number)) for number in range(STEPS)]
    after = _Snapshot(job, engine)
    del engine
    train.close_engine(held)

    phases.enter(prefix + "engine")
    _, plain, engine = build()
    held.append(engine)
    # What the first step would give without loading: had loading done nothing, the losses would start here.
    figures["blank_loss"] = _plain_loss(job, plain, batch(0))
    del plain

    phases.enter(prefix + "load")
    began = time.monotonic()
    path, client = engine.load_checkpoint(folder, tag=_TAG)
    seconds = time.monotonic() - began
    loaded = _Snapshot(job, engine)
    figures["loaded"] = {
        "seconds": seconds,
        "path": path is not None,
        "client_step": (client or {}).get(_CLIENT),
        "global_steps": loaded.global_steps,
        "optimizer_steps": loaded.optimizer_steps,
        "parameter_error": loaded.parameters_apart(before),
        "moment_error": loaded.moments_apart(before),
    }

    phases.enter(prefix + "again")
    figures["losses_again"] = [train.step(engine, batch(number)) for number in range(STEPS)]
    again = _Snapshot(job, engine)
    figures["parameter_error"] = again.parameters_apart(after)
    figures["moved"] = again.parameters_apart(loaded)


class _Snapshot:
    """The state of a training on this rank: whole fp32 parameters (a collective), own moments, counters."""

    def __init__(self, job, engine):
        torch, utils = job.torch, job.deepspeed.utils
        self.parameters = [
            utils.safe_get_full_fp32_param(value).detach().double().cpu().reshape(-1).clone()
            for value in engine.module.parameters()
        ]
        self.moments = []
        steps = set()
        for state in engine.optimizer.optimizer.state.values():
            for name, value in sorted(state.items()):
                if name == "step":
                    steps.add(int(value))
                elif torch.is_tensor(value) and value.dim() > 0:
                    self.moments.append(value.detach().double().cpu().reshape(-1).clone())
        self.optimizer_steps = sorted(steps)
        self.global_steps = int(engine.global_steps)

    def parameters_apart(self, other):
        return _apart(self.parameters, other.parameters)

    def moments_apart(self, other):
        return _apart(self.moments, other.moments)


def _apart(ours, theirs):
    """Relative distance of two lists of tensors; None where they are not alike."""
    if not theirs or [value.numel() for value in ours] != [value.numel() for value in theirs]:
        return None
    apart = sum(float((one - two).norm()) ** 2 for one, two in zip(ours, theirs))  # noqa: B905 (Python 3.7)
    size = sum(float(value.norm()) ** 2 for value in theirs)
    return (apart / size) ** 0.5 if size else None


def _plain_loss(job, plain, micro_batches):
    with job.torch.no_grad():
        losses = [float(plain(inputs, labels)) for inputs, labels in micro_batches]
    return sum(losses) / len(losses)


def _size(folder):
    """Files and bytes of the checkpoint, all ranks together."""
    sizes = [os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names]
    return {"files": len(sizes), "bytes": sum(sizes)}
