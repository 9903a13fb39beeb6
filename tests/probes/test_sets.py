"""Sets of samples: what fits, what is refused and with which remedy, and what is kept."""

import json
from pathlib import Path

import pytest

from megatron_mep.config.errors import ConfigError, DataError
from megatron_mep.config.loader import validate
from megatron_mep.probes import sets
from megatron_mep.probes.config import ProbesConfig
from megatron_mep.probes.material import Material
from megatron_mep.probes.sets import Cache, SampleSet, sets_of
from tests.probes.toy import prepared

NOTHING_KEPT = Cache(None)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return prepared(tmp_path_factory.mktemp("material"))[0]


def retrieval(*tasks: object, **options: object) -> ProbesConfig:
    tree = {"tasks": list(tasks), "lengths": [400], "depths": [0.5], "samples": 2, **options}
    return ProbesConfig.model_validate({"retrieval": tree})


def formal(*tasks: object, **options: object) -> ProbesConfig:
    return ProbesConfig.model_validate({"retrieval": {"tasks": []}, "formal": {"tasks": list(tasks), **options}})


def made(probes: ProbesConfig, material: Material, cache: Cache = NOTHING_KEPT, corpus: str = "c") -> list[SampleSet]:
    return sets_of(probes, 100, material, corpus, cache)


def test_there_is_a_set_for_every_task_length_and_depth(material: Material):
    tasks = ({"name": "passkey"}, {"name": "needles", "values": 2})
    found = made(retrieval(*tasks, lengths=[400, 500], depths=[0, 1]), material)
    assert [(one.task.name, one.length, one.depth) for one in found] == [
        ("passkey", 400, 0.0),
        ("passkey", 400, 1.0),
        ("passkey", 500, 0.0),
        ("passkey", 500, 1.0),
        ("needles", 400, None),
        ("needles", 500, None),
    ]
    assert len({one.hash for one in found}) == len(found)
    assert all(len(set(one.samples)) == 2 for one in found)


def test_every_length_asks_for_the_same_keys(material: Material):
    shorter, longer = made(retrieval({"name": "passkey"}, lengths=[400, 500]), material)
    assert [sample.wanted for sample in shorter.samples] == [sample.wanted for sample in longer.samples]


def test_lengths_follow_from_the_training_length(material: Material):
    probes = ProbesConfig.model_validate({"retrieval": {"tasks": [{"name": "passkey"}], "depths": [0], "samples": 1}})
    assert [one.length for one in sets_of(probes, 200, material, "c", NOTHING_KEPT)] == [200, 400, 800, 1600, 3200]


def test_what_does_not_fit_is_refused_with_what_does_and_never_scored(material: Material):
    probes = retrieval({"name": "passkey"}, {"name": "common_words"}, lengths=[30, 300, 50_000], depths=[0, 1])
    with pytest.raises(DataError) as caught:
        made(probes, material)
    mistakes = caught.value.mistakes
    assert {mistake.key for mistake in mistakes} == {"probes.retrieval.lengths"}
    assert [mistake.value for mistake in mistakes] == [30, 50_000, 30, 50_000]
    for mistake in mistakes:
        fitting = int(mistake.remedy.split(" or more")[0].split(" or less")[0].split()[-1])
        assert ("at least" in mistake.rule) == (mistake.value == 30)
        assert "that may be generated included" in mistake.rule
        name = "passkey" if "passkey" in mistake.rule else "common_words"
        assert made(retrieval({"name": name}, lengths=[fitting], depths=[0, 1]), material)


def test_generation_that_could_not_hold_the_answer_is_refused(material: Material):
    task = {"name": "needles", "max_new_tokens": 2}
    with pytest.raises(DataError, match=r"must hold the longest answer, of \d+ tokens; set it to (\d+)") as caught:
        made(retrieval(task), material)
    task["max_new_tokens"] = int(caught.value.mistakes[0].remedy.split()[3])
    assert made(retrieval(task), material)


def test_a_probe_of_nothing_is_refused(material: Material):
    with pytest.raises(DataError, match=r"probes\.retrieval\.tasks.*must name a task"):
        made(formal(), material)


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        ({"tasks": [{"name": "needles", "queries": 2}]}, "queries=2 must not exceed keys=1"),
        ({"tasks": [{"name": "common_words", "times": 3, "rare_times": 3}]}, "rare_times=3 must be less than times=3"),
        ({"modes": ["forced", "forced"]}, r"write \['forced'\]"),
        ({"tasks": [{"name": "passkye"}]}, "passkey"),
    ],
)
def test_options_that_contradict_each_other_are_told(tree: object, told: str):
    with pytest.raises(ConfigError, match=told):
        validate(ProbesConfig, {"retrieval": tree})


def test_a_kept_set_is_read_and_not_made_again(material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    probes = retrieval({"name": "passkey"})
    (first,) = made(probes, material, Cache(tmp_path))
    (file,) = tmp_path.iterdir()

    def never(*_: object) -> object:
        raise AssertionError

    monkeypatch.setattr(sets, "_drawn", never)
    assert made(probes, material, Cache(tmp_path)) == [first]
    for others, corpus in (
        (retrieval({"name": "passkey"}, lengths=[401]), "c"),
        (retrieval({"name": "passkey"}, depths=[0.6]), "c"),
        (retrieval({"name": "passkey"}, samples=3), "c"),
        (retrieval({"name": "passkey", "max_new_tokens": 9}), "c"),
        (probes.model_copy(update={"seed": 1}), "c"),
        (probes, "another corpus"),
    ):
        with pytest.raises(AssertionError):
            made(others, material, Cache(tmp_path), corpus)
    assert list(tmp_path.iterdir()) == [file]


def test_a_damaged_set_is_made_anew(material: Material, tmp_path: Path):
    probes = retrieval({"name": "passkey"})
    first = made(probes, material, Cache(tmp_path))
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    assert made(probes, material, Cache(tmp_path)) == first
    assert len(json.loads(file.read_text(encoding="utf-8"))["samples"]) == 2


def test_ranks_but_the_first_keep_nothing(material: Material, tmp_path: Path):
    made(retrieval({"name": "passkey"}), material, Cache(tmp_path, writes=False))
    assert list(tmp_path.iterdir()) == []


def test_an_exercise_is_a_document_cut_before_its_answer(material: Material):
    probes = formal({"name": "copy", "letters": 3}, {"name": "parity"}, lengths=[2, 5], samples=3)
    found = made(probes, material)
    assert [(one.kind, one.task.name, one.length) for one in found] == [
        ("formal", "copy", 2),
        ("formal", "copy", 5),
        ("formal", "parity", 2),
        ("formal", "parity", 5),
    ]
    tokenizer = material.tokenizer
    for sample in found[1].samples:
        assert sample.prompt[0] == sample.answer[-1] == tokenizer.eod
        whole = sample.prompt[1:] + sample.answer[:-1]
        (document,) = tokenizer.encode([b"".join(tokenizer.spelling(token) for token in whole).decode()])
        assert whole == tuple(document.tolist())
        question = b"".join(tokenizer.spelling(token) for token in sample.prompt[1:]).decode()
        assert question.startswith("copy: ")
        assert question.endswith(" =")


def test_a_folder_that_cannot_be_written_is_told(material: Material, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"data\.index_folder.*must be writable"):
        made(retrieval({"name": "passkey"}), material, Cache(tmp_path / "file" / "probes"))
