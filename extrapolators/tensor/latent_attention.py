"""Latent attention: what all heads are made of, or share, comes from layers that every rank has whole.

DeepSeek-AI 2024 ("DeepSeek-V2", section 2.1): layers make short vectors, from which others, which are divided by heads, make
the queries, keys and values; the part of a key that turns with the position is one for all heads, and shown to each. So the
published plans have it (transformers' ``base_model_tp_plan`` of DeepSeek-V2 and its ``mla_kv_a_proj``): of what is shown to all
heads a rank knows the gradient from its own heads alone, and the ranks add it up.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from triosim.sharding.dataflow import Dataflow, Value
from triosim.sharding.layers import WeightLayer
from triosim.sharding.propagation import ShardingPropagator
from triosim.sharding.rules.local import is_local
from triosim.trace import Operator, Tensor


@dataclass(frozen=True, slots=True)
class Repeated:
    """Data without heads that a view shows to all of them: ``whole`` is what was made, ``shown`` what ``reader`` reads."""

    value: Value
    view: Operator
    whole: Tensor
    shown: Tensor
    reader: int


class Latents:
    """Looks for what all heads share. ``live`` are the data that depend on samples, ``views`` those that show each."""

    def __init__(
        self,
        flow: Dataflow,
        layers: Mapping[int, WeightLayer],
        propagator: ShardingPropagator,
        live: Container[Value],
        views: Mapping[Value, list[int]],
    ) -> None:
        self._flow = flow
        self._layers = layers
        self._propagator = propagator
        self._live = live
        self._views = views

    def repeated(self, value: Value, shown: Tensor, reader: Operator) -> Repeated | None:
        """Return what an operator reads as one that is shown to all heads; None where it is not."""
        whole = next((tensor for made, tensor in self._flow.writes[value.producer] if made == value), None)
        if whole is None or not self._propagator.step.expands_to_heads(shown, whole):
            return None
        for number in self._views.get(value, ()):
            view = self._flow.by_id[number]
            if shown.id in {tensor.id for tensor in view.outputs} and view.inputs[0].numel == whole.numel:
                return Repeated(value, view, whole, shown, reader.id)
        return None

    def behind(
        self, first: Mapping[int, WeightLayer], repeated: Iterable[Repeated], taken: Container[int]
    ) -> tuple[WeightLayer, ...] | None:
        """Return the layers that make nothing but what ``first`` layers read, or is ``repeated``.

        None where what is repeated comes from elsewhere.
        """
        shared = [self._back(one.value, taken) for one in repeated]
        if None in shared:
            return None
        starts = [
            self._flow.read_by(layer.operator, layer.input) for layer in first.values() if layer.input is not None
        ]
        ways = [*shared, *(self._back(start, taken) for start in starts if start is not None)]
        inside = {number for way in ways if way is not None for number in way}
        inside |= {*first, *(one.reader for one in repeated)}
        found: dict[int, WeightLayer] = {}
        for way in ways:
            if way is not None and all(reader.id in inside for number in way for reader in self._readers(number)):
                found |= {number: self._layers[number] for number in way if number in self._layers}
        return tuple(found.values())

    def _readers(self, number: int) -> Iterable[Operator]:
        return (reader for value, _ in self._flow.writes[number] for reader in self._flow.readers[value])

    def _back(self, start: Value, taken: Container[int]) -> set[int] | None:
        """The operators on all paths back from some data to layers, these included; None where one leads elsewhere."""
        found: set[int] = set()
        todo, seen = [start], {start}
        while todo:
            maker = self._flow.by_id[todo.pop().producer]
            layer = self._layers.get(maker.id)
            if maker.id in taken or (layer.input is None if layer is not None else not is_local(maker)):
                return None
            found.add(maker.id)
            for read, _ in self._flow.reads[maker.id] if layer is None else ():
                if read in self._live and read not in seen:
                    seen.add(read)
                    todo.append(read)
        return found
