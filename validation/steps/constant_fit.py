"""Fits of the package's constants to measured steps, with each source of them left out in turn.

    python -m validation.steps.constant_fit energy hopper|ampere [ROWS]
    python -m validation.steps.constant_fit launch eager|compiled|megatron|te-fp8|deepspeed [ROWS]
    python -m validation.steps.constant_fit call deepspeed [ROWS]
    python -m validation.steps.constant_fit experts grouped [ROWS]
    python -m validation.steps.constant_fit alignment one [ROWS]

``energy`` is that of a FLOP of an architecture (``triosim.gpus.energy.HALF``), ``launch`` what a launch costs the host in a
software stack (``triosim/config/stacks.json``), ``call`` that of a communication alone, ``experts`` how much longer products of
groups take than one of all rows (``triosim.compute.models.grouped_products``), ``alignment`` how much longer a product takes
whose rows are not on 16-byte boundaries (``triosim.compute.models.alignment``). Rows are predicted by their plain commands, in
processes that take another value. Between these the logarithm of a step's time is a straight line in that of the
constant. Sources count alike, however many rows they have: those of an energy are tables, the others model sizes and GPUs of a
table; of these, all of a model or of a GPU are left out together, too. ROWS are those of each table, evenly spaced (12). Rows
that change by less than 2% between the smallest and the largest value say nothing of it, and are not predicted with the others.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, MutableMapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from triosim.compute.models import alignment, grouped_products
from triosim.config.stacks import STACKS, Stack
from triosim.errors import TriosimError
from triosim.gpus import energy
from triosim.models.catalogue import usual_stack
from triosim.models.description import find_model
from validation.steps import formats
from validation.steps.command import Command
from validation.steps.rows import Format, Row, spaced

#: Steps with more features than this in a micro-batch of a GPU have long kernels, which say nothing of launches.
_MOST_FEATURES = 2**25
#: The least that the largest value changes a row by, over the smallest.
_LEAST_CHANGE = 0.02

#: Where the name of a source (table, model, GPU) has what may be left out of a fit with all its sources, from the end.
_PARTS = {"model": -2, "GPU": -1}

Errors = npt.NDArray[np.float64]  # log(predicted / measured), of (factors, rows)
RowKey = tuple[str, int, str]  # the source, line and label of a row


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the package: its value there in a unit, the tables that say something of it, and how it is changed.

    ``factors`` times its value are tried. ``source`` names that of a row; ``chosen``: whether a row has to do with it.
    """

    value: float
    unit: str
    tables: tuple[str, ...]
    factors: tuple[float, ...]
    multiply: Callable[[float], None]
    source: Callable[[str, Row], str] = lambda table, _: table
    chosen: Callable[[Format, Row], bool] = lambda _, row: row.quantity == "step time"


def energy_of(architecture: str) -> Constant:
    """Return the energy of a FLOP of an architecture."""
    known = cast("MutableMapping[str, energy.Energy]", energy.HALF)
    tables = {
        "hopper": ("torchtitan", "torchsim-sharded", "one-gpu"),
        "ampere": ("megatron-one-node", "megatron-nodes", "megatron-selective"),
    }[architecture]

    def multiply(factor: float) -> None:
        known[architecture] = replace(known[architecture], joules=factor * known[architecture].joules)

    return Constant(known[architecture].joules * 1e12, "pJ", tables, (0.8, 0.9, 1.0, 1.1, 1.2), multiply)


def launch_of(stack: str, fields: Sequence[str] = ("launch_seconds", "call_seconds")) -> Constant:
    """Return what a launch costs the host in a stack, in some of its fields; its value is the first one's."""
    known = cast("MutableMapping[str, Stack]", STACKS)
    tables = {
        "eager": ("timm", "mpt", "one-gpu", "torchsim-sharded"),
        "compiled": ("torchtitan", "published"),
        "megatron": ("automodel", "megatron-bridge", "megatron-lm", "fp32-one-node", "megatron-selective"),
        "te-fp8": ("megatron-bridge", "nemo"),
        "deepspeed": ("megatron-one-node", "bigscience"),
    }[stack]

    def multiply(factor: float) -> None:
        one = known[stack]
        changed = {name: factor * getattr(one, name) for name in fields}
        known[stack] = replace(one, **changed)

    def chosen(kind: Format, row: Row) -> bool:
        return row.quantity in ("step time", "training step") and _stack_of(kind, row) == stack and _is_small(kind, row)

    factors = (0.25, 0.5, 1.0, 2.0, 4.0)
    return Constant(getattr(STACKS[stack], fields[0]) * 1e6, "us", tables, factors, multiply, _model_of_table, chosen)


