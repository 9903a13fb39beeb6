"""The biases by distance or by positions, as the union that other encodings build upon."""

from typing import Annotated

from pydantic import Tag

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.bam import Bam
from megatron_mep.encodings.fire import Fire
from megatron_mep.encodings.kerple import Kerple3Log, KerpleLog, KerplePower
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.own import BY_NAME, OwnEncoding
from megatron_mep.encodings.sandwich import Sandwich
from megatron_mep.encodings.series import GaussianBias, Series, Type1, Type2
from megatron_mep.encodings.t5 import T5

AnyBias = Annotated[
    Annotated[Alibi, Tag("alibi")]
    | Annotated[Bam, Tag("bam")]
    | Annotated[Fire, Tag("fire")]
    | Annotated[GaussianBias, Tag("gaussian")]
    | Annotated[Kerple3Log, Tag("kerple_3log")]
    | Annotated[KerpleLog, Tag("kerple_log")]
    | Annotated[KerplePower, Tag("kerple_power")]
    | Annotated[Mep, Tag("mep")]
    | Annotated[Sandwich, Tag("sandwich")]
    | Annotated[Series, Tag("series")]
    | Annotated[T5, Tag("t5")]
    | Annotated[Type1, Tag("type1")]
    | Annotated[Type2, Tag("type2")]
    | OwnEncoding,
    BY_NAME,
]
"""Chosen by `name`; who holds one checks that a class of the user's own is a bias too."""
