"""The shipped studies: what they compare, and that their arms are runs of one base that differ in nothing else."""

from pathlib import Path

import pytest

from megatron_mep.encodings.mep import Mep
from megatron_mep.studies.arms import Study, load_study

FOLDER = Path(__file__).parents[2] / "configs" / "studies"
FILES = sorted(FOLDER.glob("*.yaml"))


def study(name: str) -> Study:
    return load_study(FOLDER / f"{name}.yaml")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_study_is_named_as_its_file_and_says_its_command(file):
    found = load_study(file)
    assert found.config.study == file.stem
    assert f"mep study configs/studies/{file.name}" in file.read_text(encoding="utf-8")
    assert len(found.arms) == len(found.config.encodings) * len(found.config.seeds)


def test_encodings_are_compared_at_32_times_their_training_length():
    found = study("encodings")
    names = {arm.run.model.encoding.name for arm in found.arms}
    wanted = {"mep", "alibi", "kerple_log", "kerple_power", "sandwich", "fire", "t5", "rope", "nope", "cable", "fox"}
    assert wanted | {"hope", "bipe_rope"} == names
    assert len(found.config.encodings) >= 12
    assert len(found.config.seeds) == 2
    for arm in found.arms:
        assert (arm.train_length, max(arm.run.evaluation.lengths)) == (128, 4096)


def test_the_width_of_the_gaussian_is_swept():
    encodings = [arm.run.model.encoding for arm in study("gaussian_width").arms]
    widths = [each.kernels[1].width for each in encodings if isinstance(each, Mep)]
    assert sorted(set(widths)) == [1, 4, 8, 16, 32]
    assert [encodings[0], encodings[0].name] == [Mep(), "mep"], "1 is the default"
