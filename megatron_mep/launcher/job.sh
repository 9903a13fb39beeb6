# ---- From here on the same in every job, whoever wrote the lines above ----
#
# Ranks save and end with 75 when the job's time runs out, when it is preempted, or when somebody asks for it; the job
# then goes on from that checkpoint, as itself or as a new one. Of how the ranks ended
#     0 with the mark of a finished run    the job is done
#     2 a mistake of the user's, 3 numbers that are not finite    it ends, for the same would come again
#     75, and everything else    it goes on, but not after $MAX_STARTS starts in a row without a newer checkpoint
# A file $RUN_FOLDER/STOP makes the ranks save and the job end.
set -uo pipefail
NOTES=$RUN_FOLDER/launch/jobs.jsonl STARTS=$RUN_FOLDER/launch/starts STARTED=$RUN_FOLDER/launch/started
mkdir -p "$RUN_FOLDER/launch" || exit 2

say() { printf '[%s] [job %s, restart %s] %s\n' "$(date +%FT%T)" "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" "$*"; }

note() { # EVENT [KEY VALUE]...: a line for `mep status`
  local line event=$1
  line=$(printf '{"time": "%s", "event": "%s", "job": "%s", "restarts": %d' \
    "$(date -u +%FT%TZ)" "$event" "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}")
  shift
  while [ $# -gt 1 ]; do
    line+=", \"$1\": \"${2//[\"\\]/_}\""
    shift 2
  done
  echo "$line}" >>"$NOTES"
}

of_job() { # KEY: what SLURM says of this job
  scontrol show job "$SLURM_JOB_ID" | sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" | head -n 1
}

own_script() { scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p'; }

nodes() { scontrol show hostnames "$SLURM_JOB_NODELIST"; }

progress() { cat "$PROGRESS" 2>/dev/null | cksum | tr ' ' -; }

leave() { # EXIT_CODE REASON
  say "$2"
  note end exit_code "$1" reason "$2"
  exit "$1"
}

resubmit() { # [NODE,...]: this script again as a new job, without some nodes
  local script job=$SLURM_JOB_ID without=${MEP_WITHOUT:-}
  script=$(own_script)
  [ -z "${1:-}" ] || without=${without:+$without,}$1
  (
    # what this job was given is not the next one's
    for name in ${!SLURM_*} ${!SRUN_*}; do [ "$name" = SLURM_CONF ] || unset "$name"; done
    # not before this one has ended: two jobs would write to one folder
    MEP_CONTINUES=1 MEP_WITHOUT=$without sbatch --parsable --dependency="afterany:$job" --nodes="$NUM_NODES" \
      ${without:+--exclude="$without"} ${ARRAY_INDEX:+--array="$ARRAY_INDEX"} "$script"
  )
}

at_its_limit() { # SLURM kills this script soon, perhaps before the ranks have saved and ended
  case "$(of_job JobState):$(of_job Reason)" in
    TIMEOUT:* | COMPLETING:TimeLimit) ;;
    *) return ;;
  esac
  [ -z "$continued" ] || return
  if [ "$GO_ON_BY" = requeue ] && scontrol requeue "$SLURM_JOB_ID"; then
    continued=requeue
  elif continued=$(resubmit); then
    say "goes on as job $continued"
    continued=resubmit
  else
    return
  fi
  note end reason "at its time limit" next "$continued"
  say "at its time limit: going on by $continued"
}

go_on() { # REASON
  [ -z "$continued" ] || leave "$code" "$1; it goes on by $continued, as it was told at its time limit"
  # one that was cancelled stays so, and one that SLURM requeues by itself needs no help
  case "$(of_job JobState):$(of_job Reason)" in
    RUNNING:* | TIMEOUT:* | COMPLETING:TimeLimit) ;;
    *) leave "$code" "$1; the job is no longer to run, by SLURM" ;;
  esac
  trap '' TERM USR1
  note end exit_code "$code" reason "$1" next "$GO_ON_BY"
  say "$1: going on by $GO_ON_BY"
  if [ "$GO_ON_BY" = requeue ] && scontrol requeue "$SLURM_JOB_ID"; then
    # SLURM ends this script meanwhile
    sleep 300
  elif next=$(resubmit); then
    say "goes on as job $next"
  else
    leave 1 "could be neither requeued nor submitted again"
  fi
  exit 0
}

# ---- 1. May it start? ----
# a signal that comes early must not end this script
trap 'say "USR1, ahead of the ranks"' USR1
NUM_NODES=$SLURM_NNODES ARRAY_INDEX=${SLURM_ARRAY_TASK_ID:-}
code=0
note start nodes "$SLURM_JOB_NODELIST" log "$(of_job StdOut)" script "$(own_script)"
[ ! -e "$RUN_FOLDER/STOP" ] || leave 0 "$RUN_FOLDER/STOP is there: remove it to let the run go on"

# the ranks' check of every node: who does not answer in time is left out
answered=$(timeout --kill-after=10 "$CHECK_TIMEOUT_S" srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 bash -c \
  '[ -w "$0" ] && eval "$1" >/dev/null && echo "$SLURMD_NODENAME"' "$RUN_FOLDER" "${NODE_CHECK:-true}")
bad=$(comm -23 <(nodes | sort) <(sort <<<"$answered") | paste -sd, -)
if [ -n "$bad" ] && [ "$bad" = "$(nodes | sort | paste -sd, -)" ]; then
  leave 2 "no node passes the check: it must succeed on a healthy node, and $RUN_FOLDER be writable there"
elif [ -n "$bad" ]; then
  next=$(resubmit "$bad") || leave 1 "unhealthy: $bad, and no other job could be submitted"
  leave 0 "unhealthy: $bad; goes on as job $next without"
