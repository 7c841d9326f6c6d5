"""GPT: the decoder of Radford et al. (2019) and Brown et al. (2020), as transformers, Megatron-LM or llm-foundry writes it.

Megatron-LM (Narayanan et al. 2021) keeps activations as (sequence, batch, features); with ``attention="math"`` the scores
of attention are in memory, as before FlashAttention. In half precision its softmax leaves out what a word may not look at
by itself; in fp32 that is filled in before, since its fused kernel does not serve fp32, nor more than 2,048 words, nor ranks
whose heads times samples are no multiple of four (``is_kernel_available`` in its ``fused_softmax.py``): ``fused_softmax=false``
scales and masks in fp32 by kernels of their own. It fuses biases with what follows
them, unless ``kernels="eager"`` says otherwise. llm-foundry's MPT (MosaicML 2023) differs from transformers' GPT-2 in its
kernels alone: linear layers, a GELU in one kernel, and the fused loss of FlashAttention; and Composer, which trains it,
computes two metrics of every batch from the logits (``use_train_metrics``), in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from triosim.models.architectures.model import check_length, token_inputs
from triosim.models.operators import fused
from triosim.models.operators.attention import (
    attention,
    causal_mask,
    features_of_head,
    multi_head_attention,
    split_heads,
    unfused_attention,
)
from triosim.models.operators.elementwise import add, dropout, gelu, unfused_gelu
from triosim.models.operators.layers import embedding, layer_norm, next_token_loss
from triosim.models.operators.products import linear, transposed_linear
from triosim.models.operators.tape import Tape, Value, module
from triosim.models.operators.views import contiguous_of, expand, permute, reshape, split, transpose, unsqueeze, view
from triosim.models.step_choices import ChoiceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT:
    """Sizes of a GPT. ``sequence`` is the number of positions; ``feed_forward`` is four times ``hidden`` by default."""

    layers: int
    hidden: int
    heads: int
    vocab: int = 51200
    sequence: int = 2048
    feed_forward: int | None = None
    dropout: float = 0.1
    style: Literal["megatron", "huggingface", "mpt"] = "megatron"
    fused_softmax: bool = True
    name: str = "gpt"

    def loss(self, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> Value:
        """Record the forward pass; the loss is that of the next token."""
        check_length(sequence, self.sequence, self.name)
        step = _ForwardPass(self, tape, batch, sequence, choices)
        return step.megatron() if self.style == "megatron" else step.huggingface()


class _ForwardPass:
    """One forward pass."""

    def __init__(self, model: GPT, tape: Tape, batch: int, sequence: int, choices: ChoiceReader) -> None:
        self.model = model
        self.tape = tape
        self.batch = batch
        self.sequence = sequence
        self.kernel = choices.attention_kernel()
        self.dropped = choices.dropout(model.dropout)
        self.width = features_of_head(model.hidden, model.heads)
        self.fused = choices.fused()
        mpt = model.style == "mpt"
        half = (tape.autocast or tape.dtype) != "float32"
        self.masks = self.kernel == "math" and not (half and model.fused_softmax)
        self.rescaled = half and not model.fused_softmax
        self.linear: Callable[[Value, int], Value] = linear if mpt else transposed_linear
        self.gelu: Callable[[Value], Value] = gelu if mpt else unfused_gelu
        self.mask: Value | None = None

    def _embedded(self, token_ids: Value, names: tuple[str, str]) -> Value:
        model, tape = self.model, self.tape
        found = module(names[0], embedding, token_ids, model.vocab, model.hidden)
        positions = tape.result("arange", (), (self.sequence,), "int64")
        positions = unsqueeze(positions, 0)
        if model.style == "megatron":
            positions = expand(positions, token_ids.shape)
        placed = module(names[1], embedding, positions, model.sequence, model.hidden)
        return add(found, placed)

    # ---- Megatron-LM --------------------------------------------------------------------------------------------

    def megatron(self) -> Value:
        """Activations are (sequence, batch, hidden)."""
        model, tape = self.model, self.tape
        token_ids, labels = token_inputs(tape, self.batch, self.sequence)
        with tape.at("embedding"):
            found = self._embedded(token_ids, ("word_embeddings", "position_embeddings"))
            found = dropout(contiguous_of(transpose(found, 0, 1)), self.dropped)
        with tape.at("transformer"):
            if self.masks:
                self.mask = causal_mask(tape, self.sequence)
            for number in range(model.layers):
                found = module(f"layers.{number}", self._megatron_layer, found)
            found = module("final_layernorm", layer_norm, found)
        with tape.at("output_layer"):
            table = tape.parameters["embedding.word_embeddings.weight"]
            logits = linear(found, model.vocab, bias=False, weight=table)
        labels = module("loss", transpose, labels, 0, 1)
        return next_token_loss(logits, labels, fused=False)

    def _megatron_layer(self, x: Value) -> Value:
        tape, model = self.tape, self.model
        found = module("input_layernorm", layer_norm, x)
        with tape.at("self_attention"):
            found = self._megatron_attention(found)
            x = module("linear_proj", self._added, found, x)
        found = module("pre_mlp_layernorm", layer_norm, x)
        with tape.at("mlp"):
            with tape.at("linear_fc1"):
                found = linear(found, model.feed_forward or 4 * model.hidden, bias=not self.fused)
                found = fused.bias_gelu(found) if self.fused else gelu(found)
            return module("linear_fc2", self._added, found, x)

    def _added(self, found: Value, x: Value) -> Value:
        """The open module's linear layer, and the residual."""
        found = linear(found, self.model.hidden, bias=not self.fused)
        if self.fused:
            return fused.bias_dropout_add(found, x, self.dropped)
        return add(x, dropout(found, self.dropped))

    def _megatron_attention(self, x: Value) -> Value:
        model, width = self.model, self.width
        mixed = module("linear_qkv", linear, x, 3 * model.hidden)
        mixed = view(mixed, (self.sequence, self.batch, model.heads, 3 * width))
        parts = split(mixed, [width] * 3, -1)
        if self.kernel != "math":
            query, key, value = (permute(part, (1, 2, 0, 3)) for part in parts)
            found = attention(query, key, value, kernel=self.kernel, causal=True, probability=self.dropped)
            found = permute(found, (2, 0, 1, 3))
        else:
            rows = (self.sequence, self.batch * model.heads, width)
            query, key, value = (transpose(reshape(part, rows), 0, 1) for part in parts)
            found = unfused_attention(
                *(query, key, value),
                heads=model.heads,
                mask=self.mask,
                probability=self.dropped,
                rescaled=self.rescaled,
            )
            found = view(found, (self.batch, model.heads, self.sequence, width))
            found = permute(found, (2, 0, 1, 3))
        return reshape(found, (self.sequence, self.batch, model.hidden))

    # ---- transformers -------------------------------------------------------------------------------------------

    def huggingface(self) -> Value:
        """Activations are (batch, sequence, hidden)."""
        model, tape = self.model, self.tape
        token_ids, labels = token_inputs(tape, self.batch, self.sequence)
        with tape.at("transformer"):
            found = self._embedded(token_ids, ("wte", "wpe"))
            found = module("drop", dropout, found, self.dropped)
            for number in range(model.layers):
                found = module(f"h.{number}", self._layer, found)
            found = module("ln_f", layer_norm, found)
        with tape.at("lm_head"):
            table = tape.parameters["transformer.wte.weight"]
            logits = linear(found, model.vocab, bias=False, weight=table)
        if model.style == "mpt":
            self._train_metrics(logits, labels)
        return next_token_loss(logits, labels, fused=self.fused or model.style == "mpt")

    def _train_metrics(self, logits: Value, labels: Value) -> None:
        """Composer's metrics of a batch: each computes the cross entropy again; nobody asks for their gradients."""
        for name in ("LanguageCrossEntropy", "LanguagePerplexity"):
            with self.tape.at(f"train_metrics.{name}"):
                next_token_loss(logits, labels, fused=False)

    def _layer(self, x: Value) -> Value:
        tape, model = self.tape, self.model
        found = module("ln_1", layer_norm, x)
        found = module("attn", self._attention, found)
        x = add(found, x)
        found = module("ln_2", layer_norm, x)
        with tape.at("mlp"):
            found = module("c_fc", self.linear, found, model.feed_forward or 4 * model.hidden)
            found = module("act", self.gelu, found)
            found = module("c_proj", self.linear, found, model.hidden)
            found = module("dropout", dropout, found, self.dropped)
        return add(x, found)

    def _attention(self, x: Value) -> Value:
        tape, model = self.tape, self.model
        with tape.at("c_attn"):
            parts = split(self.linear(x, 3 * model.hidden), [model.hidden] * 3, 2)
        query, key, value = (split_heads(part, model.heads) for part in parts)
        found = multi_head_attention(query, key, value, kernel=self.kernel, probability=self.dropped, causal=True)
        found = module("c_proj", self.linear, found, model.hidden)
        return module("resid_dropout", dropout, found, self.dropped)
