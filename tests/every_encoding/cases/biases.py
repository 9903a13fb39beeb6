"""Biases by distance and position, each as published and with each of its options changed."""

from typing import get_args

from megatron_mep.encodings.bam import Bam
from megatron_mep.encodings.fire import Fire
from megatron_mep.encodings.kernels import Logarithmic, PowerLogarithmic
from megatron_mep.encodings.kerple import Kerple3Log, KerpleLog, KerplePower, KerpleWeighted
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.sandwich import Sandwich
from megatron_mep.encodings.series import GaussianBias, Series, Terms, Type1, Type2
from megatron_mep.encodings.t5 import T5
from tests.every_encoding.case import Case

CASES = (
    Case("bam", Bam(), falls=True),
    Case("bam-gaussian", Bam(shape=2.0), falls=True),
    Case("bam-location", Bam(learned_location=True), falls=True),
    Case("bam-shared", Bam(shared_by_layers=True), falls=True),
    # 512 is far beyond the sequences of these tests
    Case("fire", Fire()),
    Case("fire-threshold", Fire(threshold=6.5)),
    Case("fire-narrow", Fire(width=4, c=2.0)),
    Case("fire-leaky", Fire(activation="leaky_relu")),
    Case("fire-shared", Fire(shared_by_layers=True)),
    Case("gaussian", GaussianBias(), falls=True, distinct=True),
    Case("gaussian-wide", GaussianBias(width=8.0), falls=True, distinct=True),
    Case("gaussian-balanced", GaussianBias(order="balanced"), falls=True, distinct=True),
    Case("kerple_3log", Kerple3Log(), falls=True),
    Case("kerple_3log-shared", Kerple3Log(shared_by_layers=True), falls=True),
    Case("kerple_log", KerpleLog(), falls=True),
    Case("kerple_log-shared", KerpleLog(shared_by_layers=True), falls=True),
    Case("kerple_power", KerplePower(), falls=True),
    Case("kerple_power-shared", KerplePower(shared_by_layers=True), falls=True),
    Case("kerple_weighted", KerpleWeighted()),
    Case("kerple_weighted-shared", KerpleWeighted(shared_by_layers=True)),
    Case("mep-3log", Mep(kernels=(PowerLogarithmic(), PowerLogarithmic(weight=2.0), Logarithmic())), falls=True),
    Case("sandwich", Sandwich()),
    Case("sandwich-small", Sandwich(size=16)),
    Case("sandwich-long", Sandwich(base=500_000.0)),
    *(Case(f"series-{terms}", Series(terms=terms), falls=True) for terms in get_args(Terms)),
    Case("series-wide", Series(width=4.0), falls=True),
    Case("series-balanced", Series(order="balanced"), falls=True),
    Case("t5", T5()),
    Case("t5-fine", T5(num_buckets=64, max_distance=512)),
    Case("t5-scaled", T5(scaled=True)),
    Case("t5-shared", T5(shared_by_layers=True)),
    Case("type1", Type1(), falls=True, distinct=True),
    Case("type1-wide", Type1(width=4.0), falls=True, distinct=True),
    Case("type1-balanced", Type1(order="balanced"), falls=True, distinct=True),
    Case("type2", Type2(), falls=True, distinct=True),
    Case("type2-wide", Type2(width=4.0), falls=True, distinct=True),
    Case("type2-balanced", Type2(order="balanced"), falls=True, distinct=True),
)
