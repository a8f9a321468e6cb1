"""Gold scores exist for the embedded prompts only."""

import random

from data.support_desk.splits import sample_requests
from data.support_desk.templates import TEMPLATES
from data.support_desk.writers import ideal_response
from tasks.scoring.gold import gold_scores


def test_ideal_responses_to_embedded_prompts_score_ten() -> None:
    requests = sample_requests("heldout", 5, random.Random(0), templates=TEMPLATES)
    answers = [ideal_response(request) for request in requests]
    assert gold_scores([r.text for r in requests], answers, [True] * 5) == [10.0] * 5


def test_a_response_that_was_cut_scores_less() -> None:
    request = sample_requests("heldout", 1, random.Random(0), templates=TEMPLATES)[0]
    answer = ideal_response(request)
    whole, cut = (gold_scores([request.text], [answer], [end]) for end in (True, False))
    assert whole is not None
    assert cut is not None
    assert cut[0] == whole[0] - 3  # +2 for a finished answer becomes -1


def test_one_foreign_prompt_means_no_gold_at_all() -> None:
    request = sample_requests("heldout", 1, random.Random(0), templates=TEMPLATES)[0]
    assert gold_scores([request.text, "What is 2 + 2?"], ["a.", "4."], [True, True]) is None
    assert gold_scores([[{"role": "user", "content": request.text}]], ["a."], [True]) is None
