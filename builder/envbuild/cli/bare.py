"""`smoke --python`: the result of a proof outside a container, as people and programs read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from envbuild.cli import output

if TYPE_CHECKING:
    from envbuild.pipeline.bare import Accelerator
    from envbuild.pipeline.proof import Wish
    from envbuild.pipeline.workbench import Workbench


def smoke_interpreter(
    bench: Workbench, python: str, *, row: str | None, accelerator: str | None, wish: Wish, json: bool, quiet: bool
) -> None:
    """Prove an interpreter on this host, and print what came of it."""
    from envbuild.pipeline.bare import prove_host
    from envbuild.pipeline.summary import summary

    env = bench.matrix.get(row) if row is not None else None
    proof = prove_host(bench, python, env, cast("Accelerator | None", accelerator), wish)
    if json:
        output.document(
            "smoke", kind="host", findings=list(proof.record.findings), python=str(proof.interpreter),
            level=proof.level.value, evidence=str(proof.path),
        )  # fmt: skip
        return
    held = f"as {env.name}" if env else "held to no row"
    output.text(f"{proof.interpreter} passes at level {proof.level.value} on this host ({held}; counts for no image)")
    if quiet:
        return
    for finding in proof.record.findings:
        output.narrate(f"{finding['severity']} [{finding['rule']}] {finding['message']}")
    for name, report in proof.record.smoke.items():
        for line in summary(report):
            output.text(f"  smoke    {name}: {line}")
    output.text(f"  record   {proof.path}")
