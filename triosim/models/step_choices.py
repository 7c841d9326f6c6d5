"""The choices for the step of a described model: batch, sequence length, dtypes, optimizer and kernels.

``StepChoices`` is the one list of them: ``triosim.describe`` takes them as keywords, and the command line makes an option of
each field from its default and its ``metadata`` (``help``; ``values``, where only some words are allowed; ``metavar``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from triosim.errors import OptionError, nearest
from triosim.models.operators.optimizers import OPTIMIZERS
from triosim.trace import dtype_name

PrecisionKind = Literal["plain", "mixed"]
AttentionKind = Literal["flash", "math"]
KernelKind = Literal["eager", "fused", "compiled"]
ProductKind = Literal["plain", "fp8"]

_DTYPES = ("float32", "bfloat16", "float16")


def _shown(help: str, metavar: str = "NAME", values: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the metadata of a field: what the command line shows of its option."""
    return {"help": help, "metavar": "|".join(values) or metavar, "values": values}


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

    batch: int = field(default=1, metadata=_shown("Samples in a step.", "N"))
    sequence: int | None = field(
        default=None, metadata=_shown("Tokens in a sample; by default the model's own length.", "N")
    )
    layers: int | None = field(default=None, metadata=_shown("Another number of layers than the model's.", "N"))
    dtype: str = field(default="bfloat16", metadata=_shown("fp32, bf16 or fp16."))
    precision: PrecisionKind = field(
        default="plain",
        metadata=_shown("Parameters in --dtype, or fp32 ones and autocast to it.", values=get_args(PrecisionKind)),
    )
    optimizer: str = field(
        default="adamw", metadata=_shown("adamw, fused-adamw, master-adamw (fp32 copies), sgd or none.")
    )
    attention: AttentionKind = field(
        default="flash",
        metadata=_shown("One kernel, or products with the scores in memory.", values=get_args(AttentionKind)),
    )
    kernels: KernelKind | None = field(
        default=None,
        metadata=_shown(
            "One an operator; one for what libraries fuse (norms, rotary_angles, gates, the loss); or as a compiler fuses.",
            values=get_args(KernelKind),
        ),
    )
    products: ProductKind = field(
        default="plain",
        metadata=_shown(
            "Matrix products of linear layers in --dtype, or in fp8 with a scale a tensor.",
            values=get_args(ProductKind),
        ),
    )
    dropout: float | None = field(
        default=None, metadata=_shown("Another probability than the model's own: 0, 0.1.", "P")
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
