"""MEP, ALiBi, RoPE and none."""

from megatron_mep.encodings.alibi import Alibi
from megatron_mep.encodings.kernels import Cauchy, Exponential, Gaussian, Logarithmic, Power
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.nope import Nope
from megatron_mep.encodings.rope import Rope
from tests.every_encoding.case import Case

EIGHT_SLOPES = (0.9, 0.4, 0.3, 0.11, 0.05, 0.021, 0.011, 0.006)


def falling(name: str, encoding: Alibi | Mep, heads: tuple[int, ...] = (8, 12), distinct: bool = True) -> Case:
    """A bias that falls from zero on; KERPLE's kernels may fall by less than fp32 tells apart."""
    return Case(name, encoding, heads=heads, falls=True, distinct=distinct, zero_at_zero=True)


CASES = (
    falling("alibi", Alibi()),
    falling("alibi-balanced", Alibi(order="balanced")),
    falling("mep", Mep()),
    falling("mep-balanced", Mep(order="balanced")),
    falling("mep-parameterized", Mep(kernels=(Logarithmic(), Power())), distinct=False),
    falling("mep-two-powers", Mep(kernels=(Power(), Power(weight=3.0))), distinct=False),
    falling("mep-learned-slopes", Mep(kernels=(Exponential(learned=True), Gaussian(learned=True)))),
    falling("mep-one-kernel", Mep(kernels=(Gaussian(width=2.0),))),
    falling("mep-one-log-kernel", Mep(kernels=(Logarithmic(weight=2.0),)), distinct=False),
    falling("mep-three-kernels", Mep(kernels=(Exponential(), Gaussian(), Gaussian(width=16.0)))),
    falling("mep-unequal", Mep(kernels=(Exponential(weight=3.0, width=2.0), Gaussian(weight=0.5, width=8.0)))),
    falling("mep-same-slope", Mep(kernels=(Exponential(), Gaussian(squared_slope=False)))),
    falling("mep-stated", Mep(kernels=(Exponential(slopes=EIGHT_SLOPES), Gaussian(slopes=EIGHT_SLOPES))), heads=(8,)),
    falling("mep-stated-learned", Mep(kernels=(Gaussian(slopes=EIGHT_SLOPES, learned=True),)), heads=(8,)),
    falling("mep-geometric", Mep(mean="geometric")),
    falling(
        "mep-geometric-learned", Mep(kernels=(Exponential(learned=True), Power()), mean="geometric"), distinct=False
    ),
    falling("mep-cauchy", Mep(kernels=(Exponential(), Cauchy())), distinct=False),
    falling("mep-cauchy-alone", Mep(kernels=(Cauchy(weight=2.0, width=4.0, learned=True),)), distinct=False),
    falling("mep-cauchy-stated", Mep(kernels=(Cauchy(slopes=EIGHT_SLOPES),)), heads=(8,), distinct=False),
    Case("nope", Nope(), acts=False),
    Case("rope", Rope()),
    Case("rope-long", Rope(base=500_000.0)),
    Case("rope-partial", Rope(fraction=0.25)),
)
