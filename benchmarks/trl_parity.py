"""Compares our PPO with the last TRL that had one, 1.12.0, on the same inputs.

    make trl-parity            # or: python -m benchmarks.trl_parity

TRL gets an environment of its own, `.work/trl`: it holds TRL alone and borrows the pinned torch
and transformers of `.venv`, so both sides compute with the same ones. Both read the same models
and arrays; TRL runs its own code (benchmarks/trl_side.py), we ours; `docs/trl-parity.md` is
written from the differences. Exit code 1 if one is larger than its row allows.
"""

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
)

from rlhf.advantages import gae
from rlhf.batches import Rollout
from rlhf.compute import Compute
from rlhf.draws import draw_table
from rlhf.kl import kl_estimate
from rlhf.logprobs import token_logprobs_and_entropy
from rlhf.masked import last_token_index, masked_mean, masked_sum, rescale, sequence_sums, whiten
from rlhf.models import RewardModel, build_actor_critic
from rlhf.params.kl import KLEstimator
from rlhf.params.sampling import SamplingParams
from rlhf.ppo_losses import policy_loss, value_loss
from rlhf.reward_shaping import penalise_missing_end, shape_rewards
from rlhf.rollouts import PPOModels, collect_rollout
from rlhf.seeding import Seeds
from rlhf.special_ids import SpecialIds

VERSION = "1.12.0"
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".work" / "trl-parity"
PAGE = ROOT / "docs" / "trl-parity.md"
PAD, EOS, VOCABULARY = 0, 1, 16
RESPONSES = 24
NUMBERS = {
    "temperature": 0.7,
    "kl_coef": 0.1,
    "gamma": 0.99,
    "lam": 0.95,
    "missing_end_penalty": 1.0,
    "clip_range": 0.2,
    "value_coef": 0.1,
}
FLOAT32 = 1e-5
"""Two forward passes in float32 through different code."""
FLOAT64 = 1e-9
"""The same arithmetic in float64."""
COUNTED = 1e-7
"""TRL counts in float32."""
TEMPERATURE = 1e-5
"""TRL divides by the temperature plus 1e-7."""


@dataclass(frozen=True)
class Row:
    """One comparison: the largest difference found and what is allowed."""

    what: str
    ours: Tensor
    theirs: Tensor
    allowed: float
    note: str = ""

    @property
    def difference(self) -> float:
        if self.ours.shape != self.theirs.shape:
            return float("inf")
        return (self.ours.double() - self.theirs.double()).abs().max().item()

    @property
    def sound(self) -> bool:
        return self.difference <= self.allowed


def make_environment(folder: Path) -> Path:
    """An environment with TRL alone on top of this one's packages; its interpreter."""
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = Path(
            subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
        )
        borrowed = Path(sysconfig.get_path("purelib")).resolve()
        (site / "borrowed.pth").write_text(f"{borrowed}\n", encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, f"trl=={VERSION}"], check=True)
        (folder / "ready").touch()
    return python


def make_models() -> tuple[PPOModels, PreTrainedModel]:
    """A policy with values, a reference and a reward model; random weights from fixed seeds."""

    def config() -> LlamaConfig:
        return LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            initializer_range=0.1,
            num_labels=1,
            bos_token_id=None,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )

    def draw(seed: int, build: Callable[[LlamaConfig], PreTrainedModel]) -> PreTrainedModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build(config()).eval()

    policy, reference = draw(0, LlamaForCausalLM), draw(1, LlamaForCausalLM)
    classifier = draw(2, LlamaForSequenceClassification)
    reward_model = RewardModel(classifier)
    actor = build_actor_critic(policy, reward_model=reward_model, separate=True)
    return PPOModels(actor, reference, reward_model), classifier


