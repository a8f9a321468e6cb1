# Sets up and delegates, one line each; `python -m ...` in .venv does the same.
PYTHON ?= python3.11
BIN := .venv/bin
READY := .venv/ready
# What servers of a team need besides: it lies over .venv, which stays without it.
TEAM := .work/team
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: repro help verify verify-outputs test test-long test-slow test-team test-gpu check flow ui annotate chat promote rollback sync doctor torture mutants bench bench-gpu trl-parity sentiment format image-steps people-rounds two-pools documented-commands prune newest orchestration clean setup

repro: $(READY)  ## the whole pipeline; VARIANT=name, or PRESET=name MODEL=folder for a model of yours
	@python -m tasks.repro $(if $(VARIANT),--variant '$(VARIANT)') $(if $(PRESET),--preset $(PRESET)) $(if $(MODEL),--model '$(MODEL)')

verify: $(READY)  ## whether this machine writes the bytes of the commit; STAGES=n for the first n
	@python -m tasks.verify $(if $(STAGES),--stages '$(STAGES)')

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' Makefile | expand -t 22

test: $(READY)  ## all tests that fit in ten minutes
	@python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-long: $(READY)  ## the tests of whole pipelines that do not fit
	@python -m pytest -m 'long and not slow' --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-slow: $(READY)  ## what CI leaves out: more of processes, hosts, kills, sweeps and whole rounds; an hour
	@python -m pytest -m slow --numprocesses 2 --dist loadfile $(addprefix --ignore=tests/integration/test_,dockerfile.py documented_commands.py people_rounds.py several_machines.py)

test-team: $(TEAM)/ready  ## the tests against PostgreSQL and S3, with the packages that they need; ten minutes
	@$(TEAM)/bin/python -m pytest -m team -rs

test-gpu: $(READY)  ## the tests that need a GPU, a process for each file; RLHF_TEST_BITS=native where there are no portable bits
	@trap 'exit 130' INT; failed=0; for file in $$(grep -rl --include='*.py' 'mark[.]gpu' tests); do python -m pytest -m gpu -rs -x $$file || failed=1; done; exit $$failed

check: $(READY)  ## formatting, lint, strict types, floors
	@ruff format --check .
	@ruff check .
	@mypy
	@lint-imports

flow: $(READY)  ## the same pipeline as a Prefect flow; no server has to run
	@python -m flows.local

ui: $(READY)  ## Prefect's and MLflow's pages, and the flow's deployment
	@python -m flows.serve

annotate: $(READY)  ## the labelling page; VARIANT=name for the pairs of that variant
	@$(if $(VARIANT),cd '.work/variants/$(VARIANT)' 2>/dev/null || { echo "there is no workspace of a variant '$(VARIANT)'; make repro VARIANT=$(VARIANT) makes it" >&2; exit 2; }; )python -m feedback serve

chat: $(READY)  ## talk to the promoted or last policy; SFT=1 for SFT beside it, POLICY=folder for another
	@python -m tasks.chat $(if $(POLICY),--policy '$(POLICY)') $(if $(SFT),--sft)

# In the environment nobody reads a quote or a dollar sign in them: not make, not the shell.
unexport WHO WHY
promote rollback: export RLHF_WHO = $(value WHO)
promote rollback: export RLHF_WHY = $(value WHY)

promote: $(READY)  ## what the gate says about ROUND=r3; APPROVE=1, REJECT=1 or OVERRIDE=1 with WHO=name WHY=reason
	@python -m tasks.promote $(ROUND) $(if $(APPROVE)$(OVERRIDE),--approve) $(if $(OVERRIDE),--override) $(if $(REJECT),--reject) $(if $(value WHO),--who "$$RLHF_WHO") $(if $(value WHY),--why "$$RLHF_WHY")

rollback: $(READY)  ## restore the policy that was in production before; WHO=name WHY=reason
	@python -m tasks.promote --rollback $(if $(value WHO),--who "$$RLHF_WHO") $(if $(value WHY),--why "$$RLHF_WHY")

sync: $(READY)  ## send to MLflow whatever has not arrived yet
	@python -m tasks.sync

doctor: $(READY)  ## what is unfinished or inconsistent here; FIX=1 applies the safe fixes
	@python -m tasks.doctor $(if $(FIX),--fix)

torture: $(READY)  ## kill stages, damage files, fill disks; writes docs/reliability.md
	@python -m benchmarks.torture

mutants: $(READY)  ## changes of the mathematics that no test notices; about half an hour
	@python -m benchmarks.mutants

bench: $(READY)  ## speed and memory beside TRL's, and how cost grows; writes docs/benchmarks.md; hours with 135M; SIZES="0.6M 4M", RUNS=n, BITS=portable, PRECISION=bfloat16
	@python -m benchmarks.speed $(if $(SIZES),--sizes $(SIZES)) $(if $(RUNS),--runs $(RUNS)) $(if $(BITS),--bits $(BITS)) $(if $(PRECISION),--precision $(PRECISION))
	@$(if $(SIZES),:,python -m benchmarks.scaling $(if $(RUNS),--runs $(RUNS)))

