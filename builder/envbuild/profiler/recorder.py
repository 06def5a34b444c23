"""What a rank writes down: a line of JSON for each thing that was seen, and what an engine is made of.

Standard library only, Python 3.7 and later; loaded by its path.
"""

import ctypes
import json
import os
import re
import zipfile

_DEPTH = 5
# What leads to somebody's account is no part of how something trains: monitors, and values that nobody else is to read.
# As in envbuild/collector/secrets.py, which is not there where this runs; a test holds the two together.
_MONITORS = ("monitor_config", "comet", "wandb", "tensorboard", "csv_monitor", "trackio")
_SECRET = re.compile(
    r"(?i)token(?!i[sz])|passw|passphrase|passcode|secret|credential|bearer|cookie|webhook"
    r"|(?:api|access|private|signing|encryption)[_.-]?key"
    r"|(?<![a-z])(?:auth|authorization|pwd|pass|pat|sig|signature|session|jwt|sas|dsn|creds?)(?![a-z])"
    r"|(?<![a-z])keys?(?:[_.-]?(?:id|file))?(?:[_.-]?\d+)?\Z|(?<![a-z])username\Z"
)


class Lines:
    """A file of JSON lines; each is whole, whenever the process ends."""

    def __init__(self, path, common):
        self._file = open(path, "a", encoding="ascii")
        self._common = common

    def write(self, kind, **figures):
        text = json.dumps(self._common.clean(dict(figures, kind=kind)), allow_nan=False, sort_keys=True)
        self._file.write(text + "\n")
        self._file.flush()


def cores(torch, surroundings):
    """What of the CPU this process may use, and how many threads OpenMP has in it.

    ``affinity`` tells the ranks apart that share the same CPUs from those that are bound to their own.
    """
    return {
        "threads": torch.get_num_threads(),
        "asked": os.environ.get("OMP_NUM_THREADS"),
        "cpus": surroundings.usable_cpus(),
        "affinity": sorted(os.sched_getaffinity(0)),
    }


def gpu(torch, device):
    """Which GPU this rank has, whatever CUDA_VISIBLE_DEVICES names, numbers or hides: its UUIDs and its PCI address.

    torch tells the UUID since its pull request 125083, and the address where it has it. The driver tells both to any:
    cuda.h, cuDeviceGetUuid_v2 (of a part of a GPU, MIG, it is the part's own) and cuDeviceGetPCIBusId (the whole
    GPU's). It counts the devices of a process as torch does. Read from documentation: this has not run on a GPU.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    uuids, address = _asked(index)
    told = torch.cuda.get_device_properties(index)
    own = str(getattr(told, "uuid", "") or "").replace("-", "").lower()
    if len(own) == 32 and own not in uuids:
        uuids.append(own)
    place = [getattr(told, "pci_{}_id".format(name), None) for name in ("domain", "bus", "device")]
    if address is None and None not in place:
        address = "{:08x}:{:02x}:{:02x}".format(*place)
    return {"index": index, "uuids": uuids, "pci": address}


def _asked(index):
    """The UUID and the PCI address that the driver tells of a device; nothing where it cannot be asked."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        device = ctypes.c_int()
        if cuda.cuDeviceGet(ctypes.byref(device), index) != 0:
            return [], None
        raw, text = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(32)
        identify = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
        uuids = [bytes(bytearray(raw)).hex()] if identify(raw, device) == 0 else []
        known = cuda.cuDeviceGetPCIBusId(text, 32, device) == 0
        return uuids, _address(text.value.decode()) if known else None
    except (OSError, AttributeError, ValueError):
        return [], None


def _address(text):
    """``0000:3B:00.0`` as everybody else writes it; NVML has a longer domain."""
    domain, bus, device = text.partition(".")[0].split(":")
    return "{:08x}:{:02x}:{:02x}".format(int(domain, 16), int(bus, 16), int(device, 16))


def resolved(engine, common):
    """The ds_config as the engine understood it, defaults filled in: what a release changes shows here.

    What is no plain value has no fixed text (addresses of objects), and is left out; and so are monitors and secrets.
    """
    found = {}
    for name, value in sorted(vars(engine._config).items()):
        plain = _plain({name: value}).get(name)
        if not name.startswith("_") and plain is not None:
            found[name] = common.clean(plain)
    return found


