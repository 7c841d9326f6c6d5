"""The choices for the step of a described model: batch, sequence length, dtypes, optimizer and kernels.

``StepChoices`` is the one list of them: ``triosim.describe`` takes them as keywords, and the command line has an option for
each field, which is declared with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from triosim.config import DESCRIBED
from triosim.config.stacks import AttentionKind, KernelKind, ProductKind, Stack
from triosim.errors import OptionError
from triosim.gpus import Gpu

PrecisionKind = Literal["plain", "mixed"]
LayoutKind = Literal["channels-first", "channels-last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChoices:
    """The choices of a user for the step of a described model, checked by their options. Raises ``OptionError`` for choices
    that contradict each other.

    batch: samples in the step.
    sequence: tokens in a sample; None is the model's own length. A model of images takes none.
    layers: another number of layers than the model's own.
    dtype: what the step computes in: float32, bfloat16 or float16; None is what the GPU has (``on_gpu``).
    precision: "plain" keeps parameters in ``dtype``; "mixed" keeps them in fp32, and autocast computes in ``dtype``.
    stack: the software stack by name; None is the model's usual one.
    optimizer, attention, kernels, products: as a ``Stack`` has them; None is the stack's.
    dropout: another probability than the model's own.
    image_layout: "channels-first" or "channels-last"; None is the former, as PyTorch makes them.
    """

    batch: int = DESCRIBED["batch"].default
    sequence: int | None = DESCRIBED["sequence"].default
    layers: int | None = DESCRIBED["layers"].default
    dtype: str | None = DESCRIBED["dtype"].default
    precision: PrecisionKind = DESCRIBED["precision"].default
    stack: str | None = DESCRIBED["stack"].default
    optimizer: str | None = DESCRIBED["optimizer"].default
    attention: AttentionKind | None = DESCRIBED["attention"].default
    kernels: KernelKind | None = DESCRIBED["kernels"].default
    products: ProductKind | None = DESCRIBED["products"].default
    dropout: float | None = DESCRIBED["dropout"].default
    image_layout: LayoutKind | None = DESCRIBED["image_layout"].default

    def __post_init__(self) -> None:
        if self.precision == "mixed" and self.dtype == "float32":
            fix = "give bfloat16 or float16"
            raise OptionError("mixed precision does not compute in float32", where="dtype", fix=fix)

    def on_gpu(self, gpu: Gpu) -> StepChoices:
        """Return the choices with a dtype: by default the first of bfloat16, float16 and float32 that the GPU has."""
        usual = next((dtype for dtype in ("bfloat16", "float16") if dtype in gpu.flops), "float32")
        return self if self.dtype else replace(self, dtype=usual)

    @property
    def parameter_dtype(self) -> str:
        """PyTorch's name of the dtype that parameters are kept in, of choices with a dtype."""
        return "float32" if self.precision == "mixed" else str(self.dtype)

    def on(self, stack: Stack) -> Stack:
        """Return a stack with what is chosen instead of its own. Raises ``OptionError`` for products of another dtype."""
        chosen = {name: getattr(self, name) for name in ("optimizer", "attention", "kernels", "products")}
        found = replace(stack, **{name: value for name, value in chosen.items() if value is not None})
        single, where = self.dtype == "float32", "products" if self.products else "stack"
        if single and found.products not in ("plain", "tf32"):
            raise OptionError(f"{found.products} products need half precision", where=where, fix="give bfloat16")
        if found.products == "tf32" and not single:
            raise OptionError("tf32 products compute what is in float32", where=where, fix="give float32")
        return found


class ChoiceReader:
    """Gives a model the choices about kernels, and remembers which it asked for: the others would have no effect.

    ``stack`` is made of the choices.
    """

    def __init__(self, choices: StepChoices, stack: Stack) -> None:
        self._choices = choices
        self._stack = stack
        self._read: set[str] = set()

    def attention_kernel(self) -> AttentionKind:
        """Return how attention is computed."""
        self._read.add("attention")
        return self._stack.attention

    def fused(self) -> bool:
        """Return whether operators that libraries fuse are one kernel."""
        self._read.add("kernels")
        return self._stack.kernels == "fused"

    def dropout(self, default: float) -> float:
        """Return the probability of dropout; ``default`` is the model's own."""
        self._read.add("dropout")
        return default if self._choices.dropout is None else self._choices.dropout

    def channels_last(self) -> bool:
        """Return whether images have their channels last."""
        self._read.add("image_layout")
        return self._choices.image_layout == "channels-last"

    def check_read(self, name: str) -> None:
        """Raise ``OptionError`` for a choice that the model ``name`` did not ask for, since it has nothing to apply it to."""
        chosen = self._choices
        unread = {
            "attention": (chosen.attention == "math", "no attention"),
            "kernels": (chosen.kernels == "fused", "nothing that is known to be fused"),
            "dropout": (bool(chosen.dropout), "no dropout"),
            "image_layout": (chosen.image_layout is not None, "no convolutions of images"),
        }
        for option, (given, lacking) in unread.items():
            if given and option not in self._read:
                raise OptionError(f"{name} has {lacking}", where=option, fix="leave it out")
