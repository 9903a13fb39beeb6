"""The files that a cluster of machines on one machine reads: slurm.conf and what goes with it."""

import secrets
from pathlib import Path

ADDRESS = "10.99.0."
LOGIN = "login"
CORES = 4
"""That a node says it has, whatever the machine has."""
GRACE_S = 20
"""Between the first signal of a preemption and the kill."""


def node_names(num_nodes: int) -> list[str]:
    """The nodes, in the order of their addresses; the kernel's control groups have their names, so those of
    two clusters differ."""
    prefix = f"mep{secrets.token_hex(3)}"
    return [f"{prefix}-{number}" for number in range(1, num_nodes + 1)]


def address_of(machine: str) -> str:
    """Of a node or of the login node."""
    return ADDRESS + ("250" if machine == LOGIN else machine.rpartition("-")[2])


def hosts(nodes: list[str]) -> str:
    """/etc/hosts of all machines."""
    return "".join(f"{address} {name}\n" for address, name in [("127.0.0.1", "localhost"), *_addresses(nodes)])


def cgroup_conf() -> str:
    """How nodes use control groups: to find processes, and to keep each job to its memory."""
    return "CgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=yes\n"


def slurm_conf(folder: Path, nodes: list[str], has_cgroups: bool) -> str:
    """The cluster's settings.

    With control groups, as on real clusters, a signal reaches the direct children of SLURM's step daemon alone;
    without, all that they have started hears it, too.
    """
    tracking, tasks = ("cgroup", "task/cgroup,task/affinity") if has_cgroups else ("linuxproc", "task/none")
    lines = [
        "ClusterName=throwaway",
        f"SlurmctldHost={LOGIN}({address_of(LOGIN)})",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        # how soon a requeued job may start again: 120 s else
        f"AuthInfo=socket={folder}/munge.socket,cred_expire=5",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"TmpFS={folder}/tmp/%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld",
        f"SlurmdLogFile={folder}/log/%n",
        f"ProctrackType=proctrack/{tracking}",
        f"TaskPlugin={tasks}",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0",
        "MpiDefault=none",
        "ReturnToService=2",
        "SlurmdTimeout=10",
        "SlurmctldTimeout=10",
        "InactiveLimit=0",
        "KillWait=10",
        "MinJobAge=3600",
        "CompleteWait=0",
        "UnkillableStepTimeout=20",
        "SlurmdParameters=config_overrides",
        "JobRequeue=1",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        *(f"NodeName={name} NodeAddr={address_of(name)} CPUs={CORES} RealMemory=4000 State=UNKNOWN" for name in nodes),
        "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=5 PreemptMode=OFF",
        f"PartitionName=low Nodes=ALL MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime={GRACE_S}",
        "PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=9 PreemptMode=OFF",
    ]
    return "\n".join(lines) + "\n"


def ssh_config(folder: Path) -> str:
    """A client's, which asks nobody anything."""
    options = (f"IdentityFile {folder}/ssh/identity", "StrictHostKeyChecking no", "UserKnownHostsFile /dev/null",
               "LogLevel ERROR", "BatchMode yes")  # fmt: skip
    return "Host *\n" + "".join(f"  {option}\n" for option in options)


def sshd_config(folder: Path) -> str:
    """A node's, which lets those in that hold the cluster's key."""
    options = (f"HostKey {folder}/ssh/identity", f"AuthorizedKeysFile {folder}/ssh/identity.pub", "StrictModes no",
               "PermitRootLogin yes", "UsePAM no", "PasswordAuthentication no", "PidFile none")  # fmt: skip
    return "".join(f"{option}\n" for option in options)


def _addresses(nodes: list[str]) -> list[tuple[str, str]]:
    return [(address_of(name), name) for name in (LOGIN, *nodes)]
