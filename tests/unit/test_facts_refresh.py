"""A refresh from folders of self-made packages: what is proven, what changes, what is left alone."""

from __future__ import annotations

import datetime
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import upstream as made
from envbuild import facts
from envbuild.errors import InputError
from envbuild.facts.known import look_up, overview
from envbuild.facts.refresh import Outcome, refresh, write
from envbuild.facts.refresh.together import together
from envbuild.facts.upstream import Upstream
from envbuild.net import Missing
from envbuild.site.pip import PipSettings

TODAY = datetime.date(2026, 11, 30)
SHIPPED = Path(__file__).parents[2] / "facts"


class Site:
    """Facts that may be changed, and a folder in place of the package index."""

    def __init__(self, root: Path) -> None:
        self.facts = root / "facts"
        self.wheels = root / "wheels"
        self.wheels.mkdir()
        shutil.copytree(SHIPPED, self.facts)
        self.cache = root / "cache"
        self.ops = b""

    def refresh(self, *topics: str, today: datetime.date = TODAY) -> Outcome:
        pip = PipSettings(no_index=True, find_links=(str(self.wheels),))
        return refresh(Upstream(pip, self.cache), [self.facts], topics, today)

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.facts / f"{name}.yaml"
        text = path.read_text()
        assert text.count(old) == 1, old
        path.write_text(text.replace(old, new))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    found = Site(tmp_path)
    for version in ("2.11.0",):
        made.torch(found.wheels, version)
    made.wheel(found.wheels, "torchvision", "0.26.0", "torch (==2.11.0)", tag=f"cp310-cp310-{made.X86}")
    made.wheel(found.wheels, "torchaudio", "2.11.0", tag=f"cp310-cp310-{made.X86}")
    return found


def of(outcome: Outcome, kind: str) -> dict[str, tuple[str | None, str]]:
    return {f"{c.fact}.{c.key}": (c.old, c.new) for c in outcome.changes if c.kind == kind}


def test_what_upstream_says_again_changes_nothing(site: Site) -> None:
    outcome = site.refresh("torch")
    assert of(outcome, "changed") == of(outcome, "proven") == of(outcome, "renewed") == {}
    assert outcome.confirmed >= 4
    # What the folder does not hold is named, and no line of it is touched.
    assert any(each.subject == "torch 2.12.1" for each in outcome.unread)
    assert not outcome.failed
    for file in outcome.files:
        assert "2.12.1" not in "".join(line for line in file.diff.splitlines() if line[:1] in "+-")


def test_a_contradiction_is_shown_with_both_values_and_loses_its_old_evidence(site: Site) -> None:
    for path in site.wheels.glob("torch-2.11.0*"):
        path.unlink()
    made.torch(site.wheels, "2.11.0", nccl="2.99.1", flags=b"sm_90 sm_100", pythons=("cp311", "cp314"))
    outcome = site.refresh("torch")
    assert of(outcome, "changed") == {
        "versions.2.11.0.python_min": ("3.10", "3.11"),
        "versions.2.11.0.builds.cu130.nccl": ("2.28.9", "2.99.1"),
        "versions.2.11.0.builds.cu130.architectures.sm": ("7.5, 8.0, 8.6, 9.0, 10.0, 12.0", "9.0, 10.0"),
    }
    (file,) = outcome.files
    assert "-        nccl: 2.28.9\n+        nccl: 2.99.1\n" in file.diff
    assert (site.facts / "torch.yaml").read_text() == file.old, "nothing is written before write()"
    (path,) = write(outcome, site.facts)
    assert facts.load([site.facts]).versions["2.11.0"].builds["cu130"].nccl == "2.99.1"
    assert site.refresh("torch").files == (), "a second refresh has nothing to say"
    assert path.read_text().count("\n") == file.new.count("\n")


