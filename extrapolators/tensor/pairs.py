"""The search for Megatron-LM's pairs of layers: column-parallel ones, and the row-parallel one that sums their products.

Shoeybi et al. 2019, section 3. Between the two, each rank works on its own features (attention heads, channels) and nothing
is communicated. Pairs are read from the dataflow: on every path from the input of a layer back through local operators there
must be a column-parallel layer, and nothing on the way may be used elsewhere. Then the shards are propagated forward, operator
by operator, until the row-parallel layer reduces over them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from triosim.extrapolators.tensor.latent_attention import HeadExpansion, LatentAttention
from triosim.operators.features import base_name, is_attention
from triosim.sharding.dataflow import Dataflow, StoredValue, is_loss, is_view
from triosim.sharding.layers import WeightLayer
from triosim.sharding.placements import Placements, Shard
from triosim.sharding.propagation import ForwardPlacements, HeadsDoNotDivideError, OperatorSharding, ShardingPropagator
from triosim.sharding.rules.local import (
    attention_heads,
    has_single_head,
    is_global_maximum,
    is_local,
    reduces_over_shards,
)
from triosim.trace import Operator, Tensor

#: The most operators between a router and the ranking of its experts: a cast, a softmax, a bias.
_OPERATORS_TO_RANKING = 4


@dataclass(frozen=True, slots=True)
class LayerPair:
    """Column-parallel layers and the row-parallel layer after them.

    - ``shardings`` are those of these layers and of every operator between them, views included, by id.
    - ``partial_gradients`` are replicated parameters that a rank uses for its own features only, with the operators that read
      them: their gradients are partial sums.
    - ``shared_heads`` are parameters of key and value heads that are fewer than the ranks, with their number: several ranks
      have each head.
    - ``latent`` are the layers that make latent vectors, ``expansions`` the values of these that are expanded to all heads
      (``triosim.extrapolators.tensor.latent_attention``).
    """

    column_parallel: tuple[WeightLayer, ...]
    row_parallel: WeightLayer
    shardings: Mapping[int, OperatorSharding]
    partial_gradients: tuple[tuple[Tensor, Operator], ...]
    shared_heads: tuple[tuple[Tensor, Operator, int], ...] = ()
    latent: tuple[WeightLayer, ...] = ()
    expansions: tuple[HeadExpansion, ...] = ()


@dataclass(frozen=True, slots=True)
class UndividedHeads:
    """The reason why layers form no pair: the heads of the attention between them do not divide among the ranks."""

    layer: str
    heads: int


@dataclass(frozen=True, slots=True)
class _Paths:
    """All paths from a layer's input back to ``layers``, by id, or to ``expansions``; ``between`` are the operators on them."""

    layers: dict[int, WeightLayer]
    between: set[int]
    expansions: tuple[HeadExpansion, ...]


