"""Latent attention under tensor parallelism: layers whose outputs all heads share are replicated on every rank.

DeepSeek-AI 2024 ("DeepSeek-V2", section 2.1): latent layers make short vectors, from which column-parallel layers make the
queries, keys and values of each head; the rotary part of a key is one for all heads, and a view expands it to each. A rank has
the gradient of such a value from its own heads alone, so the ranks all-reduce it. transformers' ``base_model_tp_plan`` of
DeepSeek-V2 does the same (``mla_kv_a_proj``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from triosim.sharding.dataflow import Dataflow, StoredValue
from triosim.sharding.layers import WeightLayer
from triosim.sharding.propagation import ShardingPropagator
from triosim.sharding.rules.local import is_local
from triosim.trace import Operator, Tensor


@dataclass(frozen=True, slots=True)
class HeadExpansion:
    """A value without heads that a view expands to all heads: ``source`` is the tensor, ``expanded`` what ``reader`` reads."""

    value: StoredValue
    view: Operator
    source: Tensor
    expanded: Tensor
    reader: int


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Finds latent layers and the values that are expanded to all heads.

    ``activations`` are the values that depend on samples; ``views`` are the ids of the views of a value.
    """

    _flow: Dataflow
    _layers: Mapping[int, WeightLayer]
    _propagator: ShardingPropagator
    _activations: Container[StoredValue]
    _views: Mapping[StoredValue, list[int]]

    def expansion(self, value: StoredValue, expanded: Tensor, reader: Operator) -> HeadExpansion | None:
        """Return how a value that an operator reads is expanded to all heads; None where it is not."""
        source = next((tensor for made, tensor in self._flow.writes[value.producer] if made == value), None)
        if source is None or not self._propagator.step.expands_to_heads(expanded, source):
            return None
        for number in self._views.get(value, ()):
            view = self._flow.by_id[number]
            if expanded.id in {tensor.id for tensor in view.outputs} and view.inputs[0].numel == source.numel:
                return HeadExpansion(value, view, source, expanded, reader.id)
        return None

    def latent_layers(
        self, column_parallel: Mapping[int, WeightLayer], expansions: Iterable[HeadExpansion], taken: Container[int]
    ) -> tuple[WeightLayer, ...] | None:
        """Return the layers whose output only the ``column_parallel`` layers and the readers of ``expansions`` use.

        None where an expanded value does not come from such layers.
        """
        shared = [self._paths_to_layers(one.value, taken) for one in expansions]
        if None in shared:
            return None
        columns = [(layer.operator, layer.input) for layer in column_parallel.values() if layer.input is not None]
        inputs = [self._flow.read_by(operator, read) for operator, read in columns]
        paths = [*shared, *(self._paths_to_layers(value, taken) for value in inputs if value is not None)]
        inside = {number for path in paths if path is not None for number in path}
        inside |= {*column_parallel, *(one.reader for one in expansions)}
        found: dict[int, WeightLayer] = {}
        for path in paths:
            if path is not None and all(reader.id in inside for number in path for reader in self._readers(number)):
                found |= {number: self._layers[number] for number in path if number in self._layers}
        return tuple(found.values())

    def _readers(self, number: int) -> Iterable[Operator]:
        return (reader for value, _ in self._flow.writes[number] for reader in self._flow.readers[value])

    def _paths_to_layers(self, start: StoredValue, taken: Container[int]) -> set[int] | None:
        """Return the operators on all paths from a value back to layers, with these; None where a path leads elsewhere."""
        found: set[int] = set()
        todo, seen = [start], {start}
        while todo:
            producer = self._flow.by_id[todo.pop().producer]
            layer = self._layers.get(producer.id)
            if producer.id in taken or (layer.input is None if layer is not None else not is_local(producer)):
                return None
            found.add(producer.id)
            for read, _ in self._flow.reads[producer.id] if layer is None else ():
                if read in self._activations and read not in seen:
                    seen.add(read)
                    todo.append(read)
        return found
