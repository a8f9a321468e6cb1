"""The speed benchmark: responses end as often as they should, and the page computes its figures."""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    scaling_page,
    speed,
    speed_environment,
    speed_numbers,
    speed_ours,
    speed_page,
    speed_world,
)
from rlhf import bits
from rlhf.generation import sample_responses
from rlhf.models import load_policy
from rlhf.params.sampling import SamplingParams
from tests.tiny import COMPUTE


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chance", [1 / 32, 0.0])
def test_the_end_token_has_its_chance_at_every_position(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chance: float, tied: bool
):
    from transformers import LlamaForCausalLM

    shape = speed_world.SIZES["tiny"] | {"tied": tied}
    monkeypatch.setitem(speed_world.SIZES, "tiny", shape)
    speed_world.write_world(tmp_path, "tiny", "ragged" if chance else "uniform")
    policy = LlamaForCausalLM.from_pretrained(tmp_path / "policy").eval()
    ids = torch.randint(2, 64, (8, 40), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        ends = policy(input_ids=ids).logits.softmax(dim=-1)[..., speed_world.END]
    assert abs(ends.mean().item() - chance) < 0.2 * chance + 1e-9
    assert ends.max() < 2 * chance + 1e-9


def test_lengths_are_those_of_a_chance_at_each_token_whatever_their_number():
    for count in (16, 64, 256):
        lengths = speed_world.drawn_lengths(count)
        # sum over t of (31/32)^(t-1): the mean of a geometric length that is cut at 64.
        expected = sum((31 / 32) ** (t - 1) for t in range(1, 65))
        assert statistics.fmean(n or 64 for n in lengths) == pytest.approx(expected, abs=0.6)
        assert lengths.count(None) / count == pytest.approx((31 / 32) ** 64, abs=1.01 / count)
        assert lengths != sorted(lengths, key=lambda n: n or 65)


@pytest.mark.parametrize("shape", ["tiny", pytest.param("135M", marks=pytest.mark.long)])
def test_both_ways_of_forcing_a_length_give_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shape: str
):
    """Through our draws and through logits; at 135M's width and vocabulary, with fewer layers."""
    fewer = speed_world.SIZES[shape] | {"layers": 2, "responses": 16}
    monkeypatch.setitem(speed_world.SIZES, "few", fewer)
    speed_world.write_world(tmp_path, "few", "ragged")
    rows = json.loads((tmp_path / "rows.json").read_text())[:16]
    wanted = [row["length"] for row in rows]
    assert min(n or 64 for n in wanted) <= 2
    assert None in wanted
    lm = load_policy(tmp_path / "policy", torch.device("cpu"))
    prompts = [row["prompt"] for row in rows]
    ids = torch.tensor(prompts)
    stop = {"stop_ids": [speed_world.END], "pad_id": speed_world.PAD}
    table = speed_ours.with_lengths(speed_world.lengths_by_prompt(rows))
    ours = sample_responses(
        lm, ids, torch.ones_like(ids, dtype=torch.bool), SamplingParams(max_new_tokens=64),
        draws=table(0, prompts, 64), **stop,
    )  # fmt: skip
    assert ours.response_mask.sum(dim=1).tolist() == [n or 64 for n in wanted]
    assert ours.ended.tolist() == [n is not None for n in wanted]
    assert len(set(ours.response_ids[ours.response_mask].tolist())) > 20  # Else sampled as ever.
    for step in (0, 1, 30, 63):
        forced = speed_world.force_ends(torch.randn(16, 64), step, wanted).softmax(dim=-1)
        ends = torch.tensor([float(n == step + 1) for n in wanted])
        assert torch.equal(forced[:, speed_world.END], ends)


def test_responses_of_other_lengths_than_asked_are_refused():
    results = {"ppo-separate": {"phases": {"tokens": 300.0}}, "sft": {"steps": [1.0]}}
    speed.require_tokens("trl", results, 300)
    with pytest.raises(SystemExit, match=r"trl, ppo-separate: 299 tokens were .* but 300 sampled"):
        speed.require_tokens("trl", results, 299)


