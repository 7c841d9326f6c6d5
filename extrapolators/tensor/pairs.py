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

from triosim.operators.features import base_name, is_attention
from triosim.sharding.axes import Axes, HeadsDoNotDivideError, Mark, Marks, Spread
from triosim.sharding.dataflow import Dataflow, Datum, is_loss, is_view
from triosim.sharding.dimension_rules import heads_stand_last
from triosim.sharding.latent_attention import Latents, Repeated
from triosim.sharding.local_operators import heads_of, is_local, is_scale, mixes
from triosim.sharding.placements import Carried
from triosim.sharding.shards import Weighted, is_grouped
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

    first: tuple[Weighted, ...]
    second: Weighted
    spreads: Mapping[int, Spread]
    partial: tuple[tuple[Tensor, Operator], ...]
    shared: tuple[tuple[Tensor, Operator, int], ...] = ()
    latent: tuple[Weighted, ...] = ()
    repeated: tuple[Repeated, ...] = ()


@dataclass(frozen=True, slots=True)
class Undivided:
    """Why layers are no pair: the heads of the attention between them do not divide."""

    layer: str
    heads: int


class Pairing:
    """Looks for pairs among the layers of a forward pass."""

    def __init__(self, flow: Dataflow, layers: Mapping[int, Weighted], axes: Axes, ranks: int) -> None:
        self._flow = flow
        self._layers = layers
        self._axes = axes
        self._ranks = ranks
        self._order = {operator.id: place for place, operator in enumerate(flow.forward)}
        self._shown: dict[Datum, list[int]] = {}  # the views of data
        self._live: set[Datum] = (
            set()
        )  # what depends on a layer or on what the network is fed; the rest are tables, masks
        for operator in flow.forward:
            layer = layers.get(operator.id)
            if (
                (layer is not None and layer.data is not None)
                or any(axes.is_fed(tensor) for tensor in operator.inputs)
                or any(datum in self._live for datum, _ in flow.reads[operator.id])
            ):
                self._live.update(datum for datum, _ in flow.writes[operator.id])
            for datum, _ in flow.reads[operator.id] if is_view(operator) else ():
                self._shown.setdefault(datum, []).append(operator.id)
        self._latents = Latents(flow, layers, axes, self._live, self._shown)

    def is_fed(self, embedding: Weighted) -> bool:
        """Whether an embedding looks up what the network is fed, or what is made of it (and not positions)."""
        operator = embedding.operator
        return any(self._axes.is_fed(tensor) for tensor in operator.inputs) or any(
            datum in self._live for datum, _ in self._flow.reads[operator.id]
        )

    def is_of_samples(self, datum: Datum) -> bool:
        """Whether data depend on a parameter and on what the network is fed: no mask, no table."""
        return datum in self._live and datum in self._flow.trained

    def is_router(self, layer: Weighted) -> bool:
        """Whether a layer says which experts a token goes to: its output is ranked, after a softmax or sigmoid perhaps."""
        data = [datum for datum, _ in self._flow.writes[layer.operator.id]]
        for _ in range(_STEPS_TO_RANKING):
            readers = [reader for datum in data for reader in self._flow.readers[datum]]
            if any(base_name(reader.name) == "topk" for reader in readers):
                return True
            data = [datum for one in readers if is_local(one) for datum, _ in self._flow.writes[one.id]]
        return False

    def find(self, second: Weighted, taken: Container[int]) -> Pair | Undivided | None:
        """Return the pair that a layer closes, if it does. ``taken`` are the layers that have another part already."""
        if second.data is None or is_grouped(second) or second.weight.shape[second.columns] % self._ranks:
            return None
        start = self._flow.datum(second.operator, second.data)
        found = self._between(start, taken) if start is not None else None
        if found is None:
            return None
        first, between, repeated = found
        data = frozenset(datum for number in (*first, *between) for datum, _ in self._flow.writes[number])
        inner = {second.operator.id, *between}
        others = [reader for datum in data for reader in self._flow.readers[datum] if reader.id not in inner]
        if not first or any(tensor.numel for reader in others for tensor in reader.outputs):
            return None
        views = {number for datum in data for number in self._shown.get(datum, ())}
        between |= views | {reader.id for reader in others}
        single = self._single_heads(first, between)
        spreads = self._spreads(first, between, second, single, repeated)
        if spreads is None or isinstance(spreads, Undivided):
            return spreads
        partial = [*self._partial(between, spreads), *self._weights(single)]
        shared = [
            (tensor, layer.operator, mark.size)
            for layer in first.values()
            for tensor in layer.operator.inputs
            if tensor.category == "parameter" and (mark := spreads[layer.operator.id].marks.get(tensor.id)) is not None
            if mark.size % self._ranks
        ]
        latent = (
            self._latents.behind(first, repeated, taken) if any(heads_of(self._flow.by_id[n]) for n in between) else ()
        )
        if latent is None:
            return None
        return Pair(tuple(first.values()), second, spreads, tuple(partial), tuple(shared), latent, repeated)

    def to_loss(self, layer: Weighted) -> dict[int, Spread] | None:
        """Return what is divided from a layer to the loss, if its output goes there alone: the last of a language model."""
        members = self._to_loss(layer) if layer.data is not None else None
        if members is None:
            return None
        carried = Carried(self._flow, self._axes)
        spreads: dict[int, Spread] = {}
        for operator in self._ordered(members):
            marks: Marks = layer.by_rows() if operator is layer.operator else carried.read(operator)
            if not marks:
                continue
            spread = self._axes.spread(operator, marks)
            is_end = operator is layer.operator or is_loss(operator)
            if spread is None or (not is_end and mixes(operator, spread.marks)):
                return None
            spreads[operator.id] = spread
            carried.write(operator, spread)
        return spreads if any(is_loss(self._flow.by_id[number]) for number in spreads) else None

    def _to_loss(self, layer: Weighted) -> set[int] | None:
        """A layer and the operators that its output goes through up to the loss, if it goes nowhere else."""
        found = {layer.operator.id}
        todo = deque(datum for datum, _ in self._flow.writes[layer.operator.id])
        while todo:  # the nearest first: most layers are ruled out soon
            datum = todo.popleft()
            found.update(self._shown.get(datum, ()))
            for reader in self._flow.readers[datum]:
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
        self, start: Datum, taken: Container[int]
    ) -> tuple[dict[int, Weighted], set[int], tuple[Repeated, ...]] | None:
        """The layers in which every path back from some data ends, and the operators on the way.

        A path also ends where what has no heads is shown to all of them.
        """
        first: dict[int, Weighted] = {}
        between: set[int] = set()
        repeated: dict[Datum, Repeated] = {}
        todo, seen = deque((start,)), {start}
        while todo:
            maker = self._flow.by_id[todo.popleft().maker]
            layer = self._layers.get(maker.id)
            if layer is not None:
                uneven = layer.weight.shape[layer.rows] % self._ranks
                if maker.id in taken or layer.data is None or is_grouped(layer) or uneven:
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

    def _single_heads(self, first: Mapping[int, Weighted], between: set[int]) -> list[Weighted]:
        """The layers that make the one head of keys, or of values, that all heads of queries share: every rank has it whole."""
        queries: set[int] = set()
        singles: set[int] = set()
        for operator in self._ordered(between):
            if is_attention(base_name(operator.name)):
                place = -2 if heads_stand_last(operator) else -3
                for tensor in operator.inputs[:3]:
                    is_single = len(tensor.shape) > 3 and tensor.shape[place] == 1
                    start = self._flow.datum(operator, tensor)
                    (singles if is_single else queries).update(self._layers_of(start, first, between))
        return [first[number] for number in sorted(singles - queries)] if queries else []

    def _layers_of(self, start: Datum | None, first: Container[int], between: Container[int]) -> set[int]:
        """The first layers from which some data come."""
        found: set[int] = set()
        todo = [start] if start is not None else []
        seen = set(todo)
        while todo:
            maker = todo.pop().maker
            if maker in first:
                found.add(maker)
            elif maker in between:
                more = {read for read, _ in self._flow.reads[maker]} - seen
                seen |= more
                todo += more
        return found

    def _weights(self, layers: Iterable[Weighted]) -> list[tuple[Tensor, Operator]]:
        return [(t, one.operator) for one in layers for t in one.operator.inputs if t.category == "parameter"]

    def _spreads(
        self,
        first: Mapping[int, Weighted],
        between: set[int],
        second: Weighted,
        single: Sequence[Weighted],
        repeated: Sequence[Repeated],
    ) -> dict[int, Spread] | Undivided | None:
        """What is divided of each operator, in the order of the forward pass; nothing of what makes a ``single`` head."""
        carried = Carried(self._flow, self._axes)
        found: dict[int, Spread] = {}
        attention = ""
        whole = {layer.operator.id for layer in single}
        for operator in self._ordered((*first, *between, second.operator.id)):
            is_first = operator.id in first
            try:
                if operator.id in whole:
                    marks: Marks = {}
                else:
                    marks = self._layers[operator.id].by_rows() if is_first else carried.read(operator, by_heads=True)
                spread = self._axes.spread(operator, marks, by_heads=not is_first)
            except HeadsDoNotDivideError as error:
                return Undivided(operator.layer, error.heads)
            if spread is None:
                return None
            uneven = [mark.size for mark in spread.marks.values() if mark.size % self._ranks]
            if operator is second.operator:
                weight = spread.marks.get(second.weight.id)
                adds_up = second.output.id not in spread.marks and weight is not None and weight.dim == second.columns
                if uneven:
                    return Undivided(attention or operator.layer, uneven[0])
                found[operator.id] = spread
                return self._with_heads(first, found) if adds_up else None
            if any(self._ranks % size for size in uneven):
                return None
            if whole and not marks:  # of the single head
                found[operator.id] = spread
                continue
            if is_scale(operator):
                found[operator.id] = spread
                continue
            heads = heads_of(operator)
            attention = operator.layer if heads else attention
            if mixes(operator, spread.marks):
                return Undivided(operator.layer, heads) if heads % self._ranks else None
            found[operator.id] = spread
            for one in repeated:
                if one.reader == operator.id:
                    mark = spread.marks.get(one.shown.id)
                    if mark is None:
                        return None
                    found[one.view.id] = self._axes.shown(one.view, one.shown, mark)
            carried.write(operator, spread)
        return None

    def _with_heads(
        self, first: Mapping[int, Weighted], found: dict[int, Spread]
    ) -> dict[int, Spread] | Undivided | None:
        """Divide the layers whose heads are fewer than the ranks by these heads, as what reads their output needs them."""
        for number, layer in first.items():
            reads = [spread.marks[layer.output.id] for spread in found.values() if layer.output.id in spread.marks]
            wanted = {mark for mark in reads if mark.size % self._ranks}
            if not wanted:
                continue
            mark = wanted.pop()
            size = layer.output.shape[layer.feature]
            if wanted or mark.outer != 1 or size % mark.size or mark.dim != layer.feature % len(layer.output.shape):
                return Undivided(layer.operator.layer, mark.size)
            spread = self._axes.spread(layer.operator, {layer.weight.id: Mark(layer.rows, mark.size)})
            if spread is None:
                return None
            found[number] = spread
        return found

    def _partial(self, between: Iterable[int], spreads: Mapping[int, Spread]) -> list[tuple[Tensor, Operator]]:
        found: list[tuple[Tensor, Operator]] = []
        for operator in self._ordered(between):
            marks = spreads[operator.id].marks
            found += [(t, operator) for t in operator.inputs if t.category == "parameter" and t.id not in marks]
            for datum, tensor in self._flow.reads[operator.id]:
                if datum in self._flow.trained and datum not in self._live and tensor.id in marks:
                    found += self._sources(datum)
        return found

    def _sources(self, datum: Datum) -> list[tuple[Tensor, Operator]]:
        """The parameters that a table is made of, with the operators that read them."""
        found: list[tuple[Tensor, Operator]] = []
        todo, seen = [datum], {datum}
        while todo:
            maker = self._flow.by_id[todo.pop().maker]
            found += [(tensor, maker) for tensor in maker.inputs if tensor.category == "parameter"]
            more = {read for read, _ in self._flow.reads[maker.id]} - seen
            seen |= more
            todo += more
        return found
