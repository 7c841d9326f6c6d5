"""``compare``: simulates one trace on a number of GPUs with every strategy.

Strategies are compared by samples per second, because they do not all take the same batch: data parallelism gives each
GPU the trace's batch, tensor and pipeline parallelism divide the work of one. The speed-up is that over one GPU's, the
efficiency the speed-up over the number of GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from triosim import plugins
from triosim.compute.pricing import operator_times
from triosim.config import COMMON, RunConfig, readers, refuse_without_effect, takes_text
from triosim.config.run_config import option_named
from triosim.engine import Progress
from triosim.errors import TriosimError, printable
from triosim.extrapolators.core.recompute import check_policy
from triosim.extrapolators.pipeline.schedule_choice import chosen_schedule
from triosim.networks.construction import algorithm_options, network_options
from triosim.output_files import PathLike
from triosim.pipeline.planning import refuse_unknown
from triosim.pipeline.reading import Subject, TraceLike, read, with_batch
from triosim.pipeline.system import check_condition_values
from triosim.results.command import command_of
from triosim.results.report import Reportable
from triosim.results.result import Result
from triosim.results.values import mean_of_ranks
from triosim.simulation import simulate_config

SCHEMA = "triosim-comparison/1"
#: What strategies are compared with.
ONE_GPU = "one GPU"

#: The sizes of the inner dimension (tensor or pipeline) of the combinations that are tried.
INNER = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy: how the step is parallelised (``--parallel``), and the options of ``simulate`` that belong to it.

    The ``label`` is what to type after ``-p``, such as ``pp=8 --micro-batches 32``, or the ``name`` of a job that is compared.
    """

    parallel: str
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    @property
    def label(self) -> str:
        """The strategy as it is typed, or its name."""
        typed = [f"{option_named(name).where} {value}" for name, value in self.options.items()]
        return self.name or " ".join([self.parallel, *typed])


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """A strategy with its result, or with the reason why it cannot run."""

    strategy: Strategy
    result: Result | None
    reason: str = ""
    speed_up: float | None = None
    efficiency: float | None = None

    @property
    def label(self) -> str:
        """The strategy's label."""
        return self.strategy.label

    @property
    def throughput(self) -> float:
        """Samples per second, of several draws those of the median step; 0 for a strategy that cannot run."""
        if self.result is None:
            return 0.0
        drawn = self.result.data.draws
        return self.result.throughput_samples_per_s * (self.result.step_time_s / drawn.p50_s if drawn else 1.0)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Reportable):
    """The results of all strategies, the fastest first, and those that cannot run at the end; ``trace`` is their subject.

    Speed-ups are those over the ``baseline``; efficiencies divide them by how many times its GPUs there are.
    """

    subject = "comparison"
    title: str
    gpus: int
    runs: tuple[StrategyResult, ...]
    trace: str = "TRACE"
    baseline: str = ONE_GPU

    @property
    def differs_in_gpus(self) -> bool:
        """Whether jobs that are compared run on different numbers of GPUs."""
        return self.baseline != ONE_GPU and len({run.result.world for run in self.runs if run.result is not None}) > 1

    def label_of(self, run: StrategyResult) -> str:
        """Return what a picture calls a strategy: its label, with the GPUs where these differ."""
        if run.result is None or not self.differs_in_gpus:
            return run.label
        return f"{run.label} on {run.result.world:,} GPU{'s' if run.result.world > 1 else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON holds it; what cannot run has a reason and no figures."""
        return {
            "schema": SCHEMA,
            "title": self.title,
            "gpus": self.gpus,
            "runs": [_row(run, self.trace) for run in self.runs],
        }

    def to_json(self) -> str:
        """Return the comparison as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def plot(self, path: PathLike) -> None:
        """Draw the strategies' step times and speeds as bars."""
        self.write("comparison-plot", path)

    def __repr__(self) -> str:
        ran = [run for run in self.runs if run.result is not None]
        title, first = printable(self.title), ran[0].label
        return f"<Comparison of {title}: {len(ran)} strategies, {first} the fastest; print it for the table>"


