"""Arguments of a chat template (`enable_thinking: false`), written into the template itself.

So they hold wherever the template is rendered from then on: in every stage, in the policy that
MLflow serves, in `transformers`, in vLLM. They are defaults: whoever renders may still name others.
"""

import json
import re
from collections.abc import Mapping

from transformers import PreTrainedTokenizerBase

from rlhf.templates import TemplateError

GIVEN = ("messages", "add_generation_prompt", "tools", "documents")
"""What rendering itself gives a template."""


def set_template_args(
    tokenizer: PreTrainedTokenizerBase, args: Mapping[str, bool | int | float | str]
) -> None:
    """Give the chat template of a tokenizer, which is saved with it, defaults for its arguments.

    Raises:
        TemplateError: there is no template, or it does not read an argument.
    """
    if not args:
        return
    if tokenizer.chat_template is None:
        raise TemplateError("the tokenizer has no chat template")
    try:
        template = tokenizer.get_chat_template()
    except ValueError:  # There are several, and transformers does not know which.
        names = ", ".join(sorted(tokenizer.chat_template))
        raise TemplateError(f"the chat templates are called {names}, and none default") from None
    for name in args:
        given = name in GIVEN or name in tokenizer.special_tokens_map
        if given or not name.isidentifier() or not re.search(rf"\b{name}\b", template):
            why = "is not for users to set" if given else "is nothing that the chat template reads"
            raise TemplateError(f"{name!r} {why}")
    lines = [
        # A literal of JSON is one of Jinja, too; the line leaves no trace in the text.
        f"{{%- set {name} = {name} | default({json.dumps(value, ensure_ascii=False)}) %}}\n"
        for name, value in sorted(args.items())
    ]
    tokenizer.chat_template = "".join(lines) + template
