"""Tensor parallelism: each rank has a share of every large layer.

Style "gather" (TrioSim 4.3, after BlackSamorez/tensor_parallel): linear, convolution and embedding layers are divided by output
features. In the forward pass each such layer's output is all-gathered, in the backward pass the gradient of its input is
all-reduced. An embedding whose table is also the weight of another layer is divided as that is, by vocabulary.

Style "megatron" (Shoeybi et al. 2019): layers in pairs, the first divided by output features, the second by input features,
with an all-reduce of the second's output in the forward pass and of the gradient of the first's input in the backward
pass, beside the product that gives the weight's gradient. The embedding is divided by vocabulary (an all-reduce of its
output), and so is the projection to the vocabulary before the loss (the loss all-reduces maxima and sums, one number a
token). What does not pair up is done in the style "gather".

With sequence parallelism (Korthikanti et al. 2022, section 4.2.2) a rank has a share of the sequence between the pairs: each
all-reduce becomes a reduce-scatter, and an all-gather ahead of the next pair. The backward pass gathers the gradient of a
pair's output, and once more the pair's input for the gradients of weights, beside the product that gives the data's. What
does not pair up works on a share of the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, islice

from triosim.config import Option
from triosim.errors import OptionError
from triosim.extrapolators.core.extrapolator import GRADIENT_DTYPE, TENSOR_ORDER, Extrapolator
from triosim.extrapolators.core.hooks import with_hooks
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Await, Communicate, Program, TransferKey
from triosim.extrapolators.deduplication.deduplicate import LayerDeduplication, UnequalLayersError
from triosim.extrapolators.tensor.insertions import Insertions
from triosim.extrapolators.tensor.latent_attention import Repeated
from triosim.extrapolators.tensor.optimizer_shards import with_full_embedding_gradients, with_local_optimizer
from triosim.extrapolators.tensor.overlap import overlapped
from triosim.extrapolators.tensor.pair_notes import gathered, listed, paired, require_sharded, uneven
from triosim.extrapolators.tensor.pairs import Pair, Pairing, Undivided
from triosim.extrapolators.tensor.sequence_parallel import Region, summing
from triosim.operators.features import base_name, is_autograd_node, is_free
from triosim.sharding.dataflow import Dataflow, Value, is_loss, is_view
from triosim.sharding.layers import WeightLayer, weight_layer
from triosim.sharding.parameters import (
    casts_of_parameters,
    is_cast_of_parameter,
    with_casts_as_parameters,
)
from triosim.sharding.placements import Shard
from triosim.sharding.propagation import OperatorSharding, ShardingPropagator
from triosim.sharding.shards import local_operator, sharded_parameters
from triosim.tasks import CollectiveKind
from triosim.trace import Operator, Tensor

_BYTES_OF_A_SUM = 4.0  # maxima and sums of the loss are fp32


class TensorParallel(Extrapolator):
    """``tp``."""

    axis = "tp"
    level = "operators"
    identical_ranks = True
    order = TENSOR_ORDER
    options = (
        Option("tp_style", "choice", "gather", choices=("gather", "megatron"), metavar="STYLE", of_step=True,
               help="tp: gather (each layer's output) or megatron (layers in pairs, one all-reduce for two)."),
        Option("sequence_parallel", "flag", False, of_step=True, commands=("simulate", "memory"), help=
               "tp, style megatron: norms and residuals on a share of the sequence; reduce-scatters and all-gathers."),
        GRADIENT_DTYPE,
        Option("overlap", "choice", "no", choices=("no", "ring"), own_flag=False,
               help="tp with --sequence-parallel: whether products run in pieces while a ring brings their input."),
        Option("embedding_gradient", "choice", "share", choices=("share", "whole"), own_flag=False,
               help="tp: whether a GPU has the gradient of its share of an embedding table, or of the whole table."),
    )  # fmt: skip

    def transform(self, program: Program, mesh: Mesh) -> Program:
        """Return the program of one rank's shares, with the collectives around them."""
        by_sequence = self.config.sequence_parallel
        if self._rings and not by_sequence:
            raise OptionError("rings need --sequence-parallel", where="--option overlap")
        if by_sequence and self.config.tp_style != "megatron":
            raise OptionError(
                f"tp of the style '{self.config.tp_style}' gathers features between all layers",
                where="sequence parallel",
                fix="use --tp-style megatron",
            )
        if self.size == 1:
            return program
        if program.deduplicate and not self._rings and (repeats := LayerDeduplication.of(program)) is not None:
            with suppress(UnequalLayersError):
                return self._divided(program, repeats)
        return self._divided(program, LayerDeduplication(program))

    @property
    def _rings(self) -> bool:
        return bool(self.config.overlap == "ring")

    def _divided(self, program: Program, repeats: LayerDeduplication) -> Program:
        """The program of a rank's shares. Some of the layers that repeat are divided, and the others as these."""
        division = Division(repeats, self.axis, self.size, by_sequence=self.config.sequence_parallel)
        if self.config.tp_style == "megatron":
            division.pair_up()
        if self.config.sequence_parallel:
            division.divide_the_sequence()
        else:
            division.gather_the_rest()
        after = division.with_optimizer(program, repeats.restored(division.program()))
        if self.config.tp_style == "gather":
            after = after.noted(*gathered(program.operators))
        if self.config.embedding_gradient == "whole":
            after = with_full_embedding_gradients(program, after, self.axis)
        return overlapped(after, self.axis, self.size, division.propagator.step) if self._rings else after


