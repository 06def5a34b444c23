"""tune, as a user types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
ASKED = ("tune", "llama-2-7b", "--gpu", "a100-80gb", "--gpus", "8", "--ram", "1TiB")
SMALL = ("tune", "llama-2-7b", "--gpu", "4090", "--gpus", "1", "--ram", "64GiB")


def test_the_text_has_the_ladder_the_file_and_what_goes_with_it(cli: Any) -> None:
    done = cli(*ASKED, COLUMNS="100")
    assert done.code == 0 and done.err == ""
    assert re.search(r"(?m)^ZeRO-0 .* no$", done.out) and re.search(r"(?m)^ZeRO-1 .* yes, taken$", done.out)
    for piece in ("ZeRO-0: GPU, while the optimizer steps", "loading without zero.Init: a peak of 200.8 GiB",
                  "zero_optimization.reduce_bucket_size: 16777216", "h^2, h = 4,096", "What to measure next",
                  "tokens a second", "deepspeed --num_gpus 8 train.py --deepspeed_config ds_config.json"):  # fmt: skip
        assert piece in done.out, piece
    assert "Every formula" not in done.out


def test_nothing_is_wider_than_the_terminal(cli: Any) -> None:
    for columns in (80, 120):
        out = cli(*ASKED, "--offload", "parameters", "--explain", COLUMNS=str(columns)).out
        # Commands are lines to copy.
        long = [line for line in out.splitlines() if len(line) > columns]
        wide = [line for line in long if not re.match(r" +(envbuild|deepspeed|export) ", line)]
        assert not wide, wide


def test_explain_gives_every_formula_with_its_numbers(cli: Any) -> None:
    out = cli(*ASKED, "--stage", "3", "--explain", COLUMNS="160").out.partition("Every formula")[2]
    assert "parameters (read) = p x S = 2 x 842,301,952 = 1.57 GiB" in out
    assert "context (assumed) = 1.5 GiB" in out
    assert re.search(r"(?m)^  G  gradient_accumulation_steps$", out)
    assert "x others = " in out and "\n  others  (N - 1) / N" in out
    # Where nothing fits: of the last rung that this machine has.
    out = cli(*SMALL, "--explain", COLUMNS="160").out.partition("Every formula: ")[2]
    assert out.startswith("ZeRO-3, optimizer and parameters in host memory\n") and "swap buffers" not in out


def test_json_is_one_document_with_the_file_in_it(cli: Any, project: Path) -> None:
    document = cli(*ASKED, "--json", "-o", "ds_config.json").json
    assert document["schema"] == "envbuild.tune/1" and document["fits"] is True
    assert document["chosen"]["id"] == "zero1"
    assert [rung["id"] for rung in document["rungs"]][:4] == ["zero0", "zero1", "zero2", "zero3"]
    assert json.loads((project / "ds_config.json").read_text()) == document["config"]
    assert document["batch"]["global_batch"] == document["config"]["train_batch_size"] == 64


def test_the_file_is_written_whole_and_never_over_another(cli: Any, project: Path) -> None:
    path = project / "ds_config.json"
    path.write_text("mine")
    refused = cli(*ASKED, "-o", "ds_config.json")
    assert refused.code == 2 and "ds_config.json is there already" in refused.err and "--force" in refused.err
    assert path.read_text() == "mine"
    assert cli(*ASKED, "-o", "ds_config.json", "--force").code == 0
    assert "//" not in path.read_text() and json.loads(path.read_text())["zero_optimization"]["stage"] == 1
    linted = cli(
        "lint", "ds_config.json", "--gpu", "a100-80gb", "--gpus", "8", "--ram", "1TiB", "--params", "llama-2-7b"
    )
    assert linted.code == 0 and not re.search(r"error|warning", linted.out), linted.out
    dangling = project / "link.json"
    dangling.symlink_to(project / "elsewhere.json")
    assert cli(*ASKED, "-o", "link.json").code == 2 and not (project / "elsewhere.json").exists()
    assert cli(*ASKED, "-o", ".").code == 3
    assert cli(*ASKED, "-o", "-").code == 2 and not (project / "-").exists()


def test_the_cores_are_counted_by_a_command_that_can_be_pasted(cli: Any) -> None:
    out = cli(*ASKED, "--offload", "optimizer", COLUMNS="100").out
    command = next(line.strip() for line in out.splitlines() if "export OMP_NUM_THREADS" in line)
    made = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", "-c", f"{command}; echo $OMP_NUM_THREADS"], env=made, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip().isdigit() and done.stderr == ""


def test_nothing_of_a_config_commands_the_terminal(cli: Any, project: Path) -> None:
    kind = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024}
    for config in (
        {**kind, "vocab_size": 1000, "model_type": "new\x1b[31m\n\x00"},
        {**kind, "vocab\x1b[31m_size": 1000, "model_type": "llama"},
    ):
        (project / "config.json").write_text(json.dumps(config))
        done = cli("tune", "--model-config", "config.json", *ASKED[2:])
        assert "\\x1b[31m" in done.out + done.err
        assert (done.out + done.err).replace("\n", "").isprintable()


def test_what_does_not_fit_ends_with_5_and_the_changes_that_would_do(cli: Any, project: Path) -> None:
    done = cli(*SMALL, "-o", "ds_config.json")
    assert done.code == 5 and not (project / "ds_config.json").exists()
    assert "Nothing fits." in done.out and "  - 136 GiB of host memory on each node" in done.out
    document = cli(*SMALL, "--json")
    assert document.code == 5 and document.json["fits"] is False and document.json["chosen"] is None
    assert document.json["changes"][0]["rung"] == "offload-optimizer"
    forced = cli(*ASKED, "--stage", "0")
    assert forced.code == 5 and "Without --stage and --offload ZeRO-1 would fit." in forced.out
    asked = cli(*SMALL, "--stage", "2")
    assert "Without --stage and --offload each of these alone would make it fit" in " ".join(asked.out.split())


def test_a_model_of_ones_own_is_read_from_its_config(cli: Any, project: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 8, "intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 128,
    }  # fmt: skip
    (project / "config.json").write_text(json.dumps(config))
    rest = ("--gpu", "h100", "--gpus", "2", "--ram", "64GiB", "--json")
    named = cli("tune", "--model-config", "config.json", *rest).json
    # 4 x (4 h^2 + 3 h i + 2 h) + 2 V h + h
    assert named["model"]["parameters"] == 4 * (4 * 512**2 + 3 * 512 * 1024 + 2 * 512) + 2 * 1000 * 512 + 512
    assert cli("tune", "./config.json", *rest).json["model"] == named["model"]
    assert any("positions for 128 tokens" in note for note in named["notes"])
    (project / "gpt2").mkdir()
    assert cli("tune", "gpt2", *rest).json["model"]["name"] == "gpt2", "a folder of outputs is no model"
    (project / "gpt2/config.json").write_text(json.dumps(config))
    assert cli("tune", "gpt2", *rest).json["model"]["parameters"] == named["model"]["parameters"]
    assert "name a model" in cli("tune", "", *rest[:-1]).err
    (project / "config.json").write_text('{"model_type": "llama", "hidden_size": -1}')
    assert cli("tune", "--model-config", "config.json", *rest).code == 2


def test_wrong_words_are_told_with_what_was_meant(cli: Any) -> None:
    for arguments, said in (
        (("tune", "lama-2-7b", *ASKED[2:]), "did you mean 'llama-2-7b'"),
        ((*ASKED[:3], "a100-80", *ASKED[4:]), "a100-80gb"),
        ((*ASKED, "--with", "trainer"), "hf-trainer"),
        ((*ASKED, "--global-batch", "65"), "Say 64 or 72"),
        ((*ASKED, "--row", "cpuu"), "cpu"),
        ((*ASKED, "--seq", "0"), "--seq"),
        (("tune", *ASKED[2:]), "name a model"),
    ):
        done = cli(*arguments)
        assert done.code == 2 and said in done.err, (arguments, done.err)
        wrong = cli(*arguments, "--json")
        assert wrong.code == 2 and wrong.json["schema"] == "envbuild.error/1"


def test_the_tab_key_knows_models_gpus_and_words(cli: Any) -> None:
    def completed(*words: str) -> list[str]:
        line = " ".join(("envbuild", *words))
        environ = {"_ENVBUILD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
        return [each for each in cli(**environ).out.split(os.linesep) if each]

    assert completed("tune", "llama-2") == ["llama-2-7b", "llama-2-13b", "llama-2-70b"]
    assert completed("tune", "--gpu", "a100") == ["a100-40gb", "a100-80gb"]
    assert completed("tune", "--offload", "o") == ["optimizer"]
    assert completed("tune", "--with", "h") == ["hf-trainer"]


def test_the_outputs_in_the_docs_are_what_the_command_prints(cli: Any) -> None:
    lines = [line[4:] for line in (REPOSITORY / "docs/tune.md").read_text().splitlines() if line.startswith("    ")]
    commands = [line.partition(" -o ")[0].split()[1:] for line in lines if line.startswith("envbuild tune")]
    assert len(commands) == 3
    printed = {line for command in commands for wide in ("100", "120") for line in _printed(cli, command, wide)}
    assert [line for line in lines if not line.startswith("envbuild") and line not in printed] == []


def _printed(cli: Any, command: list[str], columns: str) -> list[str]:
    lines: list[str] = cli(*command, COLUMNS=columns).out.splitlines()
    return lines
