"""What nobody else is to read: in command lines, configurations, variables and logs; and what is no secret."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import envbuild
from envbuild import process
from envbuild.cli import wishing
from envbuild.collector import secrets
from envbuild.diagnose.text import shown
from envbuild.engines import ContainerSpec, podman_run
from envbuild.engines.argv import create_payload, run_argv
from envbuild.engines.podman_argv import podman_argv
from envbuild.errors import InputError
from envbuild.pipeline import commanded
from envbuild.pipeline.commanded import masked
from envbuild.pipeline.measured import About, config_hash, measurement_of
from envbuild.pipeline.profile_made import made_of, wish_of
from envbuild.pipeline.profile_wish import Wish
from envbuild.pipeline.training_config import training_config
from envbuild.profile import files, readers
from envbuild.profile.document import Hardware, Measurement
from envbuild.profiler import recorder
from envbuild.report import judged

SECRET = "hunter2-horse"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("train.py", "--password", f"correct {SECRET} battery"), "train.py --password ***"),
        (("train.py", "--access-key", SECRET, "--lr", "1"), "train.py --access-key *** --lr 1"),
        (("train.py", f"--passwd={SECRET} b"), "train.py --passwd=***"),
        (("train.py", "--hf-credential", SECRET), "train.py --hf-credential ***"),
        (("train.py", "--apiKey", SECRET, "-token", SECRET), "train.py --apiKey *** -token ***"),
        (("train.py", "--data", f"https://me:{SECRET}@host/x?sig=a"), "train.py --data 'https://***@host/x?***'"),
        (("env", f"WANDB_AUTH={SECRET}", f"MY_PAT={SECRET}", "a"), "env WANDB_AUTH=*** MY_PAT=*** a"),
        (("run", f"--env=HF_TOKEN={SECRET}", "-e", f"K_KEY={SECRET}"), "run --env=HF_TOKEN=*** -e K_KEY=***"),
        (("run", f"+trainer.api_key={SECRET}", f"logger.token={SECRET}"), "run +trainer.api_key=*** logger.token=***"),
        (("curl", "-H", f"Authorization: Bearer {SECRET}"), "curl -H 'Authorization: ***'"),
        (("curl", f"--header=X-Auth-Token: {SECRET}, b"), "curl '--header=X-Auth-Token: ***'"),
        (("curl", "-u", f"me:{SECRET}", "-u", "1000:1000"), "curl -u me:*** -u 1000:1000"),
        (("sshpass", "-p", SECRET, "ssh", "-p", "22"), "sshpass -p *** ssh -p ***"),
        (("x", f'{{"api_key": "{SECRET} b", "lr": 1}}'), """x '{"api_key": "***", "lr": 1}'"""),
        (("bash", "-c", f"export HF_TOKEN='a {SECRET} c'; python t.py"), None),
        (("bash", "-c", f"python t.py --api-key {SECRET} --lr 1"), "bash -c 'python t.py --api-key *** --lr 1'"),
        (("bash", "-c", f'A="--token={SECRET}" curl -H "Authorization: Basic {SECRET}"'), None),
        (("ssh", "n1", f'bash -c "HF_TOKEN=\\"a {SECRET}\\" python t.py"'), None),
        (("bash", "-c", f"curl -u me:{SECRET} https://h/x"), "bash -c 'curl -u me:*** https://h/x'"),
        (("bash", "-c", f"PASSWORD='{SECRET}"), None),
        (("x", "hf_abcdefghijklmnopqrstuvwxyz"), "x ***"),
        # What a document is read for stays in it.
        (("deepspeed", "--use_auth_token", "--deepspeed_config", "ds.json"), None),
        (("t.py", "--max-tokens", "4096", "--tokenizer", "gpt2"), "t.py --max-tokens 4096 --tokenizer gpt2"),
        (("t.py", "--use_auth_token=True", "--path", "/a", "a: b"), "t.py --use_auth_token=True --path /a 'a: b'"),
        (("torchrun", "--rdzv-endpoint=h:1", "t.py", "a b"), "torchrun --rdzv-endpoint=h:1 t.py 'a b'"),
    ],
)  # fmt: skip
def test_a_command_line_is_told_without_them(words: tuple[str, ...], told: str | None) -> None:
    text = masked(words)
    assert SECRET not in text and f"{SECRET} b" not in text
    assert text == told if told is not None else text


def test_what_stands_behind_an_option_without_a_value_is_the_next_option() -> None:
    assert masked(("deepspeed", "--use_auth_token", "--deepspeed_config", "ds.json")) == (
        "deepspeed --use_auth_token --deepspeed_config ds.json"
    )
    home = Path.home()
    text = masked(("python", f"{home}/train.py", "a\x1bb"))
    assert str(home) not in text and "\x1b" not in text and text.startswith("python")


def test_a_search_ends_whatever_stands_there() -> None:
    began = time.monotonic()
    for text in ("a:" * 20_000, "--a " * 20_000, "token" * 9_000, "key='" * 9_000, "\\'" * 9_000, "=" * 40_000):
        masked(("bash", "-c", text))
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("name", "value"),
    [("WANDB_KEY", "a"), ("OPENAI_KEY", "a"), ("PRIVATE_KEY", "a"), ("HF_AUTH", "a"), ("DB_PWD", "1"), ("MY_PAT", "a"),
     ("accessKey", "a"), ("PGPASSWORD", "1"), ("HF_TOKEN_2", "a"), ("SENTRY_DSN", "a"), ("UV_INDEX_USERNAME", "a")],
)  # fmt: skip
def test_names_that_say_so(name: str, value: str) -> None:
    assert secrets.named(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("TOKENIZERS_PARALLELISM", "x"), ("max_tokens", "4096"), ("PATH", "/x"), ("NCCL_IB_PKEY", "1"), ("author", "x"),
     ("HF_TOKEN", ""), ("use_auth_token", "True"), ("monkey", "x"), ("CUDA_CACHE_PATH", "/x"), ("compass", "x")],
)  # fmt: skip
def test_names_that_do_not(name: str, value: str) -> None:
    assert not secrets.named(name, value)


def test_the_profiler_knows_the_same_names() -> None:
    assert (recorder._SECRET.pattern, recorder._MONITORS) == (secrets.NAME.pattern, secrets.MONITORS)


class Section:
    """As a model of DeepSpeed's."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def model_dump(self, mode: str) -> dict[str, Any]:
        return self._fields


