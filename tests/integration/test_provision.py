"""provision.sh of the `cpu` row, run for real: a plain Debian, an ordinary uid without a name, no root, and two kills.

What an administrator would install is installed by the command that the script prints. What the prefix trains is judged
as an image's training is.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envbuild import render
from envbuild.elf.isa import Isa, read_isa
from envbuild.engines import DockerEngine
from envbuild.judge import smoke
from envbuild.judge.suite import probes_folder
from envbuild.lock import stage_local
from envbuild.pipeline.prepare import Target, prepare
from envbuild.pipeline.provision import script
from envbuild.pipeline.smoking import probe_argv
from envbuild.pipeline.workbench import Workbench
from envbuild.site.secrets import build_secrets
from proving import REPOSITORY

PREFIX = "/home/somebody/envs/cpu"
RUN = f"sh /site/provision.sh --prefix {PREFIX} --pip-config /site/pip --find-links /site/wheels --jobs 2"
SITE = f"{PREFIX}/venv/lib/python3.11/site-packages"
# Everything that is not the prefix, or the kernel's.
ELSEWHERE = (
    "find / -xdev -path /proc -prune -o -path /sys -prune -o -path /home/somebody/envs -prune -o -type f -print0"
)
SNAPSHOT = f"{ELSEWHERE} | xargs -0 stat -c '%n %Y %s %a' | grep -v '^/tmp/log ' | sort"


@dataclass
class Machine:
    """A container that stays, and commands in it."""

    container: Any

    def run(self, command: str, *, root: bool = False, limit: int = 900) -> tuple[int, str]:
        """Exit code and output of a shell command, as somebody or as root."""
        user, home = ("0:0", "/root") if root else ("4242:4242", "/home/somebody")
        argv = ["timeout", str(limit), "sh", "-c", command]
        done = self.container.exec_run(argv, user=user, environment={"HOME": home}, workdir="/")
        return done.exit_code, done.output.decode(errors="replace")

    def good(self, command: str, *, root: bool = False) -> str:
        code, said = self.run(command, root=root)
        assert code == 0, said
        return said

    def kill_when(self, condition: str) -> None:
        """Start the script, and kill -9 its shell, and nothing else, as soon as a condition holds."""
        self.container.exec_run(["sh", "-c", f"{RUN} > /tmp/log 2>&1"], user="4242:4242", detach=True,
                                environment={"HOME": "/home/somebody"})  # fmt: skip
        deadline = time.monotonic() + 900
        while self.run(condition)[0] != 0:
            assert time.monotonic() < deadline, self.run("cat /tmp/log")[1]
        self.good(f"kill -9 $(readlink {PREFIX}/lock | cut -d' ' -f2)")


@pytest.fixture(scope="module")
def target() -> Target:
    return prepare(Workbench(project_folder=REPOSITORY), "cpu")


@pytest.fixture(scope="module")
def site(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What this machine's site gives a build, in one folder."""
    bench = Workbench(project_folder=REPOSITORY)
    folder = tmp_path_factory.mktemp("site")
    pip = bench.pip_for(target.env)
    for name, content in build_secrets(bench.site, pip, bench.apt_for(target.env)).items():
        (folder / name).write_bytes(content)
    (folder / "pip").write_text(pip.pip_conf(cert="/site/ca"))
    staged = stage_local(target.lock, pip, folder / "staged", bench.cache)
    (folder / "wheels").mkdir()
    for name in staged:
        (folder / "staged" / name).rename(folder / "wheels" / Path(name).name)
    (folder / "provision.sh").write_bytes(script(bench, target))
    (folder / "apptainer.def").write_bytes(render.apptainer(target.plan, bench.project.templates))
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def bare(engine: DockerEngine, base: str, site: Path) -> Iterator[Machine]:
    import docker

    client = docker.DockerClient(base_url=engine.endpoint, timeout=1200)
    binds = {str(site): {"bind": "/site", "mode": "ro"}, str(probes_folder()): {"bind": "/probes", "mode": "ro"}}
    container = client.containers.run(
        base, ["sleep", "7200"], detach=True, network_mode="host", volumes=binds, shm_size="1g"
    )
    try:
        machine = Machine(container)
        machine.good("mkdir -p /home/somebody && chown 4242:4242 /home/somebody", root=True)
        yield machine
    finally:
        container.remove(force=True)
        client.close()


@pytest.fixture(scope="module")
def made(bare: Machine) -> Machine:
    """The prefix, after an administrator's command, a kill while torch is installed, and one while ops compile."""
    code, said = bare.run(f"{RUN} --dry-run")
    assert code == 9 and "Python 3.11" in said and "GCC 12" in said and "libaio.h" in said, said
    (command,) = re.findall(r"^    (apt-get .*)$", said, re.MULTILINE)
    bare.good(f"if [ -s /site/apt ]; then export APT_CONFIG=/site/apt; fi; {command}", root=True)
    before = bare.good(SNAPSHOT)
    foreseen = bare.good(f"{RUN} --dry-run")
    assert "nothing was changed" in foreseen and bare.run(f"ls {PREFIX}")[0] != 0
    bare.kill_when(f"test -d {SITE}/torch/include")
    assert bare.run(f"test -e {PREFIX}/envbuild/stamps/torch")[0] != 0
    bare.kill_when("grep -qzE -e 'csrc/.+[.]cpp$' /proc/[0-9]*/cmdline")
    done = bare.good(RUN)
    assert "taking over from a run that was killed" in done and "torch wheels: up to date" in done, done
    assert "is ready in" in done
    after = bare.good(SNAPSHOT)
    assert set(after.splitlines()) ^ set(before.splitlines()) == set(), "something outside the prefix was changed"
    return bare


