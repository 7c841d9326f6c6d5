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

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, islice

from triosim.config import Option
from triosim.errors import OptionError, TraceError
from triosim.extrapolators.core.extrapolator import GRADIENT_DTYPE, TENSOR_ORDER, Extrapolator
from triosim.extrapolators.core.hooks import with_hooks
from triosim.extrapolators.core.mesh import Mesh
from triosim.extrapolators.core.program import Await, Block, BlockItem, Communicate, Program, TransferKey
from triosim.extrapolators.deduplication.deduplicate import LayerDeduplication, UnequalLayersError
from triosim.extrapolators.tensor.overlap import overlapped
from triosim.extrapolators.tensor.pair_notes import gathered, listed, paired, uneven
from triosim.extrapolators.tensor.pairs import Pair, Pairing, Undivided
from triosim.extrapolators.tensor.sequence_parallel import Region, summing
from triosim.operators.features import base_name, is_autograd_node, is_free
from triosim.sharding.axes import Axes, Mark, Spread
from triosim.sharding.dataflow import Dataflow, Datum, is_loss, is_view
from triosim.sharding.latent_attention import Repeated
from triosim.sharding.shards import (
    Weighted,
    copies_of_parameters,
    divided,
    halves,
    is_cast_of_parameter,
    share,
    weighted,
    with_copies_as_parameters,
    with_shares_of_optimizer,
    with_whole_tables,
)
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
            after = with_whole_tables(program, after, self.axis)
        return overlapped(after, self.axis, self.size, division.axes.step) if self._rings else after


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
        self._copies = copies_of_parameters(program.operators)
        operators = with_copies_as_parameters(program.operators, self._copies)
        self._flow = Dataflow(operators)
        self._gradients = [operator for operator in program.operators if operator.phase == "backward"]
        self._order = {operator.id: place for place, operator in enumerate(self._gradients)}
        found = [weighted(operator) for operator in self._flow.forward]
        self._layers = {layer.operator.id: layer for layer in found if layer is not None}
        self.axes = Axes(operators, program.batch_size, self._flow.backward, ranks, once=program.deduplicate)
        self._pairing = Pairing(self._flow, self._layers, self.axes, ranks)
        self._spreads: dict[int, Spread | None] = {}  # by forward operator: what is divided; None where it stays whole
        self._after: dict[int, list[BlockItem]] = {}  # what comes after an operator
        self._ahead: dict[int, list[BlockItem]] = {}  # what comes before one
        self._halves: set[int] = set()  # backward operators that are split: the collective goes between
        self._amid: dict[int, list[BlockItem]] = {}  # what else comes between the halves
        self._joints: list[list[Weighted]] = []  # layers with the same input, which all ranks need whole
        self._region: Region | None = None  # what works on a share of the sequence
        self._whole_gradients: set[int] = set()  # what backward operators add up before it is scattered
        self._summed: set[int] = set()  # storages of parameters whose gradients are added up when the step ends
        self._made: dict[int, Mark] = {}  # of the gradients that the backward pass has made so far
        self._partial: set[int] = set()  # storages of whole parameters whose gradients are reduced
        self._projections: list[Weighted] = []  # to the vocabulary
        self._shared: dict[int, list[str]] = {}  # the layers of heads of keys and values that several ranks have
        self._latent: list[str] = []  # the layers that make what all heads are made of
        self._notes: list[str] = []
        self._note = f"operator times are predicted for each GPU's share of a layer ({axis} on {ranks} GPUs)"
        self._fresh = max(self._flow.by_id) + 1  # an id that no operator has

    # ---- what is divided ----------------------------------------------------------------------------------------

    def pair_up(self) -> None:
        """Megatron's layers: the vocabulary's, then pairs in the order of the forward pass."""
        undivided: dict[int, list[str]] = {}
        for layer in self._layers.values():
            if self._is_vocabulary(layer):
                self._divide_embedding(layer)
            elif spreads := self._pairing.to_loss(layer):
                self._divide_projection(layer, spreads)
        for layer in self._layers.values():
            if layer.operator.id in self._spreads:
                continue
            pair = self._pairing.find(layer, self._spreads)
            if isinstance(pair, Pair):
                self._divide_pair(pair)
            elif isinstance(pair, Undivided):
                undivided.setdefault(pair.heads, []).append(pair.layer)
        for layer in self._layers.values():
            if layer.data is None or self._pairing.is_router(layer):
                self._spreads.setdefault(layer.operator.id, None)  # positions, who goes to which expert: on every rank
        if self._by_sequence:
            self._require_heads(undivided)
        apart = [layer.operator.layer for number, layer in self._layers.items() if number not in self._spreads]
        every = self._repeats.layers
        shared, odd = ({heads: every(names) for heads, names in one.items()} for one in (self._shared, undivided))
        self._notes += paired(
            every(apart), every(self._latent), shared, odd, self._ranks, by_sequence=self._by_sequence
        )

    def divide_the_sequence(self) -> None:
        """What is not divided yet, by sequence, and the gathers between: after all pairs are known."""
        divided = {number for number, spread in self._spreads.items() if spread is not None}
        region = Region(self._flow, divided, self.axes.step, self._ranks, self._pairing.is_of_samples)
        self._region = region
        for layers in self._joints:
            if region.is_divided(self._input_datum(layers[0])):
                self._gather_input(layers)
        for number, tensors in region.mixing.items():
            for tensor in tensors:
                gather = Communicate("all_gather", float(tensor.nbytes), self._axis)
                self._ahead.setdefault(number, []).append(gather)
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
        tied = {self._stored(layer.weight) for layer in self._layers.values() if layer.data is not None}
        for layer in self._layers.values():
            if layer.operator.id in self._spreads:
                continue
            if layer.data is None and self._stored(layer.weight) in tied:
                self._divide_embedding(layer)  # so that a rank has the same share of the table in both
                continue
            if layer.weight.shape[layer.rows] % self._ranks:
                largest.append(layer.operator.layer)
            self._divide(layer.operator, layer.by_rows())
            self._communicate(layer.operator, "all_gather", layer.output.nbytes)
            if self._has_gradient(layer):
                last = self._backward([layer])
                if last:
                    self._communicate(last[-1], "all_reduce", layer.gradient_bytes)
        self._note_uneven(largest)

    def _uneven_projections(self) -> list[str]:
        return [layer.operator.layer for layer in self._projections if layer.weight.shape[layer.rows] % self._ranks]

    def _note_uneven(self, layers: Sequence[str]) -> None:
        if layers:
            self._notes.append(uneven(self._repeats.layers(layers), self._ranks))

    def _is_vocabulary(self, layer: Weighted) -> bool:
        """Whether a layer looks up what the network is fed (and not positions), in a table of some size."""
        return layer.data is None and layer.weight.shape[0] >= layer.weight.shape[1] and self._pairing.is_fed(layer)

    def _divide_embedding(self, layer: Weighted) -> None:
        """By vocabulary: a rank knows the words of its share, and zeros for the others."""
        self._divide(layer.operator, layer.by_columns())
        self._add_up(layer)

    def _divide_projection(self, layer: Weighted, spreads: dict[int, Spread]) -> None:
        self._projections.append(layer)
        self._spreads.update(spreads)
        self._reduce_input_gradient([layer])
        loss = next(op for op in self._flow.forward if op.id in spreads and is_loss(op))
        tokens = layer.output.numel // layer.weight.shape[layer.rows]
        maxima = Communicate("all_reduce", tokens * _BYTES_OF_A_SUM, self._axis)
        self._ahead.setdefault(loss.id, []).append(maxima)
        self._communicate(loss, "all_reduce", tokens * _BYTES_OF_A_SUM)

    def _divide_pair(self, pair: Pair) -> None:
        self._spreads.update(pair.spreads)
        self._add_up(pair.second)

        def datum(layer: Weighted) -> str:
            assert layer.data is not None
            return str(self._flow.datum(layer.operator, layer.data))

        for _, together in groupby(sorted(pair.first, key=datum), key=datum):
            self._reduce_input_gradient(list(together))
        for latent in pair.latent:
            self._spreads.setdefault(latent.operator.id, None)
            self._latent.append(latent.operator.layer)
        for repeated in pair.repeated:
            self._share_among_heads(repeated)
        for parameter, operator in pair.partial:
            self._reduce_partial_gradient(parameter, operator)
        for parameter, operator, heads in pair.shared:
            nbytes = parameter.nbytes / heads
            self._shared.setdefault(heads, []).append(operator.layer)
            self._reduce_partial_gradient(parameter, operator, nbytes, parts=heads)

    def _divide(self, operator: Operator, marks: dict[int, Mark]) -> None:
        self._spreads[operator.id] = self.axes.spread(operator, marks)

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
        self._after.setdefault(operator.id, []).append(collective)

    def _add_up(self, layer: Weighted) -> None:
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
            self._ahead.setdefault(user.id, []).append(gather)
        marks = self._spreads[layer.operator.id]
        whole = (t for t in layer.operator.inputs if t.category == "parameter" and marks and t.id not in marks.marks)
        self._summed |= {tensor.storage for tensor in whole}  # a bias, which is added to a rank's own tokens

    def _gather_input(self, layers: Sequence[Weighted]) -> None:
        """All tokens of what some layers read: in the forward pass, and again for the gradients of their weights."""
        data = layers[0].data
        assert data is not None
        first = min((layer.operator for layer in layers), key=self._flow.forward.index)
        gather = Communicate("all_gather", float(data.nbytes), self._axis, operator=first.id)
        self._ahead.setdefault(first.id, []).append(gather)
        computing = [operator for operator in self._backward(layers) if not is_free(operator)]
        users = [op for op in computing if self._weight_gradients(op) or is_autograd_node(base_name(op.name))]
        if not users or not self._before.training:
            return
        key = TransferKey("input again", first.id)
        begin, user = computing[0], users[0]
        self._ahead.setdefault(begin.id, []).append(replace(gather, key=key, operator=None))
        if user.id in self._halves or self._data_gradients(user):
            self._halves.add(user.id)
            self._amid.setdefault(user.id, []).append(Await(key))
        else:
            self._ahead.setdefault(user.id, []).append(Await(key))

    def _input_datum(self, layer: Weighted) -> Datum | None:
        return self._flow.datum(layer.operator, layer.data) if layer.data is not None else None

    def _has_gradient(self, layer: Weighted) -> bool:
        """Whether the gradient of a layer's input is computed: not that of what the network is fed."""
        return self._before.training and self._input_datum(layer) in self._flow.trained

    def _backward(self, layers: Sequence[Weighted]) -> list[Operator]:
        """The backward operators of some layers, in order."""
        numbers = {op.id for layer in layers for op in self._flow.backward.get(layer.operator.id, ())}
        return [self._flow.by_id[number] for number in sorted(numbers, key=self._order.__getitem__)]

    def _reduce_input_gradient(self, layers: Sequence[Weighted]) -> None:
        """One all-reduce for layers with the same input, beside the product that gives the last one's weight gradient."""
        self._joints.append(list(layers))
        backward = self._backward(layers)
        if layers[0].data is None or not self._has_gradient(layers[0]) or not backward:
            return
        computing = [op for op in backward if self._data_gradients(op)]
        products = [op for op in computing if not is_free(op)]
        last = (products or computing or backward)[-1]
        key = TransferKey("gradient of the input", last.id)
        if self._weight_gradients(last) or is_autograd_node(base_name(last.name)):
            self._halves.add(last.id)
        self._communicate(last, "reduce_scatter" if self._by_sequence else "all_reduce", layers[0].gradient_bytes, key)
        early = backward[: backward.index(last)]
        self._whole_gradients |= {t.storage for op in early for t in op.outputs if t.parameter is None}
        consumer = self._consumer(last, backward, self._input_datum(layers[0]))
        if consumer is None:
            self._after.setdefault(backward[-1].id, []).append(Await(key))
        else:
            self._ahead.setdefault(consumer.id, []).append(Await(key))

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
            self._ahead.setdefault(repeated.view.id, []).append(gather)
        backward = self._flow.backward.get(repeated.view.id)
        if backward and self._before.training:
            self._communicate(backward[-1], "reduce_scatter" if self._by_sequence else "all_reduce", nbytes)

    def _consumer(self, last: Operator, backward: Sequence[Operator], datum: Datum | None) -> Operator | None:
        """The next backward operator that needs the gradient of the layers' input."""
        made = {tensor.storage for op in backward for tensor in op.outputs if tensor.parameter is None}
        numbers = {op.id for op in backward}
        later = (op for op in islice(self._gradients, self._order[last.id] + 1, None) if op.id not in numbers)
        first = None
        for operator in later:
            first = first or operator
            differentiates_maker = datum is not None and operator.forward == datum.maker
            if differentiates_maker or any(tensor.storage in made for tensor in operator.inputs):
                return operator
        return first

    def _data_gradients(self, operator: Operator) -> list[Tensor]:
        layer = self._layers[operator.forward or 0]
        return [t for t in operator.outputs if layer.data is not None and self._is_gradient(t, layer.data, layer)]

    def _weight_gradients(self, operator: Operator) -> list[Tensor]:
        layer = self._layers[operator.forward or 0]
        return [t for t in operator.outputs if t.parameter is not None or self._is_gradient(t, layer.weight, layer)]

    def _is_gradient(self, tensor: Tensor, of: Tensor, layer: Weighted) -> bool:
        spread = self._spreads[layer.operator.id]
        return tensor.parameter is None and spread is not None and spread.are_alike(tensor, of)

    # ---- the program --------------------------------------------------------------------------------------------

    def program(self) -> Program:
        """Return the short program with every operator's share and the collectives. Raises where there would be none."""
        self._check()
        self._divide_views_of_parameters()
        shapes: dict[int, Operator] = {}
        for operator in self._before.operators:
            spread = self._spread_of(operator)
            if spread is not None:
                shapes[operator.id] = share(operator, spread.marks, self._ranks)
            elif self._region is not None and not self._adds_up_whole(operator):
                shapes[operator.id] = self._region.share(operator)
        return self._before.reshaped(shapes, note=self._note).rewritten(self._items).noted(*self._notes)

    def with_optimizer(self, whole: Program, after: Program) -> Program:
        """Return the program whose optimizer is about a rank's shares of the parameters, some of whose gradients it sums up."""
        parameters = divided(self._before.operators, self._spreads).of_all(self._repeats.tensors)
        after = with_shares_of_optimizer(whole, after, parameters, self._ranks, note=self._note)
        summed = self._repeats.storages(self._summed) - parameters.parameters.keys()
        return with_hooks(after, self._axis, summing(summed)) if summed and after.training else after

    def _adds_up_whole(self, operator: Operator) -> bool:
        """Whether it adds up gradients of the input of several layers, ahead of the sum over the ranks."""
        return operator.forward is None and any(t.storage in self._whole_gradients for t in operator.inputs)

    def _spread_of(self, operator: Operator) -> Spread | None:
        """What is divided of an operator: as of the one that it differentiates, or as of what it reads (a sum of gradients)."""
        if operator.phase == "forward":
            return self._spreads.get(operator.id)
        if operator.forward is not None:
            spread = self._spreads.get(operator.forward)
        else:
            marks = {t.id: self._made[t.id] for t in operator.inputs if t.id in self._made}
            spread = self.axes.spread(operator, marks) if marks else None
        for tensor in operator.outputs:
            self._made.pop(tensor.id, None)
            if spread is not None and tensor.id in spread.marks:
                self._made[tensor.id] = spread.marks[tensor.id]
        return spread

    def _stored(self, weight: Tensor) -> int:
        """The storage of the parameter that a weight is, or is a copy of."""
        return self._copies.get(weight.storage, weight.storage)

    def _divide_views_of_parameters(self) -> None:
        """What turns a weight for a product that is divided, or copies it in another dtype, does so with a share of it."""
        marked = {number: mark for spread in self._spreads.values() if spread for number, mark in spread.marks.items()}
        for operator in reversed(self._flow.forward):  # a copy is turned after it was made
            shows = is_view(operator) and operator.inputs[0].category == "parameter"
            if not (shows or is_cast_of_parameter(operator)):
                continue
            wanted = [marked.get(tensor.id) for tensor in operator.outputs]
            mark = next((one for one in wanted if one is not None), None)
            for place, length in enumerate(operator.inputs[0].shape):
                if mark is None or length % (mark.size * mark.outer):
                    continue
                spread = self.axes.spread(operator, {operator.inputs[0].id: replace(mark, dim=place)})
                if spread is not None and [spread.marks.get(t.id) for t in operator.outputs] == wanted:
                    self._spreads[operator.id] = spread
                    marked |= {t.id: spread.marks[t.id] for t in operator.inputs if t.id in spread.marks}

    def _check(self) -> None:
        if not any(self._spreads.values()):
            raise TraceError(
                f"no linear, convolution or embedding layer can be divided among {self._ranks} GPUs",
                fix="capture a trace with the shapes of parameters, or use another number",
            )
        if self._before.training and not any(self._flow.backward.get(number) for number in self._spreads):
            raise TraceError(
                "the backward operators do not say which forward operators they differentiate, so tensor parallelism "
                "would communicate nothing in the backward pass",
                fix="capture the trace with its execution graph, or simulate inference",
            )

    def _items(self, block: Block) -> Iterable[BlockItem]:
        for item in block.items:
            if not isinstance(item, Operator):
                yield item
                continue
            yield from self._ahead.get(item.id, ())
            if item.id in self._halves:
                for_data, for_weight = halves(item, self._weight_gradients(item), self._fresh)
                self._fresh += 1
                yield for_data
                after = self._after.get(item.id, ())
                first = [one for one in after if isinstance(one, Communicate) and one.key is not None]
                yield from first
                yield from self._amid.get(item.id, ())
                yield for_weight
                yield from (one for one in after if one not in first)
            else:
                yield item
                yield from self._after.get(item.id, ())
