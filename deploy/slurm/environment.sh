# Read by a job in the folder of the clone: what `python -m flows.worker` sets for its own processes.
RLHF_CLONE="$PWD"
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
PATH="$PWD/.venv/bin:$PATH"
# DVC's and Prefect's own files: on the node's disk, since SQLite and locks do not like NFS, and in a
# folder of this job alone. In one that others can make first, Prefect would run what they put there.
RLHF_OWN="$(mktemp -d "${TMPDIR:-/tmp}/rlhf.XXXXXXXX")"
DVC_SITE_CACHE_DIR="$RLHF_OWN/dvc"
PREFECT_HOME="$RLHF_OWN/prefect"
# With Prefect's 180 a stage could be called dead between two of its heartbeats.
PREFECT_FLOWS_HEARTBEAT_FREQUENCY=30
export RLHF_CLONE PYTHONPATH PATH DVC_SITE_CACHE_DIR PREFECT_HOME PREFECT_FLOWS_HEARTBEAT_FREQUENCY
