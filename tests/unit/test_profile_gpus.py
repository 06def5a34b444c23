"""Whose the GPUs are that NVML sees: by the names that ranks say, with a fake NVML and a fake torch. No GPU is here."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.pipeline.commanded import _gpus
from envbuild.pipeline.measured import About, measurement_of
from envbuild.profile import summary
from envbuild.profile.document import Hardware, Launch
from envbuild.profiler import recorder, sampling

ABOUT = About(accelerator="cuda", hardware=Hardware(), probe="p", envbuild="1")
KINDS = {"gpu_percent", "gpu_memory_bytes", "gpu_clock_hz", "gpu_memory_clock_hz", "gpu_power_watts",
         "gpu_temperature_celsius", "pcie_receive", "pcie_send"}  # fmt: skip


def uuid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-{number:012x}"


def plain(number: int) -> str:
    return uuid(number).replace("-", "")


class FakeNvml:
    """As much of pynvml as the sampler asks; GPU n lies at bus n and is busy for 10 n percent.

    Args:
        split: Of each GPU that is split, the UUIDs of its parts.
        lost: GPUs without a handle.
    """

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            self.value = value

    def __init__(
        self, count: int, split: dict[int, list[str]] | None = None, lost: Sequence[int] = (), *, text: bool = True
    ) -> None:
        self._count, self._parts, self._lost, self._text = count, split or {}, lost, text

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return self._count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> tuple[int, str | None]:
        if index in self._lost:
            raise self.NVMLError(15)
        return index, None

    def nvmlDeviceGetUUID(self, handle: tuple[int, str | None]) -> str | bytes:
        name = f"MIG-{handle[1]}" if handle[1] else f"GPU-{uuid(handle[0])}"
        return name if self._text else name.encode()

    def nvmlDeviceGetPciInfo(self, handle: tuple[int, str | None]) -> SimpleNamespace:
        return SimpleNamespace(domain=0, bus=handle[0], device=0)

    def nvmlDeviceGetMigMode(self, handle: tuple[int, str | None]) -> list[int]:
        if not self._parts:
            raise self.NVMLError(3)
        return [int(handle[0] in self._parts), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: tuple[int, str | None]) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: tuple[int, str | None], index: int) -> tuple[int, str | None]:
        if index >= len(self._parts[handle[0]]):
            raise self.NVMLError(6)
        return handle[0], self._parts[handle[0]][index]

    def nvmlDeviceGetUtilizationRates(self, handle: tuple[int, str | None]) -> SimpleNamespace:
        return SimpleNamespace(gpu=10 * handle[0])

    def nvmlDeviceGetMemoryInfo(self, handle: tuple[int, str | None]) -> SimpleNamespace:
        return SimpleNamespace(used=1000 + handle[0] + (500 if handle[1] else 0))

    def nvmlDeviceGetClockInfo(self, handle: tuple[int, str | None], kind: int) -> int:
        return 1000 * kind

    def nvmlDeviceGetPowerUsage(self, handle: tuple[int, str | None]) -> int:
        return 300_000

    def nvmlDeviceGetTemperature(self, handle: tuple[int, str | None], sensor: int) -> int:
        return 50

    def nvmlDeviceGetPcieThroughput(self, handle: tuple[int, str | None], way: int) -> int:
        raise self.NVMLError(3)


def sampled(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, *, node: int = 0, of: int = 0) -> list[dict[str, Any]]:
    """Four samples of a node, as its sampler writes them."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    gpus = sampling.Gpus("")
    return [
        {"kind": "sample", "at": 100.0 + beat, "cpu_percent": None, "host_memory_bytes": 1, "disks": {},
         "networks": {}, "ranks": [], "gpus": gpus.read(), "node": node, "of": of}
        for beat in range(4)
    ]  # fmt: skip


def rank(number: int, gpu: dict[str, Any] | None, node: int = 0) -> list[dict[str, Any]]:
    about = {"kind": "rank", "rank": number, "versions": {}, "gpu": gpu, "node": node}
    return [about, {"kind": "pass", "pass": "timing", "rank": number, "started": 100.0, "steps": 0, "collectives": []}]


def launch(samples: list[dict[str, Any]], *ranks: list[dict[str, Any]], why: str | None = None) -> Launch:
    end = {"kind": "end", "gpus": why, "transports": []}
    return measurement_of([*samples, *(line for lines in ranks for line in lines), end], ABOUT).launches[0]


