"""What would be taken equals what dnf takes, on every kind of dependency, on empty and on filled targets.

dnf is the oracle: ``install --downloadonly`` into a root of its own. The packages are real, and hold next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envbuild.bundle import rpms
from envbuild.bundle.rpms import EMPTY, Installed, Nevra, Plan, Request, Source, System, Target
from envbuild.site.sections import NetworkSection
from rpm_repositories import DEFAULT, Dnf, Rpm, build, collected, index, need_tools, node, p

EL8 = System(distro="rocky", major=8)
SONAME = "libz.so.1()(64bit)", "libz.so.1(ZLIB_1.2)(64bit)"
WORLD: tuple[Rpm, ...] = (
    # A chain, with several versions and an epoch that beats a higher version.
    p("chain", "2-1", "Requires: link >= 1:1"),
    p("link", "1:1-1", "Requires: end = 1-2"), p("link", "9-1"),
    p("end", "1-1"), p("end", "1-2"), p("end", "2-1"),
    # Rich dependencies.
    p("rich-if", "1-1", "Requires: (plugin if host)", "Requires: host"), p("host"), p("plugin"),
    p("rich-without-host", "1-1", "Requires: (plugin if absent)"),
    p("rich-and", "1-1", "Requires: (left and right)"), p("left"), p("right"),
    p("rich-or", "1-1", "Requires: (nowhere or right)"),
    p("rich-unless", "1-1", "Conflicts: (left unless right)", "Requires: left"),
    p("rich-with", "1-1", "Requires: (capability >= 2 with capability < 3)"),
    p("offers", "1-1", "Provides: capability = 1"), p("offers", "2-1", "Provides: capability = 2"),
    p("offers", "3-1", "Provides: capability = 3"),
    # Files: one that primary metadata lists, one that only the file lists know, and one behind which an older
    # version would do in silence.
    p("file-near", "1-1", "Requires: /usr/bin/tool"), p("tools", files={"/usr/bin/tool": "x"}),
    p("file-far", "1-1", "Requires: /usr/share/far/data"), p("far", files={"/usr/share/far/data": "x"}),
    p("silent", "1-1", "Requires: choice"), p("choice", "1-1"), p("choice", "2-1", "Requires: /usr/share/far/data"),
    # A library, old and new: the symbol version decides.
    p("program", "1-1", f"Requires: {SONAME[1]}"),
    p("zlib", "1-1", f"Provides: {SONAME[0]}"), p("zlib-ng", "1-1", *(f"Provides: {name}" for name in SONAME)),
    # Conflicts, obsoletes, weak dependencies.
    p("peace", "1-1", "Requires: service"), p("service-a", "1-1", "Provides: service", "Conflicts: peace"),
    p("service-b", "1-1", "Provides: service"),
    p("wants-old", "1-1", "Requires: old-name"), p("old-name", "1-1"),
    p("new-name", "2-1", "Obsoletes: old-name < 2", "Provides: old-name = 2"),
    p("weak", "1-1", "Recommends: nice", "Suggests: nicer"), p("nice"), p("nicer"),
    p("supplement", "1-1", "Supplements: weak"),
    # Machines.
    p("both", arch="x86_64"), p("both", arch="i686"),
    p("needs-both", "1-1", "Requires: both"),
    # What is installed beside older versions of itself.
    *(p("kernel-core", evr, "Provides: installonlypkg(kernel)") for evr in ("1-1", "2-1")),
    *(p("kmod", evr, f"Requires: kernel-core = {evr}") for evr in ("1-1", "2-1")),
    # A library with a sibling that wants its exact version.
    p("lib", "1-1"), p("lib", "2-1"),
    p("lib-devel", "1-1", "Requires: lib = 1-1"), p("lib-devel", "2-1", "Requires: lib = 2-1"),
    p("needs-new-lib", "1-1", "Requires: lib >= 2"),
    # Streams of a module, a plain package of the same name, and one that provides that name.
    p("node", "10-1"), p("node", "12-1"), p("node", "12-2"), p("node-extra", "12-1"), p("node", "20-1"),
    p("node-like", "1-1", "Provides: node = 30"), p("runs-on-node", "1-1", "Requires: node"),
    p("wants-extra", "1-1", "Requires: node-extra"), p("perl", "5-1"), p("perl-node", "1-1", "Requires: perl"),
)  # fmt: skip
MODULES = (
    node("10", "node-0:10-1.noarch")
    + node("12", "node-0:12-1.noarch", "node-extra-0:12-1.noarch")
    + node("12", "node-0:12-2.noarch", version=2)
    + node("5", "perl-0:5-1.noarch", name="perl")
    + node("1", "perl-node-0:1-1.noarch", name="pn", requires="{platform: [el8], perl: ['5']}")
    + DEFAULT
)
# Each asks for something that the others leave alone.
ASKED = {
    "chain": ["chain"], "if": ["rich-if"], "if-not": ["rich-without-host"], "and": ["rich-and"], "or": ["rich-or"],
    "unless": ["rich-unless"], "with": ["rich-with"], "near": ["file-near"], "far": ["file-far"], "silent": ["silent"],
    "soname": ["program"], "conflict": ["peace"], "obsolete": ["wants-old"], "weak": ["weak"], "arch": ["needs-both"],
    "by-file": ["/usr/bin/tool"], "by-far-file": ["/usr/share/far/data"], "by-capability": [SONAME[1]],
    "by-version": ["end-1-1.noarch"], "by-arch": ["both.x86_64"], "kernel": ["kernel-core"],
    "default-stream": ["runs-on-node"],
    "many": ["chain", "rich-if", "file-far", "program", "weak", "needs-new-lib", "needs-both", "runs-on-node"],
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_tools()
    folder = tmp_path_factory.mktemp("world")
    build(folder, WORLD)
    return index(folder, modules=MODULES)


def planned(cache: Path, repository: Path, roots: list[str], *targets: Target, **changes: Any) -> Plan:
    request = Request(
        roots=tuple(roots), sources=(Source(id="world", baseurls=(f"{repository.as_uri()}/",)),), system=EL8,
        targets=targets or (EMPTY,), **changes,
    )  # fmt: skip
    return rpms.plan(request, NetworkSection(), cache=cache)


def taken(plan: Plan, number: int = 0) -> frozenset[str]:
    """Names as dnf's downloaded files have them, without the epoch."""
    assert plan.good, plan.findings
    found = (each.nevra for each in plan.closures[number].installs)
    return frozenset(f"{each.name}-{each.version}-{each.release}.{each.arch}" for each in found)


