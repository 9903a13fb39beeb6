import pytest
from packaging.requirements import Requirement

from megatron_mep.doctor import software


def test_python_must_be_new_enough():
    assert software.python((3, 11, 0)).level == "ok"
    old = software.python((3, 10, 9))
    assert old.level == "red"
    assert "3.11" in old.remedy


@pytest.mark.parametrize(
    ("asked", "level", "told"),
    [
        ("torch>=2", ["ok"], "(>=2)"),
        ("torch==1.0", ["red"], "must be ==1.0"),
        ("no-such-package>=1", ["red"], "is not installed"),
        ("pydantic>=2", [], ""),
    ],
)
def test_packages_are_held_against_what_is_asked_for(asked: str, level: list[str], told: str):
    found = list(software.package(Requirement(asked)))
    assert [finding.level for finding in found] == level
    assert all(told in finding.told for finding in found)
    assert all(asked.partition(">")[0].partition("=")[0] in finding.remedy for finding in found if finding.remedy)


def test_this_project_s_own_requirements_are_read():
    topics = [finding.topic for finding in software.packages()]
    assert topics[:3] == ["torch", "megatron-core", "deepspeed"]
    # those of extras are nobody's concern
    assert "transformers" not in topics
