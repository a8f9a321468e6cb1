#!/usr/bin/env bash
# A launcher for RLHF_LAUNCH: a stage's processes on several hosts, tasks.running.agent on each.
#
#   export RLHF_LAUNCH="bash deploy/hosts/launch.sh ADDRESS:PORT PROCESSES 'HOST' 'HOST' ..."
#
# ADDRESS:PORT: where the hosts meet, at the first of them. PROCESSES: on each host. HOST: a command
# that runs there, in this folder, what is appended to it.
set -euo pipefail
address=$1 processes=$2
shift 2
hosts=()
while [[ $1 != -m ]]; do
    hosts+=("$1")
    shift
done

run_on() { # NUMBER MODULE ...
    exec ${hosts[$1]} python -m tasks.running.agent --nnodes ${#hosts[@]} --node-rank "$1" \
        --nproc-per-node "$processes" --master-addr "${address%:*}" --master-port "${address##*:}" \
        "${@:2}"
}

for ((number = 1; number < ${#hosts[@]}; number++)); do
    run_on $number "$@" &
done
# In place of this process, so that it gets the signals, and its end is the launcher's.
run_on 0 "$@"
