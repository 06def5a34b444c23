"""What one rank reads out of DeepSpeed, as raw numbers. A function may raise: a figure that is missing fails later."""

import collections
import os
import sys


def device(torch, device):
    """Name, and for a GPU also its UUID, compute capability, memory and the driver's CUDA version."""
    if not isinstance(device, torch.device):
        return {"name": "cpu"}
    properties = torch.cuda.get_device_properties(device)
    driver = getattr(torch._C, "_cuda_getDriverVersion", None)
    return {
        "name": properties.name,
        "uuid": str(getattr(properties, "uuid", "")) or None,
        "capability": [properties.major, properties.minor],
        "memory_bytes": properties.total_memory,
        "driver_cuda": driver() if driver is not None else None,
        "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
    }


def gpu_bytes(torch, device):
    """Memory that tensors hold on the GPU now; None on the CPU."""
    return torch.cuda.memory_allocated(device) if isinstance(device, torch.device) else None


def gpu_memory(torch, device):
    """The peaks since the last call: what tensors held, and what torch had taken from the driver."""
    figures = {
        "gpu_allocated_bytes": torch.cuda.max_memory_allocated(device),
        "gpu_reserved_bytes": torch.cuda.max_memory_reserved(device),
    }
    torch.cuda.reset_peak_memory_stats(device)
    return figures


_SHARED_FLOATS = 2 * 32 * 1024 * 1024 // 4


def collective(torch, deepspeed, device, rank, world, phases):
    """All-reduces whose answer is known, the sum of 1..world: a small one, and one through all of DeepSpeed's shared
    memory where it has some (csrc/cpu/comm/shm.cpp: two buffers of 32 MiB a rank, taken in turn). A /dev/shm that is
    too small for those is found only by writing to them.

    That this rank got there is written down first: the launcher ends a collective that takes too long, and says who
    was not there."""
    phases.enter("collective", "all-reduce")
    values = [torch.full((1024,), float(rank + 1), device=device)]
    deepspeed.comm.all_reduce(values[0])
    float(values[0][0])  # a GPU answers only when it is asked
    through_shared_memory = getattr(deepspeed.comm, "inference_all_reduce", None)
    if through_shared_memory is not None and str(device).startswith("cpu"):
        phases.enter("collective", "shared memory")
        values.append(torch.full((_SHARED_FLOATS,), float(rank + 1), device=device))
        through_shared_memory(values[1])
    return {
        "expected": world * (world + 1) / 2.0,
        "smallest": min(float(value.min()) for value in values),
        "largest": max(float(value.max()) for value in values),
    }


def bf16(torch, deepspeed, device):
    """Whether every rank's device computes in bfloat16, and who says so."""
    if isinstance(device, torch.device):
        capability = torch.cuda.get_device_capability(device)
        # torch emulates it from sm_70 on; below sm_80 no GPU has it.
        able = bool(torch.cuda.is_bf16_supported()) and capability >= (8, 0)
        reason = "torch.cuda.is_bf16_supported and sm_{}{}".format(*capability)
    else:
        able = bool(deepspeed.accelerator.get_accelerator().is_bf16_supported())
        reason = "DeepSpeed's CPU accelerator"
    every = torch.tensor([1.0 if able else 0.0], device=device)
    torch.distributed.all_reduce(every, op=torch.distributed.ReduceOp.MIN)
    return {"supported": bool(every.item() > 0), "here": able, "reason": reason}


class _Counting:
    """A native module that counts the optimizer's calls and passes everything on."""

    def __init__(self, module, counts):
        self._module = module
        self._counts = counts

    def __getattr__(self, name):
        value = getattr(self._module, name)
        if name != "adam_update":
            return value

        def counted(*arguments):
            self._counts["adam_update"] += 1
            return value(*arguments)

        return counted


def count_native_calls(engine):
    """Puts a counter before the CPU optimizer's native module; the number is read in ``optimizer``."""
    basic = engine.optimizer.optimizer
    module = basic.ds_opt_adam
    counts = collections.Counter(adam_update=0)
    basic.ds_opt_adam = _Counting(module, counts)
    engine.envbuild_native_calls = counts
    return {"file": getattr(module, "__file__", None), "name": getattr(module, "__name__", None)}


def gradients(torch, deepspeed, network, expected):
    """The accumulated, reduced gradients against the plain ones; call before the step, on every rank."""
    difference = ours = theirs = 0.0
    trainable = missing = zero = nonfinite = reference_zero = 0
    worst = {"name": None, "error": 0.0}
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        trainable += 1
        wanted = expected[name].double().cpu()
        norm = float(wanted.norm())
        theirs += norm**2
        reference_zero += int(norm == 0.0)
        found = deepspeed.utils.safe_get_full_grad(parameter)
        if found is None:
            missing += 1
            continue
        found = found.detach().double().cpu().reshape(wanted.shape)
        nonfinite += int(not bool(torch.isfinite(found).all()))
        zero += int(not bool(found.any()))
        apart = float((found - wanted).norm())
        difference += apart**2
        ours += float(found.norm()) ** 2
        if norm and apart / norm > worst["error"]:
            worst = {"name": name, "error": apart / norm}
    return {
        "trainable": trainable,
        "missing": missing,
        "zero": zero,
        "nonfinite": nonfinite,
        "reference_zero": reference_zero,
        "norm": ours**0.5,
        "reference_norm": theirs**0.5,
        "relative_error": (difference / theirs) ** 0.5 if theirs else None,
        "ratio": (ours / theirs) ** 0.5 if theirs else None,
        "worst": worst,
    }


