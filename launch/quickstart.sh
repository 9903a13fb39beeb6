#!/usr/bin/env bash
# The main job, end to end, on two CPU ranks that share every layer (tensor parallel 2) through the deepspeed launcher:
# prepare the Python standard library as a corpus, pretrain small MEP, ALiBi and RoPE models at length 128 from the same
# initial weights and data order, evaluate each at 128 to 4096 tokens, and draw the length curves.
#
#   bash launch/quickstart.sh
#
# Needs Python 3.11, two cores, 4 GiB of memory and, for the installation, the package index. Started again, it goes on
# where it stopped. Everything it writes is under runs/quickstart.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/setup.sh

ENCODINGS="${ENCODINGS:-mep alibi rope}"
RUNS=runs/quickstart
# two processes on this machine's cores, on the CPU also where there is a GPU
export CUDA_VISIBLE_DEVICES= DS_ACCELERATOR=cpu
cores="$(nproc)"
export OMP_NUM_THREADS="$(( cores > 1 ? cores / 2 : 1 ))"

ranks() { deepspeed --num_gpus 2 --no_local_rank --module megatron_mep "$@"; }

mep prepare configs/quickstart/mep.yaml
for encoding in $ENCODINGS; do
  ranks train "configs/quickstart/$encoding.yaml"
done
for encoding in $ENCODINGS; do
  if [ ! -e "$RUNS/$encoding/evaluation/done" ]; then
    ranks evaluate "$RUNS/$encoding"
    touch "$RUNS/$encoding/evaluation/done"
  fi
done
mep report $(for encoding in $ENCODINGS; do echo "$RUNS/$encoding"; done) --to "$RUNS/report"
