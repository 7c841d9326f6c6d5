"""The sharding of a program's layers by tensor parallelism: which layers are sharded, how, and the program of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from triosim.extrapolators.core.hooks import with_hooks
from triosim.extrapolators.core.program import Program
from triosim.extrapolators.core.program.kept_programs import with_kept_optimizer
from triosim.extrapolators.deduplication.deduplicate import LayerDeduplication
from triosim.extrapolators.tensor import notes
from triosim.extrapolators.tensor.added_operators import AddedOperators
from triosim.extrapolators.tensor.dtensor import SequenceCopies, with_step_of_loss
from triosim.extrapolators.tensor.insertions import Insertions
from triosim.extrapolators.tensor.layer_collectives import LayerCollectives
from triosim.extrapolators.tensor.layer_gradients import LayerGradients
from triosim.extrapolators.tensor.pairs import LayerPair, PairFinder, UndividedHeads
from triosim.extrapolators.tensor.sequence_parallel import SequenceRegion, reduced_at_step_end
from triosim.sharding.dataflow import Dataflow, is_loss, is_view
from triosim.sharding.layers import WeightLayer, weight_layer
from triosim.sharding.parameters import (
    casts_of_parameters,
    is_cast_of_parameter,
    owners,
    parameter_storages,
    with_casts_as_parameters,
)
from triosim.sharding.placements import Placements, Shard
from triosim.sharding.propagation import OperatorSharding, ShardingPropagator
from triosim.sharding.shards import local_operator, local_optimizer_operator, sharded_parameters
from triosim.trace import Operator, Tensor


class LayerSharding:
    """Decides how each layer is sharded, and then rewrites the program once.

    It works on the ``short`` program of a model with repeated layers: a decision for one of them holds for all.
    """

    def __init__(
        self,
        repeats: LayerDeduplication,
        axis: str,
        ranks: int,
        *,
        by_sequence: bool = False,
        reduces_beside: bool = True,
        in_rings: bool = False,
    ) -> None:
        self._before = program = repeats.short
        self._repeats = repeats
        self._by_sequence = by_sequence
        self._axis = axis
        self._ranks = ranks
        self._casts = casts_of_parameters(program.operators)
        operators = with_casts_as_parameters(program.operators, self._casts)
        self._flow = Dataflow(operators)
        found = [weight_layer(operator) for operator in self._flow.forward]
        self._layers = {layer.operator.id: layer for layer in found if layer is not None}
        self.propagator = ShardingPropagator(
            operators, program.batch_size, self._flow.backward, ranks, deduplicate=program.deduplicate
        )
        self._pairs = PairFinder(self._flow, self._layers, self.propagator, ranks)
        self._shardings: dict[int, OperatorSharding | None] = {}  # by forward operator; None where it is replicated
        backward = [operator for operator in program.operators if operator.phase == "backward"]
        gradients = LayerGradients(self._flow, self._layers, backward, self._shardings)
        self._inserted = Insertions(max(self._flow.by_id) + 1, gradients.of_weights)
        self._is_dtensor = program.stack is not None and program.stack.tensor_parallelism == "dtensor"
        self._collectives = LayerCollectives(
            *(self._flow, gradients, self._inserted, axis),
            by_sequence=by_sequence,
            reduces_beside=reduces_beside,
            copies=SequenceCopies(self._added, program.batch_size, in_rings=in_rings) if self._is_dtensor else None,
        )
        self._region: SequenceRegion | None = None
        self._reduced_at_end: set[int] = set()  # storages of parameters whose gradients are reduced when the step ends
        self._projections: list[WeightLayer] = []  # to the vocabulary
        self._shared_heads: dict[int, list[str]] = {}  # layers, by the number of key and value heads
        self._latent: list[str] = []  # layers that make latent vectors
        self._notes: list[str] = []
        self._reason = f"operator times are predicted for each GPU's share of a layer ({axis} on {ranks} GPUs)"

    # ---- decisions ----------------------------------------------------------------------------------------------

    def shard_pairs(self) -> None:
        """Shard layers as Megatron-LM does: the vocabulary's layers, then pairs in the order of the forward pass."""
        for layer in self._layers.values():
            if self._is_vocabulary(layer):
                self._shard_embedding(layer)
            elif shardings := self._pairs.up_to_loss(layer):
                self._shard_projection(layer, shardings)
        undivided: dict[int, list[str]] = {}
        for layer in self._layers.values():
            if layer.operator.id in self._shardings:
                continue
            pair = self._pairs.find(layer, self._shardings)
            if isinstance(pair, LayerPair):
                self._shard_pair(pair)
            elif isinstance(pair, UndividedHeads):
                undivided.setdefault(pair.heads, []).append(pair.layer)
        for number, layer in self._layers.items():
            if layer.input is None or self._pairs.is_router(layer):
                self._shardings.setdefault(number, None)  # embeddings of positions, and routers, are replicated
        self._note_pairs(undivided)

    def shard_sequence(self) -> None:
        """Shard the sequence of all operators that are not sharded yet, and gather it ahead of the pairs."""
        sharded = {number for number, sharding in self._shardings.items() if sharding is not None}
        region = SequenceRegion(self._flow, sharded, self.propagator.step, self._ranks, self._pairs.is_activation)
        self._region = region
        for layers in self._collectives.joint_inputs:
            if region.is_sharded(self._collectives.input_value(layers[0])):
                self._collectives.gather_input(layers)
        for number, tensors in region.mixing_tokens.items():
            self._collectives.gather_tokens(self._flow.by_id[number], tensors)
        mixing = [self._flow.by_id[number].layer for number in region.mixing_tokens]
        self._notes += notes.all_tokens("tp", self._repeats.layers(mixing))
        self._reduced_at_end |= region.parameters()
        self._note_uneven(self._uneven_projections())

    def shard_remaining(self) -> None:
        """Shard the other layers by output features. Where these do not divide, every rank is charged the largest share."""
        uneven = self._uneven_projections()
        tied = {self._storage(layer.weight) for layer in self._layers.values() if layer.input is not None}
        for layer in self._layers.values():
            if layer.operator.id in self._shardings:
                continue
            if layer.input is None and self._storage(layer.weight) in tied:
                self._shard_embedding(layer)  # by rows, so that a rank has the same shard of the table in both layers
                continue
            if layer.output_features % self._ranks:
                uneven.append(layer.operator.layer)
            self._shard(layer.operator, layer.column_parallel())
            self._collectives.gather_output(layer)
        self._note_uneven(uneven)

    def _note_pairs(self, undivided: dict[int, list[str]]) -> None:
        """Note layers and heads that could not be paired in full. Sequence parallelism needs heads that divide."""
        if self._by_sequence:
            notes.require_heads({heads: self._repeats.layers(names) for heads, names in undivided.items()}, self._ranks)
        unpaired = [layer.operator.layer for number, layer in self._layers.items() if number not in self._shardings]
        done = "every GPU keeps a full copy" if self._by_sequence else "their outputs are all-gathered"
        self._note(f"{{}} cannot be paired with another layer, so {done}", unpaired)
        self._note("{} produce latent vectors shared by all heads, so every GPU keeps a full copy", self._latent)
        for heads, names in self._shared_heads.items():
            self._note(f"each of the {heads} key and value heads of {{}} is on {self._ranks // heads} GPUs", names)
        for heads, names in undivided.items():
            what = f"the {heads} heads of {{}} are not divisible by {self._ranks}"
            self._note(f"{what}, so the outputs of the layers around them are all-gathered", names)

    def _note_uneven(self, names: list[str]) -> None:
        what = f"the output features of {{}} are not divisible by {self._ranks}"
        self._note(f"{what}; every GPU is charged the largest share", names)

    def _note(self, text: str, names: list[str]) -> None:
        """Note something about layers, and those that repeat them."""
        self._notes += notes.note(f"tp: {text}", self._repeats.layers(names))

    def _uneven_projections(self) -> list[str]:
        return [layer.operator.layer for layer in self._projections if layer.output_features % self._ranks]

    def _is_vocabulary(self, layer: WeightLayer) -> bool:
        """Whether a layer looks up the network's input, or values computed from it, in a large table; no positions."""
        is_table = layer.input is None and layer.weight.shape[0] >= layer.weight.shape[1]
        return is_table and self._pairs.reads_activations(layer.operator)

    def _shard_embedding(self, layer: WeightLayer) -> None:
        """Shard an embedding by vocabulary: a rank looks up the words of its shard, and zeros for the others."""
        self._shard(layer.operator, layer.row_parallel())
        self._reduce_output(layer)

    def _shard_projection(self, layer: WeightLayer, shardings: dict[int, OperatorSharding]) -> None:
        """Shard the projection to the vocabulary and the loss by vocabulary."""
        self._projections.append(layer)
        self._shardings.update(shardings)
        self._collectives.reduce_input_gradients([layer])
        loss = next(op for op in self._flow.forward if op.id in shardings and is_loss(op))
        self._collectives.reduce_loss(loss, layer.output.numel // layer.output_features)

    def _shard_pair(self, pair: LayerPair) -> None:
        self._shardings.update(pair.shardings)
        self._reduce_output(pair.row_parallel)
        self._collectives.reduce_input_gradients(pair.column_parallel)
        for latent in pair.latent:
            self._shardings.setdefault(latent.operator.id, None)
            self._latent.append(latent.operator.layer)
        for expansion in pair.expansions:
            self._collectives.reduce_expansion(expansion)
        for parameter, operator in pair.partial_gradients:
            self._collectives.reduce_parameter(parameter, operator)
        for parameter, operator, heads in pair.shared_heads:
            self._shared_heads.setdefault(heads, []).append(operator.layer)
            self._collectives.reduce_parameter(parameter, operator, heads)

    def _reduce_output(self, layer: WeightLayer) -> None:
        """Reduce a row-parallel layer's output. With sequence parallelism its bias is added to a rank's own tokens only."""
        self._collectives.reduce_output(layer)
        sharding = self._shardings[layer.operator.id]
        if self._by_sequence and sharding is not None:
            parameters = (tensor for tensor in layer.operator.inputs if tensor.category == "parameter")
            self._reduced_at_end |= {tensor.storage for tensor in parameters if tensor.id not in sharding.placements}

    def _shard(self, operator: Operator, placements: Placements) -> None:
        self._shardings[operator.id] = self.propagator.propagate(operator, placements)

    # ---- the program --------------------------------------------------------------------------------------------

    def program(self) -> Program:
        """Return the short program of one rank, with the collectives. Raises ``TraceError`` where nothing is sharded."""
        backward = [op for number in self._shardings for op in self._flow.backward.get(number, ())]
        any_backward = bool(backward) or not self._before.training
        notes.require_sharded(any(self._shardings.values()), any_backward, self._ranks)
        self._shard_views_of_parameters()
        shapes: dict[int, Operator] = {}
        for operator, sharding in self._shardings_of_all():
            if sharding is not None:
                shapes[operator.id] = self._local_operator(operator, sharding.placements)
            elif self._region is not None and not self._collectives.sums_unreduced_gradients(operator):
                shapes[operator.id] = self._region.local_operator(operator)
        return self._before.reshaped(shapes, note=self._reason).rewritten(self._inserted.items).noted(*self._notes)

    def _local_operator(self, operator: Operator, placements: Placements) -> Operator:
        """Return an operator on a rank's shards, as the software stack computes it."""
        local = local_operator(operator, placements, self._ranks)
        return with_step_of_loss(local, placements, lambda: self._added.tensor_id()) if self._is_dtensor else local

    @cached_property
    def _added(self) -> AddedOperators:
        return AddedOperators(self._repeats.whole)

    def with_optimizer(self, whole: Program, after: Program) -> Program:
        """Return a rank's program ``after`` with the optimizer of its shards; ``whole`` is the program before it was sharded.

        It also all-reduces the partial gradients of sequence parallelism at the end of the step.
        """
        parameters = sharded_parameters(self._before.operators, self._shardings).with_repeated(self._repeats.tensors)
        known = parameter_storages(whole.operators)

        def sharded() -> Program:
            optimizer = [operator for operator in whole.operators if operator.phase == "optimizer"]
            owner_of = owners(optimizer, known)
            shapes = {op.id: local_optimizer_operator(op, owner_of, parameters, self._ranks) for op in optimizer}
            return after.reshaped(shapes, note=self._reason)

        others = "tp", parameters, known, self._ranks, tuple(stage.optimizer for stage in whole.stages)
        after = with_kept_optimizer(after, others, self._reason, sharded)
        storages = self._repeats.storages(self._reduced_at_end) - parameters.parameters.keys()
        return with_hooks(after, self._axis, reduced_at_step_end(storages)) if storages and after.training else after

    def _shardings_of_all(self) -> Iterator[tuple[Operator, OperatorSharding | None]]:
        """Yield every operator with its sharding, None for those that are replicated.

        A backward operator is sharded as its forward operator is. A sum of gradients, which has none, is sharded as the
        gradients that it adds up.
        """
        gradients: dict[int, Shard] = {}  # of the tensors that the backward pass has produced so far
        for operator in self._before.operators:
            if operator.phase == "forward":
                yield operator, self._shardings.get(operator.id)
                continue
            if operator.forward is not None:
                sharding = self._shardings.get(operator.forward)
            else:
                placements = {t.id: gradients[t.id] for t in operator.inputs if t.id in gradients}
                sharding = self.propagator.propagate(operator, placements) if placements else None
            for tensor in operator.outputs:
                gradients.pop(tensor.id, None)
                if sharding is not None and tensor.id in sharding.placements:
                    gradients[tensor.id] = sharding.placements[tensor.id]
            yield operator, sharding

    def _storage(self, weight: Tensor) -> int:
        """Return the storage of the parameter that a weight is, or is a cast of."""
        return self._casts.get(weight.storage, weight.storage)

    def _shard_views_of_parameters(self) -> None:
        """Shard the views and casts of parameters as the layers that read them need it."""
        shards = {
            number: shard
            for sharding in self._shardings.values()
            if sharding is not None
            for number, shard in sharding.placements.items()
        }
        for operator in reversed(self._flow.forward):  # a cast may be transposed after it is made
            is_parameter_view = is_view(operator) and operator.inputs[0].category == "parameter"
            if not (is_parameter_view or is_cast_of_parameter(operator)):
                continue
            sharding = self._sharding_for_outputs(operator, [shards.get(tensor.id) for tensor in operator.outputs])
            if sharding is not None:
                self._shardings[operator.id] = sharding
                of_inputs = {t.id for t in operator.inputs} & sharding.placements.keys()
                shards |= {number: sharding.placements[number] for number in of_inputs}

    def _sharding_for_outputs(self, operator: Operator, wanted: Sequence[Shard | None]) -> OperatorSharding | None:
        """Return the sharding of a view or cast of a parameter whose outputs have the wanted shards."""
        shard = next((one for one in wanted if one is not None), None)
        found = None
        for dim, length in enumerate(operator.inputs[0].shape):
            if shard is None or length % (shard.size * shard.outer):
                continue
            sharding = self.propagator.propagate(operator, {operator.inputs[0].id: replace(shard, dim=dim)})
            if sharding is not None and [sharding.placements.get(t.id) for t in operator.outputs] == wanted:
                found = sharding
        return found
