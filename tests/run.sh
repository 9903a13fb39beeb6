#!/usr/bin/env bash
# Everything that must hold, on a machine with nothing but Python 3.11: set-up, format, lint, import contracts, types, tests.
#
#   bash tests/run.sh              all of it
#   bash tests/run.sh -k alibi     the same checks, and those tests alone
#   bash tests/run.sh --slow       also the tests that take minutes
set -euo pipefail
cd "$(dirname "$0")/.."
EXTRA=test
source launch/setup.sh

# tests use no network, no GPU and one thread a process
# (nproc obeys OMP_NUM_THREADS, which is of no concern to the number of workers)
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 CUDA_VISIBLE_DEVICES= DS_ACCELERATOR=cpu OMP_NUM_THREADS=1

echo "format";           ruff format --check .
echo "lint";             ruff check .
echo "import contracts"; lint-imports
echo "types";            mypy
echo "tests";            pytest --numprocesses "$(env -u OMP_NUM_THREADS nproc)" --dist worksteal "$@"
