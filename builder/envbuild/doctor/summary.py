"""A machine in seven lines."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.collection import Collection, DeepSpeed, Gpu, Import, Machine
from envbuild.doctor.sizes import amount
from envbuild.doctor.text import count
from envbuild.doctor.view import installed


def head(collection: Collection) -> Iterator[tuple[str, str]]:
    """What a reader wants to know before anything else: name and value, the facts as they were collected."""
    machine = collection.machine
    yield "machine", _joined(
        machine.distribution.name or machine.distribution.id, f"Linux {machine.kernel}" if machine.kernel else "",
        machine.cpu.model or machine.cpu.machine, machine.cpu.level,
        count(machine.cpu.usable or machine.cpu.count or 0, "CPU") if machine.cpu.usable or machine.cpu.count else "",
        f"{amount(machine.memory.total)} of memory" if machine.memory.total else "",
    )  # fmt: skip
    yield "container", _container(machine)
    yield "GPU", _gpu(collection.gpu)
    yield "Python", _python(collection)
    yield "torch", _package(collection, "torch", collection.torch, _torch(collection))
    yield "DeepSpeed", _package(collection, "deepspeed", collection.deepspeed, _deepspeed(collection.deepspeed))


def _joined(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part) or "unknown"


def _container(machine: Machine) -> str:
    kind = machine.container or "none"
    memory = f"limited to {amount(machine.memory.limit)} of memory" if machine.memory.limit else ""
    shm = f"{amount(machine.shm.total)} of shared memory (/dev/shm)" if machine.shm.total is not None else ""
    return _joined(kind, "WSL" if machine.wsl else "", memory, shm)


def _gpu(gpu: Gpu) -> str:
    names: dict[str, int] = {}
    for device in gpu.devices:
        told = f"{device.name or 'unknown'}{f' (sm {device.sm})' if device.sm else ''}"
        names[told] = names.get(told, 0) + 1
    seen = ", ".join(f"{number} x {name}" if number > 1 else name for name, number in names.items())
    driver = f"driver {gpu.module or gpu.nvml}" if gpu.module or gpu.nvml else "no NVIDIA driver"
    cuda = f"up to CUDA {gpu.cuda}" if gpu.cuda else ""
    return _joined(seen or "none seen", driver, cuda)


def _python(collection: Collection) -> str:
    python = collection.interpreter
    return _joined(python.version, python.kind, python.executable) if python is not None else "none was examined"


def _package(collection: Collection, name: str, seen: Import | None, more: str) -> str:
    version = (seen.version if seen is not None else None) or installed(collection, name)
    if seen is None and collection.interpreter is None:
        return "unknown"
    if seen is None:
        return f"{version}, not imported" if version else "not installed"
    if not seen.ok:
        return _joined(version, f"cannot be imported: {seen.error or 'no word why'}")
    return _joined(version, more)


def _torch(collection: Collection) -> str:
    torch = collection.torch
    if torch is None:
        return ""
    cuda = f"built for CUDA {torch.cuda}" if torch.cuda else "built without CUDA"
    sees = {True: "sees a GPU", False: "sees no GPU"}.get(torch.available, "") if torch.cuda else ""  # type: ignore[arg-type]
    nccl = f"NCCL {torch.nccl}" if torch.nccl else ""
    return ", ".join(part for part in (cuda, nccl, sees) if part)


def _deepspeed(deepspeed: DeepSpeed | None) -> str:
    if deepspeed is None:
        return ""
    ops = f"compiled ahead of time: {', '.join(deepspeed.installed_ops)}" if deepspeed.installed_ops else ""
    accelerator = f"accelerator {deepspeed.accelerator}" if deepspeed.accelerator else ""
    return ", ".join(part for part in (accelerator, ops) if part)