GIVEN: dict[str, Any] = {
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "remote_secret": SECRET}},
    "wandb": {"enabled": True, "team": SECRET}, "comet": {"enabled": True, "api_key": SECRET},
    "trackio": {"space_id": SECRET}, "data_efficiency": {"layer_token_lr_schedule": {"total_layer_tokens": 5}},
    "hf_token": SECRET, "store": {"credentials": {"user": SECRET}, "url": f"s3://a:{SECRET}@b/c"},
}  # fmt: skip


def test_a_rank_writes_none_of_a_ds_config() -> None:
    config = {name: Section(**value) if name == "store" else value for name, value in GIVEN.items()}
    config["monitor_config"] = Section(comet={"enabled": True, "api_key": SECRET}, wandb={"team": SECRET})
    said = recorder.resolved(
        SimpleNamespace(_config=SimpleNamespace(**config, experiment_key=SECRET)), SimpleNamespace(clean=lambda x: x)
    )
    assert "monitor_config" not in said and "wandb" not in said and "experiment_key" not in said
    assert said["zero_optimization"] == {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    assert said["data_efficiency"] == GIVEN["data_efficiency"]


ABOUT = About(accelerator="cpu", hardware=Hardware(), probe="p", envbuild="1")


def measured(config: dict[str, Any]) -> Measurement:
    """What an older rank printed, which left nothing out."""
    version = {"torch": "2", "deepspeed": "0"}
    return measurement_of(
        [
            {"kind": "rank", "rank": 0, "local_rank": 0, "versions": version},
            {"kind": "pass", "pass": "timing", "rank": 0, "started": 1.0, "config": config},
        ],
        ABOUT,
    )


def test_a_measurement_its_key_and_a_report_have_none(tmp_path: Path) -> None:
    found = measured(GIVEN)
    text = json.dumps(files.document(found))
    assert SECRET not in text and "wandb" not in text and "total_layer_tokens" in text
    other = {**GIVEN, "comet": {"api_key": "another"}, "hf_token": "another"}
    assert found.key.config == measured(other).key.config == config_hash(found.config or {})
    assert SECRET not in repr(judged.key(found, None, "m"))
    # A file that somebody else wrote, or an envbuild before this one.
    path = tmp_path / "m.json"
    key = {"config": config_hash(GIVEN)}
    old = {"key": key, "origin": {"kind": "probe", "made": {"ds_config": GIVEN}}, "config": GIVEN, "launches": [{}]}
    path.write_text(json.dumps({"schema": "envbuild.profile/1", "measurement": old}))
    assert SECRET not in repr(files.read(path))
    assert files.read(path).key.config == found.key.config, "of the same settings, as it is measured today"
    old["key"] = {"config": "another program's"}
    path.write_text(json.dumps({"schema": "envbuild.profile/1", "measurement": old}))
    assert files.read(path).key.config == "another program's"


def test_a_log_is_read_without_them(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    printed = json.dumps({**GIVEN, "train_batch_size": 4}, indent=4)
    log.write_text(
        f"[2026-01-01 00:00:00,000] [INFO] [config.py:1:print_user_config]   json = {printed}\n"
        "[2026-01-01 00:00:01,000] [INFO] time (ms) | fwd: 1.0 | bwd: 2.0 | step: 1.0\n"
    )
    found = readers.read([log])
    assert found.config is not None and found.config["train_batch_size"] == 4
    assert SECRET not in repr(found)


def test_nothing_trains_with_one_so_that_nobody_misses_it() -> None:
    config = training_config(GIVEN, accelerator="cpu")
    assert SECRET not in json.dumps(config.values) and "layer_token_lr_schedule" in config.values["data_efficiency"]
    said = "\n".join(config.notes)
    for place in (
        "comet was",
        "wandb was",
        "trackio was",
        "hf_token was",
        "zero_optimization.offload_optimizer.remote",
    ):
        assert place in said
    assert SECRET not in said
    for setting in (
        f"comet.api_key={SECRET}",
        "wandb.enabled=true",
        f"x.token={SECRET}",
        f'a={{"api_key": "{SECRET}"}}',
    ):
        with pytest.raises(InputError, match="belongs into no measurement") as caught:
            training_config(None, accelerator="cpu", settings=[setting])
        assert SECRET not in caught.value.message
    assert training_config(None, accelerator="cpu", settings=["a.max_tokens=5"]).values["a"] == {"max_tokens": 5}


def test_of_a_variable_that_nobody_knows_the_name_is_kept() -> None:
    kept = (
        "OMP_NUM_THREADS=4",
        "NCCL_DEBUG=INFO",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "DS_ACCELERATOR=",
    )
    others = ("FOO", "WANDB_KEY", "MY_PAT", "DB_PWD", "HF_AUTH", "HF_HOME", "DS_KEY", "NCCL_TOKEN", "OMP_X", "CUDA_Y")
    values = {"OMP_X": f"https://a:{SECRET}@h/", "CUDA_Y": "a" * 500}
    made = made_of(Wish(env=(*kept, *(f"{name}={values.get(name, SECRET)}" for name in others))), {})
    assert made.env == (*kept, *(f"{name}=***" for name in others))
    assert wish_of(made).env == made.env


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("token=abcdef123456 x", "token=*** x"),
        ("HF_TOKEN: hf_abcdefghijklmnopqrstuv", "HF_TOKEN: ***"),
        ("password: hunter22 at https://me:p@host/", "password: *** at https://***@host/"),
        ("Authorization: Basic YWxpY2U6cGE1NQ==", "Authorization: Basic ***"),
        ("token: None, max_tokens=4096", "token: None, max_tokens=4096"),
        ("Basic authentication is needed", "Basic authentication is needed"),
    ],
)
def test_a_line_of_a_log(line: str, told: str) -> None:
    assert shown(line) in (told, told.replace("Authorization: Basic ***", "***"))


