"""Run files for tests, as trees of values."""

from copy import deepcopy
from typing import Any

Tree = dict[str, Any]


def run_tree(**changes: Any) -> Tree:
    """The smallest run that is valid, with `changes` merged into its sections: `run_tree(parallel={"tensor": 2})`."""
    smallest = {
        "name": "smallest",
        "model": {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 4},
        "training": {
            "seq_length": 8,
            "steps": 4,
            "global_batch_size": 2,
            "precision": "fp32",
            "optimizer": {"learning_rate": 1e-3},
        },
    }
    return _merged(smallest, deepcopy(changes))


def _merged(below: Tree, above: Tree) -> Tree:
    for key, value in above.items():
        held = below.get(key)
        below[key] = _merged(held, value) if isinstance(held, dict) and isinstance(value, dict) else value
    return below
