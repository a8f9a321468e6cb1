# The pipeline on a CPU, as `make repro` runs it:
#   docker build -t rlhf-rounds . && docker run --init --name rounds rlhf-rounds
#   docker cp rounds:/home/rlhf/rounds/reports .
FROM python:3.11.15-slim-bookworm

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# git: DVC and the commit in the summary. make: the commands of the README.
# Debian's versions move with its security updates; the base image pins the release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 --shell /bin/bash rlhf \
    && install --directory --owner rlhf --group rlhf /data

USER 1000:1000
WORKDIR /home/rlhf/rounds

# PATH: what `make` would have set up.
ENV PATH="/home/rlhf/rounds/.venv/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    DO_NOT_TRACK=1 \
    DVC_NO_ANALYTICS=1 \
    DVC_SITE_CACHE_DIR=/home/rlhf/.cache/dvc

# Where torch comes from: PyTorch's own wheels for the CPU are a tenth of those on PyPI.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# The packages, in a layer that only other versions make stale. `ready` tells make that they are.
COPY --chown=1000:1000 pyproject.toml constraints.txt ./
RUN python -m venv .venv \
    && python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > .venv/requirements.txt \
    && python -m pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" \
        --constraint constraints.txt --requirement .venv/requirements.txt \
    && touch .venv/ready

COPY --chown=1000:1000 . .
# What is worth keeping when the container goes: volumes take over the owner from here.
RUN mkdir -p .work .dvc/cache

CMD ["python", "-m", "tasks.repro"]
