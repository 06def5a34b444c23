"""Repositories of small RPM packages with every kind of dependency, and dnf's own answer to compare with.

Real: rpmbuild, rpmsign, createrepo_c, dnf. The packages hold next to nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from envbuild.bundle.rpms import Installed, Nevra, Target
from rpm_world import Key, run

TOOLS = ("rpmbuild", "rpmsign", "createrepo_c", "modifyrepo_c", "gpg", "gpgv", "dnf", "rpm")


def need_tools() -> None:
    """Fail, and say how to get them, where a tool is missing."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.fail(f"{', '.join(missing)} missing: make rpm-tools", pytrace=False)


@dataclass(frozen=True)
class Rpm:
    """A package to be made.

    Attributes:
        evr: ``[EPOCH:]VERSION-RELEASE``.
        says: More lines of its spec file, such as ``Requires: (a if b)``.
        files: Content by path.
    """

    name: str
    evr: str = "1-1"
    arch: str = "noarch"
    says: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def p(name: str, evr: str = "1-1", *says: str, arch: str = "noarch", files: Mapping[str, str] | None = None) -> Rpm:
    """A package, in short."""
    return Rpm(name, evr, arch, says, files or {})


def build(
    folder: Path, packages: Sequence[Rpm], signer: Key | None = None, *, macros: Mapping[str, str] | None = None,
    digest: str = "sha512",
) -> list[Path]:  # fmt: skip
    """Make packages, signed where there is a signer; returns their files.

    Args:
        macros: Of rpmbuild, such as ``_binary_filedigest_algorithm``.
        digest: The algorithm of the signatures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="envbuild-rpm-") as scratch:
        for number, group in enumerate(_groups(packages)):
            top, out = Path(scratch), Path(scratch, f"out{number}")
            (top / "world.spec").write_text(_spec(group))
            name = "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm"
            given = {"_topdir": str(top), "_rpmdir": str(out), "_rpmfilename": name,
                     "_buildhost": "builder", **(macros or {})}  # fmt: skip
            defines = [part for name, value in given.items() for part in ("--define", f"{name} {value}")]
            arch = group[0].arch if group[0].arch != "noarch" else "x86_64"
            run("rpmbuild", "-bb", "--quiet", "--target", arch, *defines, top / "world.spec")
            built = sorted(out.glob("*.rpm"))
            assert len(built) == len(group)
            if signer is not None:
                sign(built, signer, digest)
            made += [Path(shutil.move(path, folder / path.name)) for path in built]
    return made


def sign(paths: Sequence[Path], signer: Key, digest: str = "sha512") -> None:
    """Sign packages, in place of whatever signature they have."""
    macros = {"__gpg": str(shutil.which("gpg")), "_gpg_path": str(signer.home), "_gpg_name": signer.fingerprint,
              "_gpg_digest_algo": digest}  # fmt: skip
    defines = [part for name, value in macros.items() for part in ("--define", f"{name} {value}")]
    run("rpmsign", "--addsign", *defines, *paths)


def index(folder: Path, *options: str, modules: str = "") -> Path:
    """Make the metadata of a folder of packages."""
    run("createrepo_c", "--quiet", "--no-database", *options, folder)
    if modules:
        (folder / "modules.yaml").write_text(modules)
        run("modifyrepo_c", "--mdtype=modules", folder / "modules.yaml", folder / "repodata")
    return folder


def _groups(packages: Sequence[Rpm]) -> list[list[Rpm]]:
    """Packages that one spec file can make: each name once, and one machine."""
    groups: list[list[Rpm]] = []
    for each in packages:
        for group in groups:
            same = {other.arch for other in group} - {"noarch"} | {each.arch} - {"noarch"}
            if all(other.name != each.name for other in group) and len(same) < 2 and group[0].arch == each.arch:
                group.append(each)
                break
        else:
            groups.append([each])
    return groups


def _spec(packages: Sequence[Rpm]) -> str:
    lines = ["Name: world", "Version: 1", "Release: 1", "Summary: a stand-in", "License: MIT",
             "%global debug_package %{nil}", "%global __os_install_post %{nil}", "%description", "A stand-in.",
             "%install", "mkdir -p %{buildroot}"]  # fmt: skip
    for each in packages:
        for path, content in each.files.items():
            lines += [f"mkdir -p %{{buildroot}}{Path(path).parent}", f"printf %s '{content}' > %{{buildroot}}{path}"]
    for each in packages:
        epoch, colon, rest = each.evr.partition(":")
        version, _, release = (rest if colon else each.evr).rpartition("-")
        lines += [f"%package -n {each.name}", "Summary: a stand-in", "License: MIT and BSD", "AutoReqProv: no",
                  f"Version: {version}", f"Release: {release}", *([f"Epoch: {epoch}"] if colon else []),
                  *(["BuildArch: noarch"] if each.arch == "noarch" else []), *each.says,
                  f"%description -n {each.name}", "A stand-in.", f"%files -n {each.name}", *each.files]  # fmt: skip
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Dnf:
    """dnf with repositories of the tests and a root of its own, where nothing is installed but what a test installs."""

    root: Path
    repositories: Mapping[str, Path | str]
    options: tuple[str, ...] = ()

    def argv(self, *words: str) -> tuple[str, ...]:
        """A command line."""
        urls = {name: str(at) if "://" in str(at) else Path(at).as_uri() for name, at in self.repositories.items()}
        return (
            "dnf", "--quiet", "--assumeyes", f"--installroot={self.root}", "--releasever=8", "--forcearch=x86_64",
            f"--setopt=cachedir={self.root}.cache", f"--setopt=logdir={self.root}.log", "--setopt=reposdir=/dev/null",
            "--setopt=install_weak_deps=0", "--setopt=best=1", "--setopt=gpgcheck=0", "--setopt=plugins=0",
            "--setopt=module_platform_id=platform:el8", *(f"--repofrompath={name},{url}" for name, url in urls.items()),
            *self.options, *words,
        )  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What dnf says."""
        for folder in (self.root, Path(f"{self.root}.log")):
            folder.mkdir(parents=True, exist_ok=True)
        return subprocess.run(self.argv(*words), capture_output=True, text=True, timeout=120)

    def installs(self, *roots: str) -> frozenset[str]:
        """What it would install or update: the files that it downloads."""
        place = Path(f"{self.root}.down")
        shutil.rmtree(place, ignore_errors=True)
        done = self.run("install", "--downloadonly", f"--downloaddir={place}", *roots)
        assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        return frozenset(path.name.removesuffix(".rpm") for path in place.glob("*.rpm"))

    def has(self) -> frozenset[str]:
        """What is installed."""
        said = run(
            "rpm",
            "--root",
            self.root,
            "--dbpath",
            self.dbpath,
            "-qa",
            "--queryformat",
            "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}\n",
        )
        return frozenset(line for line in said.split() if not line.startswith("gpg-pubkey"))

    @property
    def dbpath(self) -> str:
        """rpm's database, as this machine's dnf calls it below a root."""
        return run("rpm", "--eval", "%{_dbpath}").strip()


