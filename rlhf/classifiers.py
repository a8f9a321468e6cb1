"""Reward models that others have trained: sequence classifiers, which read text.

    one label    score = its logit
    two labels   score = logit of label 1 - logit of label 0, the log-odds of label 1

Such a model has a tokenizer and a chat template of its own. So it never sees the policy's ids: the
conversation is rendered with its own template and tokenized with its own tokenizer. A decoder (a
head called `score`) is read at the last token of that; any other classifier is called as it is.
"""

import json
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlhf.chat import Prompt, TokenizerError
from rlhf.compute import in_float32
from rlhf.model_folders import ModelFolderError, require_model_folder
from rlhf.models import load_tokenizer, load_weights, read_tokenizer
from rlhf.replaced_forwards import Forward, replaced_forwards
from rlhf.reward_models import RewardModel
from rlhf.scoring import Encoder
from rlhf.shapes import AttentionMask, PerSequence, TokenIds
from rlhf.templates import render

PAD = "<|pad|>"
"""What `rlhf.classifier_padding` adds where a tokenizer has no token to spare, as GPT-2's."""

READS_TEXT = "reads_text"
"""In `config.json` of a reward model that reads text rather than the policy's ids."""

BEHIND_PADDING = frozenset(
    {"camembert", "data2vec-text", "ibert", "longformer", "luke", "markuplm", "mpnet", "roberta",
     "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"}
)  # fmt: skip
"""`model_type` of the classifiers whose first position has the number 2, behind that of padding."""


class Classifier(RewardModel):
    """A classifier of one label or two as a reward model; ids are those of its own tokenizer."""

    def __init__(self, classifier: PreTrainedModel, separator: int | None = None):
        """Wrap a classifier; behind `separator`, if any, it reads the second of two texts."""
        super().__init__(classifier)
        self.separator = separator

    @property
    def longest(self) -> int | None:
        """Most tokens that it can read, where it has learned positions; else None."""
        return longest_of(self.classifier.config)

    def raw_scores(
        self, ids: TokenIds, mask: AttentionMask, *, packing: bool = False
    ) -> PerSequence:
        """Scores before normalisation; only a decoder's rows are ever packed.

        Raises:
            ModelFolderError: a row is longer than the model can read.
        """
        if self.longest is not None and int(mask.sum(dim=1).max()) > self.longest:
            raise ModelFolderError(
                f"the reward model ({type(self.classifier).__name__}) reads at most {self.longest} "
                f"tokens, found {int(mask.sum(dim=1).max())}; limit prompts and responses"
            )
        logits = self._logits(ids, mask, packing).float()
        return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]

    def _logits(self, ids: Tensor, mask: Tensor, packing: bool) -> Tensor:
        if not has_score_head(self):
            ids = torch.where(mask, ids, 0)
            types = self._types(ids)
            with replaced_forwards(self.classifier, self._in_float32):
                output = self.classifier(input_ids=ids, attention_mask=mask.long(), **types)
            return cast(Tensor, output.logits)
        return self.head_outputs(self.last_hidden(ids, mask, packing=packing))

    def _in_float32(self, part: nn.Module) -> Forward | None:
        """The forward pass of a part that lies on the trunk, in float32 whatever that has."""
        own, trunk = part.forward, self.classifier.base_model
        if trunk in (part, self.classifier) or part not in self.classifier.children():
            return None

        def forward(*inputs: Any, **named: Any) -> Any:
            with in_float32(self.classifier.device):
                return own(*(_wider(each) for each in inputs), **named)

        return forward

    def _types(self, ids: TokenIds) -> dict[str, Tensor]:
        """0 in the first text and its separator, 1 behind it; nothing where texts are not told."""
        if self.separator is None:
            return {}
        separators = ids.eq(self.separator).long()
        return {"token_type_ids": (separators.cumsum(dim=1) - separators).clamp(max=1)}


def _wider(value: Any) -> Any:
    """A tensor in float32; anything else as it is."""
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