def test_a_weak_mark_is_raised_and_its_note_goes(site: Site) -> None:
    site.edit(
        "torch",
        "version: 0.26.0, mark: verified, source: wheel METADATA of torchvision 0.26.0, date: 2026-11-30",
        "version: 0.26.0, mark: unverified, source: no primary source found, date: 2026-11-01, note: guess",
    )
    outcome = site.refresh("torch")
    assert of(outcome, "proven") == {"versions.2.11.0.torchvision.mark": ("unverified", "verified")}
    found = yaml.safe_load(outcome.files[0].new)["versions"]["2.11.0"]["torchvision"]
    source = "wheel METADATA of torchvision 0.26.0"
    assert found == {"version": "0.26.0", "mark": "verified", "source": source, "date": TODAY}


def test_dates_are_renewed_only_when_they_are_old(site: Site) -> None:
    assert of(site.refresh("torch", today=TODAY + datetime.timedelta(days=30)), "renewed") == {}
    later = TODAY + datetime.timedelta(days=31)
    renewed = of(site.refresh("torch", today=later), "renewed")
    assert renewed["versions.2.11.0.pypi.date"] == ("2026-11-30", later.isoformat())


def test_a_new_release_is_taken_whole_or_not_at_all(site: Site) -> None:
    made.torch(site.wheels, "2.16.0", build="13.2", nccl="2.40", pythons=("cp311", "cp315", "cp315t"))
    made.torch(site.wheels, "2.17.0rc1")
    made.torch(site.wheels, "2.10.1", build="12.8")
    made.wheel(site.wheels, "torchvision", "0.30.0", "torch==2.16.0", tag=f"cp311-cp311-{made.X86}")
    outcome = site.refresh("torch")
    write(outcome, site.facts)
    known = facts.load([site.facts])
    release = known.versions["2.16.0"]
    assert (release.python_min, release.python_max) == ("3.11", "3.15")
    assert release.pypi and release.pypi.build == "cu132"
    assert release.torchvision and release.torchvision.version == "0.30.0" and release.torchaudio is None
    assert release.builds["cu132"].nccl == "2.40"
    architectures = release.builds["cu132"].architectures
    assert architectures and architectures.sm == ("7.5", "8.0", "8.6", "9.0", "10.0", "12.0")
    assert not {"2.17.0rc1", "2.10.1"} & set(known.versions)
    assert list(yaml.safe_load((site.facts / "torch.yaml").read_text())["versions"])[-1] == "2.16.0"


def half(site: Site) -> None:
    made.wheel(site.wheels, "torch", "2.16.0", tag=f"cp311-cp311-{made.X86}")


def cut(site: Site) -> None:
    made.torch(site.wheels, "2.16.0", pythons=("cp311",))
    path = next(site.wheels.glob("torch-2.16.0*"))
    path.write_bytes(path.read_bytes()[:-100])


def two_lists(site: Site) -> None:
    made.torch(site.wheels, "2.16.0", flags=b"sm_75 sm_80\0sm_90 sm_100", pythons=("cp311",))


def no_list(site: Site) -> None:
    made.torch(site.wheels, "2.16.0", flags=b"sm_75", pythons=("cp311",))


@pytest.mark.parametrize("spoil", [half, cut, two_lists, no_list])
def test_a_release_that_cannot_be_read_is_no_fact(site: Site, spoil: Callable[[Site], None]) -> None:
    spoil(site)
    outcome = site.refresh("torch")
    assert outcome.failed
    assert any(each.subject == "torch 2.16.0" and each.failed for each in outcome.unread)
    assert all("2.16.0" not in change.fact for change in outcome.changes)


def test_a_build_of_another_index_is_read_where_it_is(site: Site) -> None:
    needs = ('triton==2.1.0; platform_system == "Linux"',)
    members = {
        "torch/version.py": b"cuda = '11.8'\n",
        "torch/lib/libtorch_python.so": b"\0sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_37 sm_90\0",
    }
    made.wheel(site.wheels, "torch", "2.1.2+cu118", *needs, tag=f"cp310-cp310-{made.X86}", members=members)
    outcome = site.refresh("torch")
    assert not outcome.failed, outcome.unread
    assert any("linked statically" in each.reason and "2.1.2+cu118" in each.subject for each in outcome.unread)
    write(outcome, site.facts)
    builds = [facts.load([site.facts]).versions[version].builds["cu118"] for version in ("2.1.0", "2.1.2")]
    assert builds[1].architectures and builds[1].architectures.sm[-2:] == ("3.7", "9.0")
    assert (
        builds[1].architectures.source
        == "wheel torch 2.1.2+cu118 in a configured index, CUDA_ARCH_FLAGS in libtorch_python.so"
    )
    assert builds[0].architectures != builds[1].architectures, "the release that shared it by an alias keeps its own"
    assert builds[0].nccl == builds[1].nccl == "2.18"