def call_of(stack: str) -> Constant:
    """Return what a communication's launch costs the host in a stack."""
    return launch_of(stack, ("call_seconds",))


def grouped_products_of(_: str) -> Constant:
    """Return how much longer products of groups take than one of all rows."""
    shipped = grouped_products.SLOWDOWN

    def multiply(factor: float) -> None:
        grouped_products.SLOWDOWN = factor * shipped

    tables, factors = ("automodel", "megatron-bridge"), (0.6, 0.8, 1.0, 1.25, 1.5)
    return Constant(shipped, "times", tables, factors, multiply, _model_of_table)


def alignment_of(_: str) -> Constant:
    """Return how much longer one product takes whose rows are not on 16-byte boundaries."""
    shipped = alignment.ONE_PRODUCT

    def multiply(factor: float) -> None:
        alignment.ONE_PRODUCT = factor * shipped

    tables, factors = ("megatron-one-node", "published"), (0.3, 0.6, 0.8, 1.0, 1.25, 1.7)
    return Constant(shipped, "times", tables, factors, multiply, _model_of_table)


KINDS: dict[str, Callable[[str], Constant]] = {
    "energy": energy_of,
    "launch": launch_of,
    "call": call_of,
    "experts": grouped_products_of,
    "alignment": alignment_of,
}


def _model_of_table(table: str, row: Row) -> str:
    return f"{table} {row.model} {row.gpu}"


def _is_small(kind: Format, row: Row) -> bool:
    """Whether a row's kernels may be shorter than their launches; of an image model nothing is known.

    Pipelines, whose steps take minutes to predict, are left out.
    """
    command = kind.command(row)
    if not isinstance(command, Command):
        return True
    said = command.arguments
    model = find_model(said[0])

    def option(name: str, default: int) -> int:
        return int(said[said.index(name) + 1]) if name in said else default

    if "--schedule" in said:
        return False
    axes = dict(re.findall(r"(\w+)=(\d+)", said[said.index("--parallel") + 1] if "--parallel" in said else ""))
    samples = option("--micro-batch-size", option("--batch-size", 1))
    features = samples * option("--seq", getattr(model, "sequence", 0)) * getattr(model, "hidden", 0)
    return features <= _MOST_FEATURES * int(axes.get("tp", 1)) * int(axes.get("cp", 1))


def _stack_of(kind: Format, row: Row) -> str:
    """Return the stack of a row's command; without one, a script was captured."""
    command = kind.command(row)
    if not isinstance(command, Command):
        return "eager"
    said = command.arguments
    return said[said.index("--stack") + 1] if "--stack" in said else usual_stack(find_model(said[0])).name


def errors_of_table(
    kind: str, name: str, table: str, factor: float, count: int, asked: Collection[RowKey] | None = None
) -> dict[RowKey, float]:
    """Return log(predicted / measured) of a table's rows with another constant; of the rows that are ``asked`` for, or all.

    For a process of its own.
    """
    constant = KINDS[kind](name)
    constant.multiply(factor)
    found: dict[RowKey, float] = {}
    for form, title, rows in formats.shared(table, refuse=lambda *_: None):
        quick = [row for row in rows if form.is_quick(row) and constant.chosen(form, row)]
        for row in spaced(quick, count):
            key = constant.source(title, row), row.line, row.label
            if asked is not None and key not in asked:
                continue
            try:
                off = float(np.log(form.predicted(row).value / row.measured))
            except TriosimError:
                off = float("nan")
            found[key] = off
    return found


