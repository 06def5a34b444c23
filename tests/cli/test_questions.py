"""What people ask of the matrix: list, show, why-not, diff; on wide and narrow terminals, and by the Tab key."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envbuild.lock import read, write

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = ("why-not", "--gpu", "v100", "--cuda", "13.0", "--torch", "2.12")


# --- list and show ----------------------------------------------------------------------------------------------------


def test_list_can_be_narrowed_by_what_a_row_is_for(cli: Any) -> None:
    def names(*arguments: str) -> list[str]:
        return [env["name"] for env in cli("list", *arguments, "--json").json["environments"]]

    assert {"a100-cu117", "a100-cu118"} <= set(names("--gpu", "A100"))
    assert names("--gpu", "a100", "--cuda", "11.8") == ["a100-cu118", "rhel8-cu118"]
    assert names("--cuda", "13") == ["h200-cu130", "b200-cu132"]
    assert names("--cuda", "1") == [], "a series ends at a dot"
    assert names("--accelerator", "cpu") == ["cpu"]
    assert names("--accelerator", "cpu", "--cuda", "12") == []
    nothing = cli("list", "--cuda", "99")
    assert nothing.code == 0 and "no row is like that" in nothing.err
    wrong = cli("list", "--gpu", "a10")
    assert wrong.code == 2 and "did you mean 'a100'" in wrong.err and "rtx4090" in wrong.err
    assert cli("list", "--accelerator", "tpu").code == 2


def test_list_says_what_was_recorded_and_that_the_rest_was_never_built(cli: Any, project: Path) -> None:
    record = REPOSITORY / "images" / "cpu" / "record.json"
    shutil.copy(record, project / "images" / "cpu")
    seen = json.loads(record.read_text())
    lines = {line.split()[0]: line for line in cli("list").out.splitlines()}
    assert f"recorded cpu {seen['finished'][:10]}" in lines["cpu"]
    assert all("never built" in line for row, line in lines.items() if row not in ("ROW", "cpu"))
    cpu = cli("list", "--accelerator", "cpu", "--json").json["environments"][0]
    assert cpu["recorded"]["level"] == "cpu" and cpu["recorded"]["finished"].startswith(seen["finished"][:10])
    (project / "images" / "cpu" / "record.json").write_text("{")
    assert "never built" in cli("list", "--accelerator", "cpu").out, "what cannot be read says nothing"


def test_list_says_which_rule_a_row_breaks(cli: Any, project: Path) -> None:
    path = project / "matrix.yaml"
    path.write_text(path.read_text().replace("gpus: [h200]", "gpus: [v100]"))
    assert "never built; breaks R09" in cli("list", "--cuda", "13.0").out


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
def test_nothing_is_wider_than_the_terminal(columns: int, cli: Any, project: Path) -> None:
    shutil.copy(REPOSITORY / "images" / "cpu" / "record.json", project / "images" / "cpu")
    listed = cli("list", COLUMNS=str(columns))
    assert listed.code == 0 and listed.out.splitlines()[0].split()[:1] == ["ROW"]
    assert "LEVEL" in listed.out and "TORCH" in listed.out
    if columns >= 60:
        assert max(map(len, listed.out.splitlines())) <= columns
    assert ("columns have no room for" in listed.err) == ("IMAGE" not in listed.out)
    # Findings are lines for grep, and a path cannot be broken; everything else can.
    for arguments in (("show", "h100-cu121"), EXAMPLE):
        wide = [line for line in cli(*arguments, COLUMNS=str(columns)).out.splitlines() if len(line) > columns]
        assert all(
            re.match(r"lock |note |(/\S+: )?(error|warning|info) \[|    (fix|source): ", line) for line in wide
        ), wide


def test_show_says_what_was_claimed_and_what_the_row_stands_on(cli: Any) -> None:
    done = cli("show", "h100-cu121", COLUMNS="100")
    assert done.code == 0
    assert re.search(r"(?m)^Claimed: nccl is 2\.18\.1, by a field report", done.out)
    assert re.search(r"(?m)^    but: wheel METADATA of torch 2\.2\.0 asks for 2\.19\.3", done.out)
    for fact in (
        "torch's machine code",
        "sm_90",
        "torchvision for it",
        "GLIBCXX_3.4.19",
        "oldest driver",
        "old string",
    ):
        assert fact in done.out
    said = cli("show", "v100-cu113", "--json").json["environment"]
    assert {"claimed", "waivers", "upstream", "signature"} <= set(said)
    assert said["claimed"][0]["contradicted"].startswith("2.10.3") and said["signature"] is None
    assert {waiver["rule"] for waiver in said["waivers"]} == {"R21"}
    assert all(set(each) == {"name", "value", "mark", "source"} for each in said["upstream"])
    assert "until 2027-06-30" in cli("show", "v100-cu113").out


# --- why-not ----------------------------------------------------------------------------------------------------------


def test_why_not_tells_every_rule_and_the_nearest_ways(cli: Any) -> None:
    done = cli(*EXAMPLE, COLUMNS="100")
    assert (done.code, done.err) == (1, "")
    assert "GPU v100, CUDA 13.0, torch 2.12.1+cu130" in done.out
    assert re.search(r"error \[R09\] .*CUDA 13\.0 does not compile for V100", done.out)
    assert re.search(r"    source: .*NVIDIA documentation.*\(verified\)", done.out)
    assert "cuda 13.0 -> 12.9, torch 2.12 -> 2.10.0+cu128" in done.out
    assert "this is row v100-cu126." in done.out
    said = cli(*EXAMPLE, "--json")
    assert said.code == 1 and set(said.json) == {"schema", "asked", "findings", "alternatives"}
    assert said.json["schema"] == "envbuild.why-not/1"
    assert said.json["asked"]["said"] == {"gpu": "v100", "cuda": "13.0", "torch": "2.12"}
    finding = next(each for each in said.json["findings"] if each["rule"] == "R09")
    assert finding["mark"] == "verified" and finding["source"]
    rows = [each["row"] and each["row"]["is"] and each["row"]["name"] for each in said.json["alternatives"]]
    assert "v100-cu126" in rows
    assert [len(each["changes"]) for each in said.json["alternatives"]] == sorted(
        len(each["changes"]) for each in said.json["alternatives"]
    )


def test_why_not_keeps_what_cannot_change(cli: Any) -> None:
    said = cli(*EXAMPLE, "--keep", "gpu", "--json").json
    assert said["alternatives"] and not any("gpu" in each["changes"] for each in said["alternatives"])
    assert len(cli(*EXAMPLE, "-n", "1", "--json").json["alternatives"]) == 1
    none = cli(*EXAMPLE, "--keep", "gpu,cuda")
    assert none.code == 1 and "No valid combination" in none.out
    wrong = cli(*EXAMPLE, "--keep", "gpus")
    assert wrong.code == 2 and "did you mean 'gpu'" in wrong.err


def test_why_not_when_nothing_is_against_it(cli: Any) -> None:
    done = cli("why-not", "--gpu", "v100", "--cuda", "12.6")
    assert done.code == 0 and "Nothing is known against it. It is row v100-cu126." in done.out
    said = cli("why-not", "a100-cu118", "--json")
    assert said.code == 0 and said.json["alternatives"] == [] and said.json["asked"]["valid"]
    assert said.json["asked"]["row"] == {"name": "a100-cu118", "is": True, "differs": {}}


def test_why_not_starts_from_a_row(cli: Any) -> None:
    said = cli("why-not", "a100-cu118", "--torch", "2.6.0", "--json")
    assert said.code == 1 and "R06" in {each["rule"] for each in said.json["findings"]}
    assert said.json["asked"]["values"]["cuda"] == "11.8" and said.json["asked"]["values"]["python"] == "3.10"
    assert {"torch"} in [set(each["changes"]) for each in said.json["alternatives"]]


def test_why_not_about_what_the_facts_do_not_know(cli: Any) -> None:
    done = cli("why-not", "--gpu", "a100", "--torch", "2.99")
    assert done.code == 1
    assert re.search(r"error \[UNKNOWN\] asked: torch: torch 2\.99 is unknown to the facts; .*2\.15\.0", done.out)
    assert "torch 2.99 -> " in done.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "why not what"),
        (["--gpu", "v10"], "did you mean 'v100'"),
        (["no-such-row"], "no environment"),
        (["--torch", "two"], "no version"),
        (["--accelerator", "cpu", "--gpu", "v100"], "no meaning"),
        (["--base", "jamy"], "did you mean 'jammy'"),
    ],
)
def test_why_not_is_used_wrongly(arguments: list[str], told: str, cli: Any) -> None:
    done = cli("why-not", *arguments)
    assert (done.code, done.out) == (2, "") and told in done.err
    assert told in cli("why-not", *arguments, "--json").json["message"]


# --- diff -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(project: Path) -> Path:
    """The project as a git repository with one commit, in a folder of a larger one."""
    root = project.parent
    shutil.copytree(REPOSITORY / "templates", project / "templates")
    shutil.copytree(REPOSITORY / "facts", project / "facts")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "project")
    git(root, "commit", "-q", "-m", "first")
    return project


def git(where: Path, *arguments: str) -> None:
    names = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *names, *arguments], cwd=where, check=True, capture_output=True, timeout=60)


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def test_diff_of_a_revision_and_the_working_tree(cli: Any, repository: Path) -> None:
    same = cli("diff", "HEAD")
    assert (same.code, same.out, same.err) == (0, "No difference.\n", "")
    edit(repository / "matrix.yaml", "summary: H200 with", "summary: Fast with")
    edit(repository / "matrix.yaml", "accelerator: cpu\n", "accelerator: cpu\n    packages: [git]\n")
    done = cli("diff", "HEAD")
    assert (done.code, done.err) == (0, "")
    cpu, h200 = (part for part in re.split(r"(?m)^(?=\S)", done.out) if part.startswith(("cpu:", "h200-cu130:")))
    assert "packages: [] -> [git]" in cpu and "build again, because of packages" in cpu
    assert re.search(r"target [0-9a-f]{8} -> [0-9a-f]{8}", cpu)
    assert "the image and its evidence stay" in h200 and "target" not in h200
    assert re.search(r"(?m)^As they were: v100-cu113, ", done.out)
    said = cli("diff", "HEAD", "--json").json
    assert (
        said["schema"] == "envbuild.diff/1" and said["old"].startswith("HEAD (") and said["new"] == "the working tree"
    )
    changes = {each["name"]: each for each in said["changes"]}
    assert (changes["cpu"]["effect"], changes["cpu"]["causes"]) == ("rebuild", ["packages"])
    assert changes["h200-cu130"]["effect"] == "nothing" and changes["h100-cu124"]["status"] == "same"
    git(repository, "commit", "-q", "-a", "-m", "second")
    assert cli("diff", "HEAD~1", "HEAD", "--json").json["changes"] == said["changes"]
    assert cli("diff", "HEAD").out == "No difference.\n"
    assert cli("diff", "main~1", str(repository), "--json").json["changes"] == said["changes"]


def test_diff_of_templates_facts_and_locks(cli: Any, repository: Path) -> None:
    edit(repository / "templates" / "Dockerfile.j2", "\n", "\n# changed\n")
    edit(repository / "facts" / "gpus.yaml", "v100: {name: V100", "v100: {name: V 100")
    path = repository / "images" / "cpu" / "lock.json"
    lock = read(path)
    older = (
        each.model_copy(update={"version": "0.19.7"}) if each.name == "deepspeed" else each for each in lock.packages
    )
    write(path, lock.model_copy(update={"packages": tuple(older)}))
    done = cli("diff", "HEAD")
    assert re.search(r"(?m)^templates/Dockerfile\.j2: changed$", done.out)
    assert "gpus.v100.name: V100 -> V 100" in done.out
    assert "lock: deepspeed 0.19.8 -> 0.19.7" in done.out
    assert "build again, because of lock, templates" in done.out
    assert re.search(r"h200-cu130: the row is as it was\n  -> build again, because of templates", done.out)


def test_diff_with_an_old_matrix_of_another_shape(cli: Any, repository: Path) -> None:
    edit(repository / "matrix.yaml", "summary: H200 with", "flavour: sweet\n    summary: H200 with")
    git(repository, "commit", "-q", "-a", "-m", "another shape")
    edit(repository / "matrix.yaml", "    flavour: sweet\n", "")
    done = cli("diff", "HEAD")
    assert done.code == 0 and re.search(r"note: HEAD \(\w+\):matrix\.yaml .*flavour", done.err)
    assert "flavour: sweet -> (none)" in done.out
    (repository / "matrix.yaml").write_text("[")
    assert cli("diff", "HEAD").code == 2
    git(repository, "commit", "-q", "-a", "-m", "no matrix any more")
    git(repository, "checkout", "-q", "HEAD~1", "--", ".")
    refused = cli("diff", "HEAD")
    assert refused.code == 2 and re.search(r"HEAD \(\w+\):matrix\.yaml:\d+:\d+: ", refused.err)


def test_diff_says_what_is_not_there(cli: Any, project: Path, repository: Path, tmp_path: Path) -> None:
    def told(*arguments: str, **env: str) -> str:
        done = cli("diff", *arguments, **env)
        assert (done.code, done.out) == (2, "")
        return str(done.err)

    assert "neither a path with a matrix.yaml nor a git revision" in told("no-such-thing")
    assert "neither a path nor a revision" in told("--", "--output=x")
    assert "does not exist" in told("./gone/matrix.yaml")
    assert "has no matrix.yaml" in told(str(tmp_path / "home") + "/")
    assert "git was not found" in told("HEAD", PATH=str(tmp_path / "empty"))
    git(tmp_path, "rm", "-q", "-r", "--cached", "project")
    git(tmp_path, "commit", "-q", "-m", "gone")
    assert "has no matrix.yaml" in told("HEAD")
    shutil.rmtree(tmp_path / ".git")
    assert "in no git repository" in told("HEAD")
    assert json.loads(cli("diff", "HEAD", "--json").out)["code"] == "input"


# --- completion -------------------------------------------------------------------------------------------------------

SHELLS = ("bash", "zsh", "fish")


def complete(cli: Any, shell: str, typed: str, **given: Any) -> list[str]:
    """What a shell is offered for the last word, by what its script of ours sends."""
    words = typed.split(" ")
    sent = {
        "bash": {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": typed},
        "fish": {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    done = cli(_ENVBUILD_COMPLETE=f"complete_{shell}", **sent, **given)
    assert done.err == ""
    return re.findall(r'"([^"]+)"', done.out) if shell == "zsh" else [line.split("\t")[0] for line in done.out.split()]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("envbuild show h2", ["h200-cu130"]),
        ("envbuild why-not v", ["v100-cu113", "v100-cu126"]),
        ("envbuild why-not --gpu a1", ["a100"]),
        ("envbuild why-not --gpu a100,h2", ["a100,h200"]),
        ("envbuild why-not --gpu v100 --cuda 13.", ["13.0", "13.1", "13.2", "13.3", "13.4"]),
        ("envbuild why-not --torch 2.1.2+", ["2.1.2+cu121", "2.1.2+cu118"]),
        ("envbuild why-not --family ub", ["ubuntu"]),
        ("envbuild why-not --base boo", ["bookworm"]),
        ("envbuild why-not --accelerator cu", ["cuda"]),
        ("envbuild why-not --keep dr", ["driver"]),
        ("envbuild list --gpu b2", ["b200"]),
    ],
)
def test_the_tab_key(shell: str, typed: str, offered: list[str], cli: Any) -> None:
    assert complete(cli, shell, typed) == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_knows_the_project_that_the_line_names(shell: str, cli: Any, project: Path, tmp_path: Path) -> None:
    edit(project / "matrix.yaml", "  h200-cu130:\n", "  h200-mine:\n")
    assert complete(cli, shell, f"envbuild show --project {project} h200", cwd=tmp_path) == ["h200-mine"]
    assert complete(cli, shell, "envbuild show h200", cwd=tmp_path) == ["h200-cu130"], "the packaged matrix"
    (project / "matrix.yaml").write_text("[")
    assert complete(cli, shell, f"envbuild show --project {project} h200", cwd=tmp_path) == []


def test_every_row_is_new_where_there_was_no_matrix(cli: Any, repository: Path) -> None:
    root = repository.parent
    git(root, "checkout", "-q", "--orphan", "empty")
    git(root, "rm", "-rq", "--cached", ".")
    git(root, "commit", "-q", "--allow-empty", "-m", "before")
    git(root, "symbolic-ref", "HEAD", "refs/heads/main")
    git(root, "reset", "-q")
    done = cli("build", "cpu", "h200-cu130", "--changed-since", "empty", "--dry-run", "--json")
    assert [plan["environment"] for plan in done.json["plans"]] == ["cpu", "h200-cu130"]
    assert "changed since empty: cpu, h200-cu130 (of 2)" in done.err
    assert "no row (of 2)" in cli("build", "cpu", "h200-cu130", "--changed-since", "main", "--dry-run").err
    lost = cli("build", "cpu", "--changed-since", "1" * 40, "--dry-run")
    assert lost.code == 2 and "nor a git revision" in lost.err
