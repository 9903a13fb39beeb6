"""The model that a run trains and the one that it evaluates, nothing of their encoding left open."""

from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.encodings.base import Encoding
from megatron_mep.extrapolation import extrapolated
from megatron_mep.model.config import ModelConfig
from megatron_mep.run import RunConfig


def trained_model(run: RunConfig, tokenizer: Tokenizer) -> ModelConfig:
    """The model whose encoding knows the vocabulary."""
    spellings = [tokenizer.spelling(token) for token in range(tokenizer.vocab_size)]
    return _with_encoding(run.model, run.model.encoding.reading(spellings))


def evaluated_model(run: RunConfig, tokenizer: Tokenizer) -> ModelConfig:
    """The same under the run's length tricks, without dropout, which acts in training alone."""
    model = trained_model(run, tokenizer)
    encoding = extrapolated(model.encoding, run.extrapolation, run.training.seq_length)
    # some tricks are computed by backends that could not drop
    return _with_encoding(model, encoding).model_copy(update={"attention_dropout": 0.0, "hidden_dropout": 0.0})


def _with_encoding(model: ModelConfig, encoding: Encoding) -> ModelConfig:
    return model.model_copy(update={"encoding": encoding})
