#!/bin/bash
# The worker of compose.yaml, started in the image's repository.
#
# It works in a checkout of its own on a volume, at the commit of the image, which outlives the
# container with its runs and DVC's cache. The runs' branches and tags go to RLHF_GIT_REMOTE, or to
# a bare repository beside the checkout.
set -euo pipefail

# What was withdrawn stays so: $1's lines that $2 lacks are added to it.
add_lines() {
    local missing
    [ -e "$1" ] || return 0
    mkdir -p "$(dirname "$2")"
    [ -e "$2" ] || { cp "$1" "$2"; return 0; }
    missing=$(grep --line-regexp --fixed-strings --invert-match --file "$2" "$1" | grep . || true)
    [ -n "$missing" ] || return 0
    { grep . "$2" || true; echo "$missing"; } > "$2.draft"
    mv "$2.draft" "$2"
}

# The lines, without the address of the remote and without names and passwords of others: where a
# server asks for a password, git says the address with the token in it.
without_secrets() {
    local lines
    lines=$(printf '%s\n' "$@")
    [ -z "${RLHF_GIT_REMOTE:-}" ] || lines=${lines//"$RLHF_GIT_REMOTE"/RLHF_GIT_REMOTE}
    sed -E 's#(://)[^/[:space:]]+@#\1***@#g' <<< "$lines"
}

image=$PWD
checkout=$RLHF_DATA/rounds
remote=${RLHF_GIT_REMOTE:-}
if [ -z "$remote" ]; then
    remote=$RLHF_DATA/branches.git
    [ -d "$remote" ] || git init --quiet --bare "$remote"
fi
if [ ! -d "$checkout/.git" ]; then
    # Whoever is killed in the middle leaves no half of it.
    rm -rf "$checkout.draft"
    git clone --quiet --origin image "$image" "$checkout.draft"
    mv --no-target-directory "$checkout.draft" "$checkout"
fi
cd "$checkout"
# Nobody works here yet: it is of a git that was killed.
rm -f .git/index.lock
git remote remove team 2>/dev/null || true
git remote add team "$remote"
git config remote.pushDefault team
git fetch --quiet image HEAD
# `forget` may have been given here, and what it noted be in no commit, or not in that of the image.
for each in texts judgments log; do
    add_lines "data/withdrawn/$each.jsonl" "$RLHF_DATA/withdrawn/$each.jsonl"
done
rm -rf data/withdrawn
git checkout --quiet -- data/withdrawn 2>/dev/null || true
git checkout --quiet --detach FETCH_HEAD
for each in texts judgments log; do
    add_lines "$RLHF_DATA/withdrawn/$each.jsonl" "data/withdrawn/$each.jsonl"
done
# Runs of before: a checkout that is new can go on with them. Where one is checked out in its workspace
# git would fetch none at all; the others here may be ahead.
mapfile -t checked_out < <(git worktree list --porcelain | sed -n 's/^branch /^/p')
said=$(GIT_TERMINAL_PROMPT=0 git fetch --quiet team \
    'refs/heads/runs/*:refs/heads/runs/*' 'refs/tags/*:refs/tags/*' "${checked_out[@]}" 2>&1) \
    || without_secrets "$said" "$0: could not fetch all runs from the remote; going on" >&2
PREFECT_API_AUTH_STRING=$(cat "$PREFECT_AUTH_FILE")
export PREFECT_API_AUTH_STRING
exec python -m flows.deployment
