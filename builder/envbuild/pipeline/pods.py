"""A smoke as a pod of Kubernetes, an all-reduce as several: what they want, worked out as for a run here."""

from __future__ import annotations

from typing import Any

from envbuild.errors import InputError
from envbuild.executors.kubernetes import Pod, disk, launcher, probes
from envbuild.judge import smoke
from envbuild.judge.suite import probes_folder
from envbuild.model import Environment
from envbuild.pipeline import collective
from envbuild.pipeline.cluster import row_of
from envbuild.pipeline.names import is_reference, names
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.proof import Wish
from envbuild.pipeline.sizes import parse_size
from envbuild.pipeline.smoking import CPU, probe_argv
from envbuild.pipeline.workbench import Workbench
from envbuild.site.cluster import Gpus

# Until an image of some gigabytes is on the node, and the pod has begun.
_PULL_SECONDS = 1800


def pod_of(bench: Workbench, image: str, row: str | None, wish: Wish, *, seed: int) -> Pod:
    """The pod that trains in an image of a registry's.

    Raises:
        InputError: It is not known which row the image is of, which registry has it, or how the site's cluster is
            asked for the row's GPU.
    """
    env, image = _subject(bench, image, row)
    share = _share(bench, env)
    swaps = "async_io" in env.deepspeed.ops
    seconds = wish.long_seconds or 0.0
    expected = smoke.Expected.of(
        env, seed=seed, accelerator=env.accelerator, nvme=swaps, seconds=seconds, gpus=None
    )  # fmt: skip
    limit = wish.timeout + seconds
    argv = probe_argv(expected, ranks=share.count if share else CPU.ranks, timeout=limit, place=probes(), disk=disk())
    return Pod(
        name=f"envbuild-smoke-{env.name[:40]}-{seed % 0x10000:04x}", argv=argv, swaps=swaps,
        seconds=int(limit) + _PULL_SECONDS,
        files={path.name: path.read_text(encoding="utf-8") for path in sorted(probes_folder().glob("zero3*.py"))}
        | {each: (probes_folder() / each).read_text(encoding="utf-8") for each in ("common.py", "surroundings.py")},
        **_asked(bench, env, image, share),
    )  # fmt: skip


def pods_of(bench: Workbench, image: str, row: str | None, wish: Wish, *, nodes: int, seed: int) -> Pod:
    """The pods that sum over several nodes, one on each with a process for each of its GPUs.

    Nobody reads what they print, so each rank holds its own sums to the answer.

    Raises:
        InputError: As for ``pod_of``.
    """
    env, image = _subject(bench, image, row)
    share = _share(bench, env)
    program = collective.rank_argv(probes(), env.accelerator, seed=seed % 1009, timeout=wish.timeout)
    return Pod(
        # Its pods are called NAME-node-0-9999-abcde, which may have 63 letters.
        name=f"envbuild-nodes-{env.name[:25].rstrip('-')}-{seed % 0x10000:04x}", component="allreduce", nodes=nodes,
        argv=(*launcher(collective.PYTHON, nodes=nodes, per_node=share.count if share else 1), *program, "--check"),
        seconds=int(wish.timeout) + _PULL_SECONDS, files={collective.PROGRAM: collective.program_text()},
        **_asked(bench, env, image, share),
    )  # fmt: skip


def _subject(bench: Workbench, image: str, row: str | None) -> tuple[Environment, str]:
    """The row, and the image as a node pulls it."""
    name = row_of(bench, image, row)
    if not is_reference(image):
        raise InputError(f"{image!r} is neither a row nor the name of an image")
    if name is None:
        raise InputError(f"{image} does not say which row it is", hint="Say it: --row ENV")
    env = bench.matrix.get(name)
    if image not in bench.matrix.environments:
        return env, image
    registry = bench.site.registry.name
    if registry is None:
        raise InputError(
            f"a pod pulls {image} from a registry, and the site has none",
            hint="[registry] name in envbuild.toml, and envbuild push; or name an image of a registry's.",
        )
    return env, names(env, prepare(bench, image, checked=False).rendering.id8, registry).proven


def _share(bench: Workbench, env: Environment) -> Gpus | None:
    """What a node of the site's has; None on the CPU."""
    site = bench.site.kubernetes
    if env.accelerator != "cuda":
        return None
    share = next((site.gpus[each] for each in env.gpus if each in site.gpus), None)
    if share is None:
        known = ", ".join(site.gpus) or "none"
        raise InputError(
            f"the row {env.name} needs one of {', '.join(env.gpus)}, and [kubernetes.gpus] knows {known}",
            hint=f"Say how many a node has: [kubernetes.gpus] {env.gpus[0]} = {{count = 8}}",
        )
    return share


def _asked(bench: Workbench, env: Environment, image: str, share: Gpus | None) -> dict[str, Any]:
    """What every pod of a row wants of the site's cluster."""
    site = bench.site.kubernetes
    return {
        "row": env.name, "image": image, "shm_bytes": parse_size(env.shm_size), "gpus": share.count if share else 0,
        "selector": share.selector if share else {}, "namespace": site.namespace, "pull_secret": site.pull_secret,
    }  # fmt: skip
