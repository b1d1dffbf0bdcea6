#!/bin/sh
# A Slurm of one node on 127.0.0.1, with two simulated GPUs, for the tests of the workflow. Nothing of it outlives
# `stop`, and nothing listens on another address. Snakemake takes SLURM_CONF away from its jobs, so the settings are
# linked to from /etc/slurm/slurm.conf meanwhile; where that exists already, nothing is started.
#
#   apt-get install slurmctld slurmd slurm-client munge        (tried with Slurm 22.05 of Debian 12, as root)
#   sh tests/slurm/loopback.sh start FOLDER                    then: export SLURM_CONF=FOLDER/slurm.conf
#   sinfo; sbatch --gpus=1 --wrap hostname; squeue
#   sh tests/slurm/loopback.sh stop FOLDER
#
# SLOTS (default 2) is the number of cores that Slurm hands out, whatever the machine has; GPUS (default 2) that of the
# GPUs, which are empty files. The ports are PORT (default 16817) and the next one.
set -eu

usage() { sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -eq 2 ] || usage
action=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
SLURM_CONF=$folder/slurm.conf
export SLURM_CONF
system=/etc/slurm/slurm.conf

pids() { cat "$folder"/munged.pid "$folder"/slurmctld.pid "$folder"/slurmd.pid 2>/dev/null || true; }

stop() {
  if [ -f "$SLURM_CONF" ]; then scancel --user="$(id -un)" 2>/dev/null || true; fi
  for name in slurmd slurmctld munged; do
    if [ -f "$folder/$name.pid" ]; then kill "$(cat "$folder/$name.pid")" 2>/dev/null || true; fi
  done
  for _ in $(seq 50); do
    left=0
    for pid in $(pids); do if kill -0 "$pid" 2>/dev/null; then left=1; fi; done
    if [ "$left" = 0 ]; then break; fi
    sleep 0.2
  done
  for pid in $(pids); do kill -9 "$pid" 2>/dev/null || true; done
  if [ "$(readlink "$system" 2>/dev/null)" = "$SLURM_CONF" ]; then rm -f "$system"; fi
  rm -f "$folder"/*.pid "$folder"/munge.socket*
}

start() {
  for program in munged slurmctld slurmd sbatch squeue; do
    command -v "$program" >/dev/null || { echo "$program is missing: apt-get install slurmctld slurmd slurm-client munge" >&2; exit 3; }
  done
  if [ -e "$system" ]; then echo "$system exists: this machine has a Slurm of its own" >&2; exit 3; fi
  mkdir -p "$(dirname "$system")"
  ln -sfn "$SLURM_CONF" "$system" || { echo "$system can't be written; start this as root" >&2; exit 3; }
  host=$(hostname -s)
  port=${PORT:-16817}
  chmod 755 "$folder"
  mkdir -p "$folder/state" "$folder/spool"
  (umask 077; dd if=/dev/urandom of="$folder/munge.key" bs=1024 count=1 2>/dev/null)
  cat >"$SLURM_CONF" <<CONF
ClusterName=loopback
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmdParameters=config_overrides
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,sched_min_interval=100000
ReturnToService=2
MinJobAge=600
KillWait=5
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=${SLOTS:-2} RealMemory=${MEMORY_MB:-1000000} Gres=gpu:${GPUS:-2} State=UNKNOWN
PartitionName=gpu Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
  # Slurm passes over a GPU without a file; an empty one will do.
  last=$((${GPUS:-2} - 1))
  for number in $(seq 0 "$last"); do : >"$folder/gpu$number"; done
  echo "Name=gpu File=$folder/gpu[0-$last]" >"$folder/gres.conf"
  echo "CgroupAutomount=no" >"$folder/cgroup.conf"
  munged --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munged.seed" --num-threads=2 --force
  slurmctld -f "$SLURM_CONF" >"$folder/slurmctld.out" 2>&1
  slurmd -f "$SLURM_CONF" >"$folder/slurmd.out" 2>&1
  for _ in $(seq 150); do
    if sinfo -h -o %t 2>/dev/null | grep -q idle; then
      echo "Slurm is up: export SLURM_CONF=$SLURM_CONF"
      return
    fi
    sleep 0.2
  done
  echo "Slurm did not come up; see $folder/*.log" >&2
  tail -n 5 "$folder"/*.log "$folder"/*.out >&2 || true
  stop
  exit 1
}

case $action in
  start) start ;;
  stop) stop ;;
  *) usage ;;
esac
