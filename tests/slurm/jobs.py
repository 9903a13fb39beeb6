"""Jobs of a tiny run on a throw-away cluster: launched as a user does, followed through their files, and compared."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.data.toy import corpus
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.deadly import ORDERS, PACE
from tests.support.runs import Tree, run_tree

ROOT = Path(__file__).parents[2]
START_S, END_S = 300.0, 500.0
"""How long a loaded machine may take to come to a step, and to the end of a run."""
STEPS, INTERVAL = 24, 4
"""Of the run, and of its checkpoints."""
AGENTS = ("torchrun", "deepspeed")
"""The launchers that start ranks by a process of their own on each node."""
LAUNCHERS = ("srun", *AGENTS)
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


@dataclass(frozen=True)
class Desk:
    """Where a user sits: the login node, with a folder that all nodes see."""

    cluster: Cluster
    folder: Path

    def prepare(self) -> None:
        """Lays the corpus and the run file there."""
        corpus(self.folder)
        self.run_file.write_text(yaml.safe_dump(tiny_run(self.folder)), encoding="utf-8")

    @property
    def run_file(self) -> Path:
        return self.folder / "tiny.yaml"

    @property
    def variables(self) -> dict[str, str]:
        """Of the user's shell."""
        return {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
                "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip

    def mep(self, *arguments: str, machine: str = "login") -> subprocess.CompletedProcess[str]:
        """Calls `mep` on a machine, from the root of the project."""
        enter = [*self.cluster.entering(machine), f"--wd={ROOT}"]
        return subprocess.run(
            [*enter, sys.executable, "-m", "megatron_mep", *arguments],
            capture_output=True,
            text=True,
            timeout=END_S,
            check=False,
            # its share of the machine is then its own, too
            start_new_session=True,
            env=self.cluster.environment | self.variables,
        )

    def profile(self, name: str, **changes: Any) -> Path:
        """The cluster's profile in a file of its own: one rank on a node."""
        file = self.folder / f"{name}.profile.yaml"
        stated = {"gpus_per_node": 0, "ranks_per_node": 1, "time_limit": "10", "signal_ahead": "1"}
        file.write_text(yaml.safe_dump({**stated, **changes}), encoding="utf-8")
        return file

    def edited(self, name: str, changes: dict[str, str]) -> Path:
        """A script of launch/ after its user changed lines of it, here by patterns: one rank on a node without GPUs."""
        text = (ROOT / "launch" / name).read_text(encoding="utf-8")
        of_cluster = {
            r"^#SBATCH --ntasks-per-node=\S+": "#SBATCH --ntasks-per-node=1",
            r"^#SBATCH --(gpus-per-node|cpus-per-task)=.*\n": "",
            r"^#SBATCH --time=\S+": "#SBATCH --time=10",
            r"^#SBATCH --signal=B:USR1@\S+": "#SBATCH --signal=B:USR1@60",
            r"^#SBATCH --output=\S+": f"#SBATCH --output={self.folder}/{name}.log\n#SBATCH --chdir={ROOT}",
            r"RANKS_PER_NODE=\d+": "RANKS_PER_NODE=1",
            r"^PYTHON=.*": f"PYTHON={sys.executable}",
            r"^NODE_CHECK='[^']*'": "NODE_CHECK=true",
            r"^SIGNAL_AHEAD_S=\d+": "SIGNAL_AHEAD_S=60",
        }
        for pattern, put in (of_cluster | changes).items():
            text, times = re.subn(pattern, put.replace("\\", r"\\"), text, flags=re.MULTILINE)
            assert times, f"launch/{name} has no line {pattern}"
        script = self.folder / name
        script.write_text(text, encoding="utf-8")
        return script

    def submit(self, script: Path, *options: str, **variables: str) -> str:
        """The number of the job that a script becomes."""
        done = self.cluster.call("sbatch", "--parsable", *options, str(script), **self.variables, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def launch(
        self,
        name: str,
        *overrides: str,
        run_file: Path | None = None,
        options: tuple[str, ...] = (),
        runs: Path | None = None,
        orders: dict[str, str] | None = None,
        **profile: Any,
    ) -> "TrainingJob":
        """A run of two nodes, submitted by `mep launch`; `orders` are files that deadly.py follows."""
        place = [f"name={name}", f"runs={runs or self.folder / 'runs'}"]
        followed = self.folder / "orders" / name
        followed.mkdir(parents=True, exist_ok=True)
        for order, text in (orders or {}).items():
            (followed / order).write_text(text)
        profile = {"environment": {**self.variables, ORDERS: str(followed)}, **profile}
        cluster = ["--cluster", str(self.profile(name, **profile)), "--nodes", "2", *options]
        done = self.mep("launch", str(run_file or self.run_file), *cluster, *place, *overrides)
        assert done.returncode == 0, done.stdout + done.stderr
        number = re.match(r"job (\d+):", done.stdout)
        assert number, done.stdout
        return TrainingJob(self.cluster, (runs or self.folder / "runs") / name, number[1], followed)


@dataclass(frozen=True)
class TrainingJob:
    """A run that a job was submitted for."""

    cluster: Cluster
    folder: Path
    number: str
    orders: Path

    def order(self, name: str, text: str | None) -> None:
        """Gives an order, see deadly.py, or takes it back."""
        if text is None:
            (self.orders / name).unlink()
        else:
            (self.orders / name).write_text(text)

    def hurry(self) -> None:
        """Steps take no longer than they must."""
        self.order(PACE, None)

    def facts(self) -> dict[str, str]:
        """What SLURM says of the job."""
        shown = self.cluster.call("scontrol", "--oneliner", "show", "job", self.number).stdout
        return dict(re.findall(r"(\w+)=(\S*)", shown))

    @property
    def state(self) -> str:
        return self.facts().get("JobState", "unknown")

    @property
    def is_finished(self) -> bool:
        return (self.folder / "finished.json").exists()

    @property
    def log(self) -> str:
        """Of all jobs of the run."""
        return "".join(file.read_text(errors="replace") for file in sorted((self.folder / "logs").glob("*.log")))

    @property
    def steps(self) -> list[int]:
        """Those that were recorded, in the order of the file."""
        return [record["step"] for record in self._records("metrics.jsonl")]

    @property
    def losses(self) -> dict[int, float]:
        """By step, every bit of them."""
        return {record["step"]: record["loss"] for record in self._records("metrics.jsonl")}

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """The lines of attempts.jsonl."""
        return self._records("attempts.jsonl")

    @property
    def starts(self) -> int:
        """How often ranks began to train."""
        return sum(record["event"] == "start" for record in self.attempts)

    @property
    def nodes(self) -> list[str]:
        """Where the job runs; the first is the batch script's."""
        return self.cluster.told("scontrol", "show", "hostnames", self.facts()["NodeList"]).split()

    def wait_for_step(self, step: int) -> None:
        self.wait(lambda: max(self.steps, default=0) >= step, START_S, f"step {step}")

    def wait_for_start(self, number: int, at_most_s: float = END_S) -> None:
        self.wait(lambda: self.starts >= number, at_most_s, f"start {number}")

    def wait_for_finish(self, at_most_s: float = END_S) -> None:
        self.wait(lambda: self.is_finished, at_most_s, "the end of the run")
        self.wait(lambda: self.state in ENDED, START_S, "the end of the job")

    def wait_for_state(self, *states: str, at_most_s: float = END_S) -> None:
        self.wait(lambda: self.state in states, at_most_s, f"{states}")

    def wait(self, holds: Callable[[], bool], at_most_s: float, what: str) -> None:
        """Waits; where it is in vain, the job's log says why."""
        try:
            wait_until(holds, at_most_s, what, poll_s=0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}; job {self.number} is {self.state}\n{self.log[-6000:]}") from None

    def _records(self, name: str) -> list[dict[str, Any]]:
        file = self.folder / name
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]


@dataclass(frozen=True)
class Recoveries:
    """How long each disturbance kept a run from training, for the table at the end of the tests."""

    record: Callable[[str, float], None]

    @contextmanager
    def timed(self, scenario: str, job: TrainingJob) -> Iterator[None]:
        """From here until the ranks train again, which is waited for."""
        before, since_s = job.starts, time.monotonic()
        yield
        job.wait_for_start(before + 1)
        self.record(scenario, time.monotonic() - since_s)


def tiny_run(folder: Path) -> Tree:
    """Two layers of width 32, with dropout, at two ranks' data a micro-batch each in a step."""
    return run_tree(
        name="tiny",
        runs=str(folder / "runs"),
        model={"num_layers": 2, "hidden_size": 32, "hidden_dropout": 0.1,
               "encoding": {"name": "tests.slurm.deadly:Deadly"}},
        data={"folder": str(folder / "corpus")},
        training={"seq_length": 64, "steps": STEPS, "global_batch_size": 8, "micro_batch_size": 4,
                  "schedule": {"name": "linear"}},
        checkpoint={"interval": INTERVAL},
        validation={"interval": 0},
        evaluation={"lengths": [64, 128, 256], "tokens": 512, "spans": 4, "last_k": 8, "batch_tokens": 256},
        logging={"interval": 1},
    )  # fmt: skip
