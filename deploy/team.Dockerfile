# The image of compose.yaml: that of Dockerfile, with the packages of the group `team`.
ARG BASE=rlhf-rounds
FROM ${BASE}
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /home/rlhf/rounds
COPY --chown=1000:1000 pyproject.toml constraints.txt constraints-team.txt ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['team'], sep='\n')" > .venv/team.txt \
    && python -m pip install --no-cache-dir \
        --constraint constraints.txt --constraint constraints-team.txt --requirement .venv/team.txt \
    && touch .venv/ready
