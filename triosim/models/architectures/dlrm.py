"""DLRM (Naumov et al. 2019): features of a user and an item, looked up in tables of embeddings, and two MLPs.

The bottom MLP makes a vector of the dense features. Of each table some rows are looked up and added. The interaction takes the
products of all pairs of these vectors, and the top MLP makes a click's logit of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from triosim.errors import OptionError
from triosim.models.architectures.model import ANY_LENGTH
from triosim.models.operators.elementwise import relu_in_place
from triosim.models.operators.layers import pooled_embeddings
from triosim.models.operators.moe import index
from triosim.models.operators.products import bmm, linear
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import cat, reshape, transpose, view
from triosim.models.step_choices import ChoiceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class DLRM:
    """``tables`` of ``rows`` embeddings each, of which a sample looks up ``lookups``; widths of the layers of both MLPs.

    The last width of ``bottom`` is that of the embeddings. Tables of different sizes are given by their mean.
    """

    bottom: Sequence[int] = field(metadata={ANY_LENGTH: True})
    top: Sequence[int] = field(metadata={ANY_LENGTH: True})
    tables: int
    rows: int
    lookups: int = 1
    dense: int = 13
    sequence: int = 0
    name: str = "dlrm"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the tables are looked up first, while the dense features go through the bottom MLP."""
        for size in ("tables", "rows", "lookups"):
            if getattr(self, size) < 1:
                raise OptionError(f"{size} cannot be {getattr(self, size)}", where=self.name, fix="give 1 or more")
        features = tape.new((batch, self.dense), tape.dtype, category="input")
        indices = tape.new((batch, self.tables, self.lookups), "int64", category="input")
        width = self.bottom[-1]
        with tape.at("embeddings"):
            pooled = pooled_embeddings(indices, self.rows, width)
        dense = _mlp("bottom_mlp", features, self.bottom)
        with tape.at("interaction"):
            vectors = cat((view(dense, (batch, 1, width)), pooled), 1)
            products = bmm(vectors, transpose(vectors, 1, 2))
            count = self.tables + 1
            pairs = tape.new((count * (count - 1) // 2,), "int64", category="buffer")
            of_pairs = index(transpose(reshape(products, (batch, count * count)), 0, 1), pairs)
            found = cat((dense, transpose(of_pairs, 0, 1)), 1)
        logits = _mlp("top_mlp", found, self.top[:-1])
        logits = module(f"top_mlp.{len(self.top) - 1}", linear, logits, self.top[-1])
        with tape.at("loss"):
            target, loss = tape.new(logits.shape, logits.dtype, category="input"), tape.new((), logits.dtype)
            given = logits, target
            name = "binary_cross_entropy_with_logits"
            return tape.kernel(name, given, (loss,), of=(logits,), saved=given)


def _mlp(name: str, x: Value, widths: Sequence[int]) -> Value:
    """Return what linear layers make of the input, each with a ReLU."""
    with x.tape.at(name):
        for number, width in enumerate(widths):
            x = relu_in_place(module(str(number), linear, x, width))
        return x
