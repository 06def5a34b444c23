"""Faults that only training can tell: RECORD, versions and every file are as inspection wants them."""

from __future__ import annotations

from sabotage.sabotage import Patch, Sabotage, insert

ADAM = "deepspeed/ops/adam/cpu_adam.py"
UPDATE = "                state['step'] += 1\n                beta1, beta2 = group['betas']\n\n"
# Weights that shrink by a thousandth with every step.
DECAY = ("p.data.mul_(0.999)",)
_INIT = "        self.opt_id = DeepSpeedCPUAdam.optimizer_id\n"


def _gradients(what: str) -> tuple[Patch, ...]:
    """Something done to every gradient partition, where ZeRO-3 hands it to the optimizer's buffer."""
    place = "        for param, grad_partition in zip(params_to_release, grad_partitions):\n"
    return (insert("deepspeed/runtime/zero/stage3.py", place, f"[{what} for each in grad_partitions]"),)


SMOKE = (
    Sabotage(
        fault="gradients doubled",
        finding="smoke.grad.ratio",
        names="2 times the right one",
        patches=_gradients("each.mul_(2)"),
    ),
    Sabotage(
        fault="gradients zero",
        finding="smoke.grad.zero",
        names="are all zero",
        patches=_gradients("each.zero_()"),
    ),
    Sabotage(
        fault="gradients of the right size in the wrong places",
        finding="smoke.grad.error",
        names="worst in",
        patches=_gradients("each.copy_(each.flip(0))"),
    ),
    Sabotage(
        fault="no reduction between ranks",
        finding="smoke.grad.reduce",
        names="own data",
        patches=(
            Patch(
                "deepspeed/runtime/comm/coalesced_collectives.py",
                "    _torch_reduce_scatter_fn(tensor_partition_flat_buffer,\n"
                "                             tensor_partition_buffer_for_each_rank[this_rank],\n"
                "                             group=group)\n\n    # reverse",
                "    tensor_partition_flat_buffer.mul_(world_sz)\n\n    # reverse",
            ),
        ),
    ),
    Sabotage(
        fault="the optimizer is silently torch's",
        finding="smoke.optimizer",
        names="torch.optim",
        patches=(Patch("deepspeed/runtime/engine.py", "pop(TORCH_ADAM_PARAM, False)", "pop(TORCH_ADAM_PARAM, True)"),),
    ),
    Sabotage(
        fault="parameters are not offloaded",
        finding="smoke.offload",
        names="param",
        patches=(
            Patch(
                "deepspeed/runtime/zero/parameter_offload.py",
                "            self.offload_device = offload_param_config.device\n",
                "            self.offload_device = None\n",
            ),
        ),
    ),
    Sabotage(
        fault="the loss becomes NaN",
        finding="smoke.loss.nan",
        names="nan",
        patches=(insert(ADAM, UPDATE, "p.data[0] += float('nan')", after=True),),
    ),
    Sabotage(
        fault="the optimizer shrinks weights that nobody asked it to",
        finding="smoke.params",
        names="relative error",
        # Python runs something else than the source says, and neither RECORD nor a layer tells it.
        patches=(insert(ADAM, UPDATE, *DECAY, after=True, bytecode_only=True),),
    ),
    Sabotage(
        fault="a checkpoint that cannot be read back",
        finding="smoke.checkpoint",
        names="checkpoint",
        patches=(
            insert(
                "deepspeed/runtime/checkpoint_engine/torch_checkpoint_engine.py",
                '        # log_dist(f"[Torch] Saving [end] {path}... {self.zipfile_serialization=}", ranks=[0])\n',
                "import os; os.truncate(path, os.path.getsize(path) // 2)",
            ),
        ),
    ),
    Sabotage(
        fault="a swap to disk that gives back zeros",
        finding="smoke.nvme",
        names="on disk",
        patches=(
            insert(
                "deepspeed/runtime/swap_tensor/utils.py",
                "        assert (swap_handle.async_pwrite(buffer, path, 0) == 0)\n",
                "buffer.zero_()",
            ),
        ),
    ),
    Sabotage(
        fault="a collective in which a rank never arrives",
        finding="smoke.collective",
        names="all-reduce was not done",
        patches=(
            insert(
                "deepspeed/comm/torch.py",
                "        return torch.distributed.all_reduce(tensor=tensor, op=op, group=group, async_op=async_op)\n",
                "if torch.distributed.get_rank() == 1:",
                "    import time; time.sleep(86400)",
            ),
        ),
        timeout=120,
    ),
    Sabotage(
        fault="/dev/shm of 1 MiB",
        finding="smoke.shm",
        names="/dev/shm of 1 MiB",
        row={"shm_size": "1MiB"},
    ),
    Sabotage(
        fault="a limit of memory that kills a rank",
        finding="smoke.memory",
        names="limit is 500 MiB",
        memory_mib=500,
    ),
    Sabotage(
        fault="an op compiled into the extension folder on the first step",
        finding="smoke.jit",
        names="extension",
        files={"late.c": "int late(void) { return 1; }\n"},
        dockerfile="RUN install -m 0644 /mnt/late.c /opt/late.c",
        patches=(
            insert(
                ADAM,
                _INIT,
                "import os, torch.utils.cpp_extension as late",
                "folder = os.path.join(os.environ['TORCH_EXTENSIONS_DIR'], str(os.getpid()))",
                "os.makedirs(folder)",
                "late.load('late', ['/opt/late.c'], build_directory=folder, is_python_module=False)",
            ),
        ),
    ),
    Sabotage(
        fault="a compiler started behind everybody's back",
        finding="smoke.compiler",
        names="g++",
        files={"late.c": "int late(void) { return 1; }\n"},
        dockerfile="RUN install -m 0644 /mnt/late.c /opt/late.c",
        patches=(
            insert(
                ADAM,
                _INIT,
                "import ctypes, os, subprocess, tempfile",
                "library = tempfile.mkdtemp() + '/late.so'",
                "subprocess.run([os.environ['CXX'], '-shared', '-fPIC', '/opt/late.c', '-o', library], check=True)",
                "ctypes.CDLL(library)",
                "os.remove(library)",
            ),
        ),
    ),
    Sabotage(
        fault="a rank that answers with what it once said in the good image",
        finding="smoke.seed",
        names="the figures are not those of this run",
        replay=True,
        dockerfile="RUN install -m 0644 /mnt/replay.json /opt/",
        patches=(
            insert(
                "deepspeed/__init__.py",
                "import argparse\n",
                "import json, sys",
                "if '--report' in sys.argv and 'RANK' in os.environ:",
                "    (said,) = [each for each in json.load(open('/opt/replay.json')) if 'zero3' in each['schema']]",
                "    said = said['ranks'][int(os.environ['RANK'])]",
                "    open(sys.argv[sys.argv.index('--phase') + 1], 'w').write(said['phase'])",
                "    json.dump(said['report'], open(sys.argv[sys.argv.index('--report') + 1], 'w'))",
                "    os._exit(0)",
            ),
        ),
    ),
)