class PairFinder:
    """Finds pairs among the layers of a forward pass, which are given by operator id."""

    def __init__(
        self, flow: Dataflow, layers: Mapping[int, WeightLayer], propagator: ShardingPropagator, ranks: int
    ) -> None:
        self._flow = flow
        self._layers = layers
        self._propagator = propagator
        self._ranks = ranks
        self._order = {operator.id: position for position, operator in enumerate(flow.forward)}
        self._views: dict[StoredValue, list[int]] = {}
        # The values that depend on a layer or on the network's input; the others are tables and masks.
        self._activations: set[StoredValue] = set()
        for operator in flow.forward:
            layer = layers.get(operator.id)
            if (layer is not None and layer.input is not None) or self.reads_activations(operator):
                self._activations.update(value for value, _ in flow.writes[operator.id])
            for value, _ in flow.reads[operator.id] if is_view(operator) else ():
                self._views.setdefault(value, []).append(operator.id)
        self._latent = LatentAttention(flow, layers, propagator, self._activations, self._views)

    def reads_activations(self, operator: Operator) -> bool:
        """Whether an operator reads the network's input, or values that depend on it or on a layer."""
        return any(self._propagator.is_network_input(tensor) for tensor in operator.inputs) or any(
            value in self._activations for value, _ in self._flow.reads[operator.id]
        )

    def is_activation(self, value: StoredValue) -> bool:
        """Whether a value depends on a parameter and on the network's input: it is no mask and no table."""
        return value in self._activations and value in self._flow.differentiable

    def is_router(self, layer: WeightLayer) -> bool:
        """Whether a layer routes tokens to experts: its output is ranked, after a softmax or sigmoid perhaps."""
        values = [value for value, _ in self._flow.writes[layer.operator.id]]
        for _ in range(_OPERATORS_TO_RANKING):
            readers = [reader for value in values for reader in self._flow.readers[value]]
            if any(base_name(reader.name) == "topk" for reader in readers):
                return True
            values = [value for one in readers if is_local(one) for value, _ in self._flow.writes[one.id]]
        return False

    def find(self, row_parallel: WeightLayer, taken: Container[int]) -> LayerPair | UndividedHeads | None:
        """Return the pair whose row-parallel layer a layer can be, if any. ``taken`` are the layers sharded already."""
        paths = self._paths(row_parallel, taken)
        if paths is None:
            return None
        single = self._single_head_layers(paths)
        shardings = self._shardings(paths, row_parallel, single)
        if shardings is None or isinstance(shardings, UndividedHeads):
            return shardings
        columns = paths.layers
        partial = [*self._partial_gradients(paths.between, shardings), *_parameters_of(one.operator for one in single)]
        shared = [
            (tensor, operator, shard.size)
            for tensor, operator in _parameters_of(layer.operator for layer in columns.values())
            if (shard := shardings[operator.id].placements.get(tensor.id)) is not None and shard.size % self._ranks
        ]
        has_heads = any(attention_heads(self._flow.by_id[number]) for number in paths.between)
        latent = self._latent.latent_layers(columns, paths.expansions, taken) if has_heads else ()
        if latent is None:
            return None
        return LayerPair(
            tuple(columns.values()), row_parallel, shardings, tuple(partial), tuple(shared), latent, paths.expansions
        )

    def up_to_loss(self, layer: WeightLayer) -> dict[int, OperatorSharding] | None:
        """Return the shardings from a column-parallel layer up to the loss, if its output goes there alone.

        This is the projection to the vocabulary of a language model.
        """
        operators = self._operators_up_to_loss(layer) if layer.input is not None else None
        if operators is None:
            return None
        forward = ForwardPlacements(self._flow, self._propagator)
        found: dict[int, OperatorSharding] = {}
        for operator in self._ordered(operators):
            is_layer = operator is layer.operator
            placements: Placements = layer.column_parallel() if is_layer else forward.of_inputs(operator)
            if not placements:
                continue
            sharding = self._propagator.propagate(operator, placements)
            if sharding is None:
                return None
            if not (is_layer or is_loss(operator)) and reduces_over_shards(operator, sharding.placements):
                return None
            found[operator.id] = sharding
            forward.record(operator, sharding)
        return found if any(is_loss(self._flow.by_id[number]) for number in found) else None

    # ---- the dataflow -------------------------------------------------------------------------------------------

    def _ordered(self, numbers: Iterable[int]) -> list[Operator]:
        """Operators in the order of the forward pass."""
        return [self._flow.forward[position] for position in sorted(self._order[number] for number in numbers)]

    def _operators_up_to_loss(self, layer: WeightLayer) -> set[int] | None:
        """Return a layer and the operators between it and the loss, if its output goes nowhere else."""
        found = {layer.operator.id}
        todo = deque(value for value, _ in self._flow.writes[layer.operator.id])
        while todo:  # the nearest first: most layers are ruled out soon
            value = todo.popleft()
            found.update(self._views.get(value, ()))
            for reader in self._flow.readers[value]:
                if not is_loss(reader) and (reader.id in self._layers or not is_local(reader)):
                    return None
                if reader.id not in found:
                    found.add(reader.id)
                    todo.extend(made for made, _ in self._flow.writes[reader.id])
        return found

    def _paths(self, row_parallel: WeightLayer, taken: Container[int]) -> _Paths | None:
        """Return the paths back from a layer's input, if all end at layers and no value on them is used elsewhere."""
        layer = row_parallel
        if layer.input is None or layer.is_grouped_convolution or layer.input_features % self._ranks:
            return None
        start = self._flow.read_by(layer.operator, layer.input)
        paths = self._paths_back(start, taken) if start is not None else None
        if paths is None or not paths.layers:
            return None
        producers = (*paths.layers, *paths.between)
        values = {value for number in producers for value, _ in self._flow.writes[number]}
        inside = {row_parallel.operator.id, *paths.between}
        others = [reader for value in values for reader in self._flow.readers[value] if reader.id not in inside]
        if any(tensor.numel for reader in others for tensor in reader.outputs):
            return None
        views = {number for value in values for number in self._views.get(value, ())}
        return _Paths(paths.layers, paths.between | views | {reader.id for reader in others}, paths.expansions)

    def _paths_back(self, start: StoredValue, taken: Container[int]) -> _Paths | None:
        """Return the paths from a value back to layers that can be column-parallel; None where one leads elsewhere.

        A path also ends where a value without heads is expanded to all heads.
        """
        layers: dict[int, WeightLayer] = {}
        between: set[int] = set()
        expansions: dict[StoredValue, HeadExpansion] = {}
        todo, seen = deque((start,)), {start}
        while todo:
            producer = self._flow.by_id[todo.popleft().producer]
            layer = self._layers.get(producer.id)
            if layer is not None:
                if producer.id in taken or layer.input is None or layer.is_grouped_convolution:
                    return None
                if layer.output_features % self._ranks:
                    return None
                layers[producer.id] = layer
                continue
            if not is_local(producer):
                return None
            between.add(producer.id)
            for read, tensor in self._flow.reads[producer.id]:
                if read in self._activations and read not in seen:
                    seen.add(read)
                    expansion = self._latent.expansion(read, tensor, producer)
                    if expansion is None:
                        todo.append(read)
                    else:
                        expansions[read] = expansion
        return _Paths(layers, between, tuple(expansions.values()))

    def _single_head_layers(self, paths: _Paths) -> list[WeightLayer]:
        """Return the layers that make the one head of keys, or of values, of all query heads: they are replicated."""
        of_queries: set[int] = set()
        of_single: set[int] = set()
        for operator in self._ordered(paths.between):
            if is_attention(base_name(operator.name)):
                for tensor in operator.inputs[:3]:
                    found = of_single if has_single_head(operator, tensor) else of_queries
                    found.update(self._layers_behind(self._flow.read_by(operator, tensor), paths))
        return [paths.layers[number] for number in sorted(of_single - of_queries)] if of_queries else []

    def _layers_behind(self, value: StoredValue | None, paths: _Paths) -> set[int]:
        """Return the layers of some paths that a value comes from."""
        producers = self._flow.producers(value, lambda number: number in paths.between and number not in paths.layers)
        return {producer.id for producer in producers if producer.id in paths.layers}

    # ---- the shards ---------------------------------------------------------------------------------------------

    def _shardings(
        self, paths: _Paths, row_parallel: WeightLayer, single: Iterable[WeightLayer]
    ) -> dict[int, OperatorSharding] | UndividedHeads | None:
        """Return the shardings of a pair's operators, in the order of the forward pass; ``single`` heads are replicated."""
        forward = ForwardPlacements(self._flow, self._propagator)
        found: dict[int, OperatorSharding] = {}
        attention = ""
        replicated = {layer.operator.id for layer in single}
        for operator in self._ordered((*paths.layers, *paths.between, row_parallel.operator.id)):
            is_column = operator.id in paths.layers
            try:
                if operator.id in replicated:
                    placements: Placements = {}
                elif is_column:
                    placements = self._layers[operator.id].column_parallel()
                else:
                    placements = forward.of_inputs(operator, by_heads=True)
                sharding = self._propagator.propagate(operator, placements, by_heads=not is_column)
            except HeadsDoNotDivideError as error:
                return UndividedHeads(operator.layer, error.heads)
            if sharding is None:
                return None
            found[operator.id] = sharding
            uneven = [shard.size for shard in sharding.placements.values() if shard.size % self._ranks]
            if operator is row_parallel.operator:
                if uneven:
                    return UndividedHeads(attention or operator.layer, uneven[0])
                is_reduced = _reduces_input_features(row_parallel, sharding)
                return self._with_shared_heads(paths.layers, found) if is_reduced else None
            if any(self._ranks % size for size in uneven):
                return None
            if (replicated and not placements) or is_global_maximum(operator):
                continue
            heads = attention_heads(operator)
            attention = operator.layer if heads else attention
            if reduces_over_shards(operator, sharding.placements):
                return UndividedHeads(operator.layer, heads) if heads % self._ranks else None
            expansions = self._expansion_shardings(operator, sharding, paths.expansions)
            if expansions is None:
                return None
            found |= expansions
            forward.record(operator, sharding)
        return None

    def _expansion_shardings(
        self, reader: Operator, sharding: OperatorSharding, expansions: Iterable[HeadExpansion]
    ) -> dict[int, OperatorSharding] | None:
        """Return the shardings of the views that expand a value for an operator; None where it reads all heads."""
        found: dict[int, OperatorSharding] = {}
        for one in expansions:
            if one.reader == reader.id:
                shard = sharding.placements.get(one.expanded.id)
                if shard is None:
                    return None
                found[one.view.id] = self._propagator.propagate_from_output(one.view, one.expanded, shard)
        return found

    def _with_shared_heads(
        self, columns: Mapping[int, WeightLayer], found: dict[int, OperatorSharding]
    ) -> dict[int, OperatorSharding] | UndividedHeads | None:
        """Shard layers whose heads are fewer than the ranks by these heads, as the readers of their output need it."""
        self._keep_heads_whole(columns, found)
        for number, layer in columns.items():
            wanted = self._uneven(layer.output, found)
            if not wanted:
                continue
            shard = wanted.pop()
            size = layer.output.shape[layer.feature_dim]
            is_features = shard.dim == layer.feature_dim % len(layer.output.shape)
            if wanted or shard.outer != 1 or size % shard.size or not is_features:
                return UndividedHeads(layer.operator.layer, shard.size)
            by_heads = {layer.weight.id: Shard(layer.output_dim, shard.size)}
            sharding = self._propagator.propagate(layer.operator, by_heads)
            if sharding is None:
                return None
            found[number] = sharding
        return found

    def _keep_heads_whole(self, columns: Container[int], found: dict[int, OperatorSharding]) -> None:
        """Shard what stands between a layer and the readers of its heads, such as a view, by these heads, the last first."""
        every = (shard for sharding in found.values() for shard in sharding.placements.values())
        if all(shard.size % self._ranks == 0 for shard in every):
            return
        for number in reversed(tuple(found)):
            own = found[number].placements
            for output in self._flow.by_id[number].outputs[:1] if number not in columns else ():
                wanted = self._uneven(output, found) - {own.get(output.id)}
                if len(wanted) != 1 or output.id not in own:
                    continue
                shard = wanted.pop()
                inputs = {
                    t.id: replace(own[t.id], size=shard.size) for t in self._flow.by_id[number].inputs if t.id in own
                }
                sharding = self._propagator.propagate(self._flow.by_id[number], inputs)
                if sharding is not None and sharding.placements.get(output.id) == shard:
                    found[number] = sharding

    def _uneven(self, tensor: Tensor, found: Mapping[int, OperatorSharding]) -> set[Shard]:
        """Return how operators have a tensor whose shards are fewer than the ranks."""
        every = [sharding.placements.get(tensor.id) for sharding in found.values()]
        return {shard for shard in every if shard is not None and shard.size % self._ranks}

    def _partial_gradients(
        self, between: Iterable[int], shardings: Mapping[int, OperatorSharding]
    ) -> list[tuple[Tensor, Operator]]:
        """Return the replicated parameters that operators between the layers read, or that tables are made of."""
        found: list[tuple[Tensor, Operator]] = []
        for operator in self._ordered(between):
            placements = shardings[operator.id].placements
            found += [(t, one) for t, one in _parameters_of((operator,)) if t.id not in placements]
            for value, tensor in self._flow.reads[operator.id]:
                is_table = value in self._flow.differentiable and value not in self._activations
                if is_table and tensor.id in placements:
                    found += _parameters_of(self._flow.producers(value))
        return found


def _parameters_of(operators: Iterable[Operator]) -> list[tuple[Tensor, Operator]]:
    """Return the parameters that operators read, each with its operator."""
    return [(tensor, one) for one in operators for tensor in one.inputs if tensor.category == "parameter"]


def _reduces_input_features(layer: WeightLayer, sharding: OperatorSharding) -> bool:
    """Whether a layer's weight is sharded by input features, so that its output is a partial sum."""
    weight = sharding.placements.get(layer.weight.id)
    return layer.output.id not in sharding.placements and weight is not None and weight.dim == layer.input_dim
