"""No positional encoding: the causal mask alone tells a decoder where it is."""

from typing import ClassVar, Literal

from megatron_mep.encodings.base import Encoding


class Nope(Encoding):
    """Nothing is added and nothing is turned.

    Source: "The Impact of Positional Encoding on Length Generalization in Transformers", arXiv:2305.19466.
    """

    name: Literal["nope"] = "nope"
    source: ClassVar[str] = "arXiv:2305.19466"
    formula: ClassVar[str] = "none"
