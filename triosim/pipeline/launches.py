"""What launching a step's tasks costs the host: as the user says, as it was measured, or as usual for the software stack."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import median

from triosim.config import RunConfig
from triosim.config.stacks import stack_of
from triosim.operators.features import is_launched
from triosim.pipeline.reading import Subject
from triosim.trace import Trace


@dataclass(frozen=True, slots=True)
class Launches:
    """The cost of launches: operators cost the host their ``host_seconds``, a communication ``call_seconds``.

    ``run_ahead`` is how many operators the host may be ahead of its GPU; None: as many as CUDA's launch queue holds.
    """

    call_seconds: float
    run_ahead: int | None


def with_launches(subject: Subject, config: RunConfig) -> tuple[Subject, Launches | None]:
    """Return a subject whose operators have host times, and what other launches cost; None where launches are free.

    By default operators cost what was measured, and predicted ones without host times what is usual for their stack.
    """
    trace, overhead = subject.trace, config.host_overhead
    measured = median_host_seconds(trace)
    if overhead == "none":
        return subject, None
    if overhead == "trace" or (overhead is None and (measured or not trace.times.startswith("predicted"))):
        return subject, Launches(_of_transfers(trace) or measured, config.run_ahead) if measured else None
    if overhead is not None:
        return _launched(subject, overhead), Launches(overhead, config.run_ahead)
    stack = stack_of(trace)
    ahead = stack.run_ahead if config.run_ahead is None else config.run_ahead
    return _launched(subject, stack.launch_seconds), Launches(stack.call_seconds, ahead)


def median_host_seconds(trace: Trace) -> float:
    """Return what launching the median operator costs the host: what a communication does, where a trace has none."""
    costs = [operator.host_seconds for operator in trace.operators if operator.host_seconds and operator.seconds]
    return median(costs) if costs else 0.0


def _of_transfers(trace: Trace) -> float:
    """Return what launching the median communication of a trace cost the host, 0 where that is not known."""
    costs = [one.host_seconds for one in trace.operators if one.communication is not None and one.host_seconds]
    return median(costs) if costs else 0.0


def _launched(subject: Subject, seconds: float) -> Subject:
    """Return a subject whose every operator that launches a kernel costs the host so long; a view costs nothing."""
    return subject.changed(partial(_with_host_seconds, seconds=seconds))


@lru_cache(maxsize=16)
def _with_host_seconds(trace: Trace, seconds: float) -> Trace:
    operators = [one.with_host_seconds(seconds if is_launched(one) else None) for one in trace.operators]
    return replace(trace, operators=tuple(operators))
