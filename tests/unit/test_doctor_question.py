"""doctor as one question: what it looks at, with which GPUs, and what it says of a question that cannot be answered."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.doctor.collection import Collection
from envbuild.engines.gpufaults import FAULTS, GpuStartError
from envbuild.errors import GateError, InputError
from envbuild.pipeline import doctoring
from envbuild.pipeline.doctoring import Question, chosen, doctor, document, params_of
from envbuild.pipeline.gpus import DriverFault, Gpu, HostGpus
from envbuild.pipeline.workbench import Workbench
from machines import gpu_machine, machine

HOST = HostGpus(driver="580.1", cuda="13.0", gpus=(Gpu(index=0, uuid="GPU-1", name="H200", sm="9.0", memory_bytes=1),))
NONE = DriverFault(message="no NVIDIA driver", fix="", absent=True)


@pytest.mark.parametrize(("host", "gpus"), [(HOST, ("all",)), (NONE, ())])
def test_an_image_is_looked_at_with_the_gpus_of_the_host(
    host: object, gpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def examine(bench: Workbench, image: str, **how: Any) -> Collection:
        asked.append(how.get("gpus", ()))
        return machine(image=image)

    monkeypatch.setattr(doctoring, "read_gpus", lambda: host)
    monkeypatch.setattr(doctoring, "examine_image", examine)
    told = doctor(Workbench(), Question(image="team/train:1"))
    assert asked == [gpus] and not told.report.wrong and told.report.subject == "image team/train:1"


def test_an_engine_that_cannot_hand_on_the_gpus_is_an_error_and_the_rest_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def examine(bench: Workbench, image: str, **how: Any) -> Collection:
        if how.get("gpus"):
            said = 'could not select device driver "" with capabilities: [[gpu]]'
            raise GpuStartError(said, FAULTS[0], doing="start a container")
        return gpu_machine(image=image, machine={"container": "docker"})

    notes: list[Any] = []
    monkeypatch.setattr(doctoring, "read_gpus", lambda: HOST)
    monkeypatch.setattr(doctoring, "examine_image", examine)
    told = doctor(Workbench(sink=notes.append), Question(image="team/train:1"))
    first = document(told)["findings"][0]
    assert first["rule"] == "container.refused" and "nvidia-container-toolkit" in first["fix"] and told.report.wrong
    assert "could not select device driver" in first["evidence"][0]
    assert any("without GPUs" in getattr(each, "message", "") for each in notes)
    # Who reads the saved facts is told, too.
    assert [each.part for each in told.collection.errors] == ["GPUs of the container"]


def test_an_image_that_is_not_there_is_a_question_that_cannot_be_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def examine(bench: Workbench, image: str, **how: Any) -> Collection:
        raise GateError("there is no image", hint="pull it")

    monkeypatch.setattr(doctoring, "read_gpus", lambda: NONE)
    monkeypatch.setattr(doctoring, "examine_image", examine)
    with pytest.raises(InputError, match="there is no image") as caught:
        doctor(Workbench(), Question(image="team/train:1"))
    assert caught.value.exit_code == 2 and caught.value.hint == "pull it"


@pytest.mark.parametrize(
    ("text", "count"), [("7b", 7e9), ("1.3B", 1.3e9), ("350 m", 3.5e8), ("70000000000", 7e10), ("1t", 1e12)]
)
def test_parameters_are_said_as_people_say_them(text: str, count: float) -> None:
    assert params_of(text) == count


@pytest.mark.parametrize("text", ["", "b", "-7b", "7bb", "0", "1e9999", "nan", "9" * 400, "٧b", "10000t"])
def test_what_is_no_number_of_parameters_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no number of parameters"):
        params_of(text)


def test_checks_are_chosen_by_name_in_the_order_of_the_list() -> None:
    assert [each.name for each in chosen(("shm", "nccl"))] == ["nccl", "shm"]
    with pytest.raises(InputError, match="there is no check 'nccll'") as caught:
        chosen(("nccll",))
    assert "Did you mean 'nccl'?" in caught.value.hint