@pytest.mark.parametrize("kind", ASKED)
def test_an_empty_target_gets_what_dnf_would_give_it(world: Path, tmp_path: Path, kind: str) -> None:
    expected = Dnf(tmp_path / "root", {"world": world}).installs(*ASKED[kind])
    assert taken(planned(tmp_path / "cache", world, ASKED[kind])) == expected
    assert expected


def test_every_kind_is_what_it_says(world: Path, tmp_path: Path) -> None:
    """The oracle alone could agree on a world that tests nothing."""

    def got(kind: str) -> frozenset[str]:
        return taken(planned(tmp_path / "cache", world, ASKED[kind]))

    assert got("chain") == {"chain-2-1.noarch", "link-1-1.noarch", "end-1-2.noarch"}
    assert "plugin-1-1.noarch" in got("if") and "plugin-1-1.noarch" not in got("if-not")
    assert "choice-2-1.noarch" in got("silent"), "an older version was taken for want of the file lists"
    assert "zlib-ng-1-1.noarch" in got("soname")
    assert got("weak") == {"weak-1-1.noarch"}
    assert "both-1-1.x86_64" in got("arch") and "both-1-1.i686" not in got("arch")
    assert "node-10-1.noarch" in got("default-stream")


@pytest.mark.parametrize("stream", ["10", "12"])
@pytest.mark.parametrize("roots", [["runs-on-node"], ["node"]])
def test_an_enabled_stream_decides_as_it_does_for_dnf(
    world: Path, tmp_path: Path, stream: str, roots: list[str]
) -> None:
    dnf = Dnf(tmp_path / "root", {"world": world})
    assert dnf.run("module", "enable", f"node:{stream}").returncode == 0
    plan = planned(tmp_path / "cache", world, roots, streams={"node": stream})
    assert taken(plan) == dnf.installs(*roots)
    assert [(each.name, each.stream, each.how) for each in plan.streams] == [("node", stream, "enable")]


def test_an_older_version_of_a_stream_and_a_stream_that_another_one_needs(world: Path, tmp_path: Path) -> None:
    dnf = Dnf(tmp_path / "root", {"world": world})
    assert dnf.run("module", "enable", "node:12", "pn:1").returncode == 0
    roots = ["wants-extra", "perl-node"]
    plan = planned(tmp_path / "cache", world, roots, streams={"node": "12", "pn": "1"})
    assert taken(plan) == dnf.installs(*roots)
    assert {each.name for each in plan.streams} == {"node", "pn", "perl"}


