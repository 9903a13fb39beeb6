"""Tricks that divide pairs into regions, each on an encoding that it acts on."""

from collections.abc import Sequence

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.xpos import Xpos
from megatron_mep.extrapolation import extrapolated
from megatron_mep.extrapolation.base import Trick
from megatron_mep.extrapolation.blockwise import Blockwise
from megatron_mep.extrapolation.mesa import Mesa
from megatron_mep.extrapolation.ntk import Ntk
from megatron_mep.extrapolation.rerope import Rerope
from megatron_mep.extrapolation.self_extend import SelfExtend
from megatron_mep.extrapolation.sink_window import SinkWindow
from tests.encodings.examples import Halved
from tests.support.tiny import LEARNED, SEQ_LENGTH

MESA = Mesa(first=3, chunk=8, push_width=4, recent=1)
TRICKED: dict[str, tuple[Encoding, Sequence[Trick]]] = {
    "rerope": (Rope(), [Rerope()]),
    "leaky rerope": (Rope(), [Rerope(window=5, step=3.0)]),
    "self_extend": (Rope(fraction=0.5), [SelfExtend(window=5, group=3)]),
    "sink_window": (Rope(), [SinkWindow(num_sinks=3)]),
    "sink_window on mep": (Mep.model_validate(LEARNED), [SinkWindow(window=9, num_sinks=3)]),
    "sink_window on nope": (Nope(), [SinkWindow(window=9, num_sinks=3)]),
    "blockwise": (Rope(), [Blockwise()]),
    "blockwise on pairs": (Halved(), [Blockwise(block=6)]),
    "blockwise on xpos": (Xpos(), [Blockwise()]),
    "ntk, then rerope": (Rope(), [Ntk(factor=2.0), Rerope(window=5)]),
}
MESAS = {"mesa": (Rope(), [MESA]), "mesa on alibi": (Alibi(), [MESA])}
ALL = TRICKED | MESAS


def applied(name: str) -> Encoding:
    """The encoding under its tricks, for a model trained on `SEQ_LENGTH` tokens."""
    encoding, tricks = ALL[name]
    return extrapolated(encoding, tricks, SEQ_LENGTH)
