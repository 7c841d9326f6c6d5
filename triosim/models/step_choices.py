"""The choices for the step of a described model: batch, sequence length, dtypes, optimizer and kernels.

``StepChoices`` is the one list of them: ``triosim.describe`` takes them as keywords, and the command line has an option for
each field, which is declared with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triosim.config import DESCRIBED
from triosim.errors import OptionError

PrecisionKind = Literal["plain", "mixed"]
AttentionKind = Literal["flash", "math"]
KernelKind = Literal["eager", "fused", "compiled"]
ProductKind = Literal["plain", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChoices:
    """The choices of a user for the step of a described model, checked by their options. Raises ``OptionError`` for choices
    that contradict each other.

    batch: samples in the step.
    sequence: tokens in a sample; None is the model's own length. A model of images takes none.
    layers: another number of layers than the model's own.
    dtype: what the step computes in: float32, bfloat16 or float16.
    precision: "plain" keeps parameters in ``dtype``; "mixed" keeps them in fp32, and autocast computes in ``dtype``.
    optimizer: a key of ``triosim.models.operators.optimizers.OPTIMIZERS``.
    attention: "flash" is one kernel; "math" is two matrix products, with the scores in memory.
    kernels: "eager" is one kernel an ATen operator, "fused" one for what training libraries fuse by hand, "compiled" what a
        compiler makes of the eager ones; None is what the model is known with.
    products: "fp8" multiplies the linear layers in fp8, except the one that makes a Llama's logits.
    dropout: another probability than the model's own.
    """

    batch: int = DESCRIBED["batch"].default
    sequence: int | None = DESCRIBED["sequence"].default
    layers: int | None = DESCRIBED["layers"].default
    dtype: str = DESCRIBED["dtype"].default
    precision: PrecisionKind = DESCRIBED["precision"].default
    optimizer: str = DESCRIBED["optimizer"].default
    attention: AttentionKind = DESCRIBED["attention"].default
    kernels: KernelKind | None = DESCRIBED["kernels"].default
    products: ProductKind = DESCRIBED["products"].default
    dropout: float | None = DESCRIBED["dropout"].default

    def __post_init__(self) -> None:
        single = self.dtype == "float32"
        if self.precision == "mixed" and single:
            fix = "give bfloat16 or float16"
            raise OptionError("mixed precision does not compute in float32", where="dtype", fix=fix)
        if self.products == "fp8" and single:
            raise OptionError("fp8 products need half precision", where="products", fix="give bfloat16")

    @property
    def parameter_dtype(self) -> str:
        """PyTorch's name of the dtype that parameters are kept in."""
        return "float32" if self.precision == "mixed" else self.dtype

    def summary(self) -> str:
        """Return the choices in one line, as a described trace keeps them under ``software``."""
        said = f"{self.dtype}, {self.precision}, attention {self.attention}, "
        said += f"kernels {self.kernels or 'as usual'}, optimizer {self.optimizer}"
        return said + (", products fp8" if self.products == "fp8" else "")


class ChoiceReader:
    """Gives a model the choices about kernels, and remembers which it asked for: the others would have no effect."""

    def __init__(self, choices: StepChoices) -> None:
        self._choices = choices
        self._read: set[str] = set()

    def attention_kernel(self) -> AttentionKind:
        """Return how attention is computed."""
        self._read.add("attention")
        return self._choices.attention

    def fused(self, default: bool = False) -> bool:
        """Return whether operators that libraries fuse are one kernel; ``default`` is the model's own answer."""
        self._read.add("kernels")
        return default if self._choices.kernels is None else self._choices.kernels == "fused"

    def dropout(self, default: float) -> float:
        """Return the probability of dropout; ``default`` is the model's own."""
        self._read.add("dropout")
        return default if self._choices.dropout is None else self._choices.dropout

    def check_read(self, name: str) -> None:
        """Raise ``OptionError`` for a choice that the model ``name`` did not ask for, since it has nothing to apply it to."""
        chosen = self._choices
        unread = {
            "attention": (chosen.attention == "math", "no attention"),
            "kernels": (chosen.kernels == "fused", "nothing that is known to be fused"),
            "dropout": (bool(chosen.dropout), "no dropout"),
        }
        for option, (given, lacking) in unread.items():
            if given and option not in self._read:
                raise OptionError(f"{name} has {lacking}", where=option, fix="leave it out")