def test_a_stream_that_nothing_describes_is_an_error_and_so_is_another_one_on_the_target(
    world: Path, tmp_path: Path
) -> None:
    plan = planned(tmp_path / "cache", world, ["node"], streams={"node": "99"})
    assert [(each.rule, each.message) for each in plan.findings if not plan.good] == [
        ("rpm.stream", "the stream node:99 is described by no repository")
    ]
    other = Target(name="login", source="0" * 64, streams={"node": "10"})
    plan = planned(tmp_path / "cache", world, ["node"], other, streams={"node": "12"})
    assert "this machine has node:10 enabled" in plan.findings[0].message and not plan.good
    two = Target(name="compute", source="1" * 64, streams={"node": "12"})
    plan = planned(tmp_path / "cache", world, ["node"], other, two)
    assert "the targets have different streams of it: 10, 12" in plan.findings[0].message


FILLED: Mapping[str, tuple[list[str], list[str]]] = {
    "pinned sibling": (["lib-1-1", "lib-devel-1-1"], ["needs-new-lib"]),
    "all there": (["chain"], ["chain"]),
    "half there": (["link-1:1-1"], ["chain"]),
    "an older one": (["offers-1-1"], ["offers"]),
    "an older kernel": (["kernel-core-1-1", "kmod-1-1"], ["kernel-core"]),
    "rich, by what is there": (["host"], ["rich-if"]),
    "a file that is there": (["tools"], ["file-near"]),
    "a 32-bit one": (["both.i686", "both.x86_64"], ["needs-both"]),
}


@pytest.mark.parametrize("kind", FILLED)
def test_a_filled_target_gets_what_dnf_would_give_it(world: Path, tmp_path: Path, kind: str) -> None:
    before, roots = FILLED[kind]
    dnf = Dnf(tmp_path / "root", {"world": world})
    done = dnf.run("install", *before)
    assert done.returncode == 0, done.stderr
    assert taken(planned(tmp_path / "cache", world, roots, collected(dnf))) == dnf.installs(*roots)


def test_an_obsoleted_package_is_named_and_its_replacement_taken(world: Path, tmp_path: Path) -> None:
    dnf = Dnf(tmp_path / "root", {"world": world}, options=("--exclude=new-name",))
    assert dnf.run("install", "old-name").returncode == 0
    plan = planned(tmp_path / "cache", world, ["new-name"], collected(dnf))
    assert taken(plan) == Dnf(tmp_path / "root", {"world": world}).installs("new-name") == {"new-name-2-1.noarch"}
    assert [(each.rule, each.severity.value) for each in plan.findings] == [("rpm.replaces", "warning")]
    assert plan.closures[0].replaces == ("old-name-1-1.noarch",)


def test_the_union_has_what_each_target_needs(world: Path, tmp_path: Path) -> None:
    """One closure is of an empty system, one of a host with a pinned sibling, which needs one more."""
    dnf = Dnf(tmp_path / "root", {"world": world})
    assert dnf.run("install", "lib-1-1", "lib-devel-1-1").returncode == 0
    plan = planned(tmp_path / "cache", world, ["needs-new-lib"], EMPTY, collected(dnf))
    assert taken(plan, 0) == {"needs-new-lib-1-1.noarch", "lib-2-1.noarch"}
    assert taken(plan, 1) == {"needs-new-lib-1-1.noarch", "lib-2-1.noarch", "lib-devel-2-1.noarch"}
    assert [str(each.nevra) for each in plan.packages] == [
        "lib-2-1.noarch", "lib-devel-2-1.noarch", "needs-new-lib-1-1.noarch"
    ]  # fmt: skip


