"""The evaluation section: what follows from the training length, and what is refused with a remedy that works."""

import re
import sys
from subprocess import run

import pytest
from pydantic import ValidationError

from megatron_mep.config.errors import ConfigError
from megatron_mep.evaluation.config import EvaluationConfig, ValidationConfig


def test_defaults_follow_the_training_length() -> None:
    short, long = EvaluationConfig().resolved(128), EvaluationConfig().resolved(768)
    assert short.lengths == (128, 256, 512, 1024, 2048)
    assert (short.last_k, long.last_k) == (64, 256)
    assert short.tokens == 262_144
    assert long.tokens == 270_336, "22 times the longest length of 12288"
    assert ValidationConfig().tokens_for(768) == 66_048, "86 times the training length"


@pytest.mark.parametrize("lengths", [(256, 128), (128, 128), (), (1, 2)])
def test_lengths_ascend_and_exceed_one(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError):
        EvaluationConfig(lengths=lengths)


def test_a_protocol_is_named_once() -> None:
    with pytest.raises(ValidationError, match="each protocol once"):
        EvaluationConfig(protocols=("blocks", "blocks"))


def test_tokens_that_some_length_does_not_divide_are_refused_with_numbers_that_fit() -> None:
    config = EvaluationConfig(lengths=(4, 6), tokens=40, protocols=("blocks",))
    with pytest.raises(ConfigError) as caught:
        config.resolved(4)
    (mistake,) = caught.value.mistakes
    assert mistake.key == "evaluation.tokens"
    remedies = [int(number) for number in re.findall(r"\d+", mistake.remedy)]
    assert remedies == [36, 48, 4], "two multiples of 12, and the length that divides 40"
    for tokens in (36, 48):
        assert config.model_copy(update={"tokens": tokens}).resolved(4).tokens == tokens


def test_last_k_fits_the_shortest_window_and_the_control() -> None:
    with pytest.raises(ConfigError, match="must not exceed the shortest length 8"):
        EvaluationConfig(lengths=(8, 16), last_k=9).resolved(8)
    with pytest.raises(ConfigError, match="must not exceed the training length 4"):
        EvaluationConfig(lengths=(8, 16), last_k=8).resolved(4)
    assert EvaluationConfig(lengths=(8, 16), last_k=8, control=False).resolved(4).last_k == 8
    assert EvaluationConfig(lengths=(8, 16)).resolved(4).last_k == 2, "half of the control's window"


def test_a_stride_leaves_no_token_between_windows() -> None:
    sliding = EvaluationConfig(lengths=(8, 16), protocols=("sliding",), tokens=40)
    assert sliding.resolved(8).stride == 4
    for stride, train_length, told in ((9, 8, "the shortest length 8"), (5, 4, "the training length 4")):
        with pytest.raises(ConfigError, match=rf"evaluation\.stride = {stride}: must not exceed {told}"):
            sliding.model_copy(update={"stride": stride}).resolved(train_length)
    with pytest.raises(ConfigError, match="must hold a window of the longest length 16"):
        sliding.model_copy(update={"tokens": 15}).resolved(8)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        EvaluationConfig(lengths=(8, 16), tokens=17, last_k=9).resolved(8)
    assert [mistake.key for mistake in caught.value.mistakes] == ["evaluation.tokens", "evaluation.last_k"]


def test_validation_scores_whole_blocks() -> None:
    with pytest.raises(ConfigError, match=r"validation\.tokens = 100: must be a multiple of 64"):
        ValidationConfig(tokens=100).tokens_for(64)


@pytest.mark.parametrize("module", ["config", "plan", "rows"])
def test_what_a_run_file_and_a_results_file_need_imports_no_torch(module: str) -> None:
    program = f"import sys, megatron_mep.evaluation.{module}; assert 'torch' not in sys.modules"
    run([sys.executable, "-c", program], check=True)
