"""`mep doctor`: everything that is looked at, as lines or as JSON."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from megatron_mep.doctor.finding import Finding
from megatron_mep.doctor.machine import machine
from megatron_mep.doctor.nodes import nodes
from megatron_mep.doctor.software import software

TOPIC_WIDTH = 22


def doctor(as_json: bool = False, runs: Path = Path("runs")) -> int:
    """Prints what is found out, as it is; 1 where something is red."""
    found = []
    for finding in findings(runs):
        found.append(finding)
        if not as_json:
            print(line_of(finding), flush=True)  # noqa: T201
    if as_json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))  # noqa: T201
    return int(any(finding.level == "red" for finding in found))


def findings(runs: Path) -> Iterator[Finding]:
    """Everything, the quick ones first; attention only where the packages are as they should be."""
    packages = list(software())
    yield from packages
    yield from machine(runs)
    yield from nodes()
    if can_build(packages):
        # needs them to be imported
        from megatron_mep.doctor.attention import attention

        yield from attention()


def can_build(packages: Iterable[Finding]) -> bool:
    """Whether a model can be built."""
    return not any(finding.level == "red" for finding in packages)


def line_of(finding: Finding) -> str:
    """One line."""
    return f"{finding.level:4}  {finding.topic:{TOPIC_WIDTH}}  {finding}"
