"""An encoding in one setting, and what is claimed of it there."""

from dataclasses import dataclass

from megatron_mep.encodings.base import Encoding


@dataclass(frozen=True)
class Case:
    """What the tests of every encoding run over: `cases/*.py` hold a tuple `CASES` each."""

    name: str
    encoding: Encoding
    """Nothing left open that a run would fill in."""
    heads: tuple[int, ...] = (8, 12)
    """Numbers of heads that the setting allows."""
    falls: bool = False
    """A bias that never grows with the distance."""
    zero_at_zero: bool = False
    """A bias of zero at distance zero."""
    distinct: bool = False
    """fp32 tells the biases of any two distances apart."""
    tensor_sizes: tuple[int, ...] = (1, 2, 4)
    """Over how many ranks the heads may be divided."""
    decodes: bool = True
    """Cached decoding gives the logits of a full forward pass."""
    acts: bool = True
    """The order of keys matters to the last query."""
    starts_at_rest: bool = False
    """Initial weights are such that some of them get no gradient yet, as behind a last layer of zeros."""
