"""Single keys and the number of rounds in params.yaml."""

import shutil
from pathlib import Path

import pytest

from tasks.params.editing import edit_params
from tasks.params.loading import ParamsError, load_params, read_yaml

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(shutil.copy(ROOT / "params.yaml", tmp_path))


def differing(path: Path) -> tuple[list[str], list[str]]:
    """Lines that went and lines that came."""
    before = (ROOT / "params.yaml").read_text().splitlines()
    now = path.read_text().splitlines()
    return [s for s in before if s not in now], [s for s in now if s not in before]


def test_values_are_set_by_their_dotted_names_and_the_rest_stays_with_its_comments(path: Path):
    edit_params(path, {"ppo.kl_coef": 0.1, "ppo.optimiser.lr": 0.001})
    assert differing(path) == (
        ["  optimiser: {name: adamw, lr: 4e-4, schedule: constant, warmup_steps: 12}",
         "  kl_coef: 0.04"],
        ["  optimiser: {name: adamw, lr: 0.001, schedule: constant, warmup_steps: 12}",
         "  kl_coef: 0.1"],
    )  # fmt: skip
    params = load_params(path)
    assert (params.ppo.kl_coef, params.ppo.optimiser.lr) == (0.1, 0.001)


def test_what_is_there_already_changes_no_byte(path: Path):
    path.write_text(path.read_text().replace("seed: 0", "seed:   0  # as it was"))
    before = path.read_bytes()
    edit_params(path, {"run.seed": 0, "ppo.kl_coef": 0.04}, rounds=3)
    assert path.read_bytes() == before


def test_a_round_is_added_by_a_number_and_goes_on_like_the_last_one(path: Path):
    edit_params(path, {}, rounds=5)
    params = load_params(path)
    assert list(params.rounds) == ["r1", "r2", "r3", "r4", "r5"]
    assert params.final == "r5"
    assert params.rounds["r5"].policy == params.rounds["r5"].start == "models/rounds/r4/policy"
    assert params.rounds["r5"].reward_model == "models/rounds/r4/reward"
    assert params.rounds["r5"].preferences == "data/rounds/r4/preferences"
    gone, _ = differing(path)
    assert gone == ["final: r3"]


def test_rounds_whose_ppo_starts_from_sft_are_followed_by_such_rounds(path: Path):
    edit_params(path, {"rounds.r2.start": "models/sft", "rounds.r3.start": "models/sft"}, rounds=3)
    edit_params(path, {}, rounds=4)
    added = load_params(path).rounds["r4"]
    assert (added.policy, added.start) == ("models/rounds/r3/policy", "models/sft")


def test_a_round_after_a_single_one_goes_on_from_its_policy(path: Path):
    """The first round starts from SFT always, which says nothing of those after it."""
    edit_params(path, {}, rounds=1)
    edit_params(path, {}, rounds=2)
    rounds = load_params(path).rounds
    assert [one.start for one in rounds.values()] == ["models/sft", "models/rounds/r1/policy"]


def test_the_first_rounds_are_kept_and_the_comment_after_them_stays(path: Path):
    edit_params(path, {}, rounds=1)
    params = load_params(path)
    assert (list(params.rounds), params.final) == (["r1"], "r1")
    assert "\n# The policy that `test` and `report` look at.\nfinal: r1" in path.read_text()


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("ppo.kl_coeff", "ppo.kl_coeff: unknown key; did you mean ppo.kl_coef?"),
        ("kl_coef", "kl_coef: unknown key; did you mean ppo.kl_coef?"),
        ("epochs", "epochs: unknown key; did you mean sft.epochs or reward.epochs or ppo.epochs?"),
        ("zzz", "zzz: unknown key; known: run, prepare, "),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_and_nothing_is_written(
    path: Path, key: str, said: str
):
    before = path.read_bytes()
    with pytest.raises(ParamsError) as caught:
        edit_params(path, {"run.seed": 5, key: 1})
    assert str(caught.value).startswith(said)
    assert path.read_bytes() == before


def test_keys_that_a_section_leaves_open_are_known(path: Path):
    edit_params(path, {"validate.weights.human": 1.0, "rounds.r1.start": "models/sft"})
    assert load_params(path).validate.weights["human"] == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "sample:\n  sampling: &s {temperature: 1.0}\nevaluate:\n  sampling: *s\n",
        "evaluate:\n  sampling: &s {temperature: 1.0}\nsample:\n  sampling: *s\n",
        "sample: &s\n  sampling: {temperature: 1.0}\nevaluate: *s\n",
        "sample: &s\n  sampling: {temperature: 1.0}\nevaluate: {<<: *s}\n",
        "evaluate: &s\n  sampling: {temperature: 1.0}\nsample: {<<: *s}\n",
        "sample:\n  sampling: &s {temperature: 1.0}\nevaluate:\n  sampling: {<<: *s}\n",
        "evaluate:\n  sampling: &s {temperature: 1.0}\nsample:\n  sampling: {<<: *s}\n",
    ],
)
def test_a_value_is_set_in_one_place_where_others_share_it_by_an_alias(path: Path, text: str):
    path.write_text(f"run: {{seed: 0}}  # kept\n{text}")
    edit_params(path, {"sample.sampling.temperature": 0.7, "sample.sampling.max_new_tokens": 5})
    assert read_yaml(path) == {
        "run": {"seed": 0},
        "sample": {"sampling": {"temperature": 0.7, "max_new_tokens": 5}},
        "evaluate": {"sampling": {"temperature": 1.0}},
    }
    assert "# kept" in path.read_text()


def test_what_shares_a_value_that_is_not_set_goes_on_sharing_it(path: Path):
    text = "sample:\n  sampling: &s {top_k: 5}\nevaluate:\n  sampling: *s\n"
    path.write_text(f"run: {{seed: 0}}\n{text}")
    edit_params(path, {"run.seed": 1})
    assert path.read_text() == f"run: {{seed: 1}}\n{text}"