class Division:
    """Decides what is divided, layer by layer, and then rewrites the program once.

    It sees the ``short`` program of the layers that repeat; what it says of them it says of all.
    """

    def __init__(self, repeats: LayerDeduplication, axis: str, ranks: int, *, by_sequence: bool = False) -> None:
        self._before = program = repeats.short
        self._repeats = repeats
        self._by_sequence = by_sequence
        self._axis = axis
        self._ranks = ranks
        self._copies = casts_of_parameters(program.operators)
        operators = with_casts_as_parameters(program.operators, self._copies)
        self._flow = Dataflow(operators)
        self._gradients = [operator for operator in program.operators if operator.phase == "backward"]
        self._order = {operator.id: place for place, operator in enumerate(self._gradients)}
        found = [weight_layer(operator) for operator in self._flow.forward]
        self._layers = {layer.operator.id: layer for layer in found if layer is not None}
        self.propagator = ShardingPropagator(
            operators, program.batch_size, self._flow.backward, ranks, once=program.deduplicate
        )
        self._pairing = Pairing(self._flow, self._layers, self.propagator, ranks)
        self._shardings: dict[
            int, OperatorSharding | None
        ] = {}  # by forward operator: what is divided; None where it stays whole
        self._inserted = Insertions(max(self._flow.by_id) + 1, self._weight_gradients)
        self._joints: list[list[WeightLayer]] = []  # layers with the same input, which all ranks need whole
        self._region: Region | None = None  # what works on a share of the sequence
        self._whole_gradients: set[int] = set()  # what backward operators add up before it is scattered
        self._summed: set[int] = set()  # storages of parameters whose gradients are added up when the step ends
        self._made: dict[int, Shard] = {}  # of the gradients that the backward pass has made so far
        self._partial: set[int] = set()  # storages of whole parameters whose gradients are reduced
        self._projections: list[WeightLayer] = []  # to the vocabulary
        self._shared: dict[int, list[str]] = {}  # the layers of heads of keys and values that several ranks have
        self._latent: list[str] = []  # the layers that make what all heads are made of
        self._notes: list[str] = []
        self._note = f"operator times are predicted for each GPU's share of a layer ({axis} on {ranks} GPUs)"

    # ---- what is divided ----------------------------------------------------------------------------------------

    def pair_up(self) -> None:
        """Megatron's layers: the vocabulary's, then pairs in the order of the forward pass."""
        undivided: dict[int, list[str]] = {}
        for layer in self._layers.values():
            if self._is_vocabulary(layer):
                self._divide_embedding(layer)
            elif shardings := self._pairing.to_loss(layer):
                self._divide_projection(layer, shardings)
        for layer in self._layers.values():
            if layer.operator.id in self._shardings:
                continue
            pair = self._pairing.find(layer, self._shardings)
            if isinstance(pair, Pair):
                self._divide_pair(pair)
            elif isinstance(pair, Undivided):
                undivided.setdefault(pair.heads, []).append(pair.layer)
        for layer in self._layers.values():
            if layer.input is None or self._pairing.is_router(layer):
                self._shardings.setdefault(
                    layer.operator.id, None
                )  # positions, who goes to which expert: on every rank
        if self._by_sequence:
            self._require_heads(undivided)
        apart = [layer.operator.layer for number, layer in self._layers.items() if number not in self._shardings]
        every = self._repeats.layers
        shared, odd = ({heads: every(names) for heads, names in one.items()} for one in (self._shared, undivided))
        self._notes += paired(
            every(apart), every(self._latent), shared, odd, self._ranks, by_sequence=self._by_sequence
        )

    def divide_the_sequence(self) -> None:
        """What is not divided yet, by sequence, and the gathers between: after all pairs are known."""
        divided = {number for number, sharding in self._shardings.items() if sharding is not None}
        region = Region(self._flow, divided, self.propagator.step, self._ranks, self._pairing.is_of_samples)
        self._region = region
        for layers in self._joints:
            if region.is_divided(self._input_datum(layers[0])):
                self._gather_input(layers)
        for number, tensors in region.mixing.items():
            for tensor in tensors:
                gather = Communicate("all_gather", float(tensor.nbytes), self._axis)
                self._inserted.before(self._flow.by_id[number], gather)
        if region.mixing:
            mixing = [self._flow.by_id[number].layer for number in region.mixing]
            self._notes.append(f"tp: {listed(self._repeats.layers(mixing))} need all tokens, which are gathered")
        self._summed |= region.parameters()
        self._note_uneven(self._uneven_projections())

    def _require_heads(self, undivided: dict[int, list[str]]) -> None:
        for heads, names in undivided.items():
            raise OptionError(
                f"the {heads} heads of {listed(self._repeats.layers(names))} do not divide by {self._ranks}",
                where="sequence parallel",
                fix=f"use a number of GPUs that divides {heads}, or leave it out",
            )

    def gather_the_rest(self) -> None:
        """The other layers by output features. Where these do not divide, every rank is charged the largest share."""
        largest = self._uneven_projections()
        tied = {self._stored(layer.weight) for layer in self._layers.values() if layer.input is not None}
        for layer in self._layers.values():
            if layer.operator.id in self._shardings:
                continue
            if layer.input is None and self._stored(layer.weight) in tied:
                self._divide_embedding(layer)  # so that a rank has the same share of the table in both
                continue
            if layer.output_features % self._ranks:
                largest.append(layer.operator.layer)
            self._divide(layer.operator, layer.column_parallel())
            self._communicate(layer.operator, "all_gather", layer.output.nbytes)
            if self._has_gradient(layer):
                last = self._backward([layer])
                if last:
                    self._communicate(last[-1], "all_reduce", layer.input_gradient_bytes)
        self._note_uneven(largest)

    def _uneven_projections(self) -> list[str]:
        return [layer.operator.layer for layer in self._projections if layer.output_features % self._ranks]

    def _note_uneven(self, layers: Sequence[str]) -> None:
        if layers:
            self._notes.append(uneven(self._repeats.layers(layers), self._ranks))

    def _is_vocabulary(self, layer: WeightLayer) -> bool:
        """Whether a layer looks up what the network is fed (and not positions), in a table of some size."""
        return layer.input is None and layer.weight.shape[0] >= layer.weight.shape[1] and self._pairing.is_fed(layer)

    def _divide_embedding(self, layer: WeightLayer) -> None:
        """By vocabulary: a rank knows the words of its share, and zeros for the others."""
        self._divide(layer.operator, layer.row_parallel())
        self._add_up(layer)

    def _divide_projection(self, layer: WeightLayer, shardings: dict[int, OperatorSharding]) -> None:
        self._projections.append(layer)
        self._shardings.update(shardings)
        self._reduce_input_gradient([layer])
        loss = next(op for op in self._flow.forward if op.id in shardings and is_loss(op))
        tokens = layer.output.numel // layer.output_features
        maxima = Communicate("all_reduce", tokens * _BYTES_OF_A_SUM, self._axis)
        self._inserted.before(loss, maxima)
        self._communicate(loss, "all_reduce", tokens * _BYTES_OF_A_SUM)

    def _divide_pair(self, pair: Pair) -> None:
        self._shardings.update(pair.shardings)
        self._add_up(pair.second)

        def value(layer: WeightLayer) -> str:
            assert layer.input is not None
            return str(self._flow.read_by(layer.operator, layer.input))

        for _, together in groupby(sorted(pair.first, key=value), key=value):
            self._reduce_input_gradient(list(together))
        for latent in pair.latent:
            self._shardings.setdefault(latent.operator.id, None)
            self._latent.append(latent.operator.layer)
        for repeated in pair.repeated:
            self._share_among_heads(repeated)
        for parameter, operator in pair.partial:
            self._reduce_partial_gradient(parameter, operator)
        for parameter, operator, heads in pair.shared:
            nbytes = parameter.nbytes / heads
            self._shared.setdefault(heads, []).append(operator.layer)
            self._reduce_partial_gradient(parameter, operator, nbytes, parts=heads)

    def _divide(self, operator: Operator, placements: dict[int, Shard]) -> None:
        self._shardings[operator.id] = self.propagator.propagate(operator, placements)

    # ---- what is communicated -----------------------------------------------------------------------------------

    def _communicate(
        self,
        operator: Operator,
        kind: CollectiveKind,
        nbytes: float,
        key: TransferKey | None = None,
        *,
        parts: int = 1,
        of_weights: bool = False,
    ) -> None:
        """A collective after an operator."""
        collective = Communicate(kind, float(nbytes), self._axis, key, parts, of_weights)
        self._inserted.after(operator, collective)

    def _add_up(self, layer: WeightLayer) -> None:
        """The sum of what the ranks have of a layer's output: whole, or of a share of the sequence each."""
        nbytes = layer.output.nbytes
        if not self._by_sequence:
            self._communicate(layer.operator, "all_reduce", nbytes)
            return
        self._communicate(layer.operator, "reduce_scatter", nbytes)
        backward = self._backward([layer]) if self._before.training else []
        if backward:
            user = next((operator for operator in backward if not is_free(operator)), backward[0])
            gather = Communicate("all_gather", float(nbytes), self._axis)
            self._inserted.before(user, gather)
        placements = self._shardings[layer.operator.id]
        whole = (
            t
            for t in layer.operator.inputs
            if t.category == "parameter" and placements and t.id not in placements.placements
        )
        self._summed |= {tensor.storage for tensor in whole}  # a bias, which is added to a rank's own tokens

    def _gather_input(self, layers: Sequence[WeightLayer]) -> None:
        """All tokens of what some layers read: in the forward pass, and again for the gradients of their weights."""
        data = layers[0].input
        assert data is not None
        first = min((layer.operator for layer in layers), key=self._flow.forward.index)
        gather = Communicate("all_gather", float(data.nbytes), self._axis, operator=first.id)
        self._inserted.before(first, gather)
        computing = [operator for operator in self._backward(layers) if not is_free(operator)]
        users = [op for op in computing if self._weight_gradients(op) or is_autograd_node(base_name(op.name))]
        if not users or not self._before.training:
            return
        key = TransferKey("input again", first.id)
        begin, user = computing[0], users[0]
        self._inserted.before(begin, replace(gather, key=key, operator=None))
        if self._inserted.is_split(user) or self._data_gradients(user):
            self._inserted.amid(user, Await(key))
        else:
            self._inserted.before(user, Await(key))

    def _input_datum(self, layer: WeightLayer) -> Value | None:
        return self._flow.read_by(layer.operator, layer.input) if layer.input is not None else None

    def _has_gradient(self, layer: WeightLayer) -> bool:
        """Whether the gradient of a layer's input is computed: not that of what the network is fed."""
        return self._before.training and self._input_datum(layer) in self._flow.differentiable

    def _backward(self, layers: Sequence[WeightLayer]) -> list[Operator]:
        """The backward operators of some layers, in order."""
        numbers = {op.id for layer in layers for op in self._flow.backward.get(layer.operator.id, ())}
        return [self._flow.by_id[number] for number in sorted(numbers, key=self._order.__getitem__)]

    def _reduce_input_gradient(self, layers: Sequence[WeightLayer]) -> None:
        """One all-reduce for layers with the same input, beside the product that gives the last one's weight gradient."""
        self._joints.append(list(layers))
        backward = self._backward(layers)
        if layers[0].input is None or not self._has_gradient(layers[0]) or not backward:
            return
        computing = [op for op in backward if self._data_gradients(op)]
        products = [op for op in computing if not is_free(op)]
        last = (products or computing or backward)[-1]
        key = TransferKey("gradient of the input", last.id)
        if self._weight_gradients(last) or is_autograd_node(base_name(last.name)):
            self._inserted.split(last)
        self._communicate(
            last, "reduce_scatter" if self._by_sequence else "all_reduce", layers[0].input_gradient_bytes, key
        )
        early = backward[: backward.index(last)]
        self._whole_gradients |= {t.storage for op in early for t in op.outputs if t.parameter is None}
        consumer = self._consumer(last, backward, self._input_datum(layers[0]))
        if consumer is None:
            self._inserted.after(backward[-1], Await(key))
        else:
            self._inserted.before(consumer, Await(key))

    def _reduce_partial_gradient(
        self, parameter: Tensor, operator: Operator, nbytes: float | None = None, parts: int = 1
    ) -> None:
        """A rank knows a gradient from its own heads alone: an all-reduce, once for all users of the parameter.

        Of a whole parameter it is one of all ranks; of heads that several ranks have, one of these, in each of the ``parts``.
        """
        backward = self._flow.backward.get(operator.id)
        if backward and self._before.training and parameter.storage not in self._partial:
            self._partial.add(parameter.storage)
            size = parameter.nbytes if nbytes is None else nbytes
            self._communicate(backward[-1], "all_reduce", size, parts=parts, of_weights=True)

    def _share_among_heads(self, repeated: Repeated) -> None:
        """What is shown to all heads: a rank knows its gradient from its own heads alone; by sequence, it needs all tokens."""
        nbytes = repeated.whole.nbytes
        if self._by_sequence:
            gather = Communicate("all_gather", float(nbytes), self._axis, operator=repeated.reader)
            self._inserted.before(repeated.view, gather)
        backward = self._flow.backward.get(repeated.view.id)
        if backward and self._before.training:
            self._communicate(backward[-1], "reduce_scatter" if self._by_sequence else "all_reduce", nbytes)

    def _consumer(self, last: Operator, backward: Sequence[Operator], value: Value | None) -> Operator | None:
        """The next backward operator that needs the gradient of the layers' input."""
        made = {tensor.storage for op in backward for tensor in op.outputs if tensor.parameter is None}
        numbers = {op.id for op in backward}
        later = (op for op in islice(self._gradients, self._order[last.id] + 1, None) if op.id not in numbers)
        first = None
        for operator in later:
            first = first or operator
            differentiates_maker = value is not None and operator.forward == value.producer
            if differentiates_maker or any(tensor.storage in made for tensor in operator.inputs):
                return operator
        return first

    def _data_gradients(self, operator: Operator) -> list[Tensor]:
        layer = self._layers[operator.forward or 0]
        return [t for t in operator.outputs if layer.input is not None and self._is_gradient(t, layer.input, layer)]

    def _weight_gradients(self, operator: Operator) -> list[Tensor]:
        layer = self._layers[operator.forward or 0]
        return [t for t in operator.outputs if t.parameter is not None or self._is_gradient(t, layer.weight, layer)]

    def _is_gradient(self, tensor: Tensor, of: Tensor, layer: WeightLayer) -> bool:
        sharding = self._shardings[layer.operator.id]
        return tensor.parameter is None and sharding is not None and sharding.have_same_axes(tensor, of)

    # ---- the program --------------------------------------------------------------------------------------------

    def program(self) -> Program:
        """Return the short program with every operator's share and the collectives. Raises where there would be none."""
        backward = [op for number in self._shardings for op in self._flow.backward.get(number, ())]
        require_sharded(any(self._shardings.values()), bool(backward) or not self._before.training, self._ranks)
        self._divide_views_of_parameters()
        shapes: dict[int, Operator] = {}
        for operator in self._before.operators:
            sharding = self._sharding_of(operator)
            if sharding is not None:
                shapes[operator.id] = local_operator(operator, sharding.placements, self._ranks)
            elif self._region is not None and not self._adds_up_whole(operator):
                shapes[operator.id] = self._region.share(operator)
        return self._before.reshaped(shapes, note=self._note).rewritten(self._inserted.items).noted(*self._notes)

    def with_optimizer(self, whole: Program, after: Program) -> Program:
        """Return the program whose optimizer is about a rank's shares of the parameters, some of whose gradients it sums up."""
        parameters = sharded_parameters(self._before.operators, self._shardings).with_repeated(self._repeats.tensors)
        after = with_local_optimizer(whole, after, parameters, self._ranks, note=self._note)
        summed = self._repeats.storages(self._summed) - parameters.parameters.keys()
        return with_hooks(after, self._axis, summing(summed)) if summed and after.training else after

    def _adds_up_whole(self, operator: Operator) -> bool:
        """Whether it adds up gradients of the input of several layers, ahead of the sum over the ranks."""
        return operator.forward is None and any(t.storage in self._whole_gradients for t in operator.inputs)

    def _sharding_of(self, operator: Operator) -> OperatorSharding | None:
        """What is divided of an operator: as of the one that it differentiates, or as of what it reads (a sum of gradients)."""
        if operator.phase == "forward":
            return self._shardings.get(operator.id)
        if operator.forward is not None:
            sharding = self._shardings.get(operator.forward)
        else:
            placements = {t.id: self._made[t.id] for t in operator.inputs if t.id in self._made}
            sharding = self.propagator.propagate(operator, placements) if placements else None
        for tensor in operator.outputs:
            self._made.pop(tensor.id, None)
            if sharding is not None and tensor.id in sharding.placements:
                self._made[tensor.id] = sharding.placements[tensor.id]
        return sharding

    def _stored(self, weight: Tensor) -> int:
        """The storage of the parameter that a weight is, or is a copy of."""
        return self._copies.get(weight.storage, weight.storage)

    def _divide_views_of_parameters(self) -> None:
        """What turns a weight for a product that is divided, or copies it in another dtype, does so with a share of it."""
        marked = {
            number: shard
            for sharding in self._shardings.values()
            if sharding
            for number, shard in sharding.placements.items()
        }
        for operator in reversed(self._flow.forward):  # a copy is turned after it was made
            shows = is_view(operator) and operator.inputs[0].category == "parameter"
            if not (shows or is_cast_of_parameter(operator)):
                continue
            wanted = [marked.get(tensor.id) for tensor in operator.outputs]
            shard = next((one for one in wanted if one is not None), None)
            for place, length in enumerate(operator.inputs[0].shape):
                if shard is None or length % (shard.size * shard.outer):
                    continue
                sharding = self.propagator.propagate(operator, {operator.inputs[0].id: replace(shard, dim=place)})
                if sharding is not None and [sharding.placements.get(t.id) for t in operator.outputs] == wanted:
                    self._shardings[operator.id] = sharding
                    marked |= {t.id: sharding.placements[t.id] for t in operator.inputs if t.id in sharding.placements}