# --- DeepSpeed and NVIDIA ---------------------------------------------------------------------------------------------


def ops_of(site: Site) -> None:
    """Source archives whose op registry is the one that the facts know."""
    text = "".join(
        f'class {op.builder}:\n    BUILD_VAR = "{op.build_variable}"\n    NAME = "{name}"\n'
        for name, op in facts.load([site.facts]).deepspeed.ops.items()
    )
    site.ops = made.BUILDER + text.encode()


def test_a_newer_deepspeed_is_known_once_all_of_it_fits(site: Site) -> None:
    ops_of(site)
    more = site.ops.replace(b"    12: [", b'    13: ["13.0", "13.2"],\n    12: [')
    made.deepspeed(site.wheels, "0.19.8", builder=site.ops)
    made.deepspeed(site.wheels, "0.20.0", builder=site.ops)
    made.deepspeed(site.wheels, "0.20.1", builder=more)
    outcome = site.refresh("deepspeed")
    assert not outcome.remarks and not outcome.failed
    write(outcome, site.facts)
    known = facts.load([site.facts]).deepspeed
    assert known.newest.version == "0.20.1"
    assert (known.tolerated_cuda[-1].since, known.tolerated_cuda[-1].cuda) == ("0.20.1", ("13.0", "13.2"))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b'NAME = "cpu_adam"', b'NAME = "cpu_adam2"', "has no op cpu_adam any more"),
        (b'"DS_BUILD_FUSED_ADAM"', b'"DS_BUILD_FUSED"', "its op fused_adam is now FusedAdamBuilder, DS_BUILD_FUSED"),
        (b'"12.8", "12.9"', b'"12.9"', "no longer lists CUDA 12.8"),
    ],
)
def test_what_no_fact_can_hold_is_for_a_person(site: Site, old: bytes, new: bytes, expected: str) -> None:
    ops_of(site)
    made.deepspeed(site.wheels, "0.20.0", builder=site.ops.replace(old, new))
    outcome = site.refresh("deepspeed")
    assert any(expected in remark.message for remark in outcome.remarks)
    assert "newest.version" not in of(outcome, "changed"), "facts that do not hold for it do not name it"


def test_another_pydantic_is_for_a_person(site: Site) -> None:
    ops_of(site)
    made.deepspeed(site.wheels, "0.20.0", builder=site.ops, pydantic="pydantic<2")
    assert ["asks for pydantic<2" in each.message for each in site.refresh("deepspeed").remarks] == [True]


def test_names_from_upstream_cannot_steer_a_terminal(site: Site) -> None:
    ops_of(site)
    evil = site.ops + b'class EvilBuilder:\n    NAME = "\\x1b[2Jgone"\n    BUILD_VAR = "X\\ny"\n'
    made.deepspeed(site.wheels, "0.20.0", builder=evil)
    (remark,) = site.refresh("deepspeed").remarks
    assert "?[2Jgone" in remark.message and remark.message.isprintable()


@pytest.mark.parametrize("builder", [b"", b"def x(:", b"cuda_minor_mismatch_ok = load()", b"(" * 100_000])
def test_a_builder_of_another_shape_is_loud(site: Site, builder: bytes) -> None:
    made.deepspeed(site.wheels, "0.20.0", builder=builder)
    outcome = site.refresh("deepspeed")
    assert outcome.failed and not outcome.files
    assert [each.subject for each in outcome.unread if each.failed] == ["DeepSpeed 0.20.0"]


