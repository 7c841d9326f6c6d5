"""Which layers Megatron-LM's tensor parallelism can pair: the first divided by output features, the second by input features.

Shoeybi et al. 2019, section 3. Between the two, each rank works on its own features (attention heads, channels) and nothing
is communicated. Which layers pair up is read from the dataflow: from the data of a layer back through operators that treat
features separately, every path must end in a layer, and nothing on the way may be used elsewhere. Then the divided features
are followed forward, operator by operator, until the second layer adds up over them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from triosim.extrapolators.tensor.latent_attention import Latents, Repeated
from triosim.operators.features import base_name, is_attention
from triosim.sharding.dataflow import Dataflow, Value, is_loss, is_view
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

#: How many operators may stand between a router and the ranking of its experts: a cast, a softmax, a bias.
_STEPS_TO_RANKING = 4


@dataclass(frozen=True, slots=True)
class Pair:
    """``first`` are the layers divided by output features, ``second`` the one divided by input features.

    ``spreads`` say what is divided of these and of every operator between them, views included. ``partial`` are parameters
    that a rank has whole but uses for its own features only, with the operators that read them: ranks add up the gradients.
    ``shared`` are those of keys' and values' heads that are fewer than the ranks, with their number: several ranks have each.
    ``latent`` are the layers that make what all heads are made of, ``repeated`` what they make that is shown to all heads.
    """

    first: tuple[WeightLayer, ...]
    second: WeightLayer
    shardings: Mapping[int, OperatorSharding]
    partial: tuple[tuple[Tensor, Operator], ...]
    shared: tuple[tuple[Tensor, Operator, int], ...] = ()
    latent: tuple[WeightLayer, ...] = ()
    repeated: tuple[Repeated, ...] = ()


@dataclass(frozen=True, slots=True)
class Undivided:
    """Why layers are no pair: the heads of the attention between them do not divide."""

    layer: str
    heads: int


class Pairing:
    """Looks for pairs among the layers of a forward pass."""

    def __init__(
        self, flow: Dataflow, layers: Mapping[int, WeightLayer], propagator: ShardingPropagator, ranks: int
    ) -> None:
        self._flow = flow
        self._layers = layers
        self._propagator = propagator
        self._ranks = ranks
        self._order = {operator.id: place for place, operator in enumerate(flow.forward)}
        self._shown: dict[Value, list[int]] = {}  # the views of data
        self._live: set[Value] = (
            set()
        )  # what depends on a layer or on what the network is fed; the rest are tables, masks
        for operator in flow.forward:
            layer = layers.get(operator.id)
            if (
                (layer is not None and layer.input is not None)
                or any(propagator.is_network_input(tensor) for tensor in operator.inputs)
                or any(value in self._live for value, _ in flow.reads[operator.id])
            ):
                self._live.update(value for value, _ in flow.writes[operator.id])
            for value, _ in flow.reads[operator.id] if is_view(operator) else ():
                self._shown.setdefault(value, []).append(operator.id)
        self._latents = Latents(flow, layers, propagator, self._live, self._shown)

    def is_fed(self, embedding: WeightLayer) -> bool:
        """Whether an embedding looks up what the network is fed, or what is made of it (and not positions)."""
        operator = embedding.operator
        return any(self._propagator.is_network_input(tensor) for tensor in operator.inputs) or any(
            value in self._live for value, _ in self._flow.reads[operator.id]
        )

    def is_of_samples(self, value: Value) -> bool:
        """Whether data depend on a parameter and on what the network is fed: no mask, no table."""
        return value in self._live and value in self._flow.differentiable

    def is_router(self, layer: WeightLayer) -> bool:
        """Whether a layer says which experts a token goes to: its output is ranked, after a softmax or sigmoid perhaps."""
        data = [value for value, _ in self._flow.writes[layer.operator.id]]
        for _ in range(_STEPS_TO_RANKING):
            readers = [reader for value in data for reader in self._flow.readers[value]]
            if any(base_name(reader.name) == "topk" for reader in readers):
                return True
            data = [value for one in readers if is_local(one) for value, _ in self._flow.writes[one.id]]
        return False

    def find(self, second: WeightLayer, taken: Container[int]) -> Pair | Undivided | None:
        """Return the pair that a layer closes, if it does. ``taken`` are the layers that have another part already."""
        if second.input is None or second.is_grouped_convolution or second.input_features % self._ranks:
            return None
        start = self._flow.read_by(second.operator, second.input)
        found = self._between(start, taken) if start is not None else None
        if found is None:
            return None
        first, between, repeated = found
        data = frozenset(value for number in (*first, *between) for value, _ in self._flow.writes[number])
        inner = {second.operator.id, *between}
        others = [reader for value in data for reader in self._flow.readers[value] if reader.id not in inner]
        if not first or any(tensor.numel for reader in others for tensor in reader.outputs):
            return None
        views = {number for value in data for number in self._shown.get(value, ())}
        between |= views | {reader.id for reader in others}
        single = self._single_heads(first, between)
        shardings = self._shardings(first, between, second, single, repeated)
        if shardings is None or isinstance(shardings, Undivided):
            return shardings
        partial = [*self._partial(between, shardings), *self._weights(single)]
        shared = [
            (tensor, layer.operator, shard.size)
            for layer in first.values()
            for tensor in layer.operator.inputs
            if tensor.category == "parameter"
            and (shard := shardings[layer.operator.id].placements.get(tensor.id)) is not None
            if shard.size % self._ranks
        ]
        latent = (
            self._latents.behind(first, repeated, taken)
            if any(attention_heads(self._flow.by_id[n]) for n in between)
            else ()
        )
        if latent is None:
            return None
        return Pair(tuple(first.values()), second, shardings, tuple(partial), tuple(shared), latent, repeated)

    def to_loss(self, layer: WeightLayer) -> dict[int, OperatorSharding] | None:
        """Return what is divided from a layer to the loss, if its output goes there alone: the last of a language model."""
        members = self._to_loss(layer) if layer.input is not None else None
        if members is None:
            return None
        placed = ForwardPlacements(self._flow, self._propagator)
        shardings: dict[int, OperatorSharding] = {}
        for operator in self._ordered(members):
            placements: Placements = (
                layer.column_parallel() if operator is layer.operator else placed.of_inputs(operator)
            )
            if not placements:
                continue
            sharding = self._propagator.propagate(operator, placements)
            is_end = operator is layer.operator or is_loss(operator)
            if sharding is None or (not is_end and reduces_over_shards(operator, sharding.placements)):
                return None
            shardings[operator.id] = sharding
            placed.record(operator, sharding)
        return shardings if any(is_loss(self._flow.by_id[number]) for number in shardings) else None

    def _to_loss(self, layer: WeightLayer) -> set[int] | None:
        """A layer and the operators that its output goes through up to the loss, if it goes nowhere else."""
        found = {layer.operator.id}
        todo = deque(value for value, _ in self._flow.writes[layer.operator.id])
        while todo:  # the nearest first: most layers are ruled out soon
            value = todo.popleft()
            found.update(self._shown.get(value, ()))
            for reader in self._flow.readers[value]:
                if not is_loss(reader) and (reader.id in self._layers or not is_local(reader)):
                    return None
                if reader.id not in found:
                    found.add(reader.id)
                    todo.extend(made for made, _ in self._flow.writes[reader.id])
        return found

    def _ordered(self, numbers: Iterable[int]) -> list[Operator]:
        """Operators in the order of the forward pass."""
        return [self._flow.forward[place] for place in sorted(self._order[number] for number in numbers)]

    def _between(
        self, start: Value, taken: Container[int]
    ) -> tuple[dict[int, WeightLayer], set[int], tuple[Repeated, ...]] | None:
        """The layers in which every path back from some data ends, and the operators on the way.

        A path also ends where what has no heads is shown to all of them.
        """
        first: dict[int, WeightLayer] = {}
        between: set[int] = set()
        repeated: dict[Value, Repeated] = {}
        todo, seen = deque((start,)), {start}
        while todo:
            maker = self._flow.by_id[todo.popleft().producer]
            layer = self._layers.get(maker.id)
            if layer is not None:
                uneven = layer.output_features % self._ranks
                if maker.id in taken or layer.input is None or layer.is_grouped_convolution or uneven:
                    return None
                first[maker.id] = layer
                continue
            if not is_local(maker):
                return None
            between.add(maker.id)
            for read, tensor in self._flow.reads[maker.id]:
                if read in self._live and read not in seen:
                    seen.add(read)
                    shown = self._latents.repeated(read, tensor, maker)
                    if shown is None:
                        todo.append(read)
                    else:
                        repeated[read] = shown
        return first, between, tuple(repeated.values())

    def _single_heads(self, first: Mapping[int, WeightLayer], between: set[int]) -> list[WeightLayer]:
        """The layers that make the one head of keys, or of values, that all heads of queries share: every rank has it whole."""
        queries: set[int] = set()
        singles: set[int] = set()
        for operator in self._ordered(between):
            if is_attention(base_name(operator.name)):
                for tensor in operator.inputs[:3]:
                    is_single = has_single_head(operator, tensor)
                    start = self._flow.read_by(operator, tensor)
                    (singles if is_single else queries).update(self._layers_of(start, first, between))
        return [first[number] for number in sorted(singles - queries)] if queries else []

    def _layers_of(self, start: Value | None, first: Container[int], between: Container[int]) -> set[int]:
        """The first layers from which some data come."""
        found: set[int] = set()
        todo = [start] if start is not None else []
        seen = set(todo)
        while todo:
            maker = todo.pop().producer
            if maker in first:
                found.add(maker)
            elif maker in between:
                more = {read for read, _ in self._flow.reads[maker]} - seen
                seen |= more
                todo += more
        return found

    def _weights(self, layers: Iterable[WeightLayer]) -> list[tuple[Tensor, Operator]]:
        return [(t, one.operator) for one in layers for t in one.operator.inputs if t.category == "parameter"]

    def _shardings(
        self,
        first: Mapping[int, WeightLayer],
        between: set[int],
        second: WeightLayer,
        single: Sequence[WeightLayer],
        repeated: Sequence[Repeated],
    ) -> dict[int, OperatorSharding] | Undivided | None:
        """What is divided of each operator, in the order of the forward pass; nothing of what makes a ``single`` head."""
        placed = ForwardPlacements(self._flow, self._propagator)
        found: dict[int, OperatorSharding] = {}
        attention = ""
        whole = {layer.operator.id for layer in single}
        for operator in self._ordered((*first, *between, second.operator.id)):
            is_first = operator.id in first
            try:
                if operator.id in whole:
                    placements: Placements = {}
                else:
                    placements = (
                        self._layers[operator.id].column_parallel()
                        if is_first
                        else placed.of_inputs(operator, by_heads=True)
                    )
                sharding = self._propagator.propagate(operator, placements, by_heads=not is_first)
            except HeadsDoNotDivideError as error:
                return Undivided(operator.layer, error.heads)
            if sharding is None:
                return None
            uneven = [shard.size for shard in sharding.placements.values() if shard.size % self._ranks]
            if operator is second.operator:
                weight = sharding.placements.get(second.weight.id)
                adds_up = (
                    second.output.id not in sharding.placements
                    and weight is not None
                    and weight.dim == second.input_dim
                )
                if uneven:
                    return Undivided(attention or operator.layer, uneven[0])
                found[operator.id] = sharding
                return self._with_heads(first, found) if adds_up else None
            if any(self._ranks % size for size in uneven):
                return None
            if whole and not placements:  # of the single head
                found[operator.id] = sharding
                continue
            if is_global_maximum(operator):
                found[operator.id] = sharding
                continue
            heads = attention_heads(operator)
            attention = operator.layer if heads else attention
            if reduces_over_shards(operator, sharding.placements):
                return Undivided(operator.layer, heads) if heads % self._ranks else None
            found[operator.id] = sharding
            for one in repeated:
                if one.reader == operator.id:
                    shard = sharding.placements.get(one.shown.id)
                    if shard is None:
                        return None
                    found[one.view.id] = self._propagator.propagate_from_output(one.view, one.shown, shard)
            placed.record(operator, sharding)
        return None

    def _with_heads(
        self, first: Mapping[int, WeightLayer], found: dict[int, OperatorSharding]
    ) -> dict[int, OperatorSharding] | Undivided | None:
        """Divide the layers whose heads are fewer than the ranks by these heads, as what reads their output needs them."""
        for number, layer in first.items():
            reads = [
                sharding.placements[layer.output.id]
                for sharding in found.values()
                if layer.output.id in sharding.placements
            ]
            wanted = {shard for shard in reads if shard.size % self._ranks}
            if not wanted:
                continue
            shard = wanted.pop()
            size = layer.output.shape[layer.feature_dim]
            if (
                wanted
                or shard.outer != 1
                or size % shard.size
                or shard.dim != layer.feature_dim % len(layer.output.shape)
            ):
                return Undivided(layer.operator.layer, shard.size)
            sharding = self._propagator.propagate(
                layer.operator, {layer.weight.id: Shard(layer.output_dim, shard.size)}
            )
            if sharding is None:
                return None
            found[number] = sharding
        return found

    def _partial(
        self, between: Iterable[int], shardings: Mapping[int, OperatorSharding]
    ) -> list[tuple[Tensor, Operator]]:
        found: list[tuple[Tensor, Operator]] = []
        for operator in self._ordered(between):
            placements = shardings[operator.id].placements
            found += [(t, operator) for t in operator.inputs if t.category == "parameter" and t.id not in placements]
            for value, tensor in self._flow.reads[operator.id]:
                if value in self._flow.differentiable and value not in self._live and tensor.id in placements:
                    found += self._sources(value)
        return found

    def _sources(self, value: Value) -> list[tuple[Tensor, Operator]]:
        """The parameters that a table is made of, with the operators that read them."""
        found: list[tuple[Tensor, Operator]] = []
        todo, seen = [value], {value}
        while todo:
            maker = self._flow.by_id[todo.pop().producer]
            found += [(tensor, maker) for tensor in maker.inputs if tensor.category == "parameter"]
            more = {read for read, _ in self._flow.reads[maker.id]} - seen
            seen |= more
            todo += more
        return found
