"""The choices for the step of a described model: batch, sequence length, dtypes, optimizer and kernels.

``StepChoices`` is the one list of them: ``triosim.describe`` takes them as keywords, and the command line has an option for
each field, which is declared with it.
"""

# ruff: noqa: RUF009 - each field declares its option

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from triosim.config.option import MODEL, Kind, Option
from triosim.errors import OptionError, nearest
from triosim.models.operators.optimizers import OPTIMIZERS
from triosim.trace import dtype_name

PrecisionKind = Literal["plain", "mixed"]
AttentionKind = Literal["flash", "math"]
KernelKind = Literal["eager", "fused", "compiled"]
ProductKind = Literal["plain", "fp8"]

_DTYPES = ("float32", "bfloat16", "float16")


def _option(kind: Kind, default: Any, help: str, *, name: str = "", **more: Any) -> Any:
    """Return a field with the declaration of its option, which is called as the field unless it has a ``name``."""
    declared = Option(name, kind, default, help, panel=MODEL, of_step=True, **more)
    return field(default=default, metadata={"option": declared})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChoices:
    """What a user may choose about the step of a described model. Raises ``OptionError`` for what is unknown or contradictory.

    batch: samples in the step.
    sequence: tokens in a sample; None is the model's own length. A model of images takes none.
    layers: another number of layers than the model's own.
    dtype: what the step computes in: float32, bfloat16 or float16, or a short name of one (``bf16``).
    precision: "plain" keeps parameters in ``dtype``; "mixed" keeps them in fp32, and autocast computes in ``dtype``.
    optimizer: a key of ``triosim.models.operators.optimizers.OPTIMIZERS``.
    attention: "flash" is one kernel; "math" is two matrix products, with the scores in memory.
    kernels: "eager" is one kernel an ATen operator, "fused" one for what training libraries fuse by hand, "compiled" what a
        compiler makes of the eager ones; None is what the model is known with.
    products: "fp8" multiplies the linear layers in fp8, except the one that makes a Llama's logits.
    dropout: another probability than the model's own.
    """

    batch: int = _option("whole", 1, "Samples in a step.", metavar="N", short="-b")
    sequence: int | None = _option(
        "whole", None, "Tokens in a sample; by default the model's own length.", name="seq", metavar="N", short="-s"
    )
    layers: int | None = _option("whole", None, "Another number of layers than the model's.", metavar="N")
    dtype: str = _option("text", "bf16", "fp32, bf16 or fp16.", metavar="NAME")
    precision: PrecisionKind = _option(
        "choice", "plain", "Parameters in --dtype, or fp32 ones and autocast to it.", choices=get_args(PrecisionKind)
    )
    optimizer: str = _option(
        "text", "adamw", "adamw, fused-adamw, master-adamw (fp32 copies), sgd or none.", metavar="NAME"
    )
    attention: AttentionKind = _option(
        "choice", "flash", "One kernel, or products with the scores in memory.", choices=get_args(AttentionKind)
    )
    kernels: KernelKind | None = _option(
        "choice",
        None,
        "One an operator; one for what libraries fuse (norms, rotary embeddings, gates, the loss); or as a compiler fuses.",
        choices=get_args(KernelKind),
    )
    products: ProductKind = _option(
        "choice",
        "plain",
        "Matrix products of linear layers in --dtype, or in fp8 with a scale a tensor.",
        choices=get_args(ProductKind),
    )
    dropout: float | None = _option(
        "probability", None, "Another probability than the model's own: 0, 0.1.", metavar="P"
    )

    def __post_init__(self) -> None:
        for name in ("layers", "batch", "sequence"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise OptionError(f"{number} for {name}", fix="give at least 1")
        if self.compute_dtype not in _DTYPES:
            raise OptionError(f"unknown dtype '{self.dtype}'", fix=nearest(self.dtype, _DTYPES))
        if self.optimizer not in OPTIMIZERS:
            raise OptionError(f"unknown optimizer '{self.optimizer}'", fix=nearest(self.optimizer, OPTIMIZERS))
        single = self.compute_dtype == "float32"
        if self.precision == "mixed" and single:
            fix = "give bfloat16 or float16"
            raise OptionError("mixed precision does not compute in float32", where="dtype", fix=fix)
        if self.products == "fp8" and single:
            raise OptionError("fp8 products need half precision", where="products", fix="give bfloat16")

    @property
    def compute_dtype(self) -> str:
        """PyTorch's name of the dtype that the step computes in."""
        return dtype_name(self.dtype)

    @property
    def parameter_dtype(self) -> str:
        """PyTorch's name of the dtype that parameters are kept in."""
        return "float32" if self.precision == "mixed" else self.compute_dtype

    def summary(self) -> str:
        """Return the choices in one line, as a described trace keeps them under ``software``."""
        said = f"{self.compute_dtype}, {self.precision}, attention {self.attention}, "
        said += f"kernels {self.kernels or 'as usual'}, optimizer {self.optimizer}"
        return said + (", products fp8" if self.products == "fp8" else "")

    @classmethod
    def declarations(cls) -> dict[str, Option]:
        """Return the option of each field, by the field's name."""
        found = {one.name: one.metadata["option"] for one in fields(cls)}
        return {name: replace(option, name=option.name or name) for name, option in found.items()}


class ChoiceReader:
    """The choices about kernels as a model asks for them. It remembers which were asked for: others would have no effect."""

    def __init__(self, choices: StepChoices) -> None:
        self._choices = choices
        self._read: set[str] = set()

    def attention_kernel(self) -> AttentionKind:
        """Return what attention runs as."""
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