@pytest.mark.long
def test_the_end_has_the_same_chance_in_a_model_of_many_layers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Else a draw that should miss it hits it somewhere, and a response is shorter than asked."""
    deep = speed_world.SIZES["tiny"] | {"layers": 30, "vocabulary": 4096, "width": 384, "heads": 6}
    monkeypatch.setitem(speed_world.SIZES, "deep", deep)
    speed_world.write_world(tmp_path, "deep", "ragged")
    lm = load_policy(tmp_path / "policy", torch.device("cpu"))
    ids = torch.randint(2, 4096, (16, 96), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        chances = lm(ids).logits.softmax(dim=-1)[..., speed_world.END]
    assert chances.max() < 2 * speed_world.ENDING
    assert chances.min() > speed_world.ENDING / 2
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert speed.tokens_asked(rows, "deep") == sum(row["length"] or 64 for row in rows[:16])


def test_long_responses_are_of_ppo_alone_and_count_what_a_step_reads(tmp_path: Path):
    speed_world.write_world(tmp_path, "tiny", "long")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert speed_world.works_of("tiny", rows) == ("ppo-separate", "ppo-shared")
    assert {len(row["prompt"]) for row in rows} == {256}
    assert speed.tokens_asked(rows, "tiny") == 16 * 512
    assert speed_world.micro_batch_of("1B", "cuda", "bfloat16", rows) == 8
    assert speed_world.micro_batch_of("135M", "cpu", "float32", rows) == 4
    assert speed_world.micro_batch_of("135M", "cpu", "bfloat16", rows) == 16
    read = speed_ours.read_by_rollout(tmp_path, COMPUTE, rows[:16])
    # Two layers, two heads of 16, keys and values of 4 bytes; tokens 257 to 767 before a step.
    assert read["cached"] == 16 * sum(range(257, 768)) * 2 * 2 * 2 * 16 * 4
    assert read["steps"] == 512


def test_products_with_float32_sums_are_counted_as_others_are():
    counter = FlopCounterMode(display=False, custom_mapping=speed_ours.FORMULAS)
    count = counter.flop_registry[torch.ops.aten.addmm]
    shapes = [torch.empty(shape, device="meta") for shape in ((5, 7), (5, 3), (3, 7))]
    # As torch asks when the product is added in place; and as it always does.
    asked = count(*shapes, torch.float32, out=shapes[0], out_val=shapes[0])
    assert asked == count(*shapes, out_val=shapes[0]) == 2 * 5 * 3 * 7


PINS = [*bits.PORTABLE, speed_environment.BEFORE]
WHAT_IT_READS = f"""
import json, os
print(json.dumps({{name: os.environ[name] for name in {PINS} if name in os.environ}}))
"""
"""Stands for either side's process: what its libraries would read."""


@pytest.mark.skipif(bits.obstacle() is not None, reason="portable bits need AVX2")
def test_the_other_side_gets_none_of_our_pins_and_ours_those_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert "MKL_CBWR" in os.environ  # Of this process: tests have portable bits.
    # The user of this test has set none of them.
    monkeypatch.setenv(speed_environment.BEFORE, json.dumps(dict.fromkeys(bits.PORTABLE)))
    script = tmp_path / "reads.py"
    script.write_text(WHAT_IT_READS)

    def reads(side: str, asked: str) -> dict[str, str]:
        options = argparse.Namespace(threads=1, bits=asked, avx2=False)
        environment = speed.environment_of(side, options)
        return speed._run([sys.executable, str(script)], environment)

    theirs = next(
        side for side in speed.commands({Path("python"): "speed_trl.py"}) if side != "ours"
    )
    pinned = {name: value for name, value in bits.PORTABLE.items() if value is not None}
    assert reads(theirs, "portable") == reads(theirs, "native") == {}
    assert reads("ours", "portable") == pinned
    assert reads("ours", "native") == bits.NATIVE


