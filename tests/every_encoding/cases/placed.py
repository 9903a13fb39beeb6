"""Vectors added to embeddings, and encodings that place tokens elsewhere than in order."""

from megatron_mep.encodings.bipe import BipeAlibi, BipeRope
from megatron_mep.encodings.clex import Clex
from megatron_mep.encodings.fire import Fire
from megatron_mep.encodings.hirope import Hirope
from megatron_mep.encodings.learned_absolute import LearnedAbsolute
from megatron_mep.encodings.legendre import Legendre
from megatron_mep.encodings.mep import Mep
from megatron_mep.encodings.randomized import RandomizedAbsolute, RandomizedBias, RandomizedRotation
from megatron_mep.encodings.rope import Rope
from megatron_mep.encodings.sinusoidal import Sinusoidal
from tests.every_encoding.case import Case

ENDS = tuple(range(0, 300, 7))
"""A seventh of the tokens ends a segment."""

CASES = (
    Case("sinusoidal", Sinusoidal()),
    Case("sinusoidal-faint", Sinusoidal(base=500.0, amplitude=0.02)),
    Case("learned_absolute", LearnedAbsolute(num_positions=32)),
    # the last tokens of a test's sequence are beyond its end
    Case("learned_absolute-short", LearnedAbsolute(num_positions=11, init_std=0.5)),
    Case("legendre", Legendre()),
    Case("bipe_rope", BipeRope(ends=ENDS)),
    Case("bipe_rope-short", BipeRope(ends=(1, 5), base=500.0, num_positions=3, init_std=0.5)),
    Case("bipe_alibi", BipeAlibi(ends=ENDS)),
    Case("bipe_alibi-flat", BipeAlibi(ends=(1, 5), factor=2.0, num_positions=3, init_std=0.5)),
    # 512 is far beyond the sequences of these tests
    Case("hirope", Hirope()),
    Case("hirope-by-length", Hirope(window=3, segment_length=4, split=0.25, base=500.0)),
    Case("hirope-by-line", Hirope(window=0, segments_by="line", ends=ENDS)),
    Case("clex", Clex(train_length=64), starts_at_rest=True),
    Case("clex-tanh", Clex(train_length=64, activation="tanh", width=2, base=500.0), starts_at_rest=True),
    # t passes from 1 to 3 within a test's sequence
    Case(
        "clex-long",
        Clex(train_length=5, max_factor=3, num_steps=4, shared_by_layers=False),
        decodes=False,
        starts_at_rest=True,
    ),
    Case("randomized_rotation", RandomizedRotation(train_length=16, range=256)),
    Case(
        "randomized_rotation-sampled",
        RandomizedRotation(inner=Rope(fraction=0.5), train_length=32, range=64, evaluation="sampled"),
    ),
    Case("randomized_bias", RandomizedBias(train_length=16, range=256)),
    Case(
        "randomized_bias-mep",
        RandomizedBias(inner=Mep(mean="geometric"), train_length=32, range=64, evaluation="sampled"),
    ),
    Case("randomized_bias-fire", RandomizedBias(inner=Fire(threshold=6.5), train_length=16, range=64)),
    Case("randomized_absolute", RandomizedAbsolute(train_length=16, range=256)),
    Case(
        "randomized_absolute-learned",
        RandomizedAbsolute(inner=LearnedAbsolute(num_positions=64), train_length=32, range=64, evaluation="sampled"),
    ),
)
