"""Supervised fine-tuning memorises four lines and says them when asked, with their end."""

import pytest

from rlhf.chat import decode_response
from rlhf.draws import draw_table
from rlhf.optimisers import Optimiser, Training
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.sampling import SamplingParams
from rlhf.params.sft import SFTParams
from rlhf.seeding import Seeds
from rlhf.sft import encode_examples, train
from tests import tiny
from tests.sampling import sample_all
from tests.tiny import COMPUTE, LINES, tokenizer

PAIRS = list(zip(("one", "two", "three", "four"), LINES, strict=True))


@pytest.mark.parametrize(
    "optimiser",
    [
        OptimiserParams(lr=2e-2, warmup_steps=5),
        pytest.param(
            OptimiserParams(name="muon", lr=2e-2, muon_lr=3e-2, warmup_steps=5),
            marks=pytest.mark.long,
        ),
    ],
    ids=["adamw", "muon"],
)
@pytest.mark.parametrize("build", [tiny.llama, pytest.param(tiny.gpt2, marks=pytest.mark.long)])
def test_four_lines_are_learnt_by_heart(build, optimiser):
    """Each prompt brings its own line, word for word, and the answer ends by itself."""
    params = SFTParams(epochs=60, batch_size=4, optimiser=optimiser)
    model = build(vocabulary=len(tokenizer()), spread=1.0)
    examples, _ = encode_examples(tokenizer(), PAIRS, 200)
    training = Training(model, Optimiser(optimiser, model.named_parameters()))
    pad, eos = tokenizer().pad_token_id, tokenizer().eos_token_id
    losses = [
        step.loss
        for step in train(training, examples, params, pad_id=pad, compute=COMPUTE, seeds=Seeds(0))
    ]
    assert losses[0] > 5
    assert losses[-1] < 0.1
    prompts = [example.prompt for example in examples]
    answers = sample_all(
        model,
        prompts,
        SamplingParams(top_k=1, max_new_tokens=80),
        stop_ids=(eos,),
        pad_id=pad,
        batch_size=4,
        draws=draw_table(0, prompts, 80),
    )
    assert [decode_response(tokenizer(), row) for row in answers] == list(LINES)
    assert all(row[-1] == eos for row in answers)
