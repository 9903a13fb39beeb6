"""What must hold between a run and the nodes and time that it asks a cluster for, found out before it is submitted."""

import math
from dataclasses import dataclass

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.launcher.clock import seconds_of, slurm_time
from megatron_mep.launcher.profile import Cluster
from megatron_mep.plan.plan import Plan, plan_of
from megatron_mep.preflight import mistakes_in, preflight
from megatron_mep.run import RunConfig


@dataclass(frozen=True)
class Allocation:
    """What a job asks for."""

    cluster: Cluster
    nodes: int
    time: str
    """As SLURM writes it."""

    @property
    def ranks(self) -> int:
        """Of all nodes."""
        return self.nodes * self.cluster.num_ranks

    @property
    def training_s(self) -> int:
        """Time in which ranks train, before they are told to save."""
        return seconds_of(self.time) - seconds_of(self.cluster.signal_ahead)


@dataclass(frozen=True)
class Verdict:
    """What was found."""

    mistakes: list[Mistake]
    warnings: list[str]
    """What could not be found out, or is likely to be slow."""


def fewest_nodes(run: RunConfig, cluster: Cluster) -> int:
    """Those that hold one copy of the model."""
    return -(-run.parallel.model // cluster.num_ranks)


def judge(run: RunConfig, allocation: Allocation) -> Verdict:
    """All mistakes at once, and warnings."""
    holds = allocation.ranks >= run.parallel.model
    mistakes = [] if holds else [_too_few(run, allocation)]
    # what else is wrong is told for the fewest ranks that the layout allows
    in_run = mistakes_in(lambda: preflight(run, allocation.ranks if holds else run.parallel.model))
    mistakes += in_run + _beyond_limits(allocation)
    warnings = _across_nodes(run, allocation)
    if holds and not in_run:
        planned, told = _planned(run, allocation)
        warnings += told
        if planned is not None:
            mistakes += _too_large(planned, run)
            mistakes += _too_short(planned, run, allocation)
    return Verdict(mistakes, warnings)


def _too_few(run: RunConfig, allocation: Allocation) -> Mistake:
    parallel, cluster = run.parallel, allocation.cluster
    layout = f"tensor {parallel.tensor} x context {parallel.context} x pipeline {parallel.pipeline}"
    rule = f"gives {allocation.ranks} ranks, but one copy of the model takes {parallel.model} ({layout})"
    return Mistake("--nodes", allocation.nodes, rule, f"ask for --nodes {fewest_nodes(run, cluster)}, or lower one")


def _beyond_limits(allocation: Allocation) -> list[Mistake]:
    cluster, mistakes = allocation.cluster, []
    if cluster.max_nodes is not None and allocation.nodes > cluster.max_nodes:
        rule = f"must not exceed max_nodes={cluster.max_nodes} of the cluster's profile"
        mistakes.append(Mistake("--nodes", allocation.nodes, rule, f"ask for --nodes {cluster.max_nodes}"))
    if seconds_of(allocation.time) > seconds_of(cluster.time_limit):
        rule = f"must not exceed time_limit={cluster.time_limit} of the cluster's profile"
        mistakes.append(Mistake("--time", allocation.time, rule, "ask for less: a job that has saved goes on"))
    if allocation.training_s <= 0:
        ahead = slurm_time(seconds_of(cluster.signal_ahead))
        rule = f"leaves no time: ranks are told to save {ahead} ahead (signal_ahead)"
        mistakes.append(Mistake("--time", allocation.time, rule, "ask for more, or lower signal_ahead in the profile"))
    return mistakes


def _across_nodes(run: RunConfig, allocation: Allocation) -> list[str]:
    tensor, on_node = run.parallel.tensor, allocation.cluster.num_ranks
    if on_node % tensor == 0:
        return []
    return [f"tensor ranks share every layer: {tensor} of them lie on several nodes of {on_node}, which is slow"]


def _planned(run: RunConfig, allocation: Allocation) -> tuple[Plan | None, list[str]]:
    """The plan where there can be one, and what cannot be said."""
    cluster = allocation.cluster
    device = cluster.device or (None if cluster.gpus_per_node else "cpu")
    if device is None:
        return None, ["the profile states no device: memory and the time of a step are not known"]
    try:
        plan = plan_of(run, allocation.ranks, device)
    except ConfigError as error:
        return None, [f"memory and the time of a step are not known: {mistake}" for mistake in error.mistakes]
    if plan.step_s is None:
        unknown = "whether --time lasts for a checkpoint is not known: state logging.peak_tflops"
        return plan, [unknown]
    return plan, []


def _too_large(plan: Plan, run: RunConfig) -> list[Mistake]:
    if plan.fits is not False:
        return []
    needed, there = plan.memory.peak / 1e9, plan.accelerator.memory_gb
    rule = f"leaves a rank with {needed:.3g} GB, more than the {there:g} GB of {plan.accelerator.title}"
    remedy = "raise it, training.zero_stage or training.recompute, or lower training.micro_batch_size; see `mep plan`"
    return [Mistake("parallel.tensor", run.parallel.tensor, rule, remedy)]


def _too_short(plan: Plan, run: RunConfig, allocation: Allocation) -> list[Mistake]:
    interval, ahead = run.checkpoint.interval or run.training.steps, allocation.cluster.signal_ahead
    if plan.step_s is None or allocation.training_s <= 0 or interval * plan.step_s <= allocation.training_s:
        return []
    rule = (f"is shorter than a checkpoint interval of {interval} steps, of {plan.step_s:.3g} s each by `mep plan`, "
            f"and the {slurm_time(seconds_of(ahead))} of signal_ahead")  # fmt: skip
    minutes = math.ceil((interval * plan.step_s + seconds_of(ahead)) / 60)
    fitting = max(1, int(allocation.training_s / plan.step_s))
    remedy = f"ask for --time {slurm_time(60 * minutes)}, or set checkpoint.interval to {fitting} or less"
    return [Mistake("--time", allocation.time, rule, remedy)]
