"""A checkpoint's model, ready to be asked at the layout of the job."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from megatron_mep.acting import evaluated_model
from megatron_mep.checkpoint.load import load_weights
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.model.decode import Decoder
from megatron_mep.model.encoded_gpt import EncodedGPT
from megatron_mep.model.gpt import build_model
from megatron_mep.model.interleaved import StageModel
from megatron_mep.parallel.groups import Groups
from megatron_mep.probes.scoring import Open, Read
from megatron_mep.run import RunConfig


def loaded_model(run: RunConfig, tokenizer: Tokenizer, folder: Path, groups: Groups, dtype: torch.dtype) -> StageModel:
    """This rank's part of the model in the checkpoint `folder`, under the run's length tricks; collective."""
    model = build_model(evaluated_model(run, tokenizer), run.parallel, tokenizer.vocab_size, run.seed, dtype)
    load_weights(folder, model)
    model.to(device=groups.device, dtype=dtype).eval()
    return model


def loaded_whole(run: RunConfig, tokenizer: Tokenizer, folder: Path, groups: Groups, dtype: torch.dtype) -> EncodedGPT:
    """The same where no pipeline stages share the layers."""
    (model,) = loaded_model(run, tokenizer, folder, groups, dtype).chunks
    return model


def opening(model: EncodedGPT, vocabulary_size: int, chunk_size: int, came_on: Callable[[], None]) -> Open:
    """What opens the model with room for some texts, to be read in chunks; `came_on` is told of each."""

    def opened(batch_size: int, max_length: int) -> Read:
        decoder = Decoder(model, vocabulary_size, max_length, batch_size)

        def read(tokens: Tensor, num_logits: int) -> Tensor:
            logits = decoder.read(tokens, num_logits, chunk_size)
            came_on()
            return logits

        return read

    return opened
