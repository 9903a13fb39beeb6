"""An exported tokenizer reads texts as the one that a model was trained with."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from megatron_mep.config.errors import DataError
from megatron_mep.data.config import TrainTokenizer
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.data.tokenizer_training import train
from megatron_mep.export.reference import tokenizer_cases
from tests.data.toy import stories

tokenizers = pytest.importorskip("tokenizers", reason="needs pip install 'megatron-mep[export]'")


def trained(kind: Literal["unigram", "bpe"]) -> Tokenizer:
    return train(stories(200), TrainTokenizer(vocab_size=320, model_type=kind))


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_texts_become_the_same_tokens_and_come_back(kind: Literal["unigram", "bpe"], tmp_path: Path) -> None:
    from megatron_mep.export.tokenizer import write_tokenizer

    tokenizer = trained(kind)
    write_tokenizer(tokenizer, tmp_path)
    fast = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    cases = [*tokenizer_cases(tokenizer), *({"text": text} for text in stories(50, seed=1))]
    for case in cases:
        expected = tokenizer.encode([case["text"]])[0].tolist()
        assert fast.encode(case["text"]).ids == expected, case["text"]
        assert fast.decode(expected) == tokenizer.decode(np.array(expected)), case["text"]
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert fast.token_to_id(settings["eos_token"]) == tokenizer.eod


def test_one_that_changes_texts_is_refused(tmp_path: Path) -> None:
    from sentencepiece import sentencepiece_model_pb2

    from megatron_mep.export.tokenizer import write_tokenizer

    proto = sentencepiece_model_pb2.ModelProto.FromString(trained("unigram").model)
    proto.normalizer_spec.add_dummy_prefix = True
    with pytest.raises(DataError, match="normalises texts"):
        write_tokenizer(Tokenizer(proto.SerializeToString()), tmp_path)
