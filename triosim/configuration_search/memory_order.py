"""Which points need no more memory than another, so that where they do not fit, neither does that one.

Along each of these axes, all else equal, the memory of a step does not shrink from value to value:

- ``recompute``: full, selective, none. What is recomputed keeps its inputs, as a step without recomputation does;
- ``data_parallel``: ``zero1``, ``ddp``. The optimizer's states are shared out, and one bucket is held instead of all;
- ``sequence_parallel``: with it, norms and residuals are kept in parts;
- ``micro_batch_size``, and ``micro_batches`` in multiples of the pipeline from the most on: a pipeline holds as many
  micro-batches, of fewer samples. That is so where one runs while the gradients of another are there, and where not all are
  in flight: a step of few micro-batches may need less than one of more.

Roundings aside, for which a point must be short of memory by more than the margin. Points that need least come first, so that
most that do not fit are never planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.point import Point, Value
from triosim.configuration_search.spaces.layout import DATA_PARALLEL, multiple
from triosim.configuration_search.spaces.space import INTERLEAVED, PLAIN, Space

#: The values of an axis that say how much memory is needed, those that need least first.
_CHAINS: Mapping[str, tuple[Value, ...]] = {
    DATA_PARALLEL: ("zero1", "ddp"),
    "recompute": ("full", "selective", "none"),
    "sequence_parallel": (True, False),
}
#: How the reason begins why a point that was not planned does not fit.
IMPLIED = "needs as much as"
#: The axes that divide a batch into more or fewer micro-batches.
_BATCHES = ("micro_batch_size", "micro_batches")


def weighing_order(space: Space, points: Iterable[Point]) -> list[Point]:
    """Return points so that those which need less memory come first, and those which share shards or stages together."""
    recompute, data = _chain(space, "recompute"), _chain(space, DATA_PARALLEL)

    def key(point: Point) -> tuple[object, ...]:
        recomputed, divided = _rank(recompute, point.get("recompute")), space.layout(point).pp
        return (*shards(space, point), recomputed, divided, _rank(data, point.get(DATA_PARALLEL)))

    return sorted(points, key=key)


def shards(space: Space, point: Point) -> tuple[object, ...]:
    """Return what the shards of a point's operators follow from, those that need less memory first."""
    layout = space.layout(point)
    samples = layout.of_batch(per_micro_batch=True) or 0
    of_sequence = _rank(_chain(space, "sequence_parallel"), point.get("sequence_parallel"))
    named = [repr(point.get(name)) for name in ("gpu", "seq")]
    return (*named, samples, of_sequence, layout.tp, layout.cp, layout.ep)


def implied(space: Space, point: Point, known: Mapping[str, Outcome]) -> Outcome | None:
    """Return that a point does not fit, since one that needs no more memory does not; None where none is known."""
    for smaller in smaller_points(space, point):
        outcome = known.get(smaller.key)
        if outcome is not None and outcome.memory is not None and not outcome.memory.fits():
            reason = f"{IMPLIED} {smaller}, which does not fit, or more"
            return Outcome(point.key, "out_of_memory", reason, memory=outcome.memory)
    return None


def smaller_points(space: Space, point: Point) -> Iterator[Point]:
    """Yield the points that differ in one axis and need no more memory."""
    for axis in space.axes:
        chain, value = _chain(space, axis.name), point.get(axis.name)
        if value in chain and (axis.name not in _BATCHES or _holds_a_pipeline(space, point)):
            yield from (point.with_value(axis.name, other) for other in chain[: chain.index(value)])


def _holds_a_pipeline(space: Space, point: Point) -> bool:
    """Whether some micro-batches follow when as many are in flight as the pipeline ever holds."""
    layout = space.layout(point)
    micro_batches = layout.of_batch(per_micro_batch=False) or 0
    return micro_batches >= 2 * layout.pp and space.schedule(point, layout) in (PLAIN, INTERLEAVED)


def _chain(space: Space, name: str) -> tuple[Value, ...]:
    """Return the values of an axis in the order of the memory that they need; none for an axis that does not say."""
    axis = space.axis(name)
    values = () if axis is None else axis.values
    if name == "micro_batch_size":
        return tuple(sorted(values, key=lambda value: int(value) if not isinstance(value, str) else 0))
    if name == "micro_batches":
        multiples = {value: found[0] for value in values if (found := multiple(value)) and found[1] == "pp"}
        return tuple(sorted(multiples, key=lambda value: -multiples[value]))
    return tuple(value for value in _CHAINS.get(name, ()) if value in values)


def _rank(chain: tuple[Value, ...], value: Value | None) -> int:
    return chain.index(value) if value in chain else len(chain)
