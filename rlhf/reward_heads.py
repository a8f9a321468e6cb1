"""The head of a reward model, on the trunk of every family that has a causal model.

`transformers` has a classifier for most families. For the others, Granite and Cohere among them,
one is made here from its own parts: the family's trunk below a linear layer `score`. Its folder is
what the library would write if it had the class, and the trunk's weights keep their names.
"""

from functools import cache
from typing import Any, cast

from torch import nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_MAPPING,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_layers import GenericForSequenceClassification


def classifier_class(config: PreTrainedConfig) -> Any:
    """What loads a classifier with this config: the library's automatic class, or one made here.

    Raises:
        ValueError: the library has no trunk for this config.
    """
    kind = type(config)
    if kind in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return AutoModelForSequenceClassification
    if kind not in MODEL_MAPPING:
        raise ValueError(f"no reward head can be put on a {config.model_type} model")
    return _made(MODEL_MAPPING[kind])


def build_classifier(config: PreTrainedConfig) -> PreTrainedModel:
    """A classifier with random weights; `num_labels` of the config is the number of outputs."""
    kind = classifier_class(config)
    build = kind.from_config if kind is AutoModelForSequenceClassification else kind
    return cast(PreTrainedModel, build(config))


@cache
def _made(trunk: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """The class that the library would have: its generic classifier with the family's settings."""
    family: Any = next(base for base in trunk.__mro__[1:] if issubclass(base, PreTrainedModel))
    name = trunk.__name__.removesuffix("Model") + "ForSequenceClassification"
    # In the module of a mixture of experts the library looks how these may be computed.
    own = {
        "base_model_prefix": family.base_model_prefix,
        "__module__": trunk.__module__,
        # Not the family's, which may be that of a model with pictures around this one.
        "config_class": trunk.config_class,
    }
    return type(name, (GenericForSequenceClassification, family), own)


def head_name(classifier: PreTrainedModel) -> str:
    """Name of the linear layer that stands alone on the trunk.

    Raises:
        ValueError: there is something else, so a score would not be that layer's output.
    """
    parts = [part for part in classifier.named_children() if part[1] is not classifier.base_model]
    if len(parts) == 1:
        name, head = parts[0]
        if isinstance(head, nn.Linear):
            return str(name)
    found = ", ".join(name for name, _ in parts) or "nothing"
    raise ValueError(
        f"a reward model has one linear layer on its trunk, a {type(classifier).__name__} has "
        f"there: {found}"
    )
