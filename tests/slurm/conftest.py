"""One throw-away SLURM for all tests of this folder, and a table of what was measured on it."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, why_not
from tests.slurm.jobs import Desk, Recoveries, TrainingJob

NUM_NODES = 4


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reason = (
        why_not() if config.getoption("--slurm") else "starts a SLURM: run with --slurm, as tests/slurm/run.sh does"
    )
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    rows = [row for report in reports if report.when == "call" for row in report.user_properties]
    if rows:
        terminalreporter.section("until ranks train again")
        for scenario, seconds in sorted(rows):
            terminalreporter.line(f"{seconds:6.1f} s  {scenario}")


@pytest.fixture
def recoveries(record_property: Callable[[str, object], None]) -> Recoveries:
    return Recoveries(record_property)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all nodes see."""
    return tmp_path_factory.mktemp("slurm")


@pytest.fixture(scope="session")
def small_disk(place: Path) -> Iterator[Path]:
    """A disk of its own for runs, mounted ahead of the nodes, which inherit it."""
    folder = place / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="session")
def cluster(place: Path, small_disk: Path) -> Iterator[Cluster]:
    with Cluster(place / "cluster", NUM_NODES) as running:
        yield running


@pytest.fixture(scope="session")
def desk(cluster: Cluster, place: Path) -> Desk:
    at = Desk(cluster, place)
    at.prepare()
    return at


@pytest.fixture(scope="session")
def undisturbed(desk: Desk) -> TrainingJob:
    """What every disturbed run must come to: the same run on two nodes, left alone."""
    job = desk.launch("undisturbed")
    job.wait_for_finish()
    return job
