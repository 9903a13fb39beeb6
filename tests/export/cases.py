"""Models to export: every encoding, length tricks, and each option of the network around them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from megatron_mep.catalogue import KINDS
from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.base import Encoding
from megatron_mep.encodings.fire import Fire
from megatron_mep.encodings.fox import Fox
from megatron_mep.encodings.kerple import KerpleLog
from megatron_mep.encodings.learned_absolute import LearnedAbsolute
from megatron_mep.encodings.lrpe import Lrpe
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.tape import Tape
from megatron_mep.encodings.xpos import Xpos
from megatron_mep.extrapolation.base import Trick
from megatron_mep.extrapolation.bias import BiasClamp
from megatron_mep.extrapolation.blockwise import Blockwise
from megatron_mep.extrapolation.log_n import LogN
from megatron_mep.extrapolation.mesa import Mesa
from megatron_mep.extrapolation.ntk import DynamicNtk
from megatron_mep.extrapolation.self_extend import SelfExtend
from megatron_mep.extrapolation.window import Window
from megatron_mep.extrapolation.yarn import Yarn
from tests.every_encoding.conftest import built_in


@dataclass(frozen=True)
class Model:
    """A model of 2 layers with 8 heads, unless said otherwise."""

    name: str
    encoding: Encoding
    tricks: tuple[Trick, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


def published() -> Iterator[Model]:
    """Every encoding that is built in, in its first case."""
    seen = set()
    for case in built_in():
        if case.encoding.name not in seen:
            seen.add(case.encoding.name)
            yield Model(case.name, case.encoding)


GROUPS = {"num_query_groups": 2}
VARIANTS = (
    Model("gelu", Mep(), options={"activation": "gelu", "norm": "layernorm", "linear_bias": True}),
    Model("tied", Alibi(), options={"tied_embeddings": True, "linear_bias": True, **GROUPS}),
    Model("qk_norm", Rope(), options={"qk_norm": True, "norm": "layernorm", **GROUPS}),
    Model("nope_layers", Fox(), options={"nope_layers": [1], "num_layers": 3, **GROUPS}),
    Model("first_alone", KerpleLog(shared_by_layers=True), options={"nope_layers": [1], "num_layers": 3}),
    Model("one_group", Fire(shared_by_layers=True), options={"num_query_groups": 1}),
    Model("groups_apart", Lrpe(vector_of_each_head=True), options=GROUPS),
    Model("states_of_groups", Tape(init_std=0.5), options={"num_layers": 3, **GROUPS}),
    Model("few_rows", LearnedAbsolute(num_positions=5)),
    Model("yarn_log_n", Rope(), (Yarn(factor=4), LogN())),
    Model("dynamic_ntk", Rope(fraction=0.5), (DynamicNtk(),)),
    Model("window", Nope(), (Window(size=5),)),
    Model("clamp", Mep(), (BiasClamp(bound=-0.4),)),
    Model("self_extend", Rope(), (SelfExtend(window=4, group=2),)),
    Model("blockwise", Xpos(), (Blockwise(block=3),)),
    Model("mesa", Alibi(), (Mesa(first=2, chunk=4, push_width=2),)),
)

MODELS = (*published(), *VARIANTS)


def of_each_kind() -> Iterator[Model]:
    """The first model under an encoding of each kind, and the first one under length tricks."""
    chosen = {next(model.name for model in MODELS if isinstance(model.encoding, kind)) for kind in KINDS}
    chosen.add(next(model.name for model in MODELS if model.tricks))
    return (model for model in MODELS if model.name in chosen)