# --- on their way to the ranks ----------------------------------------------------------------------------------------

NAMED = ContainerSpec(image="i", argv=("a",), private=(("ENVBUILD_VALUES", SECRET),))


def test_a_container_gets_them_and_no_command_line_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"ENVBUILD_VALUES={SECRET}" in cast("list[str]", create_payload(NAMED)["Env"])
    started: list[tuple[Any, Any]] = []

    def watch(argv: Any, *, env: Any, **more: Any) -> tuple[int, bool]:
        started.append((argv, env))
        return 0, False

    monkeypatch.setattr(process, "watch", watch)
    monkeypatch.setattr(process, "run", lambda *argv, **more: None)
    podman_run.run(podman_run.Client(program="podman"), NAMED, timeout=1.0)
    ((argv, env),) = started
    assert env == {"ENVBUILD_VALUES": SECRET}
    for line in (argv, run_argv("docker", "unix:///x", NAMED), podman_argv("podman", None, NAMED)):
        assert line[line.index("--env") + 1] == "ENVBUILD_VALUES" and SECRET not in " ".join(line)


def test_a_variable_that_is_only_named_is_this_programs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envbuild, "own_variables", set())
    monkeypatch.setenv("MINE", "1")
    assert wishing.variables(["MINE", "B=2=3", "C="]) == ("MINE=1", "B=2=3", "C=")
    monkeypatch.setenv("ENVBUILD_VALUES", json.dumps({"MINE": "node", "HF_TOKEN": SECRET}))
    assert wishing.variables(["MINE", "HF_TOKEN"]) == ("MINE=node", f"HF_TOKEN={SECRET}")
    assert "ENVBUILD_VALUES" in envbuild.own_variables, "no child of this program's inherits it"
    for wrong, said in (("=3", "it is not NAME=VALUE"), ("NO_SUCH_ONE", "there is no such variable here")):
        with pytest.raises(InputError, match=said):
            wishing.variables([wrong])


