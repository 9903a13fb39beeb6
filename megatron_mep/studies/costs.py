"""What the arms of a study would take, as `mep plan` works it out; nothing is run for it."""

from megatron_mep.config.errors import ConfigError
from megatron_mep.plan.accelerators import Device
from megatron_mep.plan.plan import plan_of
from megatron_mep.studies.arms import Arm, Study, of_arms
from megatron_mep.studies.state import state_of

HEAD = ("arm", "name", "state", "weights", "peak memory", "training", "time")


def listing(study: Study, device: Device) -> str:
    """A table of all arms, each with its number."""
    rows = [HEAD, *(_row(arm, study.config.ranks, device) for arm in study.arms)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    told = (
        f"{study.config.study}: {len(study.arms)} arms on {study.config.ranks} ranks each, compared with "
        f"{study.config.compared_with}, in {study.folder}"
    )
    return "\n".join([told, "", *lines])


def _row(arm: Arm, ranks: int, device: Device) -> tuple[str, ...]:
    try:
        plan = plan_of(arm.run, ranks, device)
    except ConfigError as error:
        raise ConfigError(of_arms(mistake, [arm.name]) for mistake in error.mistakes) from None
    steps = arm.run.training.steps
    operations = plan.causal_flops * plan.tokens_per_step * steps
    hours = "unknown" if plan.step_s is None else f"{plan.step_s * steps / 3600:.3g} h"
    return (
        str(arm.index),
        arm.name,
        state_of(arm),
        f"{plan.num_weights:,}",
        f"{plan.memory.peak / 1e9:.3g} GB",
        f"{operations:.3g} FLOPs",
        hours,
    )
