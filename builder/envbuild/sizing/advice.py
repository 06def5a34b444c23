"""What goes with a ds_config: launcher, cores, NCCL, loading, and when another kind of parallelism serves better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from envbuild.sizing import copies
from envbuild.sizing.host import LOADED
from envbuild.sizing.ladder import FILLED, Rung, gib
from envbuild.sizing.settings import ACCELERATE, DEEPSPEED, HF_TRAINER, gathers
from envbuild.sizing.setup import Machine, Place, Setup
from envbuild.sizing.tuning import MOST_TOKENS, Answer

# Of a step's compute, or of a GPU: from here on a part is worth a word.
_MUCH = 0.5
_RENDEZVOUS = " --machine_rank RANK --main_process_ip FIRST_NODE --main_process_port 29500"
_LAYERS = ("layer inputs", "activations of one layer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to do or to know.

    Attributes:
        subject: launcher, cores, nccl, memory, loading, nvme, model, parallelism or time.
        command: A line to type or to export; empty where there is none.
        verified: Whether the source was read or the thing measured; else it is common practice.
    """

    subject: str
    text: str
    source: str
    command: str = ""
    verified: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Able:
    """What the DeepSpeed release has."""

    binds_cores: bool = True
    leaf_modules: bool = True


def advice(answer: Answer, launcher: str, able: Able) -> tuple[Advice, ...]:
    """Everything that goes with the answer, the most urgent first."""
    assert answer.chosen is not None
    setup, machine = answer.chosen.setup, answer.question.machine
    return (
        *_nvme(answer, setup),
        *_loading(answer, launcher, setup),
        *_model(answer, launcher, setup, able),
        *_launching(machine, launcher, setup, able),
        *_nccl(machine),
        *_parallelism(answer, setup),
    )


def _nvme(answer: Answer, setup: Setup) -> Iterator[Advice]:
    if setup.optimizer_place is Place.NVME:
        yield Advice(
            subject="nvme", source="measured with DeepSpeed 0.19.8 on the CPU accelerator",
            text="the last resort. With the optimizer on NVMe DeepSpeed 0.19.8 trains wrong, silently, where a "
            "gradient's share is no multiple of 512 bytes; with these tensors and a world of "
            f"{answer.question.machine.world} all are. Whoever freezes, adds or splits tensors (LoRA, a new token) "
            "asks again. Compare the first steps with a smaller model's that is not swapped."
            + (" Here the tensors are a guess: ask with --model-config." if answer.question.shape.guessed else ""),
        )  # fmt: skip


def _loading(answer: Answer, launcher: str, setup: Setup) -> Iterator[Advice]:
    assert answer.chosen is not None
    without = answer.loading[-1]
    ram = answer.question.machine.ram
    if setup.stage == 3:
        how = {
            DEEPSPEED: "make the model inside deepspeed.zero.Init(config_dict_or_path=...)",
            HF_TRAINER: "make TrainingArguments before from_pretrained: the Trainer then uses zero.Init",
            ACCELERATE: "set zero3_init_flag: true in Accelerate's DeepSpeed plugin",
        }[launcher]
        dies = ram is not None and without.total > ram
        fate = f"more than the node has ({gib(ram)}): it dies loading" if dies and ram else f"{gib(without.total)}"
        if without.total <= answer.chosen.loading.total:
            fate = "no more than training takes here, so that it costs time alone"
        read = "" if launcher == DEEPSPEED else (
            " from_pretrained (5.24) has rank 0 read the whole checkpoint besides, "
            f"{gib(setup.dtype.bytes * answer.question.shape.parameters)}: memory-mapped where it is safetensors."
        )  # fmt: skip
        yield Advice(
            subject="loading", text=f"{how}. Without zero.Init every rank holds the whole model first: {fate}.{read}",
            source="deepspeed/runtime/zero/partition_parameters.py: class Init" + (
                "; transformers/modeling_utils.py" if read else ""),
        )  # fmt: skip
    yield from _only_loading(answer)
    if setup.stage == 3 and not gathers(answer):
        yield Advice(
            subject="memory", source="deepspeed/utils/zero_to_fp32.py", command="python zero_to_fp32.py CHECKPOINT OUT",
            text="stage3_gather_16bit_weights_on_model_save is left out: the whole weights do not fit beside the rest "
            "in the host memory of rank 0. Save checkpoints in shards, and join them on a larger machine.",
        )  # fmt: skip


def _only_loading(answer: Answer) -> Iterator[Advice]:
    """An earlier rung that the fp32 weights alone stand against, while they are loaded."""
    assert answer.chosen is not None
    ram, ids = answer.question.machine.ram, [rung.id for rung in answer.rungs]
    if ram is None or answer.question.forced or answer.chosen.id not in ids:
        return
    for rung in answer.rungs[: ids.index(answer.chosen.id)]:
        fits = rung.gpu.total <= FILLED * answer.question.machine.card.memory and not rung.host.total
        type_, whole = answer.question.dtype, rung.loading.total
        less = whole * type_.bytes / LOADED
        if rung.setup.stage < 3 and fits and less <= FILLED * ram:
            yield Advice(
                subject="loading", source="transformers: PreTrainedModel.from_pretrained, dtype", verified=False,
                text=f"{rung.name} would fit but for loading, where the model is taken to come in fp32 on every rank "
                f"({gib(whole)}). Loaded in {type_.value} it takes {gib(less)}, which fits",
            )  # fmt: skip
            return