def unreduced(torch, deepspeed, network, alone, rank):
    """How near the gradients are to ones that were never reduced between ranks; call before the step, on every rank.

    ``own``: to what this rank's data alone give. ``pieces``: to a whole whose parts are each rank's own, which is what
    gathering shows when every rank kept its part of its own gradient. Each by the best common factor, ``scale``.
    """
    sums = {name: [0.0, 0.0, 0.0] for name in ("own", "pieces")}
    for name, parameter in network.named_parameters():
        found = deepspeed.utils.safe_get_full_grad(parameter)
        if found is None:
            continue
        found = found.detach().double().cpu().reshape(-1)
        flat = [gradients[name].double().cpu().reshape(-1) for gradients in alone]
        share = -(-found.numel() // len(flat))
        pieces = torch.cat([part[place * share : (place + 1) * share] for place, part in enumerate(flat)])
        for kind, other in (("own", flat[rank]), ("pieces", pieces)):
            products = (found.dot(found), found.dot(other), other.dot(other))
            sums[kind] = [kept + float(new) for kept, new in zip(sums[kind], products)]  # noqa: B905 (Python 3.7)
    return {kind: _apart(*products) for kind, products in sums.items()}


def _apart(found, both, other):
    scale = both / other if other else None
    # In double precision this difference of squares resolves relative errors down to 1e-8.
    error = None if scale is None or not found else (max(0.0, found - scale * both) / found) ** 0.5
    return {"scale": scale, "error": error}


def parameters(torch, deepspeed, network, plain):
    """The last fp32 parameters against the plain ones; a collective, so on every rank."""
    difference = norm = 0.0
    nonfinite = missing = 0
    right = dict(plain.named_parameters())
    for name, parameter in network.named_parameters():
        found = deepspeed.utils.safe_get_full_fp32_param(parameter)
        wanted = right[name].detach().double().cpu()
        norm += float(wanted.norm()) ** 2
        if found is None:
            missing += 1
            continue
        found = found.detach().double().cpu().reshape(wanted.shape)
        nonfinite += int(not bool(torch.isfinite(found).all()))
        difference += float((found - wanted).norm()) ** 2
    return {
        "missing": missing,
        "nonfinite": nonfinite,
        "reference_norm": norm**0.5,
        "relative_error": (difference / norm) ** 0.5 if norm else None,
    }


def shards(network):
    """This rank's parts of the parameters, after a step: how many elements, where, and what is still whole."""
    own = whole = 0
    places, kinds = collections.Counter(), collections.Counter()
    statuses = collections.Counter()
    largest_left = 0
    for parameter in network.parameters():
        shard = parameter.ds_tensor
        own += shard.numel()
        whole += parameter.ds_numel
        places[str(shard.device)] += 1
        kinds[str(shard.dtype)] += 1
        statuses[parameter.ds_status.name] += 1
        largest_left = max(largest_left, parameter.data.numel())
    return {
        "elements": own,
        "parameter_elements": whole,
        "tensors": sum(statuses.values()),
        "devices": dict(places),
        "dtypes": dict(kinds),
        "statuses": dict(statuses),
        "largest_unpartitioned": largest_left,  # 1 where DeepSpeed left its placeholder, else a parameter's size
    }


def _device_name(value):
    value = getattr(value, "value", value)
    return None if value is None else str(value)


def offload(engine):
    """Where DeepSpeed itself says it puts things: on a CPU accelerator the devices alone cannot tell."""
    zero = engine.optimizer
    hooks = zero.parameter_offload
    config = engine._config.zero_config
    return {
        "stage": int(engine.zero_optimization_stage()),
        "config_param": _device_name(getattr(config.offload_param, "device", None)),
        "config_optimizer": _device_name(getattr(config.offload_optimizer, "device", None)),
        "zero_param": bool(zero.offload_param),
        "zero_optimizer": bool(zero.offload_optimizer),
        "hooks_param": _device_name(hooks.offload_device),
    }


def optimizer(torch, engine):
    """Class, native calls, and where the fp32 master parameters and the states live."""
    zero = engine.optimizer
    basic = zero.optimizer
    masters = list(zero.fp32_partitioned_groups_flat)
    places, state_elements = collections.Counter(), collections.Counter()
    for state in basic.state.values():
        for name, value in state.items():
            if torch.is_tensor(value) and value.dim() > 0:
                places[str(value.device)] += 1
                state_elements[name] += value.numel()
    return {
        "class": type(basic).__name__,
        "module": type(basic).__module__,
        "zero_class": type(zero).__name__,
        "native_calls": dict(getattr(engine, "envbuild_native_calls", {})),
        "groups": len(masters),
        "master_elements": sum(master.numel() for master in masters),
        "master_devices": dict(collections.Counter(str(master.device) for master in masters)),
        "master_dtypes": dict(collections.Counter(str(master.dtype) for master in masters)),
        "state_devices": dict(places),
        "state_elements": dict(state_elements),
    }


def jit():
    """Native op modules that are loaded, by file, and what lies in the folder JIT compilation writes to."""
    folder = os.environ["TORCH_EXTENSIONS_DIR"]
    package = os.path.dirname(sys.modules["deepspeed"].__file__)
    files = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if file.endswith(".so") and (name.startswith("deepspeed.") or file.startswith(folder)):
            files[name] = file
    builder = sys.modules.get("deepspeed.ops.op_builder.builder")
    loaded = getattr(getattr(builder, "OpBuilder", None), "_loaded_ops", {}) or {}
    for name, module in loaded.items():
        files.setdefault(name, getattr(module, "__file__", None))
    with open("/proc/self/maps") as stream:
        mapped = {line.split(None, 5)[5].strip() for line in stream if ".so" in line}
    return {
        "package": package,
        "modules": files,
        "mapped_outside": sorted(path for path in mapped if "torch_extensions" in path or path.startswith(folder)),
        "extension_files": sum(len(names) for _, _, names in os.walk(folder)),
    }