class TextEncoder(Encoder):
    """Encodes prompts with responses as a classifier's own tokenizer and template have them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        """Take the classifier's tokenizer; it may lack an end token and one for padding."""
        self.tokenizer = self._tokenizer = tokenizer
        self.pad_id = tokenizer.pad_token_id or 0

    def encode(self, prompt: Prompt, response: str, *, finished: bool) -> list[int]:
        """Token ids of the conversation, with what its template puts behind a finished response.

        Without a template, prompt and response are the tokenizer's pair of texts.

        Raises:
            TokenizerError: messages, and no chat template.
            TemplateError: the template fails, or takes more than it may.
        """
        if self._tokenizer.chat_template is None:
            if not isinstance(prompt, str):
                raise TokenizerError("a prompt of messages needs a tokenizer with a chat template")
            return list(self._tokenizer(prompt, response)["input_ids"])
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
        if finished:
            answer = {"role": "assistant", "content": response}
            text = render(self._tokenizer, [*messages, answer], for_response=False)
        else:
            text = render(self._tokenizer, messages) + response
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def longest_of(config: PreTrainedConfig) -> int | None:
    """Most tokens that a classifier can read, where it has learned positions; else None."""
    if getattr(config, "rope_parameters", None) is not None:
        return None
    # DeBERTa has relative positions, and these beside them or not.
    if not getattr(config, "position_biased_input", True):
        return None
    most = getattr(config, "max_position_embeddings", None)
    offset = 2 if config.model_type in BEHIND_PADDING else 0
    return None if most is None else int(most) - offset


def has_score_head(model: RewardModel) -> bool:
    """Whether a linear head called `score` reads one position of a decoder."""
    return isinstance(getattr(model.classifier, "score", None), nn.Linear)


def how_it_reads(folder: Path, config: Any) -> str:
    """How a classifier that reads text comes to its score, in a sentence for people."""
    words = f"{folder} has a tokenizer or a head of its own, so it reads text"
    if config.num_labels == 2:
        names = [config.id2label.get(number, f"LABEL_{number}") for number in (1, 0)]
        words += (
            f"; of its two labels, the score is the logit of {names[0]} less that of {names[1]}"
        )
    return words


def reads_text(folder: Path) -> bool:
    """Whether the reward model of a folder reads text, not the policy's ids."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return bool(config.get(READS_TEXT, False))


def load_classifier(folder: Path, device: torch.device) -> Classifier:
    """A sequence classifier of one label or two.

    Raises:
        ModelFolderError: the folder holds none, or one with another number of labels.
    """
    require_model_folder(folder)
    model, missing = load_weights(AutoModelForSequenceClassification, folder)
    if missing:
        raise ModelFolderError(
            f"{folder}: expected a sequence classifier, weights are missing: {', '.join(missing)}"
        )
    if model.config.num_labels not in (1, 2):
        raise ModelFolderError(
            f"{folder}: a classifier of {model.config.num_labels} labels; a reward model has one, "
            "or two (its score is then the logit of label 1 less that of label 0)"
        )
    return Classifier(model, _separator(folder, model.config)).to(device).eval()


def _separator(folder: Path, config: PreTrainedConfig) -> int | None:
    """The token that ends the first of two texts, where the model tells one from the other."""
    if (getattr(config, "type_vocab_size", None) or 0) < 2:
        return None
    tokenizer = load_text_encoder(folder).tokenizer
    types = tokenizer("a", "a").get("token_type_ids", [])
    told = tokenizer.chat_template is None and 1 in types
    return cast("int | None", tokenizer.sep_token_id) if told else None


def load_text_encoder(folder: Path) -> TextEncoder:
    """The encoder of a classifier's folder.

    Raises:
        ModelFolderError: the folder holds no tokenizer.
    """
    return TextEncoder(read_tokenizer(folder))


def load_encoder(folder: Path) -> Encoder:
    """The encoder that fits a reward model's folder: of ids, or of text where it reads that."""
    return load_text_encoder(folder) if reads_text(folder) else Encoder(load_tokenizer(folder))


def same_tokens(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Whether two tokenizers write the same ids for every conversation.

    A pad token that was added to the folder of a reward model of ours is in none.
    """
    return (
        _words(one) == _words(other)
        and one.chat_template == other.chat_template
        and one.eos_token_id == other.eos_token_id
        and _rules(one) == _rules(other)
    )


def _words(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    return {word: token for word, token in tokenizer.get_vocab().items() if word != PAD}


def _rules(tokenizer: PreTrainedTokenizerBase) -> object:
    """How text becomes ids, as far as the library says; padding and cutting aside."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return type(tokenizer).__name__
    rules = json.loads(backend.to_str())
    rules["added_tokens"] = [word for word in rules["added_tokens"] if word["content"] != PAD]
    return {name: rules[name] for name in rules if name not in ("padding", "truncation")}