def _plain(value):
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(mode="json"))
    if hasattr(value, "dict") and hasattr(value, "__fields__"):
        return _plain({name: getattr(each, "value", each) for name, each in value.dict().items()})
    if isinstance(value, dict):
        kept = {str(name): _plain(each) for name, each in value.items() if str(name) not in _MONITORS}
        return {name: each for name, each in kept.items() if each is not None and not _is_secret(name, each)}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    value = getattr(value, "value", value)
    return value if isinstance(value, (bool, int, float, str)) else None


def _is_secret(name, value):
    return isinstance(value, str) and value != "" and _SECRET.search(name) is not None


def structure(torch, engine):
    """Where an engine's tensors lie, and how large they are; each memory counted once."""
    zero = engine.optimizer
    seen = {}
    elements = 0
    for parameter in engine.module.parameters():
        elements += int(getattr(parameter, "ds_numel", parameter.numel()))
        _collect(torch, [parameter, parameter.grad, getattr(parameter, "ds_tensor", None)], seen, _DEPTH)
    _collect(torch, vars(zero), seen, _DEPTH)
    _collect(torch, dict(getattr(getattr(zero, "optimizer", None), "state", None) or {}), seen, _DEPTH)
    first = next(engine.module.parameters())
    shard = getattr(first, "ds_tensor", first)
    states = [
        value
        for state in (getattr(getattr(zero, "optimizer", None), "state", None) or {}).values()
        for value in (state.values() if isinstance(state, dict) else ())
        if torch.is_tensor(value) and value.dim() > 0
    ]
    return {
        "parameters": elements,
        "host_tensor_bytes": sum(size for device, size in seen.values() if device == "cpu"),
        "devices": {
            "parameters": shard.device.type,
            "optimizer": states[0].device.type if states else None,
            "optimizer_class": type(getattr(zero, "optimizer", zero)).__name__,
        },
    }


def _collect(torch, value, seen, depth):
    if torch.is_tensor(value):
        storage = value.untyped_storage() if hasattr(value, "untyped_storage") else value.storage()
        if storage.nbytes():
            seen[(value.device.type, storage.data_ptr())] = (value.device.type, int(storage.nbytes()))
        # What is no leaf has no gradient of its own, and torch warns of the question.
        if depth and value.is_leaf and value.grad is not None:
            _collect(torch, value.grad, seen, 0)
    elif depth and isinstance(value, dict):
        for name, each in list(value.items()):
            _collect(torch, name, seen, depth - 1)
            _collect(torch, each, seen, depth - 1)
    elif depth and isinstance(value, (list, tuple, set)):
        for each in list(value):
            _collect(torch, each, seen, depth - 1)


def checkpoint_bytes(folder):
    """The tensors in a checkpoint: a file of torch's is a zip archive, and each tensor's memory a member of it."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    total += sum(each.file_size for each in archive.infolist() if "/data/" in each.filename)
    return total


def memory(torch, cuda, watch, device):
    """Peaks of this process, in bytes; None where nobody can say."""
    figures = {
        "host_peak_bytes": watch.peak_resident_bytes(),
        "host_pinned_bytes": None,
        "gpu_peak_bytes": None,
        "gpu_reserved_peak_bytes": None,
        "gpu_total_bytes": None,
        "allocation_retries": None,
    }
    if cuda is not None:
        statistics = cuda.memory_stats(device)
        figures.update(
            gpu_peak_bytes=cuda.max_memory_allocated(device),
            gpu_reserved_peak_bytes=cuda.max_memory_reserved(device),
            gpu_total_bytes=cuda.get_device_properties(device).total_memory,
            allocation_retries=statistics.get("num_alloc_retries"),
        )
        # Pinned blocks as they are rounded; torch says so from 2.6 on.
        pinned = getattr(cuda, "host_memory_stats", None)
        if pinned is not None:
            figures["host_pinned_bytes"] = pinned().get("allocated_bytes.peak")
    return figures
