"""Grows a small Llama to the size of a model that people bring, without changing what it says.

    python -m benchmarks.grown_model models/base mine/grown --layers 19 --hidden 768 --mlp 2048

So the whole pipeline can be tried with 135 million parameters where no such model is at hand: the
grown model has the logits of the small one, up to rounding, and every new weight can be trained.
New dimensions of the residual stream begin at zero, since nothing writes to them: the rows of
`o_proj` and `down_proj` that would are zero, as all of them are in new layers (as in Net2Net, Chen
et al. 2016, whose identity layers these are). What reads is random, so that training has gradients.
A norm's mean is over more dimensions now, so its epsilon shrinks by the ratio, its weights by the
root of it.
"""

import argparse
import copy
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from rlhf.model_folders import require_model_folder

WRITERS = ("embed_tokens", "o_proj", "down_proj")
"""Modules that write to the residual stream."""


@torch.no_grad()
def grow(small: LlamaForCausalLM, *, layers: int, hidden: int, mlp: int) -> LlamaForCausalLM:
    """The same function with more weights.

    Raises:
        ValueError: a size is smaller than the model's, or `hidden` is no multiple of its heads'.
    """
    config = copy.deepcopy(small.config)
    sizes = {
        "layers": (config.num_hidden_layers, layers),
        "hidden": (config.hidden_size, hidden),
        "mlp": (config.intermediate_size, mlp),
    }
    for name, (found, wanted) in sizes.items():
        if wanted < found:
            raise ValueError(f"--{name} {wanted} is less than the model's {found}")
    if hidden % config.head_dim:
        raise ValueError(f"--hidden {hidden} is no multiple of the heads' size, {config.head_dim}")
    if config.num_key_value_heads != config.num_attention_heads:
        raise ValueError("a model whose heads share keys cannot be grown")
    shrink = math.sqrt(config.hidden_size / hidden)
    config.rms_norm_eps *= config.hidden_size / hidden
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = layers, hidden, mlp
    config.num_attention_heads = config.num_key_value_heads = hidden // config.head_dim
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        large = LlamaForCausalLM(config).eval()
    known = dict(small.named_parameters())
    for name, weight in large.named_parameters():
        if any(part in name for part in WRITERS):
            weight.zero_()
        if name in known:
            old = known[name] * shrink if weight.dim() == 1 else known[name]
            weight[tuple(slice(size) for size in old.shape)] = old
    return large


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code, 2 for a model or sizes that cannot be grown."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.grown_model", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("small", type=Path, help="a folder, such as models/base")
    parser.add_argument("folder", type=Path, help="where the grown model goes")
    parser.add_argument("--layers", type=int, default=19)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--mlp", type=int, default=2048)
    options = parser.parse_args(arguments)
    try:
        require_model_folder(options.small)
        small = LlamaForCausalLM.from_pretrained(options.small, dtype=torch.float32)
        large = grow(small, layers=options.layers, hidden=options.hidden, mlp=options.mlp)
    except ValueError as error:  # ModelFolderError is one.
        sys.stderr.write(f"{error}\n")
        return 2
    large.save_pretrained(options.folder)
    AutoTokenizer.from_pretrained(options.small).save_pretrained(options.folder)
    print(f"{options.folder}: {large.num_parameters():,} parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