def test_toolkits_by_their_wheels(site: Site) -> None:
    limit = b"#error -- unsupported GNU version! gcc versions later than %d are not supported! The nvcc flag\n"
    for version in ("13.0.2", "13.1.0", "13.6.0", "13.7.0rc1"):
        made.wheel(site.wheels, "cuda_toolkit", version)
    for version, gcc in (("13.0.88", 15), ("13.1.80", 15), ("13.6.1", 17), ("13.2.1", 9)):
        members = {"nvidia/cu13/include/crt/host_config.h": limit % gcc}
        made.wheel(site.wheels, "nvidia_cuda_crt", version, tag=f"py3-none-{made.X86}", members=members)
    (known,) = re.findall(r'(?m)^  "13\.1": .*\n', (site.facts / "toolkits.yaml").read_text())
    site.edit("toolkits", known, "")
    outcome = site.refresh("toolkits")
    assert of(outcome, "changed")["toolkits.13.2.max_gcc"] == ("15", "9")
    assert of(outcome, "added")["toolkits.13.1.max_gcc"] == (None, "15")
    assert of(outcome, "added")["toolkit_wheels.13.6.newest"] == (None, "13.6.0")
    # Which architectures it compiles for is not in the header, and an open end of the facts must not reach it unseen.
    assert [(each.subject, "up to 17" in each.message) for each in outcome.remarks] == [("CUDA 13.6", True)]
    assert any(each.subject == "CUDA 12.9: max_gcc" and not each.failed for each in outcome.unread)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_no_index_that_knows_the_package_is_an_error(site: Site) -> None:
    with pytest.raises(Missing, match="deepspeed: not found"):
        site.refresh("deepspeed")
    with pytest.raises(InputError, match="nothing to refresh is called pytorch"):
        site.refresh("pytorch")


def test_a_file_that_somebody_edits_meanwhile_is_not_overwritten(site: Site) -> None:
    site.edit("torch", "        nccl: 2.28.9\n", "        nccl: 2.28.8\n")
    outcome = site.refresh("torch")
    assert outcome.files
    site.edit("torch", "# PyTorch wheels, Linux x86-64.", "# Mine.")
    with pytest.raises(InputError, match="was changed while upstream was read"):
        write(outcome, site.facts)
    assert "# Mine." in (site.facts / "torch.yaml").read_text()


def test_facts_that_load_would_refuse_are_not_shown(site: Site) -> None:
    for path in site.wheels.glob("torch-2.11.0*"):
        path.unlink()
    made.torch(site.wheels, "2.11.0", nccl="2.99.1.dev5")
    with pytest.raises(InputError, match=r"facts: versions\.2\.11\.0\.builds\.cu130\.nccl"):
        site.refresh("torch")


def test_together_keeps_the_order_and_raises_the_first_failure() -> None:
    assert together(lambda n: n * n, range(20)) == [n * n for n in range(20)]
    assert together(lambda n: n, []) == []
    with pytest.raises(ZeroDivisionError):
        together(lambda n: 1 // n, [1, 0, 2])


def test_facts_are_looked_up_by_words(tmp_path: Path) -> None:
    found = {entry.name for entry in look_up([SHIPPED], ["torch", "2.7"])}
    assert {"versions.2.7.0", "versions.2.7.1", "versions.2.7.1.builds.cu126"} <= found
    assert not any("2.8" in name for name in found)
    (entry,) = look_up([SHIPPED], ["DeepSpeed", "cuda13"])
    assert entry.values["version"] == "0.19.7" and entry.mark == "verified" and entry.date
    with pytest.raises(InputError, match="nothing is known about torhc") as raised:
        look_up([SHIPPED], ["torhc"])
    assert "torch" in raised.value.hint
    hidden = tmp_path / "facts"
    hidden.mkdir()
    (hidden / "gpus.yaml").write_text(
        "gpus: {v100: {name: V100, sm: '7.0', mark: verified, source: x, date: 2020-01-01}}"
    )
    file = next(file for file in overview([hidden, SHIPPED]) if file.name == "gpus")
    assert file.newer == SHIPPED / "gpus.yaml" and file.stale(TODAY) == 1 and file.marked("verified") == 1
