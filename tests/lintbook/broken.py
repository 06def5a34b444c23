"""For every rule a configuration that breaks it, with what DeepSpeed 0.19.8 does with it in the cpu image."""

from __future__ import annotations

from lintbook.case import IGNORED, REJECTED, UNSEEN, Case, offloaded, plain, torch_adam, zero

CPU_ROW = {"name": "cpu", "accelerator": "cpu", "ops": ("cpu_adam", "async_io"), "shm_bytes": 1 << 30}
GPU_ROW = {"name": "a100-cu118", "accelerator": "cuda", "ops": ("cpu_adam",), "shm_bytes": 1 << 30}
V100 = {"name": "v100", "sm": 70}
P100 = {"name": "p100", "sm": 60}
GPU, OLDER = "a GPU", "an older DeepSpeed"
MICRO = "train_micro_batch_size_per_gpu"
NVME = {"nvme_path": "/swap", "buffer_count": 4}
CPU_ADAM = {"type": "AdamW", "params": {"lr": 1e-3}}

BATCH = (
    Case(rule="batch.missing", config={}, says="neither", does=REJECTED, seen="needs to be provided"),
    Case(
        rule="batch.missing", config={}, about={"launcher": "hf-trainer"}, says="neither", severity="info",
    ),
    Case(rule="batch.positive", config={MICRO: 0}, says="is 0", does=REJECTED, seen="has to be greater than 0"),
    Case(
        rule="batch.arithmetic", config={"train_batch_size": 8, MICRO: 2, "gradient_accumulation_steps": 3},
        about={"gpus": 1},
        says="2 (train_micro_batch_size_per_gpu) x 3 (gradient_accumulation_steps) x 1 (processes) = 6",
        does=REJECTED, seen="8 != 2 * 3 * 1",
    ),
    Case(
        rule="batch.arithmetic", config={"train_batch_size": 8, MICRO: 3}, says="no multiple of 3",
        does=REJECTED, seen="Check batch related parameters",
    ),
    Case(
        rule="batch.arithmetic", config={"train_batch_size": 7}, about={"gpus": 2}, says="no multiple of 2 (processes)",
        does=REJECTED, seen="Check batch related parameters", how="start", ranks=2,
    ),
)  # fmt: skip
AUTO = (
    Case(rule="auto.rejected", config={"train_batch_size": "auto"}, says='"auto"', does=REJECTED, seen="TypeError"),
    Case(
        rule="auto.rejected", config=plain(gradient_clipping="auto", zero_optimization=zero(1)), says='"auto"',
        does=REJECTED, how="step", seen="TypeError",
    ),
    Case(
        rule="auto.rejected", config=plain(optimizer=torch_adam(lr="auto")), says='"auto"', does=REJECTED, how="step",
        seen="TypeError",
    ),
    Case(
        rule="auto.default", config=plain(zero_optimization=zero(3, reduce_bucket_size="auto")),
        says="500000000", severity="warning",
    ),
    Case(
        rule="auto.precision", config=plain(bf16={"enabled": "auto"}), says="fp32", does=IGNORED,
        seen="computes_in_fp32",
        how="start",
    ),
    Case(
        rule="auto.precision", config=plain(fp16={"enabled": "auto"}), about={"deepspeed": "0.14.4"}, says="true",
        does=UNSEEN, seen=OLDER,
    ),
)  # fmt: skip
PRECISION = (
    Case(
        rule="precision.both", config=plain(fp16={"enabled": True}, bf16={"enabled": True}), says="both",
        does=REJECTED, seen="cannot be simultaneously enabled",
    ),
    Case(
        rule="precision.bf16-gpu", config=plain(bf16={"enabled": True}), about={"gpu": V100}, says="sm_70",
        does=UNSEEN, seen=GPU,
    ),
    Case(
        rule="precision.fp16-gpu", config=plain(fp16={"enabled": True}), about={"gpu": P100}, says="sm_60",
        does=UNSEEN, seen=GPU,
    ),
    Case(
        rule="precision.fp16-cpu", config=plain(fp16={"enabled": True}), about={"row": CPU_ROW}, says="CPU accelerator",
        does=REJECTED, how="start", seen="fp16 is not supported",
    ),
    Case(
        rule="precision.amp", config=plain(amp={"enabled": True}, zero_optimization=zero(2)),
        about={"deepspeed": "0.16.9"}, says="ZeRO stage 2", does=UNSEEN, seen=OLDER,
    ),
    Case(
        rule="precision.accumulation", config=plain(bf16={"enabled": True}, data_types={"grad_accum_dtype": "fp32"}),
        says="without ZeRO", does=REJECTED, how="start", seen="unsupported mix",
    ),
    Case(
        rule="precision.accumulation",
        config=plain(bf16={"enabled": True}, data_types={"grad_accum_dtype": "fp32"}, zero_optimization=zero(2)),
        about={"deepspeed": "0.8.3"}, says="alike under ZeRO", does=UNSEEN, seen=OLDER,
    ),
    Case(
        rule="precision.master-weights", config=plain(fp16={"enabled": True, "fp16_master_weights_and_grads": True}),
        says="ZeRO stage 1, 2 or 3", does=REJECTED, seen="only supported with ZeRO Stage 1, 2, or 3",
    ),
    Case(
        rule="precision.master-weights",
        config=plain(bf16={"enabled": True, "bf16_master_weights_and_grads": True}, zero_optimization=zero(2)),
        says="offloaded", does=REJECTED, how="start", seen="Master weights feature requires",
    ),
    Case(
        rule="precision.parameters", config=plain(data_types={"param_dtype": "bf16"}), says="make the model fp32",
        does=REJECTED, how="start", seen="conflicts with the",
    ),
    Case(
        rule="precision.autocast",
        config=plain(
            torch_autocast={"enabled": True, "dtype": "bfloat16"},
            zero_optimization=zero(3, zero_quantized_weights=True),
        ),
        says="zero_quantized_weights", does=REJECTED, how="start", seen="zero quantized weights",
    ),
)  # fmt: skip
PRECISION += (
    Case(
        rule="precision.autocast", config=plain(torch_autocast={"enabled": True, "dtype": "half precision"}),
        says="half precision", does=REJECTED, seen="not a valid DtypeEnum",
    ),
)  # fmt: skip
ZERO = (
    Case(
        rule="zero.legacy-stage1", config=plain(zero_optimization=zero(1, legacy_stage1=True)), says="legacy_stage1",
        does=REJECTED, how="start", seen="deprecated version of ZeRO Stage 1",
    ),
    Case(
        rule="zero.elastic-checkpoint", config=plain(zero_optimization=zero(3, elastic_checkpoint=True)),
        about={"deepspeed": "0.16.9"}, says="NotImplementedError", does=UNSEEN, seen=OLDER,
    ),
    Case(
        rule="zero.elastic-checkpoint", config=plain(zero_optimization=zero(3, elastic_checkpoint=True)),
        says="no effect", severity="warning",
    ),
    Case(
        rule="zero.allgather-bucket", config=plain(zero_optimization=zero(1, allgather_bucket_size=5001)), says="odd",
        does=REJECTED, how="start", seen="allgather_bucket_size must be a multiple",
    ),
    Case(
        rule="zero.scaled-gradients", config=plain(prescale_gradients=True, zero_optimization=zero(2)),
        says="prescale_gradients", does=REJECTED, how="start", seen="pre-scale gradients is not yet supported",
    ),
    Case(
        rule="zero.scaled-gradients", config=plain(gradient_predivide_factor=2.0, zero_optimization=zero(3)),
        says="gradient_predivide_factor", does=REJECTED, how="start", seen="gradient_predivide_factor != 1.0",
    ),
    Case(
        rule="zero.summed-gradients", config=plain(gradient_allreduce_op="sum", zero_optimization=zero(3)),
        says="ValueError", does=REJECTED, seen="not supported with ZeRO stage 3",
    ),
    Case(
        rule="zero.summed-gradients", config=plain(gradient_allreduce_op="max"), says="'max'", does=REJECTED,
        seen="Invalid gradient_allreduce_op",
    ),
    Case(
        rule="zero.gradient-norm", config=plain(zero_optimization=zero(3, compute_grad_norm=False)),
        says="stage 1 or 2",
        does=REJECTED, seen="only with ZeRO Stage 1 or 2",
    ),
    Case(
        rule="zero.gradient-norm",
        config=plain(gradient_clipping=1.0, zero_optimization=zero(1, compute_grad_norm=False)),
        says="gradient_clipping", does=REJECTED, how="start", seen="requires gradient_clipping=0",
    ),
    Case(
        rule="zero.hpz", config=plain(zero_optimization=zero(3, zero_hpz_partition_size=2)), about={"gpus": 3},
        says="3 processes", does=REJECTED, how="start", ranks=3, seen="3 is not divisible by 2",
    ),
    Case(
        rule="zero.stage3-keys", config=plain(zero_optimization=zero(2, stage3_max_live_parameters=1000)),
        says="stage3_max_live_parameters", severity="info",
    ),
    Case(
        rule="zero.stage12-keys", config=plain(zero_optimization=zero(3, ignore_unused_parameters=False)),
        says="stages 1 and 2", severity="info",
    ),
    Case(
        rule="zero.prefetch",
        config=plain(
            zero_optimization=zero(3, stage3_prefetch_bucket_size=2000000, stage3_max_live_parameters=1000000)
        ),
        says="2,000,000", severity="warning",
    ),
    Case(
        rule="zero.bucket", config=plain(bf16={"enabled": True}, zero_optimization=zero(3, reduce_bucket_size=1e9)),
        says="1.9 GiB", severity="info",
    ),
    Case(
        rule="zero.sub-groups", config=plain(zero_optimization=zero(3, sub_group_size=1000)), says="tensor by tensor",
        severity="info",
    ),
    Case(
        rule="zero.saving", config=plain(zero_optimization=zero(3)), about={"launcher": "accelerate"},
        says="not gathered", severity="info",
    ),
    Case(
        rule="zero.pipeline", config=plain(pipeline={"stages": 2}, zero_optimization=zero(2)), says="PipelineModule",
        severity="warning",
    ),
)  # fmt: skip
OFFLOAD = (
    Case(
        rule="offload.parameters-stage", config=plain(zero_optimization=zero(2, offload_param=offloaded())),
        says="stage 3 only", does=IGNORED, how="step", seen="parameters_are_whole",
    ),
    Case(
        rule="offload.optimizer-stage",
        config=plain(optimizer=CPU_ADAM, zero_optimization=zero(0, offload_optimizer=offloaded())),
        says="stage 0", does=IGNORED, how="step", seen="no_zero_optimizer",
    ),
    Case(
        rule="offload.nvme-stage",
        config=plain(optimizer=CPU_ADAM, zero_optimization=zero(2, offload_optimizer=offloaded("nvme", **NVME))),
        says="NVMe is for stage 3", does=IGNORED, how="step", seen="nothing_is_swapped",
    ),
    Case(
        rule="offload.old-and-new",
        config=plain(zero_optimization=zero(2, cpu_offload=True, offload_optimizer=offloaded())),
        says="replaced it", does=REJECTED, seen="Cannot provide deprecated parameter",
    ),
    Case(
        rule="offload.ratio", config=plain(zero_optimization=zero(2, offload_optimizer=offloaded(ratio=0.5))),
        says="stage 3 only", does=REJECTED, seen="Partial offloading only supported for ZeRO Stage 3",
    ),
    Case(
        rule="offload.ratio", config=plain(zero_optimization=zero(2, offload_optimizer=offloaded(ratio=0.5))),
        about={"deepspeed": "0.14.4"}, says="ignored", does=UNSEEN, seen=OLDER,
    ),
    Case(
        rule="offload.super-offload",
        config=plain(zero_optimization=zero(2, offload_optimizer=offloaded(super_offload=True))),
        says="for stage 3", severity="warning",
    ),
    Case(
        rule="offload.nvme-keys", config=plain(zero_optimization=zero(3, offload_optimizer=offloaded(buffer_count=4))),
        says="buffer_count", severity="info",
    ),
)  # fmt: skip