def _model(answer: Answer, launcher: str, setup: Setup, able: Able) -> Iterator[Advice]:
    if setup.recompute:
        command = "--gradient_checkpointing true" if launcher == HF_TRAINER else "model.gradient_checkpointing_enable()"
        yield Advice(
            subject="model", command=command, source="transformers: PreTrainedModel.gradient_checkpointing_enable",
            text="the figures count on activation checkpointing of whole layers, which the model switches on, not the "
            "ds_config (--no-recompute counts without)",
        )  # fmt: skip
    if answer.question.shape.experts and setup.stage == 3:
        yield Advice(
            subject="model", source="deepspeed/utils/z3_leaf_module.py",
            command="deepspeed.utils.set_z3_leaf_modules(model, [MOE_BLOCK_CLASS])" if able.leaf_modules else "",
            text="a mixture of experts under ZeRO-3: ranks use different experts, and wait for one another for ever. "
            + (
                "Make each block of experts a leaf, so that it is gathered as a whole" if able.leaf_modules else
                "This release of DeepSpeed has nothing against it; 0.13.1 has set_z3_leaf_modules. Take that, or ZeRO-2"
            ),
        )  # fmt: skip
    if launcher == ACCELERATE and setup.optimizer_place is not Place.GPU:
        yield Advice(
            subject="model", source="accelerate/utils/deepspeed.py of 1.15.0: map_pytorch_optim_to_deepspeed",
            text="newer releases of Accelerate turn the script's torch AdamW into DeepSpeedCPUAdam, with its learning "
            "rate and weight decay; give other betas to DeepSpeedCPUAdam yourself",
        )  # fmt: skip


def _launching(machine: Machine, launcher: str, setup: Setup, able: Able) -> Iterator[Advice]:
    on_cpu = setup.optimizer_place is not Place.GPU
    binds = on_cpu and able.binds_cores
    nodes = f" --num_nodes {machine.nodes} --hostfile HOSTS" if machine.nodes > 1 else ""
    option = "--deepspeed" if launcher == HF_TRAINER else "--deepspeed_config"
    if launcher == ACCELERATE:
        yield Advice(
            subject="launcher", source="accelerate/commands/launch.py of 1.15.0",
            command="accelerate launch --use_deepspeed --deepspeed_config_file ds_config.json --num_machines "
            f"{machine.nodes}{_RENDEZVOUS if machine.nodes > 1 else ''} --num_processes {machine.world} train.py",
            text="the batch sizes are the file's" + ("; on each node, with its own RANK" if machine.nodes > 1 else ""),
        )  # fmt: skip
    else:
        bind = " --bind_cores_to_rank" if binds else ""
        yield Advice(
            subject="launcher", source="deepspeed/launcher/runner.py",
            command=f"deepspeed{nodes} --num_gpus {machine.gpus}{bind} train.py {option} ds_config.json",
            text="one process for each GPU" + (
                "; --bind_cores_to_rank needs numactl, divides the physical cores among the ranks, sets "
                "OMP_NUM_THREADS, and keeps a rank's memory on the NUMA node of its cores" if binds else ""
            ),
        )  # fmt: skip
    if on_cpu:
        yield Advice(
            subject="cores", command="export OMP_NUM_THREADS=$(("
            f"$(lscpu -bp=CORE,SOCKET | sort -u | grep -vc '#') / {machine.gpus}))",
            text="the optimizer runs on the CPU. torchrun gives every process one thread unless OMP_NUM_THREADS is "
            "set. DeepSpeed's authors measured 3.08 s a step without bound cores and 2.38 s with (3B parameters, 2 "
            "A100, 128 cores)",
            source="torch/distributed/run.py; deepspeed/utils/numa.py; DeepSpeed pull request 7474",
        )  # fmt: skip


def _nccl(machine: Machine) -> Iterator[Advice]:
    if machine.world == 1:
        return
    yield Advice(
        subject="nccl", command="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH",
        text="for one short run: look for P2P between the GPUs of a node"
        + (", and for NET/IB (not NET/Socket) between nodes" if machine.nodes > 1 else "")
        + ". A container that hides a transport costs more than any key of the ds_config",
        source="NCCL documentation, environment variables; NVIDIA/nccl issue 1829",
    )  # fmt: skip
    if machine.nodes > 1:
        yield Advice(
            subject="nccl", command="export NCCL_SOCKET_IFNAME=... NCCL_IB_HCA=...", verified=False,
            text="only where NCCL picks the wrong interface; otherwise leave both alone",
            source="NCCL documentation, environment variables",
        )  # fmt: skip