def errors_of(kind: str, name: str, constant: Constant, count: int) -> dict[str, Errors]:
    """Return the errors of the rows that the constant moves, by source: (factors, rows)."""
    ends, between = constant.factors[:: len(constant.factors) - 1], constant.factors[1:-1]
    with ProcessPoolExecutor(2, get_context("spawn"), max_tasks_per_child=1) as pool:

        def predicted(table: str, factors: Sequence[float], keys: Collection[RowKey] | None) -> list[Any]:
            return [pool.submit(errors_of_table, kind, name, table, one, count, keys) for one in factors]

        first = {table: predicted(table, ends, None) for table in constant.tables}
        moved: dict[str, list[RowKey]] = {}
        for table, asked in first.items():
            low, high = (one.result() for one in asked)
            moved[table] = [key for key in low if abs(high[key] - low[key]) >= _LEAST_CHANGE]
        rest = {table: predicted(table, between, keys) for table, keys in moved.items() if keys}
        found: dict[str, list[list[float]]] = {}
        for table, asked in rest.items():
            low, high = (one.result() for one in first[table])
            every = [low, *(one.result() for one in asked), high]
            for key in moved[table]:
                found.setdefault(key[0], []).append([one[key] for one in every])
    return {source: np.array(rows).T for source, rows in found.items()}


def fitted(sources: dict[str, Errors], factors: Sequence[float]) -> float:
    """Return the factor with the least mean error of the sources; ``factors`` are those that were tried."""
    between = np.geomspace(factors[0], factors[-1], 161)
    means = [np.mean([mean_error(errors, factors, one) for errors in sources.values()]) for one in between]
    return float(between[int(np.argmin(means))])


def mean_error(errors: Errors, factors: Sequence[float], factor: float) -> float:
    """Return the mean |predicted / measured - 1| of a source's rows with a factor."""
    at = [np.interp(np.log(factor), np.log(factors), row) for row in errors.T]
    return float(np.mean(np.abs(np.expm1(at))))


def main(kind: str, name: str, count: int) -> None:
    """Print the value that fits best, and each source's error in the fit and where it was left out."""
    constant = KINDS[kind](name)
    sources = errors_of(kind, name, constant, count)
    if not sources:
        print(
            f"{name}: {constant.value:g} {constant.unit} in the package; no row of {', '.join(constant.tables)} says more"
        )
        return
    best = fitted(sources, constant.factors)
    print(f"{name}: {constant.value:g} {constant.unit} in the package, {best * constant.value:.2f} fitted to all")
    off = {"package": [], "fitted": [], "left out": []}  # type: dict[str, list[float]]
    alone = {source: fitted({source: errors}, constant.factors) for source, errors in sources.items()}
    for source, errors in sources.items():
        others = {other: one for other, one in sources.items() if other != source}
        without = fitted(others or sources, constant.factors)
        for how, factor in (("package", 1.0), ("fitted", best), ("left out", without)):
            off[how].append(mean_error(errors, constant.factors, factor))
        print(
            f"{source}: {errors.shape[1]} rows, {off['package'][-1]:.1%} off with the package's, "
            f"{off['fitted'][-1]:.1%} fitted, {off['left out'][-1]:.1%} left out ({without * constant.value:.2f}), "
            f"{alone[source] * constant.value:.2f} fitted to it alone"
        )
    apart = np.mean([abs(factor - 1.0) for factor in alone.values()])
    print(f"values fitted to one source each differ from the package's by {apart:.0%} on average")
    print("all: " + ", ".join(f"{np.mean(errors):.1%} {how}" for how, errors in off.items()))
    for what, place in _PARTS.items() if constant.source is _model_of_table else ():
        left = left_out(sources, constant.factors, place)
        if left:
            said = ", ".join(
                f"{part} {error:.1%} ({best * constant.value:.2f})" for part, (best, error) in left.items()
            )
            print(f"{what}s left out: {np.mean([error for _, error in left.values()]):.1%}; {said}")


def left_out(sources: dict[str, Errors], factors: Sequence[float], place: int) -> dict[str, tuple[float, float]]:
    """Return the factor that is fitted without the sources of each model or GPU, and the mean error of these sources with it.

    ``place`` is where a source's name, from the end, has it; nothing where that leaves no other source.
    """
    parts: dict[str, list[str]] = {}
    for source in sources:
        parts.setdefault(source.rsplit(" ", 2)[place], []).append(source)
    found = {}
    for part, own in parts.items():
        others = {name: errors for name, errors in sources.items() if name not in own}
        if others:
            best = fitted(others, factors)
            found[part] = best, float(np.mean([mean_error(sources[one], factors, best) for one in own]))
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 12)
