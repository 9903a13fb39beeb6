"""A checkpoint's model, ready to be asked at the layout of the job."""

from pathlib import Path

import torch

from megatron_mep.acting import evaluated_model
from megatron_mep.checkpoint.load import load_weights
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.model.encoded_gpt import EncodedGPT
from megatron_mep.model.gpt import build_model
from megatron_mep.model.interleaved import StageModel
from megatron_mep.parallel.groups import Groups
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