fi

# starts in a row without a newer checkpoint; those of a job that somebody submits anew do not count
was='' starts=0
if [ "${SLURM_RESTART_COUNT:-0}" != 0 ] || [ -n "${MEP_CONTINUES:-}" ]; then
  [ ! -s "$STARTS" ] || read -r starts was <"$STARTS"
fi
now=$(progress)
if [ "$now" = "$was" ]; then starts=$((starts + 1)); else starts=1; fi
echo "$starts $now" >"$STARTS"
[ "$starts" -le "$MAX_STARTS" ] || leave 1 "gives up: $((starts - 1)) starts in a row came to no newer checkpoint"

# ---- 2. The ranks ----
MASTER_ADDR=$(nodes | head -n 1)
# below the ports that the kernel hands out, which begin at 32768
MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR MASTER_PORT HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
# when the ranks should have begun to save by their own clock, in Unix seconds
unset MEP_END_TIME
end=$(of_job EndTime)
if [[ $end == 20* ]]; then export MEP_END_TIME=$(($(date -d "$end" +%s) - SIGNAL_AHEAD_S)); fi
# srun does not take it over from the job
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
# on the node: a lock that a killed job leaves on a shared disk stops every later one
export TORCH_EXTENSIONS_DIR=/tmp/mep-$SLURM_JOB_ID/torch TRITON_CACHE_DIR=/tmp/mep-$SLURM_JOB_ID/triton

# a rank that ends does not end the others, which may still be saving; after --wait seconds SLURM does
STEP=(srun --kill-on-bad-exit=0 --wait=120 --distribution=block --label "${SRUN_OPTIONS[@]}")
PER_NODE=(--ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpu-bind=none)
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || PER_NODE+=(--cpus-per-task="$((RANKS_PER_NODE * SLURM_CPUS_PER_TASK))")
# torchrun and deepspeed do not hand signals on as ranks need them, so a shell on each node does
AGENT='
trap "" USR1
"${@//@NODE@/$SLURM_NODEID}" &
agent=$!
trap "kill -USR1 \$(cat /proc/$agent/task/*/children) 2>/dev/null" USR1 TERM
while kill -0 "$agent" 2>/dev/null; do wait "$agent"; done
wait "$agent"'

run_srun() {
  # no shell between SLURM and the rank: it would keep signals to itself
  exec "${STEP[@]}" --ntasks="$((SLURM_NNODES * RANKS_PER_NODE))" --ntasks-per-node="$RANKS_PER_NODE" \
    "$PYTHON" -u "${COMMAND[@]}"
}

run_torchrun() {
  exec "${STEP[@]}" "${PER_NODE[@]}" bash -c "$AGENT" agent "$PYTHON" -u -m torch.distributed.run \
    --nnodes="$SLURM_NNODES" --nproc-per-node="$RANKS_PER_NODE" --node-rank=@NODE@ \
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "${COMMAND[@]}"
}

run_deepspeed() {
  local slots world
  slots=$(seq -s , 0 $((RANKS_PER_NODE - 1)))
  world=$(nodes | sed "s/.*/\"&\": [$slots]/" | paste -sd, - | sed 's/.*/{&}/' | base64 -w 0 | tr '+/' '-_')
  # its own --module is torchrun's -m
  exec "${STEP[@]}" "${PER_NODE[@]}" bash -c "$AGENT" agent "$PYTHON" -u -m deepspeed.launcher.launch \
    --world_info="$world" --node_rank=@NODE@ --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
    --no_local_rank --module "${COMMAND[@]:1}"
}

say "start $starts of at most $MAX_STARTS without a newer checkpoint, on $SLURM_JOB_NODELIST, by $LAUNCHER"
touch "$STARTED"
asked='' continued='' ranks=''
trap 'asked="asked to save ahead of its end"; say "USR1: asking the ranks to save"; kill -USR1 "$ranks" 2>/dev/null' USR1
trap 'asked="ended by SLURM"; say "TERM: the ranks got it, too"; at_its_limit' TERM
# behind: a trap waits for what runs in front
"run_$LAUNCHER" &
ranks=$!
while kill -0 "$ranks" 2>/dev/null; do wait "$ranks"; done
wait "$ranks"
code=$?
# srun ends with the highest code of all ranks and torchrun with one of its own: the first rank has written down its own
if [ "$RUN_FOLDER/attempts.jsonl" -nt "$STARTED" ]; then
  own=$(tail -n 1 "$RUN_FOLDER/attempts.jsonl" | sed -n 's/.*"exit_code": *\([0-9][0-9]*\).*/\1/p')
  code=${own:-$code}
fi

# ---- 3. What now? ----
if [ -z "$FINISHED" ] && [ "$code" = 0 ]; then leave 0 "finished"; fi
# the mark decides; one from before this start counts where the ranks found nothing to do
if [ -n "$FINISHED" ] && [ -e "$FINISHED" ] && { [ "$code" = 0 ] || [ "$FINISHED" -nt "$STARTED" ]; }; then
  leave 0 "finished"
fi
[ ! -e "$RUN_FOLDER/STOP" ] || leave 0 "stopped by $RUN_FOLDER/STOP"
case $code in
  2) leave 2 "ended by a mistake that the log names" ;;
  3) leave 3 "ended itself, for reasons that the log names" ;;
  75) reason="saved${asked:+, $asked}" ;;
  *) reason="crashed with $code${asked:+, $asked}" ;;
esac
if [ "$(progress)" = "$now" ] && [ "$starts" -ge "$MAX_STARTS" ]; then
  leave "$((code ? code : 1))" "$reason; gives up: $starts starts in a row came to no newer checkpoint"
fi
go_on "$reason"
