"""All encodings that a run file can name, as one union."""

from typing import Annotated

from pydantic import Tag

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.bam import Bam
from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.bipe import BipeAlibi, BipeRope
from megatron_mep.encodings.cable import Cable, CableRelu, CableSoftplus
from megatron_mep.encodings.clex import Clex
from megatron_mep.encodings.cope import Cope
from megatron_mep.encodings.dape import Dape, DapeV2
from megatron_mep.encodings.fire import Fire
from megatron_mep.encodings.fope import Fope
from megatron_mep.encodings.fox import Fox
from megatron_mep.encodings.hirope import Hirope
from megatron_mep.encodings.hope import Hope
from megatron_mep.encodings.kerple import Kerple3Log, KerpleLog, KerplePower, KerpleWeighted
from megatron_mep.encodings.learned_absolute import LearnedAbsolute
from megatron_mep.encodings.legendre import Legendre
from megatron_mep.encodings.lrpe import Lrpe
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.own import BY_NAME, OwnEncoding
from megatron_mep.encodings.p_rope import PRope
from megatron_mep.encodings.randomized import RandomizedAbsolute, RandomizedBias, RandomizedRotation
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.rpe_3d import Rpe3d
from megatron_mep.encodings.sandwich import Sandwich
from megatron_mep.encodings.series import GaussianBias, Series, Type1, Type2
from megatron_mep.encodings.sinusoidal import Sinusoidal
from megatron_mep.encodings.t5 import T5
from megatron_mep.encodings.tape import Tape
from megatron_mep.encodings.xpos import Xpos

BUILT_IN: tuple[type[Encoding], ...] = (
    Alibi,
    Bam,
    BipeAlibi,
    BipeRope,
    Cable,
    CableRelu,
    CableSoftplus,
    Clex,
    Cope,
    Dape,
    DapeV2,
    Fire,
    Fope,
    Fox,
    Hirope,
    Hope,
    Kerple3Log,
    KerpleLog,
    KerplePower,
    KerpleWeighted,
    LearnedAbsolute,
    Legendre,
    Lrpe,
    Mep,
    Nope,
    PRope,
    RandomizedAbsolute,
    RandomizedBias,
    RandomizedRotation,
    Rope,
    Rpe3d,
    Sandwich,
    GaussianBias,
    Series,
    Type1,
    Type2,
    Sinusoidal,
    T5,
    Tape,
    Xpos,
)

AnyEncoding = Annotated[
    Annotated[Alibi, Tag("alibi")]
    | Annotated[Bam, Tag("bam")]
    | Annotated[BipeAlibi, Tag("bipe_alibi")]
    | Annotated[BipeRope, Tag("bipe_rope")]
    | Annotated[Cable, Tag("cable")]
    | Annotated[CableRelu, Tag("cable_nw_relu")]
    | Annotated[CableSoftplus, Tag("cable_nw_softplus")]
    | Annotated[Clex, Tag("clex")]
    | Annotated[Cope, Tag("cope")]
    | Annotated[Dape, Tag("dape")]
    | Annotated[DapeV2, Tag("dape_v2")]
    | Annotated[Fire, Tag("fire")]
    | Annotated[Fope, Tag("fope")]
    | Annotated[Fox, Tag("fox")]
    | Annotated[Hirope, Tag("hirope")]
    | Annotated[Hope, Tag("hope")]
    | Annotated[Kerple3Log, Tag("kerple_3log")]
    | Annotated[KerpleLog, Tag("kerple_log")]
    | Annotated[KerplePower, Tag("kerple_power")]
    | Annotated[KerpleWeighted, Tag("kerple_weighted")]
    | Annotated[LearnedAbsolute, Tag("learned_absolute")]
    | Annotated[Legendre, Tag("legendre")]
    | Annotated[Lrpe, Tag("lrpe")]
    | Annotated[Mep, Tag("mep")]
    | Annotated[Nope, Tag("nope")]
    | Annotated[PRope, Tag("p_rope")]
    | Annotated[RandomizedAbsolute, Tag("randomized_absolute")]
    | Annotated[RandomizedBias, Tag("randomized_bias")]
    | Annotated[RandomizedRotation, Tag("randomized_rotation")]
    | Annotated[Rope, Tag("rope")]
    | Annotated[Rpe3d, Tag("rpe_3d")]
    | Annotated[Sandwich, Tag("sandwich")]
    | Annotated[GaussianBias, Tag("gaussian")]
    | Annotated[Series, Tag("series")]
    | Annotated[Type1, Tag("type1")]
    | Annotated[Type2, Tag("type2")]
    | Annotated[Sinusoidal, Tag("sinusoidal")]
    | Annotated[T5, Tag("t5")]
    | Annotated[Tape, Tag("tape")]
    | Annotated[Xpos, Tag("xpos")]
    | OwnEncoding,
    BY_NAME,
]
"""Chosen by `name`; a name with a colon is a class of the user's own."""
