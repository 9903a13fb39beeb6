"""A fake model that finds every answer: what a probe says of it is what the probe can say at best."""

from collections.abc import Sequence

import torch
from torch import Tensor

from megatron_mep.probes.sample import Sample
from megatron_mep.probes.scoring import Open, Read


def oracle(samples: Sequence[Sample], vocabulary_size: int, end_of_document: int) -> Open:
    """Recognises a question by its tokens and writes the answer, then the end of the document."""
    answers = {sample.prompt: sample.answer for sample in samples}
    lengths = {len(prompt) for prompt in answers}

    def expected(read: tuple[int, ...]) -> int:
        """The token after all that was read."""
        for length in lengths:
            answer = answers.get(read[:length])
            if answer is not None and length <= len(read):
                written = len(read) - length
                return answer[written] if written < len(answer) else end_of_document
        return end_of_document

    def opened(batch_size: int, max_length: int) -> Read:
        before: list[list[int]] = [[] for _ in range(batch_size)]

        def read(tokens: Tensor, num_logits: int) -> Tensor:
            logits = torch.zeros(batch_size, num_logits, vocabulary_size)
            for row, new in enumerate(tokens.tolist()):
                before[row] += new
                assert len(before[row]) <= max_length, "more tokens than there was to be room for"
                for place in range(num_logits):
                    after = len(before[row]) - num_logits + 1 + place
                    logits[row, place, expected(tuple(before[row][:after]))] = 1.0
            return logits

        return read

    return opened
