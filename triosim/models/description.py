"""The trace of a training step from a model's sizes alone: no capture, no PyTorch."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from triosim import gpus
from triosim.compute.compute_model import ComputeModel
from triosim.compute.pricing.prediction import with_predicted_times
from triosim.config import DESCRIBED
from triosim.config.stacks import STACKS
from triosim.errors import OptionError, nearest
from triosim.garbage_collector import without_collecting
from triosim.gpus import DEFAULT_GPU
from triosim.input_files import yaml_lines
from triosim.input_files.limits import LAYERS
from triosim.models import compilation
from triosim.models.architectures.model import Model
from triosim.models.catalogue import MODELS, find, nearest_model, usual_stack, with_layers
from triosim.models.huggingface_config import read
from triosim.models.operators.elementwise import add, sum_to
from triosim.models.operators.float8 import recipe_of
from triosim.models.operators.optimizers import OPTIMIZERS
from triosim.models.operators.tape import Tape
from triosim.models.step_choices import ChoiceReader, StepChoices
from triosim.trace import Trace

#: The number formats of products other than fp8's.
_FORMATS: Mapping[str, str] = {"tf32": "tf32", "nvfp4": "float4_e2m1fn_x2"}


def describe(
    model: str | os.PathLike[str] | Model,
    *,
    gpu: str = DEFAULT_GPU,
    compute_model: ComputeModel | None = None,
    **choices: Any,
) -> Trace:
    """Return the operators of one training step of a model, with the times that they are expected to take on a GPU.

    ``model`` is a name, the path of a ``config.json`` (or its folder), or sizes (``GPT(...)``, ``Llama(...)``). The other
    keywords are the fields of ``StepChoices``: ``batch``, ``sequence``, ``layers``, ``dtype``, ``precision``, ``stack``,
    ``optimizer``, ``attention``, ``kernels``, ``products``, ``dropout``, ``image_layout``. Raises ``OptionError`` for what is
    not known or cannot be, ``TriosimError`` for a config that lacks a size.
    """
    for name in choices.keys() - DESCRIBED.keys():
        called = next((field for field, option in DESCRIBED.items() if option.name == name), None)
        fix = f"did you mean '{called}'?" if called else nearest(name, ("gpu", "compute_model", *DESCRIBED))
        raise OptionError(f"describe has no keyword '{name}'", fix=fix)
    checked = {name: DESCRIBED[name].parse(value, name) for name, value in choices.items()}
    return described(model, StepChoices(**checked), gpu=gpu, compute_model=compute_model)


def _keywords() -> inspect.Signature:
    """Return the signature of ``describe`` with a keyword for each choice, for ``help`` and editors."""
    signature, choices = inspect.signature(describe), inspect.signature(StepChoices)
    named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    return signature.replace(parameters=[*named, *choices.parameters.values()])


describe.__signature__ = _keywords()  # type: ignore[attr-defined]  # as inspect documents


def described(
    model: str | os.PathLike[str] | Model,
    choices: StepChoices,
    *,
    gpu: str = DEFAULT_GPU,
    compute_model: ComputeModel | None = None,
) -> Trace:
    """Return the trace of ``describe``, of choices that are gathered in one value."""
    sizes = find_model(model)
    if choices.layers is not None:
        sizes = with_layers(sizes, choices.layers)
    LAYERS.check(getattr(sizes, "layers", 0) or sum(getattr(sizes, "blocks", ())), "the model")
    with without_collecting():
        found = gpus.find(gpu)
        trace = _recorded(sizes, choices.on_gpu(found), found)
        return with_predicted_times(trace, compute_model)


def _recorded(model: Model, choices: StepChoices, gpu: gpus.Gpu) -> Trace:
    """Return the operators of a model's step, without times."""
    stack = choices.on(usual_stack(model) if choices.stack is None else STACKS[choices.stack])
    named = "products" if choices.products else "stack"
    if stack.products != "plain" and _FORMATS.get(stack.products, "float8_e4m3fn") not in gpu.flops:
        fix = "leave it out, or predict a GPU that has them"
        raise OptionError(f"{gpu.name} has no tensor cores for {stack.products}", where=named, fix=fix)
    autocast = choices.dtype if choices.precision == "mixed" else None
    kept = stack.optimizer == "master-adamw"  # whose fp32 copies need no others
    tape = Tape(choices.parameter_dtype, autocast, products=stack.products, keeps_narrow=kept)
    reader = ChoiceReader(choices, stack)
    try:
        loss = model.loss(tape, choices.batch, _length(model, choices.sequence), reader)
    except ZeroDivisionError:
        known = fields(model)  # type: ignore[arg-type]  # every model is a dataclass
        zero = [one.name for one in known if getattr(model, one.name) == 0 != one.default]
        if not zero:
            raise
        raise OptionError(f"{' and '.join(zero)} cannot be 0", where=model.name, fix="give 1 or more") from None
    reader.check_read(model.name)
    if recipe_of(stack.products) and not tape.narrow:
        raise OptionError(
            f"{model.name} has no linear layer that {stack.products} can compute", where=named, fix="leave it out"
        )
    tape.backward(loss, add, sum_to)
    OPTIMIZERS[stack.optimizer](tape)
    layout = ", channels last" if tape.channels_last else ""
    software = {"described": f"{choices.dtype}, {choices.precision}{layout}, {stack.summary()}", "stack": stack.name}
    trace = tape.trace(batch_size=choices.batch, model=model.name, gpu=gpu.name, software=software)
    return compilation.compiled(trace) if stack.kernels == "compiled" else trace


def find_model(model: str | os.PathLike[str] | Model) -> Model:
    """Return a model by the path of its config, by its name (with other sizes: ``gpt2(layers=6)``), or as it is.

    A file or folder comes before a model of its name. Raises ``OptionError`` for an unknown name, and for a folder without a
    config that hides a model.
    """
    if not isinstance(model, (str, os.PathLike)):
        return model
    name = os.fspath(model)
    if not name:
        raise OptionError("the name is empty", where="model", fix="give a model's name, or its config.json")
    path = Path(name)
    config = path / "config.json" if path.is_dir() else path
    if path.is_dir() and path.name in MODELS and not config.is_file():
        raise OptionError(
            f"is a folder without a trace or a config.json, which hides the model '{path.name}'",
            where=name,
            fix="rename it, or work in another folder",
        )
    if os.path.exists(path) or path.suffix == ".json":
        return read(config)
    found = find(name)
    if found is None:
        yaml_lines.check_parentheses(name, OptionError)
        raise OptionError(f"unknown model '{name}'", fix=nearest_model(name))
    return found


def _length(model: Model, sequence: int | None) -> int:
    """Return how many tokens a sample has; a model of images or clicks takes no such number."""
    if not model.sequence:
        if sequence is not None:
            raise OptionError(f"{model.name} reads no tokens", where="sequence", fix="leave it out")
        return 0
    return model.sequence if sequence is None else sequence
