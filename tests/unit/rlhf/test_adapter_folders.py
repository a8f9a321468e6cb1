"""Adapters are merged, saved and read again, by `peft` itself too."""

import copy
import json

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf.lora import (
    ADAPTER,
    adapter_off,
    adapter_weights,
    has_adapter,
    load_adapter,
    merged,
    take_adapter,
)
from rlhf.model_folders import ModelFolderError, save_model
from rlhf.models import load_policy
from rlhf.params.lora import LoraParams
from tests import families, tiny
from tests.unit.rlhf.adapted_models import BOTH, CPU, IDS, LORA, adapted


@BOTH
@torch.no_grad()
def test_s38_merged_equals_unmerged_and_is_a_plain_model(assert_close, build):
    model = adapted(build)
    expected = model(IDS).logits
    take_adapter(model)
    assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-4)
    assert set(model.state_dict()) == set(build().state_dict())
    assert not has_adapter(model)
    assert all(weight.requires_grad for weight in model.parameters())


@BOTH
@torch.no_grad()
def test_s38_a_merged_copy_is_what_the_model_is_now_which_stays_in_training(assert_close, build):
    model = adapted(build)
    expected, before = model(IDS).logits, copy.deepcopy(model.state_dict())
    plain = merged(model, build(), LORA)
    assert_close(plain(IDS).logits, expected, rtol=1e-4, atol=1e-4)
    assert set(plain.state_dict()) == set(build().state_dict())
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    assert torch.equal(model(IDS).logits, expected)


@BOTH
@torch.no_grad()
def test_s49_saved_merged_the_folder_loads_like_any_model(assert_close, build, tmp_path):
    model = adapted(build)
    expected = model(IDS).logits
    adapter = take_adapter(model)
    model.save_pretrained(tmp_path)
    adapter.save(tmp_path / ADAPTER)
    assert_close(load_policy(tmp_path, CPU)(IDS).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@BOTH
@torch.no_grad()
def test_s49_what_an_adapter_leaves_alone_is_one_file_for_all_who_share_it(build, stored, tmp_path):
    for seed in (3, 4):
        model = adapted(build, seed)
        adapter = take_adapter(model)
        save_model(model, tmp_path / f"{seed}", stored, adapter.changed)
        want = {name: w.to(getattr(torch, stored)) for name, w in model.state_dict().items()}
        found = load_policy(tmp_path / f"{seed}", CPU).state_dict()
        assert found.keys() == want.keys()
        assert all(torch.equal(found[name].to(w.dtype), w) for name, w in want.items())

    names = sorted(path.name for path in (tmp_path / "3").glob("*.safetensors"))
    assert names == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    same = [(tmp_path / "3" / n).read_bytes() == (tmp_path / "4" / n).read_bytes() for n in names]
    assert same == [True, False]
    below = {
        name for name, w in build().state_dict().items() if torch.equal(w, model.state_dict()[name])
    }
    assert set(load_file(tmp_path / "3" / names[0])) == below - {"lm_head.weight"}
    index = json.loads((tmp_path / "3/model.safetensors.index.json").read_text())
    files = [load_file(tmp_path / "3" / name) for name in names]
    assert index["weight_map"].keys() == {name for file in files for name in file}
    total = sum(w.nbytes for file in files for w in file.values())
    assert index["metadata"] == {"total_size": total}
    assert not list((tmp_path / "3").glob("written*"))


def test_s49_weights_that_the_format_joins_from_both_halves_are_one_file(tmp_path):
    """HRM's folders have query, key, value and gate in one weight."""

    def build():
        config = AutoConfig.for_model("hrm_text", **families.SIZES)
        return AutoModelForCausalLM.from_config(config).eval()

    model = adapted(build, params=LoraParams(rank=4, alpha=8, targets=["q_proj"]))
    save_model(model, tmp_path, changed=take_adapter(model).changed)
    assert [path.name for path in tmp_path.glob("*.safetensors*")] == ["model.safetensors"]
    loaded = load_policy(tmp_path, CPU).state_dict()
    assert all(torch.equal(loaded[name], w) for name, w in model.state_dict().items())


@BOTH
@torch.no_grad()
def test_s49_peft_reads_the_adapter_folder(build, tmp_path):
    model = adapted(build)
    expected = model(IDS).logits
    take_adapter(model).save(tmp_path / ADAPTER)
    assert torch.equal(PeftModel.from_pretrained(build(), tmp_path / ADAPTER)(IDS).logits, expected)


@BOTH
@torch.no_grad()
def test_s38_a_later_round_continues_with_the_adapter_and_its_reference_is_still_sft(
    build, tmp_path
):
    model = adapted(build)
    expected = model(IDS).logits
    take_adapter(model).save(tmp_path / ADAPTER)
    later = build()
    load_adapter(later, tmp_path / ADAPTER, LORA)
    assert torch.equal(later(IDS).logits, expected)
    with adapter_off(later):
        assert torch.equal(later(IDS).logits, build()(IDS).logits)
    assert all(weight.requires_grad for weight in adapter_weights(later).values())


def test_a_policy_without_adapter_and_one_of_another_shape_are_refused(tmp_path):
    with pytest.raises(ModelFolderError, match=r"expected an adapter .*, found none; with LoRA"):
        load_adapter(tiny.llama(), tmp_path, LORA)
    take_adapter(adapted()).save(tmp_path / ADAPTER)
    with pytest.raises(ModelFolderError, match="r is 4, expected 6"):
        load_adapter(tiny.llama(), tmp_path / ADAPTER, LoraParams(rank=6, alpha=8))
    with pytest.raises(ModelFolderError, match="lora_alpha is 8, expected 9"):
        load_adapter(tiny.llama(), tmp_path / ADAPTER, LoraParams(rank=4, alpha=9))
    with pytest.raises(ModelFolderError, match="adapter of another model, or with other targets"):
        load_adapter(tiny.gpt2(), tmp_path / ADAPTER, LORA)


def test_the_same_adapter_gives_the_same_bytes(tmp_path):
    """peft writes sets in an order that changes from process to process."""
    for name in ("one", "other"):
        take_adapter(adapted()).save(tmp_path / name)
    files = [(tmp_path / name / "adapter_config.json").read_text() for name in ("one", "other")]
    assert files[0] == files[1]
    targets = json.loads(files[0])["target_modules"]
    assert targets == sorted(targets)


def test_an_adapters_config_names_no_version_and_peft_reads_it(tmp_path):
    take_adapter(adapted()).save(tmp_path / "one")
    assert "peft_version" not in json.loads((tmp_path / "one/adapter_config.json").read_text())
    assert LoraConfig.from_pretrained(tmp_path / "one").r == LORA.rank