def test_targets_do_not_see_one_another(world: Path, tmp_path: Path) -> None:
    """One solver answers for all of them, one after another; of whatever size they are."""

    def had(name: str, says: str = "") -> Installed:
        nevra = Nevra(name=name, epoch="0", version="1", release="1", arch="noarch")
        return Installed(nevra=nevra, provides=(f"{name} = 1-1",), requires=(says,) if says else ())

    pinned = (had("lib"), had("lib-devel", "lib = 1-1"))
    targets = [EMPTY]
    for count in range(9):
        fillers = tuple(had(f"filler-{number}") for number in range(count))
        targets += [
            Target(name=f"pinned-{count}", source="0" * 64, installed=(*fillers, *pinned)),
            Target(name=f"done-{count}", source="1" * 64, installed=(*fillers, had("needs-new-lib"), had("node-like"))),
        ]
    plan = planned(tmp_path / "cache", world, ["needs-new-lib"], *targets)
    new = {"needs-new-lib-1-1.noarch", "lib-2-1.noarch"}
    expected = {"empty": new, "pinned": new | {"lib-devel-2-1.noarch"}, "done": set()}
    for number, target in enumerate(targets):
        assert taken(plan, number) == expected[target.name.partition("-")[0]], target.name


def test_what_would_take_something_away_is_refused(tmp_path: Path) -> None:
    """dnf refuses the same without --allowerasing."""
    folder = tmp_path / "r"
    build(folder, [p("intruder", "1-1", "Conflicts: settled"), p("settled")])
    index(folder)
    dnf = Dnf(tmp_path / "root", {"r": folder})
    assert dnf.run("install", "settled").returncode == 0
    assert dnf.run("install", "--downloadonly", "intruder").returncode != 0
    plan = planned(tmp_path / "cache", folder, ["intruder"], collected(dnf))
    assert [each.rule for each in plan.findings] == ["rpm.unsolvable"] and not plan.packages
    assert "settled" in " ".join(plan.findings[0].evidence) and "host" in plan.findings[0].message


def test_32_bit_packages_are_taken_only_where_they_are_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    build(
        folder,
        [
            p("legacy", "1-1", "Requires: small"),
            p("small", arch="i686"),
            p("big", arch="x86_64"),
            p("big", arch="i686"),
        ],
    )
    index(folder)
    plan = planned(tmp_path / "cache", folder, ["legacy"])
    assert [each.rule for each in plan.findings] == ["rpm.unsolvable"]
    assert "32-bit" in plan.findings[0].fix
    assert taken(planned(tmp_path / "cache", folder, ["legacy"], multilib=True)) == {
        "legacy-1-1.noarch",
        "small-1-1.i686",
    }
    assert taken(planned(tmp_path / "cache", folder, ["big.i686"])) == {"big-1-1.i686"}
    assert taken(planned(tmp_path / "cache", folder, ["big"])) == {"big-1-1.x86_64"}


def test_the_priority_and_the_excludes_of_repositories_count_as_they_do_for_dnf(tmp_path: Path) -> None:
    for name, evr in (("first", "1-1"), ("second", "2-1")):
        build(tmp_path / name, [p("tool", evr), p("other", evr)])
        index(tmp_path / name)
    sources = tuple(
        Source(id=name, baseurls=(f"{(tmp_path / name).as_uri()}/",), priority=priority, excludes=excludes)
        for name, priority, excludes in (("first", 10, ("oth*",)), ("second", 99, ()))
    )
    request = Request(roots=("tool", "other"), sources=sources, system=EL8)
    plan = rpms.plan(request, NetworkSection(), cache=tmp_path / "cache")
    options = ("--setopt=first.priority=10", "--setopt=first.excludepkgs=oth*")
    dnf = Dnf(tmp_path / "root", {"first": tmp_path / "first", "second": tmp_path / "second"}, options)
    assert taken(plan) == dnf.installs("tool", "other") == {"tool-1-1.noarch", "other-2-1.noarch"}


def test_a_name_that_nothing_has_comes_with_its_neighbours(world: Path, tmp_path: Path) -> None:
    plan = planned(tmp_path / "cache", world, ["pluggin", "chain"])
    assert [(each.rule, each.subject, each.fix) for each in plan.findings] == [
        ("rpm.missing", "pluggin", "Did you mean plugin?")
    ]


def test_an_aarch64_target_is_resolved_on_any_machine(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    build(folder, [p("tool", arch="x86_64"), p("tool", arch="aarch64"), p("data")])
    index(folder)
    request = Request(
        roots=("tool", "data"), sources=(Source(id="r", baseurls=(f"{folder.as_uri()}/",)),),
        system=System(distro="rocky", major=8, arch="aarch64"),
    )  # fmt: skip
    plan = rpms.plan(request, NetworkSection(), cache=tmp_path / "cache")
    assert taken(plan) == {"tool-1-1.aarch64", "data-1-1.noarch"}
