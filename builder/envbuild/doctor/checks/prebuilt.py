"""Ops that were compiled ahead of time, against the torch that would load them: DeepSpeed compares versions itself."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.found import minor, torch_version, wanted
from envbuild.doctor.view import Check, View
from envbuild.doctor.words import OFFLOAD, listed, remedy_for
from envbuild.model import Finding, Severity

# What DeepSpeed writes where it was built without a torch, or without CUDA.
_NONE = "0.0"


def look(view: View) -> Iterator[Finding]:
    """Ops of another torch, or of another CUDA where a GPU is used: DeepSpeed refuses to load them."""
    deepspeed, torch = view.collection.deepspeed, view.collection.torch
    # Of another accelerator's ops it takes no notice, and compiles its own.
    if deepspeed is None or torch is None or deepspeed.built_for not in (None, deepspeed.accelerator):
        return
    pairs = [("torch", deepspeed.torch_info.get("version"), minor(torch_version(view)))]
    if torch.available:
        pairs.append(("CUDA", deepspeed.torch_info.get("cuda_version"), minor(torch.cuda)))
    for name, built, now in pairs:
        if not deepspeed.installed_ops or not built or now is None or built in (_NONE, now):
            continue
        asked = [op for op in wanted(view) if op in deepspeed.installed_ops]
        ops = asked or list(deepspeed.installed_ops)
        op = next((op for op in view.collection.ops if op.kind == "prebuilt" and op.name in ops), None)
        yield Finding(
            rule=f"prebuilt.{name.lower()}",
            severity=Severity.ERROR if asked else Severity.WARNING,
            subject=listed(ops),
            message=f"compiled ahead of time for {name} {built}, and here is {name} {now}: "
            f"DeepSpeed does not load {'it' if len(ops) == 1 else 'them'}",
            why=f"It ends with '{'PyTorch' if name == 'torch' else name} version mismatch'"
            + (f"; {OFFLOAD}" if "cpu_adam" in asked else ""),
            fix=(remedy_for(op, view)[0] if op else "install DeepSpeed again, for this torch")
            + f"; or install the {name} that it was built for",
            evidence=(f"deepspeed.git_version_info: torch_info {dict(sorted(deepspeed.torch_info.items()))}",),
            source="deepspeed/ops/op_builder/builder.py, OpBuilder.load (0.19.8)",
        )


CHECK = Check(
    name="prebuilt",
    title="ops that were compiled ahead of time are of this torch and CUDA, as DeepSpeed compares them",
    look=look,
)
