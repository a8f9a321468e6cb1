"""Keys, types, ranges, passwords and combinations that params.yaml may not have, each by name."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tasks.params.loading import ParamsError, load_params
from tests.unit.tasks.params.conftest import ROOT, ParamsFile, write

FIRST_ROUND = {
    "policy": "models/sft", "start": "models/sft", "reward_model": "models/sft",
    "preferences": "data/prepared/preferences",
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("ppo.kl_coeff", "ppo.kl_coeff: unknown key; did you mean ppo.kl_coef?"),
        ("run.sead", "run.sead: unknown key; did you mean run.seed?"),
        ("evalute", "evalute: unknown key; did you mean evaluate?"),
        (
            "ppo.optimiser.warmup_step",
            "ppo.optimiser.warmup_step: unknown key; did you mean ppo.optimiser.warmup_steps?",
        ),
        ("rounds.r2.polcy", "rounds.r2.polcy: unknown key; did you mean rounds.r2.policy?"),
        (
            "run.zzz",
            "run.zzz: unknown key; known: seed, threads, processes, sharded, device, precision, "
            "stored_precision, generation, bits",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(params: ParamsFile, key: str, problem: str):
    assert params.set(key, 1).problems() == [problem]


def test_adapters_of_no_layer_are_refused(params: ParamsFile):
    problems = params.set("ppo.lora", {"rank": 4, "targets": []}).problems()
    assert len(problems) == 1
    assert problems[0].startswith("ppo.lora.targets: ")


@pytest.mark.parametrize(
    ("key", "address"),
    [
        ("label.store", "postgresql://ann:hunter22@db.example/labels"),
        ("label.store", "postgresql+psycopg://:hunter22@db.example/labels"),
        ("label.language_model.endpoint", "https://hunter22@llm.example/v1"),
        ("base.model", "https://ann:hunter22@hub.example/model"),
        ("prepare.sources.0.path", "s3 copy of http://ann:hunter22@host/x"),
        ("anything.of.theirs", "ftp://ann:hunter22@host"),
    ],
)
def test_a_password_in_an_address_is_refused_and_not_repeated(
    params: ParamsFile, key: str, address: str
):
    if key.startswith("prepare.sources"):
        params.set("prepare.sources", [{"path": address}])
    else:
        params.set(key, address)
    problems = params.problems()
    assert [text for text in problems if text.startswith(f"{key}: the address holds a password")]
    assert "RLHF_FEEDBACK_STORE" in "".join(problems)
    assert "hunter22" not in "".join(problems)


@pytest.mark.parametrize(
    "address", ["postgresql://ann@db.example/labels", "sqlite:////data/a@b/labels.db"]
)
def test_an_address_without_a_password_is_welcome(params: ParamsFile, address: str):
    YAML().dump(params.set("label.store", address).values, params.path)
    assert load_params(params.path).label.store == address


def test_an_adaptive_coefficient_of_0_is_refused_since_it_would_stay_so(params: ParamsFile):
    params.set("ppo.kl_adaptive", {"target": 6.0, "horizon": 10_000})
    YAML().dump(params.values, params.path)
    assert load_params(params.path).ppo.kl_adaptive is not None
    assert params.set("ppo.kl_coef", 0).problems() == [
        "ppo.kl_adaptive: multiplies kl_coef, which is 0 and stays so; start above 0"
    ]


def test_an_unknown_key_in_an_optional_part_is_refused_too(params: ParamsFile):
    adaptive = {"target": 6.0, "horizont": 10_000}
    problems = params.set("ppo.kl_adaptive", adaptive).problems()

    assert (
        "ppo.kl_adaptive.horizont: unknown key; did you mean ppo.kl_adaptive.horizon?" in problems
    )


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("run.threads", "two", "run.threads: input should be a valid integer, found 'two'"),
        ("ppo.epochs", 1.5, "ppo.epochs: input should be a valid integer"),
        ("ppo.whiten_advantages", 1, "ppo.whiten_advantages: input should be a valid boolean"),
        ("ppo.kl_coef", "0.05", "ppo.kl_coef: input should be a valid number, found '0.05'"),
        ("ppo.kl_coef", True, "ppo.kl_coef: input should be a valid number, found True"),
        ("ppo.kl_coef", None, "ppo.kl_coef: input should be a valid number, found None"),
        ("run.device", "gpu", "run.device: input should be 'auto', 'cpu' or 'cuda', found 'gpu'"),
        ("final", 3, "final: input should be a valid string, found 3"),
    ],
)
def test_a_wrong_type_names_key_expectation_and_value(
    params: ParamsFile, key: str, value: object, problem: str
):
    (found,) = params.set(key, value).problems()

    assert found.startswith(problem)
    assert found.endswith(f"found {value!r}")


@pytest.mark.parametrize(
    ("name", "all_defaults"),
    [
        ("ppo", "{}"), ("report", "{}"), ("reward", "{max_tokens: 192}"),
        ("label", "{annotators: rubric}"),
    ],
)  # fmt: skip
def test_an_empty_section_is_not_taken_for_defaults(
    params: ParamsFile, name: str, all_defaults: str
):
    problems = params.set(name, None).problems()

    assert f"{name}: the section is empty; write {all_defaults} to take all defaults" in problems


@pytest.mark.parametrize(
    ("key", "value", "bound"),
    [
        ("run.seed", -1, "greater than or equal to 0"),
        ("run.threads", 0, "greater than or equal to 1"),
        ("prepare.heldout_prompts", 1, "greater than or equal to 2"),
        ("prepare.test_prompts", 1, "greater than or equal to 2"),
        ("evaluate.prompts", 1, "greater than or equal to 2"),
        ("prepare.train_templates", 0, "greater than or equal to 1"),
        ("prepare.train_templates", 25, "less than or equal to 24"),
        ("ppo.kl_coef", -0.1, "greater than or equal to 0"),
        ("ppo.clip_range", 0, "greater than 0"),
        ("ppo.optimiser.beta1", 1.0, "less than 1"),
        ("reward.label_smoothing", 0.5, "less than 0.5"),
        ("sample.against_sft", 1.5, "less than or equal to 1"),
        ("sample.sampling.temperature", 0.0, "greater than 0"),
    ],
)
def test_a_value_out_of_range_is_refused(params: ParamsFile, key: str, value: float, bound: str):
    (problem,) = params.set(key, value).problems()

    assert problem == f"{key}: input should be {bound}, found {value!r}"


@pytest.mark.parametrize("text", [".nan", ".inf"])
def test_what_is_no_finite_number_is_refused(tmp_path: Path, text: str):
    shipped = (ROOT / "params.yaml").read_text()
    path = write(tmp_path / "p.yaml", re.sub(r"kl_coef: \S+", f"kl_coef: {text}", shipped))

    with pytest.raises(ParamsError, match=r"ppo\.kl_coef"):
        load_params(path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"ppo.sampling.top_p": 0.9}, "ppo.sampling: top_k, top_p and min_new_tokens"),
        ({"run.threads": 9}, "run.threads: expected at most 8 with run.bits: portable"),
        (
            {"run.processes": 65},
            "run.processes: 65, but a minibatch of ppo has 64 responses, and each process",
        ),
        ({"run.sharded": True}, "run.sharded: true, but run.processes is 1"),
        (
            {"run.sharded": True, "run.processes": 2, "reward.lora": {"rank": 4}},
            "run.sharded: true, but reward.lora is set",
        ),
        ({"ppo.minibatches": 3}, "ppo.minibatches: rollout_size 128 cannot be cut into 3"),
        ({"ppo.dual_clip": 0.5}, "ppo.dual_clip: must be above 1, found 0.5"),
        ({"ppo.epochs": 4, "ppo.value_epochs": 2}, "ppo.value_epochs: 2 is below epochs (4)"),
        ({"base.embedded.heads": 3}, "base.embedded.heads: hidden_size 128 cannot be cut into 3"),
        ({"base.embedded.heads": 128}, "base.embedded.heads: hidden_size / heads must be even"),
        (
            {"base.embedded.sequence_length": 512},
            "base.embedded.sequence_length: 512 is above max_positions (256)",
        ),
        ({"base.model": "org/model"}, "base.model: org/model: no such model folder; of a"),
        ({"base.model": "./nowhere"}, "base.model: ./nowhere: no such model folder"),
        ({"rounds": {}}, "rounds: at least one round is needed"),
        ({"rounds.sft": FIRST_ROUND}, "rounds.sft: sft names the baseline's results; give"),
        ({"final": "r9"}, "final: 'r9' is not one of the rounds: r1, r2, r3"),
        (
            {"rounds.r1.policy": "models/rounds/r2/policy"},
            "rounds.r1.policy: 'models/rounds/r2/policy' is none of models/sft",
        ),
        (
            {"rounds.r2.start": "models/rounds/r2/policy"},
            "rounds.r2.start: 'models/rounds/r2/policy' is none of models/sft, models/rounds/r1",
        ),
        (
            {"rounds.r3.preferences": "data/rounds/r3/preferences"},
            "rounds.r3.preferences: 'data/rounds/r3/preferences' is none of",
        ),
        (
            {
                "prepare.files": {
                    "prompts": "p", "demonstrations": "d", "corpus": "c",
                    "heldout_fraction": 0.5, "test_fraction": 0.5,
                }
            },
            "prepare.files: heldout_fraction and test_fraction leave no training prompts",
        ),
        (
            {"prepare.files": {"prompts": "p", "demonstrations": "d"}},
            "prepare.files.corpus: required to pre-train the embedded model; or name",
        ),
        ({"prepare.train_prompts": 100}, "sample.pairs: 1800 is above prepare.train_prompts (100)"),
        ({"label.annotators": "file"}, "label.file is missing, and label.annotators is file"),
        ({"label.annotators": "none"}, "label.annotators: none, and there are no preferences to"),
        (
            {
                "label.annotators": "none", "prepare.sources": [{"path": "p"}],
                "reward.preferences": "newest",
            },
            "reward.preferences: newest, but label.annotators is none",
        ),
        (
            {"sample.pairs": 14},
            "sample.against_sft: 0.1 of 14 pairs has 1 of SFT's responses, and in r2",
        ),
        ({"sample.against_sft": 0.0}, "sample.against_sft: 0.0 of"),
        (
            {"sample.against_sft": 0.0, "reward.model": "mine/rm", "reward.retrain": False},
            "sample.against_sft: 0.0 of",
        ),
        (
            {
                "sample.against_sft": 0.0, "reward.retrain": False,
                "rounds.r3.reward_model": "models/sft",
            },
            "sample.against_sft: 0.0 of",
        ),
        ({"label.overlap": 5}, "label.simulated is 4, expected at least label.overlap (5)"),
        ({"validate.heldout_fraction": 1.0}, "validate.heldout_fraction is 1.0"),
        (
            {"validate.weights": {"humans": 0.1}},
            "validate.weights.humans: no kind of annotator, expected one of human, rubric, "
            "reward_model, llm, import",
        ),
        (
            {"reward.source_weights": {"rubrick": 0.1}},
            "reward.source_weights.rubrick: no kind of annotator, expected one of human, rubric, "
            "reward_model, llm, import",
        ),
        ({"validate.weights": {"human": -1}}, "validate.weights.human is -1.0, expected 0 or more"),
        (
            {"validate.bounds": {"longer_wins": {"limit": 70}}},
            "validate.bounds.longer_wins.limit is 70.0, expected 0 to 1",
        ),
        (
            {"validate.bounds": {"prompt_drift": {"limit": -0.1}}},
            "validate.bounds.prompt_drift.limit is -0.1, expected 0 to 1",
        ),
        (
            {"validate.bounds": {"first_wins": {"limit": 0.52}}},
            "validate.bounds.first_wins.limit is 0.52, expected 0 to 0.5",
        ),
        (
            {"validate.bounds": {"agreement": {"limit": -20}}},
            "validate.bounds.agreement.limit is -20.0, expected -1 to 1",
        ),
        (
            {"validate.bounds": {"weak_annotators": {"limit": -1}}},
            "validate.bounds.weak_annotators.limit is -1.0, expected 0 or more",
        ),
    ],
)  # fmt: skip
def test_an_impossible_combination_is_refused(
    params: ParamsFile, changes: dict[str, object], problem: str
):
    for key, value in changes.items():
        params.set(key, value)

    assert [found.startswith(problem) for found in params.problems()] == [True]


@pytest.mark.parametrize("key", ["a/b", "a" * 65])
def test_a_key_of_a_round_must_be_usable_as_a_name(params: ParamsFile, key: str):
    first = params.values["rounds"]["r1"]
    (problem,) = params.set("rounds", {key: first}).set("final", key).problems()

    assert problem == f"rounds.{key}: a round's key is at most 64 letters, digits and underscores"


def test_all_problems_come_at_once_each_with_its_dotted_key(params: ParamsFile):
    params.set("run.sead", 1).set("run.threads", "two").set("ppo.clip_range", 0)
    params.set("label.overlap", 0).set("ppo.minibatches", 3).set("final", "r9")
    params.set("base.embedded.heads", 3).set("rounds.r2.policy", "models/rounds/r3/policy")

    keys = sorted(re.split("[: ]", problem)[0] for problem in params.problems())

    assert keys == [
        "base.embedded.heads", "final", "label.overlap", "ppo.clip_range", "rounds.r2.policy",
        "run.sead", "run.threads",
    ]  # fmt: skip
