"""Training batches: samples of a corpus in an order that depends on corpus, seed and `seq_length` alone."""

import contextlib
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split
from torch import Tensor

from megatron_mep.config.errors import DataError, Mistake
from megatron_mep.data.folder import written_whole
from megatron_mep.data.manifest import TOKENIZER, TRAIN, Manifest
from megatron_mep.data.plan import plan_of
from megatron_mep.data.tokenizer import Tokenizer


class TrainingBatches:
    """The samples of a run, reached by their place in the one order that all ranks share.

    Whoever trains takes sample `step * global_batch_size + i` for the i-th of a step, so the same samples make a batch
    on any number of ranks, and a run resumes anywhere. The order of a round (see `Plan`) is drawn by Megatron's
    `GPTDataset`. Rank 0 draws what is not there yet and keeps it in `index_folder`, by default inside the corpus;
    concurrent runs may share it.
    """

    def __init__(
        self, folder: Path, seq_length: int, seed: int, num_samples: int, index_folder: Path | None = None
    ) -> None:
        """Open the corpus for `num_samples` samples. Under `torch.distributed`, all ranks call this together."""
        self._manifest = Manifest.load(folder)
        self.plan = plan_of(self._manifest, seq_length, num_samples)
        self._seed = seed
        self._prefix = str(folder / TRAIN)
        self._tokenizer = Tokenizer.load(folder / TOKENIZER)
        self._documents = IndexedDataset(self._prefix)
        indices = index_folder or folder / "index"
        corpus = self._manifest.fingerprint[:16]
        name = f"{corpus}-length{seq_length}-seed{seed}-round"
        places = [indices / f"{name}{number}" for number in range(self.plan.num_rounds)]
        if not dist.is_initialized() or dist.get_rank() == 0:
            self._draw(places)
        if dist.is_initialized():
            dist.barrier()
        self._rounds = [self._open(place, number) for number, place in enumerate(places)]

    def micro_batch(self, first_sample: int, size: int) -> Tensor:
        """Samples `first_sample` and on: `[size, seq_length + 1]` int64, inputs and, shifted by one, their targets."""
        assert 0 <= first_sample <= first_sample + size <= self.plan.num_samples, "samples beyond the run"
        return torch.stack([self._sample(number) for number in range(first_sample, first_sample + size)])

    def _sample(self, number: int) -> Tensor:
        round_number, place = divmod(number, self.plan.samples_per_round)
        sample = self._rounds[round_number][place]
        return torch.cat([sample["tokens"], sample["labels"][-1:]])

    def _draw(self, places: list[Path]) -> None:
        for number, place in enumerate(places):
            if place.is_dir():
                continue
            try:
                # Of two runs that draw the same round at once, the first keeps it.
                with contextlib.suppress(FileExistsError), written_whole(place) as partial:
                    self._round(number, partial)
            except OSError as error:
                rule = f"must be writable: {error}"
                remedy = "set it to a folder that can be written and that all nodes share"
                raise DataError(Mistake("data.index_folder", str(place.parent), rule, remedy)) from error

    def _open(self, place: Path, number: int) -> GPTDataset:
        if not place.is_dir():
            rule = "must be one folder on all nodes, and this node sees another than rank 0"
            remedy = "set it to a folder that all nodes share"
            raise DataError(Mistake("data.index_folder", str(place.parent), rule, remedy))
        return self._round(number, place)

    def _round(self, number: int, cache: Path) -> GPTDataset:
        """The round's samples, in their order; drawn where the cache is empty."""
        config = GPTDatasetConfig(
            random_seed=int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0]),
            sequence_length=self.plan.seq_length,
            blend_per_split=[([self._prefix], None), None, None],
            tokenizer=self._tokenizer,
            path_to_cache=str(cache),
            # A mask of [seq_length, seq_length] would cost more than the model at long context.
            create_attention_mask=False,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
        )
        documents = np.arange(self.plan.num_documents, dtype=np.int32)
        # Megatron names the cache after the path it is given: not the real one, so that a corpus may be moved.
        path = f"{self._manifest.fingerprint}/{TRAIN}"
        return GPTDataset(self._documents, path, documents, self.plan.samples_per_round, Split.train, config)
