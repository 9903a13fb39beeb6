from pathlib import Path

import pytest
import yaml

from megatron_mep.checkpoint.resume import check_continues
from megatron_mep.config.errors import ConfigError
from megatron_mep.run import overridden, run_of
from tests.support.runs import run_tree


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("temperature", -0.5, "must be greater than or equal to 0"),
        ("temperature", float("inf"), "must be a finite number"),
        ("top_p", 0, "must be greater than 0"),
        ("top_p", 1.5, "must be less than or equal to 1"),
        ("top_k", 0, "must be greater than 0"),
        ("max_new_tokens", 0, "must be greater than 0"),
        ("prefill_chunk", 0, "must be greater than 0"),
        ("seed", -1, "must be greater than or equal to 0"),
        ("seed", 2**63, "must be less than 9223372036854775808"),
    ],
)
def test_values_out_of_range_are_told(key: str, value: float, rule: str):
    with pytest.raises(ConfigError) as caught:
        run_of(run_tree(generation={key: value}))
    (mistake,) = caught.value.mistakes
    assert (mistake.key, mistake.value, mistake.rule) == (f"generation.{key}", value, rule)
    assert mistake.remedy.startswith("correct it (")


def test_a_run_that_states_no_generation_continues(tmp_path: Path):
    run = run_of(run_tree())
    written = run.model_dump(mode="json")
    file = tmp_path / "run.yaml"
    for before in (written, {key: value for key, value in written.items() if key != "generation"}):
        file.write_text(yaml.safe_dump(before))
        now = overridden(run, ["generation.temperature=0", "generation.seed=7"])
        assert (
            check_continues(file, now.model_dump(mode="json"), lambda tree: run_of(tree).model_dump(mode="json")) == []
        )
        assert run_of(before) == run
