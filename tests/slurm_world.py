"""A Slurm of the tests' own: munged, slurmctld and two nodes on this machine, all on loopback and in one folder.

Nothing of it is installed as a service, and nothing of a Slurm that is in use here is touched: socket, key, ports and
state are its own, and ``SLURM_CONF`` leads its clients to it. It ends with the block that began it, by process ids.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from registries import free_port

NODES = ("n1", "n2")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")


@dataclass
class World:
    """A running Slurm.

    Attributes:
        environ: Variables that lead clients to it.
        partition: The only one; it has a limit of an hour.
    """

    folder: Path
    environ: Mapping[str, str]
    partition: str = "main"
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def ask(self, *argv: str) -> str:
        """What one of Slurm's programs says."""
        done = subprocess.run(
            argv, env={**os.environ, **self.environ}, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout.strip()

    def states(self) -> dict[str, str]:
        """The jobs that are known, and the state of each."""
        said = self.ask("squeue", "--noheader", "--array", "--states=all", "--format=%i %T")
        return dict(line.split() for line in said.splitlines())

    def busy(self) -> list[str]:
        """Take every node; returns the jobs that do."""
        return [
            self.ask("sbatch", "--parsable", f"--nodelist={node}", "--output=/dev/null", "--wrap=exec sleep 600")
            for node in NODES
        ]

    def wait(self, what: Callable[[], object], limit: float = 60.0) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + limit
        while not what():
            assert time.monotonic() < deadline, (
                f"it did not come to it in {limit:.0f} s: {self.states()}\n{self.said()}"
            )
            time.sleep(0.1)

    def idle(self) -> bool:
        """Whether both nodes are free and fit."""
        return set(self.ask("sinfo", "--noheader", "--Node", "--format=%T").split()) == {"idle"}

    def clear(self) -> None:
        """End every job, and have both nodes back."""
        self.ask("scancel", f"--user={getpass.getuser()}")
        for node in NODES:
            with contextlib.suppress(AssertionError):  # it is in no state to be resumed from
                self.ask("scontrol", "update", f"nodename={node}", "state=resume")
        self.wait(self.idle, 90)

    def said(self) -> str:
        """The ends of the daemons' logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}" for path in logs)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[World]:
    """A Slurm with two nodes of one CPU each, in ``folder``.

    Raises:
        AssertionError: Its programs are not installed, or it does not come up.
    """
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    assert not missing, f"{', '.join(missing)}: install them with `make slurm`"
    munge = folder / "munge"
    munge.mkdir()
    key = munge / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    (folder / "state").mkdir()
    for node in NODES:
        (folder / f"spool-{node}").mkdir()
    config = folder / "slurm.conf"
    config.write_text(_config(folder, munge / "socket"))
    world = World(folder=folder, environ={"SLURM_CONF": str(config)})
    try:
        # --force: it wants no folder above its socket that others cannot enter; a test's folder is its user's.
        _start(world, "munged", "--foreground", "--force", f"--socket={munge / 'socket'}", f"--key-file={key}",
               f"--pid-file={munge / 'pid'}", f"--log-file={folder / 'munged.log'}", f"--seed-file={munge / 'seed'}",
               "--num-threads=2")  # fmt: skip
        world.wait((munge / "socket").exists, 10)
        _start(world, "slurmctld", "-D", "-f", str(config))
        for node in NODES:
            _start(world, "slurmd", "-D", "-N", node, "-f", str(config), name=f"slurmd-{node}")
        _up(world)
        yield world
    finally:
        with contextlib.suppress(AssertionError, subprocess.SubprocessError):
            # Steps are processes of their own, which outlive a slurmd.
            world.clear()
        for daemon in reversed(world.daemons.values()):
            daemon.terminate()
        for daemon in world.daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()


def _up(world: World) -> None:
    deadline = time.monotonic() + 60
    while True:
        for name, daemon in world.daemons.items():
            assert daemon.poll() is None, f"{name} has ended:\n{world.said()}"
        with contextlib.suppress(AssertionError, subprocess.SubprocessError):
            if world.idle():
                return
        assert time.monotonic() < deadline, f"Slurm did not come up:\n{world.said()}"
        time.sleep(0.2)


def _start(world: World, *argv: str, name: str = "") -> None:
    name = name or argv[0]
    with (world.folder / f"{name}.out.log").open("wb") as out:
        world.daemons[name] = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **world.environ},
        )  # fmt: skip


def _config(folder: Path, munge: Path) -> str:
    host, user = socket.gethostname().partition(".")[0], getpass.getuser()
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=1 RealMemory=1000"
        for node in NODES
    )
    return f"""\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A job whose node failed waits until its credential has expired: two minutes where nobody says less.
AuthInfo=socket={munge},cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
SlurmdParameters=config_overrides
# A node that was set down stays down until the test says otherwise.
ReturnToService=0
SlurmdTimeout=60
KillWait=30
MaxArraySize=20
{nodes}
PartitionName=main Nodes={",".join(NODES)} Default=YES MaxTime=60 State=UP
"""