def test_a_lint_points_at_its_place_and_does_not_repeat_it() -> None:
    line = f'{{"comet": {{"api_key": ["{SECRET}"], "note": "a: b"}}, "hf_token": "{SECRET}", "x": 1}}'
    black = secrets.blackened(line)
    assert len(black) == len(line) and SECRET not in black and '"note": "a: b"' in black and black.endswith('"x": 1}')
    for text in ('"a":' * 9_000, '"' * 9_000, '"token": "' * 4_000):
        assert len(secrets.blackened(text)) == len(text)


def test_a_command_in_an_image_gets_its_variables_by_name_or_from_a_file(tmp_path: Path) -> None:
    asked = commanded.Asked(warmup=5, env=(f"HF_TOKEN={SECRET}", f"HTTPS_PROXY=http://a:{SECRET}@h", "PYTHONPATH=/x"))
    bench: Any = SimpleNamespace(engine=SimpleNamespace(run_line=lambda spec: run_argv("docker", "unix:///x", spec)))
    commanded._write(tmp_path, asked)
    line = commanded._line(bench, ContainerSpec(image="i", argv=("a",)), tmp_path, asked)
    (file,) = tmp_path.iterdir()
    assert line[3:9] == ("run", "--env-file", str(file), "--env", "HF_TOKEN", "--rm") and SECRET not in " ".join(line)
    assert file.read_text() == f"HTTPS_PROXY=http://a:{SECRET}@h\n" and file.stat().st_mode & 0o777 == 0o600
    assert commanded._inside(asked) == {"HF_TOKEN": SECRET}, "what the client itself would heed is not its own"
    with pytest.raises(InputError, match="of one line"):
        commanded._write(tmp_path / "other", commanded.Asked(warmup=5, env=("PATH=a\nb",)))
