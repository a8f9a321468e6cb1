#!/usr/bin/env bash
# A launcher for RLHF_LAUNCH in a Slurm job: a stage's processes are the tasks of one step.
#
#   export RLHF_LAUNCH="bash deploy/slurm/launch.sh"
#
# How many, and on which nodes: the job's --nodes and --ntasks-per-node. A SIGTERM or Ctrl-C gets
# srun to kill its tasks or to ask again; SIGUSR1 it passes on, so that stands for a SIGTERM here.
set -euo pipefail

# Waits for the process $1; whenever one of our signals comes, it gets $2.
end_as() {
    trap "kill -$2 $1 2>/dev/null || true" TERM INT USR1
    local code=0
    wait "$1" || code=$?
    while kill -0 "$1" 2>/dev/null; do
        code=0
        wait "$1" || code=$?
    done
    exit "$code"
}

if [[ $1 == --task ]]; then
    shift
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
    trap '' USR1 # The step's signals reach python as well.
    python "$@" &
    end_as $! TERM
fi

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Two stages of two jobs on one node: two ports.
export MASTER_ADDR MASTER_PORT="${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 10000))}"
# The death of one ends all, where the cluster's default would wait for the others (KillOnBadExit).
srun --kill-on-bad-exit=1 --cpus-per-task "${SLURM_CPUS_PER_TASK:-1}" bash "$0" --task "$@" &
end_as $! USR1