def on_nvme(**more: object) -> dict[str, object]:
    """The optimizer on NVMe, in stage 3."""
    return plain(optimizer=CPU_ADAM, zero_optimization=zero(3, offload_optimizer=offloaded("nvme", **{**NVME, **more})))


def parameters_on_nvme(**more: object) -> dict[str, object]:
    """Parameters on NVMe, in stage 3."""
    return plain(zero_optimization=zero(3, offload_param=offloaded("nvme", nvme_path="/swap", **more)))


NVME_CASES = (
    Case(
        rule="nvme.path", config=plain(optimizer=CPU_ADAM,
        zero_optimization=zero(3, offload_optimizer=offloaded("nvme"))),
        says="without nvme_path", does=REJECTED, how="start", seen="TypeError",
    ),
    Case(rule="nvme.mounted", config=on_nvme(nvme_path="swap"), says="starts in", severity="warning"),
    Case(
        rule="nvme.op", config=on_nvme(), about={"row": GPU_ROW}, says="no async_io", does=UNSEEN,
        seen="an image without async_io",
    ),
    Case(
        rule="nvme.buffers", config=on_nvme(buffer_count=3), says="4 tensors", does=REJECTED, how="step",
        seen="AssertionError",
    ),
    Case(rule="nvme.buffers", config=on_nvme(pipeline_read=True), says="pipeline_read", severity="warning"),
    Case(
        rule="nvme.parameter-buffers", config=parameters_on_nvme(buffer_size=100000), says="elements",
        about={"gpus": 1, "largest": 409600}, does=REJECTED, how="step", seen="AssertionError",
    ),
    Case(rule="nvme.pinned", config=on_nvme(), says="14.9 GiB", severity="info"),
    Case(rule="nvme.misaligned", config=on_nvme(), says="512 bytes", severity="warning"),
    Case(
        rule="nvme.misaligned", config=on_nvme(), about={"gpus": 4, "largest": 1000}, says="shares of lm_head",
        does=UNSEEN, seen="a model with such tensors, trained for some steps",
    ),
    Case(
        rule="nvme.misaligned", config=on_nvme(), about={"gpus": 4, "largest": 1000, "deepspeed": "0.16.9"},
        says="shares of lm_head", severity="warning",
    ),
    Case(rule="nvme.parameters", config=parameters_on_nvme(), says="zero.Init", severity="warning"),
    Case(
        rule="aio.values", config={**on_nvme(), "aio": {"intra_op_parallelism": 0}}, says="intra_op_parallelism is 0",
        does=REJECTED, how="step", seen="ZeroDivisionError",
    ),
    Case(
        rule="aio.values", config={**on_nvme(), "aio": {"queue_depth": -1}}, says="queue_depth is -1", does=REJECTED,
        how="step", seen="ValueError",
    ),
    Case(
        rule="aio.values", config={**on_nvme(), "aio": {"queue_depth": 0}}, says="queue_depth is 0", severity="warning"
    ),
    Case(rule="aio.unused", config=plain(aio={"block_size": 1048576}), says="no effect", severity="info"),
    Case(
        rule="aio.gds", config={**on_nvme(), "aio": {"use_gds": True}}, about={"row": CPU_ROW}, says="use_gds",
        does=REJECTED, seen="GDS currently only supported for CUDA",
    ),
    Case(
        rule="aio.memlock", config=on_nvme(), about={"row": {**CPU_ROW, "memlock_bytes": 65536}}, says="64.0 KiB",
        severity="warning",
    ),
    Case(
        rule="aio.memlock", config=parameters_on_nvme(), about={"row": {**CPU_ROW, "memlock_bytes": 8 << 20}},
        says="segmentation fault", does=UNSEEN, seen="a limit of locked memory, which a host sets",
    ),
)  # fmt: skip
OPTIMIZER = (
    Case(
        rule="optimizer.type", config=plain(optimizer={"type": "Adamm", "params": {}}), says="Adamm", does=REJECTED,
        how="start", seen="not a supported DeepSpeed Optimizer",
    ),
    Case(
        rule="optimizer.type", config=plain(optimizer={"type": "OneBitAdam", "params": {}}), says="1-bit",
        does=REJECTED, how="start", seen="not a supported DeepSpeed Optimizer",
    ),
    Case(
        rule="optimizer.nameless", config=plain(optimizer={"params": {"lr": 1e-3}}), says="ignored", does=IGNORED,
        how="start", seen="no_optimizer",
    ),
    Case(
        rule="optimizer.clipping", config=plain(optimizer=torch_adam(max_grad_norm=1.0)), says="max_grad_norm",
        does=REJECTED, how="start", seen="'max_grad_norm' is not supported",
    ),
    Case(rule="optimizer.default-clipping", config=plain(), says="clipped to 1", severity="info"),
    Case(
        rule="optimizer.parameters", config=plain(optimizer=torch_adam(momentum=0.9)), says="momentum", does=REJECTED,
        how="start", seen="unexpected keyword argument 'momentum'",
    ),
    Case(
        rule="optimizer.parameters",
        config=plain(
            optimizer={"type": "Adam", "params": {"gradient_clipping": 1.0}},
            zero_optimization=zero(3, offload_optimizer=offloaded()),
        ),
        says="CPUAdam", does=REJECTED, how="start", seen="unexpected keyword argument 'gradient_clipping'",
    ),
    Case(
        rule="optimizer.one-bit", config=plain(optimizer={"type": "OneBitAdam"}, zero_optimization=zero(2)),
        about={"deepspeed": "0.16.9"}, says="stage 2", does=UNSEEN, seen=OLDER,
    ),
    Case(
        rule="optimizer.untested", config=plain(optimizer={"type": "SGD", "params": {"lr": 0.1}},
        zero_optimization=zero(1)),
        says="not tested", does=REJECTED, how="start", seen="untested ZeRO Optimizer",
    ),
    Case(
        rule="optimizer.offloaded",
        config=plain(
            optimizer={"type": "Lamb", "params": {"lr": 0.1}}, zero_allow_untested_optimizer=True,
            zero_optimization=zero(2, offload_optimizer=offloaded()),
        ),
        says="no CPU implementation", does=UNSEEN, seen=GPU,
    ),
    Case(
        rule="optimizer.offloaded", config=plain(zero_optimization=zero(2, offload_optimizer=offloaded())),
        says="torch_adam", severity="warning",
    ),
    Case(
        rule="optimizer.client",
        config={MICRO: 1, "zero_optimization": zero(2, offload_optimizer=offloaded())}, says="refused",
        severity="warning",
    ),
    Case(
        rule="optimizer.muon", config=plain(optimizer={"type": "Muon", "params": {"lr": 1e-3}},
        zero_optimization=zero(3)),
        says="reduce_scatter", does=UNSEEN, seen="a compiled FusedAdam",
    ),
    Case(
        rule="optimizer.lamb",
        config=plain(optimizer={"type": "Lamb", "params": {}}, fp16={"enabled": True, "loss_scale": 128}),
        says="128", does=UNSEEN, seen=GPU,
    ),
)  # fmt: skip


