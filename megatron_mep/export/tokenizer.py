"""A SentencePiece model as the files that transformers reads a tokenizer from, without SentencePiece or code."""

import json
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, decoders, models, normalizers
from tokenizers import Tokenizer as Fast

from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.data.tokenizer import SPACE_SYMBOL, Tokenizer

FILE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
UNIGRAM, BPE = 1, 2
"""Kinds of models by their numbers in a SentencePiece file."""
NORMAL = 1
"""The kind of pieces that are made of others."""


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the tokenizer; a `DataError` where it changes texts in ways that only SentencePiece knows."""
    proto = _proto(tokenizer)
    kind, changes = proto.trainer_spec.model_type, proto.normalizer_spec
    if kind not in (UNIGRAM, BPE):
        raise _refusal("is neither a unigram nor a BPE model")
    if changes.precompiled_charsmap or changes.remove_extra_whitespaces or changes.add_dummy_prefix:
        raise _refusal("normalises texts: it was not trained by `mep prepare`")
    fast = Fast(_unigram(proto) if kind == UNIGRAM else _bpe(proto))
    fast.normalizer = normalizers.Replace(Regex(" "), SPACE_SYMBOL)
    fast.decoder = decoders.Sequence([decoders.Replace(SPACE_SYMBOL, " "), decoders.ByteFallback(), decoders.Fuse()])
    end, unknown = end_of(tokenizer), proto.pieces[proto.trainer_spec.unk_id].piece
    fast.add_special_tokens([end, unknown])
    fast.save(str(folder / FILE))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "pad_token": end,
        "unk_token": unknown,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _proto(tokenizer: Tokenizer) -> Any:
    return sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)  # type: ignore[attr-defined]


def end_of(tokenizer: Tokenizer) -> str:
    """What the token that ends a document is called."""
    proto = _proto(tokenizer)
    return str(proto.pieces[tokenizer.eod].piece)


def _unigram(proto: Any) -> models.Unigram:
    scores = [(piece.piece, piece.score) for piece in proto.pieces]
    return models.Unigram(scores, proto.trainer_spec.unk_id, byte_fallback=proto.trainer_spec.byte_fallback)


def _bpe(proto: Any) -> models.BPE:
    """Two pieces merge where what they make is a piece, the one with the highest score first."""
    numbers = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    merges = [
        (-piece.score, numbers[piece.piece[:cut]], numbers[piece.piece[cut:]], piece.piece[:cut], piece.piece[cut:])
        for piece in proto.pieces
        if piece.type == NORMAL
        for cut in range(1, len(piece.piece))
        if piece.piece[:cut] in numbers and piece.piece[cut:] in numbers
    ]
    return models.BPE(
        numbers,
        [(left, right) for *_, left, right in sorted(merges)],
        unk_token=proto.pieces[proto.trainer_spec.unk_id].piece,
        fuse_unk=True,
        byte_fallback=proto.trainer_spec.byte_fallback,
    )


def _refusal(reason: str) -> DataError:
    return DataError(Mistake("data.tokenizer", None, f"cannot be exported: it {reason}",
                             "export a run whose tokenizer `mep prepare` has trained"))  # fmt: skip
