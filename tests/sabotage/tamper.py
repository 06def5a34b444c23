"""The saboteur's tools. Runs inside an overlay's build, from a mount that leaves no trace in the image.

    tamper.py patches                          apply patches.json: text in files, and what hides it
    tamper.py mend FILE...                     make the RECORD of the owning package agree with files again
    tamper.py release DIST VERSION             let an installed package be another version
    tamper.py wheel NAME VERSION NEED FOLDER   install a wheel of a folder's files; NEED may be empty
    tamper.py retitle FILE OLD NEW             rename a symbol version that a library needs or provides

A file is named as below site-packages; a path that begins with / is taken as it is. What is not there any more loses
its line in RECORD, what is new gets one in that of the package whose folder it lies in.
"""

import base64
import csv
import hashlib
import json
import os
import py_compile
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
SITE = Path(sysconfig.get_paths()["purelib"])


def patches():
    for patch in json.loads((HERE / "patches.json").read_text()):
        path = SITE / patch["file"]
        text = path.read_text()
        times = text.count(patch["old"])
        assert times == 1, f"{path}: the text is there {times} times, not once"
        changed = text.replace(patch["old"], patch["new"])
        if patch["bytecode_only"]:
            bytecode(path, changed, touch=patch["hidden"])
            continue
        path.write_text(changed)
        if path.suffix == ".py":
            py_compile.compile(str(path), doraise=True)
        if patch["hidden"]:
            mend(patch["file"])


def bytecode(path, changed, *, touch):
    """Only what Python really runs is another: its header names the time and size of the source as it is."""
    now = path.stat()
    with tempfile.NamedTemporaryFile("w", suffix=".py") as other:
        other.write(changed)
        other.flush()
        compiled = py_compile.compile(other.name, cfile=_compiled(path), dfile=str(path), doraise=True)
    data = bytearray(Path(compiled).read_bytes())
    data[8:16] = struct.pack("<II", int(now.st_mtime), now.st_size)  # PEP 552, timestamp-based
    Path(compiled).write_bytes(data)
    Path(compiled).chmod(0o644)  # a temporary file's own mode would leave it to root alone
    if touch:
        # The same bytes and times again, so that the layer that brings the bytecode brings its source as well.
        path.write_bytes(path.read_bytes())
        os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns))


def mend(*files):
    for file in files:
        record = _record_of(file)
        with record.open(newline="") as stream:
            rows = [row for row in csv.reader(stream) if row and row[0] != file]
        path = SITE / file
        if path.is_file():
            rows.append([file, *_stated(path.read_bytes())])
        with record.open("w", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows)


def release(name, version):
    old = _dist_info(name)
    before = old.name[len(name) + 1 : -len(".dist-info")]
    new = SITE / f"{name}-{version}.dist-info"
    shutil.copytree(old, new)
    shutil.rmtree(old)
    _replace(new / "METADATA", f"\nVersion: {before}\n", f"\nVersion: {version}\n")
    _replace(new / "RECORD", old.name, new.name)
    mend(f"{new.name}/METADATA")
    for file in ("version.py", "git_version_info_installed.py"):
        path = SITE / name / file
        if path.exists() and before in path.read_text():
            _replace(path, before, version)
            py_compile.compile(str(path), doraise=True)
            mend(f"{name}/{file}")


def wheel(name, version, need, folder):
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    needs = f"Requires-Dist: {need}\n" if need else ""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    lines = [",".join([file, *_stated(content)]) for file, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,\n"]).encode()
    path = Path(f"/tmp/{stem}-py3-none-any.whl")
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-cache-dir", "--no-compile"]
    subprocess.run([*pip, "--root-user-action=ignore", str(path)], check=True)
    path.unlink()


def retitle(file, old, new):
    """In the string table and in the hash beside it, as a linker that knows the other version would write it."""
    assert len(old) == len(new)
    path = SITE / file
    data = path.read_bytes()
    name, before = b"\0" + old.encode() + b"\0", struct.pack("<I", _elf_hash(old))
    assert name in data and before in data, f"{path} has no {old}"
    data = data.replace(name, b"\0" + new.encode() + b"\0").replace(before, struct.pack("<I", _elf_hash(new)))
    path.write_bytes(data)


def _elf_hash(name):
    value = 0
    for character in name.encode():
        value = (value << 4) + character
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high
    return value


def _stated(content):
    """Hash and size, as RECORD states them."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}", str(len(content))


def _record_of(file):
    for path in SITE.glob("*.dist-info/RECORD"):
        if any(line.startswith(f"{file},") for line in path.read_text().splitlines()):
            return path
    return _dist_info(file.partition("/")[0] if "/" in file else "deepspeed") / "RECORD"


def _dist_info(name):
    (found,) = SITE.glob(f"{name}-*.dist-info")
    return found


def _compiled(path):
    return str(path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc")


def _replace(path, old, new):
    path.write_text(path.read_text().replace(old, new))


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    {"patches": patches, "mend": mend, "release": release, "wheel": wheel, "retitle": retitle}[command](*arguments)
