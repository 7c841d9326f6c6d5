"""The trace of a training step from a model's sizes alone: no capture, no PyTorch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from triosim import gpus
from triosim.compute.base import ComputeModel
from triosim.compute.pricing.prediction import DEFAULT_GPU, predicted
from triosim.errors import OptionError, nearest
from triosim.garbage_collector import without_collecting
from triosim.models.architectures.model import AttentionKind, Choices, KernelKind, Model
from triosim.models.config import read
from triosim.models.named import MODELS, with_layers
from triosim.models.operators import fusion
from triosim.models.operators.elementwise import add, fit
from triosim.models.operators.optimizers import OPTIMIZERS
from triosim.models.operators.tape import Tape
from triosim.trace import Trace, dtype_name

Precision = Literal["plain", "mixed"]
ProductKind = Literal["plain", "fp8"]
_DTYPES = ("float32", "bfloat16", "float16")


def describe(
    model: str | os.PathLike[str] | Model,
    *,
    batch: int = 1,
    sequence: int | None = None,
    dtype: str = "bfloat16",
    precision: Precision = "plain",
    optimizer: str = "adamw",
    attention: AttentionKind = "flash",
    kernels: KernelKind | None = None,
    dropout: float | None = None,
    layers: int | None = None,
    products: ProductKind = "plain",
    gpu: str = DEFAULT_GPU,
    compute_model: ComputeModel | None = None,
) -> Trace:
    """Return the operators of one training step of a model, with the times that they are expected to take on a GPU.

    ``model`` is a name, the path of a ``config.json`` (or its folder), or sizes (``GPT(...)``, ``Llama(...)``). ``batch``
    counts samples, ``sequence`` the tokens of one, by default the model's own length. ``precision`` is plain where parameters
    are kept in ``dtype``, mixed where they are fp32 and autocast computes in ``dtype``. ``kernels`` are those of PyTorch's
    operators one by one (eager), one for what libraries fuse by hand (fused), or what a compiler makes of the eager ones
    (compiled); by default what the model is known with.
    ``products`` of "fp8" are those of linear layers in eight bits, but for the one that makes a Llama's logits.
    ``layers`` is another number of layers. Raises ``OptionError`` for what is not known or cannot be, ``TriosimError``
    for a config that lacks a size.
    """
    if isinstance(model, (str, os.PathLike)):
        model = _found(model)
    if layers is not None:
        model = with_layers(model, _positive(layers, "layers"))
    name = dtype_name(dtype)
    if name not in _DTYPES:
        raise OptionError(f"unknown dtype '{dtype}'", fix=nearest(dtype, _DTYPES))
    if optimizer not in OPTIMIZERS:
        raise OptionError(f"unknown optimizer '{optimizer}'", fix=nearest(optimizer, OPTIMIZERS))
    mixed = precision == "mixed"
    if mixed and name == "float32":
        raise OptionError("mixed precision does not compute in float32", where="dtype", fix="give bfloat16 or float16")
    if products == "fp8" and name == "float32":
        raise OptionError("products in eight bits are of half-precision numbers", where="products", fix="give bfloat16")
    tape = Tape("float32" if mixed else name, name if mixed else None, eight=products == "fp8")
    sizes = _positive(batch, "batch"), _length(model, sequence)
    choices = Choices(attention=attention, kernels=kernels, dropout=dropout)
    target = gpus.find(gpu).name
    said = f"{name}, {precision}, attention {attention}, kernels {kernels or 'as usual'}, optimizer {optimizer}"
    said += ", products fp8" if products == "fp8" else ""
    with without_collecting():
        loss = model.loss(tape, *sizes, choices)
        choices.check_read(model.name)
        if products == "fp8" and not tape.narrow:
            raise OptionError(f"{model.name} has no linear layer in eight bits", where="products", fix="leave it out")
        tape.backward(loss, add, fit)
        OPTIMIZERS[optimizer](tape)
        trace = tape.trace(batch_size=batch, model=model.name, gpu=target, software={"described": said})
        return predicted(fusion.compiled(trace) if kernels == "compiled" else trace, compute_model)


def _found(model: str | os.PathLike[str]) -> Model:
    """Return a model by its name, or by the path of its config."""
    name = os.fspath(model)
    if name in MODELS:
        return MODELS[name]
    path = Path(name)
    if path.is_dir():
        return read(path / "config.json")
    if path.is_file() or path.suffix == ".json":
        return read(path)
    raise OptionError(f"unknown model '{name}'", fix=nearest(name, MODELS))


def _positive(number: int, what: str) -> int:
    if number < 1:
        raise OptionError(f"{number} for {what}", fix="give at least 1")
    return number


def _length(model: Model, sequence: int | None) -> int:
    """Return how many tokens a sample has; a model of images takes no such number."""
    if not model.sequence:
        if sequence is not None:
            raise OptionError(f"{model.name} reads images", where="sequence", fix="leave it out")
        return 0
    return _positive(model.sequence if sequence is None else sequence, "sequence")