def scheduled(name: str | None, params: dict[str, object] | None = None, **more: object) -> dict[str, object]:
    """A configuration with a scheduler."""
    section = {**({"type": name} if name else {}), **({} if params is None else {"params": params})}
    return plain(scheduler=section, **more)


SCHEDULER = (
    Case(
        rule="scheduler.type", config=scheduled("WarmupDecay", {}), says="WarmupDecay", does=REJECTED, how="start",
        seen="does not recognize LR scheduler",
    ),
    Case(
        rule="scheduler.torch", config=scheduled("StepLR", {"step_size": 1}, zero_optimization=zero(1)),
        says="not an Optimizer", does=REJECTED, how="start", seen="is not an Optimizer",
    ),
    Case(
        rule="scheduler.nameless", config=scheduled(None, {"warmup_num_steps": 10}), says="ignored", does=IGNORED,
        how="start", seen="no_scheduler",
    ),
    Case(
        rule="scheduler.parameters", config=scheduled("WarmupDecayLR", {"warmup_num_steps": 10}),
        says="total_num_steps",
        does=REJECTED, how="start", seen="total_num_steps",
    ),
    Case(
        rule="scheduler.parameters", config=scheduled("WarmupLR", {"total_num_steps": 10}), says="total_num_steps",
        does=REJECTED, how="start", seen="unexpected keyword argument",
    ),
    Case(
        rule="scheduler.parameters", config=scheduled("WarmupLR"), says="without params", does=REJECTED, how="start",
        seen="must be a mapping",
    ),
    Case(
        rule="scheduler.steps", config=scheduled("WarmupLR", {"warmup_num_steps": 0}), says="is 0", does=REJECTED,
        how="start", seen="must be a positive integer",
    ),
    Case(
        rule="scheduler.steps", config=scheduled("WarmupDecayLR", {"warmup_num_steps": 20, "total_num_steps": 10}),
        says="never reaches", severity="warning",
    ),
)  # fmt: skip
COMMUNICATION = (
    Case(
        rule="communication.format", config=plain(communication_data_type="bfp16"), says="bfp16", does=REJECTED,
        seen="Invalid communication_data_type",
    ),
    Case(
        rule="communication.format", config=plain(communication_data_type="bf16"), about={"deepspeed": "0.12.3"},
        says="bf16", does=UNSEEN, seen=OLDER,
    ),
    Case(
        rule="communication.narrow", config=plain(zero_optimization=zero(2)), about={"deepspeed": "0.8.3"},
        says="in fp32", does=UNSEEN, seen=OLDER,
    ),
    Case(
        rule="communication.range", config=plain(bf16={"enabled": True}, communication_data_type="fp16"), says="65,504",
        severity="warning",
    ),
    Case(
        rule="communication.quantised", config=plain(zero_optimization=zero(2, zero_quantized_weights=True)),
        says="for ZeRO stage 3", severity="warning",
    ),
    Case(
        rule="communication.quantised-gradients",
        config=plain(zero_optimization=zero(3, zero_quantized_gradients=True, reduce_scatter=False)),
        says="without reduce_scatter", does=REJECTED, how="start", seen="reduce_scatter should also be enabled",
    ),
    Case(
        rule="communication.logger", config=plain(comms_logger={"enabled": True}), says="add up", severity="info"
    ),
)  # fmt: skip
KINDS = (
    Case(
        rule="schema.section", config=plain(zero_optimization=None), says="null", does=REJECTED,
        seen="must be a mapping"
    ),
    Case(rule="schema.section", config=plain(bf16="auto"), says='"auto"', does=REJECTED, seen="must be a mapping"),
    Case(
        rule="schema.boolean", config=plain(zero_optimization=zero(1, reduce_scatter=2)), says="2 is neither",
        does=REJECTED, seen="valid boolean",
    ),
    Case(
        rule="schema.unknown", config=plain(zero_optimization=zero(1, stage3_reduce_bucket_size=1000)),
        says="stage3_reduce_bucket_size", does=REJECTED, seen="Extra inputs are not permitted",
    ),
    Case(
        rule="schema.unknown", config=plain(zero_optimisation=zero(2)), says="zero_optimisation", does=IGNORED,
        how="start", seen="no_zero_optimizer",
    ),
    Case(
        rule="schema.place", config=plain(zero_optimization=zero(3, aio={"block_size": 1048576})), says="top level",
        does=REJECTED, seen="Extra inputs are not permitted",
    ),
    Case(
        rule="schema.type", config=plain(zero_optimization=zero(1, reduce_bucket_size=[1])), says="a list",
        does=REJECTED, seen="valid integer",
    ),
    Case(
        rule="schema.bounds", config=plain(zero_optimization=zero(1, reduce_bucket_size=0)), says="out of bounds",
        does=REJECTED, seen="greater than 0",
    ),
    Case(
        rule="schema.value", config=plain(zero_optimization=zero(3, offload_param={"device": "disk"})),
        says="none of",
        does=REJECTED, seen="'none', 'cpu' or 'nvme'",
    ),
    Case(
        rule="schema.twice", config=plain(zero_optimization=zero(3, stage3_max_reuse_distance=1, max_reuse_distance=1)),
        says="one key", does=REJECTED, seen="Extra inputs are not permitted",
    ),
    Case(rule="schema.removed", config=plain(amp={"enabled": True}), says="refuses", does=REJECTED,
    seen="has been removed"),
)  # fmt: skip
SAMPLING = "data_sampling"
SECTIONS = (
    Case(
        rule="activation.contiguous",
        config=plain(activation_checkpointing={"contiguous_memory_optimization": True, "number_checkpoints": 2}),
        says="partition_activations", does=REJECTED, how="activations",
        seen="only available with partitioned activations",
    ),
    Case(
        rule="activation.contiguous",
        config=plain(activation_checkpointing={"contiguous_memory_optimization": True, "partition_activations": True}),
        says="number_checkpoints", does=REJECTED, how="activations", seen="Must specify the number of layers",
    ),
    Case(
        rule="activation.reader", config=plain(activation_checkpointing={"partition_activations": True}),
        about={"launcher": "hf-trainer"}, says="Trainer's own", severity="info",
    ),
    Case(
        rule="checkpoint.tag-validation", config=plain(checkpoint={"tag_validation": "Maybe"}), says="Maybe",
        does=REJECTED, seen="invalid tag_validation",
    ),
    Case(
        rule="checkpoint.pipeline-stage", config=plain(checkpoint={"parallel_write": {"pipeline_stage": "yes"}}),
        says="yes", does=REJECTED, seen="expecting: true or false",
    ),
    Case(
        rule="checkpoint.loading", config=plain(), about={"deepspeed": "0.15.4", "torch": "2.7.1"},
        says="own checkpoints",
        severity="warning",
    ),
    Case(
        rule="monitor.package", config=plain(tensorboard={"enabled": True}), says="tensorboard", severity="info"
    ),
    Case(
        rule="profiler.flops", config=plain(flops_profiler={"enabled": True}, zero_optimization=zero(3)),
        says="no parameters",
        severity="info",
    ),
    Case(
        rule="data.curriculum",
        config=plain(data_efficiency={SAMPLING: {"enabled": True, "curriculum_learning": {"enabled": True}}}),
        says="curriculum_metrics", does=REJECTED, seen="curriculum_metrics must be specified",
    ),
    Case(
        rule="data.old-curriculum", config=plain(curriculum_learning={"enabled": True, "min_difficulty": 8,
        "schedule_type": "custom"}),
        about={"deepspeed": "0.16.9"}, says="max_difficulty", does=UNSEEN, seen=OLDER,
    ),
    Case(
        rule="elasticity.batch",
        config=plain(elasticity={"enabled": True, "max_train_batch_size": 8, "micro_batch_sizes": [1]}),
        about={"deepspeed": "0.16.9"}, says=MICRO, does=UNSEEN, seen=OLDER,
    ),
)  # fmt: skip
BROKEN = (
    *BATCH, *AUTO, *PRECISION, *ZERO, *OFFLOAD, *NVME_CASES, *OPTIMIZER, *SCHEDULER, *COMMUNICATION, *SECTIONS, *KINDS,
)  # fmt: skip
