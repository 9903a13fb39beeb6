"""What a plan tells, worked out by hand."""

import json

import pytest

from megatron_mep.cli import main
from megatron_mep.config.errors import ConfigError
from megatron_mep.plan.plan import Plan, plan_of
from megatron_mep.plan.table import as_json, table
from megatron_mep.run import run_of
from tests.support.runs import run_tree


def gpt(tensor: int = 4, **training: object):
    """24 layers of width 2048, 2048 tokens; 32,000 tokens of vocabulary."""
    tree = run_tree(
        model={"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "activation": "gelu"},
        training={"seq_length": 2048, "global_batch_size": 512, "precision": "bf16", **training},
        data={"folder": "nowhere", "tokenizer": {"kind": "train", "vocab_size": 32000}},
        parallel={"tensor": tensor, "sequence": tensor > 1},
    )
    return run_of(tree)


def of(world_size: int = 8, **changes: object) -> Plan:
    return plan_of(gpt(**changes), world_size, "h100", 0.5)


def test_zero_divides_the_optimizer_over_data_parallel_ranks():
    # 12 h^2 of a layer, two matrices of the vocabulary, divided by four; norms of 2 h a layer and h at the end
    matrices = 24 * 12 * 2048**2 + 2 * 32000 * 2048
    weights = matrices // 4 + (2 * 24 + 1) * 2048
    plan = of()
    assert plan.share.num_weights == weights
    assert plan.memory.weights == 2 * weights
    assert plan.memory.gradients == 4 * weights
    assert plan.memory.optimizer == 12 * weights // 2
    assert of(zero_stage=3).memory.weights == weights


def test_both_conventions_count_the_same_matrices():
    plan = of()
    matrices = 6 * (24 * 12 * 2048**2 + 32000 * 2048)
    scores = 12 * 24 * 2048 * 2048
    assert plan.causal_flops == matrices + scores / 2
    assert plan.all_scores_flops == matrices + scores


def test_the_time_is_that_of_the_stated_share_of_the_peak():
    plan = of()
    assert plan.step_s == pytest.approx(plan.causal_flops * 512 * 2048 / (8 * 989.5e12 * 0.5))
    assert "an estimate at 50% of 989.5 TFLOP/s (NVIDIA's figures, at second hand)" in table(plan)


def test_a_cpu_has_no_peak_of_its_own():
    plan = plan_of(gpt(precision="fp32"), 4, "cpu")
    assert plan.step_s is None
    assert "state logging.peak_tflops" in table(plan)
    stated = run_of(gpt(precision="fp32").model_dump(mode="json") | {"logging": {"peak_tflops": 0.1}})
    assert plan_of(stated, 4, "cpu").step_s == pytest.approx(plan.causal_flops * 512 * 2048 / (4 * 0.1e12 * 0.4))


def test_recomputing_keeps_less():
    kept = [of(recompute=recompute).memory.activations.kept for recompute in ("none", "selective", "full")]
    assert kept == sorted(kept, reverse=True)
    # the residual stream of every layer, divided along the sequence, is nearly all that full recomputation keeps
    assert kept[2] == pytest.approx(25 * 2 * 2048 * 2048 // 4, rel=0.1)


def test_the_cache_holds_keys_and_values():
    assert of().caches[2048] == 24 * 2 * 2048 * (2048 // 4) * 2


def test_what_does_not_fit_is_said():
    assert of(tensor=1, micro_batch_size=64).fits is False
    assert "DOES NOT FIT the 80 GB of H100 SXM" in table(of(tensor=1, micro_batch_size=64))


def test_a_vocabulary_that_nobody_knows_is_asked_for():
    tree = gpt().model_dump(mode="json")
    tree["data"]["tokenizer"] = {"kind": "sentencepiece", "path": "a.model"}
    with pytest.raises(ConfigError, match="mep prepare"):
        plan_of(run_of(tree), 8, "h100")


def test_axes_that_are_not_reckoned_with_are_refused():
    tree = gpt().model_dump(mode="json")
    tree["parallel"] |= {"context": 2}
    with pytest.raises(ConfigError, match=r"parallel\.context = 2: is not reckoned with"):
        plan_of(run_of(tree), 8, "h100")


def test_the_command_prints_a_table_or_json(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(gpt().yaml(), encoding="utf-8")
    assert main(["plan", str(file), "--world-size", "8", "--peak-fraction", "0.5"]) == 0
    assert capsys.readouterr().out.strip() == table(of())
    assert main(["plan", str(file), "--world-size", "8", "--peak-fraction", "0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == as_json(of())
