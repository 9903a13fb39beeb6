from megatron_mep.model.gpt import build_model
from megatron_mep.parallel.config import ParallelConfig
from megatron_mep.training.config import OptimizerConfig
from megatron_mep.training.parameter_groups import parameter_groups
from tests.support.distributed import joined, run
from tests.support.tiny import LEARNED, VOCABULARY, model_config


def test_every_parameter_is_in_the_group_of_its_kind():
    run(_groups, 1)


def _groups():
    joined()
    model = build_model(
        model_config(encoding=LEARNED, linear_bias=True, norm="layernorm"), ParallelConfig(), VOCABULARY, 0
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model.parameters(), OptimizerConfig(learning_rate=0.5, encoding_learning_rate=0.25))
    members = {group["name"]: [names[id(parameter)] for parameter in group["params"]] for group in groups}
    assert sorted(name for names in members.values() for name in names) == sorted(names.values())
    assert all("encoding_weights" in name for name in members["encoding"])
    assert len(members["encoding"]) == 2 * 4
    assert all(name.endswith(".bias") or "norm" in name for name in members["vectors"])
    # the weight of each layer's four matrices, the embedding and the output layer
    assert all(name.endswith(".weight") and "norm" not in name for name in members["matrices"])
    assert len(members["matrices"]) == 2 * 4 + 2

    settings = {group["name"]: (group["lr"], group["max_lr"], group["wd_mult"]) for group in groups}
    assert settings == {"matrices": (0.5, 0.5, 1.0), "vectors": (0.5, 0.5, 0.0), "encoding": (0.25, 0.25, 0.0)}


def test_the_encoding_learns_at_the_common_rate_unless_stated():
    run(_common_rate, 1)


def _common_rate():
    joined()
    model = build_model(model_config(encoding=LEARNED), ParallelConfig(), VOCABULARY, 0)
    groups = parameter_groups(model.parameters(), OptimizerConfig(learning_rate=0.5))
    assert [group["max_lr"] for group in groups] == [0.5] * 3


def test_a_group_without_members_is_left_out():
    run(_fixed_and_frozen, 1)


def _fixed_and_frozen():
    joined()
    model = build_model(model_config(), ParallelConfig(), VOCABULARY, 0)
    model.embedding.requires_grad_(False)
    groups = parameter_groups(model.parameters(), OptimizerConfig(learning_rate=0.5))
    assert [group["name"] for group in groups] == ["matrices", "vectors"]
    assert all(parameter is not model.embedding.word_embeddings.weight for parameter in groups[0]["params"])
