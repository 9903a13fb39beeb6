"""What a plan tells, worked out by hand."""

import json

import pytest

from megatron_mep.cli import main
from megatron_mep.config.errors import ConfigError
from megatron_mep.plan.communication import communication_of
from megatron_mep.plan.plan import Plan, plan_of
from megatron_mep.plan.table import as_json, table
from megatron_mep.run import run_of
from tests.support.runs import Tree, run_tree


def gpt(tensor: int = 4, layout: Tree | None = None, **training: object):
    """24 layers of width 2048, 2048 tokens; 32,000 tokens of vocabulary."""
    tree = run_tree(
        model={"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "activation": "gelu"},
        training={"seq_length": 2048, "global_batch_size": 512, "precision": "bf16", **training},
        data={"folder": "nowhere", "tokenizer": {"kind": "train", "vocab_size": 32000}},
        parallel={"tensor": tensor, "sequence": tensor > 1, **(layout or {})},
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


def test_context_ranks_divide_tokens_and_what_zero_divides():
    plan = of(layout={"context": 2}, global_batch_size=32)
    assert plan.memory.optimizer == 12 * plan.share.num_weights // 2
    assert plan.memory.activations.kept < of(global_batch_size=32).memory.activations.kept
    sent = {(each.what, each.operation): each for each in plan.traffic}
    # keys and values of 24 layers in 32 micro-batches: 2048 tokens of 4 heads of 128, of which one half is sent
    numbers = 2 * 24 * 32 * 2048 * 512
    assert sent["keys and values", "all-gather"].sent == 2 * numbers / 2
    assert sent["keys and values", "reduce-scatter"].sent == 4 * numbers / 2
    assert sent["gradients", "all-reduce"].over == "data x context"


def test_a_ring_holds_no_whole_sequence_and_sends_gradients_home():
    ring = of(layout={"context": 2, "context_exchange": "ring"}, global_batch_size=32)
    assert ring.attention.name == "ring"
    sent = {each.what: each.sent for each in ring.traffic}
    # a half of keys and values goes one step in each pass, and their gradients in fp32 go all around
    half = 2 * 24 * 32 * 1024 * 512
    assert sent["keys and values"] == 2 * half * 2
    assert sent["their gradients"] == 2 * half * 4


def test_ulysses_sends_more_where_groups_are_repeated():
    def sent(groups: int) -> int:
        tree = gpt(layout={"context": 4, "context_exchange": "ulysses"}).model_dump(mode="json")
        tree["model"]["num_query_groups"] = groups
        return next(each.sent for each in plan_of(run_of(tree), 16, "h100").traffic if each.what == "heads")

    # of 4 heads of a tensor rank, queries and contexts have 4; keys and values 4, 4 for one group, which is repeated
    assert sent(4) == sent(16)
    assert sent(8) == sent(16)


def test_stages_divide_layers_and_keep_micro_batches_for_those_to_come():
    plan = of(tensor=2, layout={"pipeline": 4}, global_batch_size=8)
    layers = 6 * (12 * 2048**2 // 2 + 2 * 2048)
    embedding = 32000 * 2048 // 2
    weights = [each.num_weights for each in plan.share.of_all_stages()]
    assert weights == [layers + embedding, layers, layers, layers + embedding + 2048]
    assert [each.in_flight for each in plan.share.of_all_stages()] == [4, 3, 2, 1]
    assert plan.share.stage.rank == plan.stage_peaks.index(max(plan.stage_peaks)) == 0
    assert plan.memory.peak == plan.stage_peaks[0]
    # text is generated without stages
    assert plan.caches[2048] == 24 * 2 * 2048 * (2048 // 2) * 2
    # the stages between the ends send both ways, half of the residual stream of 2048 tokens in each of 8 micro-batches
    sent = [
        sum(each.sent for each in communication_of(share) if each.over == "pipeline")
        for share in plan.share.of_all_stages()
    ]
    one_way = 8 * 2 * 2048 * 2048 // 2
    assert sent == [one_way, 2 * one_way, 2 * one_way, one_way]
    # the output layer is shared by the tensor ranks
    assert plan.traffic_stage == 3


def test_fewer_micro_batches_than_stages_are_in_flight():
    plan = of(tensor=2, layout={"pipeline": 4}, global_batch_size=2)
    assert [each.in_flight for each in plan.share.of_all_stages()] == [2, 2, 2, 1]


def test_the_time_counts_what_stages_wait_for():
    plan = of(tensor=2, layout={"pipeline": 4}, global_batch_size=8)
    assert plan.bubble == 3 / 11
    layer = 6 * (12 * 2048**2 + 2048 * 2048)
    output = 6 * 32000 * 2048
    # the others follow the first micro-batch at the pace of the last stage
    flops = 24 * layer + output + 7 * (6 * layer + output)
    assert plan.step_s == pytest.approx(flops * 2048 / (2 * 989.5e12 * 0.5))
    told = table(plan)
    waits = "wait for (p-1)/(vm+p-1) = 27.3% of a step (p=4, v=1, m=8)"
    assert f"4 stages of 6 layers by 1F1B, which {waits}" in told
    assert "Memory of one rank (of stage 1 of 4, the fullest)" in told


def test_chunks_shorten_what_stages_wait_and_send_as_often():
    plan = of(tensor=2, layout={"pipeline": 4, "virtual_pipeline": 3}, global_batch_size=8)
    assert plan.bubble == 3 / (3 * 8 + 3)
    # Megatron-core's schedule: 2 chunk passes for each later stage, 4 for each chunk but one, and the one at work
    assert [each.in_flight for each in plan.share.of_all_stages()] == [15 / 3, 13 / 3, 11 / 3, 9 / 3]
    whole = of(tensor=2, layout={"pipeline": 4}, global_batch_size=8)
    assert plan.share.num_weights == whole.share.num_weights
    sent = [
        sum(each.sent for each in communication_of(share) if each.over == "pipeline")
        for share in plan.share.of_all_stages()
    ]
    one_way = 8 * 2 * 2048 * 2048 // 2
    assert sent == [5 * one_way, 6 * one_way, 6 * one_way, 5 * one_way]
    layer, output = 6 * (12 * 2048**2 + 2048 * 2048), 6 * 32000 * 2048
    # before the last stage can work, each of the others has computed one of its three chunks
    flops = 18 * layer / 3 + 8 * (6 * layer + output)
    assert plan.step_s == pytest.approx(flops * 2048 / (2 * 989.5e12 * 0.5))
    assert "4 stages of 3 chunks of 2 layers by interleaved 1F1B" in table(plan)


def test_the_command_prints_a_table_or_json(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(gpt().yaml(), encoding="utf-8")
    assert main(["plan", str(file), "--world-size", "8", "--peak-fraction", "0.5"]) == 0
    assert capsys.readouterr().out.strip() == table(of())
    assert main(["plan", str(file), "--world-size", "8", "--peak-fraction", "0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == as_json(of())
