"""A grown model says what the small one says, and all of it can be trained."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.grown_model import grow, main

IDS = torch.arange(24).view(2, 12) % 31


@pytest.fixture
def small() -> LlamaForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = LlamaConfig(
            vocab_size=31,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            initializer_range=0.2,
            # Large enough to be missed.
            rms_norm_eps=0.1,
            tie_word_embeddings=True,
        )
        model = LlamaForCausalLM(config).double().eval()
        for name, weight in model.named_parameters():
            if "norm" in name:
                torch.nn.init.normal_(weight, mean=1.0, std=0.3)
    return model


@torch.no_grad()
def logits(model: LlamaForCausalLM) -> torch.Tensor:
    found: torch.Tensor = model(IDS).logits
    return found


def test_the_grown_model_has_the_logits_of_the_small_one(small: LlamaForCausalLM) -> None:
    large = grow(small, layers=5, hidden=40, mlp=50).double()
    # The exact embedding, heads, layers and hidden sizes that were asked for.
    assert large.num_parameters() == 31 * 40 + 5 * (4 * 40**2 + 3 * 40 * 50 + 2 * 40) + 40
    torch.testing.assert_close(logits(large), logits(small), rtol=0, atol=1e-6)


def test_every_weight_of_a_grown_model_is_trained_from_the_second_step_on(
    small: LlamaForCausalLM,
) -> None:
    large = grow(small, layers=3, hidden=40, mlp=50)
    optimiser = torch.optim.SGD(large.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        large(IDS, labels=IDS).loss.backward()
        optimiser.step()
    still = [name for name, weight in large.named_parameters() if not weight.grad.abs().max() > 0]
    assert still == []


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"layers": 1, "hidden": 40, "mlp": 50}, "--layers 1 is less than the model's 2"),
        ({"layers": 3, "hidden": 8, "mlp": 50}, "--hidden 8 is less than the model's 16"),
        ({"layers": 3, "hidden": 40, "mlp": 20}, "--mlp 20 is less than the model's 24"),
        ({"layers": 3, "hidden": 42, "mlp": 50}, "--hidden 42 is no multiple of"),
    ],
)
def test_a_size_that_cannot_be_is_refused(
    small: LlamaForCausalLM, sizes: dict[str, int], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        grow(small, **sizes)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [([], "no such model folder"), (["--layers", "1"], "--layers 1 is less than the model's 2")],
)
def test_what_cannot_be_grown_ends_in_a_line(
    tmp_path: Path,
    small: LlamaForCausalLM,
    capsys: pytest.CaptureFixture[str],
    sizes: list[str],
    text: str,
) -> None:
    """`models/base` before `make repro` has written it was looked for on the hub."""
    if sizes:
        small.save_pretrained(tmp_path / "base")

    assert main([str(tmp_path / "base"), str(tmp_path / "grown"), *sizes]) == 2

    assert text in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "grown").exists()
