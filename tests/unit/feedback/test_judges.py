"""Machines as annotators: both orders, never an invented label, nothing asked twice."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feedback.endpoint import UnansweredError
from feedback.judges import LanguageModelParams, RewardModelAnnotator
from tests.unit.feedback.model_endpoint import Endpoint


def test_the_better_response_wins_wherever_it_stands(
    ask: Any, endpoint: Endpoint, pairs: Any
) -> None:
    judgments = ask().judge(pairs)
    assert [one.choice for one in judgments] == ["a", "b"]
    assert {one.kind for one in judgments} == {"llm"}
    assert len(endpoint.asked) == 4


def test_the_model_is_told_which_answer_was_cut(ask: Any, endpoint: Endpoint, pairs: Any) -> None:
    endpoint.reply = lambda first, _: (200, "1" if first.startswith("good") else "2")
    cut = [replace(pairs[0], finished_b=False), pairs[1]]
    annotator = ask()
    assert [one.choice for one in annotator.judge(cut)] == ["a", "b"]
    texts = [one["messages"][0]["content"] for one in endpoint.asked]
    told = [text for text in texts if "was cut at its length limit" in text]
    assert len(told) == 2
    for text in told:
        # Beside the answer and not in it, where its writer could have put it.
        (note,) = [part for part in text.split("<")[1:] if "was cut" in part]
        place = "answer_1" if "<answer_1>\nbad one" in text else "answer_2"
        assert note.startswith(f"/{place}>\n(This answer was cut")
    # A verdict on the cut one is none on the whole one.
    annotator.judge(pairs)
    assert len(endpoint.asked) == 6


def test_a_param_that_is_null_is_not_sent(ask: Any, endpoint: Endpoint, pairs: Any) -> None:
    """Some endpoints refuse `max_tokens`, others `seed` or any temperature but their own."""
    sampling = ("temperature", "seed", "max_tokens")
    ask().judge(pairs[:1])
    assert [endpoint.asked[0][name] for name in sampling] == [0.0, 0, 8]
    for name in sampling:
        ask(**{name: None}).judge(pairs[:1])
        assert [each for each in sampling if each not in endpoint.asked[-1]] == [name]


def test_a_model_that_prefers_a_place_gives_ties(ask: Any, endpoint: Endpoint, pairs: Any) -> None:
    endpoint.reply = lambda *_: (200, "1")
    judgments = ask().judge(pairs)
    assert [one.choice for one in judgments] == ["tie", "tie"]
    assert "orders differ" in str(judgments[0].reason)


def test_a_tie_in_both_orders_is_a_tie(ask: Any, endpoint: Endpoint, pairs: Any) -> None:
    endpoint.reply = lambda *_: (200, " Tie. ")
    assert [one.choice for one in ask().judge(pairs)] == ["tie", "tie"]


@pytest.mark.parametrize(
    ("first", "second", "tie"),
    [
        ("Answer 1", "Answer 2", "Answer: tie"),
        ("A", "B", "**Tie**"),
        ("[[A]]", "[[B]]", "[[C]]"),
        ("Answer A", "answer_b", "The verdict is tie."),
        ("1.", "2)", "TIE"),
        ("**Answer 1**", "The better answer is 2.", "'tie'"),
        ("Final answer: 1", "Verdict: Answer 2", " tie\n"),
        ("<answer_1>", "Response 2", "tie"),
        ("<think>\n2 is long.\n</think>\n\n1", "<think></think>2", "<think>1 or 2?</think>tie"),
        # The chat template has begun the thoughts.
        ("2 is long, but ...\n</think>\n\n1", "\n</think>\n\n**2**", "1 or 2?</think>tie"),
    ],
)
def test_a_verdict_is_understood_in_the_forms_that_judges_give_it(
    ask: Any, endpoint: Endpoint, pairs: Any, first: str, second: str, tie: str
) -> None:
    endpoint.reply = lambda one, _: (200, first if "good" in one else second)
    assert [one.choice for one in ask().judge(pairs)] == ["a", "b"]
    endpoint.reply = lambda *_: (200, tie)
    assert [one.choice for one in ask(seed=1).judge(pairs)] == ["tie", "tie"]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((200, "Answer 1 is better"), "expected 1, 2 or tie"),
        ((200, ""), "expected 1, 2 or tie"),
        ((200, "1 or 2"), "expected 1, 2 or tie"),
        ((200, "12"), "expected 1, 2 or tie"),
        ((200, "C"), "expected 1, 2 or tie"),
        ((200, "Answer 3"), "expected 1, 2 or tie"),
        ((200, "a tie"), "expected 1, 2 or tie"),
        ((200, "<think>1"), "expected 1, 2 or tie"),
        ((400, "filtered"), "the endpoint answered 400"),
        ((299, "<html>"), "is not JSON"),
        ((299, '"' + "x" * 5_000_000 + '"'), "has 4,194,304 bytes or more"),
        ((299, '{"error": 1}'), "has no choices"),
    ],
)
def test_a_failure_is_a_skip_with_its_reason_and_is_asked_again(
    ask: Any, endpoint: Endpoint, pairs: Any, reply: tuple[int, str], reason: str
) -> None:
    works = endpoint.reply
    endpoint.reply = lambda *_: reply
    judgments = ask().judge(pairs)
    assert [one.choice for one in judgments] == ["skip", "skip"]
    assert reason in str(judgments[0].reason)
    endpoint.reply = works
    assert [one.choice for one in ask().judge(pairs)] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "end", "reason"),
    [
        (None, "length", "the reply is '', cut at label.language_model.max_tokens, expected 1, "),
        ("Let me", "length", "the reply is 'Let me', cut at label.language_model.max_tokens, "),
        (None, "stop", "the reply is '', expected 1, 2 or tie"),
        ("Let me", None, "the reply is 'Let me', expected 1, 2 or tie"),
    ],
)
def test_a_reply_without_a_verdict_says_whether_it_was_cut(
    ask: Any, endpoint: Endpoint, pairs: Any, content: str | None, end: str | None, reason: str
) -> None:
    choice = {"message": {"content": content}, "finish_reason": end}
    endpoint.reply = lambda *_: (299, json.dumps({"choices": [choice]}))
    (judgment,) = ask().judge(pairs[:1])
    assert judgment.choice == "skip"
    assert str(judgment.reason).startswith(reason)
    (judgment,) = ask(max_tokens=None).judge(pairs[:1])
    without = reason.replace("label.language_model.max_tokens", "the endpoint's own limit")
    assert str(judgment.reason).startswith(without)


def test_a_verdict_may_come_with_long_reasoning(ask: Any, endpoint: Endpoint, pairs: Any) -> None:
    message = {"content": "tie", "reasoning_content": "On the one hand " * 100_000}
    endpoint.reply = lambda *_: (299, json.dumps({"choices": [{"message": message}]}))
    assert [one.choice for one in ask().judge(pairs)] == ["tie", "tie"]


def test_nothing_is_asked_twice_even_with_sides_exchanged(
    ask: Any, endpoint: Endpoint, pairs: Any
) -> None:
    first = ask().judge(pairs)
    asked = len(endpoint.asked)
    assert ask().judge(pairs) == first
    exchanged = [replace(p, response_a=p.response_b, response_b=p.response_a) for p in pairs]
    assert [one.choice for one in ask().judge(exchanged)] == ["b", "a"]
    assert len(endpoint.asked) == asked


def test_another_version_is_asked_anew(ask: Any, endpoint: Endpoint, pairs: Any) -> None:
    ask().judge(pairs)
    other = ask(model="judge-2")
    assert other.version != ask().version
    assert ask(timeout_s=1.0).version == ask().version
    other.judge(pairs)
    assert len(endpoint.asked) == 8


def test_the_key_comes_from_the_environment(
    ask: Any, endpoint: Endpoint, pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    ask(api_key_variable="JUDGE_KEY", seed=1).judge(pairs[:1])
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    ask(api_key_variable="JUDGE_KEY", seed=2).judge(pairs[:1])
    assert [one["key"] for one in endpoint.asked] == [None, None, *["Bearer s3cret"] * 2]
    assert endpoint.asked[-1]["seed"] == 2


def test_a_key_from_a_file_comes_with_the_end_of_its_line(
    ask: Any, endpoint: Endpoint, pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "s3cret\r\n")
    assert [one.choice for one in ask(api_key_variable="JUDGE_KEY").judge(pairs)] == ["a", "b"]
    assert {one["key"] for one in endpoint.asked} == {"Bearer s3cret"}


@pytest.mark.parametrize("key", ["\u201cs3cret\u201d", "s3cret\nother"])
def test_a_key_that_no_request_can_carry_is_named_by_its_variable_and_not_shown(
    ask: Any, endpoint: Endpoint, pairs: Any, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("JUDGE_KEY", key)
    with pytest.raises(UnansweredError, match="JUDGE_KEY has a letter that no key has") as error:
        ask(api_key_variable="JUDGE_KEY").judge(pairs)
    assert "s3cret" not in str(error.value)
    assert endpoint.asked == []


def test_a_reward_model_prefers_the_higher_score(make_pairs: Any) -> None:
    pairs = make_pairs(3)
    scores = {pairs[0].response_a: 1.0, pairs[1].response_b: 1.0}
    judge = RewardModelAnnotator(lambda _, text, __: scores.get(text, 0.0), name="rm", version="v")
    judgments = judge.judge(pairs)
    assert [one.choice for one in judgments] == ["a", "b", "tie"]
    assert {one.kind for one in judgments} == {"reward_model"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"endpoint": "127.0.0.1:8000"}, r"label\.language_model\.endpoint is '127"),
        ({"temperature": -0.1}, r"label\.language_model\.temperature is -0\.1, expected 0 or more"),
        ({"at_once": 0}, r"label\.language_model\.at_once is 0"),
        ({"max_tokens": 0}, r"label\.language_model\.max_tokens is 0"),
    ],
)
def test_impossible_params_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LanguageModelParams(**({"endpoint": "http://127.0.0.1:1/v1", "model": "m"} | changes))


def test_many_at_once_say_what_one_after_the_other_says(
    ask: Any, make_pairs: Any, tmp_path: Path
) -> None:
    many = make_pairs(40)
    at_once = ask(at_once=8).judge(many)
    for verdict in tmp_path.rglob("*.json"):
        verdict.unlink()
    assert ask(at_once=1).judge(many) == at_once
    assert [one.pair_id for one in at_once] == [pair.pair_id for pair in many]


@pytest.mark.parametrize("left", ["", "{", "[]", '{"reply": "1"}', '{"verdict": 3}', '"1"'])
def test_a_cached_verdict_that_the_machine_did_not_finish_writing_is_asked_for_again(
    ask: Any, endpoint: Endpoint, pairs: Any, tmp_path: Path, left: str
) -> None:
    judgments = ask().judge(pairs)
    (first, *_) = sorted(tmp_path.rglob("*.json"))
    first.write_text(left)
    assert ask().judge(pairs) == judgments
    assert len(endpoint.asked) == 4 + 1


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_prefers_nothing(make_pairs: Any, broken: float) -> None:
    first, second = make_pairs(2)
    scores = {first.response_a: broken, second.response_b: broken}
    annotator = RewardModelAnnotator(
        lambda prompt, response, finished: scores.get(response, 0.5), name="rm", version="v"
    )
    for judgment in annotator.judge([first, second]):
        assert judgment.choice == "skip"
        assert judgment.reason is not None
        assert str(broken) in judgment.reason
