"""The rotations of queries and keys by their positions, as the union that other encodings build upon."""

from typing import Annotated

from pydantic import Tag

from megatron_mep.encodings.fope import Fope
from megatron_mep.encodings.hope import Hope
from megatron_mep.encodings.lrpe import Lrpe
from megatron_mep.encodings.own import BY_NAME, OwnEncoding
from megatron_mep.encodings.p_rope import PRope
from megatron_mep.encodings.rope import Rope

AnyRotation = Annotated[
    Annotated[Fope, Tag("fope")]
    | Annotated[Hope, Tag("hope")]
    | Annotated[Lrpe, Tag("lrpe")]
    | Annotated[PRope, Tag("p_rope")]
    | Annotated[Rope, Tag("rope")]
    | OwnEncoding,
    BY_NAME,
]
"""Chosen by `name`; who holds one checks that a class of the user's own is a rotation too."""