def make_inputs(
    models: PPOModels, classifier: PreTrainedModel
) -> tuple[Rollout, dict[str, Tensor]]:
    """A rollout of our own sampler, and what TRL is given: its tokens, and numbers in float64."""
    draw = torch.Generator().manual_seed(7)
    lengths = torch.randint(2, 6, (96,), generator=draw).tolist()
    prompts = [torch.randint(2, VOCABULARY, (n,), generator=draw).tolist() for n in lengths]
    rollout = collect_rollout(
        models,
        prompts,
        SamplingParams(temperature=NUMBERS["temperature"], max_new_tokens=12),
        SpecialIds(EOS, PAD),
        micro_batch_size=len(prompts),
        compute=Compute(torch.device("cpu"), "float32"),
        draws=draw_table(Seeds(0).named("parity"), prompts, steps=12),
    )
    # TRL finds padding by its id, so a response in which the policy wrote that token is cut there;
    # such rows are left out. Ours knows padding by masks only.
    wrote_pad = ((rollout.response_ids == PAD) & rollout.response_mask).any(dim=1)
    rollout = rollout.select((~wrote_pad).nonzero().flatten()[:RESPONSES])
    assert len(rollout) == RESPONSES
    assert rollout.ended.any()
    assert not rollout.ended.all()
    models.actor.lm.save_pretrained(FOLDER / "policy")
    classifier.save_pretrained(FOLDER / "reward")
    shape = rollout.response_ids.shape
    wide = (shape[0], shape[1] + 1)
    given = {
        **{name: torch.tensor(value, dtype=torch.float64) for name, value in NUMBERS.items()},
        "prompt_ids": torch.where(rollout.prompt_mask, rollout.prompt_ids, PAD),
        "response_ids": rollout.response_ids,
        "response_mask": rollout.response_mask,
        **{
            name: getattr(rollout, name).double()
            for name in ("logprobs", "ref_logprobs", "values", "scores")
        },
        "advantages": torch.randn(shape, generator=draw, dtype=torch.float64) + 0.3,
        "returns": torch.randn(shape, generator=draw, dtype=torch.float64),
        "new_logits": torch.randn(*wide, VOCABULARY, generator=draw, dtype=torch.float64) * 2,
        "new_values": torch.randn(wide, generator=draw, dtype=torch.float64),
    }
    return rollout, given


def compare_models(rollout: Rollout, trl: dict[str, Tensor]) -> list[Row]:
    """Forward passes, values and scores from the same weights, and where responses end."""
    mask = rollout.response_mask
    lengths = last_token_index(mask) + 1
    return [
        Row("log-probabilities", rollout.logprobs[mask], trl["logprobs"][mask], TEMPERATURE,
            "`forward`, `selective_log_softmax`; T + 1e-7 there"),
        Row("values", rollout.values[mask], trl["model_values"][mask], FLOAT32,
            "`get_reward` on the value model"),
        Row("scores", rollout.scores, trl["scores"], FLOAT32,
            "`get_reward` on the reward model, at the last real token"),
        Row("response lengths", lengths, trl["first_pad"], 0, "`first_true_indices`"),
        Row("tokens after the end", rollout.response_ids, trl["truncated"], 0,
            "`truncate_response` finds nothing to cut in what our sampler returns"),
        Row("padding mask", ~mask, trl["k1_padding_mask"], 0),
    ]  # fmt: skip


