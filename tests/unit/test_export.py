"""What an export is asked for, understood; and which parts a row can have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from envbuild import facts, plan, sbom
from envbuild.bundle.rpms import Checked, Nevra, Package
from envbuild.bundle.sections import Target, Wheel, Wheels
from envbuild.bundle.words import Label
from envbuild.errors import EngineError, GateError, InputError
from envbuild.matrix.load import load
from envbuild.model import Environment, Level, Severity
from envbuild.net import Missing, NetworkError
from envbuild.pipeline import export as exporting
from envbuild.pipeline.exported import Wish, parse_name, parse_pairs, parse_parts, parse_volume, release_of, target_of
from envbuild.pipeline.exported_bill import bill
from envbuild.pipeline.exported_image import Carried
from envbuild.pipeline.exported_parts import choose
from envbuild.pipeline.exported_rpms import roots_of

REPOSITORY = Path(__file__).parents[2]
MATRIX = load(REPOSITORY / "matrix.yaml")
EL8, CPU = MATRIX.get("rhel8-cu118"), MATRIX.get("cpu")


@pytest.mark.parametrize(
    ("text", "count"),
    [("4.3GB", 4_300_000_000), ("650 MB", 650_000_000), ("4GiB", 4 << 30), ("25gb", 25 * 10**9), ("1000000", 10**6),
     ("0.5 TiB", 1 << 39), (None, None)],
)  # fmt: skip
def test_volumes_are_as_large_as_their_boxes_say(text: str | None, count: int | None) -> None:
    assert parse_volume(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "4,3GB", "4.3 GBit", "1" * 40, "٤GB", "inf"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InputError, match="is no size"):
        parse_volume(text)


@pytest.mark.parametrize(("text", "meant"), [("4.3", "4.3GB"), ("999kB", "Such as"), ("0GB", "Such as")])
def test_what_is_no_medium_is_said_before_anything_is_fetched(text: str, meant: str) -> None:
    with pytest.raises(InputError, match="is no medium") as told:
        parse_volume(text)
    assert meant in told.value.hint


def test_the_name_of_a_bundle_can_be_a_folder() -> None:
    assert (parse_name(None), parse_name("tools-8.8_a")) == (None, "tools-8.8_a")
    for wrong in ("", "a/b", "..", "-rf", "a b", "ü", "a" * 61, "a\n"):
        with pytest.raises(InputError, match="cannot be the name"):
            parse_name(wrong)
        # What the manifest would refuse is told before there is one.
        with pytest.raises(ValidationError):
            TypeAdapter(Label).validate_python(wrong)


def test_parts_and_pairs_are_taken_in_any_order_and_each_once() -> None:
    assert parse_parts("doctor, rpms,rpms") == ("rpms", "doctor")
    assert parse_pairs("--repo", ["a=https://x/?b=c", "d=file:///e"], "=") == {"a": "https://x/?b=c", "d": "file:///e"}
    for wrong in (["a"], ["=b"], ["a="], ["a=b", "a=c"]):
        with pytest.raises(InputError, match="--repo"):
            parse_pairs("--repo", wrong, "=")


def test_machines_of_every_row_are_known() -> None:
    known = facts.load()
    found = {env: target_of(MATRIX.get(env), known, Wish()) for env in MATRIX.environments}
    assert (found["cpu"].distro, found["cpu"].major, found["cpu"].arch) == ("debian", 12, "x86_64")
    assert (found["rhel8-cu118"].distro, found["rhel8-cu118"].major) == ("rocky", 8)
    assert {(each.distro, each.major) for each in found.values()} >= {("centos", 7), ("ubuntu", 22)}
    # Whatever a bundle of wheels is held to is known of each.
    assert {release_of(MATRIX.get(env), known) for env in MATRIX.environments} <= known.runtimes.keys()
    exact = target_of(EL8, known, Wish(releasever="8.8", arch="aarch64", fips=True))
    assert (exact.releasever, exact.arch, exact.fips) == ("8.8", "aarch64", True)
    for wrong in ("9.2", "eight", "8.8.8.8"):
        with pytest.raises(InputError, match="--releasever"):
            target_of(EL8, known, Wish(releasever=wrong))


def parts(env: Environment, wish: Wish) -> tuple[str, ...]:
    return choose(env, target_of(env, facts.load(), wish), wish).parts


def test_a_row_gets_the_parts_that_make_sense() -> None:
    assert parts(EL8, Wish()) == ("rpms", "wheels", "image", "doctor")
    assert parts(CPU, Wish()) == ("wheels", "image", "doctor")
    foreign = choose(EL8, target_of(EL8, facts.load(), Wish(arch="aarch64")), Wish(arch="aarch64"))
    assert foreign.parts == ("rpms", "doctor") and foreign.findings[0].rule == "export.arch" and not foreign.needs_row
    for env, wish in (
        (CPU, Wish(parts=("rpms",))), (CPU, Wish(roots=("gcc",))), (CPU, Wish(fips=True)),
        (EL8, Wish(parts=("doctor",), repositories={"a": "file:///b"})), (EL8, Wish(arch="vax")),
        (EL8, Wish(arch="aarch64", parts=("image",))),
    ):  # fmt: skip
        with pytest.raises(InputError):
            parts(env, wish)
    roots = roots_of(plan.make(EL8, None, facts.load()))
    assert {"gcc-toolset-11-gcc", "gcc-toolset-11-gcc-c++", "python3.11-devel", "libaio-devel"} <= set(roots)


@pytest.mark.parametrize(
    "error", [GateError("there is none", hint="build it"), EngineError("nobody answers", hint="x")]
)
def test_a_missing_image_is_told_unless_it_was_asked_for(error: GateError | EngineError) -> None:
    def find() -> None:
        raise error

    to = target_of(EL8, facts.load(), Wish())
    carried, (finding,) = choose(EL8, to, Wish()).tried(find, EL8)  # type: ignore[arg-type]
    assert carried is None and finding.severity is Severity.WARNING and finding.fix == error.hint
    assert error.message in finding.message and "compiled there" in finding.message
    with pytest.raises(type(error)):
        choose(EL8, to, Wish(parts=("image",))).tried(find, EL8)  # type: ignore[arg-type]


def test_a_registry_that_does_not_answer_may_have_the_image() -> None:
    """The next run would give another bundle; that it has none is an answer."""
    to = target_of(EL8, facts.load(), Wish())

    def find(error: NetworkError) -> Callable[[], Carried]:
        def fail() -> Carried:
            raise error

        return fail

    with pytest.raises(NetworkError) as raised:
        choose(EL8, to, Wish()).tried(find(NetworkError("nobody answers", hint="Try again.")), EL8)
    assert raised.value.hint == "Try again. Or leave the image out: --what rpms,wheels,doctor"
    assert choose(EL8, to, Wish()).tried(find(Missing("no such image")), EL8)[0] is None


def test_the_bill_has_everything_once_and_is_the_same_bytes() -> None:
    nevra = Nevra(name="libaio", epoch="1", version="0.3", release="1.el8", arch="x86_64")
    package = Package(
        nevra=nevra, repository="baseos", checksum=("sha256", "0" * 64), location=("a.rpm", None), bytes=1,
        installed_bytes=2, licence="LGPLv2+", source_rpm="libaio-0.3-1.el8.src.rpm", vendor="Rocky",
    )  # fmt: skip
    checked = Checked(package=package, path=Path("a.rpm"), sha256="0" * 64, signature=None)
    wheel = Wheel(name="torch", version="2.1.0+cu118", file="wheels/torch.whl", sha256="1" * 64)
    wheels = Wheels(python="3.11", platform="linux/amd64", requirements="wheels/r.lock", packages=(wheel,))
    to = Target(distro="rocky", major=8, arch="x86_64")
    made = [bill("row", "2026-11-30T00:00:00Z", to, packages=(checked,), wheels=wheels) for _ in range(2)]
    assert made[0] == made[1]
    document = json.loads(made[0])
    assert document["metadata"]["timestamp"].startswith("2026-11-30T00:00:00")
    found = {part["name"]: part for part in document["components"]}
    assert found["libaio"]["purl"] == (
        "pkg:rpm/rocky/libaio@0.3-1.el8?arch=x86_64&distro=rocky-8&epoch=1&upstream=libaio-0.3-1.el8.src.rpm"
    )
    assert found["torch"]["hashes"][0]["content"] == "1" * 64 and found["torch"]["purl"].startswith(
        "pkg:pypi/torch@2.1"
    )
    assert f"{document['bomFormat']} {document['specVersion']}" == sbom.FORMAT


@dataclass(frozen=True)
class Bench:
    """Stands for a workbench: variables are all that is asked of it."""

    environ: dict[str, str]


def test_a_bundle_has_the_time_that_is_said_or_none_that_depends_on_today() -> None:
    """The first day that media can name, where nothing in it has a date."""
    assert exporting._created(Bench({"SOURCE_DATE_EPOCH": "1700000000"}), None, None) == "2023-11-14T22:13:20Z"  # type: ignore[arg-type]
    assert exporting._created(Bench({}), None, None) == "1980-01-01T00:00:00Z"  # type: ignore[arg-type]
    carried = Carried(reference="a/b:c", level=Level.CPU, size=1, created="2026-05-04T03:02:01.123456789Z")
    assert exporting._created(Bench({}), None, carried) == "2026-05-04T03:02:01Z"  # type: ignore[arg-type]
    for wrong in ("yesterday", "-1", "1", "9" * 30, ""):
        with pytest.raises(InputError, match="SOURCE_DATE_EPOCH"):
            exporting._created(Bench({"SOURCE_DATE_EPOCH": wrong}), None, None)  # type: ignore[arg-type]


def test_every_finding_of_an_export_is_documented() -> None:
    documented = set(re.findall(r"`((?:rpm|export)\.[a-z0-9-]+)`", (REPOSITORY / "docs/bundle.md").read_text()))
    package = REPOSITORY / "builder/envbuild"
    sources = [*(package / "bundle/rpms").glob("*.py"), *(package / "pipeline").glob("exported*.py")]
    said = {name for path in sources for name in re.findall(r'"((?:rpm|export)\.[a-z0-9-]+)"', path.read_text())}
    assert said == documented
