"""The commands of docs/how-to/your-model.md, in a tiny world with a stand-in for SmolLM2.

The stand-in is a random Llama in Hugging Face format with a byte-level BPE and a chat template of
several turns. Everything else is as a reader has it: a clone, `make`, and values of params.yaml of
their own, which the preset leaves alone.
"""

from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from data.support_desk.splits import sample_requests
from data.support_desk.templates import select_templates
from rlhf.named_seeds import named_random
from tests.documents import PIECES, read
from tests.integration.tiny_checkout import World
from tests.stage_world import copy_tiny_repository, environment, set_up

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

DOCUMENT = "docs/how-to/your-model.md"
MODEL = "mine/SmolLM2-135M-Instruct"
LETTER = "Hello, this is Clara. My red lamp is broken. It was order 89.\n"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ELSEWHERE = "hf download"
"""Needs the hub."""


def write_stand_in(folder: Path) -> None:
    """A model folder as the hub has it."""
    requests = sample_requests(
        "train", 200, named_random(0, "bpe"), templates=select_templates(train=24)
    )
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.train_from_iterator(
        [request.text for request in requests],
        trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=1024, tie_word_embeddings=True,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("your_model")
    root = folder / "main"
    copy_tiny_repository(root, rounds=1)
    set_up(root)
    write_stand_in(root / MODEL)
    kept = {k: v for k, v in environment(folder).items() if not k.startswith(("MAKE", "MFLAGS"))}
    del kept["RLHF_SHIPPER"]
    made = World(root, kept)
    made.git("init", "--quiet", "--initial-branch=main")
    made.git("add", "--all")
    made.git("commit", "--quiet", "-m", "tiny")
    return made


def blocks() -> list[str]:
    """The lines of the page's bash blocks; commands in running text are beside the path."""
    pieces = PIECES.finditer(read(DOCUMENT))
    text = "".join(piece["block"] for piece in pieces if piece["language"] == "bash")
    return [line for line in text.splitlines() if not line.startswith(ELSEWHERE)]


def test_the_page_takes_a_reader_from_a_folder_to_a_conversation(world: World):
    take, show, again, chat, *without_downloads = blocks()
    assert take == f"make repro PRESET=smollm2-135m MODEL={MODEL}"
    # Half an hour of training; tests/unit/test_grown_model.py grows smaller ones.
    assert without_downloads == [
        "make repro",
        "python -m benchmarks.grown_model models/base mine/grown-135m",
        "python -m tasks.params.presets smollm2-135m --model mine/grown-135m",
    ]

    taken = world.run("bash", "-c", take)
    assert "3, your own, stays (preset: 8)" in taken
    params = YAML(typ="safe").load((world.root / "params.yaml").read_text(encoding="utf-8"))
    assert params["base"]["model"] == MODEL
    assert params["sft"]["optimiser"]["lr"] == 2e-5
    assert params["ppo"]["iterations"] == 3, "the reader's own"
    policy = world.json("models/rounds/r1/policy/manifest.json")
    assert policy["params"]["ppo"]["lora"]["rank"] == 16
    names = [policy["name"] for policy in world.json("reports/summary.json")["policies"]]
    assert names == ["sft", "r1"]

    assert "+  model: mine/" in world.run("bash", "-c", show)
    assert "Nothing to do" in world.run("bash", "-c", again)

    said = world.run("bash", "-c", f"set -o pipefail; printf '{LETTER}{LETTER}' | {chat}")
    assert [line.partition("\t")[0] for line in said.splitlines()] == ["policy", "sft"] * 2
