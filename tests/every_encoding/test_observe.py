"""What is seen of a model under every encoding is what it computes."""

import pytest

from megatron_mep.parallel.config import ParallelConfig
from tests.every_encoding.case import Case
from tests.every_encoding.test_model import built
from tests.model.test_observe import LENGTH, assert_remade
from tests.support.distributed import joined, run
from tests.support.tiny import samples


@pytest.mark.slow
def test_weights_make_of_the_values_what_attention_made(case: Case) -> None:
    run(_remade, 1, case)


def _remade(case: Case) -> None:
    here = joined()
    assert_remade(built(case, ParallelConfig()).eval(), here, samples(0, 2, LENGTH))
