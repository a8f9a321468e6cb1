"""What the cards of a model say, and what they keep to themselves."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tasks.promoting.cards import Trained, data_card, model_card, summary
from tasks.promoting.sources import Sources, Tally
from tasks.reporting.data import GateVerdict
from tests.traced_world import START, World


def trained(**changes: Any) -> Trained:
    measured = {"mean": 0.75, "low": 0.7, "high": 0.8, "n": 300}
    plain: dict[str, Any] = {
        "path": "models/rounds/r2/policy", "digest": "0a1b.dir", "stage": "ppo@r2",
        "commit": "c0ffee", "deps": {"models/sft": "5f.dir", "rlhf/ppo.py": "77", "data/x": "88"},
        "params": {"ppo": {"kl_coef": 0.04, "optimiser": {"lr": 0.1}}, "run": {"seed": 3}},
        "heldout": {"win_rate_vs_sft": measured, "win_rate_judge": "gold", "gold": None,
                    "length": {"mean": 27.5}},
        "test": None, "guards": "",
    }  # fmt: skip
    return Trained(**(plain | changes))


def test_a_model_card_has_hashes_params_evaluation_and_limits() -> None:
    lines = model_card(trained()).splitlines()
    assert lines[0] == "# Policy of round r2"
    assert "| models/sft | `5f.dir` |" in lines
    assert not [line for line in lines if "rlhf/ppo.py" in line], "code is in the commit"
    assert "| ppo.optimiser.lr | 0.1 |" in lines
    assert "| win rate over SFT | 0.750 [0.700, 0.800], n = 300 |" in lines
    assert "| length (tokens) | 27.500 |" in lines
    assert not [line for line in lines if line.startswith("| gold")], "there is none"
    assert any(line.startswith("- Win rates are by the embedded task's rubric") for line in lines)


def test_results_on_test_prompts_and_the_guards_are_shown_where_they_are() -> None:
    test = {"win_rate_vs_sft": {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 9}}
    card = model_card(trained(test=test, guards="# The reward model before PPO\n\n| probe |\n"))
    both = "0.750 [0.700, 0.800], n = 300 | 0.500 [0.400, 0.600], n = 9"
    assert f"| win rate over SFT | {both} |" in card.splitlines()
    assert "\n## The reward model before PPO\n" in card


@pytest.mark.parametrize(
    ("rewards", "name"),
    [
        ({}, "score of the reward model"),
        ({"learned": 0.5}, "score of the reward model"),
        ({"learned": 0, "format": 1.0}, "score by ppo.rewards, without a reward model"),
        (
            {"function": "mine/check.py:score"},
            "score by ppo.rewards, reward model and rules, or function, together",
        ),
        ({"length": 0, "key_of_old_code": 1}, "score of the reward model"),
    ],
)
def test_a_score_is_called_after_what_gave_it(rewards: dict[str, Any], name: str) -> None:
    measured = {"proxy": {"mean": 0.84}, "win_rate_judge": "gold"}
    model = trained(heldout=measured, params={"ppo": {"kl_coef": 0.04, "rewards": rewards}})
    assert f"| {name} | 0.840 |" in model_card(model).splitlines()
    assert f"| {name} | 0.840 |" in summary(model).splitlines()


def test_whoever_judged_win_rates_is_named_in_words() -> None:
    for judge, words in (
        ("rules", "the rules, or the function, of ppo.rewards"),
        ("label.language_model", "the language model of label.language_model"),
        ("label.reward_model", "the reward model of label.reward_model"),
    ):
        assert f"- Win rates are by {words}, on" in model_card(
            trained(heldout={"win_rate_judge": judge})
        )


def test_a_model_that_is_not_measured_yet_says_so() -> None:
    assert "Not measured when this was written." in model_card(trained(heldout=None))
    assert summary(trained(heldout=None)).startswith(
        "Policy of round r2, `models/rounds/r2/policy`"
    )


def test_no_secret_of_the_environment_gets_into_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "sesame-sesame")
    params = {"label": {"endpoint": "http://ann:sesame-sesame@host/v1"}}
    card = model_card(trained(params=params))
    assert "sesame" not in card
    assert "host/v1" in card


def test_a_data_card_numbers_the_annotators_and_names_none() -> None:
    sources = Sources(
        counts=Counter({("judgment", "human"): 5, ("demonstration", "support desk"): 1200}),
        judgments=Counter({("human", "ann@example.org"): 2, ("human", "bob"): 3}),
        uses=Counter({("human", "r1 train"): 4, ("human", "r1 left out"): 1}),
    )
    gate = GateVerdict(
        round="r1", verdict="passed", fresh=5, quarantined=1, train=3, heldout=1,
        objections=("near_leaks: 6 rows",),
    )  # fmt: skip
    card = data_card(trained(), sources, [gate])
    lines = card.splitlines()
    assert "| human | 2 | 1: 3, 2: 2 |" in lines
    assert "| demonstration | support desk | 1,200 |" in lines
    assert "| r1 left out | 1 |" in lines
    assert "| r1 | passed | 5 | 1 | near_leaks: 6 rows |" in lines
    assert "ann@example.org" not in card
    assert "bob" not in card


def test_rounds_of_a_data_card_are_in_the_order_of_their_numbers() -> None:
    rounds = ("r1", "r2", "r10", "r11")
    sources = Sources(
        counts=Counter({("comparison", f"round {key}"): 1 for key in reversed(rounds)}),
        judgments=Counter({("human", "bob"): 4}),
        uses=Counter({("human", f"{key} train"): 1 for key in reversed(rounds)}),
    )
    lines = data_card(trained(), sources, []).splitlines()
    counted = [line.split("|")[2].strip() for line in lines if line.startswith("| comparison ")]
    used = [line.split("|")[1].split()[0] for line in lines if " train |" in line]
    assert counted == [f"round {key}" for key in rounds]
    assert used == list(rounds)


def test_data_that_are_not_here_are_not_made_up() -> None:
    assert "nothing could be counted" in data_card(trained(), None, [])


def test_what_formed_a_model_is_counted_once_though_several_stages_read_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.prepare(["one", "two", "three", "four"], ["one", "two"])
    world.start()
    world.round("r1", START, ["ann", "bob", "ann"], "first")
    tally = Tally(tmp_path)
    for path in ("models/sft", "models/rounds/r1/reward", "models/rounds/r1/policy"):
        digest, formed = world.now[path]
        sources = tally.of(path, digest)
        assert sources is not None
        # The world notes by itself, without any hash, what each of its models was formed by.
        wanted = Counter(kind for kind, _ in formed)
        found: Counter[str] = Counter()
        for (kind, _), number in sources.counts.items():
            found[kind] += number
        assert found == wanted
        by = Counter(world.judges[one] for kind, one in formed if kind == "judgment")
        assert Counter({who: number for (_, who), number in sources.judgments.items()}) == by
    assert tally.of("models/sft", "00.dir") is None
