"""What the scripts that run TRL's trainers share: settings, models, a process for each work."""

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import speed_processes as processes
import speed_world as world
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

Work = Callable[[Path, list[Any], str, world.Clock, dict[str, Any]], dict[str, Any]]


def measure(arguments: list[str], works: Mapping[str, Work]) -> None:
    """Do the works, each in a process of its own, and print what they found as one JSON object.

    In bfloat16 the trainers compute in that precision and keep float32 weights, as ours do.
    """
    folder, (size, device, threads, precision) = Path(arguments[0]), arguments[1:5]
    rows = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    common = {
        "output_dir": str(folder / "trl"),
        "learning_rate": world.RATE,
        "lr_scheduler_type": "constant",
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": device == "cpu",
        "bf16": precision == "bfloat16",
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "max_grad_norm": 1.0,
    }

    def run(work: Work) -> dict[str, Any]:
        torch.set_num_threads(int(threads))
        torch.set_flush_denormal(True)
        with contextlib.redirect_stdout(sys.stderr):
            found = work(folder, rows, size, world.Clock(device), common)
        found["peak"] = world.peak_bytes(device)
        ceiling = world.ceiling(size, device, precision, rows)
        return found | {"ceiling": ceiling, "kernels": world.kernels()}

    asked = {name: partial(run, work) for name, work in works.items()}
    json.dump(processes.each(asked, device, arguments), sys.stdout)


def causal(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=dtype)


def classifier(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(folder / "reward", dtype=dtype)
