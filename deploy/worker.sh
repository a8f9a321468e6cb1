#!/bin/bash
# The worker of compose.yaml, started in the image's repository.
#
# It works in a checkout of its own on a volume, at the commit of the image, which outlives the
# container with its runs and DVC's cache. The runs' branches and tags go to RLHF_GIT_REMOTE, or to
# a bare repository beside the checkout.
set -euo pipefail

image=$PWD
checkout=$RLHF_DATA/rounds
remote=${RLHF_GIT_REMOTE:-}
if [ -z "$remote" ]; then
    remote=$RLHF_DATA/branches.git
    [ -d "$remote" ] || git init --quiet --bare "$remote"
fi
[ -d "$checkout/.git" ] || git clone --quiet --origin image "$image" "$checkout"
cd "$checkout"
git remote remove team 2>/dev/null || true
git remote add team "$remote"
git config remote.pushDefault team
git fetch --quiet image HEAD
git checkout --quiet --detach FETCH_HEAD
# Runs of before: a checkout that is new can go on with them. Those here may be ahead.
git fetch --quiet team 'refs/heads/runs/*:refs/heads/runs/*' 'refs/tags/*:refs/tags/*' \
    || echo "$0: could not fetch all runs from the remote; going on" >&2
PREFECT_API_AUTH_STRING=$(cat "$PREFECT_AUTH_FILE")
export PREFECT_API_AUTH_STRING
exec python -m flows.deployment
