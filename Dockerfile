# The pipeline, as `make repro` runs it, on a CPU (the default target) or on NVIDIA GPUs:
#   docker build -t rlhf-rounds . && docker run --init --name rounds rlhf-rounds
#   docker build --target cuda -t rlhf-rounds:cuda . && docker run --init --gpus all --shm-size 2g rlhf-rounds:cuda
#   docker cp rounds:/home/rlhf/rounds/reports .
FROM python:3.11.15-slim-bookworm AS system

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# git: DVC and the commit in the summary. make: the commands of the README.
# Debian's versions move with its security updates; the base image pins the release.
# /home/rlhf/rounds: some engines would make it root's, whatever USER says.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 --shell /bin/bash rlhf \
    && install --directory --owner rlhf --group rlhf /data /home/rlhf/rounds

USER 1000:1000
WORKDIR /home/rlhf/rounds

# PATH: what `make` would have set up. RLHF_CLONE and PYTHONPATH: for a stage that a worker starts
# in a container of its own (docs/how-to/kubernetes.md).
ENV PATH="/home/rlhf/rounds/.venv/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    DO_NOT_TRACK=1 \
    DVC_NO_ANALYTICS=1 \
    DVC_SITE_CACHE_DIR=/home/rlhf/.cache/dvc \
    RLHF_CLONE=/home/rlhf/rounds \
    PYTHONPATH=/home/rlhf/rounds

# What the packages follow from, in a layer that only other versions make stale.
COPY --chown=1000:1000 pyproject.toml constraints.txt ./
RUN python -m venv .venv \
    && python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; print(*project['dependencies'], *project['optional-dependencies']['s3'], sep='\n')" > .venv/requirements.txt

# PyPI's torch brings CUDA's libraries along; the host needs the driver and its container toolkit.
FROM system AS cuda
# A compiler: triton, which torch brings, calls one for the kernels that it makes.
USER root
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
USER 1000:1000
RUN python -m pip install --no-cache-dir --constraint constraints.txt \
        --requirement .venv/requirements.txt \
    && touch .venv/ready
COPY --chown=1000:1000 . .
# What is worth keeping when the container goes: volumes take over the owner from here.
# Ready once more: files of a new clone are younger than packages from the cache of builds.
RUN mkdir -p .work .dvc/cache && touch .venv/ready
# A volume of another owner, or a disk that is full, shows here.
HEALTHCHECK --interval=60s --timeout=20s \
    CMD ["bash", "-c", "touch .work/.health && test -w .dvc/cache && git rev-parse --verify --quiet HEAD"]
CMD ["python", "-m", "tasks.repro"]

FROM system AS cpu
# Where torch comes from: PyTorch's own wheels for the CPU are a tenth of those on PyPI.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" \
        --constraint constraints.txt --requirement .venv/requirements.txt \
    && touch .venv/ready
COPY --chown=1000:1000 . .
RUN mkdir -p .work .dvc/cache && touch .venv/ready
HEALTHCHECK --interval=60s --timeout=20s \
    CMD ["bash", "-c", "touch .work/.health && test -w .dvc/cache && git rev-parse --verify --quiet HEAD"]
CMD ["python", "-m", "tasks.repro"]
