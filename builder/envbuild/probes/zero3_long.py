"""Trains on for minutes: fresh batches of one learnable task, memory over time, a checkpoint in the middle.

Loaded by its path, like ``common.py``.
"""

import time

LEARNING_RATE = 1e-3
# A step may take milliseconds or seconds: samples are taken by the clock, so that their number has a bound.
_SAMPLES = 120


def train_on(job, figures, train, checkpoint, watch, seconds, folder):
    """Half of the time, a checkpoint and back, the other half; what was seen goes into ``figures``."""
    task = job.model.task(job.torch, job.device, job.options.seed + 6)
    config = train.configuration(job, rate=LEARNING_RATE)

    def build(seed):
        network, plain = job.model.pair(job.torch, job.device, seed)
        return network, plain, train.open_engine(job, network, config)

    def batch(number):
        return task(number, job.rank, job.world, train.ACCUMULATION)

    figures["seconds_asked"] = seconds
    samples = figures["samples"] = []
    kept = figures["checkpoint"] = {}
    job.phases.enter("long engine")
    held = [build(job.options.seed + 7)[2]]
    began = time.monotonic()
    done = _half(job, train, watch, held, batch, samples, 0, 0, seconds / 2.0, began)
    checkpoint.there_and_back(
        job, kept, train, held, lambda: build(job.options.seed + 8), lambda step: batch(done + step),
        folder, "long checkpoint ",
    )  # fmt: skip
    done += checkpoint.STEPS
    done = _half(job, train, watch, held, batch, samples, 1, done, seconds / 2.0, began)
    figures["steps"] = done
    figures["seconds"] = time.monotonic() - began
    train.close_engine(held)


def _half(job, train, watch, held, batch, samples, half, done, seconds, began):
    """Steps until the time is over on every rank; the number of steps so far."""
    torch = job.torch
    half_began = time.monotonic()
    every = seconds / _SAMPLES
    next_sample = half_began
    over = torch.zeros(1, device=job.device)
    while True:
        job.phases.enter("long steps", done)
        loss = train.step(held[0], batch(done))
        done += 1
        now = time.monotonic()
        if now >= next_sample:
            next_sample = max(next_sample + every, now)
            samples.append(
                {
                    "half": half,
                    "step": done,
                    "seconds": now - began,
                    "loss": loss,
                    "rss_bytes": watch.resident_bytes(),
                    "gpu_bytes": job.seen.gpu_bytes(torch, job.device),
                }
            )
        # Together: a rank that stops alone leaves the others waiting in a collective.
        over.fill_(1.0 if now - half_began >= seconds else 0.0)
        torch.distributed.all_reduce(over, op=torch.distributed.ReduceOp.MAX)
        if float(over) > 0:
            return done
