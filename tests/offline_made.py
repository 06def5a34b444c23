"""Small bundles, as an export writes them: signed packages and sums, wheels, and the scripts under test."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.bundle import scripts
from rpm_world import Key, run

Lines = Sequence[tuple[str, object]]


@dataclass(frozen=True)
class Rpm:
    """A package: what its spec says besides its name."""

    version: str = "1.0"
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    config: tuple[str, ...] = ()
    scripts: str = ""
    modularity: str = ""


def build_rpms(folder: Path, packages: Mapping[str, Rpm], signer: Key | None) -> list[Path]:
    """Packages of these names, signed."""
    made = []
    with tempfile.TemporaryDirectory(prefix="envbuild-rpm-") as top:
        for name, each in packages.items():
            spec = Path(top) / f"{name}.spec"
            spec.write_text(_spec(name, each))
            define = (
                "--define",
                f"_topdir {top}",
                "--define",
                f"_rpmdir {top}/made",
                "--define",
                "_build_id_links none",
            )
            run("rpmbuild", "-bb", "--quiet", "--target", "x86_64", *define, spec)
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted((Path(top) / "made").rglob("*.rpm")):
            made.append(folder / path.name)
            shutil.move(path, folder / path.name)
    if signer is not None and made:
        macros = {"__gpg": shutil.which("gpg"), "_gpg_path": signer.home, "_gpg_name": signer.fingerprint}
        run(
            "rpmsign",
            "--addsign",
            *(part for name, value in macros.items() for part in ("--define", f"{name} {value}")),
            *made,
        )
    return made


def _spec(name: str, each: Rpm) -> str:
    lines = [f"Name: {name}", f"Version: {each.version}", "Release: 1.el8", "Summary: a stand-in", "License: MIT"]
    lines += ["AutoReqProv: no", "%global debug_package %{nil}", "%global __os_install_post %{nil}"]
    for word, values in (("Requires", each.requires), ("Provides", each.provides), ("Conflicts", each.conflicts)):
        lines += [f"{word}: {value}" for value in values]
    if each.modularity:
        lines.append(f"ModularityLabel: {each.modularity}")
    lines += ["%description", "A stand-in.", "%install"]
    for path, content in each.files.items():
        lines += [f"mkdir -p %{{buildroot}}{Path(path).parent}", f"printf '%%s' '{content}' > %{{buildroot}}{path}"]
    for path, target in each.links.items():
        lines += [f"mkdir -p %{{buildroot}}{Path(path).parent}", f"ln -s {target} %{{buildroot}}{path}"]
    if each.scripts:
        lines += [each.scripts]
    lines += ["%files", *each.links, *(f"%config {path}" if path in each.config else path for path in each.files)]
    return "\n".join(lines) + "\n"


def index(rpms: Path, signer: Key, modules: str | None = None) -> None:
    """Make the repository ``rpms`` of what lies in it, and sign its index."""
    shutil.rmtree(rpms / "repodata", ignore_errors=True)
    run("createrepo_c", "--quiet", "--general-compress-type", "gz", rpms)
    if modules is not None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "modules.yaml").write_text(modules)
            run(
                "modifyrepo_c",
                "--mdtype=modules",
                "--compress-type",
                "gz",
                Path(folder) / "modules.yaml",
                rpms / "repodata",
            )
    sign(signer, rpms / "repodata" / "repomd.xml")


def sign(signer: Key, path: Path, *options: str) -> None:
    """Make ``path.asc``."""
    argv = ("gpg", "--homedir", signer.home, "--batch", "--yes", "--armor", "--digest-algo", "SHA512", *options)
    run(*argv, "--output", f"{path}.asc", "--detach-sign", path)


def wheel(folder: Path, name: str, version: str, body: str = "", *, requires: Iterable[str] = ()) -> Path:
    """A wheel of one module."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name}.py": body,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{member},,\n" for member in files) + f"{info}/RECORD,,\n")
    return path


