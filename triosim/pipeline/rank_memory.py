"""``rank_memory``: the memory of every rank of a run that nobody simulates, from a trace and the options of ``simulate``."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from triosim import gpus as catalogue
from triosim import plugins
from triosim.compute.pricing.repricing import on_gpu
from triosim.config import RunConfig
from triosim.errors import OptionError
from triosim.extrapolators.core.plan import plan
from triosim.gpus import Gpu
from triosim.memory.extrapolated_memory import ExtrapolatedMemory, memory_of
from triosim.pipeline import captured_run
from triosim.simulation import gpus_for
from triosim.trace import Trace
from triosim.trace.formats import read


def rank_memory(
    trace: Trace | str | PathLike[str],
    parallel: str | Mapping[str, int] = "single",
    *,
    gpus: int | None = None,
    gpu: str | Gpu | PathLike[str] | None = None,
    trace_format: str | None = None,
    compute_model: str | type = "auto",
    options: Mapping[str, str] | None = None,
    **choices: Any,
) -> ExtrapolatedMemory:
    """Return the memory of each rank of a training step on many GPUs.

    ``gpu`` is what must hold it, by default the trace's; times, which only divide a pipeline into stages, are predicted for it.
    ``choices`` are other options of ``triosim.simulate`` (``micro_batches=8``), ``options`` those that ``--option``
    gives. Raises ``TriosimError`` for whatever is wrong with the input.
    """
    subject = trace if isinstance(trace, Trace) else read(trace, trace_format)
    if not isinstance(subject, Trace):
        raise OptionError(
            f"the task streams of {subject.world} ranks have the memory that was captured",
            where=subject.source or "parallel",
            fix="leave out --parallel and what goes with it, or capture the script with another division",
        )
    captured_run.check_alone(subject)
    config = RunConfig.of(options=options, gpus=gpus, **choices)
    chosen = plugins.Options(options or {})
    found = plugins.load("compute_models", compute_model) if isinstance(compute_model, str) else compute_model
    model = plugins.make(found, options=chosen)
    target = None if gpu is None else gpu if isinstance(gpu, Gpu) else catalogue.find(gpu)
    if target is not None:
        subject = on_gpu(subject, target, model)
    with plugins.blamed():
        the_plan = plan(
            subject,
            parallel,
            gpus=gpus_for(parallel, gpus),
            config=config,
            model=model,
        )
    chosen.take(the_plan.known_options)
    chosen.refuse_left()
    return memory_of(the_plan, subject, target)
