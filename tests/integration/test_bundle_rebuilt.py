"""A wheel out of an installation, next to the wheel that pip installed: PyPI's own, with native code and programs."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from bundles import exported
from envbuild.bundle import rebuilt


@pytest.mark.parametrize("name", ["markupsafe", "ninja", "wheel"])
def test_what_pip_installed_is_what_the_wheel_had(name: str, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "download", "-q", "--no-deps", "-d", str(tmp_path / "got"), name], check=True, timeout=200)
    (original,) = (tmp_path / "got").iterdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=100)
    python = str(tmp_path / "venv/bin/python")
    line = [*pip, "--python", python, "install", "-q", "--no-deps", "--no-index", "--no-compile", str(original)]
    subprocess.run(line, check=True, timeout=100)
    with tarfile.open(tmp_path / "layer.tar", "w") as tar:
        tar.add(tmp_path / "venv", "opt/venv")
    folder = tmp_path / "rebuilt"
    folder.mkdir()
    made = rebuilt.rebuild(exported((tmp_path / "layer.tar").read_bytes()), name, folder)
    assert made.wheel.filename == original.name
    with zipfile.ZipFile(original) as theirs, zipfile.ZipFile(made.wheel.path) as ours:
        wanted = {each.filename: theirs.read(each) for each in theirs.infolist() if not each.is_dir()}
        held = {each: ours.read(each) for each in ours.namelist()}
    record = next(each for each in wanted if each.endswith(".dist-info/RECORD"))
    assert held.keys() == wanted.keys()
    assert {path for path in held if held[path] != wanted[path]} <= {record}
    listed = [
        {line.split(",")[0]: line for line in text.decode().split() if line} for text in (held[record], wanted[record])
    ]
    assert listed[0] == listed[1]
    # And it installs as the first one did.
    again = tmp_path / "again"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(again)], check=True, timeout=100)
    line = [*pip, "--python", str(again / "bin/python"), "install", "-q", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*line, str(made.wheel.path)], check=True, timeout=100)
    records = [next(place.rglob(f"{name}-*.dist-info/RECORD")) for place in (tmp_path / "venv", again)]
    texts = [sorted(line for line in path.read_text().splitlines() if "direct_url" not in line) for path in records]
    assert [line.split(",")[0] for line in texts[0]] == [line.split(",")[0] for line in texts[1]]
