"""Where work runs that does not run here: a cluster's scheduler, and the folder that its nodes share with this host.

A run is a folder: ``run.json`` says what was asked for and which jobs do it, every attempt at a task has a folder of
its own in it, and all that is known of a run can be read from there again, by whoever comes back to it. ``slurm`` is
pure: the command lines and the script of a job; ``queue`` asks Slurm, ``follow`` listens to a run until it has ended.
"""

from envbuild.executors.runs import Attempt, Ended, Node, Run, RunFolder, Submission, Task, every, find, new_id

__all__ = ["Attempt", "Ended", "Node", "Run", "RunFolder", "Submission", "Task", "every", "find", "new_id"]