def test_a_second_run_has_nothing_to_do_and_a_second_at_once_is_refused(made: Machine) -> None:
    assert made.good(RUN).splitlines()[-1] == f"cpu is up to date in {PREFIX}"
    assert made.good(f"ls {PREFIX}").split() == ["bin", "env.sh", "envbuild", "log", "modulefile", "venv"]
    # A process that lives holds it; one of another host cannot be asked.
    holder = made.good(
        f'ln -s "$(uname -n) 1 $(sed "s/.*) //" /proc/1/stat | cut -d" " -f20)" {PREFIX}/lock; {RUN} || echo $?'
    )
    # The engine hands over the two streams of a container as they come to it, in no order.
    assert "another run (process 1)" in holder and "3" in holder.splitlines()
    elsewhere = made.good(f'ln -sfn "elsewhere 1 1" {PREFIX}/lock; {RUN} || echo $?; rm {PREFIX}/lock')
    assert "a run on elsewhere" in elsewhere and "3" in elsewhere.splitlines()


def test_the_ops_are_for_the_rows_cpu_and_keep_their_sums(made: Machine, target: Target, tmp_path: Path) -> None:
    made.good(f"cd {PREFIX}/envbuild/ops && sha256sum -c --quiet ../ops.sha256")
    (path,) = made.good(f"find {PREFIX}/venv -name 'cpu_adam_op*.so'").split()
    stream, _ = made.container.get_archive(path)
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
        member = archive.getmembers()[0]
        content = archive.extractfile(member)
        assert content is not None
        with tempfile.TemporaryFile(dir=tmp_path) as file:
            file.write(content.read())
            isa = read_isa(file)
    assert isinstance(isa, Isa) and not isa.beyond(target.env.cpu_baseline)


def test_it_trains_as_an_image_does(made: Machine, target: Target) -> None:
    expected = smoke.Expected.of(target.env, seed=secrets.randbelow(2**31), accelerator="cpu")
    argv = probe_argv(expected, ranks=2, timeout=600, place="/probes", disk="", python=f"{PREFIX}/venv/bin/python")
    scratch = "mkdir -p /tmp/x && cd /tmp/x && TORCH_EXTENSIONS_DIR=/tmp/x/extensions"
    code, said = made.run(f"{scratch} {PREFIX}/bin/in-env {shlex.join(argv)} 2> /tmp/log")
    assert code == 0, said[-2000:] + made.run("tail -n 20 /tmp/log")[1]
    report = json.loads(said.strip().splitlines()[-1])
    assert [finding for finding in smoke.judge(expected, report) if finding.severity.value == "error"] == []
    assert report["extension_files"] == 0


def test_what_was_changed_since_is_told_and_made_anew_only_when_asked(made: Machine) -> None:
    made.good(f"{PREFIX}/venv/bin/python -m pip uninstall -q -y einops")
    code, said = made.run(RUN)
    assert code == 5 and "einops is gone, not 0.8" in said and "--force" in said
    code, said = made.run(f"sh /site/provision.sh --prefix {PREFIX} --cc /usr/bin/nothing --dry-run")
    assert code == 9 and "no GCC 12 at /usr/bin/nothing" in said


@pytest.mark.parametrize(
    ("prefix", "said"),
    [("'/tmp/a b'", "only letters"), ("/tmp/" + "x" * 120, "too long"), ("/etc", "not empty"), ("/", "no folder"),
     ("/tmp/nowhere/../x", "without . and ..")],
)  # fmt: skip
def test_a_prefix_that_cannot_work_is_refused_before_anything(bare: Machine, prefix: str, said: str) -> None:
    code, told = bare.run(f"sh /site/provision.sh --prefix {prefix} --dry-run")
    assert code == 2 and said in told, told


def test_a_disk_that_runs_no_programs_is_told(made: Machine) -> None:
    made.good("mkdir -p /dev/shm/x && chown 4242:4242 /dev/shm/x", root=True)
    code, said = made.run("sh /site/provision.sh --prefix /dev/shm/x/env --pip-config /site/pip")
    assert code in (3, 9) and ("noexec" in said or "GiB free" in said), said


def test_what_apptainer_runs_installs_the_first_wheels(made: Machine) -> None:
    """%post as far as the build tools, in a container of the same base; Apptainer itself is not here."""
    text = made.good("cat /site/apptainer.def")
    post = re.split(r"^%\w+[^\n]*\n", text, flags=re.MULTILINE)[2]
    cut = post.index('    install_wheels "$scratch/torch.txt"')
    made.good("mkdir -p /run/secrets && cp -r /site/apt /site/apt-sources /site/ca /site/wheels /run/secrets/ && "
              "sed 's|/site/ca|/run/secrets/ca|' /site/pip > /run/secrets/pip", root=True)  # fmt: skip
    code, said = made.run(f"cat > /tmp/post <<'THE_END'\n{post[:cut]}\nTHE_END\nsh -ex /tmp/post", root=True)
    assert code == 0, said[-3000:]
    assert "setuptools" in made.good("/opt/venv/bin/python -m pip list", root=True)
