"""BERT (Devlin et al. 2019) with its head for masked tokens, as transformers writes it.

transformers predicts the words of all tokens; NVIDIA's examples those of masked tokens alone (``masked``), which are 15% of
them. Fine-tuned to answer questions, its head says where an answer begins and ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triosim.models.architectures.model import check_length, token_inputs
from triosim.models.operators.attention import self_attention
from triosim.models.operators.elementwise import add, dropout, gelu
from triosim.models.operators.layers import cross_entropy, embedding, layer_norm
from triosim.models.operators.moe import index
from triosim.models.operators.products import linear
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import expand, permute, reshape, slice_of, view
from triosim.models.step_choices import ChoiceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Bert:
    """Sizes of a BERT. ``positions`` is the largest number of tokens; ``sequence`` the usual one.

    ``masked`` is the share of tokens whose words the head predicts.
    """

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocab: int = 30522
    positions: int = 512
    token_types: int = 2
    sequence: int = 512
    dropout: float = 0.1
    head: Literal["words", "answers"] = "words"
    masked: float = 1.0
    name: str = "bert"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is over the tokens whose words the head predicts, or over positions of answers."""
        check_length(sequence, self.positions, self.name)
        token_ids, labels = token_inputs(tape, batch, sequence)
        dropped = choices.dropout(self.dropout)
        with tape.at("bert"):
            with tape.at("embeddings"):
                found = self._embedded(tape, token_ids, dropped)
            for number in range(self.layers):
                found = module(f"encoder.layer.{number}", self._layer, found, choices, dropped)
        if self.head == "answers":
            return self._answers(found)
        if self.masked < 1.0:
            found, labels = self._masked(found, labels)
        logits = module("cls.predictions", self._words, found)
        with tape.at("loss"):
            return cross_entropy(view(logits, (-1, self.vocab)), view(labels, (-1,)))

    def _masked(self, found: Value, labels: Value) -> tuple[Value, Value]:
        """Return features and labels of the masked tokens alone."""
        tokens = found.shape[0] * found.shape[1]
        rows = found.tape.new((max(1, round(self.masked * tokens)),), "int64", category="input")
        return index(view(found, (tokens, self.hidden)), rows), index(view(labels, (tokens,)), rows)

    def _words(self, found: Value) -> Value:
        """The head for masked tokens, whose matrix is the embeddings'."""
        tape = found.tape
        with tape.at("transform"):
            found = module("dense", linear, found, self.hidden)
            found = module("transform_act_fn", gelu, found)
            found = module("LayerNorm", layer_norm, found)
        with tape.at("decoder"):
            table = tape.parameters["bert.embeddings.word_embeddings.weight"]
            return linear(found, self.vocab, weight=table)

    def _answers(self, found: Value) -> Value:
        """The head for answers: of each sample, scores of its tokens to be an answer's first, and its last."""
        batch, length, _ = found.shape
        scores = permute(module("qa_outputs", linear, found, 2), (0, 2, 1))
        with found.tape.at("loss"):
            labels = found.tape.new((2 * batch,), "int64", category="input")
            return cross_entropy(reshape(scores, (2 * batch, length)), labels)

    def _embedded(self, tape: Tape, token_ids: Value, dropped: float) -> Value:
        length = token_ids.shape[1]
        numbers, zeros = (tape.new((1, self.positions), "int64", category="buffer") for _ in range(2))
        numbers = slice_of(numbers, 1, 0, length)
        kinds = expand(slice_of(zeros, 1, 0, length), token_ids.shape)
        found = module("word_embeddings", embedding, token_ids, self.vocab, self.hidden)
        of_kinds = module("token_type_embeddings", embedding, kinds, self.token_types, self.hidden)
        found = add(found, of_kinds)
        placed = module("position_embeddings", embedding, numbers, self.positions, self.hidden)
        found = add(found, placed)
        found = module("LayerNorm", layer_norm, found)
        return module("dropout", dropout, found, dropped)

    def _layer(self, x: Value, choices: ChoiceReader, dropped: float) -> Value:
        tape = x.tape
        with tape.at("attention.self"):
            names, kernel = ("query", "key", "value"), choices.attention_kernel()
            found = self_attention(x, self.heads, names, kernel=kernel, probability=dropped)
        x = module("attention.output", self._added, found, x, dropped)
        with tape.at("intermediate"):
            found = module("dense", linear, x, self.feed_forward)
            found = module("intermediate_act_fn", gelu, found)
        return module("output", self._added, found, x, dropped)

    def _added(self, found: Value, x: Value, dropped: float) -> Value:
        """The end of a sub-layer: projection to the hidden size, residual, norm."""
        found = module("dense", linear, found, self.hidden)
        found = module("dropout", dropout, found, dropped)
        found = add(found, x)
        return module("LayerNorm", layer_norm, found)
