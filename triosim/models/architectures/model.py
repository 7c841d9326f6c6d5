"""What a described model is: sizes, and a function that writes its forward pass down; and what may be chosen about a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from triosim.errors import OptionError
from triosim.models.operators.tape import Tape, Value

AttentionKind = Literal["flash", "math"]
KernelKind = Literal["eager", "fused", "compiled"]
#: What a model does not have that does not read a choice.
_LACKING = {"attention": "no attention", "kernels": "nothing that is known to be fused", "dropout": "no dropout"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """How a step is run. ``kernels`` and ``dropout`` of None are what the model says; ``read`` are those that it asked for."""

    attention: AttentionKind = "flash"
    kernels: KernelKind | None = None
    dropout: float | None = None
    read: set[str] = field(default_factory=set, compare=False, repr=False)

    def attention_kernel(self) -> AttentionKind:
        """Return as what attention runs."""
        self.read.add("attention")
        return self.attention

    def fused(self, own: bool = False) -> bool:
        """Return whether what can be one kernel is, where the model says ``own``."""
        self.read.add("kernels")
        return own if self.kernels is None else self.kernels == "fused"

    def probability(self, own: float) -> float:
        """Return with what probability numbers are dropped, where the model says ``own``."""
        self.read.add("dropout")
        return own if self.dropout is None else self.dropout

    def check_read(self, name: str) -> None:
        """Raise ``OptionError`` where a model, as it was written down, left something of this unread."""
        said = {
            "attention": self.attention == "math",
            "kernels": self.kernels == "fused",
            "dropout": bool(self.dropout),
        }
        for option, given in said.items():
            if given and option not in self.read:
                raise OptionError(f"{name} has {_LACKING[option]}", where=option, fix="leave it out")


class Model(Protocol):
    """A model that can be described. ``sequence`` is the usual length of a sample in tokens; 0 of what reads images."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def sequence(self) -> int:
        """How long a sample is, where nobody says."""

    def loss(self, tape: Tape, batch: int, sequence: int, choices: Choices) -> Value:
        """Write the forward pass of one batch down, and return its loss."""


def check_heads(features: int, heads: int) -> None:
    """Raise ``OptionError`` where heads do not share features evenly."""
    if features % heads:
        raise OptionError(f"{features} features do not divide by {heads} heads", fix="change one of them")


def check_shared(heads: int, shared: int) -> None:
    """Raise ``OptionError`` where heads of queries do not share those of keys and values evenly."""
    if heads % shared:
        raise OptionError(f"{heads} heads do not divide by {shared} heads of keys and values", fix="change one of them")


def check_length(sequence: int, positions: int, name: str) -> None:
    """Raise ``OptionError`` for a sample that is longer than a model can tell positions apart."""
    if sequence > positions:
        raise OptionError(
            f"a sequence of {sequence} tokens is longer than the {positions} positions of {name}", fix="give fewer"
        )


def tokens(tape: Tape, batch: int, sequence: int) -> Value:
    """Return numbers of words that a network is fed."""
    return tape.new((batch, sequence), "int64", category="input")
