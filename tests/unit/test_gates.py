"""Which GPUs a smoke gets is decided from the row, the host's GPUs, the driver and the image, and from nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild import facts
from envbuild.errors import InputError
from envbuild.matrix import load
from envbuild.model import Environment, Level
from envbuild.pipeline.gates import ALL, NONE, Decision, Surroundings, decide, lenient, obstructed, parse_gpus
from envbuild.pipeline.gpus import DriverFault, Gpu, HostGpus, Slice, fault_of, has_hardware, profile_of, version_text
from envbuild.pipeline.requirements import unfulfilled
from envbuild.pipeline.smoking import CPU

FACTS = facts.load()
MATRIX = load(Path(__file__).parents[2] / "matrix.yaml")
ROW, A100 = MATRIX.get("h200-cu130"), MATRIX.get("a100-cu118")


def gpu(index: int = 0, name: str = "NVIDIA H200", sm: str = "9.0", *slices: Slice, mig: bool = False) -> Gpu:
    return Gpu(index=index, uuid=f"GPU-{index}{index}{index}{index}", name=name, sm=sm, memory_bytes=141 << 30,
               brand="nvidia", mig=mig or bool(slices), slices=slices)  # fmt: skip


def part(index: int, gigabytes: int) -> Slice:
    return Slice(uuid=f"MIG-{index}", profile=f"1g.{gigabytes}gb", memory_bytes=gigabytes << 30)


def host(*gpus: Gpu, driver: str = "580.95.05", cuda: str = "13.0") -> HostGpus:
    return HostGpus(driver=driver, cuda=cuda, gpus=gpus)


def decided(
    around: HostGpus | DriverFault | None, row: Environment = ROW, wanted: tuple[str, ...] = ALL, *,
    compat: bool = False, **image_env: str,
) -> Decision:  # fmt: skip
    surroundings = Surroundings(host=around, image_env=image_env, compat=compat, engine="ssh://far")
    return decide(row, FACTS, surroundings, wanted)


def rules(decision: Decision) -> list[tuple[str, str]]:
    return [(finding.rule, finding.severity.value) for finding in decision.findings]


def test_every_fitting_gpu_is_a_rank_and_no_other() -> None:
    found = decided(
        host(gpu(0), gpu(1, "NVIDIA A100-SXM4-80GB", "8.0"), gpu(2, "NVIDIA H200 NVL"), gpu(3, "GH200 480GB"))
    )
    assert found.device is not None and found.level is Level.GPU and found.findings == ()
    assert (found.device.accelerator, found.device.ranks, found.device.gpus) == ("cuda", 2, ("GPU-0000", "GPU-2222"))
    assert found.seen_on == "nvidia-h200+nvidia-h200-nvl-580.95.05"


def test_a_slice_is_one_rank_by_uuid_and_less_than_a_gpu() -> None:
    sliced = gpu(0, "NVIDIA H200", "9.0", part(1, 18), part(2, 35))
    found = decided(host(sliced))
    assert found.device is not None and found.level is Level.GPU_MIG
    assert (found.device.ranks, found.device.gpus) == (1, ("MIG-2",)), "the largest"
    assert found.gpus[0]["name"] == "NVIDIA H200 MIG 1g.35gb"
    assert rules(found) == [("gate.gpu", "warning")]
    assert decided(host(sliced, gpu(1))).level is Level.GPU, "a whole one is taken before any slice"
    assert decided(host(sliced), wanted=("0:0",)).device.gpus == ("MIG-1",)  # type: ignore[union-attr]
    assert rules(decided(host(sliced), wanted=("MIG-1", "MIG-2"))) == [("gate.gpu", "error")]
    assert rules(decided(host(sliced, gpu(1)), wanted=("MIG-1", "1"))) == [("gate.gpu", "error")]


@pytest.mark.parametrize(
    ("around", "said"),
    [
        (fault_of(12, "", hardware=False), "no NVIDIA GPU"),
        (host(), "sees no GPU"),
        (host(gpu(0, "NVIDIA A100-SXM4-80GB", "8.0")), "NVIDIA A100-SXM4-80GB): none that the row names"),
        (host(gpu(0, "NVIDIA H200", "8.0")), "none that the row names"),
        (host(gpu(0, mig=True)), "in MIG mode and has no slice"),
    ],
)
def test_without_a_gpu_of_the_row_it_trains_on_the_cpu_and_says_what_is_missing(
    around: HostGpus | DriverFault, said: str
) -> None:
    found = decided(around)
    assert (found.level, found.device) == (Level.CPU, CPU)
    assert rules(found) == [("gate.gpu", "warning")]
    assert said in found.findings[0].message
    assert "H200 with driver 580" in found.findings[0].fix


def test_a_deepspeed_that_cannot_train_on_the_cpu_stays_built() -> None:
    old = A100.model_copy(update={"deepspeed": A100.deepspeed.model_copy(update={"version": "0.14.0"})})
    found = decided(fault_of(12, "", hardware=False), old)
    assert (found.level, found.device) == (Level.BUILT, None)
    assert rules(found) == [("gate.gpu", "warning"), ("gate.level", "warning")]
    assert decided(fault_of(12, "", hardware=False), A100).device is CPU


@pytest.mark.parametrize("code", [4, 9, 10, 12, 13, 15, 16, 17, 18, 20, 999])
def test_a_driver_fault_is_one_and_nothing_starts(code: int) -> None:
    fault = fault_of(code, "whatever", hardware=True)
    assert not fault.absent and fault.fix
    found = decided(fault)
    assert found.device is None and rules(found) == [("gate.driver", "error")]
    assert found.findings[0].message == fault.message
    assert lenient(found, ROW, FACTS, None) is found
    assert lenient(found, ROW, FACTS, Level.GPU_MIG) is found, "a slice needs a driver too"
    allowed = lenient(found, ROW, FACTS, Level.CPU)
    assert allowed.device is CPU and rules(allowed) == [("gate.driver", "warning")]


def test_a_missing_driver_is_no_fault_where_there_is_no_gpu(tmp_path: Path) -> None:
    assert [fault_of(code, "", hardware=False).absent for code in (9, 12, 18)] == [True, True, False]
    for name, vendor, kind in (("a", "0x8086", "0x030000"), ("b", "0x10de", "0x020000")):
        (tmp_path / "bus/pci/devices" / name).mkdir(parents=True)
        (tmp_path / "bus/pci/devices" / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / "bus/pci/devices" / name / "class").write_text(f"{kind}\n")
    assert not has_hardware(tmp_path), "another maker's display, and another device of NVIDIA's"
    (tmp_path / "bus/pci/devices/b/class").write_text("0x030200\n")
    assert has_hardware(tmp_path)


@pytest.mark.parametrize(
    ("driver", "row", "product", "sm", "good"),
    [
        ("580.65.06", ROW, "NVIDIA H200", "9.0", True),
        ("579.99", ROW, "NVIDIA H200", "9.0", False),
        ("1000.1", ROW, "NVIDIA H200", "9.0", True),
        ("450.80.02", A100, "A100-SXM4-40GB", "8.0", True),
        ("450.51.06", A100, "A100-SXM4-40GB", "8.0", False),
        ("nonsense", A100, "A100-SXM4-40GB", "8.0", False),
    ],
)
def test_the_driver_is_held_to_the_floor_as_numbers(
    driver: str, row: Environment, product: str, sm: str, good: bool
) -> None:
    found = decided(host(gpu(0, product, sm), driver=driver), row)
    if good:
        assert found.level is Level.GPU and found.findings == ()
        return
    assert found.device is None and rules(found) == [("gate.driver", "error")]
    assert driver in found.findings[0].message and "R16" in found.findings[0].source
    floor = "580" if row is ROW else "450.80.02"
    assert f"needs {floor}" in found.findings[0].message and f"driver of {floor}" in found.findings[0].fix


def test_the_gpus_own_floor_counts_where_it_is_higher() -> None:
    assert ROW.cuda is not None
    cuda = ROW.cuda.model_copy(update={"version": "12.8"})
    row = ROW.model_copy(update={"gpus": ("b200", "h200"), "cuda": cuda})
    found = decided(host(gpu(0, "NVIDIA B200", "10.0"), driver="560.35.03"), row)
    assert "needs 570.133.20" in found.findings[0].message
    assert decided(host(gpu(0), driver="560.35.03"), row).level is Level.GPU


def test_a_cuda_compat_library_makes_up_for_an_old_driver_on_datacenter_gpus_only() -> None:
    old = host(gpu(0), driver="550.54.15")
    found = decided(old, compat=True)
    assert found.level is Level.GPU and rules(found) == [("gate.driver", "warning")]
    desktop = ROW.model_copy(update={"gpus": ("rtx4090",)})
    found = decided(host(gpu(0, "NVIDIA GeForce RTX 4090", "8.9"), driver="550.54.15"), desktop, compat=True)
    assert rules(found) == [("gate.driver", "error")]


CUDA118 = "cuda>=11.8 brand=tesla,driver>=450,driver<451 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=470"


@pytest.mark.parametrize(
    ("image_env", "driver", "cuda", "brand", "met"),
    [
        ({}, "450.80.02", "11.0", "tesla", True),
        ({"NVIDIA_REQUIRE_CUDA": CUDA118}, "520.61.05", "11.8", "geforce", True),
        ({"NVIDIA_REQUIRE_CUDA": CUDA118}, "450.80.02", "11.0", "Tesla", True),
        ({"NVIDIA_REQUIRE_CUDA": CUDA118}, "450.80.02", "11.0", "geforce", False),
        # Passes the toolkit's floor, and the image's list of branches leaves it out.
        ({"NVIDIA_REQUIRE_CUDA": CUDA118}, "460.32.03", "11.2", "tesla", False),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=11.10"}, "520", "11.9", "tesla", False),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=11.8.0"}, "520", "11.8", "tesla", True),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=13", "NVIDIA_DISABLE_REQUIRE": "true"}, "450", "11.0", "tesla", True),
        ({"NVIDIA_REQUIRE_CUDA": "arch>=8.0", "NVIDIA_REQUIRE_OWN": "driver!=450"}, "450", "11.0", "tesla", False),
        ({"NVIDIA_REQUIRE_CUDA": "gibberish"}, "520", "11.8", "tesla", False),
        ({"NVIDIA_REQUIRE_CUDA": "  "}, "520", "11.8", "tesla", True),
        ({"NVIDIA_REQUIRE_JETPACK": "csv-mounts=all"}, "520", "11.8", "tesla", True),
        ({"CUDA_VERSION": "12.4.1"}, "520", "11.8", "tesla", False),
        ({"CUDA_VERSION": "11.8.0"}, "520", "11.8", "tesla", True),
    ],
)
def test_what_an_image_asks_of_a_driver(
    image_env: dict[str, str], driver: str, cuda: str, brand: str, met: bool
) -> None:
    found = unfulfilled(image_env, driver=driver, cuda=cuda, sm="9.0", brand=brand)
    assert (found == ()) is met


def test_what_the_image_asks_for_is_told_before_the_runtime_refuses_it() -> None:
    found = decided(host(gpu(0, "A100-SXM4-40GB", "8.0"), driver="460.32.03", cuda="11.2"), A100,
                    NVIDIA_REQUIRE_CUDA=CUDA118)  # fmt: skip
    assert rules(found) == [("gate.driver", "error")]
    assert "NVIDIA_REQUIRE_CUDA=cuda>=11.8" in found.findings[0].message


def test_gpus_that_were_named_are_taken_or_refused_and_never_replaced() -> None:
    there = host(gpu(0), gpu(1), gpu(2, "NVIDIA A100-SXM4-80GB", "8.0"))
    assert decided(there, wanted=("1",)).device.gpus == ("GPU-1111",)  # type: ignore[union-attr]
    assert decided(there, wanted=("GPU-1111", "0")).device.ranks == 2  # type: ignore[union-attr]
    for wanted in ("7", "GPU-9999", "2"):
        found = decided(there, wanted=(wanted,))
        assert found.device is None and rules(found) == [("gate.gpu", "error")]
    assert decided(there, wanted=NONE).device is CPU and decided(there, wanted=NONE).findings == ()
    assert rules(decided(fault_of(12, "", hardware=False), wanted=("0",))) == [("gate.driver", "error")]


def test_an_engine_elsewhere_is_left_to_find_out() -> None:
    found = decided(None)
    assert found.unseen and found.device is not None
    assert (found.device.ranks, found.device.gpus) == (0, ALL), "as many ranks as the container sees"
    assert rules(found) == [("gate.gpu", "info")] and "ssh://far" in found.findings[0].message


def test_an_engine_that_cannot_give_gpus_is_refused_before_it_would_ignore_the_request() -> None:
    found = obstructed(ROW, decided(host(gpu(0))), "it is Podman")
    assert found.device is None and rules(found) == [("gate.runtime", "error")]


def test_a_cpu_row_trains_on_the_cpu_whatever_is_there() -> None:
    row = MATRIX.get("cpu")
    assert decided(host(gpu(0)), row).device is CPU
    with pytest.raises(InputError, match="trains on the CPU"):
        decided(host(gpu(0)), row, ("0",))


def test_held_to_no_row_every_gpu_counts() -> None:
    around = Surroundings(host=host(gpu(0, "Tesla T4", "7.5")), image_env={}, any_gpu=True)
    assert decide(ROW.model_copy(update={"gpus": ()}), FACTS, around).level is Level.GPU


@pytest.mark.parametrize("text", ["", "0,", "GPU", "all,0", "-1", "GPU-x y", "0;1", "none,none"])
def test_gpus_that_are_none(text: str) -> None:
    if text == "":
        assert parse_gpus(None) == ALL
        return
    with pytest.raises(InputError, match="is no GPU"):
        parse_gpus(text)


def test_names_and_numbers_of_nvml() -> None:
    assert [version_text(number) for number in (13000, 12040, 11080)] == ["13.0", "12.4", "11.8"]
    assert profile_of("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5 << 30) == "1g.5gb"
    assert profile_of("NVIDIA H200 MIG 1c.3g.71gb", 71 << 30) == "1c.3g.71gb"
    assert profile_of("NVIDIA H200 MIG 1g.18gb+me", 18 << 30) == "1g.18gb+me"
    assert profile_of("NVIDIA H200", 18 << 30) == "18gb"
