"""One pass of the ZeRO-3 probe: the same steps by DeepSpeed and by plain torch, and what differs.

The same weights, the same data, the same hyper-parameters: DeepSpeed sees its rank's micro-batches, plain
torch.optim.Adam the whole batch at once. Loaded by its path, like ``common.py``.
"""

import copy
import gc
import time

ACCUMULATION = 2
LEARNING_RATE = 2e-4  # small steps: rounding differences do not grow into the loss
# With 0.999 the kernel's bias correction in fp32 is off by 3e-5 in the first steps, and the losses by 3e-6.
BETAS = (0.9, 0.95)
EPS = 1e-8


class Job:
    """What every part of a rank works with.

    Attributes:
        low: torch.bfloat16 in the pass that trains in it, else None.
        own, whole: This rank's micro-batches, and the batch of all ranks.
    """

    def __init__(self, torch, deepspeed, options, device, rank, world, phases, parts):
        self.torch = torch
        self.deepspeed = deepspeed
        self.options = options
        self.device = device
        self.rank = rank
        self.world = world
        self.phases = phases
        self.common = parts["common"]
        self.model = parts["zero3_model"]
        self.seen = parts["zero3_seen"]

    def batches(self, seed, low=None):
        whole, own = self.model.batches(self.torch, self.device, seed, self.rank, self.world, ACCUMULATION)
        return whole, lowered(own, low)


def lowered(own, low):
    """Micro-batches whose inputs have the precision that the weights have."""
    return own if low is None else [(inputs.to(low), labels) for inputs, labels in own]


def configuration(job, low=None, swapped=None, rate=LEARNING_RATE):
    """The ds_config: ZeRO-3 with both offloads, small buckets so that a small model has several of each."""
    pinned = job.options.accelerator == "cuda"
    zero = {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": pinned},
        "offload_param": {"device": "cpu", "pin_memory": pinned},
        "stage3_param_persistence_threshold": 0,  # every parameter is partitioned and released
        "sub_group_size": 300000,
        "reduce_bucket_size": 250000,
        "stage3_prefetch_bucket_size": 100000,
    }
    config = {
        "train_batch_size": job.model.MICRO_BATCH * ACCUMULATION * job.world,
        "train_micro_batch_size_per_gpu": job.model.MICRO_BATCH,
        "gradient_accumulation_steps": ACCUMULATION,
        # By name, as users do: that DeepSpeed picks its CPU optimizer is part of what is looked at.
        "optimizer": {"type": "Adam", "params": {"lr": rate, "betas": list(BETAS), "eps": EPS}},
        "zero_optimization": zero,
        # Said aloud: DeepSpeed clips at 1.0 by default in 0.19.8, plain torch does not clip.
        "gradient_clipping": 0.0,
        "steps_per_print": 1000000,
    }
    if low is not None:
        config["bf16"] = {"enabled": True}
    if swapped is not None:
        zero.update(swapped["zero"])
        config["aio"] = swapped["aio"]
    return config


def open_engine(job, network, config):
    engine, _, _, _ = job.deepspeed.initialize(model=network, model_parameters=network.parameters(), config=config)
    return engine


def close_engine(held):
    """Let go of an engine, the only thing in a list, so that nobody else holds it and its memory is free.

    Locked memory counts most: what is not given back is missing to the next engine. Old releases have no ``destroy``.
    """
    engine = held.pop()
    destroy = getattr(engine, "destroy", None)
    if destroy is not None:
        destroy()
    del engine, destroy
    gc.collect()


def reference(job, plain, batch, steps, low):
    """Plain torch: the loss of each step, the first gradient, and the first gradient of each rank's part alone.

    With ``low`` the worker is a copy in that precision and the plain network keeps the fp32 master parameters, as
    DeepSpeed does.
    """
    torch = job.torch
    alone = []
    for rank in range(job.world):
        plain.zero_grad()
        for inputs, labels in job.model.own_part(batch, rank, job.world, ACCUMULATION):
            (plain(inputs, labels) / ACCUMULATION).backward()
        alone.append(_gradients(plain))
    plain.zero_grad()
    plain(*batch).backward()
    gradients = _gradients(plain)
    worker, inputs = plain, batch[0]
    if low is not None:
        worker, inputs = copy.deepcopy(plain).to(low), batch[0].to(low)
    adam = torch.optim.Adam(plain.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPS)
    pairs = list(zip(plain.parameters(), worker.parameters()))  # noqa: B905 (Python 3.7)
    losses = []
    for _ in range(steps):
        worker.zero_grad()
        loss = worker(inputs, batch[1])
        loss.backward()
        for master, value in pairs:
            master.grad = value.grad.float()
        adam.step()
        with torch.no_grad():
            for master, value in pairs:
                value.copy_(master)
        losses.append(float(loss.detach()))
    return losses, gradients, alone


def _gradients(network):
    return {name: value.grad.detach().clone() for name, value in network.named_parameters()}


def step(engine, own, before_last=None):
    """One optimizer step; the mean loss of this rank's micro-batches."""
    losses = []
    for index, (inputs, labels) in enumerate(own):
        loss = engine(inputs, labels)
        engine.backward(loss)
        if before_last is not None and index == len(own) - 1:
            before_last()
        engine.step()
        losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


def steps(job, engine, own, count, prefix="", at_first_boundary=None):
    """DeepSpeed's steps on one batch: the loss of each, and its seconds."""
    losses, seconds = [], []
    for number in range(count):
        first = number == 0 and at_first_boundary is not None
        if first:
            job.phases.enter(prefix + "first step")
        else:
            job.phases.enter(prefix + "steps", number)
        began = time.monotonic()
        losses.append(step(engine, own, at_first_boundary if first else None))
        seconds.append(time.monotonic() - began)
    return losses, seconds


def one_pass(job, figures, count, prefix="", low=None):
    """Train beside plain torch on the CPU or from GPU to CPU; what was seen goes into ``figures``.

    Returns the engine, in a list (see close_engine), and its batches, for those who want to go on.
    """
    torch, seen, attempt = job.torch, job.seen, job.common.attempt
    job.phases.enter(prefix + "reference")
    network, plain = job.model.pair(torch, job.device, job.options.seed, low)
    whole, own = job.batches(job.options.seed + 1, low)
    figures["dtype"] = "fp32" if low is None else "bf16"
    figures["steps"] = count
    figures["accumulation"] = len(own)
    figures["numels"] = [value.numel() for value in network.parameters()]
    figures["reference_losses"], gradients, alone = reference(job, plain, whole, count, low)

    job.phases.enter(prefix + "engine")
    engine = open_engine(job, network, configuration(job, low))
    attempt(figures, "native", lambda: seen.count_native_calls(engine))

    def look_at_gradients():
        attempt(figures, "gradients", lambda: seen.gradients(torch, job.deepspeed, network, gradients))
        attempt(figures, "unreduced", lambda: seen.unreduced(torch, job.deepspeed, network, alone, job.rank))

    figures["losses"], figures["step_seconds"] = steps(job, engine, own, count, prefix, look_at_gradients)

    job.phases.enter(prefix + "compare")
    attempt(figures, "shards", lambda: seen.shards(network))
    attempt(figures, "offload", lambda: seen.offload(engine))
    attempt(figures, "optimizer", lambda: seen.optimizer(torch, engine))
    attempt(figures, "parameters", lambda: seen.parameters(torch, job.deepspeed, network, plain))
    return [engine], own
