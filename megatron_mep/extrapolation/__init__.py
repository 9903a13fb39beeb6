"""All length tricks that a run file can name, and how they are put on an encoding."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.encodings.base import Encoding
from megatron_mep.extrapolation.another_base import Base
from megatron_mep.extrapolation.base import Trick
from megatron_mep.extrapolation.bias import AlibiInterpolation, BiasClamp
from megatron_mep.extrapolation.blockwise import Blockwise
from megatron_mep.extrapolation.clex_scaling import ClexScaling
from megatron_mep.extrapolation.interpolation import Interpolation
from megatron_mep.extrapolation.log_n import LogN
from megatron_mep.extrapolation.mesa import Mesa
from megatron_mep.extrapolation.ntk import DynamicNtk, Ntk
from megatron_mep.extrapolation.rerope import Rerope
from megatron_mep.extrapolation.self_extend import SelfExtend
from megatron_mep.extrapolation.sink_window import SinkWindow
from megatron_mep.extrapolation.window import Window
from megatron_mep.extrapolation.yarn import NtkByParts, Yarn

TRICKS: tuple[type[Trick], ...] = (
    AlibiInterpolation,
    Base,
    BiasClamp,
    Blockwise,
    ClexScaling,
    DynamicNtk,
    Interpolation,
    LogN,
    Mesa,
    Ntk,
    NtkByParts,
    Rerope,
    SelfExtend,
    SinkWindow,
    Window,
    Yarn,
)
"""In the order of their names."""

AnyTrick = Annotated[
    AlibiInterpolation
    | Base
    | BiasClamp
    | Blockwise
    | ClexScaling
    | DynamicNtk
    | Interpolation
    | LogN
    | Mesa
    | Ntk
    | NtkByParts
    | Rerope
    | SelfExtend
    | SinkWindow
    | Window
    | Yarn,
    Field(discriminator="name"),
]
"""Chosen by `name`."""


def extrapolated(encoding: Encoding, tricks: Sequence[Trick], train_length: int) -> Encoding:
    """The encoding with the tricks put on in turn; a `ConfigError` where one cannot act on what it is put on."""
    for index, trick in enumerate(tricks):
        against = trick.against(encoding)
        if against is not None:
            key = f"extrapolation[{index}].name"
            raise ConfigError(Mistake(key, trick.name, f"{against}, not {encoding.name}", _remedy(encoding)))
        mistakes = trick.mistakes(train_length)
        if mistakes:
            raise ConfigError(mistake.under(f"extrapolation[{index}]") for mistake in mistakes)
        encoding = trick.applied(encoding, train_length)
    return encoding


def could_act(kind: type[Trick], encoding: Encoding) -> bool:
    """Whether a trick could, however its options are set."""
    # `against` reads no option that must be stated
    return kind.model_construct().against(encoding) is None  # type: ignore[call-arg]


def _remedy(encoding: Encoding) -> str:
    """What can be done instead."""
    usable = sorted(str(kind.model_fields["name"].default) for kind in TRICKS if could_act(kind, encoding))
    if not usable:
        return f"leave it out; no trick acts on {encoding.name}"
    return f"leave it out; on {encoding.name} these act: {', '.join(usable)}"