def lock(folder: Path) -> None:
    """``requirements.lock`` of the wheels in a folder."""
    lines = []
    for path in sorted((*folder.glob("*.whl"), *folder.glob("*.tar.gz"))):
        name, version = path.name.removesuffix(".tar.gz").split("-")[:2]
        lines.append(f"{name}=={version} \\\n    --hash=sha256:{digest(path)}\n")
    (folder / "requirements.lock").write_text("".join(lines))


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def finish(bundle: Path, signer: Key, lines: Lines) -> Path:
    """Write what every bundle has, around the parts that lie in it already: scripts, settings, sums, signature."""
    for name, content in scripts.files().items():
        (bundle / name).parent.mkdir(parents=True, exist_ok=True)
        (bundle / name).write_bytes(content)
    (bundle / "keys").mkdir(exist_ok=True)
    shutil.copy(signer.public, bundle / "keys" / "bundle.asc")
    (bundle / "manifest.json").write_text('{"schema": "envbuild.bundle/1"}\n')
    (bundle / "bundle.conf").write_text("".join(f"{key} {value}\n" for key, value in lines))
    seal(bundle, signer)
    return bundle


def seal(bundle: Path, signer: Key) -> None:
    """Write the sums of what lies there, and sign them."""
    paths = sorted(
        path.relative_to(bundle).as_posix()
        for path in bundle.rglob("*")
        if path.is_file() and path.name not in ("SHA256SUMS", "SHA256SUMS.asc")
    )
    (bundle / "SHA256SUMS").write_text("".join(f"{digest(bundle / path)}  {path}\n" for path in paths))
    sign(signer, bundle / "SHA256SUMS")


def settings(name: str, *parts: str, **more: object) -> list[tuple[str, object]]:
    """Lines of ``bundle.conf`` for Rocky 8.8; a value that is a list gives several."""
    values: dict[str, object] = {
        "schema": 1, "name": name, "distro": "rocky", "major": 8, "releasever": "8.8", "arch": "x86_64", "fips": "no",
        "part": list(parts), "prefix": "/opt/envbuild", **more,
    }  # fmt: skip
    return [(key, each) for key, value in values.items() for each in (value if isinstance(value, list) else [value])]


def split(bundle: Path, folder: Path, limit: int) -> list[Path]:
    """Volumes of a bundle, of at most ``limit`` bytes: whole files, and pieces of a file that is larger."""
    sums = bundle / "SHA256SUMS"
    loads: list[list[tuple[str, bytes]]] = []
    chunks = []
    for path in sorted((each for each in bundle.rglob("*") if each.is_file()), key=lambda each: -each.stat().st_size):
        name, content = path.relative_to(bundle).as_posix(), path.read_bytes()
        if name in ("SHA256SUMS", "SHA256SUMS.asc"):
            continue
        pieces = [(name, content)]
        if len(content) > limit:
            whole = hashlib.sha256(content).hexdigest()
            parts = [content[start : start + limit] for start in range(0, len(content), limit)]
            pieces = [(f"chunks/{whole}.{number:03}", part) for number, part in enumerate(parts, start=1)]
            chunks += [f"{hashlib.sha256(part).hexdigest()} {len(part)} {where}\n" for where, part in pieces]
        for piece in pieces:
            for load in loads:
                if sum(len(each) for _, each in load) + len(piece[1]) <= limit:
                    load.append(piece)
                    break
            else:
                loads.append([piece])
    volumes = []
    for number, load in enumerate(loads, start=1):
        volume = folder / f"{bundle.name}.vol{number:02}"
        for name, content in load:
            (volume / name).parent.mkdir(parents=True, exist_ok=True)
            (volume / name).write_bytes(content)
        for name in ("SHA256SUMS", "SHA256SUMS.asc"):
            shutil.copy(bundle / name, volume / name)
        shutil.copy(bundle / "assemble.sh", volume / "assemble.sh")
        (volume / "VOLUME").write_text(f"schema 1\nset {digest(sums)}\nnumber {number}\nof {len(loads)}\n")
        (volume / "CHUNKS").write_text("".join(chunks))
        volumes.append(volume)
    return volumes


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sh(*argv: str | Path, shell: str = "dash", **options: object) -> subprocess.CompletedProcess[str]:
    """Run a script that changes nothing but the folder it is told of."""
    shells = {"dash": ["dash"], "bash": ["bash", "--posix"]}
    return subprocess.run(
        [*shells[shell], *map(str, argv)], capture_output=True, text=True, timeout=120,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}, **options,  # type: ignore[call-overload]
    )  # fmt: skip
