"""The first step of a simulation, ``read``: reads the trace or task streams of a run, and checks that the options fit them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from triosim import plugins
from triosim.chakra.workload import is_prefix
from triosim.config import COMMON, RunConfig
from triosim.config.run_config import option_named
from triosim.errors import OptionError, TraceError
from triosim.extrapolators.core.parallelisms import Parallelisms, gpus_named_by
from triosim.extrapolators.core.plan import batches
from triosim.input_files.pipes import seekable
from triosim.pipeline.graphs import graph_streams, refuse_without_graphs
from triosim.pipeline.own_models import with_own_models
from triosim.trace import Trace
from triosim.trace import formats as trace_formats
from triosim.trace.task_streams import TaskStreams

TraceLike = Trace | TaskStreams | str | PathLike[str]


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a simulation: the trace of a step on one GPU, or the task streams of a captured distributed step.

    ``path`` is the file that it was read from, or the name of the model that was ``described``. ``gpus`` is how many GPUs are
    asked for; None leaves it to the topology.
    """

    content: Trace | TaskStreams
    gpus: int | None
    path: str | None = None
    described: bool = False

    @property
    def trace(self) -> Trace:
        """The trace; of task streams, that of the first rank, by which the others are named."""
        return self.content if isinstance(self.content, Trace) else self.content.traces[self.content.like[0]]

    @property
    def source(self) -> TraceLike:
        """What to read to simulate it again with other options: a described model is described for them."""
        return self.path if self.described and self.path is not None else self.content

    @property
    def streams(self) -> TaskStreams | None:
        """The task streams; None for a trace of one GPU."""
        return self.content if isinstance(self.content, TaskStreams) else None

    def changed(self, change: Callable[[Trace], Trace]) -> Subject:
        """Return the subject with its trace, or the traces of all captured ranks, changed."""
        if isinstance(self.content, Trace):
            return replace(self, content=change(self.content))
        traces = {rank: change(trace) for rank, trace in self.content.traces.items()}
        return replace(self, content=replace(self.content, traces=traces))


@with_own_models
def read(trace: TraceLike, config: RunConfig) -> Subject:
    """Read what is to be simulated.

    Raises ``OptionError`` for options that it cannot follow, and ``TraceError`` for the trace of one rank of several.
    """
    if not isinstance(trace, (Trace, TaskStreams, str, PathLike)):
        raise OptionError(f"'{trace}' is no trace", where="trace", fix="give a Trace, a path, or the name of a model")
    if not isinstance(trace, (Trace, TaskStreams)):
        trace_formats.check_path(trace)
        trace = seekable(trace)
    path = None if isinstance(trace, (Trace, TaskStreams)) else str(trace)
    content = content_of(trace, config)
    if isinstance(content, TaskStreams):
        _check_options(content, config)
        return Subject(content, content.world, path)
    if any(operator.communication is not None for operator in content.operators):
        raise TraceError(
            "is the trace of one rank of a distributed step",
            where=content.source or None,
            fix="give the task streams of all ranks, or a trace of the step on one GPU",
        )
    return Subject(content, gpus_for(config.parallel, config.gpus), path, is_described(trace, config))


def content_of(trace: TraceLike, config: RunConfig) -> Trace | TaskStreams:
    """Return the trace of a step, read or described, or the task streams of a distributed one."""
    if isinstance(trace, (Trace, TaskStreams)):
        return trace
    trace = seekable(trace)
    if config.trace_format is None and is_prefix(str(trace)):
        return graph_streams(Path(trace), config)
    refuse_without_graphs(config)
    if is_described(trace, config):
        content: Trace = plugins.load("trace_formats", "model").read_configured(str(trace), config, _samples(config))
        return content
    return trace_formats.read(trace, config.trace_format)


def is_described(trace: TraceLike, config: RunConfig) -> bool:
    """Whether it is a model that is described: the path of its config, or its name where no file is called so."""
    if isinstance(trace, (Trace, TaskStreams)) or config.trace_format is not None or is_prefix(str(trace)):
        return False
    place = Path(seekable(trace))
    try:
        # The format of models is known by what it can do: loading it to compare would cost every start 30 ms.
        return hasattr(trace_formats.find(place), "read_configured") if place.exists() else True
    except (OSError, ValueError):  # reading it says why
        return False


def _samples(config: RunConfig) -> int:
    """Return for how many samples a model is described: those of a micro-batch, so that no operator changes its shape."""
    if config.micro_batch_size is not None:
        return config.micro_batch_size
    try:
        parallelisms = Parallelisms.of(config.parallel, gpus_for(config.parallel, config.gpus), config)
        samples, micro_batches = batches(parallelisms, with_batch(config), 1)
    except OptionError:  # it is said where the step is planned, on as many GPUs as there are
        return config.batch_size or 1
    return samples // micro_batches


def with_batch(config: RunConfig) -> RunConfig:
    """Return the configuration for a described model, which has no batch of its own: one sample a micro-batch."""
    said = (config.batch_size, config.global_batch_size, config.micro_batch_size)
    return config.replaced(micro_batch_size=1) if said == (None, None, None) else config


def gpus_for(parallel: str | Mapping[str, int], gpus: int | None) -> int | None:
    """Return how many GPUs are asked for: the option, or the product of the sizes; None leaves it open."""
    if gpus is not None:
        if gpus < 1:
            raise OptionError(f"{gpus} GPUs", where="--gpus", fix="ask for 1 or more")
        if parallel == "single" and gpus > 1:
            raise OptionError(f"'single' is one GPU, not {gpus}", where="--gpus", fix="give --parallel too, ddp say")
        return gpus
    return gpus_named_by(parallel)


def files_of(subject: Subject, config: RunConfig) -> dict[str, str]:
    """Return the files that a run reads, by the names of the options that name them; of a plug-in, the file of its class."""
    named: dict[str, object] = {} if subject.path is None else {"trace": subject.path}
    for name in (*COMMON, *config.parts):
        if option_named(name).kind in ("file", "topology", "part"):
            named[name] = getattr(config, name)
    files = {
        name: Path(plugins.file_of(str(value))) for name, value in named.items() if isinstance(value, (str, PathLike))
    }
    return {name: str(path) for name, path in files.items() if path.exists() and (name == "trace" or path.is_file())}


def _check_options(streams: TaskStreams, config: RunConfig) -> None:
    """Refuse options that change the step itself, which only capturing it again can."""
    where = streams.source or None
    for option in (*COMMON.values(), *map(option_named, config.parts)):
        if option.of_step and config.is_given(option.name):
            raise OptionError(
                f"{option.where} does not go with the task streams of {streams.world} ranks, which run as they were captured",
                where=where,
                fix="leave it out, or capture the script with it",
            )
    if config.gpus not in (None, streams.world):
        raise OptionError(
            f"the streams are those of {streams.world} ranks, not of {config.gpus}",
            where=where,
            fix="leave --gpus out, or capture the script with another --world",
        )