def collected(dnf: Dnf, name: str = "host") -> Target:
    """What rpm says of a root, as a target."""
    form = ("P\t%{NAME}\t%{EPOCHNUM}\t%{VERSION}\t%{RELEASE}\t%{ARCH}\n"
            "[p\t%{PROVIDENEVRS}\n][r\t%{REQUIRENEVRS}\n][c\t%{CONFLICTNEVRS}\n]"
            "[o\t%{OBSOLETENEVRS}\n][f\t%{FILENAMES}\n]")  # fmt: skip
    said = run("rpm", "--root", dnf.root, "--dbpath", dnf.dbpath, "-qa", "--queryformat", form)
    found: list[Installed] = []
    parts: dict[str, list[str]] = {}
    for line in [*said.splitlines(), "P\t"]:
        kind, _, text = line.partition("\t")
        if kind == "P" and parts:
            label, epoch, version, release, arch = parts["P"][0].split("\t")
            found.append(
                Installed(
                    nevra=Nevra(name=label, epoch=epoch, version=version, release=release, arch=arch),
                    provides=tuple(parts.get("p", ())), conflicts=tuple(parts.get("c", ())),
                    requires=tuple(each for each in parts.get("r", ()) if not each.startswith("rpmlib(")),
                    obsoletes=tuple(parts.get("o", ())), files=tuple(parts.get("f", ())),
                )
            )  # fmt: skip
            parts = {}
        if text:
            parts.setdefault(kind, []).append(text)
    return Target(name=name, source="0" * 64, installed=tuple(found))


# --- modules ----------------------------------------------------------------------------------------------------------

NODE = """\
---
document: modulemd
version: 2
data:
  name: node
  stream: "{stream}"
  version: {version}
  context: {context}
  arch: x86_64
  summary: x
  description: x
  license: {{module: [MIT]}}
  dependencies:
  - requires: {requires}
  artifacts: {{rpms: [{artifacts}]}}
...
"""
DEFAULT = """\
---
document: modulemd-defaults
version: 1
data: {module: node, stream: "10", profiles: {}}
...
"""


def node(stream: str, *artifacts: str, version: int = 1, name: str = "node", context: str = "c0ffee",
         requires: str = "{platform: [el8]}") -> str:  # fmt: skip
    """A module's document."""
    listed = ", ".join(f'"{each}"' for each in artifacts)
    text = NODE.format(stream=stream, version=version, context=context, requires=requires, artifacts=listed)
    return text.replace("name: node", f"name: {name}")
