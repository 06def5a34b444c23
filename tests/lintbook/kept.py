"""For every rule what it leaves alone: the nearest thing to what breaks it; and whole files of the kinds people use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lintbook.broken import CPU_ADAM, MICRO, NVME, V100, offloaded, on_nvme, parameters_on_nvme, scheduled
from lintbook.case import plain, torch_adam, zero

HF = {"launcher": "hf-trainer"}
A100 = {"name": "a100", "sm": 80}
GPU_ROW = {"name": "a100", "accelerator": "cuda", "ops": ("cpu_adam", "async_io", "quantizer"), "shm_bytes": 1 << 30}
Kept = tuple[str, Mapping[str, Any], Mapping[str, Any]]

KEPT: tuple[Kept, ...] = (
    ("batch.missing", {MICRO: "auto"}, HF),
    ("batch.positive", {MICRO: 1}, {}),
    ("batch.arithmetic", {"train_batch_size": 24, MICRO: 2, "gradient_accumulation_steps": 3}, {"gpus": 4}),
    ("batch.arithmetic", {"train_batch_size": 24, MICRO: 2, "gradient_accumulation_steps": "auto"}, {**HF, "gpus": 5}),
    ("batch.arithmetic", {"train_batch_size": 4, MICRO: 2, "sequence_parallel_size": 2}, {"gpus": 4}),
    ("auto.rejected", {MICRO: "auto", "gradient_clipping": "auto"}, HF),
    ("auto.rejected", plain(autotuning={"enabled": True}, gradient_accumulation_steps="auto"), {}),
    ("auto.default", plain(zero_optimization=zero(3, reduce_bucket_size="auto")), HF),
    ("auto.precision", plain(bf16={"enabled": "auto"}), HF),
    ("precision.both", plain(fp16={"enabled": True}, bf16={"enabled": False}), {}),
    ("precision.bf16-gpu", plain(bf16={"enabled": True}), {"gpu": A100}),
    ("precision.fp16-gpu", plain(fp16={"enabled": True}), {"gpu": V100}),
    ("precision.fp16-cpu", plain(fp16={"enabled": True}), {"row": GPU_ROW}),
    ("precision.amp", plain(amp={"enabled": True}), {"deepspeed": "0.16.9"}),
    (
        "precision.accumulation",
        plain(bf16={"enabled": True}, data_types={"grad_accum_dtype": "fp32"}, zero_optimization=zero(2)), {},
    ),
    ("precision.accumulation", plain(bf16={"enabled": True}, data_types={"grad_accum_dtype": "fp32"}),
    {"deepspeed": "0.16.9"}),
    (
        "precision.master-weights",
        plain(
            optimizer=CPU_ADAM, fp16={"enabled": True, "fp16_master_weights_and_grads": True},
            zero_optimization=zero(2, offload_optimizer=offloaded()),
        ), {},
    ),
    ("precision.parameters", plain(bf16={"enabled": True}, data_types={"param_dtype": "bfloat16"}), {}),
    ("precision.autocast", plain(torch_autocast={"enabled": True, "dtype": "bfloat16"}, zero_optimization=zero(3)), {}),
    ("zero.legacy-stage1", plain(zero_optimization=zero(1, legacy_stage1=False)), {}),
    ("zero.elastic-checkpoint", plain(zero_optimization=zero(1, elastic_checkpoint=True)), {}),
    ("zero.allgather-bucket", plain(zero_optimization=zero(1, allgather_bucket_size=5000)), {}),
    ("zero.scaled-gradients", plain(prescale_gradients=True, zero_optimization=zero(1)), {}),
    ("zero.scaled-gradients", plain(prescale_gradients=True, zero_optimization=zero(2, reduce_scatter=False)), {}),
    ("zero.summed-gradients", plain(gradient_allreduce_op="sum", zero_optimization=zero(2)), {}),
    ("zero.gradient-norm", plain(gradient_clipping=0, zero_optimization=zero(1, compute_grad_norm=False)), {}),
    ("zero.hpz", plain(zero_optimization=zero(3, zero_hpz_partition_size=8)), {"gpus": 4}),
    ("zero.stage3-keys", plain(zero_optimization=zero(3, stage3_max_live_parameters=1000)), {}),
    ("zero.stage12-keys", plain(zero_optimization=zero(2, ignore_unused_parameters=False)), {}),
    ("zero.prefetch", plain(zero_optimization=zero(3, stage3_max_live_parameters=100_000_000_000)), {}),
    ("zero.prefetch", plain(zero_optimization=zero(3, stage3_prefetch_bucket_size="auto", max_live_parameters=0)), HF),
    ("zero.bucket", plain(bf16={"enabled": True}, zero_optimization=zero(3, reduce_bucket_size=1e8)), {}),
    ("zero.sub-groups", plain(zero_optimization=zero(3, sub_group_size=1e9)), {}),
    ("zero.saving", plain(zero_optimization=zero(3, gather_16bit_weights_on_model_save=True)), HF),
    ("zero.pipeline", plain(pipeline={"stages": 2}, zero_optimization=zero(1)), {}),
    ("offload.parameters-stage", plain(zero_optimization=zero(3, offload_param=offloaded())), {}),
    ("offload.parameters-stage", plain(zero_optimization=zero(2, offload_param=offloaded("none"))), {}),
    ("offload.optimizer-stage", plain(zero_optimization=zero(1, offload_optimizer=offloaded())), {}),
    ("offload.nvme-stage", on_nvme(), {}),
    ("offload.old-and-new", plain(zero_optimization=zero(2, cpu_offload=True)), {}),
    ("offload.ratio", plain(optimizer=CPU_ADAM, zero_optimization=zero(3, offload_optimizer=offloaded(ratio=0.5))), {}),
    ("offload.super-offload", plain(zero_optimization=zero(3, offload_optimizer=offloaded(super_offload=True))), {}),
    ("offload.nvme-keys", on_nvme(), {}),
    ("nvme.path", on_nvme(), {}),
    ("nvme.mounted", plain(zero_optimization=zero(3, offload_optimizer=offloaded())), {}),
    ("nvme.op", on_nvme(), {"row": GPU_ROW}),
    ("nvme.buffers", on_nvme(buffer_count=4), {}),
    ("nvme.buffers", on_nvme(buffer_count=12, pipeline_read=True, pipeline_write=True), {}),
    ("nvme.parameter-buffers", parameters_on_nvme(), {"gpus": 1, "largest": 409600}),
    ("nvme.pinned", plain(zero_optimization=zero(3, offload_optimizer=offloaded())), {}),
    ("nvme.misaligned", plain(zero_optimization=zero(3, offload_optimizer=offloaded())), {}),
    ("nvme.misaligned", on_nvme(), {"gpus": 4, "largest": 1024}),
    ("nvme.misaligned", on_nvme(), {"deepspeed": "0.16.9"}),
    ("nvme.parameters", on_nvme(), {}),
    ("aio.values", {**on_nvme(), "aio": {"block_size": 1048576, "queue_depth": 32}}, {}),
    ("aio.unused", {**on_nvme(), "aio": {"block_size": 1048576}}, {}),
    ("aio.gds", {**on_nvme(), "aio": {"use_gds": True}}, {"row": GPU_ROW}),
    # CUDA's pinned memory is not under that limit.
    ("aio.memlock", plain(zero_optimization=zero(3, offload_optimizer=offloaded())), {"row": {**GPU_ROW,
    "memlock_bytes": 1}}),
    ("optimizer.type", plain(optimizer={"type": "AdAmW"}), {}),
    ("optimizer.type", plain(optimizer={"type": "OneBitAdam"}), {"deepspeed": "0.16.9"}),
    ("optimizer.type", plain(optimizer={"type": "SGD", "params": {"lr": 0.1}}), {}),
    ("optimizer.nameless", plain(optimizer={"type": "AdamW"}), {}),
    ("optimizer.clipping", plain(gradient_clipping=1.0), {}),
    ("optimizer.default-clipping", plain(gradient_clipping=0), {}),
    ("optimizer.default-clipping", plain(), {"deepspeed": "0.19.0"}),
    ("optimizer.parameters", plain(optimizer={"type": "SGD", "params": {"momentum": 0.9}}), {}),
    ("optimizer.parameters", plain(optimizer=torch_adam(fused=True, adam_w_mode=False)), {}),
    ("optimizer.one-bit", plain(optimizer={"type": "OneBitAdam"}), {"deepspeed": "0.16.9"}),
    ("optimizer.untested", plain(zero_allow_untested_optimizer=True, optimizer={"type": "SGD"},
    zero_optimization=zero(1)), {}),
    ("optimizer.untested", plain(optimizer={"type": "Lion"}, zero_optimization=zero(1)), {}),
    ("optimizer.offloaded", plain(optimizer=CPU_ADAM, zero_optimization=zero(2, offload_optimizer=offloaded())), {}),
    ("optimizer.client", {MICRO: "auto", "zero_optimization": zero(2, offload_optimizer=offloaded())}, HF),
    (
        "optimizer.client",
        {MICRO: 1, "zero_force_ds_cpu_optimizer": False, "zero_optimization": zero(2, offload_optimizer=offloaded())},
        {},
    ),
    ("optimizer.muon", plain(optimizer={"type": "Muon"}, zero_optimization=zero(3, reduce_scatter=False)), {}),
    ("optimizer.lamb", plain(optimizer={"type": "Lamb"}, fp16={"enabled": True, "loss_scale": 0}), {}),
    ("scheduler.type", scheduled("WarmupCosineLR", {"total_num_steps": 9}), {}),
    ("scheduler.torch", scheduled("StepLR", {"step_size": 1}), {}),
    ("scheduler.nameless", scheduled("WarmupLR", {}), {}),
    ("scheduler.parameters", scheduled("OneCycle", {"cycle_min_lr": 0, "cycle_max_lr": 0.1}), {}),
    ("scheduler.steps", scheduled("WarmupDecayLR", {"warmup_num_steps": 10, "total_num_steps": 100}), {}),
    ("communication.format", plain(communication_data_type="FP32"), {}),
    ("communication.narrow", plain(fp16={"enabled": True}, zero_optimization=zero(2)), {"deepspeed": "0.8.3"}),
    ("communication.range", plain(fp16={"enabled": True}, communication_data_type="fp16"), {}),
    ("communication.quantised", plain(zero_optimization=zero(3, zero_quantized_weights=True)), {"row": GPU_ROW}),
    ("communication.quantised-gradients", plain(zero_optimization=zero(3, zero_quantized_gradients=True)), {}),
    ("communication.logger", plain(comms_logger={"enabled": False}), {}),
    ("schema.section", plain(zero_optimization={}, bf16=None), {}),
    ("schema.boolean", plain(zero_optimization=zero(1, reduce_scatter=0)), {}),
    ("activation.contiguous", plain(activation_checkpointing={"cpu_checkpointing": True,
    "partition_activations": False}), {}),
    ("activation.reader", plain(activation_checkpointing={"partition_activations": True}), {}),
    ("checkpoint.tag-validation", plain(checkpoint={"tag_validation": "Fail"}), {}),
    ("checkpoint.pipeline-stage", plain(checkpoint={"parallel_write": {"pipeline_stage": True}}), {}),
    ("checkpoint.loading", plain(), {"deepspeed": "0.16.0", "torch": "2.7.1"}),
    ("checkpoint.loading", plain(), {"deepspeed": "0.15.4", "torch": "2.5.1"}),
    ("monitor.package", plain(tensorboard={"enabled": False}, csv_monitor={"enabled": True}), {}),
    ("profiler.flops", plain(flops_profiler={"enabled": True}), {}),
    ("data.curriculum", plain(data_efficiency={"enabled": True}), {}),
    ("data.old-curriculum", plain(curriculum_learning={"enabled": False}), {"deepspeed": "0.16.9"}),
    (
        "elasticity.batch",
        {"elasticity": {"enabled": True, "max_train_batch_size": 8, "micro_batch_sizes": [1]}}, {"deepspeed": "0.16.9"},
    ),
)  # fmt: skip

# --- files of the kinds that DeepSpeed's and Hugging Face's own examples are ----------------------------------------

_FP16 = {"loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}
_LEFT = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}  # fmt: skip
_HF_ADAM = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
_HF_DECAY = {
    "type": "WarmupDecayLR",
    "params": {"total_num_steps": "auto", "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"},
}
_HF_ZERO3 = zero(
    3, overlap_comm=True, contiguous_gradients=True, sub_group_size=1e9, reduce_bucket_size="auto",
    stage3_prefetch_bucket_size="auto", stage3_param_persistence_threshold="auto", stage3_max_live_parameters=1e9,
    stage3_max_reuse_distance=1e9, stage3_gather_16bit_weights_on_model_save=True,
)  # fmt: skip
_CPU = {"device": "cpu", "pin_memory": True}

# By kind: what the launcher is, and the file. None of them has an error, on any release of DeepSpeed from 0.9.5 on.
FILES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Trainer, ZeRO-2": (
        "hf-trainer",
        {
            **_LEFT, "fp16": {"enabled": "auto", **_FP16}, "bf16": {"enabled": "auto"}, "optimizer": _HF_ADAM,
            "scheduler": _HF_DECAY, "steps_per_print": 2000, "wall_clock_breakdown": False,
            "zero_optimization": zero(
                2, allgather_partitions=True, allgather_bucket_size=2e8, overlap_comm=True, reduce_scatter=True,
                reduce_bucket_size=2e8, contiguous_gradients=True, offload_optimizer=_CPU,
            ),
        },
    ),
    "Trainer, ZeRO-3 offload": (
        "hf-trainer",
        {
            **_LEFT, "bf16": {"enabled": "auto"}, "optimizer": _HF_ADAM, "scheduler": _HF_DECAY,
            "zero_optimization": {**_HF_ZERO3, "offload_optimizer": _CPU, "offload_param": _CPU},
        },
    ),
    "Trainer, ZeRO-3, its own optimizer": (
        "hf-trainer",
        {
            **_LEFT, "zero_allow_untested_optimizer": True, "fp16": {"enabled": "auto", **_FP16},
            "bf16": {"enabled": "auto"},
            "zero_optimization": {**_HF_ZERO3, "offload_optimizer": _CPU, "offload_param": _CPU},
        },
    ),
    "Trainer, names without stage3_": (
        "hf-trainer",
        {
            **_LEFT, "bf16": {"enabled": True}, "zero_force_ds_cpu_optimizer": False,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": zero(
                3, offload_param=_CPU, sub_group_size=0, max_live_parameters=0, max_reuse_distance=0,
                gather_16bit_weights_on_model_save=True, reduce_bucket_size="auto",
            ),
        },
    ),
    "Trainer, ZeRO-3 on NVMe": (
        "hf-trainer",
        {
            **_LEFT, "bf16": {"enabled": "auto"}, "optimizer": _HF_ADAM, "scheduler": _HF_DECAY,
            "aio": {"block_size": 262144, "queue_depth": 32, "single_submit": False, "overlap_events": True},
            "zero_optimization": {
                **_HF_ZERO3,
                "offload_optimizer": {**_CPU, **NVME, "device": "nvme", "fast_init": False},
                "offload_param": {
                    **_CPU, "device": "nvme", "nvme_path": "/swap", "buffer_count": 5, "buffer_size": 1e8,
                    "max_in_cpu": 1e9,
                },
            },
        },
    ),
    "Accelerate, ZeRO-1": (
        "accelerate",
        {
            **_LEFT, "fp16": {"enabled": True, **_FP16},
            "optimizer": {
                "type": "AdamW",
                "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True, "adam_w_mode": True},
            },
            "scheduler": {
                "type": "WarmupDecayLR",
                "params": {
                    "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
                    "total_num_steps": "auto",
                },
            },
            "zero_optimization": zero(
                1, allgather_partitions=True, allgather_bucket_size=2e8, overlap_comm=True, reduce_scatter=True,
                reduce_bucket_size="auto", contiguous_gradients=True,
            ),
        },
    ),
    "DeepSpeed, fp32 with OneCycle": (
        "deepspeed",
        {
            "train_batch_size": 16, "steps_per_print": 2000,
            "optimizer": {
                "type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7},
            },
            "scheduler": {
                "type": "OneCycle",
                "params": {
                    "cycle_first_step_size": 1000, "cycle_first_stair_count": 500, "cycle_second_step_size": 1000,
                    "cycle_second_stair_count": 500, "decay_step_size": 1000, "cycle_min_lr": 0.0001,
                    "cycle_max_lr": 0.0010, "decay_lr_rate": 0.001, "cycle_min_mom": 0.85, "cycle_max_mom": 0.99,
                    "decay_mom_rate": 0.0,
                },
            },
            "wall_clock_breakdown": False,
        },
    ),
    "DeepSpeed, fp16 ZeRO-2 offload": (
        "deepspeed",
        {
            "train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0,
            "prescale_gradients": False, "fp16": {"enabled": True, **_FP16},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.01, "bias_correction": True}},
            "zero_optimization": zero(
                2, contiguous_gradients=True, overlap_comm=True, reduce_scatter=True, reduce_bucket_size=5e8,
                allgather_bucket_size=5e8, offload_optimizer=_CPU, round_robin_gradients=True,
            ),
        },
    ),
    "DeepSpeed, ZeRO-3 with activation checkpointing": (
        "deepspeed",
        {
            "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "zero_optimization": zero(
                3, stage3_max_live_parameters=3e7, stage3_prefetch_bucket_size=3e7,
                stage3_param_persistence_threshold=1e4, offload_param={"device": "none"},
                offload_optimizer={"device": "none"},
            ),
            "activation_checkpointing": {
                "partition_activations": False, "contiguous_memory_optimization": False, "cpu_checkpointing": False,
            },
            "tensorboard": {"enabled": False}, "wall_clock_breakdown": False,
        },
    ),
}  # fmt: skip
