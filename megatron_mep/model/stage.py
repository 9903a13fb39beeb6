"""Which layers a pipeline stage has, and what else of the model is there."""

from megatron_mep.encodings.base import Sharable
from megatron_mep.model.config import ModelConfig


def layers_of(model: ModelConfig, stage: int, num_stages: int) -> range:
    """The numbers of a stage's layers, counted from 1."""
    assert model.num_layers % num_stages == 0, f"{num_stages} stages cannot share {model.num_layers} layers"
    each = model.num_layers // num_stages
    return range(stage * each + 1, (stage + 1) * each + 1)


def lender(model: ModelConfig) -> int | None:
    """The number of the layer whose encoding weights all others use; `None` where each layer has its own."""
    if not (isinstance(model.encoding, Sharable) and model.encoding.shared_by_layers):
        return None
    encoded = (number for number in range(1, model.num_layers + 1) if number not in model.nope_layers)
    return next(encoded, None)
