"""The DeepSpeed engine of a run: ZeRO over data-parallel ranks, and nothing of the schedule or the batches."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import deepspeed
import deepspeed.ops
import torch
from torch import nn

from megatron_mep.checkpoint.zero_state import create_moments
from megatron_mep.parallel.gradients import sum_over_tensor_ranks
from megatron_mep.parallel.groups import Groups
from megatron_mep.parallel.mpu import ModelParallelUnit
from megatron_mep.training.config import TrainingConfig
from megatron_mep.training.parameter_groups import parameter_groups
from megatron_mep.training.precision import dtype_of
from megatron_mep.training.zero import LARGEST_BUCKET


def build_engine(model: nn.Module, training: TrainingConfig, groups: Groups) -> deepspeed.DeepSpeedEngine:
    """The model in its training precision under ZeRO, its gradients averaged over the ranks that hold the same weights.

    The caller owns the global batch: it calls `backward` for each micro-batch and `step` once.
    """
    _skip_the_compiled_communication_op()
    model.to(dtype_of(training.precision))
    sum_over_tensor_ranks(model, groups.tensor_group)
    optimizer = training.optimizer
    parts = parameter_groups(model.parameters(), optimizer, groups.pipeline_group)
    with _known_as_parameters(model, (parameter for part in parts for parameter in part["params"])):
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(
                parts,
                lr=optimizer.learning_rate,
                betas=optimizer.betas,
                eps=optimizer.epsilon,
                weight_decay=optimizer.weight_decay,
            ),
            mpu=ModelParallelUnit(groups),
            config=_deepspeed_config(training, groups, sum(weight.numel() for weight in model.parameters())),
            dist_init_required=False,
        )
    create_moments(engine)
    return engine


@contextmanager
def _known_as_parameters(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Lets DeepSpeed find a name for those that are not the model's, and no one afterwards."""
    own = set(model.parameters())
    strange = {f"stand_in_{number}": each for number, each in enumerate(parameters) if each not in own}
    for name, parameter in strange.items():
        model.register_parameter(name, parameter)
    yield
    for name in strange:
        delattr(model, name)


def _deepspeed_config(training: TrainingConfig, groups: Groups, num_weights: int) -> dict[str, object]:
    # DeepSpeed allocates the bucket whole in every backward pass: 2 GB by default, however small the model
    bucket = min(LARGEST_BUCKET, num_weights)
    return {
        "train_micro_batch_size_per_gpu": training.micro_batch_size,
        "train_batch_size": training.micro_batch_size * groups.data_size * groups.context_size,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": training.optimizer.clip_grad_norm,
        # bf16 is not enabled here: DeepSpeed would cast encoding weights too. The model arrives cast, and these two
        # give fp32 master weights, and gradients that are accumulated and reduced in fp32
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": {"stage": training.zero_stage, "overlap_comm": False, "reduce_bucket_size": bucket},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**62,
    }


def _skip_the_compiled_communication_op() -> None:
    """Keeps DeepSpeed from compiling its shared-memory all-reduce.

    Training does not use it, it needs g++ and ninja, and the lock that a killed compilation leaves behind hangs every
    later run on the machine.
    """
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
