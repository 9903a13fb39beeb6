"""The decoder of an exported model computes what the model does that it was made from; transformers is not needed."""

import json
from pathlib import Path

import pytest

from megatron_mep.export.certificate import TOLERANCE
from megatron_mep.export.configuration import configuration_of
from megatron_mep.export.files import sources_of
from megatron_mep.export.reference import model_cases
from megatron_mep.export.verify import differences
from megatron_mep.export.weights import exported_weights
from tests.export.alone import Alone
from tests.export.cases import MODELS, Model
from tests.export.models import TRAIN_LENGTH, built
from tests.support.distributed import joined, run
from tests.support.tiny import VOCABULARY


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in MODELS])
def test_logits_are_those_of_the_trained_model(case: Model, tmp_path: Path) -> None:
    run(_compare, 1, case, tmp_path / "exported")


def _compare(case: Model, folder: Path) -> None:
    joined()
    model, trained = built(case)
    folder.mkdir()
    for name, source in sources_of(trained.encoding, case.tricks).items():
        (folder / name).write_text(source, encoding="utf-8")
    config = configuration_of(model, trained, case.tricks, TRAIN_LENGTH, VOCABULARY, eos=1)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    alone = Alone(folder, exported_weights(model, trained, VOCABULARY))
    cases = list(model_cases(model, VOCABULARY, TRAIN_LENGTH))
    assert all(expected["logits"][0].abs().max() > 0.5 for expected in cases), "logits too small to differ"
    found = dict(differences(alone, cases))
    assert found.keys() == {
        "full",
        "beyond_the_training_length",
        "cached_by_past_key_values",
        "cached_by_cache",
        "left_padding",
    }
    assert max(found.values()) < TOLERANCE, found