def strategies(gpus: int, counts: Iterable[int] | None = None) -> Iterator[Strategy]:
    """Yield the strategies for a number of GPUs, pipelines with each of some numbers of micro-batches."""
    yield Strategy("single")
    if gpus == 1:
        return
    for name in ("dp", "ddp", "fsdp", "zero1"):
        yield Strategy(f"{name}={gpus}")
    for style in ("gather", "megatron"):
        yield Strategy(f"tp={gpus}", {"tp_style": style})
    for micro_batches in _usual_counts(gpus) if counts is None else counts:
        yield Strategy(f"pp={gpus}", {"micro_batches": micro_batches})
    for inner in INNER:
        if gpus % inner == 0 and gpus > inner:
            outer = gpus // inner
            yield Strategy(f"dp={outer},tp={inner}")
            yield Strategy(f"dp={outer},pp={inner}")


def _usual_counts(gpus: int) -> tuple[int, ...]:
    return 1, gpus, 4 * gpus


def _counts(gpus: int, subject: Subject, config: RunConfig) -> Iterable[int]:
    """Return the numbers of micro-batches that a batch is divided into: where one is given, only such that divide it."""
    given = with_batch(config) if subject.described else config
    batch = given.global_batch_size or given.batch_size  # of the one replica that a pipeline alone is
    if given.micro_batch_size is not None:
        return _usual_counts(gpus) if batch is None else (max(batch // given.micro_batch_size, 1),)
    batch = batch or subject.trace.batch_size
    return dict.fromkeys(max(n for n in range(1, most + 1) if batch % n == 0) for most in _usual_counts(gpus))


def compare(
    trace: TraceLike,
    gpus: int,
    *,
    started: Callable[[Strategy], None] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Comparison:
    """Simulate every strategy on ``gpus`` GPUs; ``options`` are those of ``simulate``, each for the strategies that read it.

    ``started`` is told of each strategy before it runs. Raises ``TriosimError`` where none can run, for whatever is wrong
    with the trace or the topology, and for an option with which none can that reads it.
    """
    config = RunConfig.of(**options)
    refuse_without_effect(config, "compare")
    return compare_config(trace, COMMON["gpus"].parse(gpus, "gpus") or 0, config, started, progress)


def compare_config(
    trace: TraceLike,
    gpus: int,
    config: RunConfig,
    started: Callable[[Strategy], None] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Do what ``compare`` does, with the options in one value."""
    subject = read(trace, config.replaced(parallel="single", gpus=None))
    if subject.streams is not None:
        what = "task streams run as they were captured: there are no strategies to compare"
        raise TriosimError(what, where=subject.path, fix="give a trace of one GPU")
    if gpus < 1:
        raise TriosimError(f"{gpus} GPUs", where="--gpus", fix="ask for 1 or more")
    _check_options(config, gpus)
    _check_values(config)
    if config.is_given("schedule"):
        chosen_schedule(config).micro_batches(gpus)  # which a table that cannot be read does not say

    def run(strategy: Strategy, chosen: RunConfig = config) -> StrategyResult:
        try:
            result = simulate_config(subject.source, _config_of(strategy, gpus, chosen), progress)
        except TriosimError as error:
            return StrategyResult(strategy, None, str(error))
        return StrategyResult(strategy, result)

    found: list[StrategyResult] = []
    for strategy in strategies(gpus, _counts(gpus, subject, config)):
        if started is not None:
            started(strategy)
        found.append(run(strategy))
    if all(one.result is None for one in found):
        raise TriosimError(f"no strategy can run: {found[min(1, len(found) - 1)].reason}")  # one GPU is the first
    for one in _prevented(found, config, run):
        raise TriosimError(one.reason)
    runs = sorted(_measured(found), key=lambda one: -one.throughput)
    gpu = next(one.result.inputs["trace"]["gpu"] for one in runs if one.result is not None)
    return Comparison(f"{subject.trace.model} on {gpus} x {gpu}", gpus, tuple(runs), str(subject.path or "TRACE"))


def _check_options(config: RunConfig, gpus: int) -> None:
    """Refuse what no strategy reads, and a value that cannot be, before the first of them runs."""
    names = set().union(*map(_names, strategies(gpus)))
    known = _options_by_name(names, config)
    known.update(network_options(config.network))
    if config.collective is not None:
        known.update(algorithm_options(config.collective))
    if config.compute_model is not None:
        known.update(plugins.option_names(plugins.find("compute_models", config.compute_model)))
    refuse_unknown(config, known)


def _check_values(config: RunConfig) -> None:
    """Refuse conditions, a policy of recomputation and a file of operator times that cannot be."""
    check_policy(config.recompute)
    check_condition_values(config.conditions)
    if config.operator_times is not None:
        operator_times.load(config.operator_times)


def _prevented(
    runs: Sequence[StrategyResult], config: RunConfig, run: Callable[[Strategy, RunConfig], StrategyResult]
) -> Iterator[StrategyResult]:
    """Yield strategies that an option prevents: none that reads the option can run, and this one runs without it."""
    for name in config.parts:
        if config.is_given(name):
            left = replace(config, parts={key: value for key, value in config.parts.items() if key != name})
            yield from _none_runs([one for one in runs if _names(one.strategy) & {*readers(name)}], left, run)
    for name in config.options:
        left = replace(config, options={key: value for key, value in config.options.items() if key != name})
        yield from _none_runs(
            [one for one in runs if name in _options_by_name(_names(one.strategy), config)], left, run
        )


def _none_runs(
    having: Sequence[StrategyResult], left: RunConfig, run: Callable[[Strategy, RunConfig], StrategyResult]
) -> Iterator[StrategyResult]:
    if not any(one.result for one in having):
        yield from (one for one in having if run(one.strategy, left).result is not None)


def _config_of(strategy: Strategy, gpus: int, config: RunConfig) -> RunConfig:
    """Return the configuration of a strategy: without the options that other strategies read, and this one does not."""
    names = _names(strategy)
    others = _options_by_name(set().union(*map(_names, strategies(gpus))), config)
    others -= _options_by_name(names, config)
    mine = replace(
        config,
        parts={name: value for name, value in config.parts.items() if names & {*readers(name)}},
        options={name: value for name, value in config.options.items() if name not in others},
    )
    return mine.replaced(
        parallel=strategy.parallel, gpus=1 if strategy.parallel == "single" else gpus, **strategy.options
    )


def _names(strategy: Strategy) -> set[str]:
    return {part.partition("=")[0] for part in strategy.parallel.split(",")}


def _options_by_name(names: set[str], config: RunConfig) -> set[str]:
    """Return the names of the options that parallelisms read from ``--option``. Raises ``OptionError`` for what cannot be."""
    declared = (option for name in names for option in plugins.load("extrapolators", name)(1, config).read_options)
    return {option.key or option.name for option in declared if takes_text(option)}


def _measured(runs: list[StrategyResult]) -> Iterator[StrategyResult]:
    """Yield the runs with their speed-up over the first, which is one GPU's."""
    alone = runs[0]
    for run in runs:
        if run.result is None or alone.result is None:
            yield run
        else:
            speed_up = run.throughput / alone.throughput
            yield StrategyResult(run.strategy, run.result, "", speed_up, speed_up / run.result.world)


def _row(run: StrategyResult, trace: str) -> dict[str, Any]:
    row: dict[str, Any] = {"label": run.label, "parallel": run.strategy.parallel, **run.strategy.options}
    if run.result is None:
        return {**row, "reason": run.reason}
    data = run.result.data
    mean = mean_of_ranks(data.ranks, 0)
    return {
        **row,
        "gpus": len(data.ranks),
        "global_batch_size": data.global_batch_size,
        "step_time_s": data.step_time_s,
        "throughput_samples_per_s": run.throughput,
        "draws": None if data.draws is None else asdict(data.draws),
        "compute_s": mean.compute_s,
        "exposed_communication_s": mean.exposed_communication_s,
        "exposed_waiting_s": mean.exposed_waiting_s,
        "exposed_host_s": mean.exposed_host_s,
        "idle_s": mean.idle_s,
        "peak_memory_bytes": max((row.peak_bytes for row in data.memory), default=None),
        "mfu": None if data.metrics is None else data.metrics.mfu,
        "cost": None if data.metrics is None else data.metrics.cost,
        "speed_up": run.speed_up,
        "efficiency": run.efficiency,
        "command": command_of(run.result, trace),
        "notes": list(data.notes),
    }
