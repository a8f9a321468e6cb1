"""The models that respond, loaded beside the first line that a person types."""

import argparse
import gc
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.chatting.policy import SFT, ask_production, choose_policy

if TYPE_CHECKING:
    from rlhf.dialogue import Dialogue


@dataclass(frozen=True, slots=True)
class Speaker:
    """One side that responds."""

    name: str
    about: str
    """The folder, and what it is."""
    dialogue: "Dialogue"


class Loading:
    """The models, loaded beside the first line that a person types."""

    def __init__(self, root: Path, options: argparse.Namespace) -> None:
        """Begin to load."""
        self._root = root
        self._options = options
        self._speakers: list[Speaker] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._load, daemon=True)
        self._thread.start()

    def speakers(self) -> list[Speaker]:
        """The speakers, as soon as they are loaded; raises what loading has raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._speakers

    def _load(self) -> None:
        # Collecting garbage among what is imported would take a second of four.
        gc.disable()
        try:
            self._speakers = load_speakers(self._root, self._options)
        except BaseException as error:
            self._error = error
        finally:
            gc.freeze()
            gc.enable()


def load_speakers(root: Path, options: argparse.Namespace) -> list[Speaker]:
    """The policy, and SFT where it is asked for."""
    asked = None if options.policy else ask_production(root)
    # Seconds of imports, which a person who is typing does not wait for.
    import transformers  # noqa: PLC0415

    from rlhf.compute import choose_device  # noqa: PLC0415
    from rlhf.dialogue import Dialogue  # noqa: PLC0415
    from rlhf.models import load_policy, load_tokenizer  # noqa: PLC0415
    from rlhf.params.sampling import SamplingParams  # noqa: PLC0415
    from rlhf.special_ids import load_special_ids  # noqa: PLC0415

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    sampling = SamplingParams(max_new_tokens=options.max_new_tokens)
    temperature = ppo_temperature(root) if options.temperature is None else options.temperature
    if temperature == 0:
        sampling = replace(sampling, top_k=1)
    elif temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    device = choose_device("auto")
    folder, about = choose_policy(root, options.policy, asked)
    chosen = [("policy", folder, about)]
    if options.sft:
        chosen.append(("sft", root / SFT, SFT.as_posix()))
    speakers = []
    for name, path, text in chosen:
        tokenizer = load_tokenizer(path)
        lm = load_policy(path, device)
        tokens = load_special_ids(path, tokenizer)
        dialogue = Dialogue(lm, tokenizer, sampling, tokens=tokens, seed=options.seed)
        speakers.append(Speaker(name, text, dialogue))
    return speakers


def ppo_temperature(root: Path) -> float | None:
    """`ppo.sampling.temperature` of params.yaml; None where there is none."""
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    from tasks.params.yaml_files import load_yaml  # noqa: PLC0415 (without pydantic)

    try:
        found = load_yaml(root / "params.yaml")["ppo"]["sampling"]["temperature"]
    except (OSError, ValueError, YAMLError, KeyError, TypeError):
        return None  # Whoever needs more of it says what is wrong.
    return float(found) if isinstance(found, int | float) and found > 0 else None
