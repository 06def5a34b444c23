"""What resolving an offline bundle's packages costs, next to dnf: a repository of the size of a distribution's.

The packages are files of noise with the digests that the metadata states: neither program looks into them. dnf has its
metadata from the same files, resolves, and copies what it takes (--downloadonly); what it takes to resolve alone
(--assumeno) is in the note.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import Answer, Measure, Ratio

from envbuild import process
from envbuild.errors import EngineError

PACKAGES, ROOTS = 20_000, ("pkg19999", "pkg15000", "pkg10007")
# A distribution's packages have some hundred files each, and say what their libraries are by version.
FILES, VERSIONS = 100, 8
LIMIT_BYTES = 300_000_000
_SECONDS = 300.0
_COMMON = 'xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm"'


def measures(folder: Path, rounds: int) -> list[Measure]:
    """Time and memory of a plan from nothing, and whether it is dnf's.

    Raises:
        EngineError: There is no dnf here, or a plan failed.
    """
    if process.which("dnf") is None:
        raise EngineError("dnf is not there to be compared with", hint="apt-get install dnf")
    repository = folder / "repository"
    write(repository, PACKAGES)
    ours, theirs, alone, peaks = [], [], [], []
    same = True
    for number in range(rounds):
        began = time.perf_counter()
        answer = _ours(repository, folder / f"ours{number}")
        ours.append(time.perf_counter() - began)
        if number == 0:
            _stand_ins(repository, answer["packages"])
        began = time.perf_counter()
        said = _theirs(repository, folder / f"theirs{number}", "--downloadonly", f"--downloaddir={folder}/down{number}")
        theirs.append(time.perf_counter() - began)
        began = time.perf_counter()
        _theirs(repository, folder / f"alone{number}", "--assumeno")
        alone.append(time.perf_counter() - began)
        same = same and set(answer["packages"]) == said
        peaks.append(float(answer["peak"] + answer["solver_peak"]))
    count = len(said)
    return [
        Ratio(
            name=f"resolve {count:,} of {PACKAGES:,} packages",
            ours=tuple(ours),
            reference=tuple(theirs),
            against="dnf install --downloadonly of the same into an empty root, both with empty caches",
            limit=0.5,
            note="A whole process each, file lists loaded. Of dnf with --assumeno, which copies nothing, ours is "
            f"{statistics.median(one / other for one, other in zip(ours, alone, strict=True)):.2f}.",
        ),
        Ratio(
            name="memory of a plan",
            ours=tuple(peaks),
            reference=(float(LIMIT_BYTES),) * rounds,
            against=f"{LIMIT_BYTES // 1_000_000} MB: the most that program and solver held, together",
            limit=1.0,
            bytes=True,
        ),
        Answer(name="the packages are those that dnf takes", yes=same, against=f"the {count:,} packages of each round"),
    ]


def _ours(repository: Path, cache: Path) -> dict[str, Any]:
    done = process.run((sys.executable, __file__, repository.as_uri() + "/", str(cache), *ROOTS), timeout=_SECONDS)
    if done.returncode != 0:
        raise EngineError(f"the plan failed: {process.last_words(done.stderr)}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _content(name: str) -> bytes:
    return f"{name}\n".encode() * 1000


def _stand_ins(repository: Path, names: list[str]) -> None:
    """The files of some packages, as the metadata states their digests."""
    folder = repository / "Packages/p"
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}.rpm").write_bytes(_content(name.partition("-")[0]))


def _theirs(repository: Path, folder: Path, *options: str) -> set[str]:
    for name in ("root", "log"):
        (folder / name).mkdir(parents=True)
    argv = (
        "dnf", "--assumeyes", f"--installroot={folder}/root", "--releasever=8", "--forcearch=x86_64",
        f"--setopt=cachedir={folder}/cache", f"--setopt=logdir={folder}/log", "--setopt=reposdir=/dev/null",
        "--setopt=install_weak_deps=0", "--setopt=best=1", "--setopt=plugins=0", "--nogpgcheck",
        f"--repofrompath=bench,{repository.as_uri()}", "install", *options, *ROOTS,
    )  # fmt: skip
    done = process.run(argv, env={"LC_ALL": "C", "COLUMNS": "200"}, timeout=_SECONDS)
    found = re.findall(r"^ (pkg[0-9]+) +(\S+) +(\S+) +bench ", done.stdout, re.MULTILINE)
    if not found:
        raise EngineError(f"dnf resolved nothing: {process.last_words(done.stderr)}")
    return {f"{name}-{evr}.{arch}" for name, arch, evr in found}


def write(folder: Path, count: int) -> None:
    """The metadata of ``count`` packages that need some of those before them, by name, by soname and by file."""
    drawn = random.Random(1)
    primary, lists = [], []
    for number in range(count):
        name, version = f"pkg{number:05d}", f"1.{number % 7}"
        content = _content(name)
        digest = hashlib.sha256(content).hexdigest()
        needs = _needs(number, drawn)
        sonames = "".join(f'<rpm:entry name="lib{number}.so.1(V_{part})(64bit)"/>' for part in range(VERSIONS))
        identity = f'<version epoch="0" ver="{version}" rel="1.el8"/>'
        primary.append(
            f'<package type="rpm"><name>{name}</name><arch>x86_64</arch>{identity}'
            f'<checksum type="sha256" pkgid="YES">{digest}</checksum><summary>The summary of {name}</summary>'
            f"<description>{'What it is good for, in some words. ' * 6}</description><packager>nobody</packager>"
            f'<url>https://example.invalid/{name}</url><time file="1600000000" build="1600000000"/>'
            f'<size package="{len(content)}" installed="{200_000 + number}" archive="201000"/>'
            f'<location href="Packages/p/{name}-{version}-1.el8.x86_64.rpm"/><format><rpm:license>MIT</rpm:license>'
            f"<rpm:vendor>nobody</rpm:vendor><rpm:group>Unspecified</rpm:group><rpm:buildhost>host</rpm:buildhost>"
            f'<rpm:sourcerpm>{name}-{version}-1.el8.src.rpm</rpm:sourcerpm><rpm:header-range start="4504" end="9000"/>'
            f'<rpm:provides><rpm:entry name="{name}" flags="EQ" epoch="0" ver="{version}" rel="1.el8"/>'
            f'<rpm:entry name="lib{number}.so.1()(64bit)"/>{sonames}'
            f"</rpm:provides><rpm:requires>{needs}</rpm:requires><file>/usr/bin/{name}</file></format></package>\n"
        )
        files = "".join(f"<file>/usr/share/{name}/{part}</file>" for part in range(FILES))
        lists.append(
            f'<package pkgid="{digest}" name="{name}" arch="x86_64">{identity}<file>/usr/bin/{name}</file>{files}'
            "</package>\n"
        )
    documents = {
        "primary": f'<metadata {_COMMON} packages="{count}">\n{"".join(primary)}</metadata>\n',
        "filelists": f'<filelists xmlns="http://linux.duke.edu/metadata/filelists" packages="{count}">\n'
        f"{''.join(lists)}</filelists>\n",
    }
    (folder / "repodata").mkdir(parents=True)
    entries = [
        _entry(folder, kind, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}') for kind, text in documents.items()
    ]
    (folder / "repodata/repomd.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n<repomd xmlns="http://linux.duke.edu/metadata/repo">'
        f"<revision>1</revision>{''.join(entries)}</repomd>\n"
    )


def _needs(number: int, drawn: random.Random) -> str:
    if number == 0:
        return ""
    names = [f"pkg{drawn.randrange(max(0, number - 4000), number):05d}" for _ in range(drawn.randrange(3))]
    names += [f"lib{drawn.randrange(number)}.so.1(V_1)(64bit)" for _ in range(drawn.randrange(3))]
    if number % 100 == 7:
        # Only the file lists know of it.
        names.append(f"/usr/share/pkg{drawn.randrange(number):05d}/3")
    return "".join(f'<rpm:entry name="{name}"/>' for name in dict.fromkeys(names))


def _entry(folder: Path, kind: str, text: str) -> str:
    plain = text.encode()
    packed = gzip.compress(plain, 6, mtime=0)
    name = f"repodata/{kind}.xml.gz"
    (folder / name).write_bytes(packed)
    return (
        f'<data type="{kind}"><checksum type="sha256">{hashlib.sha256(packed).hexdigest()}</checksum>'
        f'<open-checksum type="sha256">{hashlib.sha256(plain).hexdigest()}</open-checksum>'
        f'<location href="{name}"/><timestamp>1600000000</timestamp><size>{len(packed)}</size>'
        f"<open-size>{len(plain)}</open-size></data>"
    )


def _plan(address: str, cache: Path, roots: tuple[str, ...]) -> dict[str, object]:
    """A plan from nothing, in a process of its own."""
    from envbuild.bundle import rpms
    from envbuild.site.config import load

    source = rpms.Source(id="bench", baseurls=(address,))
    request = rpms.Request(roots=roots, sources=(source,), system=rpms.System(distro="rocky", major=8))
    plan = rpms.plan(request, load(None, {}).network, cache=cache)
    return {
        "packages": [str(package.nevra) for package in plan.packages],
        "findings": [finding.message for finding in plan.findings],
        # Not getrusage(2): there a child has the size of whoever started it.
        "peak": int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024,
        "solver_peak": plan.peak,
    }


if __name__ == "__main__":
    if len(sys.argv) > 2:
        json.dump(_plan(sys.argv[1], Path(sys.argv[2]), tuple(sys.argv[3:])), sys.stdout)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            print(*(measure.cells() for measure in measures(Path(scratch), 1)), sep="\n")
