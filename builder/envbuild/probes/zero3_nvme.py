"""A pass with the optimizer states on a disk folder, through DeepSpeed's async_io.

Tensors below 1 MiB a rank stay in memory, so this pass has a network of its own, with two weights just above that.
The buffers of the transfers are locked in memory (mlock): they are as few and as small as possible, 4.2 MB, and what
they came to is written down.

Parameters stay in memory. With fp32 ones on disk DeepSpeed 0.19.8 fails in the first step (its swapper takes them for
bfloat16: "expected m1 and m2 to have the same dtype"); bf16 ones fail with an assertion ("already assigned swap
buffer"), and lock another 5 MB, more than the 8 MiB that many systems allow. Loaded by its path, like ``common.py``.
"""

import os

# Parameter, gradient and Adam's two moments of one sub-group.
_STATES = 4


def one_pass(job, figures, train, watch, count, folder):
    """Train beside plain torch; what was seen goes into ``figures``."""
    torch, model = job.torch, job.model
    job.phases.enter("nvme reference")
    network, plain = model.pair(torch, job.device, job.options.seed + 3, shape=model.swapped_shape(job.world))
    whole, own = job.batches(job.options.seed + 4)
    numels = [value.numel() for value in network.parameters()]
    parts = [-(-numel // job.world) * 4 for numel in numels]
    figures.update(dtype="fp32", steps=count, numels=numels)
    figures["swapped_bytes"] = [part for part in parts if part >= model.SWAPPED_BYTES]
    figures["reference_losses"], _, _ = train.reference(job, plain, whole, count, None)

    job.phases.enter("nvme engine")
    before = _transferred()
    held = [train.open_engine(job, network, train.configuration(job, swapped=_settings(folder)))]
    figures["losses"], figures["step_seconds"] = train.steps(job, held[0], own, count, "nvme ")

    job.phases.enter("nvme compare")
    job.common.attempt(figures, "swapped", lambda: _swapped(job, held[0], os.path.join(folder, "zero_stage_3")))
    after = _transferred()
    figures["transferred"] = {name: after[name] - before[name] for name in after if name in before}
    figures["locked_bytes"] = watch.locked_bytes()
    train.close_engine(held)


def _settings(folder):
    """The keys of the ds_config that are others than in memory."""
    zero = {
        "offload_optimizer": {
            "device": "nvme",
            "nvme_path": folder,
            "buffer_count": _STATES,
            "pin_memory": False,
        },
        # Every weight is a sub-group of its own, so that its gradient lies at the buffer's begin. DeepSpeed 0.19.8
        # reads a gradient back to its parameter's place in the sub-group; where that is no multiple of 512 bytes the
        # kernel refuses (O_DIRECT on a virtio disk), DeepSpeed does not look at the answer, and the optimizer steps
        # with what the buffer held before: the losses were apart by 0.8 after four steps.
        "sub_group_size": 1,
    }
    return {"zero": zero, "aio": {"block_size": 262144, "queue_depth": 4}}


def _swapped(job, engine, folder):
    """What lies in the folder while the engine lives, and what the engine says of itself."""
    sizes = []
    rank = "rank{}".format(job.rank)
    for place, _, names in os.walk(folder):
        if rank in place.split(os.sep):
            sizes += [os.path.getsize(os.path.join(place, name)) for name in names]
    zero = engine.optimizer
    config = engine._config.zero_config
    swapper = getattr(zero, "optimizer_swapper", None)
    return {
        "files": len(sizes),
        "bytes": sum(sizes),
        "config_optimizer": str(getattr(config.offload_optimizer.device, "value", config.offload_optimizer.device)),
        "swapper": None if swapper is None else type(swapper).__name__,
        "tensors": None if swapper is None else len(swapper.swap_params_info),
    }


def _transferred():
    """Bytes that this process moved from and to disks, by the kernel's account; empty where it keeps none."""
    kept = {}
    try:
        with open("/proc/self/io") as stream:
            for line in stream:
                name, _, value = line.partition(": ")
                if name in ("read_bytes", "write_bytes"):
                    kept[name] = int(value)
    except (OSError, ValueError):
        return {}
    return kept
