"""Folders that were made to do harm, or are damaged: refused by name, and nothing of them run."""

import contextlib
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import requires_backends

from rlhf.chat import TokenizerError
from rlhf.classifiers import load_classifier
from rlhf.model_folders import ModelFolderError, loading, save_model
from rlhf.models import load_policy, load_tokenizer
from rlhf.reward_models import load_reward_model
from tests import tiny

CPU = torch.device("cpu")
EVIL = "from pathlib import Path\nPath({hit!r}).touch()\nclass Evil: pass\n"


def test_code_in_a_model_folder_is_never_run(tmp_path: Path):
    folder, hit = tmp_path / "model", tmp_path / "hit"
    tiny.llama().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    (folder / "modeling_evil.py").write_text(EVIL.format(hit=str(hit)))
    for name, names in (
        (
            "config.json",
            ("AutoConfig", "AutoModelForCausalLM", "AutoModelForSequenceClassification"),
        ),
        ("tokenizer_config.json", ("AutoTokenizer",)),
    ):
        content = json.loads((folder / name).read_text())
        content["auto_map"] = {key: "modeling_evil.Evil" for key in names}
        content |= {"model_type": "evil", "tokenizer_class": "Evil"}
        (folder / name).write_text(json.dumps(content))

    with contextlib.suppress(ModelFolderError, TokenizerError):
        load_tokenizer(folder)  # May come as a plain one: what it says needs no code.
    for load in (
        lambda: load_policy(folder, CPU),
        lambda: load_reward_model(folder, CPU, torch.Generator()),
    ):
        with pytest.raises(ModelFolderError, match="cannot be loaded"):
            load()
    assert not hit.exists()


class Trap:
    """Unpickling it touches a file."""

    def __init__(self, hit: Path):
        self.hit = hit

    def __reduce__(self):
        return (Path.touch, (self.hit,))


def test_pickled_weights_are_never_read(tmp_path: Path):
    folder, hit = tmp_path / "model", tmp_path / "hit"
    tiny.llama().save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "adapter_model.bin", "training_args.bin"):
        torch.save(Trap(hit), folder / name)

    with pytest.raises(ModelFolderError, match=r"no weights in safetensors format .*pickled"):
        load_policy(folder, CPU)
    # Weights under a name that is none make the loader look for another file.
    save_file({"a": torch.ones(1)}, folder / "other.safetensors")
    with pytest.raises(ModelFolderError, match=f"{folder}: cannot be loaded"):
        load_policy(folder, CPU)
    assert not hit.exists()


@pytest.mark.parametrize("damage", ["cut", "empty", "config"])
def test_a_damaged_model_folder_is_refused_with_one_line_that_names_it(tmp_path: Path, damage: str):
    folder = tmp_path / "model"
    tiny.llama().save_pretrained(folder)
    weights, config = folder / "model.safetensors", folder / "config.json"
    match damage:
        case "cut":
            weights.write_bytes(weights.read_bytes()[:-10])
        case "empty":
            weights.write_bytes(b"")
        case "config":
            config.write_text(config.read_text()[:-10])

    with pytest.raises(ModelFolderError) as caught:
        load_policy(folder, CPU)
    assert str(folder) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "evil"}, "model_type is 'evil', which transformers does not have"),
        (
            {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}},
            r"needs code of its own \(auto_map\), and code in a model's folder is never run",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, "its weights are quantised"),
        ({"layer_types": ["sideways"] * 2}, r"cannot be loaded: .*layer_types.*'sideways'"),
        ({"model_type": "t5"}, "cannot be loaded: Unrecognized configuration class"),
        ({"pad_token_id": 16}, "cannot be loaded: Padding_idx must be within num_embeddings"),
        pytest.param(
            {"attn_implementation": "flash_attention_2"},
            "cannot be loaded: FlashAttention2 .*doesn't seem to be installed",
            marks=pytest.mark.skipif(find_spec("flash_attn") is not None, reason="it is installed"),
        ),
    ],
    ids=[
        "unknown",
        "remote code",
        "quantised",
        "value of a key",
        "encoder-decoder",
        "padding",
        "package",
    ],
)
def test_a_model_that_cannot_be_used_is_refused_for_its_config(tmp_path: Path, changes, said):
    tiny.llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelFolderError, match=said) as caught:
        load_policy(tmp_path, CPU)
    assert len(str(caught.value).splitlines()) == 1


def test_a_package_that_is_needed_is_named(tmp_path: Path):
    """The library says so behind an empty line."""
    said = f"^{tmp_path}: cannot be loaded: .* requires the SentencePiece library"
    with pytest.raises(ModelFolderError, match=said), loading(tmp_path):
        requires_backends("A tokenizer", "sentencepiece")


@pytest.mark.parametrize("load", [load_policy, load_classifier])
def test_merged_weights_beside_their_adapter_are_not_given_it_again(tmp_path: Path, load):
    tiny.llama().save_pretrained(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelFolderError, match=r"where these weights are the merged ones, remove"):
        load(tmp_path, CPU)


def test_a_folder_with_an_adapter_alone_is_refused_with_the_way_out(tmp_path: Path):
    (tmp_path / "adapter_config.json").write_text("{}")
    save_file({"a": torch.ones(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelFolderError, match=r"holds an adapter .*merge it into its base model"):
        load_policy(tmp_path, CPU)


def test_code_that_a_model_of_a_known_family_brings_is_not_needed(tmp_path: Path):
    """Phi-3's folders name code of their own, older than the library's."""
    tiny.llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_llama.LlamaForCausalLM"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_policy(tmp_path, CPU).num_parameters() == tiny.llama().num_parameters()


@pytest.mark.parametrize("build", [tiny.llama, tiny.gpt2, lambda: tiny.reward_model().classifier])
def test_weights_stored_in_bfloat16_take_half_and_come_back_rounded(build, tmp_path: Path):
    """A tied head stays the embedding, stored once; the model in memory loses no digit."""
    model = build()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    save_model(model, tmp_path / "whole")
    save_model(model, tmp_path / "half", "bfloat16")
    whole, half = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "half"))
    assert whole.keys() == half.keys()
    assert sum(one.nbytes for one in half.values()) * 2 == sum(one.nbytes for one in whole.values())
    again = type(model).from_pretrained(tmp_path / "half", dtype=torch.float32)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])
        found = again.state_dict()[name]
        assert torch.equal(found, weight.bfloat16().float())
        assert ((found - weight).abs() <= 2**-8 * weight.abs()).all()
    configs = [json.loads((tmp_path / n / "config.json").read_text()) for n in ("whole", "half")]
    assert configs[0] | {"dtype": "bfloat16"} == configs[1] != configs[0]
