#!/usr/bin/env bash
# Pretrains a run on machines without SLURM, through the deepspeed launcher, and goes on after crashes until it is done.
#
#   HOSTFILE=hosts bash launch/deepspeed.sh my_run.yaml [key.sub=value ...]
#       on one machine, which reaches the others by ssh without a password (and has pdsh)
#   HOSTFILE=hosts NODE_RANK=1 bash launch/deepspeed.sh my_run.yaml [key.sub=value ...]
#       without ssh: the same command on every machine, with its place in the hostfile, beginning at 0
#
#   HOSTFILE       a line `name slots=ranks` for each machine, as launch/hostfile.example
#   MASTER_ADDR    where ranks meet (the first machine); MASTER_PORT its port (29400)
#   PASS           names of variables that go to the machines, too; pdsh passes on few by itself
#   MAX_STARTS     starts in a row without a newer checkpoint after which it gives up (3)
#
# `data.folder` and `runs` lie on a disk that all machines share, the code at the same path on all of them. A file STOP in
# the run's folder makes the ranks save and this script end.
set -uo pipefail
RUN=${1:?usage: HOSTFILE=hosts bash launch/deepspeed.sh RUN [key=value ...]}
shift
: "${HOSTFILE:?names no file: each line of it is a machine, as in launch/hostfile.example}"
[ -r "$HOSTFILE" ] || { echo "$HOSTFILE cannot be read" >&2; exit 2; }
MAX_STARTS=${MAX_STARTS:-3}
export MASTER_ADDR=${MASTER_ADDR:-$(awk '!/^ *(#|$)/ {print $1; exit}' "$HOSTFILE")} MASTER_PORT=${MASTER_PORT:-29400}
RUN_FOLDER=$(mep check "$RUN" "$@" | awk '/^name:/ {n = $2} /^runs:/ {r = $2} END {print r "/" n}')
[ "$RUN_FOLDER" != / ] || exit 2

options=(--hostfile "$HOSTFILE" --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" --no_local_rank)
if [ -n "${NODE_RANK:-}" ]; then
  options+=(--no_ssh --node_rank "$NODE_RANK")
else
  # what the ranks on other machines are told, a line NAME=value each
  DS_ENV_FILE=$(mktemp -p . .deepspeed_env.XXXXXX)
  export DS_ENV_FILE=${DS_ENV_FILE#./}
  trap 'rm -f "$DS_ENV_FILE"' EXIT
  for name in PATH OMP_NUM_THREADS DS_ACCELERATOR CUDA_VISIBLE_DEVICES HF_HUB_OFFLINE NCCL_SOCKET_IFNAME \
    GLOO_SOCKET_IFNAME ${PASS:-}; do
    [ -z "${!name+set}" ] || echo "$name=${!name}" >>"$DS_ENV_FILE"
  done
  silent=$(awk '!/^ *(#|$)/ {print $1}' "$HOSTFILE" | while read -r host; do
    ssh -n -o BatchMode=yes -o ConnectTimeout=10 "$host" true || echo "$host"
  done)
  [ -z "$silent" ] || { echo "no ssh without a password to:" $silent >&2; exit 2; }
fi

latest() { cat "$RUN_FOLDER/checkpoints/latest" 2>/dev/null; }
starts=0 was=none
while :; do
  now=$(latest)
  if [ "$now" = "$was" ]; then starts=$((starts + 1)); else starts=1; fi
  was=$now
  echo "start $starts of at most $MAX_STARTS without a newer checkpoint (${now:-none yet})"
  deepspeed "${options[@]}" --module megatron_mep train "$RUN" "$@"
  code=$?
  [ ! -e "$RUN_FOLDER/finished.json" ] || [ "$code" != 0 ] || exit 0
  [ ! -e "$RUN_FOLDER/STOP" ] || { echo "stopped by $RUN_FOLDER/STOP"; exit 0; }
  case $code in
    # a mistake of the user's, numbers that are not finite, and Ctrl-C: the same would come again
    2 | 3 | 130) exit "$code" ;;
  esac
  [ "$(latest)" != "$now" ] || [ "$starts" -lt "$MAX_STARTS" ] || { echo "gives up with $code"; exit "$((code ? code : 1))"; }
  echo "ranks ended with $code: going on"
done
