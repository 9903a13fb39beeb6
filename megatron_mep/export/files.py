"""The files of an exported model: code, configuration, tokenizer and weights."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from megatron_mep.config.base import Config
from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.encodings.base import Encoding
from megatron_mep.export.configuration import Json, classes_in, configuration_of, generation_of, table_of_classes
from megatron_mep.export.vendor import STANDALONE, vendored, with_all_named
from megatron_mep.export.weights import exported_weights
from megatron_mep.extrapolation.base import Trick
from megatron_mep.model.config import ModelConfig
from megatron_mep.model.encoded_gpt import EncodedGPT

MODELING = "modeling_mep.py"
CLASSES = "classes_mep.py"
SHARD = "5GB"


def write_model(
    folder: Path,
    model: EncodedGPT,
    trained: ModelConfig,
    tricks: Sequence[Trick],
    train_length: int,
    tokenizer: Tokenizer,
) -> tuple[Json, int]:
    """Writes a whole model that acts under `tricks`; its configuration and number of parameters."""
    from huggingface_hub import save_torch_state_dict

    from megatron_mep.export.tokenizer import write_tokenizer

    config = configuration_of(model, trained, tricks, train_length, tokenizer.vocab_size, tokenizer.eod)
    for name, source in sources_of(trained.encoding, tricks).items():
        (folder / name).write_text(source, encoding="utf-8")
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_of(tokenizer.eod))
    write_tokenizer(tokenizer, folder)
    weights = exported_weights(model, trained, tokenizer.vocab_size)
    save_torch_state_dict(weights, folder, max_shard_size=SHARD)
    for file in folder.glob("*.safetensors"):
        # written for their owner alone
        file.chmod((folder / "config.json").stat().st_mode)
    return config, sum(weight.numel() for weight in weights.values())


def sources_of(encoding: Encoding, tricks: Iterable[Trick]) -> dict[str, str]:
    """The files of code of an exported model, by their names."""
    kinds: set[type[Config]] = classes_in([encoding, *tricks])
    files = vendored([f"{STANDALONE}.modeling_mep", *sorted(kind.__module__ for kind in kinds)])
    files[CLASSES] = table_of_classes(kinds)
    files[MODELING] = with_all_named(files[MODELING], [file for file in files if file != MODELING])
    return files


def _write_json(file: Path, content: Json) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