def busy(found: Launch) -> dict[int | None, tuple[str | None, float | None]]:
    return {
        each.rank: (each.device, each.values[0]) for each in found.samples.series if each.kind == "gpu_percent"
    }  # fmt: skip


def lacking(found: Launch) -> dict[int | None, dict[str, str]]:
    told: dict[int | None, dict[str, str]] = {}
    for each in found.unavailable:
        if each.figure in KINDS:
            told.setdefault(each.rank, {})[each.figure] = each.reason
    return told


def test_of_eight_gpus_the_two_that_ranks_have_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = sampled(monkeypatch, FakeNvml(8))
    # CUDA_VISIBLE_DEVICES=5,4: by its UUID, and where torch and the driver tell none, by its address.
    found = launch(
        samples, rank(0, {"index": 0, "uuids": [plain(5)], "pci": None}),
        rank(1, {"index": 1, "uuids": [], "pci": "00000000:04:00"}),
    )  # fmt: skip
    assert busy(found) == {0: ("cuda:0", 50.0), 1: ("cuda:1", 40.0)}
    measured = measurement_of([*samples, *rank(0, {"index": 0, "uuids": [plain(5)], "pci": None})], ABOUT)
    assert summary.series_means(measured, "gpu_percent") == [50.0], "no idle GPU of somebody else is in the mean"
    # What this driver does not tell of a GPU is said, and once for all ranks.
    assert set(lacking(found)) == {None} and set(lacking(found)[None]) == {"pcie_receive", "pcie_send"}


def test_a_gpu_that_is_lost_moves_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = sampled(monkeypatch, FakeNvml(4, lost=[1], text=False))
    assert busy(launch(samples, rank(0, {"index": 2, "uuids": [plain(2)], "pci": None}))) == {0: ("cuda:2", 20.0)}