def compare_arithmetic(given: dict[str, Tensor], trl: dict[str, Tensor]) -> list[Row]:
    """Masked statistics, losses and gradients on the same numbers."""
    mask, advantages = given["response_mask"], given["advantages"]
    count = int(mask.sum())
    bessel = (count / (count - 1)) ** 0.5
    whitened = torch.where(mask, trl["whitened"], 0.0)
    rescaled = torch.where(mask, trl["rescaled"], 0.0)
    mean = masked_mean(advantages, mask)
    logits, values = (given[name].clone().requires_grad_() for name in ("new_logits", "new_values"))
    current = token_logprobs_and_entropy(
        logits[:, :-1], given["response_ids"], temperature=NUMBERS["temperature"]
    )
    policy = policy_loss(
        current.logprobs, given["logprobs"], advantages, mask, clip_range=NUMBERS["clip_range"]
    )
    value = value_loss(
        values[:, :-1], given["values"], given["returns"], mask, clip_range=NUMBERS["clip_range"]
    )
    (policy.loss + NUMBERS["value_coef"] * value.loss).backward()
    assert logits.grad is not None
    assert values.grad is not None
    difference = torch.where(mask, current.logprobs.detach() - given["logprobs"], 0.0)
    half_square = kl_estimate(difference, torch.zeros_like(difference), estimator="k2")
    share = count / mask.numel()
    entropy = current.entropy.detach()
    return [
        Row("masked mean", mean, trl["masked_mean"], FLOAT64, "`masked_mean`"),
        Row("whitened advantages", whiten(advantages, mask), whitened * bessel, 1e-7,
            "`masked_whiten`; × √(n/(n−1)): it divides by n − 1, we by n; 1e-8 under its root"),
        Row("whitened rewards", rescale(advantages, mask),
            torch.where(mask, (rescaled - mean) * bessel + mean, 0.0), 1e-7,
            "`masked_whiten(shift_mean=False)`; the same factor"),
        Row("policy loss", policy.loss.detach(), trl["pg_loss"], TEMPERATURE),
        Row("value loss", value.loss.detach(), trl["vf_loss"], FLOAT64, "on one mask"),
        Row("gradient to the logits", logits.grad, trl["logits_gradient"], TEMPERATURE),
        Row("gradient to the values", values.grad, trl["values_gradient"], FLOAT64),
        Row("clip fraction", policy.clip_fraction, trl["pg_clipfrac"], COUNTED),
        Row("value clip fraction", value.clip_fraction, trl["vf_clipfrac"], COUNTED),
        Row("approximate KL, as TRL logs it", half_square.mean(), trl["approxkl"], TEMPERATURE,
            f"defect 3: mean over the padding too, {share:.2f} times the mean over real tokens "
            f"({(masked_sum(half_square, mask) / count).item():.4f}); ½d² there, (r−1)−log r here"),
        Row("ratio, as TRL logs it", difference.exp().mean(), trl["ratio"], TEMPERATURE,
            f"defect 3: padding counts as 1; ours is {masked_mean(difference.exp(), mask):.4f}"),
        Row("entropy, as TRL logs it", entropy.mean(), trl["entropy"], TEMPERATURE,
            "defect 3: tokens behind the end count; ours is "
            f"{masked_mean(entropy, mask).item():.4f}"),
    ]  # fmt: skip


def compare_rewards(
    rollout: Rollout, given: dict[str, Tensor], trl: dict[str, Tensor]
) -> list[Row]:
    """Rewards, advantages and returns; TRL's extra slot behind the end is shown for what it is."""
    mask, values = given["response_mask"], given["values"]
    scores = penalise_missing_end(
        given["scores"], rollout.ended, penalty=NUMBERS["missing_end_penalty"]
    )
    full = mask.all(dim=1)
    rows: list[Row] = []
    estimators: tuple[KLEstimator, ...] = ("k1", "k3")
    for name in estimators:
        rewards = shape_rewards(
            scores, given["logprobs"], given["ref_logprobs"], mask,
            kl_coef=NUMBERS["kl_coef"], estimator=name,
        )  # fmt: skip
        rows += [
            Row(f"rewards of full-length responses, {name}", rewards[full],
                trl[f"{name}_rewards"][full], FLOAT64),
            Row(f"sum of a response's rewards, {name}", sequence_sums(rewards, mask),
                trl[f"{name}_rewards"].sum(dim=1), FLOAT64, "wherever the score stands"),
        ]  # fmt: skip
    ours = gae(rewards := shape_rewards(
        scores, given["logprobs"], given["ref_logprobs"], mask, kl_coef=NUMBERS["kl_coef"]
    ), values, mask, gamma=NUMBERS["gamma"], lam=NUMBERS["lam"])  # fmt: skip
    wide = ~trl["k1_padding_mask_p1"]
    theirs = gae(trl["k1_rewards"], values, wide, gamma=NUMBERS["gamma"], lam=NUMBERS["lam"])
    ended = mask & ~full.unsqueeze(1)
    gap = (ours.returns - trl["k1_returns"])[ended].abs().max().item()
    places = trl["k1_rewards"] - torch.where(mask, rewards, 0.0)
    behind = places[~full][~mask[~full]].abs().sum(dim=0).item()
    rows += [
        Row("returns of full-length responses", ours.returns[full],
            trl["k1_returns"][full], FLOAT64, "GAE"),
        Row("returns, with our GAE on TRL's layout", torch.where(wide, theirs.returns, 0.0),
            torch.where(wide, trl["k1_returns"], 0.0), FLOAT64,
            f"defect 2: for the {int((~full).sum())} responses that end early TRL puts the score "
            f"on the padding behind the end ({behind:.2f} in size there); on its own "
            f"layout the two agree, on ours their returns differ by up to {gap:.3f}"),
    ]  # fmt: skip
    return rows


