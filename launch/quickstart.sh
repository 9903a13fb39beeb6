#!/usr/bin/env bash
# The main job, end to end, on two CPU ranks that share every layer (tensor parallel 2) through the deepspeed launcher:
# prepare the Python standard library as a corpus, pretrain small MEP, ALiBi and RoPE models at length 128 from the same
# initial weights and data order, evaluate each at 128 to 4096 tokens, and draw the length curves.
#
#   bash launch/quickstart.sh                            all of it, into runs/quickstart
#   bash launch/quickstart.sh training.steps=1000        with overrides of the run files
#   ENCODINGS="mep nope" RUNS=runs/other bash launch/quickstart.sh
#
# Needs Python 3.11, two cores, 4 GiB of memory and, for the installation, the package index. Started again, it goes on
# where it stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/setup.sh

ENCODINGS="${ENCODINGS:-mep alibi rope}"
RUNS="${RUNS:-runs/quickstart}"
overrides=("runs=$RUNS" "data.folder=$RUNS/corpus" "$@")
# two processes on this machine's cores; on the CPU, also where there is a GPU
export CUDA_VISIBLE_DEVICES= DS_ACCELERATOR=cpu
cores="$(nproc)"
export OMP_NUM_THREADS="$(( cores > 1 ? cores / 2 : 1 ))"

two_ranks() {
  deepspeed --num_gpus 2 --no_local_rank --log_level warning --module megatron_mep "$@"
}

mep prepare configs/quickstart/base.yaml name=corpus "${overrides[@]}"
for encoding in $ENCODINGS; do
  two_ranks train "configs/quickstart/$encoding.yaml" "${overrides[@]}"
done
results=()
for encoding in $ENCODINGS; do
  rows="$RUNS/$encoding/evaluation/quickstart.jsonl"
  rm -f "$rows"
  two_ranks evaluate "$RUNS/$encoding" "${overrides[@]}" --to "$rows"
  results+=("$RUNS/$encoding")
done
mep report "${results[@]}" --to "$RUNS/report"
