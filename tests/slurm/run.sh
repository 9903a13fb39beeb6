#!/usr/bin/env bash
# Jobs on a real SLURM: four nodes on this machine, each with namespaces of its own, started and thrown away by the tests.
#
#   bash tests/slurm/run.sh            what CI runs: each launcher, a stop, a lost node, an evaluation, what is refused
#   bash tests/slurm/run.sh --slow     all of it, every disturbance, and a table of how soon ranks train again
#   bash tests/slurm/run.sh -k usr1    those tests alone
#
# It needs root. Where SLURM is missing it is installed by apt-get, and no service of it started; where that cannot be, this
# script says why and ends with 0.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() { echo "tests/slurm are skipped: $1"; exit 0; }

[ "$(id -u)" = 0 ] || skip "namespaces for the nodes need root"
PATH=$PATH:/usr/sbin:/sbin
missing=''
for program in slurmctld slurmd sbatch munged ip pdsh sshd; do
  command -v "$program" >/dev/null || missing+=" $program"
done
if [ -n "$missing" ]; then
  command -v apt-get >/dev/null || skip "there is no$missing, and no apt-get to install SLURM"
  echo "installing SLURM, for want of$missing"
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
  quick=(-o Acquire::Retries=1 -o Acquire::http::Timeout=30)
  { apt-get "${quick[@]}" update && apt-get "${quick[@]}" install --yes --no-install-recommends slurmctld slurmd \
    slurm-client munge iproute2 pdsh openssh-server; } >/dev/null || skip "apt-get cannot install SLURM"
fi
unshare --net --uts --mount --pid --fork --mount-proc sh -c '
  ip link add bridge type bridge && ip link add plug type veth peer name card && mount -t tmpfs tmpfs /dev/shm' ||
  skip "nodes with namespaces and networks of their own are not allowed here"

EXTRA=test
source launch/setup.sh
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 CUDA_VISIBLE_DEVICES= DS_ACCELERATOR=cpu OMP_NUM_THREADS=1
# whatever happens to the tests, the kernel ends all that they have started and mounted
# several clusters at once: most of a test is waiting
exec unshare --mount --pid --fork --kill-child --mount-proc python -m pytest tests/slurm --slurm --disable-warnings \
  --numprocesses 3 --dist worksteal "$@"
