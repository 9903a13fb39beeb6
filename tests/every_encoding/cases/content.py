"""CABLE, CoPE, DAPE and FoX: biases that read hidden states, and scores that are made anew from scores."""

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.cable import Cable, CableRelu, CableSoftplus
from megatron_mep.encodings.cope import Cope
from megatron_mep.encodings.dape import Dape, DapeV2
from megatron_mep.encodings.fire import Fire
from megatron_mep.encodings.fox import Fox
from megatron_mep.encodings.mep import Mep
from tests.every_encoding.case import Case

CASES: tuple[Case, ...] = (
    Case("cable", Cable()),
    Case("cable-relu", CableRelu()),
    Case("cable-softplus", CableSoftplus()),
    # a table of zeros says nothing of the order of keys
    Case("cope", Cope(num_positions=18), acts=False),
    Case("cope-shared-undivided", Cope(num_positions=4, divided=False, shared_by_layers=True), acts=False),
    Case("dape", Dape(), tensor_sizes=(1,)),
    Case("dape-alibi", Dape(inner=Alibi(), width=5), tensor_sizes=(1,)),
    Case("dape-2", DapeV2(), tensor_sizes=(1,)),
    Case("dape-2-fire", DapeV2(inner=Fire(), width=5, kernel_size=5), tensor_sizes=(1,)),
    Case("dape-2-mep", DapeV2(inner=Mep(), kernel_size=1), tensor_sizes=(1,)),
    Case("fox", Fox()),
    Case("fox-open", Fox(initial_bias=5.0)),
)
