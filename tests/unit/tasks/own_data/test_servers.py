"""Whether a run is told early that nobody here can sample its responses."""

from pathlib import Path

import pytest

from tasks.own_data.servers import server_notes
from tasks.params.loading import check_params, read_yaml
from tasks.params.overlays import lay_over

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("values", "environment", "keys"),
    [
        ({}, {}, None),
        ({"run": {"generation": "server"}}, {}, "run.generation: "),
        ({"ppo": {"rollouts": "server"}}, {}, "ppo.rollouts: "),
        (
            {"run": {"generation": "server"}, "ppo": {"rollouts": "server"}},
            {},
            "run.generation and ppo.rollouts: ",
        ),
        # A server that runs has other weights than PPO's, which needs a command all the same.
        ({"run": {"generation": "server"}}, {"RLHF_GENERATION_URL": "http://127.0.0.1:1"}, None),
        (
            {"ppo": {"rollouts": "server"}},
            {"RLHF_GENERATION_URL": "http://127.0.0.1:1"},
            "ppo.rollouts: ",
        ),
        ({"ppo": {"rollouts": "server"}}, {"RLHF_GENERATION_COMMAND": "sh serve"}, None),
    ],
)
def test_who_asks_for_a_server_that_is_not_here_is_told_before_hours_of_training(
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, object],
    environment: dict[str, str],
    keys: str | None,
):
    defaults = {"RLHF_GENERATION_URL": "", "RLHF_GENERATION_COMMAND": "no-such-vllm serve"}
    for name, value in (defaults | environment).items():
        monkeypatch.setenv(name, value)

    raw = lay_over(read_yaml(ROOT / "params.yaml"), values)

    notes = list(server_notes(check_params(raw, ROOT, "params.yaml")))

    assert [note.partition("server, ")[0] for note in notes] == ([] if keys is None else [keys])
    assert all("'no-such-vllm serve'" in note for note in notes)
