"""Stage `sample`: the newest policy and SFT respond to fresh prompts; responses become pairs."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from preferences.reader import read_rows
from preferences.records import pair_id
from preferences.schemas import PREFERENCES
from rlhf.chat import decode_response
from rlhf.frozen import load_frozen_policy
from rlhf.models import load_tokenizer
from rlhf.named_seeds import named_random
from rlhf.params.sample import SampleParams
from rlhf.positions import check_positions, longest_row
from rlhf.special_ids import load_special_ids
from tasks.generation.responses import Generator
from tasks.running.metrics_file import write_metrics
from tasks.running.models import (
    ERRORS,
    encode_prompts,
    load_prompts,
    seeds_of,
    start_compute,
)
from tasks.running.outcome import StageEnd
from tasks.running.progress import Progress
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.running.staging import model_hash, write_json_lines

INPUTS = ("data/prepared", "models/sft", "{policy}", "{preferences}")

DRAWS = 4
"""Most attempts per prompt to get two responses that differ."""


class Response(NamedTuple):
    """A sampled response."""

    text: str
    finished: bool
    """It ended with the end token, and was not cut at the length limit."""


def run(stage: Stage) -> None:
    """Sample responses to prompts of the round, and pair them blind."""
    params: SampleParams = stage.params.sample
    compute, seeds = start_compute(stage.params.run), seeds_of(stage)
    policy, sft = Path(stage.round.policy), Path("models/sft")
    tokenizer = load_tokenizer(policy)
    tokens = load_special_ids(policy, tokenizer)
    rows = _fresh_prompts(stage)
    rows, prompts, too_long = encode_prompts(rows, tokenizer, params.max_prompt_tokens)
    rows, prompts = rows[: params.pairs], prompts[: params.pairs]
    num_against_sft = round(params.pairs * params.against_sft)
    models = {folder: load_frozen_policy(folder, compute) for folder in (policy, sft)}
    longest = longest_row("sample", params.max_prompt_tokens, params.sampling.max_new_tokens)
    check_positions(models[policy], longest)

    def respond(
        folder: Path, indices: Sequence[int], name: str, progress: Progress
    ) -> list[Response]:
        if not indices:
            return []
        ids = generator.respond(
            folder,
            models[folder],
            [prompts[index] for index in indices],
            params.sampling,
            batch_size=params.batch_size,
            seed=seeds.named("sample", name),
            progress=progress,
        )
        return [Response(decode_response(tokenizer, row), row[-1] in tokens.stops) for row in ids]

    pairs: dict[int, tuple[Response, Response]] = {}
    with Generator(stage, compute, tokens) as generator:
        for draw in range(DRAWS):
            left = [index for index in range(len(rows)) if index not in pairs]
            if not left:
                break
            unit = "redrawn" if draw else "responses"
            progress = Progress(stage.name, 2 * len(left), unit)
            against = [index for index in left if index < num_against_sft]
            first = respond(policy, left, f"first {draw}", progress)
            second = respond(policy, left[len(against) :], f"second {draw}", progress)
            second = respond(sft, against, f"sft {draw}", progress) + second
            progress.close()
            new = {
                index: (one, other)
                for index, one, other in zip(left, first, second, strict=True)
                if _comparable(one.text, other.text)
            }
            pairs |= new
    names = model_hash(policy), model_hash(sft)
    comparisons = [
        _comparison(
            stage, rows[index], pair, (names[0], names[1 if index < num_against_sft else 0])
        )
        for index, pair in sorted(pairs.items())
    ]
    counts = {"unusable": len(rows) - len(comparisons), "too_long": too_long}
    _write(stage, comparisons, counts, generator.differences)


def _fresh_prompts(stage: Stage) -> list[Mapping[str, Any]]:
    """Training prompts without preferences so far, in a random order of the round's own.

    Where nobody labels, all of them: a prompt is then not judged a second time.
    """
    rows, kind = load_prompts(Path("data/prepared/prompts/train.jsonl")), "prompts"
    if stage.params.label.annotators != "none":
        folder = Path(stage.round.preferences)
        used = {
            row["prompt_id"]
            for split in ("train", "heldout")
            for row in read_rows(folder / f"{split}.jsonl", PREFERENCES)
        }
        rows = [row for row in rows if row["prompt_id"] not in used]
        kind = "prompts without preferences"
    if len(rows) < stage.params.sample.pairs:
        raise StageEnd(
            "bad_input",
            f"data/prepared/prompts/train.jsonl: expected {stage.params.sample.pairs} {kind} "
            f"(sample.pairs), found {len(rows)}",
        )
    named_random(stage.params.run.seed, "sample", str(stage.round_key)).shuffle(rows)
    return list(rows)


def _comparable(one: str, other: str) -> bool:
    """Whether the responses differ and can be judged: not blank, and without NUL characters."""
    return _readable(one) and _readable(other) and one.split() != other.split()


def _readable(response: str) -> bool:
    return bool(response.strip()) and "\0" not in response


def _comparison(
    stage: Stage,
    row: Mapping[str, Any],
    pair: tuple[Response, Response],
    policies: tuple[str, str],
) -> dict[str, Any]:
    """A comparison; the pair's id decides which response is `a`, so sides carry no meaning."""
    prompt, identity = row["prompt"], pair_id(row["prompt"], *(side.text for side in pair))
    swap = int(identity, 16) % 2 == 1
    (one, other), (policy_a, policy_b) = (pair[::-1], policies[::-1]) if swap else (pair, policies)
    return {
        "pair_id": identity,
        "round": stage.round_key,
        "prompt_id": row["prompt_id"],
        "prompt": prompt,
        "response_a": one.text,
        "response_b": other.text,
        "finished_a": one.finished,
        "finished_b": other.finished,
        "policy_a": policy_a,
        "policy_b": policy_b,
    }


def _write(
    stage: Stage,
    comparisons: Sequence[Any],
    counts: Mapping[str, int],
    served: Mapping[str, float],
) -> None:
    if not comparisons:
        raise StageEnd(
            "stopped",
            "for no prompt are there two readable, differing responses; the policy has collapsed",
        )
    unique = list({row["pair_id"]: row for row in comparisons}.values())
    key = stage.round_key
    write_json_lines(stage.staging.file(f"data/rounds/{key}/comparisons.jsonl"), unique)
    metrics: dict[str, Any] = {"pairs": len(unique), **counts}
    if served:
        metrics["served_logprob_difference"] = dict(served)
    write_metrics(stage.staging.directory(f"results/sample/{key}"), metrics)
    stage.final(metrics)


if __name__ == "__main__":
    sys.exit(run_stage("sample", run, inputs=INPUTS, per_round=True, errors=ERRORS))
