"""The interface of a described model: its sizes, and a function that records its forward pass."""

from __future__ import annotations

from typing import Protocol

from triosim.errors import OptionError
from triosim.models.operators.tape import Tape, Value
from triosim.models.step_choices import ChoiceReader

#: What the metadata of a field say whose list of sizes may have any length: each other has as many as the catalogue's model.
ANY_LENGTH = "any length"


class Model(Protocol):
    """A model that can be described. ``sequence`` is the usual number of tokens of a sample; 0 for a model of images."""

    @property
    def name(self) -> str:
        """The name of the model."""

    @property
    def sequence(self) -> int:
        """The default number of tokens of a sample."""

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass of one batch, and return its loss."""


def check_shared(heads: int, shared: int) -> None:
    """Raise ``OptionError`` where heads of queries do not share those of keys and values evenly."""
    if heads % shared:
        raise OptionError(
            f"{heads} heads are not divisible by {shared} heads of keys and values", fix="change one of them"
        )


def check_length(sequence: int, positions: int, name: str) -> None:
    """Raise ``OptionError`` for a sample that has more tokens than the model has positions."""
    if sequence > positions:
        raise OptionError(
            f"a sequence of {sequence} tokens is longer than the {positions} positions of {name}", fix="give fewer"
        )


def token_inputs(tape: Tape, batch: int, sequence: int, count: int = 2) -> list[Value]:
    """Return inputs of the shape (batch, sequence): token ids, and labels."""
    return [tape.new((batch, sequence), "int64", category="input") for _ in range(count)]
