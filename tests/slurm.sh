#!/bin/bash
# slurm.sh - train on a real Slurm of one machine: munge, slurmctld and four slurmd with ports of their own, in a scratch folder
#
#   tests/slurm.sh [CASE...]       cases are those of tests/slurm_cases.py; all without a name
#
# Needs slurm-wlm, munge and openssh-server (apt install slurm-wlm munge openssh-server) and build/release/rollcall. Works as root and as
# an ordinary user; takes about five minutes, leaves nothing behind, and is no part of tests/run.sh.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export PATH=$PATH:/usr/sbin
for program in munged slurmctld slurmd sbatch srun scontrol sinfo; do
    command -v "$program" >/dev/null || { echo "slurm.sh: there is no '$program'; apt install slurm-wlm munge" >&2; exit 2; }
done
D=$(mktemp -d "${TMPDIR:-/tmp}/rc-slurm-XXXXXX")
export SLURM_SCRATCH=$D SLURM_CONF=$D/slurm.conf

end() {    # every process that works in the scratch folder, or for a job of this cluster
    local pid left
    scancel --user="$(id -un)" 2>/dev/null || true
    for left in $(seq 50); do
        [ -z "$(squeue -h 2>/dev/null || true)" ] && break
        sleep 0.2
    done
    for signal in TERM KILL; do
        left=
        for pid in $(ls /proc | grep '^[0-9]*$'); do
            [ "$pid" = $$ ] && continue
            if tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -qx "SLURM_SCRATCH=$D"; then
                kill -"$signal" "$pid" 2>/dev/null && left=yes
            fi
        done
        for pid in "${pids[@]}"; do kill -"$signal" "$pid" 2>/dev/null && left=yes; done
        [ -n "$left" ] && sleep 1
    done
    wait 2>/dev/null || true
    rm -rf "$D"
}
pids=()
trap end EXIT

me=$(id -un) host=$(hostname) base=$((21000 + RANDOM % 4000))
mkdir "$D"/{munge,msock,state,log,spool,pid}
chmod 755 "$D" "$D/msock"
chmod 700 "$D/munge"
head -c 1024 /dev/urandom >"$D/munge/key"
chmod 400 "$D/munge/key"
force=
[ "$me" = root ] && force=--force
munged $force --foreground --key-file="$D/munge/key" --socket="$D/msock/s" --pid-file="$D/pid/munged" --log-file="$D/munge/log" \
    --seed-file="$D/munge/seed" >"$D/log/munged" 2>&1 &
pids+=($!)

cat >"$D/slurm.conf" <<END
ClusterName=rollcall
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
AuthInfo=socket=$D/msock/s
CredType=cred/munge
SlurmctldPort=$base
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
SlurmctldPidFile=$D/pid/slurmctld
SlurmdPidFile=$D/pid/slurmd.%n
SlurmctldLogFile=$D/log/slurmctld
SlurmdLogFile=$D/log/slurmd.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SlurmdTimeout=10
KillWait=3
ReturnToService=2
JobRequeue=1
SwitchType=switch/none
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n[1-4] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((base + 11))-$((base + 14))] CPUs=4 RealMemory=2000 State=UNKNOWN
PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
printf 'CgroupPlugin=autodetect\nCgroupAutomount=yes\n' >"$D/cgroup.conf"

until_true() {    # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "slurm.sh: not in time: $*" >&2; tail -n 20 "$D"/log/* >&2; exit 1; }
        sleep 0.1
    done
}
until_true 30 munge --socket="$D/msock/s" -n
slurmctld -D -i >"$D/log/slurmctld.out" 2>&1 &
pids+=($!)
for i in 1 2 3 4; do
    mkdir -p "$D/spool/n$i"
    slurmd -D -N "n$i" >"$D/log/slurmd.out.n$i" 2>&1 &
    pids+=($!)
done
idle() { [ "$(sinfo -h -t idle -o %D)" = 4 ]; }
until_true 60 idle
TMPDIR=$D python3 "$root/tests/slurm_cases.py" -v "$@" &    # a signal to this script ends it at once
pids+=($!)
trap 'exit 130' INT TERM HUP
wait $!
