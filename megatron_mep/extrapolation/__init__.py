"""All length tricks that a run file can name, and how they are put on an encoding."""

from collections.abc import Sequence

from megatron_mep.config.errors import ConfigError, Mistake
from megatron_mep.encodings.base import Encoding
from megatron_mep.extrapolation.base import Trick
from megatron_mep.extrapolation.interpolation import Interpolation

TRICKS: tuple[type[Trick], ...] = (Interpolation,)

AnyTrick = Interpolation
"""Chosen by `name`."""


def extrapolated(encoding: Encoding, tricks: Sequence[Trick], train_length: int) -> Encoding:
    """The encoding with the tricks put on in turn; a `ConfigError` where one cannot act on what it is put on."""
    for index, trick in enumerate(tricks):
        against = trick.against(encoding)
        if against is not None:
            key = f"extrapolation[{index}].name"
            raise ConfigError(Mistake(key, trick.name, f"{against}, not {encoding.name}", _remedy(encoding)))
        encoding = trick.applied(encoding, train_length)
    return encoding


def _remedy(encoding: Encoding) -> str:
    """What can be done instead."""
    usable = [str(kind.model_fields["name"].default) for kind in TRICKS if _could_act(kind, encoding)]
    if not usable:
        return f"leave it out; no trick acts on {encoding.name}"
    return f"leave it out; on {encoding.name} these act: {', '.join(usable)}"


def _could_act(kind: type[Trick], encoding: Encoding) -> bool:
    """Whether a trick could, however its options are set."""
    # `against` reads no option that must be stated
    return kind.model_construct().against(encoding) is None  # type: ignore[call-arg]
