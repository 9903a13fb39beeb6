"""An exported folder without transformers: its decoder, loaded from its files, behind the calls that `verify` makes."""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Kept = dict[int, tuple[Tensor, Tensor]]


class Alone:
    """A model of an exported folder's own code and the weights given."""

    device = torch.device("cpu")

    def __init__(self, folder: Path, weights: dict[str, Tensor]) -> None:
        (folder / "__init__.py").touch()
        sys.path.insert(0, str(folder.parent))
        here = folder.name
        config = SimpleNamespace(**json.loads((folder / "config.json").read_text()))
        classes = import_module(f"{here}.classes_mep").CLASSES
        encoding_of = import_module(f"{here}.encoding_mep").encoding_of
        encoding = encoding_of(config.encoding, config.extrapolation, config.train_length, classes)
        self.decoder = import_module(f"{here}.decoder_mep").Decoder(config, encoding).eval()
        model = "model."
        self.decoder.load_state_dict({name.removeprefix(model): weights[name] for name in weights if model in name})
        self.head = weights["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]

    def __call__(
        self, tokens: Tensor, attention_mask: Tensor | None = None, use_cache: bool = False, **by_name: Kept | None
    ) -> Any:
        """Logits, and a cache where one is asked for."""
        kept: Kept = next(iter(by_name.values()), None) or {}
        num_read = kept[0][0].size(2) if kept else 0

        def keep(slot: int, *new: Tensor) -> tuple[Tensor, ...]:
            before = kept.get(slot)
            kept[slot] = new if before is None else tuple(map(_joined, before, new))  # type: ignore[assignment]
            return kept[slot]

        whole = tokens.new_ones(len(tokens), num_read + tokens.size(1)) if attention_mask is None else attention_mask
        padding = (whole.cumsum(-1) == 0).sum(-1)
        hidden = self.decoder(tokens, padding, num_read, keep if use_cache else None)
        return SimpleNamespace(logits=functional.linear(hidden, self.head), cache=kept)


def _joined(before: Tensor, new: Tensor) -> Tensor:
    return torch.cat((before, new), dim=2)
