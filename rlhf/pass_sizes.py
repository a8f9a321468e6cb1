"""How many tokens a model reads at a time where it is not trained, so that memory bounds a pass.

What a pass needs most memory for at once is the middle of a layer's MLP. The embedded model's
recipe stays far below: there every batch is one pass.
"""

from transformers import PreTrainedModel

MOST_READ = 2**27
"""Numbers in the middle of a layer's MLP: 256 MiB a tensor in bfloat16."""


def tokens_at_a_time(model: PreTrainedModel) -> int:
    """The most tokens of a pass, padding among them; one at least."""
    config = model.config.get_text_config()
    width = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    # Gemma 3n's has one for each layer.
    widest = max(width) if isinstance(width, list | tuple) else int(width)
    return max(1, MOST_READ // widest)
