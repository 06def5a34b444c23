"""How a training was started, as its measurement keeps it, and back again. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envbuild.collector import secrets
from envbuild.pipeline.gates import ALL
from envbuild.pipeline.profile_wish import Wish
from envbuild.profile.document import Delay, Made
from envbuild.site.urls import mask

HIDDEN = secrets.SECRET
# Variables that change how fast something trains: those of NCCL ("Environment Variables" of its user guide), torch and
# Gloo ("Torch Environment Variables" of torch's documentation), CUDA and its libraries ("CUDA Environment Variables" of
# the CUDA programming guide), OpenMP and who implements it (libgomp's manual, LLVM's OpenMP runtimes), MKL, oneDNN and
# oneCCL, DeepSpeed (op_builder and accelerator read DS_*), libfabric and UCX, Triton, glibc's malloc (mallopt(3)) and
# loader (ld.so(8)). Of any other one nobody knows what it holds.
_KNOWN = (
    "NCCL_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "GLOO_", "CUDA_", "CUDNN_", "CUBLAS_", "CUBLASLT_", "NVIDIA_",
    "NVTE_", "OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "CCL_", "OPENBLAS_", "NUMEXPR_", "DS_", "DEEPSPEED_",
    "FI_", "UCX_", "TRITON_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "LD_LIBRARY_PATH", "TOKENIZERS_PARALLELISM",
)  # fmt: skip
_LONGEST = 400


def made_of(wish: Wish, ds_config: dict[str, Any], *, image: str | None = None, python: str | None = None) -> Made:
    """What a measurement says of its own start; others read it, so of other variables than the known ones the name."""
    return Made(
        image=_line(image), python=_line(python), model=wish.model, length=wish.length, steps=wish.steps,
        warmup=wish.warmup, seed=wish.seed, ds_config=ds_config, env=tuple(_shown(each) for each in wish.env),
        slow_data=_delay(wish.slow_data), straggle=_delay(wish.straggle), checkpoint_every=wish.checkpoint_every,
        ranks=wish.ranks, threads=wish.threads, gpus=wish.gpus, disk=_line(str(wish.disk)) if wish.disk else None,
        timeout=wish.timeout,
    )  # fmt: skip


def wish_of(made: Made) -> Wish:
    """The same start again."""
    return Wish(
        model=made.model, length=made.length, steps=made.steps, warmup=made.warmup, seed=made.seed,
        ds_config=made.ds_config, env=made.env, slow_data=_waited(made.slow_data), straggle=_waited(made.straggle),
        checkpoint_every=made.checkpoint_every, ranks=made.ranks, threads=made.threads, gpus=made.gpus or ALL,
        disk=Path(made.disk) if made.disk else None, timeout=made.timeout or Wish().timeout,
    )  # fmt: skip


def hidden(made: Made) -> tuple[str, ...]:
    """The variables whose values are kept nowhere: without them it cannot be started as it was."""
    return tuple(name for name, _, value in (each.partition("=") for each in made.env) if value == HIDDEN)


def _shown(setting: str) -> str:
    name, _, value = setting.partition("=")
    told = name.startswith(_KNOWN) and not secrets.named(name, value) and secrets.text(value) == mask(value) == value
    return f"{name[:_LONGEST]}={value if told and len(setting) <= _LONGEST and value.isprintable() else HIDDEN}"


def _line(text: str | None) -> str | None:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:500] if text is not None else None


def _delay(wait: tuple[float, int | None]) -> Delay | None:
    return Delay(milliseconds=wait[0], rank=wait[1]) if wait[0] else None


def _waited(delay: Delay | None) -> tuple[float, int | None]:
    return (delay.milliseconds, delay.rank) if delay is not None else (0.0, None)