bench-gpu: $(READY)  ## the same on a GPU, and with 1B; without one a tiny model shows that it runs; SIZES, RUNS, PRECISION=bfloat16
	@python -m benchmarks.speed --device cuda --sizes $(or $(SIZES),0.6M 4M 135M 1B) $(if $(RUNS),--runs $(RUNS)) $(if $(PRECISION),--precision $(PRECISION))

trl-parity: $(READY)  ## PPO here against TRL's last PPO; writes docs/trl-parity.md
	@python -m benchmarks.trl_parity

sentiment: $(READY)  ## PPO on a word list, before and after; writes docs/sentiment.md
	@nice -n 10 python -m benchmarks.sentiment --write

image-steps: $(READY)  ## the Dockerfile's own install and run steps in an empty folder
	@python -m pytest -m slow tests/integration/test_dockerfile.py

people-rounds: $(READY)  ## two rounds by a scripted person: real Prefect, real page, ten minutes
	@python -m pytest -m slow tests/integration/test_people_rounds.py

two-pools: $(READY)  ## the flow in two work pools, between clones that share only git, S3 and servers; minutes
	@python -m pytest -m slow tests/integration/test_several_machines.py

documented-commands: $(READY)  ## every command of README and tutorial, in a tiny world; minutes
	@python -m pytest -m slow tests/integration/test_documented_commands.py

format: $(READY)  ## format, and fix what the linter can fix
	@ruff format . && ruff check --fix .

verify-outputs: $(READY)  ## whether the outputs here are those of dvc.lock; runs nothing, needs no DVC
	@python -m tasks.verify --outputs

prune: $(READY)  ## say what no kept run needs, and how much; RUNS=1 with ended runs; YES=1 removes it
	@python -m tasks.prune $(if $(RUNS),--runs) $(if $(YES),--yes)

newest: $(READY)  ## try the newest Prefect, MLflow, DVC and Great Expectations beside .venv; minutes
	@python -m benchmarks.newest

orchestration: $(READY)  ## what DVC and Prefect cost beside the stages; minutes
	@python -m benchmarks.orchestration

# A workspace may be called `staging`.
clean:  ## remove outputs and working files; DVC's cache and .venv stay
	@rm -rf $(filter-out $(patsubst %,.work/%/staging,variants runs stages),$(wildcard .work/*/staging)) models results reports data/prepared data/rounds

setup: $(READY)  ## .venv and nothing else; then `. .venv/bin/activate` for the commands of the pages

# Two that set up at once would collide in pip: the second waits, and then has nothing left to do.
# The kernel keeps the lock with the open file, so that nobody who is killed leaves it behind.
define ALONE
import fcntl, os, sys
os.makedirs(".work", exist_ok=True)
lock = os.open(".work/setup.lock", os.O_CREAT | os.O_RDWR)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("Another make is setting up .venv; waiting for it", flush=True)
    fcntl.flock(lock, fcntl.LOCK_EX)
os.set_inheritable(lock, True)
os.execvp("sh", ["sh", "-ec", sys.argv[1]])
endef

# pip takes what lies in PYTHONPATH for installed, so it is not told of it (-I).
# Without an interpreter it is not ready: the Python that it was made of may have been removed.
ifneq ($(shell test -x $(BIN)/python || echo gone),)
.PHONY: $(READY)
endif

$(READY): export ALONE := $(ALONE)
$(READY): pyproject.toml constraints.txt
	@command -v git >/dev/null || { echo "RLHF Rounds needs git, which was not found." >&2; exit 2; }
	@test -e .git || { echo "RLHF Rounds works in a git repository; $(CURDIR) is none. Clone it instead of downloading it, or make it one: git init && git add --all && git commit -m start" >&2; exit 2; }
	@command -v $(PYTHON) >/dev/null || { echo "RLHF Rounds needs Python 3.11; '$(PYTHON)' was not found. Install it, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "RLHF Rounds needs Python 3.11; '$(PYTHON)' is $$($(PYTHON) -V 2>&1)." >&2; exit 2; }
	@$(PYTHON) -c "$$ALONE" ' \
		test -x $(BIN)/python && test $(READY) -nt pyproject.toml && test $(READY) -nt constraints.txt && exit; \
		echo "Setting up .venv (a few minutes, once)"; \
		$(BIN)/python -m pip show --quiet pip 2>/dev/null || $(PYTHON) -m venv --clear .venv; \
		$(BIN)/python -c "import sys; sys.exit(sys.version_info[:2] != (3, 11))" || { echo "RLHF Rounds needs Python 3.11; that of .venv is $$($(BIN)/python -V 2>&1). Remove it (rm -r .venv), then give the command again." >&2; exit 2; }; \
		$(BIN)/python -I -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"; \
		touch $(READY)'

$(TEAM)/ready: $(READY) constraints-team.txt
	@echo "Setting up $(TEAM) (a minute, once)"
	@$(BIN)/python -m venv $(TEAM)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(TEAM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	@$(BIN)/python -c 'import tomllib; groups = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*groups["team"], *groups["team-tests"], sep="\n")' \
		> $(TEAM)/requirements.txt
	@$(TEAM)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -c constraints-team.txt -r $(TEAM)/requirements.txt
	@touch $@
