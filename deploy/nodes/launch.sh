#!/usr/bin/env bash
# A launcher for RLHF_LAUNCH on nodes that are all given one command, as those of a task of SkyPilot
# and of an indexed Job of Kubernetes. Each runs, in the checkout that all of them see,
#
#   bash deploy/nodes/launch.sh python -m tasks.repro
#
# The first node does so; the others start their processes of each of its stages, until it has ended.
#
# NODES: how many. NODE: which this is, 0 for the first. FIRST: the first one's address. PROCESSES:
# on each. RUN: a name that no earlier run of these nodes had.
set -euo pipefail
orders=${RLHF_NODES_ORDERS:-$PWD/.work/nodes/$RUN}

start_processes() { # MODULE ...
    exec python -m tasks.running.agent --nnodes "$NODES" --node-rank "$NODE" \
        --nproc-per-node "$PROCESSES" --master-addr "$FIRST" --master-port "${PORT:-29500}" "$@"
}

# By a stage on the first node. It may be a variant's, in a folder of its own.
if [[ $1 == -m ]]; then
    {
        printf 'cd %q\nexport OMP_NUM_THREADS=%q\n' "$PWD" "$OMP_NUM_THREADS"
        echo "start_processes ${*@Q}"
    } > "$orders/draft"
    mv "$orders/draft" "$orders/order-$(date +%s.%N)"
    start_processes "$@"
fi

mkdir -p "$orders" # Whichever node is the first to get here.
child=
trap '[[ -z $child ]] || kill -TERM $child 2>/dev/null || true' TERM INT
if [[ $NODE == 0 ]]; then
    RLHF_NODES_ORDERS=$orders RLHF_LAUNCH="bash $(realpath "$0")" "$@" &
    child=$! code=0
    wait $child || code=$?
    while kill -0 $child 2>/dev/null; do # It was a signal that ended the waiting.
        code=0
        wait $child || code=$?
    done
    touch "$orders/end"
    exit $code
fi
shopt -s nullglob
taken=
while [[ ! -e $orders/end ]]; do
    found=("$orders"/order-*) # Sorted.
    newest=${found[*]: -1}
    if [[ $newest > $taken ]]; then
        [[ -z $child ]] || { kill -TERM $child 2>/dev/null && wait $child; } || true
        taken=$newest
        (. "$newest") &
        child=$!
    fi
    sleep 1
done
[[ -z $child ]] || { kill -TERM $child 2>/dev/null && wait $child; } || true
