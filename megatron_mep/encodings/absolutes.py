"""The encodings that add vectors of positions to the embeddings, as the union that other encodings build upon."""

from typing import Annotated

from pydantic import Tag

from megatron_mep.encodings.learned_absolute import LearnedAbsolute
from megatron_mep.encodings.legendre import Legendre
from megatron_mep.encodings.own import BY_NAME, OwnEncoding
from megatron_mep.encodings.sinusoidal import Sinusoidal

AnyAbsolute = Annotated[
    Annotated[LearnedAbsolute, Tag("learned_absolute")]
    | Annotated[Legendre, Tag("legendre")]
    | Annotated[Sinusoidal, Tag("sinusoidal")]
    | OwnEncoding,
    BY_NAME,
]
"""Chosen by `name`; who holds one checks that a class of the user's own acts on embeddings too."""
