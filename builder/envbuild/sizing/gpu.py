"""What one GPU has to hold: states, and what a step works with."""

from __future__ import annotations

from envbuild.sizing.part import Basis, Need, Part, parts, product
from envbuild.sizing.setup import GIB, Machine, Setup
from envbuild.sizing.shape import Shape
from envbuild.sizing.states import States, states

# CUDA's context, cuBLAS and NCCL: a rule of thumb, to be replaced by a measurement.
CONTEXT = 1.5 * GIB
# ZeRO-3 allocates one bucket; reducing it takes others for a moment. ZeRO-1 and -2 allocate two with overlap_comm.
BUCKETS = 3
# 16-bit logits, a copy of them in fp32, and its gradient; in fp32 the logits, their log-softmax, and a gradient.
LOGITS = {2: 10, 4: 12}


def per_gpu(shape: Shape, setup: Setup, machine: Machine) -> Need:
    """The peak on one GPU: in the backward pass, or while the optimizer steps, whichever is more."""
    kept = states(shape, setup, machine)
    always = (*kept.gpu, *parts(_bucket(setup, 1)), _context()) if setup.stage == 3 else (*kept.gpu, _context())
    working = _working(shape, setup)
    stepping = kept.step
    if sum(part.value for part in stepping) > sum(part.value for part in working):
        return Need(name="GPU, while the optimizer steps", parts=(*always, *stepping))
    return Need(name="GPU, in the backward pass", parts=(*always, *working))


def backward(shape: Shape, setup: Setup, machine: Machine) -> Need:
    """The peak on one GPU in the backward pass, whatever the optimizer's step takes."""
    kept: States = states(shape, setup, machine)
    bucket = parts(_bucket(setup, 1)) if setup.stage == 3 else ()
    return Need(name="GPU, in the backward pass", parts=(*kept.gpu, *bucket, _context(), *_working(shape, setup)))


def activations(shape: Shape, setup: Setup) -> tuple[Part, ...]:
    """What the forward pass keeps for the backward pass, with an attention that keeps no scores (flash, SDPA)."""
    kept, size = layer_activations(shape), setup.dtype.bytes
    batch = {"b": setup.micro_batch, "s": setup.sequence}
    if not setup.recompute:
        return parts(product("activations", Basis.MEASURED, p=size, **batch, kept_by_one_layer=kept, L=shape.layers))
    return parts(
        product("layer inputs", Basis.MEASURED, p=size, **batch, h=shape.hidden, L=shape.layers),
        product("activations of one layer", Basis.MEASURED, p=size, **batch, kept_by_one_layer=kept),
    )


def layer_activations(shape: Shape) -> int:
    """Elements that one layer keeps for each token: inputs of norms and projections, queries, keys, values, and so on.

    Counted by torch's hooks for saved tensors in layers of transformers 5.24 (Llama, Qwen2, GPT-NeoX, Mixtral; SDPA,
    bf16): equal to within 0.5 %. A norm without a bias computes in fp32 and keeps that as well; a token that goes to k
    experts is copied k times. An activation function that is written out in Python (gelu_new) keeps more.
    """
    norms, written_out = _norms(shape)
    inputs = norms * (3 if written_out else 1) + 2 + 2 * shape.experts_used
    attention = 2 * shape.query + 2 * shape.key_value
    forward = (4 if shape.gated else 2) * shape.intermediate
    return inputs * shape.hidden + attention + forward


def _norms(shape: Shape) -> tuple[int, bool]:
    """How many norms a layer has, and whether they are written out (RMS norms are, LayerNorms with a bias are not)."""
    found = [weight for block in shape.blocks if "layer" in block.name for weight in block.weights]
    norms = [weight for weight in found if weight.name == "norm"]
    return max((weight.copies for weight in norms), default=2), not any(weight.size > shape.hidden for weight in norms)


def _working(shape: Shape, setup: Setup) -> tuple[Part, ...]:
    size = setup.dtype.bytes
    live = None
    if setup.stage == 3:
        # Never more than the model has; never less than the layer that computes.
        count = min(shape.parameters, max(setup.max_live, shape.largest_block.size))
        live = product("live parameters", Basis.ASSUMED, p=size, live=count)
    # Without ZeRO gradients are reduced when the backward pass is over (states.py); nobody reads reduce_bucket_size.
    buckets = None
    if setup.stage:
        buckets = _bucket(setup, BUCKETS - 1) if setup.stage == 3 else _bucket(setup, 2 if setup.overlap else 1)
    vocabulary = {"b": setup.micro_batch, "s": setup.sequence, "V": shape.vocabulary}
    logits = product("logits", Basis.ASSUMED, _10=LOGITS[size], **vocabulary)
    return (*parts(live, buckets), *activations(shape, setup), *parts(logits))


def _bucket(setup: Setup, count: int) -> Part | None:
    size = setup.dtype.bytes
    name = "reduce bucket" if count == 1 else "further reduce buckets" if setup.stage == 3 else "reduce buckets"
    basis = Basis.ASSUMED if setup.stage == 3 and count > 1 else Basis.READ
    return product(name, basis, p=size, buckets=count, reduce_bucket=setup.reduce_bucket)


def _context() -> Part:
    return Part(name="context", value=CONTEXT, formula="1.5 GiB", numbers="1.5 GiB", basis=Basis.ASSUMED)
