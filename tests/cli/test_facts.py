"""`envbuild facts` as a user types it: what is known, and a refresh from an index that is a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import upstream as made

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def index(tmp_path: Path) -> dict[str, str]:
    """A package index in a folder, where torch 2.11.0 wants another NCCL than the facts say."""
    files, simple = tmp_path / "files", tmp_path / "simple"
    files.mkdir()
    made.torch(files, "2.11.0", nccl="2.99.1")
    made.wheel(files, "torchvision", "0.26.0", "torch==2.11.0", tag=f"cp310-cp310-{made.X86}")
    made.wheel(files, "torchaudio", "2.11.0", tag=f"cp310-cp310-{made.X86}")
    for name in ("torch", "torchvision", "torchaudio"):
        (simple / name).mkdir(parents=True)
        (simple / name / "index.html").write_text(made.page(*sorted(files.glob(f"{name}-*"))))
    return {"ENVBUILD_PIP_INDEX": simple.as_uri(), "PIP_CONFIG_FILE": "/dev/null", "https_proxy": "http://127.0.0.1:9"}


def test_facts_are_listed_with_their_age(cli: Any) -> None:
    for arguments in (("facts",), ("facts", "list"), ("facts", "show")):
        done = cli(*arguments)
        assert done.code == 0
        header, *lines = done.out.splitlines()
        assert header.split() == ["FILE", "FROM", "FACTS", "VERIFIED", "PARTIAL", "UNVERIFIED", "OLDEST", "NEWEST"]
        assert {line.split()[1] for line in lines} == {"envbuild"}
    said = cli("facts", "--json").json
    assert said["schema"] == "envbuild.facts/1"
    torch = next(each for each in said["facts"] if each["file"] == "torch")
    assert torch["facts"] == sum(torch["marks"].values())


def test_a_fact_is_shown_with_mark_source_and_date(cli: Any) -> None:
    done = cli("facts", "show", "deepspeed", "cuda13")
    assert done.code == 0 and "0.19.7" in done.out and "verified" in done.out and "DeepSpeed" in done.out
    (said,) = cli("facts", "show", "deepspeed", "cuda13", "--json").json["facts"]
    assert said["fact"] == "minimums.cuda13" and said["values"]["version"] == "0.19.7"
    lost = cli("facts", "show", "torhc")
    assert lost.code == 2 and "nothing is known about torhc" in lost.err and "torch" in lost.err


def test_a_refresh_shows_a_diff_and_writes_only_when_told(cli: Any, project: Path, index: dict[str, str]) -> None:
    done = cli("facts", "refresh", "torch", **index)
    assert done.code == 0, done.err
    assert "-        nccl: 2.28.9\n+        nccl: 2.99.1\n" in done.out
    assert "not read: torch 2.12.1" in done.out and "nothing was written" in done.err
    assert not (project / "facts").exists()
    said = cli("facts", "refresh", "torch", "--json", **index).json
    (change,) = [each for each in said["changes"] if each["kind"] == "changed"]
    assert (change["old"], change["new"], said["written"]) == ("2.28.9", "2.99.1", [])

    written = cli("facts", "refresh", "torch", "--write", **index)
    assert written.code == 0 and f"written: {project}/facts/torch.yaml" in written.out
    assert "nccl: 2.99.1" in (project / "facts" / "torch.yaml").read_text()
    assert cli("facts", "show", "torch", "2.11.0", "cu130").out.count("2.99.1") == 1
    again = cli("facts", "refresh", "torch", "--write", **index)
    assert again.code == 0 and "nothing changes" in again.out and "written" not in again.out
    # The project's copy counts, and says so once the ones that come with envbuild are newer.
    text = (project / "facts" / "torch.yaml").read_text()
    old = "\n".join(line.replace("2026-", "2020-") for line in text.splitlines())
    (project / "facts" / "torch.yaml").write_text(old + "\n")
    listed = cli("facts")
    assert "hides newer facts in" in listed.err and "older than six months" in listed.err


def test_a_project_that_cannot_be_written_leaves_them_in_the_users_store(
    cli: Any, tmp_path: Path, index: dict[str, str]
) -> None:
    nowhere = tmp_path / "elsewhere"
    nowhere.mkdir()
    done = cli("facts", "refresh", "torch", "-y", cwd=nowhere, **index)
    assert done.code == 0 and f"written: {tmp_path}/home/store/facts/torch.yaml" in done.out
    assert "2.99.1" in cli("facts", "show", "torch", "2.11.0", cwd=nowhere).out


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("pytorch",), 2, "nothing to refresh is called pytorch"),
        (("torch", "--write", "--dry-run"), 2, "contradict"),
        (("deepspeed",), 3, "deepspeed: not found in file://"),
    ],
)
def test_what_cannot_be_refreshed(
    cli: Any, index: dict[str, str], arguments: tuple[str, ...], code: int, expected: str
) -> None:
    done = cli("facts", "refresh", *arguments, **index)
    assert done.code == code and expected in done.err, done.err


def test_an_index_that_does_not_answer_or_is_none(cli: Any, project: Path, index: dict[str, str]) -> None:
    silent = cli("facts", "refresh", "nccl", **{**index, "ENVBUILD_PIP_INDEX": "http://u:geheim@127.0.0.1:9/simple"})
    assert silent.code == 3 and "does not answer" in silent.err and "geheim" not in silent.err + silent.out
    page = Path(index["ENVBUILD_PIP_INDEX"].removeprefix("file://")) / "torch" / "index.html"
    page.write_text("<html>Sign in</html>")
    changed = cli("facts", "refresh", "torch", **index)
    assert changed.code == 3 and "not a page of an index" in changed.err and str(page) in changed.err
    shutil.rmtree(page.parent)
    assert cli("facts", "refresh", "torch", **index).code == 3
