"""Tensor parallelism: each rank has a shard of every linear, convolution and embedding layer.

Style "gather" (TrioSim 4.3, after BlackSamorez/tensor_parallel): linear, convolution and embedding layers are sharded by output
features. In the forward pass each such layer's output is all-gathered, in the backward pass the gradient of its input is
all-reduced. An embedding whose table is also the weight of another layer is sharded as that is, by vocabulary.

Style "megatron" (Shoeybi et al. 2019), the default where there is attention: layers in pairs, the first column-parallel, the
second row-parallel, with an all-reduce of the second's output in the forward pass and of the gradient of the first's input in
the backward pass, which overlaps with the product for the weight's gradient. The embedding is sharded by vocabulary (an
all-reduce of its output), and so is the projection to the vocabulary before the loss (the loss all-reduces maxima and sums,
one number a token). Layers that are in no pair are sharded in the style "gather".

With sequence parallelism (Korthikanti et al. 2022, section 4.2.2) a rank has a share of the sequence between the pairs: each
all-reduce becomes a reduce-scatter, and an all-gather ahead of the next pair. The backward pass gathers the gradient of a
pair's output, and once more the pair's input for the gradients of weights, while the input's gradient is computed; PyTorch's
``DTensor``, the tp of the stacks "eager" and "compiled", keeps the input instead (``triosim.extrapolators.tensor.dtensor``).
Layers that are in no pair work on a share of the sequence.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from triosim.config import Option
from triosim.errors import OptionError
from triosim.extrapolators.core.extrapolator import TENSOR_ORDER, Extrapolator
from triosim.extrapolators.core.flags import GRADIENT_DTYPE, SEQUENCE_PARALLEL, TP_STYLE
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Program
from triosim.extrapolators.deduplication.deduplicate import LayerDeduplication, UnequalLayersError
from triosim.extrapolators.tensor.layer_sharding import LayerSharding
from triosim.extrapolators.tensor.overlap import overlapped
from triosim.operators.features import base_name, is_attention

_WHOLE_ATTENTION = "tp: style gather computes attention, norms and residuals whole on every GPU; megatron divides heads"

_SOFTMAX = ("softmax", "safe_softmax")


class TensorParallel(Extrapolator):
    """The parallelism ``tp``: shards the linear, convolution and embedding layers."""

    axis = "tp"
    level = "operators"
    identical_ranks = True
    of_operators_alone = True
    order = TENSOR_ORDER
    options = (
        TP_STYLE, SEQUENCE_PARALLEL, GRADIENT_DTYPE,
        Option("overlap", "choice", "no", choices=("no", "ring"),
               help="tp with --sequence-parallel: whether products run in pieces while a ring brings their input."),
        Option("async_allreduce", "choice", choices=("yes", "no"),
               help="tp: whether an input's gradient is reduced beside the product for the weight's gradient, or after it. By "
               "default the stack's: before 2022 Megatron-LM reduced it after."),
        Option("embedding_gradient", "choice", "share", choices=("share", "whole"),
               help="tp: whether a GPU has the gradient of its share of an embedding table, or of the whole table."),
    )  # fmt: skip

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program of one rank's shards, with the collectives around them."""
        by_sequence = self.config.sequence_parallel
        if self._rings and not by_sequence:
            raise OptionError("the overlap in a ring needs --sequence-parallel", where="--option overlap")
        if by_sequence and not self._in_pairs(program):
            raise OptionError(
                "tp of the style 'gather' gathers features between all layers",
                where="sequence parallel",
                fix="use --tp-style megatron",
            )
        if self.size == 1:
            return program
        if program.deduplicate and not self._rings and (repeats := LayerDeduplication.of(program)) is not None:
            with suppress(UnequalLayersError):
                return self._sharded(program, repeats)
        return self._sharded(program, LayerDeduplication(program))

    def _reduces_beside(self, program: Program) -> bool:
        said = self.config.async_allreduce
        return said == "yes" if said else program.stack is None or program.stack.async_allreduce

    @property
    def _rings(self) -> bool:
        return bool(self.config.overlap == "ring")

    def _in_pairs(self, program: Program) -> bool:
        """Whether layers are sharded in pairs, the style "megatron", which is the default where there is attention."""
        style = self.config.tp_style
        return style == "megatron" or (style is None and _has_attention(program))

    def _sharded(self, program: Program, repeats: LayerDeduplication) -> Program:
        """Return the program of one rank: shard the short program of ``repeats``, then restore the other layers."""
        layers = LayerSharding(
            *(repeats, self.axis, self.size),
            by_sequence=self.config.sequence_parallel,
            reduces_beside=self._reduces_beside(program),
            in_rings=self._rings,
        )
        in_pairs = self._in_pairs(program)
        if in_pairs:
            layers.shard_pairs()
        if self.config.sequence_parallel:
            layers.shard_sequence()
        else:
            layers.shard_remaining()
        after = layers.with_optimizer(program, repeats.restored(layers.program()))
        if not in_pairs and _has_attention(program):
            after = after.noted(_WHOLE_ATTENTION)
        if self.config.embedding_gradient == "whole":
            after = with_full_embedding_gradients(program, after, self.axis)
        return overlapped(after, self.axis, self.size, layers.propagator.step) if self._rings else after


def _has_attention(program: Program) -> bool:
    """Whether there is attention, fused or as a softmax of scores, which have more dimensions than a classifier's."""
    for operator in program.operators:
        name = base_name(operator.name)
        if is_attention(name) or (name in _SOFTMAX and len(operator.inputs[0].shape) > 2):
            return True
    return False


def with_full_embedding_gradients(before: Program, after: Program, axis: str) -> Program:
    """Return ``after``, a sharded program, with gradients of whole embedding tables, of which a rank keeps its shard.

    This is how PyTorch's ``DTensor`` computes them for a table that is sharded by rows.
    """
    known = {operator.id: operator for operator in before.operators}
    full = {
        one.id: replace(one, outputs=known[one.id].outputs)
        for one in after.operators
        if base_name(one.name) == "embedding_dense_backward" and one.id in known
    }
    return after.reshaped(full, note=f"{axis}: the gradients of embeddings are computed whole, as DTensor does")
