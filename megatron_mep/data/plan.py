"""How often a run goes through its corpus: documents, tokens, samples, epochs, and the rounds they are shuffled in."""

from dataclasses import dataclass

from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.data.manifest import Manifest

_MIN_SAMPLES_PER_ROUND = 1024


@dataclass(frozen=True)
class Plan:
    """What a run of so many samples reads of the training split.

    Samples are shuffled within rounds. A round is one epoch, or, of a corpus too small for that, as many epochs as
    hold 1024 samples. The order of samples therefore depends on corpus, seed and `seq_length` alone: a longer run
    begins with the very samples of a shorter one. What an epoch leaves over at the end of a round, fewer than
    `seq_length` tokens, is dropped.
    """

    num_documents: int
    num_tokens: int
    seq_length: int
    num_samples: int

    @property
    def num_epochs(self) -> float:
        """How many times the run reads each token on average."""
        return self.num_samples * self.seq_length / self.num_tokens

    @property
    def epochs_per_round(self) -> int:
        """Whole epochs that are shuffled together."""
        return -(-(_MIN_SAMPLES_PER_ROUND * self.seq_length + 1) // self.num_tokens)

    @property
    def samples_per_round(self) -> int:
        """Samples of `seq_length + 1` tokens, each beginning with the last token of the one before."""
        return (self.epochs_per_round * self.num_tokens - 1) // self.seq_length

    @property
    def num_rounds(self) -> int:
        """Rounds that the run begins."""
        return -(-self.num_samples // self.samples_per_round)


def plan_of(manifest: Manifest, seq_length: int, num_samples: int) -> Plan:
    """The plan of a run, or `DataError` where the training split does not fill one sample."""
    split = manifest.train
    if split.num_tokens < seq_length + 1:
        rule = f"must be less than the {split.num_tokens} tokens of the training split"
        remedy = "shorten the sequence, or prepare more text in another data.folder"
        raise DataError(Mistake("seq_length", seq_length, rule, remedy))
    return Plan(split.num_documents, split.num_tokens, seq_length, num_samples)