def _parallelism(answer: Answer, setup: Setup) -> Iterator[Advice]:
    assert answer.chosen is not None
    machine, times, shape = answer.question.machine, answer.times, answer.question.shape
    compute = times.part("compute")
    if machine.world == 1 and setup.optimizer_place is not Place.GPU:
        yield Advice(
            subject="parallelism", source="a sum: bytes of a parameter x parameters", verified=False,
            text="one GPU for full training of a model that does not fit it: fine-tuning with LoRA keeps "
            f"{gib(setup.dtype.bytes * shape.parameters)} of frozen weights and next to no optimizer states",
        )  # fmt: skip
    if setup.stage == 0 and machine.world > 1:
        yield Advice(
            subject="memory", source="deepspeed/runtime/zero/stage_1_and_2.py", command="--stage 1",
            text="ZeRO-1 moves no more between the GPUs and divides the optimizer states among them: take it where the "
            "memory is better spent on a larger micro-batch",
        )  # fmt: skip
    between, inside = times.part("network between nodes"), _over_bus(answer)
    if compute and between > _MUCH * compute:
        text = f"the network between nodes takes {_seconds(between)} s for {_seconds(compute)} s of compute: "
        text += {
            0: "every gradient crosses it once a step, so that a larger step (--global-batch) hides it",
            1: "every gradient crosses it once a step, so that a larger step (--global-batch) hides it",
            2: "every gradient crosses it in every micro step; ZeRO-1 (--stage 1) does that once a step, where it fits",
            3: "ZeRO-3 moves every parameter in every micro step. Tensor parallelism inside a node and pipeline "
            "parallelism between nodes move activations in their place; a larger micro-batch helps too",
        }[setup.stage]
        yield Advice(subject="parallelism", source="formulae of --explain", verified=False, text=text)
    elif machine.nodes > 1 and not machine.network:
        yield Advice(
            subject="time", source="formulae of --explain", command="--network 400",
            text=f"each rank moves {gib(answer.copies.part(copies.NETWORK))} in collectives a step; with --network "
            "(Gb/s of a node) the answer says what that takes",
        )  # fmt: skip
    if compute and inside > 0.1 * compute:
        yield Advice(
            subject="time", source="formulae of --explain", command="nvidia-smi topo -m",
            text=f"where the GPUs of a node have no NVLink, the collectives cross {machine.card.bus}: "
            f"{_seconds(inside)} s for {_seconds(compute)} s of compute",
        )  # fmt: skip
    yield from _long(answer, answer.chosen)


def _over_bus(answer: Answer) -> float:
    """Seconds that the collectives of a step take over the bus to the host."""
    if answer.question.machine.gpus == 1:
        return 0.0
    return answer.copies.part(copies.NETWORK) / (answer.question.machine.card.link * copies.REACHED_LINK)


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def stuck(answer: Answer) -> tuple[Advice, ...]:
    """What would serve better where nothing fits: seen at the rung that takes least of a GPU and does not swap."""
    rungs = [rung for rung in answer.rungs if rung.nvme is None]
    least = min(rungs, key=lambda rung: rung.gpu.total)
    if least.gpu.total <= FILLED * answer.question.machine.card.memory:
        return ()
    found = list(_long(answer, least))
    live = least.gpu.part("live parameters")
    if live > 0.3 * least.gpu.total:
        kind = "expert parallelism" if answer.question.shape.experts else "tensor parallelism"
        text = (
            f"one layer takes {gib(live)} of {gib(least.gpu.total)} while it computes, on every GPU: ZeRO gathers "
            f"whole layers, and only {kind} divides one"
        )
        found.append(Advice(subject="parallelism", source="a sum of this answer", verified=False, text=text))
    return tuple(found)


def _long(answer: Answer, rung: Rung) -> Iterator[Advice]:
    need, setup = rung.gpu, rung.setup
    activations = sum(part.value for part in need.parts if part.name in ("activations", *_LAYERS))
    logits = need.part("logits")
    if setup.micro_batch > 1:
        return
    if logits > 0.25 * need.total:
        yield Advice(
            subject="parallelism", source="a sum of this answer", verified=False,
            text=f"the logits alone take {gib(logits)} of {gib(need.total)}: a loss that is computed in pieces (a "
            "fused linear cross-entropy) needs next to none of that",
        )  # fmt: skip
    if not setup.recompute and activations > _MUCH * need.total:
        yield Advice(
            subject="model", source="a sum of this answer", verified=False,
            text=f"the activations take {gib(activations)} of {gib(need.total)}: leave --no-recompute out, and let the "
            "model checkpoint them, before anything else",
        )  # fmt: skip
    elif activations + logits > _MUCH * need.total and answer.question.machine.world > 1:
        yield Advice(
            subject="parallelism", source="deepspeed/sequence/layer.py", verified=False,
            text=f"activations and logits take {gib(activations + logits)} of {gib(need.total)} at a micro-batch of 1: "
            "sequence parallelism (DeepSpeed Ulysses) divides one sequence among GPUs, which no ZeRO stage does",
        )  # fmt: skip
    elif setup.tokens > MOST_TOKENS:
        yield Advice(
            subject="parallelism", source="deepspeed/sequence/layer.py", verified=False,
            text="sequences this long are what sequence parallelism (DeepSpeed Ulysses) is for",
        )  # fmt: skip
