"""What a pull request reviews: the evidence as it was signed, or without a statement of another."""

from __future__ import annotations

import shutil
from pathlib import Path

from envbuild import evidence
from envbuild.evidence import keys
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.recording import record
from envbuild.pipeline.workbench import Workbench

REPOSITORY = Path(__file__).parents[2]


def test_a_record_keeps_its_signature_and_gets_no_other(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "images" / "cpu").mkdir(parents=True)
    shutil.copy(REPOSITORY / "images/cpu/lock.json", root / "images/cpu")
    shutil.copy(REPOSITORY / "matrix.yaml", root)
    bench = Workbench(project_folder=root, environ={"HOME": str(tmp_path)})
    keys.make(tmp_path / "k.pem")
    key = keys.load_signing(tmp_path / "k.pem")
    seen = evidence.read(REPOSITORY / "images/cpu/record.json")
    target = prepare(bench, "cpu")
    folder = root / "images" / "cpu"
    written = record(bench, target, evidence.save(seen, "sha256:x", key=key))
    names = ["Dockerfile", "lock.json", "record.json", "record.dsse.json"]
    assert written == tuple(folder / name for name in names)
    assert evidence.signed_by(folder / "record.json", [key.public]).record == seen
    later = seen.model_copy(update={"envbuild": "later"})
    assert record(bench, target, evidence.save(later, "sha256:x")) == written[:3]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names[:3])
