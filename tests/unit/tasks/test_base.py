"""The stage `base`: what is fetched of a model on the hub."""

from huggingface_hub.utils import filter_repo_objects

from tasks.base import BELOW, READ

READ_ONES = [
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt",
    "tokenizer.model", "spiece.model", "chat_template.jinja", "model.safetensors",
    "model.safetensors.index.json", "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors", "adapter_config.json",
]  # fmt: skip
LEFT_ONES = [
    ".gitattributes", "README.md", "LICENSE", "pytorch_model.bin",
    "pytorch_model-00001-of-00002.bin", "model.fp16.safetensors", "consolidated.safetensors",
    "consolidated.00.pth", "tf_model.h5", "flax_model.msgpack", "rust_model.ot", "model.gguf",
    "onnx/model.onnx", "onnx/config.json", "original/consolidated.00.pth", "original/params.json",
    "original/tokenizer.model", "runs/1/model.safetensors", "training_args.bin",
    "modeling_evil.py", "metal/model.bin", "value_head.safetensors",
]  # fmt: skip
"""Files of repositories on the hub: of Llama 3.2, Mistral, GPT-2, Gemma and others."""


def test_only_the_files_that_are_read_are_fetched():
    everything = sorted([*READ_ONES, *LEFT_ONES])
    found = filter_repo_objects(everything, allow_patterns=READ, ignore_patterns=BELOW)
    assert sorted(found) == sorted(READ_ONES)
