"""Slurm's own words, and what they mean for the user. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envbuild.errors import EngineError

_ENDED = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
                    "PREEMPTED", "REVOKED", "TIMEOUT"})  # fmt: skip
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})

# What Slurm's words for waiting mean (squeue(1), JOB REASON CODES). Behind `!`: it will not start as it is.
_REASONS = {
    "Resources": "every node that would do is taken",
    "Priority": "others are before it in the queue",
    "BeginTime": "its time has not come; a job whose node failed waits some two minutes",
    "Dependency": "it waits for another job",
    "JobArrayTaskLimit": "as many tasks of the run are running as [executor] at_once allows",
    "JobHeldUser": "it is held; let it go: scontrol release JOB",
    "JobHeldAdmin": "!an administrator holds it",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "it waits for its reservation",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "!the partition takes no jobs",
    "PartitionNodeLimit": "!it asks for more nodes than the partition gives",
    "PartitionTimeLimit": "!its time is above the partition's limit: [slurm] time",
    "BadConstraints": "!no node has what it asks for: gres and constraint",
    "InvalidAccount": "!the account is not valid: [slurm] account",
    "InvalidQOS": "!the quality of service is not valid: [slurm] qos",
}
_LIMITED = re.compile(r"(QOS|Assoc|Max).*(Limit|Per)|^Assoc|^QOS")

# What sbatch says when it refuses, and what to do then.
_REFUSALS = (
    ("invalid partition", "[slurm] partition names one that there is not here; sinfo lists them."),
    ("invalid account", "[slurm] account has to name one of yours: sacctmgr show associations user=$USER"),
    ("invalid qos", "[slurm] qos has to name one that your account has."),
    ("invalid job array", "The cluster's arrays are smaller than this run (scontrol show config | grep MaxArraySize)."),
    ("requested node configuration is not available", "No node has what is asked for: gres, constraint and options of "
     "[slurm]; sinfo -o '%P %G %f' shows what nodes have."),
    ("invalid generic resource", "gres of [slurm] names what no node has; sinfo -o '%P %G' shows what nodes have."),
    ("invalid feature", "constraint in [slurm] names what no node has; sinfo -o '%P %f' shows what nodes have."),
    ("requested time limit", "[slurm] time is above the partition's limit; sinfo -o '%P %l' shows it."),
    ("job violates accounting/qos policy", "Your limit of jobs is reached, or the queue is full; try again when some "
     "have ended, or ask for less (squeue --me)."),
    ("could not establish a configuration source", "This host knows of no cluster: SLURM_CONF names the file, or "
     "/etc/slurm/slurm.conf is it."),
    ("unable to contact slurm controller", "slurmctld does not answer: scontrol ping"),
    ("munge", "munged has to run on this host, with the cluster's key."),
    ("unrecognized option", "An option of [slurm] options is none of this sbatch's."),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What Slurm says of a job.

    Attributes:
        name: In its words, such as PENDING.
        reason: Why it waits, in its words.
        node: Where it runs.
    """

    name: str
    reason: str = ""
    node: str = ""

    @property
    def ended(self) -> bool:
        """Whether it will not go on."""
        return self.name in _ENDED

    @property
    def waiting(self) -> bool:
        """Whether it has not begun, or is to begin again."""
        return self.name in _WAITING


def refused(said: str) -> EngineError:
    """Why Slurm does not take a job, in its own words, and what to do."""
    lines = (re.sub(r"^sbatch: (?:(?:error|fatal|warning): )?", "", line.strip()) for line in said.splitlines())
    words = "; ".join(filter(None, lines)) or "it said nothing"
    lower = words.lower()
    hint = next((hint for pattern, hint in _REFUSALS if pattern in lower), "")
    return EngineError(f"Slurm does not take the job: {words}", hint=hint)


def missing(program: str) -> EngineError:
    """Slurm is not here."""
    return EngineError(
        f"{program} was not found: this host is none of a Slurm cluster's",
        hint="Run it on a login node of the cluster, with Slurm's programs on PATH; or --executor local.",
    )


def waits(reason: str) -> tuple[str, bool]:
    """Why a job waits, in words, and whether it will ever start as it is."""
    # Slurm adds details: ReqNodeNotAvail(Unavailable:n1), `Nodes required for job are DOWN, ...`.
    name = re.split(r"[\s,(]", reason, maxsplit=1)[0]
    words = _REASONS.get(name, "")
    if not words and _LIMITED.search(name):
        words = "a limit of yours, of your account or of the partition is reached"
    hopeless = words.startswith("!")
    words = words.removeprefix("!")
    return (f"{reason}: {words}" if words else reason or "no reason given"), not hopeless


def told_of(state: State | None, *, job: str, limit: str, log: str = "") -> tuple[str, str]:
    """Message and hint of a task that has ended and left no result of its own.

    Args:
        state: What Slurm says; None where it knows nothing any more.
        job: The job's number with its task's.
        limit: The time that was asked for.
        log: The end of what the job said outside envbuild.
    """
    said = f"; it said: {log}" if log else "; it said nothing"
    if state is None:
        return f"Slurm does not know job {job} any more, and it left no result{said}", ""
    on = f" on {state.node}" if state.node else ""
    if state.name == "TIMEOUT":
        return f"job {job}{on} reached its time limit{f' of {limit}' if limit else ''}", _LONGER
    if state.name == "NODE_FAIL":
        return (
            f"the node of job {job}{on} failed, and Slurm did not run it again",
            "Look at it: sinfo -R; then run again.",
        )
    if state.name == "OUT_OF_MEMORY":
        return f"job {job}{on} was ended for memory", 'Ask for more: [slurm] options = ["--mem=..."]'
    if state.name == "PREEMPTED":
        return f"job {job}{on} had to make room for another", "Run it again, or in a partition that is not preempted."
    return f"job {job}{on} ended without a result ({state.name}){said}", _NOT_FOUND


_LOOK = "Look at it: sinfo -R; then run again."
_LONGER = 'Ask for more: [slurm] time = "2:00:00", or for one row: [slurm.rows]'
_NOT_FOUND = "The nodes have to find the program: [executor] envbuild names it, [executor] setup prepares it."