def compare_ends(rollout: Rollout, trl: dict[str, Tensor]) -> list[Row]:
    """Peer defect 1: what TRL takes for a response when padding and end share an id."""
    lengths = last_token_index(rollout.response_mask) + 1
    lost = lengths - rollout.ended.long()
    return [
        Row("response lengths where pad equals end, as TRL sees them", lost,
            trl["first_pad_where_pad_is_end"], 0,
            f"defect 1: the end of {int(rollout.ended.sum())} responses is lost, to the loss and "
            "to the reward model; `rlhf.chat.check_tokenizer` refuses such a tokenizer"),
    ]  # fmt: skip


def page(rows: list[Row]) -> str:
    """docs/trl-parity.md."""
    lines = [
        f"# Parity with the PPO of TRL {VERSION}",
        "",
        "Written by `make trl-parity` (`python -m benchmarks.trl_parity`). TRL 1.12.0 is the last",
        "release with a PPO trainer (`trl.experimental.ppo`); 1.13.0 has none. It runs in an",
        "environment of its own with the same torch and transformers. Its helpers are called; its",
        "rewards, GAE and losses, which stand inside `PPOTrainer.train`, are executed from its",
        f"installed source. {RESPONSES} responses of at most 12 tokens, some ended, some cut;",
        "models in float32, arithmetic in float64.",
        "",
        "| what | largest difference | allowed | where it comes from |",
        "|---|---|---|---|",
        *(
            f"| {row.what} | {row.difference:.1e} | {row.allowed:.0e} | {row.note} |"
            for row in rows
        ),
        "",
        "Where a row names a defect of TRL, it reproduces TRL's number from ours, which shows that",
        "the defect is the whole difference.",
        "",
        "- **Defect 1**: padding that equals the end token. TRL takes it; we refuse the tokenizer.",
        "- **Defect 2**: the score of a response that ended falls on the padding behind its end,",
        "  that of a cut one on its last token. Ours always falls on the last real token.",
        "- **Defect 3**: logged means over the padding. In 1.12.0 `objective/entropy` is masked;",
        "  `policy/approxkl_avg`, `policy/entropy_avg` and `val/ratio` are not.",
        "",
        "Not compared: an adaptive KL controller, which TRL 1.12.0 no longer has; ours is tested",
        "against the worked numbers of Ziegler et al.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run both sides, write the page; 1 if a difference is too large."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    python = make_environment(ROOT / ".work" / "trl")
    models, classifier = make_models()
    rollout, given = make_inputs(models, classifier)
    np.savez(FOLDER / "inputs.npz", **{name: value.numpy() for name, value in given.items()})
    subprocess.run([python, ROOT / "benchmarks" / "trl_side.py", FOLDER], check=True)
    with np.load(FOLDER / "outputs.npz") as file:
        trl = {name: torch.from_numpy(file[name]) for name in file.files}
    rows = [
        *compare_models(rollout, trl),
        *compare_arithmetic(given, trl),
        *compare_rewards(rollout, given, trl),
        *compare_ends(rollout, trl),
    ]
    PAGE.write_text(page(rows), encoding="utf-8")
    for row in rows:
        mark = "ok" if row.sound else "TOO LARGE"
        print(f"{row.what:55} {row.difference:9.1e}  allowed {row.allowed:.0e}  {mark}")
    return 0 if all(row.sound for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