def test_avx_512_is_kept_from_both_sides_where_it_is_asked_so(monkeypatch: pytest.MonkeyPatch):
    """Each library's name for it; the rows of such a run have a file and a machine of their own."""
    monkeypatch.setattr(speed, "processor", lambda: "Intel(R) Xeon(R) (family 6, model 207)")
    options = argparse.Namespace(threads=1, bits="native", precision="float32", avx2=True)
    for side in ("ours", "trl speed_trl.py"):
        environment = speed.environment_of(side, options)
        assert environment["MKL_ENABLE_INSTRUCTIONS"] == "AVX2"
        assert environment["ATEN_CPU_CAPABILITY"] == "avx2"
        assert environment["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    assert speed._name("cpu", "4M", options) == "cpu-4M-intel-6-207-with-avx2.json"
    assert speed._machine(options, "cpu").endswith(", confined to AVX2")
    options.avx2 = False
    assert "MKL_ENABLE_INSTRUCTIONS" not in speed.environment_of("ours", options)
    assert speed._name("cpu", "4M", options) == "cpu-4M-intel-6-207.json"


def test_what_a_user_has_set_comes_back_and_native_bits_leave_it():
    users = {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41", "HOME": "/h"}
    replaced = dict.fromkeys(bits.PORTABLE) | {
        name: users[name] for name in ("MKL_CBWR", "ONEDNN_MAX_CPU_ISA")
    }
    pinned = {name: value for name, value in bits.PORTABLE.items() if value is not None}
    chosen = {"HOME": "/h", **pinned, speed_environment.BEFORE: json.dumps(replaced)}
    assert speed_environment.without_pins(chosen) == users
    assert speed_environment.with_bits("native", chosen) == users
    assert speed_environment.with_bits("portable", users) == {"HOME": "/h", **pinned}
    # Of a parent with native bits, which leaves no word of what was there before.
    native = {"HOME": "/h", **bits.NATIVE}
    assert speed_environment.without_pins(native) == {"HOME": "/h"}
    assert speed_environment.with_bits("native", {"HOME": "/h"}) == native


def iteration(total: float, update: float, **more: float) -> dict[str, object]:
    phases = {"total": total, "rollout": 0.5, "scoring": 0.25, "update": update, "tokens": 300.0}
    return {"phases": phases, "peak": 5e8, "ceiling": 2e9, **more}


def test_the_page_has_medians_ratios_and_the_share_of_the_ceiling(tmp_path: Path):
    memory = {"weights": 1e6, "bandwidth": 3.2e8}
    ours = [
        iteration(2.0, 1.0, flops=1.5e9, **memory),
        iteration(4.0, 2.0, **memory, steps=32, cached=3.2e7),
        iteration(3.0, 1.5, **memory),
    ]
    trl = [iteration(5.0, 4.0), iteration(6.0, 5.0), iteration(9.0, 8.0)]
    same = {"size": "4M", "lengths": "ragged"}
    steps = [{"steps": [0.2, 0.1, 0.4], "peak": peak} for peak in (2e8, 3e8, 1e8)]
    rows = [
        {**same, "work": "ppo-separate", "ours": ours, "trl": trl},
        {**same, "work": "ppo-shared", "ours": [iteration(1.0, 0.5)] * 3},
        {
            **same,
            "work": "sft",
            "ours": steps,
            "trl": [{"steps": [0.3, 0.5, 0.1], "peak": 4e8}] * 3,
        },
    ]
    versions = {"ppo": "1", "sft": "2", "reward": "3"}
    found = {
        "machine": "M", "threads": 1, "runs": 3, "trl": versions, "load": [1.0, 7.5], "rows": rows,
        "bits": {"ours": "native", "trl": "native"}, "ends": "as told",
    }  # fmt: skip
    (tmp_path / "cpu-4M-m.json").write_text(json.dumps(found))
    # Another size, measured on another day.
    small = [
        {"size": "0.6M", "lengths": "ragged", "work": "ppo-separate", "ours": [iteration(7.0, 2)]}
    ]
    # With portable bits for us: rows of their own, beside the TRL of the same measurement.
    slow = [
        {
            **same,
            "work": "ppo-separate",
            "ours": [iteration(10.0, 5.0, kernels="AVX2")] * 3,
            "trl": [iteration(5.0, 4.0, kernels="AVX512")] * 3,
        }
    ]
    confined = found | {"bits": {"ours": "portable", "trl": "native"}, "rows": slow}
    (tmp_path / "cpu-4M-portable-m.json").write_text(json.dumps(confined))
    other = found | {
        "machine": "N",
        "runs": 1,
        "load": [0.5],
        "rows": small,
        "iteration": 2,
        "note": " Of two.",
    }
    (tmp_path / "cpu-0.6M-n.json").write_text(json.dumps(other))
    speed_page.write_page(tmp_path / "page.md", tmp_path)
    page = (tmp_path / "page.md").read_text()
    same_bits = "4M | ragged | float32 | native / native | M |"
    separate = f"| PPO iteration, separate value model | {same_bits} 3.000 [2.000, 4.000] | "
    assert f"{separate}6.000 [5.000, 9.000] | **2.00** |" in page
    # TRL has no shared trunk: its separate model is what the row compares with.
    assert (
        f"shared trunk | {same_bits} 1.000 [1.000, 1.000] | 6.000 [5.000, 9.000] | **6.00**" in page
    )
    assert (
        f"| SFT step | {same_bits} 0.200 [0.200, 0.200] | 0.300 [0.300, 0.300] | **1.50** |" in page
    )
    # 1.5e9 operations in 1, 2 and 1.5 s at a ceiling of 2e9 a second: 75, 38 and 50 %.
    # 64 steps in 0.5 s, each of which reads 1e6 bytes, at a bandwidth of 3.2e8 a second: 40 %.
    # Of the second run half as many steps, and as much again in keys and values.
    assert "| ours | 0.50 | 0.25 | 1.50 | 300 | 600 | 50% | 40% |" in page
    assert "| trl | 0.50 | 0.25 | 5.00 | 300 | 600 | – | – |" in page
    # The most of any run, of training steps, too; a shared trunk beside TRL's separate model.
    assert f"| SFT step | {same_bits} 300 MB | 400 MB | 75% |" in page
    assert f"| PPO iteration, shared trunk | {same_bits} 500 MB | 500 MB | 100% |" in page
    assert (
        "separate value model | 0.6M | ragged | float32 | native / native | N | 500 MB | – | – |"
        in page
    )
    # 0.5 s for 300 tokens on either side.
    generation = f"| generation, 1,000 tokens | {same_bits} 1.667 [1.667, 1.667] | 1.667 [1.667, "
    assert f"{generation}1.667] | **1.00** |" in page
    assert (
        "- 4M, float32, native / native: M, 1 thread(s), CPU seconds of all threads; medians of 3"
        in page
    )
    versions = "TRL 1 for PPO, 2 for SFT, 3 for reward training."
    first = "ragged lengths as told; of PPO the first iteration;"
    assert f"load average 1.0 to 7.5; {first} {versions}" in page
    assert "- 0.6M, float32, native / native: N, 1 thread(s)" in page
    assert "ragged lengths as told; of PPO the second iteration; without TRL. Of two." in page
    assert (
        "separate value model | 0.6M | ragged | float32 | native / native | N | 7.000 | – | – |"
        in page
    )
    confined_row = (
        "| 4M | ragged | float32 | portable / native | M | 10.000 [10.000, 10.000] | 5.000 "
    )
    assert confined_row in page
    assert (
        "- 4M, float32, portable / native: M, kernels: ours AVX2, trl AVX512, ceiling in "
        "GFLOP/s: ours 2, trl 2, 1 thread(s)" in page
    )
    in_short = page.partition("- 0.6M, float32")[0]
    assert f"| {same_bits} 2.00 | 6.00 | 1.00 | 1.50 | – |" in in_short
    assert "| 4M | ragged | float32 | portable / native | M | 0.50 | – | 1.00 | – | – |" in in_short
    assert f"| 0.6M | ragged | float32 | native / native | N |{' – |' * 5}" in in_short
    assert "Not measured here: 135M, 1B." in page
    assert page.count("**Not measured**") == 1


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ("AMD EPYC (family 26, model 2), 2 cores", "AMD 26/2"),
        ("Intel(R) Xeon(R) Processor (family 6, model 207), 2 cores", "Intel 6/207"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
    ],
)
def test_a_machine_has_a_short_name(machine: str, expected: str):
    assert speed_numbers.short(machine) == expected


def test_bfloat16_has_rows_of_its_own_beside_trl_in_bfloat16(tmp_path: Path):
    """Measured on the same day as a row of float32, of which it must take nothing."""
    same = {"size": "4M", "lengths": "uniform", "work": "ppo-separate"}
    found = {
        "machine": "M", "threads": 1, "runs": 1, "load": [0.5], "ends": speed_page.DRAWN,
        "trl": {"ppo": "1", "sft": "2", "reward": "3"}, "bits": {"ours": "native", "trl": "native"},
    }  # fmt: skip
    for precision, suffix, ours, trl in (("float32", "", 2, 3), ("bfloat16", "-bfloat16", 1, 5)):
        row = same | {"ours": [iteration(ours, 0.5)], "trl": [iteration(trl, 0.5)]}
        text = json.dumps(found | {"precision": precision, "rows": [row]})
        (tmp_path / f"cpu-4M{suffix}-m.json").write_text(text)
    speed_page.write_page(tmp_path / "page.md", tmp_path)
    page = (tmp_path / "page.md").read_text()
    assert "| 4M | uniform | float32 | native / native | M | 2.000 | 3.000 | **1.50** |" in page
    assert "| 4M | uniform | bfloat16 | native / native | M | 1.000 | 5.000 | **5.00** |" in page
    assert "- 4M, bfloat16, native / native: M" in page
    goal = "| PPO iteration, separate value model, TRL / ours | 4M | uniform | bfloat16 |"
    assert f"{goal} native / native | M | at least 1.15 | 5.00 | yes |" in page


def test_the_page_is_what_the_measurements_say(tmp_path: Path):
    speed_page.write_page(tmp_path / "page.md", speed.RESULTS)
    assert (tmp_path / "page.md").read_text() == (speed.ROOT / "docs/benchmarks.md").read_text()


def test_the_exponents_are_those_of_the_power_laws_that_made_the_points():
    # Runs of three, median in the middle: 2 n^1.5; and 5 n^0.25, given out of order.
    points = [
        {"axis": "tokens", "value": n, "seconds": [0.5 * n**1.5, 2 * n**1.5, 9 * n**1.5]}
        for n in (4, 16, 64)
    ] + [{"axis": "rounds", "value": n, "seconds": [5 * n**0.25] * 3} for n in (4, 1, 2)]
    found = {"machine": "M", "runs": 3, "load": [0.0, 1.0], "points": points}
    text = "\n".join(scaling_page.section(found))
    assert "| tokens | 4 | 64 | 16.00 to 1024.00 | 1.50 | 1.50 |" in text
    assert "| rounds | 1 | 4 | 5.00 to 7.07 | 0.25 | 0.25 |" in text
