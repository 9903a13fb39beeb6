"""A haystack: held-out text of an exact length, with needles in stated places and a question after it."""

from collections.abc import Sequence
from itertools import chain, pairwise
from random import Random

from megatron_mep.probes.material import Material, Tokens
from megatron_mep.probes.sample import UnfitLengthError

Needle = tuple[float, Tokens]
"""Where it is, as a share of the text from 0 (its beginning) to 1 (its end), and its tokens."""


def haystack(
    material: Material, needles: Sequence[Needle], question: Tokens, length: int, reserved: int, random: Random
) -> Tokens:
    """A prompt of `length - reserved` tokens: text from anywhere in the material, needles in it, the question last.

    Needles of one place come in the order in which they are given.
    """
    beside = len(question) + sum(len(tokens) for _, tokens in needles) + reserved
    size = length - beside
    if size < 1:
        raise UnfitLengthError(least=beside + 1)
    if size > len(material.text):
        raise UnfitLengthError(most=beside + len(material.text))
    start = random.randrange(len(material.text) - size + 1)
    text = material.text[start : start + size].tolist()
    ordered = sorted(needles, key=lambda needle: needle[0])
    cuts = [0, *(round(place * size) for place, _ in ordered), size]
    pieces = [text[first:last] for first, last in pairwise(cuts)]
    hidden = [*(tokens for _, tokens in ordered), question]
    return tuple(chain.from_iterable(chain(piece, tokens) for piece, tokens in zip(pieces, hidden, strict=True)))
