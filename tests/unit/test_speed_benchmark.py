"""The speed benchmark: responses end as often as they should, and both sides run as they should."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    speed,
    speed_environment,
    speed_ours,
    speed_world,
)
from rlhf import bits, ppo, rollouts
from rlhf.cuda_graphs import SWITCH
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


def test_what_is_counted_has_no_recordings_but_for_sampling(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Long responses without them keep a GPU waiting for its host; scores round as updates do."""
    seen: dict[str, str | None] = {}

    def note(module: ModuleType, name: str) -> None:
        function = getattr(module, name)

        def call(*args, **kwargs):
            seen[name] = os.environ.get(SWITCH)
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    monkeypatch.setattr(ppo, "draw_table", ppo.draw_table)  # To have it back.
    monkeypatch.setenv(SWITCH, "1")
    speed_world.write_world(tmp_path, "tiny", "uniform")
    rows = json.loads((tmp_path / "rows.json").read_text())
    iterations = speed_ours.ppo_iterations(tmp_path, rows, "tiny", COMPUTE, "ppo-shared")
    for module, name in ((rollouts, "sample_responses"), (rollouts, "_score"), (ppo, "update")):
        note(module, name)
    assert speed_ours.count(iterations) > 0
    assert seen == {"sample_responses": "1", "_score": "0", "update": "0"}
    assert os.environ[SWITCH] == "1"


def test_products_with_float32_sums_are_counted_as_others_are():
    counter = FlopCounterMode(display=False, custom_mapping=speed_ours.FORMULAS)
    count = counter.flop_registry[torch.ops.aten.addmm]
    shapes = [torch.empty(shape, device="meta") for shape in ((5, 7), (5, 3), (3, 7))]
    # As torch asks when the product is added in place; and as it always does.
    asked = count(*shapes, torch.float32, out=shapes[0], out_val=shapes[0])
    assert asked == count(*shapes, out_val=shapes[0]) == 2 * 5 * 3 * 7


SETTINGS = """
class PPOConfig:
    def __init__(self, **settings):
        print(settings["local_rollout_forward_batch_size"])
        raise SystemExit
PPOTrainer = ppo_trainer = None
"""
"""Stands for TRL: says how many responses it is to decode together."""


@pytest.mark.long
@pytest.mark.parametrize(("size", "responses"), [("tiny", 16), ("4M", 64)])
def test_trl_decodes_a_whole_rollout_together_as_ours_does(
    tmp_path: Path, size: str, responses: int
):
    (tmp_path / "trl" / "experimental").mkdir(parents=True)
    (tmp_path / "trl" / "experimental" / "ppo.py").write_text(SETTINGS)
    ask = (
        "import speed_trl_ppo as trl;"
        f"trl.ppo(None, [{{'most': 64}}], '{size}', trl.world.Clock('cpu'), {{}})"
    )
    folders = [str(tmp_path), str(speed.ROOT / "benchmarks")]
    done = subprocess.run(
        [sys.executable, "-c", ask],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == responses


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
