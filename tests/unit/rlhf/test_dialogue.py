"""A dialogue responds as sampling does, in pieces, and remembers what it should."""

import pytest
from transformers import MptConfig, MptForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from rlhf.chat import Prompt, decode_response, encode_prompt
from rlhf.dialogue import (
    CUT,
    FIRST_PIECE,
    Dialogue,
    TooLongError,
    UnknownWordError,
    longest_context,
)
from rlhf.draws import draw_table
from rlhf.named_seeds import named_seed
from rlhf.params.sampling import SamplingParams
from rlhf.pretrain import train_tokenizer
from rlhf.special_ids import SpecialIds, special_ids
from tests import tiny
from tests.sampling import sample_all

TURNS = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
LETTER, OTHER = tiny.LINES[0], tiny.LINES[2]


def parts(template: str | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A policy of the world with text, and a tokenizer with this template."""
    tokenizer = train_tokenizer(tiny.LINES, 300)
    if template != "embedded":
        tokenizer.chat_template = template
    lm = tiny.llama(vocabulary=len(tokenizer))
    lm.config.max_position_embeddings = 512
    return lm.eval(), tokenizer


def expected(
    parts: tuple[PreTrainedModel, PreTrainedTokenizerBase],
    prompt: Prompt,
    sampling: SamplingParams,
    *,
    turn: int,
    tokens: SpecialIds | None = None,
) -> str:
    """What sampling draws at once with the numbers of a turn."""
    lm, tokenizer = parts
    encoded, ids = encode_prompt(tokenizer, prompt), tokens or special_ids(tokenizer)
    steps = sampling.max_new_tokens
    (row,) = sample_all(
        lm, [encoded], sampling, stop_ids=ids.stops, pad_id=ids.pad, batch_size=1,
        draws=draw_table(named_seed(0, "chat", turn), [encoded], steps),
    )  # fmt: skip
    return decode_response(tokenizer, row)


def said(dialogue: Dialogue, message: str) -> str:
    return "".join(dialogue.respond(message))


@pytest.mark.parametrize("tokens", [1, FIRST_PIECE, FIRST_PIECE + 1, 120])
def test_the_pieces_are_the_response_that_sampling_draws_at_once(tokens: int):
    lm, tokenizer = parts(TURNS)
    sampling = SamplingParams(max_new_tokens=tokens, min_new_tokens=tokens)
    whole = expected((lm, tokenizer), LETTER, sampling, turn=1)

    pieces = list(
        Dialogue(lm, tokenizer, sampling, tokens=special_ids(tokenizer), seed=0).respond(LETTER)
    )

    assert "".join(pieces) == whole != ""
    assert not any(piece.endswith(CUT) for piece in pieces[:-1]), "half a character"
    assert len([piece for piece in pieces if piece]) > 1 or tokens < 120


def test_a_response_ends_at_any_of_a_models_stop_ids():
    lm, tokenizer = parts(TURNS)
    tokens = special_ids(tokenizer)
    encoded = encode_prompt(tokenizer, LETTER)
    draws = draw_table(named_seed(0, "chat", 1), [encoded], TWENTY.max_new_tokens)
    (row,) = sample_all(
        lm, [encoded], TWENTY, stop_ids=tokens.stops, pad_id=tokens.pad, batch_size=1, draws=draws
    )
    place = next(n for n, token in enumerate(row) if n > 2 and token not in row[:n])
    several = tokens._replace(others=(row[place],))

    found = said(Dialogue(lm, tokenizer, TWENTY, tokens=several, seed=0), LETTER)

    assert found == decode_response(tokenizer, row[: place + 1])
    assert found != decode_response(tokenizer, row)


def test_the_seed_decides_what_is_drawn_and_turns_differ():
    lm, tokenizer = parts(None)
    sampling = SamplingParams(max_new_tokens=30)
    one, same, other = (
        Dialogue(lm, tokenizer, sampling, tokens=special_ids(tokenizer), seed=seed)
        for seed in (1, 1, 2)
    )

    first = said(one, LETTER)

    assert first == said(same, LETTER)
    assert first != said(other, LETTER)
    assert first != said(one, LETTER), "the same message again, the next turn"


TWENTY = SamplingParams(max_new_tokens=20)


def test_earlier_turns_count_until_reset_where_the_template_has_turns():
    both = parts(TURNS)
    dialogue = Dialogue(*both, TWENTY, tokens=special_ids(both[1]), seed=0)

    turns = [{"role": "user", "content": LETTER}]
    turns.append({"role": "assistant", "content": said(dialogue, LETTER)})
    turns.append({"role": "user", "content": OTHER})

    assert said(dialogue, OTHER) == expected(both, turns, TWENTY, turn=2)
    dialogue.reset()
    assert said(dialogue, OTHER) == expected(both, OTHER, TWENTY, turn=3)


@pytest.mark.parametrize("template", ["embedded", None])
def test_the_embedded_model_and_one_without_a_template_take_each_message_by_itself(
    template: str | None,
):
    both = parts(template)
    dialogue = Dialogue(*both, TWENTY, tokens=special_ids(both[1]), seed=0)
    said(dialogue, LETTER)

    assert said(dialogue, OTHER) == expected(both, OTHER, TWENTY, turn=2)


def test_a_response_that_was_stopped_is_no_turn():
    both = parts(TURNS)
    dialogue = Dialogue(*both, TWENTY, tokens=special_ids(both[1]), seed=0)
    pieces = dialogue.respond(LETTER)
    assert next(pieces)
    pieces.close()

    assert said(dialogue, OTHER) == expected(both, OTHER, TWENTY, turn=2)


def test_turns_that_no_longer_fit_are_forgotten_and_a_message_that_never_fits_is_refused():
    both = lm, tokenizer = parts(TURNS)
    turn = len(encode_prompt(tokenizer, LETTER))
    dialogue = Dialogue(*both, TWENTY, tokens=special_ids(both[1]), seed=0)
    lm.config.max_position_embeddings = turn + 20
    said(dialogue, LETTER)

    assert said(dialogue, LETTER) == expected(both, LETTER, TWENTY, turn=2)
    lm.config.max_position_embeddings = turn + 3
    short = SamplingParams(max_new_tokens=3)
    assert said(dialogue, LETTER) == expected(both, LETTER, short, turn=3)
    lm.config.max_position_embeddings = turn
    with pytest.raises(
        TooLongError, match=f"has {turn} tokens as a prompt; at most {turn - 1} fit"
    ):
        said(dialogue, LETTER)


def test_a_message_that_is_refused_is_no_reason_to_forget():
    both = parts(TURNS)
    dialogue = Dialogue(*both, TWENTY, tokens=special_ids(both[1]), seed=0)
    turns = [{"role": "user", "content": LETTER}]
    turns.append({"role": "assistant", "content": said(dialogue, LETTER)})
    turns.append({"role": "user", "content": OTHER})

    with pytest.raises(TooLongError):
        said(dialogue, LETTER * both[0].config.max_position_embeddings)

    assert said(dialogue, OTHER) == expected(both, turns, TWENTY, turn=2)


def test_earlier_turns_count_where_a_response_may_be_as_long_as_the_context():
    both = lm, tokenizer = parts(TURNS)
    limit = lm.config.max_position_embeddings
    # A stop id that the first response soon has.
    encoded = encode_prompt(tokenizer, LETTER)
    first = draw_table(named_seed(0, "chat", 1), [encoded], limit - len(encoded))
    tokens = special_ids(tokenizer)
    longest = SamplingParams(max_new_tokens=limit)
    (row,) = sample_all(
        lm, [encoded], TWENTY, stop_ids=tokens.stops, pad_id=tokens.pad, batch_size=1,
        draws=first[:, :20],
    )  # fmt: skip
    place = next(n for n, token in enumerate(row) if n > 2 and token not in row[:n])
    tokens = tokens._replace(others=(row[place],))
    dialogue = Dialogue(*both, longest, tokens=tokens, seed=0)

    turns = [{"role": "user", "content": LETTER}]
    turns.append({"role": "assistant", "content": said(dialogue, LETTER)})
    turns.append({"role": "user", "content": OTHER})

    room = limit - len(encode_prompt(tokenizer, turns))
    sampling = SamplingParams(max_new_tokens=room)
    assert said(dialogue, OTHER) == expected(both, turns, sampling, turn=2, tokens=tokens)


def test_mpt_has_a_name_of_its_own_for_its_end():
    lm, tokenizer = parts(None)
    config = MptConfig(
        vocab_size=len(tokenizer), d_model=16, n_heads=2, n_layers=1, expansion_ratio=2,
        max_seq_len=24, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    lm = MptForCausalLM(config).eval()
    dialogue = Dialogue(lm, tokenizer, TWENTY, tokens=special_ids(tokenizer), seed=0)
    assert longest_context(lm) == 24

    said(dialogue, "a")
    with pytest.raises(TooLongError, match="at most 23 fit"):
        said(dialogue, LETTER * 20)


def test_a_word_without_an_embedding_is_named():
    lm, tokenizer = parts(TURNS)
    tokenizer.add_tokens(["<picture>"])
    dialogue = Dialogue(lm, tokenizer, TWENTY, tokens=special_ids(tokenizer), seed=0)
    with pytest.raises(UnknownWordError, match="no embedding for <picture>"):
        said(dialogue, "What is on this <picture>?")
    assert said(dialogue, LETTER)
