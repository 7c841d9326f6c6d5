"""The layout of a point: how it divides the GPUs among parallelisms, and the global batch among replicas and micro-batches."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from triosim.config import RunConfig
from triosim.configuration_search.point import Point, Value
from triosim.extrapolators.core.parallelisms import named_parallelisms

#: The axes of a space that are sizes of parallelisms; ``dp`` is that of the data parallelism that ``data_parallel`` names.
SIZES = ("tp", "cp", "pp", "ep", "dp")
#: The axis that names the data parallelism.
DATA_PARALLEL = "data_parallel"
#: A number of micro-batches, say, that follows from a size: ``2*pp``.
_MULTIPLE = re.compile(rf"(\d+)\s*\*\s*({'|'.join(SIZES)})")
#: The parallelisms that take a place in a layout by their names; another one is the data parallelism.
_MODEL_AXES = ("tp", "cp", "pp", "ep")


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of a point's parallelisms, and the samples that each part of its step takes.

    ``data`` is the parallelism of the replicas, and ``dp`` how many there are. ``gpus`` are those that are asked for; where
    ``dp`` follows from them, it is rounded down, so that ``ranks`` are fewer if the sizes do not divide them. What is not said
    of the batch is None.
    """

    gpus: int
    tp: int
    cp: int
    pp: int
    ep: int
    dp: int
    data: str
    global_batch_size: int | None
    micro_batches: int | None
    micro_batch_size: int | None
    virtual_stages: int

    @property
    def ranks(self) -> int:
        """The product of the sizes; ep divides the ranks that see other data, and adds none."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def stages(self) -> int:
        """The stages of the pipeline, those that one rank runs in turn included."""
        return self.pp * self.virtual_stages

    @property
    def parallel(self) -> str:
        """The layout as ``--parallel`` takes it."""
        sizes = {name: getattr(self, name) for name in _MODEL_AXES}
        others = [f"{name}={size}" for name, size in sizes.items() if size > 1]
        return ",".join((f"{self.data}={self.dp}", *others))

    def of_batch(self, per_micro_batch: bool) -> int | None:
        """Return a micro-batch's samples, or else the number of micro-batches; None where it is not whole or not known."""
        given = self.micro_batches if per_micro_batch else self.micro_batch_size
        if given is None or self.global_batch_size is None:
            return self.micro_batch_size if per_micro_batch else self.micro_batches
        parts = self.dp * given
        return self.global_batch_size // parts if self.global_batch_size % parts == 0 else None


def layout_of(point: Point, base: RunConfig, gpus: int) -> Layout:
    """Return the layout of a point; ``base`` says what the point does not.

    The topology's ``gpus`` are taken where neither says how many, nor the size of data parallelism.
    """
    given = dict(point.settings)
    named = {one.shown: one.size for one in named_parallelisms(given.get("parallel", base.parallel))}
    data = [name for name in named if name not in (*_MODEL_AXES, "single")]
    sizes = {name: _size(given.get(name, named.get(name))) for name in _MODEL_AXES}
    model_ranks = math.prod(sizes[name] for name in ("tp", "cp", "pp"))
    size = given.get("dp", next((named[name] for name in data), None))
    asked = given.get("gpus", base.gpus)
    total = asked if isinstance(asked, int) else gpus if size is None else None
    dp = size if isinstance(size, int) else max((total or model_ranks) // model_ranks, 1)
    sizes["dp"] = dp

    def of_batch(name: str) -> int | None:
        value = given.get(name, getattr(base, name))
        return None if value is None else resolved(value, sizes)

    return Layout(
        gpus=total or model_ranks * dp,
        **sizes,
        data=str(given.get(DATA_PARALLEL, data[0] if data else "ddp" if base.training else "dp")),
        global_batch_size=of_batch("global_batch_size"),
        micro_batches=of_batch("micro_batches"),
        micro_batch_size=of_batch("micro_batch_size"),
        virtual_stages=of_batch("virtual_stages") or (2 if _schedule(given, base) == "interleaved" else 1),
    )


def resolved(value: Value, sizes: Mapping[str, int]) -> int:
    """Return a whole number, or the multiple of a size: ``2*pp``."""
    found = multiple(value)
    return found[0] * sizes[found[1]] if found else int(value)


def multiple(value: Value) -> tuple[int, str] | None:
    """Return the factor and the size of a multiple such as ``2*pp``; None for any other value."""
    match = _MULTIPLE.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else (int(match[1]), match[2])


def _schedule(given: Mapping[str, Value], base: RunConfig) -> object:
    return given.get("schedule", base.schedule)


def _size(value: Value | None) -> int:
    return value if isinstance(value, int) else 1
