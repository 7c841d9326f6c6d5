"""The program of one rank's experts: the rows that they receive, and the all-to-alls around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from triosim.compute.pricing.repricing import estimated
from triosim.extrapolators.core.program import Block, BlockItem, Communicate, Program
from triosim.extrapolators.expert.deepep import DeepEPSettings, sizes
from triosim.extrapolators.expert.expert_loads import TokenExchange
from triosim.extrapolators.expert.moe_layers import MoELayer, MoELayers
from triosim.sharding.placements import Placements
from triosim.trace import Operator, Tensor


class ExpertSharding:
    """Shards the experts of a program for a rank by its expert-parallel coordinate; None is a rank with the mean load.

    ``deepep`` says how DeepEP carries the all-to-alls; without it NCCL does.
    """

    def __init__(
        self,
        program: Program,
        layers: MoELayers,
        exchanges: Sequence[TokenExchange],
        coordinate: int | None,
        deepep: DeepEPSettings | None = None,
    ) -> None:
        self._program = program
        self._layers = layers
        self._token_exchanges = exchanges
        self._coordinate = coordinate
        self._deepep = deepep
        self._operator_ids = count(layers.last_operator + 1)
        self._tensor_ids = count(layers.last_tensor + 1)
        self._before: dict[int, list[BlockItem]] = {}
        self._after: dict[int, list[BlockItem]] = {}

    def program(self) -> Program:
        """Return the program of the rank."""
        axis, ranks = self._layers.axis, self._layers.ranks
        shapes: dict[int, Operator] = {}
        for layer, exchange in zip(self._layers.found, self._token_exchanges, strict=True):
            shapes |= self._local_experts(layer, exchange)
        shapes |= self._layers.local_weight_operators
        inserted = [item for items in (*self._before.values(), *self._after.values()) for item in items]
        permutations = sorted((item for item in inserted if isinstance(item, Operator)), key=lambda one: one.id)
        priced = {one.id: one for one in estimated(permutations, self._program.model, self._program.gpu)}
        note = f"operator times are predicted for each GPU's experts ({axis} on {ranks} GPUs)"
        program = self._program.reshaped(shapes, note=note).rewritten(lambda block: self._items(block, priced))
        return replace(program, experts=self._layers.weights, expert_axis=axis)

    def _local_experts(self, layer: MoELayer, exchange: TokenExchange) -> dict[int, Operator]:
        """Return a layer's operators on the rows that the rank's experts receive, and insert exchanges around them."""
        rows = exchange.rows(self._coordinate)
        ends = (*layer.entering, *layer.leaving)
        received = _ReceivedTensors({tensor.storage for tensor, _ in ends}, self._tensor_ids)
        found = {op.id: self._local_operator(op, layer.rows_of(op), rows, received) for op in layer.operators}
        tensors = {t.id: t for op in found.values() for t in (*op.inputs, *op.outputs)}
        dispatched: set[int] = set()
        for tensor, op in layer.entering:
            if tensor.id in received.ids and tensor.id not in dispatched:
                dispatched.add(tensor.id)
                there = tensors[received.ids[tensor.id]]
                sent = self._all_to_all(layer, tensor, exchange, combine=False)
                self._before.setdefault(op.id, []).extend(self._exchange(op, sent, tensor, there))
        for tensor, op in layer.leaving:
            there = tensors[received.ids[tensor.id]]
            sent = self._all_to_all(layer, tensor, exchange, combine=True)
            self._after.setdefault(op.id, []).extend(self._exchange(op, sent, there, tensor))
        return found

    def _local_operator(
        self, operator: Operator, row_dims: Placements, rows: int, received: _ReceivedTensors
    ) -> Operator:
        """Return an operator on the rows that the rank's experts receive and its share of stacked weights."""
        grouped = "grouped" in operator.name.lower()

        def local(tensor: Tensor) -> Tensor:
            shape = list(tensor.shape)
            shard = row_dims.get(tensor.id)
            if shard is not None:
                shape[shard.dim] = shape[shard.dim] // shard.size * rows
            elif len(shape) == 3 and (grouped or self._layers.is_stacked(tensor)):  # experts are the first dimension
                shape[0] //= self._layers.ranks
            return received.tensor(replace(tensor, shape=tuple(shape)))

        return replace(operator, inputs=tuple(map(local, operator.inputs)), outputs=tuple(map(local, operator.outputs)))

    def _all_to_all(self, layer: MoELayer, own: Tensor, exchange: TokenExchange, *, combine: bool) -> Communicate:
        """Return the all-to-all of a rank's ``own`` rows: to their experts, or back in ``combine``."""
        axis, ranks = self._layers.axis, self._layers.ranks
        if self._deepep is not None:
            kernel = self._deepep.kernel(layer, own, exchange, combine=combine, training=self._program.training)
            nbytes, shares = sizes(kernel, ranks)
            return Communicate("all_to_all", nbytes, axis, tensors=(own.id,), shares=shares, transport=kernel)
        row_bytes = own.nbytes / own.shape[0]
        shares = exchange.shares(row_bytes, combine=combine)
        return Communicate("all_to_all", exchange.nbytes(row_bytes), axis, tensors=(own.id,), shares=shares)

    def _exchange(self, operator: Operator, sent: Communicate, read: Tensor, written: Tensor) -> list[BlockItem]:
        """Return an all-to-all for an operator, and the copy that permutes its rows."""
        permutation = Operator(
            *(next(self._operator_ids), "aten::index", operator.phase, operator.layer, (read,), (written,), 0.0)
        )
        return [replace(sent, operator=permutation.id), permutation]

    def _items(self, block: Block, priced: Mapping[int, Operator]) -> Iterable[BlockItem]:
        """Yield a block's items with the exchanges; inserted operators have the times that they were priced with."""
        for item in block.items:
            if not isinstance(item, Operator):
                yield item
                continue
            for inserted in (*self._before.get(item.id, ()), item, *self._after.get(item.id, ())):
                yield priced.get(inserted.id, inserted) if isinstance(inserted, Operator) else inserted


class _ReceivedTensors:
    """New tensors, with ids and storages of their own, for the rows that the ranks of experts receive."""

    def __init__(self, storages: set[int], numbers: Iterator[int]) -> None:
        self._storages = {storage: next(numbers) for storage in sorted(storages)}
        self._numbers = numbers
        self.ids: dict[int, int] = {}

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor with its other id and storage; itself where it is of none of these storages."""
        storage = self._storages.get(tensor.storage)
        if storage is None:
            return tensor
        if tensor.id not in self.ids:
            self.ids[tensor.id] = next(self._numbers)
        return replace(tensor, id=self.ids[tensor.id], storage=storage)
