"""Described models as a trace format: a ``config.json`` of Hugging Face transformers is read as the step that it describes.

What simulates also takes a model's name, and the options of a description: see ``read_configured``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path

from triosim import plugins
from triosim.compute.learned import model_files
from triosim.config import DESCRIBED, RunConfig, parsed
from triosim.errors import TraceError, TriosimError
from triosim.gpus import DEFAULT_GPU
from triosim.input_files import yaml_lines
from triosim.input_files.file_state import file_state
from triosim.models.catalogue import MODELS, find, nearest_model
from triosim.models.description import described
from triosim.models.step_choices import StepChoices
from triosim.trace import Trace

NAME = "model"
#: A config is no larger than this, in bytes.
_LARGEST = 1_000_000
#: What ends so is a file, and no model's name.
_ENDINGS = (".json", ".gz", ".yaml", ".yml", ".csv")


def recognises(path: Path) -> bool:
    """Whether a file is the config of a model, or a folder has one or hides a model of its name, which ``read`` refuses."""
    file = path / "config.json" if path.is_dir() else path
    if path.is_dir() and path.name in MODELS and not file.is_file():
        return True
    if file.suffix != ".json" or not file.is_file() or file.stat().st_size > _LARGEST:
        return False
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the last of a file that is nested too deeply
        return False
    return isinstance(content, dict) and ("model_type" in content or "architectures" in content)


def read(path: Path) -> Trace:
    """Return the step of one sample that a config describes."""
    return described(path, StepChoices())


def read_configured(name: str, config: RunConfig, samples: int) -> Trace:
    """Return the step of some samples of a model, by its name or the path of its config, as a configuration says.

    Raises ``TraceError`` where there is neither such a file nor such a model.
    """
    path = Path(name)
    if not os.path.exists(path) and find(name) is None:
        if path.suffix in _ENDINGS:
            raise TraceError("there is no such file or directory", where=name)
        yaml_lines.check_parentheses(name, TraceError)
        said = "there is no such file or directory, and no model of this name"
        raise TraceError(said, where=name, fix=nearest_model(path.name))
    chosen = {field: getattr(config, option.name) for field, option in DESCRIBED.items() if field != "batch"}
    choices = StepChoices(batch=samples, **chosen)
    gpu = DEFAULT_GPU if config.gpu is None else str(getattr(config.gpu, "name", config.gpu))
    if config.compute_model == "auto":
        files = file_state(path), file_state(path / "config.json"), file_state(gpu), model_files.own_files()
        return _described(name, files, choices, gpu)
    kind = plugins.find("compute_models", config.compute_model)
    return described(name, choices, gpu=gpu, compute_model=plugins.make(kind, options=parsed(kind, config.options)))


def _described(name: str, files: Hashable, choices: StepChoices, gpu: str) -> Trace:
    """Return a described trace. Raises ``TriosimError`` where the model cannot be described.

    ``files`` is what the trace depends on beside its options: the state of its config, of the GPU's file, and of the user's own
    models.
    """
    found = _trace_or_error(name, files, choices, gpu)
    if isinstance(found, TriosimError):
        raise found.with_traceback(None)
    return found


@lru_cache(maxsize=16)
def _trace_or_error(name: str, files: Hashable, choices: StepChoices, gpu: str) -> Trace | TriosimError:
    """Return a described trace or why there is none; configurations that are compared describe the same few steps again."""
    try:
        return described(name, choices, gpu=gpu)
    except TriosimError as error:
        return error
