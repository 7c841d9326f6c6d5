"""The rules that a point of a search must keep, each with a name and a text: they are counted before anything runs.

A rule holds for all runs, or is what frameworks require (Megatron-LM's ``validate_args``) and can be left out by its name.
What no rule knows is found out when the point is planned, and makes it ``refused``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from triosim.configuration_search.point import Point, Value
from triosim.configuration_search.spaces.cluster import cluster_of
from triosim.configuration_search.spaces.layout import DATA_PARALLEL, Layout
from triosim.configuration_search.spaces.space import INTERLEAVED, PLAIN, Space
from triosim.configuration_search.spaces.topology_axes import is_repeated
from triosim.errors import OptionError, nearest


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point with what rules look at: its layout, the GPUs of the topology and of a node, the network's price, the model."""

    point: Point
    space: Space
    layout: Layout
    topology_gpus: int
    node: int
    network_price: float | None = None

    @classmethod
    def of(cls, space: Space, point: Point) -> Candidate:
        """Return the candidate of a point."""
        cluster = cluster_of(space.subject, space.base, point)
        return cls(point, space, space.layout(point), cluster.gpus, cluster.node, cluster.price)

    def size(self, name: str) -> int | None:
        """Return a size of the model; None where it has none, or is a trace."""
        return self.space.subject.sizes.get(name)

    def given(self, name: str) -> Value | None:
        """Return an option of the point, or that of all points where it was given."""
        base = self.space.base
        return self.point.get(name, getattr(base, name) if base.is_given(name) else None)

    def is_first(self, name: str) -> bool:
        """Whether an axis has its first value, or does not vary."""
        axis = self.space.axis(name)
        return axis is None or self.point.get(name) == axis.values[0]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: ``broken`` says whether a candidate breaks it. One that is ``required`` cannot be left out."""

    name: str
    text: str
    broken: Callable[[Candidate], bool]
    required: bool = False


def _gpus(one: Candidate) -> bool:
    return one.layout.ranks != one.layout.gpus or one.layout.gpus > one.topology_gpus


def _batch(one: Candidate) -> bool:
    layout, batch = one.layout, one.layout.global_batch_size
    if batch is None:
        return False
    if None in (layout.micro_batches, layout.micro_batch_size):
        given = layout.micro_batches if layout.micro_batch_size is None else layout.micro_batch_size
        return batch % (layout.dp * (given or 1)) != 0
    return batch != layout.dp * (layout.micro_batches or 0) * (layout.micro_batch_size or 0)


def _heads(one: Candidate) -> bool:
    heads, shared = one.size("heads"), one.size("kv_heads")
    tp = one.layout.tp
    return bool(heads and heads % tp) or bool(shared and shared % tp and tp % shared)


def _vocabulary(one: Candidate) -> bool:
    vocabulary = one.size("vocab")
    return vocabulary is not None and vocabulary % one.layout.tp != 0


def _layers(one: Candidate) -> bool:
    layers, stages = one.size("layers"), one.layout.stages
    return layers is not None and all((layers + more) % stages for more in (0, 1, 2))


def _sequence(one: Candidate) -> bool:
    sequence, cp = one.size("sequence"), one.layout.cp
    return cp > 1 and sequence is not None and sequence % (2 * cp) != 0


def _experts(one: Candidate) -> bool:
    layout, experts = one.layout, one.size("experts")
    if layout.ep == 1:
        return False
    of_model = one.space.subject.described and (experts is None or experts % layout.ep != 0)
    return of_model or (layout.dp * layout.cp) % layout.ep != 0


def _node(one: Candidate) -> bool:
    return one.layout.tp > one.node


def _virtual(one: Candidate) -> bool:
    several, schedule = one.layout.virtual_stages > 1, one.given("schedule")
    return several and (one.layout.pp == 1 or schedule not in (None, INTERLEAVED))


def _one_stage(one: Candidate) -> bool:
    return one.layout.pp > 1 and one.layout.virtual_stages == 1 and one.given("schedule") == INTERLEAVED


def _groups(one: Candidate) -> bool:
    micro_batches = one.layout.of_batch(per_micro_batch=False)
    return one.layout.virtual_stages > 1 and micro_batches is not None and micro_batches % one.layout.pp != 0


def _same(one: Candidate) -> bool:
    layout = one.layout
    alone = layout.dp == 1 and layout.cp == 1
    useless = {"sequence_parallel": layout.tp == 1, "schedule": layout.pp == 1, DATA_PARALLEL: alone}
    return any(no_effect and not one.is_first(name) for name, no_effect in useless.items()) or is_repeated(one.point)


def _price(one: Candidate) -> bool:
    budget = one.space.network_budget
    if budget is None:
        return False
    if one.network_price is None:
        fix = "write what links cost under 'price' in the topology's file"
        raise OptionError("the topology has no prices", where="--network-budget", fix=fix)
    return one.network_price > budget


RULES: tuple[Rule, ...] = (
    Rule("gpus", "dp x tp x pp x cp is the number of GPUs, which the topology has", _gpus, required=True),
    Rule("batch", "the global batch divides into the micro-batches of the replicas", _batch, required=True),
    Rule("virtual", f"several virtual stages need a pipeline, and the schedule {INTERLEAVED}", _virtual, required=True),
    Rule("stage", f"the schedule {INTERLEAVED} needs 2 virtual stages or more, unlike {PLAIN}", _one_stage, required=True),
    Rule("groups", f"the schedule {INTERLEAVED} needs a multiple of pp micro-batches", _groups, required=True),
    Rule("price", "the network costs no more than its budget", _price, required=True),
    Rule("heads", "tp divides the heads of attention", _heads),
    Rule("vocabulary", "tp divides the vocabulary", _vocabulary),
    Rule("layers", "the stages divide the layers, with or without the embedding and the loss as one each", _layers),
    Rule("sequence", "twice cp divides the sequence", _sequence),
    Rule("experts", "ep divides the experts, and the ranks that see other data", _experts),
    Rule("node", "tp is within a node", _node),
    Rule("same", "an option without effect has its first value, or the same step would be a point again", _same),
)  # fmt: skip
_OPTIONAL = tuple(rule.name for rule in RULES if not rule.required)


def rules_without(names: Iterable[str], where: str = "--without-rule") -> tuple[Rule, ...]:
    """Return the rules but for some, by name. Raises ``OptionError`` for one that does not exist or is required."""
    required = {rule.name: rule for rule in RULES if rule.required}
    for name in names:
        if name in required:
            fix = (
                "give no --network-budget"
                if name == "price"
                else f"those that can be left out are {', '.join(_OPTIONAL)}"
            )
            raise OptionError(f"'{name}' is a rule for all points: {required[name].text}", where=where, fix=fix)
        if name not in _OPTIONAL:
            raise OptionError(f"there is no rule '{name}' to leave out", where=where, fix=nearest(name, _OPTIONAL))
    return tuple(rule for rule in RULES if rule.name not in {*names})


def broken_rule(space: Space, point: Point, rules: Iterable[Rule]) -> Rule | None:
    """Return the first rule that a point breaks; None for a valid point."""
    candidate = Candidate.of(space, point)
    return next((rule for rule in rules if rule.broken(candidate)), None)


@dataclass(frozen=True, slots=True)
class Validity:
    """The valid points of a space, in its order, and those that rules exclude, counted by the rule's name."""

    points: int
    valid: tuple[Point, ...]
    invalid: Mapping[str, int]


def validity_of(space: Space) -> Validity:
    """Return which points of a space are valid. Raises ``OptionError`` where none is."""
    rules, invalid, valid = rules_without(space.without_rules), Counter[str](), list[Point]()
    for point in space.points():
        rule = broken_rule(space, point, rules)
        if rule is None:
            valid.append(point)
        else:
            invalid[rule.name] += 1
    if not valid:
        raise _none_valid(invalid)
    return Validity(len(space), tuple(valid), dict(invalid.most_common()))


def _none_valid(invalid: Counter[str]) -> OptionError:
    shown = "; ".join(_counted(invalid))
    optional = [name for name, _ in invalid.most_common() if name in _OPTIONAL and name != "same"]
    fix = "vary over other values" + (f", or give --without-rule {optional[0]}" if optional else "")
    return OptionError(f"no point of the space is valid: {shown}", where="search", fix=fix)


def _counted(invalid: Counter[str]) -> Iterator[str]:
    texts = {rule.name: rule.text for rule in RULES}
    for name, count in invalid.most_common():
        yield f"{count} break the rule '{name}' ({texts[name]})"
