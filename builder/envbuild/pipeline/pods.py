"""A smoke as a pod of Kubernetes: what it wants, worked out from the row as a smoke here works it out."""

from __future__ import annotations

from envbuild.errors import InputError
from envbuild.executors.kubernetes import Pod, disk, probes
from envbuild.judge import smoke
from envbuild.judge.suite import probes_folder
from envbuild.pipeline.cluster import row_of
from envbuild.pipeline.names import is_reference, names
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.proof import Wish
from envbuild.pipeline.sizes import parse_size
from envbuild.pipeline.smoking import CPU, probe_argv
from envbuild.pipeline.workbench import Workbench

# Until an image of some gigabytes is on the node, and the pod has begun.
_PULL_SECONDS = 1800


def pod_of(bench: Workbench, image: str, row: str | None, wish: Wish, *, seed: int) -> Pod:
    """The pod that trains in an image of a registry's.

    Raises:
        InputError: It is not known which row the image is of, which registry has it, or how the site's cluster is
            asked for the row's GPU.
    """
    name = row_of(bench, image, row)
    if not is_reference(image):
        raise InputError(f"{image!r} is neither a row nor the name of an image")
    if name is None:
        raise InputError(f"{image} does not say which row it is", hint="Say it: --row ENV")
    env, site = bench.matrix.get(name), bench.site.kubernetes
    if image in bench.matrix.environments:
        registry = bench.site.registry.name
        if registry is None:
            raise InputError(
                f"a pod pulls {image} from a registry, and the site has none",
                hint="[registry] name in envbuild.toml, and envbuild push; or name an image of a registry's.",
            )
        image = names(env, prepare(bench, image, checked=False).rendering.id8, registry).proven
    share = None
    if env.accelerator == "cuda":
        share = next((site.gpus[each] for each in env.gpus if each in site.gpus), None)
        if share is None:
            known = ", ".join(site.gpus) or "none"
            raise InputError(
                f"the row {env.name} needs one of {', '.join(env.gpus)}, and [kubernetes.gpus] knows {known}",
                hint=f"Say how many a node has: [kubernetes.gpus] {env.gpus[0]} = {{count = 8}}",
            )
    swaps = "async_io" in env.deepspeed.ops
    seconds = wish.long_seconds or 0.0
    expected = smoke.Expected.of(
        env, seed=seed, accelerator=env.accelerator, nvme=swaps, seconds=seconds, gpus=None
    )  # fmt: skip
    limit = wish.timeout + seconds
    argv = probe_argv(expected, ranks=share.count if share else CPU.ranks, timeout=limit, place=probes(), disk=disk())
    return Pod(
        name=f"envbuild-smoke-{env.name[:40]}-{seed % 0x10000:04x}",
        row=env.name, image=image, argv=argv, swaps=swaps, seconds=int(limit) + _PULL_SECONDS,
        files={path.name: path.read_text(encoding="utf-8") for path in sorted(probes_folder().glob("zero3*.py"))}
        | {each: (probes_folder() / each).read_text(encoding="utf-8") for each in ("common.py", "surroundings.py")},
        shm_bytes=parse_size(env.shm_size), gpus=share.count if share else 0,
        selector=share.selector if share else {}, namespace=site.namespace, pull_secret=site.pull_secret,
    )  # fmt: skip
