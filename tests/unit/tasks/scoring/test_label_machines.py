"""The stage `label` with machines as annotators: a reward model's folder, an endpoint."""

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from feedback import endpoint as requests
from feedback.annotators import LabelParams
from feedback.judges import LanguageModelParams
from feedback.judgments import Pair
from preferences.records import pair_id
from tasks.params.loading import RunParams
from tasks.reporting.without_gold import by_order
from tasks.running.outcome import StageEnd
from tasks.scoring.language_annotator import ask_language_model
from tasks.scoring.reward_annotator import ask_reward_model
from tasks.scoring.win_rates import Answers, judged_win_rate
from tests import tiny

RUN = RunParams(threads=1, device="cpu")


def pair(prompt: str, a: str, b: str, **flags: bool) -> Pair:
    key = pair_id(prompt, a, b)
    return Pair(pair_id=key, round="r1", prompt=prompt, response_a=a, response_b=b, **flags)


PAIRS = [
    pair(prompt, a, b)
    for prompt, a, b in zip(tiny.LINES, tiny.LINES[1:], tiny.LINES[2:], strict=False)
]


def score(prompt: str, response: str, finished: bool = True) -> float:
    """The raw score of the tokens, put together here."""
    model, tokenizer = tiny.reward_model(vocabulary=len(tiny.tokenizer())), tiny.tokenizer()
    ids = tokenizer(f"<|user|>{prompt}<|end|><|assistant|>")["input_ids"]
    ids = [*ids, *tokenizer(response)["input_ids"], *[tokenizer.eos_token_id] * finished]
    with torch.no_grad():
        return float(model.raw_scores(torch.tensor([ids]), torch.ones(1, len(ids)) == 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tiny.reward_model(vocabulary=len(tiny.tokenizer()))
    model.set_normaliser(0.0, 1.0)
    model.classifier.save_pretrained(tmp_path / "judge")
    tiny.tokenizer().save_pretrained(tmp_path / "judge")
    return tmp_path / "judge"


def test_the_answer_with_the_higher_score_wins_wherever_it_stands(folder: Path) -> None:
    judgments = ask_reward_model(folder, PAIRS, RUN)
    turned = [pair(one.prompt, one.response_b, one.response_a) for one in PAIRS]  # type: ignore[arg-type]
    other_way = ask_reward_model(folder, turned, RUN)

    for one, judgment, turned_one in zip(PAIRS, judgments, other_way, strict=True):
        better = score(str(one.prompt), one.response_a) > score(str(one.prompt), one.response_b)
        assert (judgment.choice, turned_one.choice) == (("a", "b") if better else ("b", "a"))
        assert (judgment.kind, judgment.annotator_id) == ("reward_model", "judge")


def test_a_response_that_was_cut_is_judged_without_the_end_token(folder: Path) -> None:
    cut = [
        pair(one.prompt, one.response_a, one.response_b, finished_a=False, finished_b=ended)
        for one in PAIRS
        for ended in (True, False)
        if isinstance(one.prompt, str)
    ]
    choices = [judgment.choice for judgment in ask_reward_model(folder, cut, RUN)]
    expected = [
        "a"
        if score(str(one.prompt), one.response_a, one.finished_a)
        > score(str(one.prompt), one.response_b, one.finished_b)
        else "b"
        for one in cut
    ]
    assert choices == expected
    whole = ask_reward_model(folder, [replace(one, finished_a=True) for one in cut], RUN)
    assert [judgment.choice for judgment in whole] != expected


def test_the_version_is_that_of_the_weights(folder: Path) -> None:
    before = ask_reward_model(folder, PAIRS, RUN)[0].annotator_version
    assert ask_reward_model(folder, PAIRS, RUN)[0].annotator_version == before
    other = tiny.reward_model(seed=8, vocabulary=len(tiny.tokenizer()))
    other.set_normaliser(0.0, 1.0)
    other.classifier.save_pretrained(folder)
    assert ask_reward_model(folder, PAIRS, RUN)[0].annotator_version != before


def test_an_ensemble_judges_by_all_of_its_members(folder: Path) -> None:
    """By the mean of three; the first alone says otherwise of some pairs."""
    responses = [" ".join(words) for words in itertools.permutations(("lamp", "new", "way", "one"))]
    pairs = [pair(tiny.LINES[0], *two) for two in itertools.pairwise(responses)]
    alone = ask_reward_model(folder, pairs, RUN)
    members = [tiny.reward_model(seed, vocabulary=len(tiny.tokenizer())) for seed in (7, 8, 9)]
    for number, member in enumerate(members, start=1):
        member.set_normaliser(0.0, 1.0)
        place = folder if number == 1 else folder / f"member_{number}"
        member.classifier.save_pretrained(place)

    def mean(prompt: str, response: str) -> float:
        row = tiny.tokenizer()(f"<|user|>{prompt}<|end|><|assistant|>")["input_ids"]
        row = [*row, *tiny.tokenizer()(response)["input_ids"], tiny.tokenizer().eos_token_id]
        with torch.no_grad():
            mask = torch.ones(1, len(row)) == 1
            scores = [float(each.raw_scores(torch.tensor([row]), mask)) for each in members]
        return sum(scores) / len(scores)

    judgments = ask_reward_model(folder, pairs, RUN)
    expected = [
        "a"
        if mean(str(one.prompt), one.response_a) > mean(str(one.prompt), one.response_b)
        else "b"
        for one in pairs
    ]
    assert [each.choice for each in judgments] == expected
    assert [each.choice for each in alone] != expected
    assert judgments[0].annotator_version != alone[0].annotator_version

    version = judgments[0].annotator_version
    tiny.reward_model(3, vocabulary=len(tiny.tokenizer())).classifier.save_pretrained(
        folder / "member_3"
    )
    assert ask_reward_model(folder, pairs, RUN)[0].annotator_version != version


def test_a_folder_that_is_no_classifier_is_bad_input(tmp_path: Path) -> None:
    tiny.llama(vocabulary=len(tiny.tokenizer())).save_pretrained(tmp_path / "policy")
    tiny.tokenizer().save_pretrained(tmp_path / "policy")
    for wrong, why in (("policy", "expected a sequence classifier"), ("nowhere", "no such model")):
        with pytest.raises(StageEnd, match=f"label.reward_model: .*{wrong}: {why}") as end:
            ask_reward_model(tmp_path / wrong, PAIRS, RUN)
        assert end.value.status == "bad_input"


def test_a_pair_that_a_classifier_cannot_read_is_bad_input(tmp_path: Path) -> None:
    """One line, as every stage but `label` had it, and not a traceback."""
    config = BertConfig(
        vocab_size=len(tiny.tokenizer()), hidden_size=16, intermediate_size=16,
        num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=8, num_labels=1,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(tmp_path / "short")
    tiny.tokenizer().save_pretrained(tmp_path / "short")

    with pytest.raises(StageEnd, match=r"label\.reward_model: .* reads at most 8 tokens") as end:
        ask_reward_model(tmp_path / "short", PAIRS, RUN)

    assert end.value.status == "bad_input"


def test_a_plain_classifier_of_two_labels_judges_by_the_difference_of_its_logits(
    tmp_path: Path,
) -> None:
    model = tiny.classifier(labels=2)
    model.save_pretrained(tmp_path / "plain")
    tiny.tokenizer().save_pretrained(tmp_path / "plain")
    choices = [each.choice for each in ask_reward_model(tmp_path / "plain", PAIRS, RUN)]
    expected = []
    for one in PAIRS:
        gaps = []
        for response in (one.response_a, one.response_b):
            text = f"<|user|>{one.prompt}<|end|><|assistant|>{response}<|end|>"
            ids = torch.tensor([tiny.tokenizer()(text)["input_ids"]])
            with torch.no_grad():
                first, second = model.score(model.model(ids).last_hidden_state[0, -1]).tolist()
            gaps.append(second - first)
        expected.append("a" if gaps[0] > gaps[1] else "b")
    assert choices == expected


@pytest.fixture
def endpoint() -> Iterator[ThreadingHTTPServer]:
    """A model that always prefers the first answer it sees, and knows little of broken things."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
            word = "I cannot say" if "lamp is broken" in asked else "1"
            if "request is broken" in asked:
                self.send_response(400)
                self.end_headers()
                said = f"no\n'max_tokens'; {self.headers['Authorization']}"
                self.wfile.write(json.dumps({"error": {"message": said}}, indent=1).encode())
                return
            self.send_response(503 if "server is broken" in asked else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"choices": [{"message": {"content": word}}]}).encode())

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def by_language_model(port: int) -> LanguageModelParams:
    return LanguageModelParams(endpoint=f"http://127.0.0.1:{port}/v1", model="judge-1")


def test_what_fails_is_a_skip_and_the_rest_counts(
    endpoint: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [pair("Hello?", "Yes.", "No."), pair("Kim: my lamp is broken", "Oh.", "Ah.")]
    first, second = ask_language_model(by_language_model(endpoint.server_port), pairs)
    assert (first.choice, first.kind) == ("tie", "llm")
    assert second.choice == "skip"
    assert "I cannot say" in str(second.reason)


def test_a_model_that_gives_no_verdict_at_all_ends_the_stage_and_labels_nothing(
    endpoint: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [pair("Kim: my lamp is broken", "Oh.", "Ah.")]
    with pytest.raises(StageEnd, match=r"judge-1 at .* no verdict on any of 1 pairs") as end:
        ask_language_model(by_language_model(endpoint.server_port), pairs)
    assert end.value.status == "failed"


def test_what_an_endpoint_says_of_its_refusal_is_shown_and_is_no_part_of_a_judgment(
    endpoint: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    broken = pair("Kim: my request is broken", "Oh.", "Ah.")
    judge = by_language_model(endpoint.server_port)
    shown = 'the endpoint answered 400 ({ "error": { "message": "no\\n\'max_tokens\'; Bearer ..."'
    with pytest.raises(StageEnd) as end:
        ask_language_model(judge, [broken])
    assert shown in str(end.value)
    assert "s3cret" not in str(end.value)

    _, skipped = ask_language_model(judge, [pair("Hello?", "Yes.", "No."), broken])
    assert skipped.reason == "the endpoint answered 400"
    assert "judge-1 at http" in caplog.text
    assert "'max_tokens'" in caplog.text


def test_an_endpoint_that_does_not_answer_ends_the_stage_with_one_line(
    endpoint: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(requests, "WAITS_S", (0,))
    pairs = [pair("Hello?", "Yes.", "No."), pair("Kim: my server is broken", "Oh.", "Ah.")]
    said = r"judge-1 at .*: the endpoint answered 503 \(2 tries\); the verdicts so far are kept"
    with pytest.raises(StageEnd, match=said) as end:
        ask_language_model(by_language_model(endpoint.server_port), pairs)
    assert end.value.status == "failed"


def test_a_judge_that_names_one_place_whatever_stands_there_is_found_out(
    endpoint: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its win rate of one half reads as policies that cannot be told apart."""
    monkeypatch.chdir(tmp_path)
    judge = by_language_model(endpoint.server_port)
    params = LabelParams(annotators="none", language_model=judge)
    ours = Answers(texts=["Yes.", "It left.", "same"], finished=[True] * 3)
    theirs = Answers(texts=["No.", "Wait.", "same"], finished=[True] * 3)

    found = judged_win_rate(
        "language_model", params, RunParams(), prompts=["1?", "2?", "3?"], ours=ours, theirs=theirs
    )

    assert (found["mean"], found["n"], found["skipped"], found["orders_differ"]) == (0.5, 3, 0, 2)
    policies = [{"name": "r1", "gold": None, "win_rate_vs_sft": found}]
    (said,) = by_order(policies)
    assert said.startswith(
        "The judge's verdict changed with the order of the responses on 2 of 3 prompts about r1."
    )
    assert by_order([{**policies[0], "win_rate_vs_sft": found | {"orders_differ": 0}}]) == []
