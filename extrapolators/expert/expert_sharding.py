"""The programs of ranks that share out experts: the rows that each one's experts receive, and the all-to-alls around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from triosim.extrapolators.core.program import Block, BlockItem, Communicate, Program
from triosim.extrapolators.expert.deepep import DeepEPSettings, sizes
from triosim.extrapolators.expert.expert_loads import TokenExchange
from triosim.extrapolators.expert.local_operators import LocalCall, LocalOperators, LocalTensor
from triosim.extrapolators.expert.local_times import LocalTimes
from triosim.extrapolators.expert.moe_layers import MoELayer, MoELayers
from triosim.sharding.placements import Shard
from triosim.trace import Operator, Tensor


class ExpertSharding:
    """Shards the experts of a program in one iteration, for each rank of a group.

    The programs of the ranks differ in the rows of some operators alone: exchanges are inserted once for all, and then each
    rank's operators. ``deepep`` says how DeepEP carries the all-to-alls; without it NCCL does.
    """

    def __init__(
        self,
        program: Program,
        layers: MoELayers,
        exchanges: Sequence[TokenExchange],
        deepep: DeepEPSettings | None = None,
    ) -> None:
        self.layers = layers
        self.exchanges = exchanges
        self._deepep = deepep
        self._training = program.training
        self._operator_ids = count(layers.last_operator + 1)
        self._tensor_ids = count(layers.last_tensor + 1)
        self._before: dict[int, list[BlockItem]] = {}
        self._after: dict[int, list[BlockItem]] = {}
        pairs = zip(layers.found, exchanges, strict=True)
        calls = [self._local_experts(layer, exchange) for layer, exchange in pairs]
        self._local = [LocalOperators(some) for some in calls]
        self._times = LocalTimes(calls, program.model, program.gpu, deduplicate=program.deduplicate)
        sharded = program.reshaped(layers.local_weight_operators, note=self._note)
        self._exchanging = sharded.rewritten(self._with_exchanges)

    def program(self, program: Program, coordinate: int | None) -> Program:
        """Return a rank's program, by its expert-parallel coordinate; None is a rank with the mean load.

        ``program`` has the operators of the one that the sharding was made for.
        """
        received = [(layer, exchange.rows(coordinate)) for layer, exchange in enumerate(self.exchanges)]
        if not self._times.know(received):
            ranks = (None,) if coordinate is None else range(self.layers.ranks)
            self._times.find((layer, one.rows(rank)) for rank in ranks for layer, one in enumerate(self.exchanges))
        operators: dict[int, Operator] = {}
        for layer, rows in received:
            local = self._local[layer].of(rows, self._times.of(layer, rows))
            operators.update((operator.id, operator) for operator in local)
        exchanging = replace(program, stages=self._exchanging.stages, optimizers=self._exchanging.optimizers)
        found = exchanging.with_operators(operators)
        found = replace(found, experts=self.layers.weights, expert_axis=self.layers.axis)
        return found.noted(self._note, *found.stand_in_notes())

    @property
    def _note(self) -> str:
        return f"operator times are predicted for each GPU's experts ({self.layers.axis} on {self.layers.ranks} GPUs)"

    def _local_experts(self, layer: MoELayer, exchange: TokenExchange) -> list[LocalCall]:
        """Return a layer's operators on the rows that a rank's experts receive, and insert exchanges around them."""
        ends = (*layer.entering, *layer.leaving)
        received = _ReceivedTensors({tensor.storage for tensor, _ in ends}, self._tensor_ids)
        found = [self._local_call(layer, operator, received) for operator in layer.operators]
        tensors = {one.tensor.id: one for call in found for one in (*call.inputs, *call.outputs)}
        dispatched: set[int] = set()
        for tensor, op in layer.entering:
            if tensor.id in received.ids and tensor.id not in dispatched:
                dispatched.add(tensor.id)
                there = tensors[received.ids[tensor.id]]
                sent = self._all_to_all(layer, tensor, exchange, combine=False)
                found.append(self._permutation(op, LocalTensor(tensor), there))
                self._before.setdefault(op.id, []).extend(_exchange(sent, found[-1]))
        for tensor, op in layer.leaving:
            there = tensors[received.ids[tensor.id]]
            sent = self._all_to_all(layer, tensor, exchange, combine=True)
            found.append(self._permutation(op, there, LocalTensor(tensor)))
            self._after.setdefault(op.id, []).extend(_exchange(sent, found[-1]))
        return found

    def _local_call(self, layer: MoELayer, operator: Operator, received: _ReceivedTensors) -> LocalCall:
        """Return an operator on the rows that a rank's experts receive and its share of stacked weights."""
        rows = layer.rows_of(operator)
        grouped = "grouped" in operator.name.lower()

        def local(tensor: Tensor) -> LocalTensor:
            shard: Shard | None = rows.get(tensor.id)
            here = received.tensor(tensor)
            if shard is not None:
                return LocalTensor(here, shard.dim, tensor.shape[shard.dim] // shard.size)
            if len(tensor.shape) == 3 and (
                grouped or self.layers.is_stacked(tensor)
            ):  # experts are the first dimension
                here = replace(here, shape=(tensor.shape[0] // self.layers.ranks, *tensor.shape[1:]))
            return LocalTensor(here)

        return LocalCall(operator, tuple(map(local, operator.inputs)), tuple(map(local, operator.outputs)))

    def _permutation(self, operator: Operator, read: LocalTensor, written: LocalTensor) -> LocalCall:
        """Return the copy that permutes the rows of an exchange for an operator.

        DeepEP sends tokens, of which the layer's own permutation, at their experts, makes rows in order: no copy is added.
        """
        name = "aten::index" if self._deepep is None else "aten::view"
        what = next(self._operator_ids), name, operator.phase, operator.layer
        return LocalCall(Operator(*what, (read.tensor,), (written.tensor,), 0.0), (read,), (written,), added=True)

    def _all_to_all(self, layer: MoELayer, own: Tensor, exchange: TokenExchange, *, combine: bool) -> Communicate:
        """Return the all-to-all of a rank's ``own`` rows: to their experts, or back in ``combine``."""
        axis, ranks = self.layers.axis, self.layers.ranks
        if self._deepep is not None:
            kernel = self._deepep.kernel(layer, own, exchange, combine=combine, training=self._training)
            nbytes, shares = sizes(kernel, ranks)
            return Communicate("all_to_all", nbytes, axis, tensors=(own.id,), shares=shares, transport=kernel)
        row_bytes = own.nbytes / own.shape[0]
        shares = exchange.shares(row_bytes, combine=combine)
        return Communicate("all_to_all", exchange.nbytes(row_bytes), axis, tensors=(own.id,), shares=shares)

    def _with_exchanges(self, block: Block) -> Iterable[BlockItem]:
        """Yield a block's items with the exchanges."""
        for item in block.items:
            if isinstance(item, Operator):
                yield from (*self._before.get(item.id, ()), item, *self._after.get(item.id, ()))
            else:
                yield item


def _exchange(sent: Communicate, permutation: LocalCall) -> tuple[BlockItem, ...]:
    """Return an all-to-all, and the copy that permutes its rows."""
    return replace(sent, operator=permutation.operator.id), permutation.operator


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