def test_two_nodes_with_the_same_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = sampled(monkeypatch, FakeNvml(4)) + sampled(monkeypatch, FakeNvml(8), node=1, of=2)
    found = launch(
        samples, *(rank(number, {"index": number % 2, "uuids": [], "pci": f"00000000:{bus:02x}:00"}, number // 2)
                   for number, bus in enumerate((3, 2, 3, 7))),
    )  # fmt: skip
    assert busy(found) == {0: ("cuda:0", 30.0), 1: ("cuda:1", 20.0), 2: ("cuda:0", 30.0), 3: ("cuda:1", 70.0)}
    assert {(each.rank, each.node) for each in found.samples.series if each.rank is not None} == {
        (0, 0), (1, 0), (2, 1), (3, 1),
    }  # fmt: skip
    # A rank's own node, and no other one: the first has no GPU at bus 7.
    apart = launch(samples, rank(0, {"index": 0, "uuids": [], "pci": "00000000:07:00"}, 0))
    assert not busy(apart) and "NVML sees no GPU on its node" in lacking(apart)[None]["gpu_percent"]


def test_of_a_part_of_a_gpu_only_its_own_figures_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [uuid(0xA), uuid(0xB)]
    samples = sampled(monkeypatch, FakeNvml(3, split={1: parts}))
    found = launch(
        samples, rank(0, {"index": 0, "uuids": [plain(0xB)], "pci": "00000000:01:00"}),
        rank(1, {"index": 0, "uuids": [plain(2)], "pci": "00000000:02:00"}),
    )  # fmt: skip
    assert busy(found) == {1: ("cuda:0", 20.0)}
    memory = {each.rank: each.values[0] for each in found.samples.series if each.kind == "gpu_memory_bytes"}
    assert memory == {0: 1501.0, 1: 1002.0}
    told = lacking(found)
    assert (
        set(told[0]) == KINDS - {"gpu_memory_bytes", "pcie_receive", "pcie_send"}
        and "part of one" in told[0]["gpu_percent"]
    )
    assert set(told) == {0, None}
    # The address, and the UUID of older CUDA, are the whole GPU's: whose part, nobody knows.
    for names in ({"uuids": [], "pci": "00000000:01:00"}, {"uuids": [plain(1)], "pci": None}):
        whole = launch(samples, rank(0, {"index": 0, **names}))
        assert not whole.samples.series[1:] and "split (MIG)" in lacking(whole)[None]["gpu_memory_bytes"]


@pytest.mark.parametrize(
    ("gpu", "why", "said"),
    [
        (None, None, "does not say which GPU"),
        ({"index": 0, "uuids": [plain(9)], "pci": None}, None, "NVML sees no GPU"),
        ({"index": 0, "uuids": [], "pci": None}, None, "NVML sees no GPU"),
    ],
)
def test_a_gpu_that_is_not_known_is_not_guessed(
    monkeypatch: pytest.MonkeyPatch, gpu: dict[str, Any] | None, why: str | None, said: str
) -> None:
    found = launch(sampled(monkeypatch, FakeNvml(2)), rank(0, gpu), why=why)
    assert not busy(found) and set(lacking(found)[None]) == KINDS and said in lacking(found)[None]["gpu_percent"]
    both = launch(
        sampled(monkeypatch, FakeNvml(2)), rank(0, gpu), rank(1, {"index": 0, "uuids": [plain(1)], "pci": None})
    )
    assert busy(both) == {1: ("cuda:0", 10.0)} and said in lacking(both)[0]["gpu_percent"]
    # Without NVML that is the reason, whatever the ranks say.
    nothing = [{**sample, "gpus": []} for sample in sampled(monkeypatch, FakeNvml(0))]
    assert lacking(launch(nothing, rank(0, gpu), why="there is no pynvml"))[None]["gpu_percent"] == "there is no pynvml"


class FakeDriver:
    """libcuda.so.1, as the recorder asks it."""

    def __init__(self, raw: str | None, pci: str | None, *, newer: bool = True) -> None:
        self._raw, self._pci = raw, pci
        if newer:
            self.cuDeviceGetUuid_v2 = self._identify
        else:
            self.cuDeviceGetUuid = self._identify

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def _identify(self, raw: Any, device: Any) -> int:
        if self._raw is None:
            return 3
        raw[:] = bytes.fromhex(self._raw)
        return 0

    def cuDeviceGetPCIBusId(self, text: Any, size: int, device: Any) -> int:
        text.value = (self._pci or "").encode()
        return 0 if self._pci else 3


def fake_torch(**properties: Any) -> Any:
    cuda = SimpleNamespace(current_device=lambda: 1, get_device_properties=lambda index: SimpleNamespace(**properties))
    return SimpleNamespace(cuda=cuda)


@pytest.mark.parametrize(
    ("driver", "properties", "expected"),
    [
        (FakeDriver(plain(7), "0000:3B:00.0"), {}, {"index": 1, "uuids": [plain(7)], "pci": "00000000:3b:00"}),
        (FakeDriver(plain(7), None, newer=False), {"uuid": uuid(7)}, {"index": 1, "uuids": [plain(7)], "pci": None}),
        # Of a part the driver tells the part's, and torch may tell the whole GPU's.
        (FakeDriver(plain(0xB), "0000:3b:00.0"), {"uuid": uuid(7)},
         {"index": 1, "uuids": [plain(0xB), plain(7)], "pci": "00000000:3b:00"}),
        (None, {"uuid": uuid(7), "pci_domain_id": 1, "pci_bus_id": 59, "pci_device_id": 0},
         {"index": 1, "uuids": [plain(7)], "pci": "00000001:3b:00"}),
        (None, {"uuid": ""}, {"index": 1, "uuids": [], "pci": None}),
    ],
)  # fmt: skip
def test_a_rank_says_which_gpu_it_has(
    monkeypatch: pytest.MonkeyPatch, driver: FakeDriver | None, properties: dict[str, Any], expected: dict[str, Any]
) -> None:
    def load(name: str) -> FakeDriver:
        assert name == "libcuda.so.1"
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert recorder.gpu(fake_torch(**properties), SimpleNamespace(index=None)) == expected
    assert recorder.gpu(fake_torch(**properties), SimpleNamespace(index=3)) == {**expected, "index": 3}


def test_the_models_of_a_command_are_those_that_its_ranks_had() -> None:
    lines = [{"kind": "rank", "accelerator": "cuda", "device": {"name": "H100"}}] * 2
    assert _gpus(lines, ("T4", "H100")) == ("H100",)
    assert _gpus([{"kind": "rank", "accelerator": "cuda", "device": None}], ("T4",)) == ("T4",)
    assert _gpus([{"kind": "rank", "accelerator": "cpu", "device": {"name": "cpu"}}], ("T4",)) == ()
